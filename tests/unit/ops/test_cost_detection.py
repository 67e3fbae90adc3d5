"""torchvision's regions and deformable convolutions by hand."""

import pytest

from tests.unit.cost_calls import TENSOR_FP32, VECTOR, cost, spec


def f32(*shape):
    return spec(*shape, dtype="float32")


def test_boxes_are_compared_in_blocks():
    found = cost("torchvision.nms", [("dets", f32(1000, 4)), ("scores", f32(1000))], spec(300, dtype="int64"),
                 iou_threshold=0.5)  # fmt: skip
    assert found.modeled
    # 16 blocks of 64 boxes: 136 pairs of blocks hold all 500,500 pairs of boxes
    assert found.flops == {VECTOR: 12 * 500_500}
    assert found.read_bytes == 1000 * 5 * 4
    assert found.kernels == 4


def test_a_bin_is_the_mean_of_its_samples():
    data, rois, out = f32(2, 16, 50, 50), f32(8, 5), f32(8, 16, 7, 7)
    found = cost("torchvision.roi_align", [("input", data), ("rois", rois)], out, sampling_ratio=2, pooled_height=7,
                 pooled_width=7)  # fmt: skip
    bins = 8 * 16 * 49
    assert found.flops == {VECTOR: bins * (4 * 4 * 2 + 1)}  # 4 samples of 4 taps, 2 FLOP a tap; the mean
    assert found.read_bytes == rois.nbytes + min(data.nbytes, bins * 16 * 4)
    least = cost("torchvision.roi_align", [("input", data), ("rois", rois)], out, sampling_ratio=-1)
    assert least.flops == {VECTOR: bins * 9}  # one sample, where their number depends on the region


def test_a_maximum_costs_no_flop():
    found = cost("torchvision.roi_pool", [("input", f32(1, 4, 20, 20)), ("rois", f32(3, 5))],
                 [f32(3, 4, 2, 2), spec(3, 4, 2, 2, dtype="int32")])  # fmt: skip
    assert found.modeled
    assert not found.total_flops


@pytest.mark.parametrize("groups", [1, 2])
def test_deformable_convolution_is_a_product_of_sampled_columns(groups):
    data, weight, out = f32(2, 8, 10, 10), f32(16, 8 // groups, 3, 3), f32(2, 16, 10, 10)
    inputs = [("input", data), ("weight", weight), ("offset", f32(2, 18, 10, 10)), ("mask", f32(2, 9, 10, 10)),
              ("bias", f32(16))]  # fmt: skip
    found = cost("torchvision.deform_conv2d", inputs, out, groups=groups, use_mask=True)
    assert found.flops[TENSOR_FP32] == 2 * out.numel * (8 // groups) * 9
    assert found.flops[VECTOR] == 2 * 100 * 8 * 9 * 13  # 4 products of weights, 4 multiply-adds, the mask
    product = found.launches[1]
    assert (product.batch, product.m, product.n, product.k) == (groups, 16 // groups, 200, 8 // groups * 9)
    plain = cost("torchvision.deform_conv2d", inputs, out, groups=groups, use_mask=False)
    assert found.read_bytes - plain.read_bytes == 2 * 9 * 100 * 4  # the mask is not read


def test_the_gradient_of_a_deformable_convolution_is_two_products():
    data, weight, out = f32(2, 8, 10, 10), f32(16, 8, 3, 3), f32(2, 16, 10, 10)
    inputs = [("grad", out), ("input", data), ("weight", weight), ("offset", f32(2, 18, 10, 10)),
              ("mask", f32(2, 9, 10, 10)), ("bias", f32(16))]  # fmt: skip
    results = [data, weight, f32(2, 18, 10, 10), f32(2, 9, 10, 10), f32(16)]
    found = cost("torchvision._deform_conv2d_backward", inputs, results, groups=1, use_mask=True)
    assert found.flops[TENSOR_FP32] == 2 * 2 * out.numel * 72
    assert found.extra_flops == 0
