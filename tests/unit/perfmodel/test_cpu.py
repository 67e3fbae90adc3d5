"""A CPU's kernels: times by hand arithmetic on a made-up CPU, and which rate each op runs at.

Its DRAM gives 10 GB/s, its last cache of 32 MB 50 GB/s, a product 100 GFLOP/s, a call costs 1 us.
"""

import pytest

from memwall.core.graph import Pipe
from memwall.fusion import plan_graph
from memwall.hardware.gpu import KERNELS, Cpu
from memwall.ops import graph_costs
from memwall.ops.registry import rows
from memwall.perfmodel.cpu import kernel_name, kernel_time_s, product_name
from memwall.simulate.schedule import simulate
from tests.unit.fusion_graphs import Builder, round_gpu

MIB = 1 << 20
CPU = Cpu(threads=1, cache_bytes={"l2": 1_000_000, "l3": 32_000_000}, cache_bytes_per_s={"l2": 100e9, "l3": 50e9},
          flop_per_s={"window_convolution": 200e9, "pointwise_convolution": 80e9, "attention": 60e9},
          elements_per_s={"gelu": 2e9, "gelu_tanh": 0.4e9, "batch_norm_training": 0.5e9, "max_pool": 0.25e9},
          exposed_traffic=0.5)  # fmt: skip
MACHINE = round_gpu(name="cpu", architecture="cpu", compute_capability=None, sm_count=1,
                peak_flop_per_s={Pipe("vector", "float32"): 400e9}, dram_bytes_per_s=20e9, l2_bytes=32_000_000,
                l2_bytes_per_s=200e9, launch_overhead_s=1e-6, achievable={"dram": 0.5, "vector.float32": 0.25},
                cpu=CPU)  # fmt: skip


@pytest.fixture
def b():
    """A graph to build."""
    return Builder()


def kernels(builder):
    graph = builder.graph()
    return simulate(graph, plan_graph("eager", graph, graph_costs(graph), MACHINE), MACHINE).kernels


def test_a_function_is_limited_by_its_own_rate(b):
    x = b.given(MIB)
    b.like("aten.gelu.default", x)
    b.like("aten.gelu.default", x, approximate="tanh")
    exact, tanh = kernels(b)
    assert exact.compute_s == pytest.approx(MIB / 2e9)
    assert tanh.compute_s == pytest.approx(MIB / 0.4e9)
    assert (exact.limited_by, tanh.limited_by) == ("compute", "compute")
    assert exact.time_s == pytest.approx(MIB / 2e9 + 1e-6)


def test_a_first_read_comes_from_dram_a_second_from_the_cache(b):
    x = b.given(MIB)
    y = b.like("aten.relu.default", x)
    b.like("aten.relu.default", y)
    first, second = kernels(b)
    tensor = 4 * MIB
    assert first.memory_s == pytest.approx(tensor / 10e9 + tensor / 50e9)  # 8 MiB in all: the write stays in L3
    assert second.memory_s == pytest.approx(2 * tensor / 50e9)


