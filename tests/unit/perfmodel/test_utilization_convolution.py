"""Convolutions as launches: what the cost formulas say of them, and the time model. Counts are worked out by hand."""

import math
import statistics
from dataclasses import replace

import pytest

from memwall.bench.accuracy.reading import read_measured
from memwall.bench.accuracy.samples import Sample, model_rows
from memwall.core.graph import Pipe
from memwall.hardware.lookup import load_gpu
from memwall.ops.launches import Stream
from memwall.ops.product_launches import Convolution
from memwall.perfmodel.families import explain, predict
from memwall_lab.modules import ModuleSample
from tests.unit.cost_calls import cost, spec
from tests.unit.places import truth

FP32, FP16, TF32 = Pipe("tensor", "float32"), Pipe("tensor", "float16"), Pipe("tensor", "tf32")


def launch(pipe=FP16, role="forward", n=32, cin=64, cout=64, hw=56, window=3, stride=1, groups=1, **changes):
    """A square convolution that keeps its places but for the stride, on tensors that lie in DRAM."""
    itemsize, out = (2 if pipe == FP16 else 4), -(-hw // stride)
    data, result = n * cin * groups * hw * hw * itemsize, n * cout * groups * out * out * itemsize
    return Convolution(**{
        "pipe": pipe, "role": role, "images": n, "groups": groups, "channels_in": cin, "channels_out": cout,
        "places_in": (hw, hw), "places_out": (out, out), "kernel": (window, window), "stride": (stride, stride),
        "itemsize": itemsize, "read_bytes": data + cin * cout * groups * window * window * itemsize,
        "write_bytes": result, **changes,
    })  # fmt: skip


def test_forward_is_one_launch_and_a_pass_for_the_bias():
    data, weight, out = spec(2, 3, 8, 8), spec(16, 3, 3, 3), spec(2, 16, 4, 4)
    inputs = [("input", data), ("weight", weight), ("bias", spec(16))]
    conv, bias = cost("aten.convolution", inputs, out, stride=[2, 2], padding=[1, 1], groups=1).launches
    assert (conv.role, conv.images, conv.channels_in, conv.channels_out) == ("forward", 2, 3, 16)
    assert (conv.places_in, conv.places_out, conv.kernel, conv.stride) == ((8, 8), (4, 4), (3, 3), (2, 2))
    assert (conv.read_bytes, conv.write_bytes) == (768 + 864, 1024)  # 384 + 432 and 512 elements of 2 bytes
    assert isinstance(bias, Stream)
    assert (bias.read_bytes, bias.write_bytes) == (1024 + 32, 1024)


def test_backward_is_one_launch_for_each_gradient():
    grad, data, weight = spec(2, 8, 4, 4), spec(2, 4, 4, 4), spec(8, 4, 3, 3)
    inputs = [("grad_output", grad), ("input", data), ("weight", weight)]
    result = cost("aten.convolution_backward", inputs, [data, weight, spec(8)], output_mask=(True, True, True))
    of_input, of_weight, of_bias = result.launches
    assert (of_input.role, of_input.read_bytes, of_input.write_bytes) == ("input", 512 + 576, 256)
    assert (of_weight.role, of_weight.read_bytes, of_weight.write_bytes) == ("weight", 512 + 256, 576)
    assert (of_bias.read_bytes, of_bias.write_bytes) == (512, 16)
    only = cost("aten.convolution_backward", inputs, [weight], output_mask=(False, True, False))
    assert [work.role for work in only.launches] == ["weight"]


def test_a_transposed_convolution_is_the_input_gradient_of_another():
    # weight [Cin 16, Cout 4, 2, 2]: the convolution that it transposes has 4 channels in and 16 out
    inputs = [("input", spec(1, 16, 8, 8)), ("weight", spec(16, 4, 2, 2))]
    (work,) = cost("aten.convolution", inputs, spec(1, 4, 16, 16), transposed=True, groups=1, stride=[2, 2]).launches
    assert (work.role, work.channels_in, work.channels_out) == ("input", 4, 16)
    assert (work.places_in, work.places_out) == ((16, 16), (8, 8))


def test_groups_and_depthwise():
    data, out = spec(1, 32, 8, 8), spec(1, 64, 8, 8)
    (grouped,) = cost("aten.convolution", [("input", data), ("weight", spec(64, 8, 3, 3))], out, groups=4).launches
    assert (grouped.groups, grouped.channels_in, grouped.channels_out) == (4, 8, 16)
    assert not grouped.depthwise
    (alone,) = cost("aten.convolution", [("input", data), ("weight", spec(32, 1, 3, 3))], data, groups=32).launches
    assert alone.depthwise
    assert predict(alone, load_gpu("h100-sxm")).facts["way"] == "depthwise"


def test_tiles_and_rounds_of_an_implicit_gemm():
    # 32 * 56 * 56 = 100,352 places = 784 x 128; 64 channels are one tile wide; 132 SMs: 5.94 waves
    facts = predict(launch(), load_gpu("h100-sxm")).facts
    assert (facts["way"], facts["m"], facts["n"], facts["k"]) == ("implicit GEMM", 100_352, 64, 576)
    assert (facts["tile"], facts["tiles"]) == ((128, 64), 784)
    assert 784 / 132 <= facts["rounds"] <= 6


@pytest.mark.parametrize(("window", "side", "points"), [(3, 7, 36), (5, 6, 81)])
def test_winograd_in_stages_makes_squares_of_4_and_for_windows_of_5_of_5(window, side, points):
    # 28 places are 7 squares of 4, each of 6 x 6 inputs, or 6 of 5, each of 9 x 9
    work = launch(FP32, cin=512, cout=512, hw=28, window=window)
    facts = predict(work, load_gpu("v100-sxm2-16gb")).facts
    assert (facts["way"], facts["points"]) == ("Winograd", points)
    assert (facts["m"], facts["n"], facts["k"]) == (32 * side**2, 512, 512)
    # each point's three matrices are written by one stage and read by the next
    assert facts["between"] == 2 * points * 4 * (2 * 32 * side**2 * 512 + 512 * 512)


def test_few_channels_take_no_tile_of_many():
    """16 channels in a tile 128 wide would cost 8 times their arithmetic: 512 pictures of 8 channels, 112 x 112 places,
    windows of 3 x 3, on an RTX 3090: 14.8 GFLOP, 0.21 ms at 71.2 TFLOP/s, of 128 columns 1.66 ms."""
    work = launch(n=512, cin=8, cout=16, hw=112, searched=True, channels_last=True)
    assert predict(work, load_gpu("rtx-3090")).compute_s < 1.66e-3 / 2


def test_half_the_rate_of_tensor_cores_is_reached_in_full():
    """An RTX 3090's tensor cores have half the rate of an A40's for float32 sums: what hinders those hides behind them.
    256 pictures of 512 channels, 28 x 28 places, windows of 3 x 3: 947 GFLOP."""
    work = launch(n=256, cin=512, cout=512, hw=28, searched=True, channels_last=True)
    shares = []
    for name in ("rtx-3090", "a40"):
        board = load_gpu(name)
        shares.append(2 * 256 * 28**2 * 512**2 * 9 / board.peak(FP16) / predict(work, board).time_s)
    assert shares[0] > 0.94
    assert shares[1] < 0.82


def test_tf32_is_float32_where_there_is_none_and_faster_where_there_is():
    v100, a100 = load_gpu("v100-sxm2-16gb"), load_gpu("a100-80gb-sxm")
    assert predict(launch(TF32), v100).time_s == predict(launch(FP32), v100).time_s
    assert predict(launch(TF32), a100).time_s < predict(launch(FP32), a100).time_s
    assert predict(launch(FP16), a100).time_s < predict(launch(TF32), a100).time_s


def test_narrow_groups_are_no_slower_than_without_tensor_cores():
    gpu = load_gpu("v100-sxm2-16gb")
    work = launch(cin=4, cout=4, groups=32)
    assert predict(work, gpu).time_s <= predict(replace(work, pipe=FP32), gpu).time_s


def test_an_output_without_places_takes_no_time_and_divides_by_nothing():
    assert predict(launch(n=0), load_gpu("t4")).time_s < 1e-3


@pytest.mark.parametrize(("work", "words"), [
    (launch(), ["100352x64x576", "784 tiles of 128x64", "132 SMs = 5.94 waves", "TFLOP/s"]),
    (launch(FP32, cin=512, cout=512, hw=28), ["36 matmuls 1568x512x512", "between the stages"]),
    (launch(Pipe("vector", "float32"), cin=1, cout=1, groups=64), ["each of 64 channels", "window of 3x3"]),
    (launch(role="weight"), ["with k split in"]),
])  # fmt: skip
def test_the_sentence_holds_the_numbers(work, words):
    gpu = load_gpu("h100-sxm")
    text = explain(work, gpu, predict(work, gpu))
    assert [word for word in words if word not in text] == []
    assert text.endswith(".")
    assert "\n" not in text


def test_a_strided_float32_gradient_runs_over_the_gaps_unless_the_library_searched():
    # a window of 4 x 4 over 32 channels: 512 steps of k, of which a stride of 2 x 2 needs a quarter
    work, gpu = launch(FP32, "input", cin=64, cout=32, window=4, stride=2), load_gpu("t4")
    assert predict(work, gpu).facts["k"] == 512
    assert predict(replace(work, searched=True), gpu).facts["k"] == 128
    assert "1 in 4 taps meets an output" in explain(work, gpu, predict(work, gpu))
    # 16 channels along k are too few for it: the direct kernel has a product for each phase
    narrow = predict(launch(FP32, "input", cin=64, cout=16, window=4, stride=2), gpu).facts
    assert (narrow["way"], narrow["k"]) == ("direct", 64)


def test_a_strided_gradient_on_tensor_cores_has_a_product_for_each_phase():
    # 4 x 4 taps of 32 channels: a stride of 2 x 2 needs a quarter of 512 steps; KernelBench's level2_93 on an A100
    work = launch(TF32, "input", n=128, cin=16, cout=32, places_in=(66, 66), places_out=(32, 32), window=4, stride=2)
    terms = predict(work, load_gpu("a100-80gb-sxm"))
    assert (terms.facts["way"], terms.facts["pipe"].dtype, terms.facts["k"]) == ("implicit GEMM", "tf32", 128)


def test_16_output_channels_in_three_dimensions_fill_half_of_a_tile_of_tensor_cores():
    volume = {"places_in": (64, 64, 64), "places_out": (62, 62, 62), "kernel": (3, 3, 3)}
    work = replace(launch(TF32, n=16, cin=3, cout=16, **volume), stride=(1, 1, 1))
    assert predict(work, load_gpu("a100-80gb-sxm")).facts["tile"] == (128, 32)
    flat = predict(launch(TF32, n=16, cin=3, cout=16, hw=256), load_gpu("a100-80gb-sxm")).facts
    assert flat["pipe"].engine == "vector" or flat["tile"][1] >= 64


def test_places_that_a_stride_skips_are_zeroed_before():
    # 1 x 1 at a stride of 2 leaves 3 of 4 places of 32 x 64 x 56 x 56 floats: 25.7 MB are written once more
    work = launch(FP32, "input", window=1, stride=2, read_bytes=6_438_912, write_bytes=25_690_112)
    gpu = load_gpu("v100-pcie-32gb")
    terms = predict(work, gpu)
    assert terms.ends_s == pytest.approx(25.69e6 / (900e9 * gpu.achievable["dram"]) + gpu.launch_overhead_s, rel=0.01)
    assert "are zeroed before" in explain(work, gpu, terms)


#: module of KernelBench, window, places in and out, milliseconds on a T4, an A10G and an L40S; 16 images, 3 channels
#: to 64
_VOLUMES = (
    ("60", (3, 5, 7), (64, 64, 64), (62, 60, 58), (84.9, 32.0, 12.4)),
    ("66", (3, 5, 7), (16, 256, 256), (14, 252, 250), (322.0, 130.0, 52.8)),
)


@pytest.mark.parametrize(("module", "window", "places_in", "places_out", "measured_ms"), _VOLUMES)
def test_three_dimensions_without_tensor_cores_take_what_was_measured(
    module, window, places_in, places_out, measured_ms
):
    data, result = 16 * 3 * 4 * math.prod(places_in), 16 * 64 * 4 * math.prod(places_out)
    geometry = {"places_in": places_in, "places_out": places_out, "kernel": window}
    work = replace(launch(TF32, n=16, cin=3, **geometry, read_bytes=data, write_bytes=result), stride=(1, 1, 1))
    for name, measured in zip(("t4", "a10g", "l40s"), measured_ms, strict=True):
        terms = predict(work, load_gpu(name))
        assert terms.facts["way"] == "direct"
        assert terms.time_s * 1e3 == pytest.approx(measured, rel=0.3)


def strided_volume(cin, cout, stride=2, **more):
    geometry = {"places_in": (32, 64, 64), "places_out": (16, 32, 32), "kernel": (3, 3, 3)}
    work = launch(TF32, "input", n=16, cin=cin, cout=cout, **geometry, read_bytes=8_000_000, write_bytes=100_000_000)
    return replace(work, stride=(stride,) * 3, **more)


def test_a_strided_gradient_in_three_dimensions_takes_as_long_for_3_channels_along_k_as_for_32():
    terms = [predict(strided_volume(16, cout), load_gpu("t4")) for cout in (3, 8, 32)]
    assert {t.facts["way"] for t in terms} == {"direct"}
    assert len({t.time_s for t in terms}) == 1


@pytest.mark.parametrize(("cin", "cout", "way"), [(16, 32, "direct"), (16, 8, "direct"), (32, 16, "implicit GEMM")])
def test_a_strided_gradient_in_three_dimensions_is_given_to_tensor_cores_from_32_channels_of_the_result(cin, cout, way):
    assert predict(strided_volume(cin, cout), load_gpu("a100-80gb-sxm")).facts["way"] == way


@pytest.mark.parametrize(("cin", "cout", "way"), [(16, 32, "direct"), (64, 3, "direct"), (32, 64, "implicit GEMM")])
def test_a_gradient_in_three_dimensions_without_a_stride_needs_32_channels_for_an_implicit_gemm(cin, cout, way):
    assert predict(strided_volume(cin, cout, stride=1), load_gpu("t4")).facts["way"] == way


@pytest.mark.parametrize(("name", "measured_ms"), [("a100-80gb-sxm", 38.6), ("l40s", 35.9), ("t4", 121.0)])
def test_a_strided_gradient_in_three_dimensions_and_groups_takes_what_was_measured(name, measured_ms):
    # KernelBench's level1_72: 16 images, 4 groups of 8 channels to 16, 16 x 32 x 64 places to 32 x 64 x 128
    work = launch(
        TF32, "input", n=16, cin=16, cout=8, groups=4, places_in=(32, 64, 128), places_out=(16, 32, 64),
        kernel=(3, 5, 7), read_bytes=67_000_000, write_bytes=1_073_741_824,
    )  # fmt: skip
    terms = predict(replace(work, stride=(2, 2, 2)), load_gpu(name))
    assert terms.facts["way"] == "direct"
    assert terms.time_s * 1e3 == pytest.approx(measured_ms, rel=0.35)


def test_tensor_cores_fill_channels_up_to_32_bytes_in_three_dimensions():
    # 3 channels of 4 bytes at 3 x 3 x 3 taps: 8 x 27 steps of k, and at 3 x 3 taps 4 x 9
    volume = {"places_in": (64, 64, 64), "places_out": (62, 62, 62), "kernel": (3, 3, 3)}
    gpu = load_gpu("a100-80gb-sxm")
    assert predict(replace(launch(TF32, n=16, cin=3, **volume), stride=(1, 1, 1)), gpu).facts["k"] == 8 * 27
    assert predict(launch(TF32, n=16, cin=3, hw=256), gpu).facts["k"] == 4 * 9


def test_a_convolution_in_three_dimensions_on_tensor_cores_takes_what_was_measured():
    # KernelBench's module level1_60 on an A100: 16 images of 3 channels to 64, 6.04 ms
    work = launch(
        TF32, n=16, cin=3, places_in=(64, 64, 64), places_out=(62, 60, 58), kernel=(3, 5, 7),
        read_bytes=16 * 3 * 4 * 64**3, write_bytes=16 * 64 * 4 * 62 * 60 * 58,
    )  # fmt: skip
    terms = predict(replace(work, stride=(1, 1, 1)), load_gpu("a100-80gb-sxm"))
    assert terms.facts["way"] == "implicit GEMM"
    assert terms.time_s * 1e3 == pytest.approx(6.04, rel=0.1)


def test_tensor_cores_copy_to_channels_last_and_back():
    # 16 x 64 x 130 x 258 and 16 x 32 x 128 x 256 floats, 205 MB, KernelBench's module 71: two further passes
    work = launch(
        TF32, "input", n=16, cin=64, cout=32, places_in=(130, 258), places_out=(128, 256),
        read_bytes=67_182_592, write_bytes=137_379_840,
    )  # fmt: skip
    gpu = load_gpu("a100-80gb-sxm")
    terms = predict(work, gpu)
    assert terms.facts["copies_s"] == pytest.approx(
        2 * 204.6e6 / (gpu.dram_bytes_per_s * gpu.achievable["dram"]), rel=0.01
    )
    assert "copies to channels last and back" in explain(work, gpu, terms)
    assert terms.time_s * 1e3 == pytest.approx(0.645, rel=0.25)  # as measured on an A100


def test_before_tf32_float32_kernels_copy_channels_last_to_nchw_and_back():
    """16 x 64 x 56 x 56 floats there and as many back, 25.7 MB, twice more; an A10G's kernels take both layouts, and a
    window of one place is a product."""
    cases = (("t4", 3, 2), ("t4", 1, 0), ("a10g", 3, 0))
    for name, window, passes in cases:
        gpu, work = load_gpu(name), launch(FP32, n=16, window=window, channels_last=True)
        more_bytes = passes * work.bytes
        copies, without = predict(work, gpu), predict(replace(work, channels_last=False), gpu)
        more_s = more_bytes / (gpu.dram_bytes_per_s * gpu.achievable["dram"])
        assert copies.time_s - without.time_s == pytest.approx(more_s)
        assert ("copies to NCHW and back" in explain(work, gpu, copies)) == (passes > 0)


def test_a_block_makes_a_place_of_all_channels_of_a_depthwise_convolution():
    """level1_82 of KernelBench: 16 x 254 x 254 places in rounds of 108 x 32 blocks, nine taps of 800 clocks at 1.41
    GHz; under torch.compile it takes 1.73 ms with 25 us for copies, 0.2 ms after its call began."""
    work = launch(Pipe("vector", "float32"), n=16, cin=1, cout=1, groups=3, places_in=(256, 256),
                  places_out=(254, 254), channels_last=True)  # fmt: skip
    terms = predict(work, load_gpu("a100-80gb-sxm"))
    assert terms.time_s == pytest.approx(math.ceil(16 * 254**2 / (108 * 32)) * 9 * 800 / 1.41e9, rel=0.01)
    assert terms.time_s == pytest.approx(1.73e-3 - 0.225e-3, rel=0.05)
    assert predict(work, load_gpu("l40s")).time_s < 0.2e-3


@pytest.mark.parametrize("pipe", [FP16, FP32, TF32, Pipe("tensor", "float64")])
@pytest.mark.parametrize("role", ["forward", "input", "weight"])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("channels", [1, 3, 64])
def test_every_launch_has_an_engine(pipe, role, dims, channels):
    per_axis = {"kernel": (3,) * dims, "stride": (2,) * dims, "places_in": (16,) * dims, "places_out": (8,) * dims}
    work = replace(launch(pipe, role, cin=channels, cout=channels), **per_axis)
    for name in ("p4", "t4", "a100-80gb-sxm", "l40s", "h100-sxm", "b200", "mi210"):
        assert predict(work, load_gpu(name)).time_s > 0


def _errors(name, wanted):
    path = truth(name)
    if path is None:
        pytest.skip(f"{name} is not here")
    samples = [s for s in read_measured(path).of(Sample) if wanted(s) and not s.in_fit_half]
    by_cell = {}
    for sample, row in zip(samples, model_rows(samples), strict=True):
        cell = by_cell.setdefault((sample.gpu.name, sample.dtype), [])
        cell.append(abs(row.modeled_s / row.measured_s - 1))
    return {cell: sum(errors) / len(errors) for cell, errors in by_cell.items() if len(errors) >= 10}


@pytest.mark.parametrize(("name", "wanted"), [
    ("neusight_conv_subsample.csv", lambda sample: True),  # float32 of five GPUs
    # forward passes in both precisions
    ("deepbench_conv.csv", lambda sample: sample.op_class == "conv forward" and sample.dtype != "pseudo_fp16"),
])  # fmt: skip
def test_five_cells_are_met(name, wanted):
    errors = _errors(name, wanted)
    assert len(errors) == 5
    assert {cell: error for cell, error in errors.items() if error > 0.25} == {}


def test_lone_convolutions_of_kernelbench_on_a_bare_machine():
    path = truth("kernelbench_v0_times.csv")
    if path is None:
        pytest.skip("kernelbench_v0_times.csv is not here")
    # longer than five times an op of the host, so that the kernel decides
    samples = [
        s for s in read_measured(path).of(ModuleSample)
        if "_conv_" in s.module and s.op_class == "level 1 eager" and s.gpu.name == "l40s" and s.measured_s > 6e-5
        and not s.in_fit_half
    ]  # fmt: skip
    ratios = sorted(row.modeled_s / row.measured_s for row in (sample.row() for sample in samples))
    assert len(ratios) >= 9
    assert statistics.median(abs(ratio - 1) for ratio in ratios) <= 0.2
    assert abs(statistics.median(ratios) - 1) <= 0.1
