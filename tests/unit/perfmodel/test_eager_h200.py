"""Eager kernels against what an H200 took (profiles/measured/h200): replays of a CUDA graph with a cold L2."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from memwall.core.graph import Pipe, contiguous
from memwall.hardware.lookup import load_gpu
from memwall.ops.launches import Stream
from memwall.ops.product_launches import Convolution, VectorGemm
from memwall.perfmodel.families import predict
from memwall.perfmodel.roofline import predict_cost
from tests.unit.cost_calls import cost, spec

GPU = load_gpu("h200")
PLACE = Path(__file__).parents[3] / "profiles" / "measured" / "h200"


def floats(*shape, dtype="float32"):
    return spec(*shape, dtype=dtype)


def time_us(found):
    return predict_cost(found, GPU, 0, "graph").time_s * 1e6


def measured_us(name, shapes):
    """Of a kernel that was timed alone; where two were, the first."""
    with (PLACE / "rows.csv").open(encoding="utf-8") as lines:
        rows = [
            row for row in csv.DictReader(lines) if row["executor"] == "eager"
            and row["name"] == name and row["shapes"].startswith(shapes) and row["measured_s"]
        ]  # fmt: skip
    return float(rows[0]["measured_s"]) * 1e6


@pytest.mark.parametrize("shape", [(128, 512, 512), (512, 8, 4096)])
def test_dropout_adds_its_random_numbers_to_its_traffic(shape):
    data = floats(*shape, dtype="float16")
    found = cost("aten.native_dropout", [("input", data)], [data, floats(*shape, dtype="bool")], p=0.1, train=True)
    (work,) = found.launches
    assert work.barrier_elements == 4
    turns = -(-data.numel // (132 * 2048 * 4))
    plain = predict(replace(work, barrier_elements=0), GPU)
    assert predict(work, GPU).time_s - plain.time_s == pytest.approx(turns * 1200 / 1.98e9)
    text = f"f16[{','.join(map(str, shape))}]"
    assert time_us(found) == pytest.approx(measured_us("aten.native_dropout", text), rel=0.15)


@pytest.mark.parametrize(
    ("shape", "ahead_us", "back_us"),
    [((32, 64, 112, 112), 405.2, 746.1), ((32, 64, 56, 56), 115.2, 207.7), ((32, 256, 56, 56), 175.0, 241.4)],
)
def test_pytorchs_own_batch_norm(shape, ahead_us, back_us):
    """The rows of ``aten.native_batch_norm``, which was called by its name: eager PyTorch would give it to cuDNN."""
    data, each = floats(*shape), floats(shape[1])
    ahead = cost("aten.native_batch_norm", [("input", data)], [data, each, each], training=True)
    assert time_us(ahead) == pytest.approx(ahead_us, rel=0.2)
    inputs = [("grad_out", data), ("input", data)]
    back = cost("aten.native_batch_norm_backward", inputs, [data], train=True, output_mask=[True, True, True])
    assert time_us(back) == pytest.approx(back_us, rel=0.25)


@pytest.mark.parametrize(("dtype", "of_weight", "by_cudnn"), [
    ("float32", "float32", True), ("float16", "float32", True), ("float16", "float16", False),
    ("bfloat16", "float32", False),
])  # fmt: skip
def test_which_batch_norm_cudnn_gets(dtype, of_weight, by_cudnn):
    data, each = floats(8, 16, 28, 28, dtype=dtype), floats(16, dtype=of_weight)
    inputs = [("input", data), ("weight", each), ("bias", each)]
    found = cost("aten.native_batch_norm", inputs, [data, each, each], training=True)
    assert (len(found.launches) == 1) == by_cudnn


def expanded(*shape, dtype="float32"):
    """The gradient of a sum: one element, however large the tensor."""
    dense = contiguous(shape, dtype)
    return replace(dense, strides=(0,) * len(shape))


def test_an_expanded_gradient_is_written_out_for_a_library():
    data, weight, made = floats(8, 32, 56, 56), floats(64, 32, 3, 3), (8, 64, 54, 54)
    inputs = [("grad_output", expanded(*made)), ("input", data), ("weight", weight)]
    found = cost("aten.convolution_backward", inputs, [data, weight], stride=[1, 1], output_mask=[True, True, False])
    written, *products = found.launches
    whole = 4 * 8 * 64 * 54 * 54
    assert isinstance(written, Stream)
    assert (written.read_bytes, written.write_bytes) == (4, whole)
    assert [isinstance(work, Convolution) and work.read_bytes > whole for work in products] == [True, True]
    inputs[0] = ("grad_output", floats(*made))
    dense = cost("aten.convolution_backward", inputs, [data, weight], stride=[1, 1], output_mask=[True, True, False])
    assert dense.launches == tuple(products)


def test_a_layer_norms_expanded_gradient_is_read_as_often_as_a_dense_one():
    """rows_d0ad6d32: 1414 us, of which the forward pass and the sum of its results take 440."""
    data, moments = floats(3000, 33000), floats(3000, 1)
    inputs = [("grad_out", expanded(3000, 33000)), ("input", data), ("mean", moments), ("rstd", moments)]
    found = cost("aten.native_layer_norm_backward", inputs, [data, floats(33000), floats(33000)],
                 normalized_shape=[33000], output_mask=[True, True, True])  # fmt: skip
    assert time_us(found) == pytest.approx(1414 - 440, rel=0.15)


def test_a_block_adds_few_embedding_gradients_for_32_columns():
    """index_c828c6c3 is 86 us, of them about 25 for three other kernels: 2000 rows in turns of 32."""
    table = floats(5000, 1000)
    inputs = [("grad_output", floats(2000, 1000)), ("indices", spec(2000, dtype="int64"))]
    found = cost("aten.embedding_dense_backward", inputs, [table], num_weights=5000)
    _, rows = found.launches
    assert (rows.blocks, rows.block_threads, rows.steps) == (32, 1024, 2.5 * 63)
    assert time_us(found) == pytest.approx(61, rel=0.25)


@pytest.mark.parametrize(("mode", "kernels"), [(0, 10), (1, 10), (2, 1)])
def test_gradients_of_bags_sort_their_indices_but_of_the_largest(mode, kernels):
    """index_74af3db5 in training is 54.3 us, in forward alone (index_7a991062, of wider rows) 11.5; two kernels of the
    loss are 6.5."""
    table = floats(5000, 32)
    inputs = [("grad", floats(100, 32)), ("indices", spec(2000, dtype="int64")), ("offsets", spec(100, dtype="int64"))]
    found = cost("aten._embedding_bag_backward", inputs, [table], num_weights=5000, mode=mode, sparse=False)
    assert [work.count for work in found.launches] == [1, kernels]
    if mode != 2:
        assert time_us(found) == pytest.approx(54.3 - 11.5 - 6.5, rel=0.25)


def test_a_margin_loss_goes_over_a_row_by_a_block():
    """loss_0d198c1b: 60,000 rows of 512 in 71 us, four times what its bytes take."""
    inputs = [("self", floats(60000, 512)), ("target", spec(60000, dtype="int64"))]
    found = cost("aten.multi_margin_loss", inputs, [spec(dtype="float32")])
    assert found.launches[0].steps == 4 + 2.5
    assert time_us(found) == pytest.approx(71.2, rel=0.15)


def test_small_batched_products_take_small_tiles():
    work = VectorGemm(
        pipe=Pipe("vector", "float32"), batch=2048, m=27, n=27, k=128, itemsize=4,
        read_bytes=2 * 4 * 2048 * 27 * 128, write_bytes=4 * 2048 * 27 * 27,
    )  # fmt: skip
    found = predict(work, GPU).time_s + GPU.launch_overhead_s
    assert found * 1e6 == pytest.approx(measured_us("aten.bmm", "f32[2048,27,128]"), rel=0.2)


def test_windows_of_one_place_are_copied_on_one_side():
    work = Convolution(
        pipe=Pipe("tensor", "tf32"), role="forward", images=32, groups=1, channels_in=128, channels_out=512,
        places_in=(28, 28), places_out=(28, 28), kernel=(1, 1), stride=(1, 1), itemsize=4,
        read_bytes=4 * (32 * 128 * 784 + 512 * 128), write_bytes=4 * 32 * 512 * 784,
    )  # fmt: skip
    copies_s = predict(work, GPU).facts["copies_s"]
    assert copies_s == pytest.approx(work.bytes / (4.8e12 * GPU.achievable["dram"]), rel=0.01)
    assert predict(replace(work, stride=(2, 2)), GPU).facts["copies_s"] == pytest.approx(2 * copies_s)


def test_overlapping_windows_find_their_neighbours_elements_in_l1():
    """A window of 7 x 7 with a stride of 3 shares 40 of 49 elements: pool_96874409 takes 20.9 us, not 70."""
    data, made = floats(32, 48, 56, 56), floats(32, 48, 17, 17)
    found = cost("aten.avg_pool2d", [("self", data)], [made], kernel_size=[7, 7], stride=[3, 3])
    assert found.launches[0].steps == pytest.approx(9 + 0.2 * 40)
    assert time_us(found) == pytest.approx(20.9, rel=0.35)