def test_a_small_tensor_runs_at_the_nearer_caches_rate(b):
    x = b.given(MIB // 16)  # 256 KiB
    y = b.like("aten.relu.default", x)
    b.like("aten.relu.default", y)
    assert kernels(b)[1].memory_s == pytest.approx(2 * 4 * (MIB // 16) / 100e9)


def test_what_no_cache_holds_moves_at_drams_rate(b):
    x = b.given(16 * MIB)
    y = b.like("aten.relu.default", x)
    b.like("aten.relu.default", y)
    for kernel in kernels(b):
        assert kernel.memory_s == pytest.approx(2 * 64 * MIB / 10e9)
        assert kernel.limited_by == "bandwidth"


def test_a_read_is_lost_when_more_than_the_cache_moved_meanwhile(b):
    x, other = b.given(MIB), b.given(16 * MIB)
    b.like("aten.relu.default", x)
    b.like("aten.relu.default", other)
    b.like("aten.relu.default", x)
    tensor = 4 * MIB
    assert kernels(b)[2].memory_s == pytest.approx(tensor / 10e9 + tensor / 50e9)


def test_a_product_shows_a_part_of_its_traffic(b):
    x, w = b.given(128, 1024), b.given(1024, 1024)
    b.call("aten.mm.default", [("self", x), ("mat2", w)], 128, 1024)
    (kernel,) = kernels(b)
    read = 4 * (128 * 1024 + 1024 * 1024)
    assert kernel.compute_s == pytest.approx(2 * 128 * 1024 * 1024 / 100e9 + 0.5 * read / 10e9)


def convolution(b, shape, weight, out, **attributes):
    x, w = b.given(*shape), b.given(*weight)
    b.call("aten.convolution.default", [("input", x), ("weight", w)], *out, allow_tf32=True, **attributes)


def test_convolutions_run_at_the_rate_of_their_kind(b):
    convolution(b, (4, 64, 32, 32), (64, 64, 3, 3), (4, 64, 32, 32), stride=(1, 1), padding=(1, 1), groups=1)
    convolution(b, (4, 64, 32, 32), (64, 64, 1, 1), (4, 64, 32, 32), stride=(1, 1), padding=(0, 0), groups=1)
    window, pointwise = kernels(b)
    assert window.compute_s == pytest.approx(2 * 4 * 64 * 1024 * 64 * 9 / 200e9)
    assert pointwise.compute_s == pytest.approx(2 * 4 * 64 * 1024 * 64 / 80e9)


def test_a_convolution_of_no_known_rate_runs_as_a_product(b):
    convolution(b, (4, 64, 32, 32), (64, 64, 3, 3), (4, 64, 16, 16), stride=(2, 2), padding=(1, 1), groups=1)
    assert kernels(b)[0].compute_s == pytest.approx(2 * 4 * 64 * 256 * 64 * 9 / 100e9)


@pytest.mark.parametrize(("shape", "weight", "stride", "groups", "name"), [
    ((4, 8, 8, 8), (8, 8, 1, 1), (1, 1), 1, "pointwise_convolution"),
    ((16, 8, 8, 8), (8, 8, 1, 1), (1, 1), 1, "pointwise_convolution_batched"),
    ((16, 8, 8, 8), (8, 8, 3, 3), (1, 1), 1, "window_convolution"),
    ((4, 8, 8, 8), (8, 8, 1, 1), (2, 2), 1, "strided_convolution"),
    ((4, 8, 8, 8), (8, 1, 3, 3), (1, 1), 8, "depthwise_convolution"),
    ((4, 8, 8, 8), (8, 4, 3, 3), (1, 1), 2, "window_convolution"),
])  # fmt: skip
def test_the_kind_of_a_convolution(b, shape, weight, stride, groups, name):
    convolution(b, shape, weight, (shape[0], 8, 8, 8), stride=stride, groups=groups)
    graph = b.graph()
    assert product_name(graph, graph.ops[0]) == name


def test_attention_runs_at_its_own_rate_without_cudas_three_tf32_products(b):
    q, k, v = (b.given(1, 8, 256, 64) for _ in range(3))
    b.call("aten._scaled_dot_product_flash_attention.default", [("query", q), ("key", k), ("value", v)], 1, 8, 256, 64,
           is_causal=False)  # fmt: skip
    assert kernels(b)[0].compute_s == pytest.approx(4 * 8 * 256 * 256 * 64 / 60e9)


def test_pooling_looks_at_every_element_of_every_window(b):
    x = b.given(1, 16, 64, 64)
    b.call("aten.max_pool2d_with_indices.default", [("self", x)], 1, 16, 32, 32,
           kernel_size=(3, 3), stride=(2, 2), padding=(1, 1))  # fmt: skip
    assert kernels(b)[0].compute_s == pytest.approx(16 * 32 * 32 * 9 / 0.25e9)


@pytest.mark.parametrize(("op", "attributes", "name"), [
    ("aten.native_batch_norm.default", {"training": True}, "batch_norm_training"),
    ("aten.native_batch_norm.default", {"training": False}, "batch_norm"),
    ("aten.gelu.default", {"approximate": "none"}, "gelu"),
    ("aten.pow.Tensor_Scalar", {}, None),  # a square is a multiply
    ("aten.pow.Tensor_Tensor", {}, "pow"),
    ("aten.add.Tensor", {}, None),
    ("mylib.gelu.default", {}, None),
])  # fmt: skip
def test_the_rate_of_an_op(b, op, attributes, name):
    b.like(op, b.given(8), **attributes)
    assert kernel_name(b.graph().ops[0]) == name


def test_every_rate_has_ops_that_the_cost_model_knows():
    found = {row.cpu_rate: row.op_class for _, row in rows() if row.cpu_rate}
    assert {*found, "gelu_tanh"} == set(KERNELS)  # gelu with approximate="tanh"
    assert "other" not in found.values()


def test_a_gpu_has_no_such_times(b):
    b.like("aten.relu.default", b.given(8))
    graph = b.graph()
    (group,) = plan_graph("eager", graph, graph_costs(graph), round_gpu()).groups
    with pytest.raises(ValueError, match="no CPU"):
        kernel_time_s(graph, group.op_ids, group.cost, round_gpu(), ())
