"""Pointwise ops. Expected values are worked out beside the assertions."""

from dataclasses import replace

import pytest

from memwall.core.graph import Graph, Op, Pipe, Storage, Value
from memwall.hardware.lookup import load_gpu
from memwall.ops.registry import classify, graph_costs
from memwall.perfmodel.roofline import predict_cost
from tests.unit.cost_calls import VECTOR, cost, expanded, spec


def test_bf16_add_of_8192_squared():
    big = spec(8192, 8192)
    result = cost("aten.add.Tensor", [("self", big), ("other", big)], big, alpha=1)
    assert result.bytes == 402_653_184  # 3 tensors * 8192*8192 * 2
    assert result.flops == {VECTOR: 67_108_864}


def test_broadcast_operand_is_read_once():
    result = cost("aten.add.Tensor", [("self", spec(8, 512, 4096)), ("other", spec(4096))], spec(8, 512, 4096))
    assert result.total_flops == 16_777_216  # 8*512*4096
    assert result.read_bytes == 33_562_624  # 16,777,216*2 + 4096*2
    rows = expanded((1024, 1024), (0, 1))
    assert cost("aten.mul.Tensor", [("self", rows), ("other", rows)], spec(1024, 1024)).read_bytes == 4_096


@pytest.mark.parametrize(("name", "attributes", "per_element"), [
    ("aten.add.Tensor", {"alpha": 1}, 1),
    ("aten.add.Tensor", {"alpha": 0.5}, 2),
    ("aten.sub_.Tensor", {"alpha": 2}, 2),
    ("aten.mul.Scalar", {"other": 3.0}, 1),
    ("aten.relu", {}, 0),
    ("aten.threshold_backward", {}, 0),
    ("aten.where.self", {}, 0),
    ("aten.neg", {}, 0),
    ("aten.clamp", {}, 0),
    ("aten.exp", {}, 1),
    ("aten.pow.Tensor_Scalar", {"exponent": 2}, 1),
    ("aten.sigmoid", {}, 3),  # exp, add, divide
    ("aten.silu", {}, 4),  # and a multiply
    ("aten.silu_backward", {}, 8),  # sigmoid, then s * (1 + x * (1 - s)) * dy
    ("aten.gelu", {"approximate": "none"}, 5),  # x * 0.5 * (1 + erf(x * c))
    ("aten.gelu", {"approximate": "tanh"}, 9),
    ("aten.gelu_backward", {"approximate": "none"}, 11),
    ("aten.tanh_backward", {}, 3),  # dy * (1 - y * y)
    ("aten.addcmul", {"value": 1}, 2),
    ("aten.addcdiv_", {"value": -0.1}, 3),
    ("aten.lerp.Scalar", {}, 3),  # a + w * (b - a)
    ("aten.native_dropout_backward", {}, 1),
    ("aten.max.other", {}, 0),
])  # fmt: skip
def test_flops_per_element(name, attributes, per_element):
    result = cost(name, [("self", spec(10, 10))], spec(10, 10), **attributes)
    assert result.total_flops == 100 * per_element
    assert result.modeled
    assert classify(name) == "elementwise"


def test_dropout_writes_a_mask_of_bytes():
    result = cost("aten.native_dropout", [("input", spec(1000))], [spec(1000), spec(1000, dtype="bool")], p=0.1)
    assert (result.read_bytes, result.write_bytes, result.total_flops) == (2000, 3000, 1000)


def test_pipes_and_integers():
    def add(dtype):
        return cost("aten.add.Tensor", [("self", spec(10, dtype=dtype))], spec(10, dtype=dtype)).flops

    assert add("float16") == add("float32") == {VECTOR: 10}
    assert add("float64") == {Pipe("vector", "float64"): 10}
    assert add("int64") == {}
    assert add("complex64") == {VECTOR: 20}
    product = cost("aten.mul.Tensor", [("self", spec(10, dtype="complex64"))], spec(10, dtype="complex64"))
    assert product.flops == {VECTOR: 60}  # 4 multiplies, 2 adds
    assert cost("aten.gt.Scalar", [("self", spec(10))], spec(10, dtype="bool")).flops == {}


