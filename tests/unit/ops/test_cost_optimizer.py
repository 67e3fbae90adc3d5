"""Multi-tensor ops and fused optimizers. Expected values are worked out beside the assertions."""

import pytest

from memwall.ops.optimizer import launches
from tests.unit.cost_calls import VECTOR, cost, spec

CHUNK = 65536


@pytest.mark.parametrize(("sizes", "lists", "kernels"), [
    ([10] * 110, 1, 1),
    ([10] * 111, 1, 2),
    ([10] * 100, 4, 3),  # 36 + 36 + 28
    ([320 * CHUNK], 1, 1),
    ([320 * CHUNK + 1], 1, 2),
    ([3200 * CHUNK], 4, 10),
    ([0, 0], 1, 0),
    ([200 * CHUNK, 200 * CHUNK], 2, 2),  # 320 chunks, then 80
    ([319 * CHUNK, 1, 1], 1, 2),
    # 35 small tensors and most of a big one fill a launch (35 + 285 chunks); the rest goes on alone
    ([10] * 35 + [300 * CHUNK], 4, 2),
])  # fmt: skip
def test_launches(sizes, lists, kernels):
    assert launches(sizes, lists) == kernels


def test_launches_against_chunk_by_chunk_packing():
    sizes = [(i * 7919) % (900 * CHUNK) for i in range(200)]
    for lists, limit in enumerate((110, 64, 48, 36, 30), start=1):
        count = tensors = chunks = 0
        for size in filter(None, sizes):
            tensors += 1
            pieces = -(-size // CHUNK)
            for piece in range(pieces):
                chunks += 1
                last = piece == pieces - 1
                if (tensors == limit and last) or chunks == 320:
                    count, chunks, tensors = count + 1, 0, 0 if last else 1
        assert launches(sizes, lists) == count + (chunks > 0)


def test_foreach_add_of_two_lists():
    tensors = [spec(1000, dtype="float32")] * 50
    result = cost("aten._foreach_add_.List", [("self", tensors), ("other", tensors)], tensors, alpha=1)
    assert result.flops == {VECTOR: 50_000}
    assert (result.read_bytes, result.write_bytes) == (400_000, 200_000)
    assert result.kernels == 1  # 50 of at most 64


def test_foreach_out_of_place_walks_one_list_more():
    tensors = [spec(10, dtype="float32")] * 64
    assert cost("aten._foreach_mul_.Scalar", [("self", tensors)], tensors).kernels == 1  # 64 of 110
    assert cost("aten._foreach_mul.List", [("self", tensors), ("other", tensors)], tensors).kernels == 2  # of 48


def test_foreach_zero_and_copy_do_not_read_their_target():
    tensors = [spec(10, dtype="float32")] * 100
    zero = cost("aten._foreach_zero_", [], tensors)
    assert (zero.read_bytes, zero.write_bytes, zero.kernels) == (0, 4_000, 1)
    copied = cost("aten._foreach_copy_", [("src", tensors)], tensors)
    assert (copied.flops, copied.kernels) == ({}, 2)  # two lists: 64 and 36


def test_foreach_addcdiv_with_scalars_per_tensor():
    tensors = [spec(1000, dtype="float32")] * 4
    inputs = [("self", tensors), ("tensor1", tensors), ("tensor2", tensors)]
    assert cost("aten._foreach_addcdiv_.ScalarList", inputs, tensors).total_flops == 12_000  # 3 * 4000
    assert cost("aten._foreach_addcdiv_.Scalar", inputs, tensors, value=1).total_flops == 8_000


def test_foreach_norm():
    tensors = [spec(1000)] * 10
    result = cost("aten._foreach_norm.Scalar", [("self", tensors)], [spec()] * 10, ord=2)
    assert (result.total_flops, result.kernels) == (20_000, 2)


def _adam(name, **more):
    state = [spec(1000, dtype="float32")] * 10
    steps = [spec(dtype="float32")] * 10
    inputs = [("self", state), ("grads", state), ("exp_avgs", state), ("exp_avg_sqs", state), ("state_steps", steps)]
    outputs = state * 4  # the schema marks grads as written too
    extra = more.pop("extra", [])
    return cost(name, inputs + extra, outputs, **more)


def test_fused_adamw():
    result = _adam("aten._fused_adamw_", weight_decay=0.01)
    # decay 2, first moment 2 FMA, second moment a square and 2 FMA, denominator 3, update 3
    assert result.total_flops == 170_000  # 17 * 10,000
    assert result.read_bytes == 160_040  # 4 lists of 40,000 B and ten steps of 4 B
    assert result.write_bytes == 120_000  # gradients are left alone
    assert result.kernels == 1
    assert _adam("aten._fused_adam_", weight_decay=0.0).total_flops == 150_000


def test_fused_adamw_that_unscales_gradients_writes_them():
    scale = [("grad_scale", spec(dtype="float32"))]
    result = _adam("aten._fused_adamw_", weight_decay=0.01, extra=scale)
    assert (result.total_flops, result.write_bytes) == (180_000, 160_000)


def test_fused_sgd():
    weights = [spec(1000, dtype="float32")] * 10
    inputs = [("self", weights), ("grads", weights), ("momentum_buffer_list", weights)]
    first = cost("aten._fused_sgd_", inputs, weights * 3, momentum=0.9, is_first_step=True, weight_decay=0)
    assert (first.total_flops, first.read_bytes, first.write_bytes) == (20_000, 80_000, 80_000)
    later = cost("aten._fused_sgd_", inputs, weights * 3, momentum=0.9, nesterov=True, weight_decay=0.1)
    assert later.total_flops == 90_000  # decay 2, momentum 3, nesterov 2, update 2
    assert later.read_bytes == 120_000
