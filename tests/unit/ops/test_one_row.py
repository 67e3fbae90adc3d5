"""A new elementwise op is one row: costed, fused, generated and read from a trace with no other line changed."""

import pytest

from memwall.codegen import covers, generate
from memwall.codegen.ops import RULES
from memwall.core.flow import Flow
from memwall.core.graph import Pipe
from memwall.fusion import plan_graph
from memwall.ops import classify, graph_costs, registry
from memwall.ops.elementwise import pointwise
from memwall.ops.loops import is_random
from memwall.ops.registry import define
from memwall.traces.calls import Hints, read_call
from memwall.traces.records import TracedOp
from memwall.traces.schemas import schemas_of
from tests.unit.fusion_graphs import Builder, round_gpu


@pytest.fixture
def swish(monkeypatch):
    """``x * sigmoid(x)`` under another name: exp, add, divide, multiply."""
    registry._load_families()  # into the table that stays
    monkeypatch.setattr(registry, "_ROWS", dict(registry._ROWS))
    monkeypatch.setattr(registry, "_found", {})
    schemas_of.cache_clear()
    pointwise("mylib::swish", 4, "{self} * tl.sigmoid({self})", in_place=False,
              schema="mylib::swish(Tensor self) -> Tensor")  # fmt: skip
    yield "mylib.swish.default"
    schemas_of.cache_clear()


@pytest.fixture
def graph(swish):
    b = Builder()
    x = b.given(1024, 1024)
    y = b.like("aten.mul.Tensor", ("self", x), ("other", x))
    return b.graph(b.like(swish, ("self", y)))


def test_it_is_costed(graph):
    assert classify("mylib.swish.default") == "elementwise"
    cost = graph_costs(graph)[1]
    assert cost.modeled
    assert cost.flops == {Pipe("vector", "float32"): 4 * 2**20}
    assert (cost.read_bytes, cost.write_bytes) == (4 * 2**20, 4 * 2**20)


def test_it_is_fused_and_generated(graph):
    plan = plan_graph("memwall", graph, graph_costs(graph), round_gpu())
    (group,) = plan.groups
    assert group.op_ids == (0, 1)
    kernel = generate(graph, Flow.of(graph), group, round_gpu())
    assert kernel.schedule == "pointwise"
    assert "tl.sigmoid(" in kernel.source
    assert covers("mylib.swish.default")


def test_it_is_read_from_a_recorded_call(swish):
    op = TracedOp(0, "mylib::swish", ("1", "1"), 0, 1, dims=((32, 16),), types=("c10::BFloat16",))
    call = read_call(op, Hints()).call
    assert call.name == "mylib.swish.default"
    assert [(spec.shape, spec.dtype) for spec in call.outputs] == [((32, 16), "bfloat16")]


def test_what_an_op_has_already_is_refused(swish):
    define("mylib::swish", cpu_rate="silu")
    with pytest.raises(ValueError, match=r"mylib\.swish has a cpu rate already"):
        define("mylib::swish", cpu_rate="gelu")
    with pytest.raises(ValueError, match=r"aten\.relu has "):
        pointwise("relu", 0)


def test_a_form_that_draws_numbers_is_said_once():
    b = Builder()
    b.like("aten.native_dropout.default", ("input", b.given(8)))
    assert is_random(b.graph().ops[0])


def test_whatever_is_generated_has_a_row():
    known = {name.removeprefix("aten.").rstrip("_") for name, row in registry.rows() if row.cost is not None}
    assert {name.removesuffix("_.Tensor") for name in RULES} <= known
