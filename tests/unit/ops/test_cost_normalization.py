"""Normalisations, softmax and cross entropy. Expected values are worked out beside the assertions."""

import pytest

from memwall.hardware.lookup import load_gpu
from memwall.perfmodel.roofline import predict_cost
from tests.unit.cost_calls import VECTOR, cost, spec


def test_softmax_of_a_short_row_reads_once():
    result = cost("aten._softmax", [("self", spec(64, 1024))], spec(64, 1024), dim=-1)
    assert result.flops == {VECTOR: 327_680}  # 5 * 64*1024
    assert (result.bytes, result.extra_bytes) == (262_144, 0)


@pytest.mark.parametrize(("shape", "dtype", "again", "kind"), [
    ((64, 1024), "float32", 0, "softmax_warp"),  # 4096 B: a warp's registers
    ((64, 8192), "bfloat16", 0, "softmax_block"),  # 16 KB: shared memory, a block per row
    ((64, 24576), "bfloat16", 2, "softmax_block"),  # 48 KB does not fit beside the reduction's scratch
    ((64, 32000), "float32", 2, "softmax_block"),  # 128 KB
    ((64, 1030), "float32", 0, "softmax_block"),  # 4120 B is no multiple of 16: read again from L1
])  # fmt: skip
def test_softmax_passes(shape, dtype, again, kind):
    data = spec(*shape, dtype=dtype)
    result = cost("aten._log_softmax", [("self", data)], data, dim=-1)
    (work,) = result.launches
    assert (work.kind, work.rows, work.columns, result.extra_bytes) == (kind, *shape, 0)
    assert work.second_pass_bytes == again * data.nbytes


@pytest.mark.parametrize(("shape", "dim"), [((64, 10, 32), 1), ((10, 64), 0)])
def test_softmax_over_elements_that_lie_apart_passes_three_times(shape, dim):
    data = spec(*shape, dtype="float32")
    result = cost("aten._log_softmax", [("self", data)], data, dim=dim)
    (work,) = result.launches
    assert result.extra_bytes == 2 * data.nbytes
    assert (work.read_bytes, work.write_bytes) == (3 * data.nbytes, data.nbytes)


def test_softmax_backward_stores_the_product_first():
    rows = spec(64, 512)  # 65,536 B
    result = cost("aten._softmax_backward_data", [("grad_output", rows), ("output", rows)], rows, dim=-1)
    assert result.total_flops == 131_072  # 4 * 32,768
    assert (result.bytes, result.extra_bytes, result.kernels) == (196_608, 196_608, 2)
    log = cost("aten._log_softmax_backward_data", [("grad_output", rows), ("output", rows)], rows, dim=-1)
    assert (log.extra_bytes, log.kernels) == (0, 1)


def test_layer_norm():
    data, stats, weight = spec(8, 128, 256), spec(8, 128, 1, dtype="float32"), spec(256)
    forward = cost("aten.native_layer_norm", [("input", data), ("weight", weight), ("bias", weight)],
                   [data, stats, stats])  # fmt: skip
    assert forward.total_flops == 1_835_008  # 7 * 262,144
    assert forward.read_bytes == 525_312  # 524,288 + 2 * 512
    assert forward.write_bytes == 532_480  # 524,288 + 2 * 1024 * 4
    assert forward.extra_bytes == 0
    (work,) = forward.launches
    assert (work.second_pass_bytes, work.rows_per_sm * work.columns * work.itemsize) == (
        524_288,
        8_192,
    )  # 16 rows of 512 B


@pytest.mark.parametrize(
    ("mask", "per_element", "extra", "kernels"),
    [((True, True, True), 13, 1_048_576, 2), ((True, False, False), 9, 0, 1), ((False, True, True), 4, 0, 1)],
)
def test_layer_norm_backward(mask, per_element, extra, kernels):
    data = spec(8, 128, 256)
    result = cost("aten.native_layer_norm_backward", [("grad_out", data), ("input", data)], [data], output_mask=mask)
    assert result.total_flops == per_element * 262_144
    assert (result.extra_bytes, result.kernels) == (extra, kernels)  # both tensors again: 2 * 524,288