def test_in_place_add_reads_two_and_writes_one():
    big = spec(8192, 8192)
    values = (Value(0, big, 0, 0), Value(1, big, 1, 0))
    storages = (Storage(0, big.nbytes, "activation"), Storage(1, big.nbytes, "activation"))
    op = Op(0, "aten.add_.Tensor", "elementwise", "forward", "", (0, 1), (0,), ("self", "other"), {"alpha": 1})
    (result,) = graph_costs(Graph(values, storages, (op,)))
    assert result.read_bytes == 268_435_456  # 2 * 8192*8192*2
    assert result.write_bytes == 134_217_728


def test_interpolation_counts_its_fine_side():
    coarse, fine = spec(1, 3, 8, 8), spec(1, 3, 16, 16)
    forward = cost("aten.upsample_bilinear2d", [("self", coarse)], fine)
    assert forward.total_flops == 6_912  # 768 * 9
    backward = cost("aten.upsample_bilinear2d_backward", [("grad_output", fine)], coarse)
    assert backward.total_flops == 9_216  # 768 * 12
    assert cost("aten.upsample_nearest2d", [("self", coarse)], fine).total_flops == 0


def test_random_fill_is_written_only():
    result = cost("aten.normal_", [], spec(1000))
    assert (result.read_bytes, result.write_bytes, result.flops) == (0, 2000, {})


@pytest.mark.parametrize(("left", "right", "per_element"), [
    (spec(64, 32, 128), spec(64, 32, 128), 0),  # one run: whole vectors
    (expanded((64, 32, 128), (128, 8192, 1)), expanded((64, 32, 128), (128, 8192, 1)), 0),  # one run, permuted
    (spec(64, 32, 128), spec(128), 36),  # a row of 128 again and again: two axes of 12, and 12 around
    (spec(64, 32, 128), expanded((64, 1, 128), (128, 128, 1)), 48),  # its middle axis stands still: three
    (spec(64, 32, 128), expanded((64, 32, 128), (128, 8192, 1)), 48),  # the other order of two axes
    (expanded((64, 32, 128), (8192, 256, 1)), expanded((64, 32, 128), (8192, 256, 1)), 36),  # gaps between rows
    (spec(64, 32, 128), spec(64, 32, 128, dtype="float32"), 53),  # a cast
    (spec(64, 32, 128), spec(64, 32, 128, dtype="bool"), 0),  # a mask is none
    (spec(64, 32, 128), spec(), 0),  # a number
])  # fmt: skip
def test_index_arithmetic(left, right, per_element):
    dtype = "float32" if right.dtype == "float32" else "bfloat16"
    permuted = left.strides == right.strides == (128, 8192, 1)
    output = left if permuted else spec(64, 32, 128, dtype=dtype)
    result = cost("aten.mul.Tensor", [("self", left), ("other", right)], output)
    assert result.launches[0].instructions == per_element * 262_144  # 64 * 32 * 128


def test_index_arithmetic_takes_time_where_it_is_slower_than_memory():
    a100 = load_gpu("a100-80gb-sxm")  # 108 multiprocessors of 64 integer lanes at 1.41 GHz
    big, turn = spec(32, 16384, 256), expanded((32, 16384, 256), (256, 8192, 1))
    mixed = cost("aten.add.Tensor", [("self", big), ("other", turn)], big)
    lanes_s = 48 * 134_217_728 / (108 * 64 * 1.41e9)
    found = predict_cost(mixed, a100)
    assert found.latency_s == pytest.approx(lanes_s, rel=2e-3)  # and the start
    assert (found.limited_by, found.memory_s < lanes_s) == ("latency", True)
    plain = cost("aten.add.Tensor", [("self", big), ("other", big)], big)
    assert predict_cost(plain, a100).compute_s < predict_cost(plain, a100).memory_s < lanes_s
    unknown = replace(a100, sm_count=1)  # a file that does not say
    assert predict_cost(mixed, unknown).compute_s == pytest.approx(predict_cost(plain, unknown).compute_s)