def test_rms_norm_with_and_without_an_output_mask():
    data, weight, scale = spec(4, 256), spec(256), spec(4, 1, dtype="float32")
    forward = cost("aten._fused_rms_norm", [("input", data), ("weight", weight)], [data, scale])
    assert forward.total_flops == 4_096  # 4 * 1024
    masked = cost("aten._fused_rms_norm_backward", [("grad_out", data), ("input", data)], [data, weight],
                  output_mask=(True, True))  # fmt: skip
    traced = cost("aten._fused_rms_norm_backward", [("grad_output", data), ("input", data)], [data, weight])
    assert masked.total_flops == traced.total_flops == 10_240  # (7 + 3) * 1024
    frozen = cost("aten._fused_rms_norm_backward", [("grad_output", data), ("input", data)], [data])
    assert frozen.total_flops == 7_168


def test_batch_norm_reads_twice_in_training():
    data, stats = spec(2, 16, 8, 8), spec(16, dtype="float32")
    inputs = [("input", data), ("weight", stats), ("bias", stats)]
    training = cost("aten.native_batch_norm", inputs, [data, stats, stats], training=True)
    assert (training.total_flops, training.extra_bytes) == (14_336, 4_096)  # 7 * 2048; 2048 * 2
    inference = cost("aten.native_batch_norm", inputs, [data], training=False)
    assert (inference.total_flops, inference.extra_bytes) == (8_192, 0)
    backward = cost("aten.native_batch_norm_backward", [("grad_out", data), ("input", data)], [data, stats, stats],
                    train=True, output_mask=(True, True, True))  # fmt: skip
    assert (backward.total_flops, backward.extra_bytes) == (26_624, 8_192)  # 13 * 2048


def test_group_norm():
    data = spec(2, 16, 8, 8)
    forward = cost("aten.native_group_norm", [("input", data)], [data])
    assert (forward.total_flops, forward.extra_bytes, forward.kernels) == (14_336, 4_096, 3)
    backward = cost("aten.native_group_norm_backward", [("grad_out", data), ("input", data)], [data],
                    output_mask=(True, True, True))  # fmt: skip
    # both tensors again, and twice the two float32 sums of each of 2 x 16 channels
    assert (backward.total_flops, backward.extra_bytes) == (26_624, 8_192 + 2 * 2 * 4 * 32)


def test_nll_loss_reads_one_element_per_row():
    scores, target = spec(4096, 50000, dtype="float32"), spec(4096, dtype="int64")
    result = cost("aten.nll_loss_forward", [("self", scores), ("target", target)],
                  [spec(dtype="float32"), spec(dtype="float32")], reduction=1)  # fmt: skip
    assert result.read_bytes == 49_152  # 4096 * 4 + 4096 * 8
    assert result.total_flops == 4096


@pytest.mark.parametrize(
    ("rows", "reduction", "turns"),
    # a sixteenth of the rows, to the nearest power of two from 32 to 1024: 256, 32 and 1024 threads, which wait for a
    # target and its score each turn
    [(4096, 1, 2 * 16), (33, 2, 2 * 2), (100_000, 1, 2 * 98), (4096, 0, 0)],
)
def test_one_block_picks_the_losses(rows, reduction, turns):
    scores, target = spec(rows, 1000, dtype="float32"), spec(rows, dtype="int64")
    out = spec(rows, dtype="float32") if reduction == 0 else spec(dtype="float32")
    result = cost("aten.nll_loss_forward", [("self", scores), ("target", target)], [out], reduction=reduction)
    assert predict_cost(result, load_gpu("h100-sxm")).time_s > turns * 0.3e-6  # a load each turn, all caches missed
    assert result.launches[0].round_trips == turns


def test_nll_loss_backward_writes_the_whole_gradient():
    scores, target, one = spec(4096, 50000, dtype="float32"), spec(4096, dtype="int64"), spec(dtype="float32")
    result = cost("aten.nll_loss_backward",
                  [("grad_output", one), ("self", scores), ("target", target), ("total_weight", one)], scores,
                  reduction=1)  # fmt: skip
    assert result.read_bytes == 32_776  # 4096 * 8 + 2 * 4
    assert result.write_bytes == 819_200_000  # 4096 * 50,000 * 4
    assert result.kernels == 2


def test_batch_norm_updates_its_running_statistics_only_in_training():
    data, channel = spec(2, 16, 8, 8, dtype="float32"), spec(16, dtype="float32")
    inputs = [("input", data)] + [(n, channel) for n in ("weight", "bias", "running_mean", "running_var")]
    outputs = [data, channel, channel]
    training = cost("aten.native_batch_norm", inputs, outputs, training=True)
    assert (training.read_bytes, training.write_bytes) == (8_448, 8_448)  # 2*16*64*4 and four times 64 bytes
    frozen = cost("aten.native_batch_norm", inputs, outputs, training=False)
    assert (frozen.read_bytes, frozen.write_bytes) == (8_448, 8_192)
