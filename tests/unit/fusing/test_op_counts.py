"""The lowering funnel, against decompositions worked out by hand."""

import importlib.util
import json
import re
import xml.etree.ElementTree as ET

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import memwall
import memwall.fusing.op_counts
from memwall.core.errors import UsageError
from memwall.core.structure import write
from memwall.frontend.targets import Workload, resolve
from memwall.frontend.torch import TraceOptions, trace
from memwall.fusing.op_counts import IrLevel, OpCounts, op_counts
from memwall.fusing.run import fused, with_op_counts
from memwall.inductor import Lowered, LoweredKernel
from reports.funnel_figure import funnel_figure
from reports.funnel_report import operator_sets
from tests.unit.one_call import Call, meta
from tests.unit.places import ROOT


def graph_of(function, *inputs, mode="inference", optimizer=None):
    """The graph of a function or a module."""
    module = function if isinstance(function, nn.Module) else Call(function)
    workload = Workload(module, inputs, optimizer=optimizer)
    return trace(workload, TraceOptions(mode=mode)).graph


def levels(function, *inputs):
    """The ops at the first three levels."""
    return [dict(level.ops) for level in op_counts(graph_of(function, *inputs)).levels]


def test_addmm():
    found = levels(torch.addmm, meta(16), meta(4, 8), meta(8, 16))
    # alpha · (A @ B) + beta · C; the product has no decomposition
    assert found == [{"aten.addmm": 1}, {"aten.addmm": 1}, {"aten.mm": 1, "prims.mul": 2, "prims.add": 1}]


def test_gelu():
    # x · 0.5 · (1 + erf(x · √½))
    fp32 = {"prims.mul": 3, "prims.add": 1, "prims.erf": 1}
    assert levels(F.gelu, meta(4, 8)) == [{"aten.gelu": 1}, {"aten.gelu": 1}, fp32]
    # in bf16 it is computed in fp32: one conversion there and one back
    bf16 = levels(F.gelu, meta(4, 8, dtype=torch.bfloat16))[2]
    assert bf16 == {**fp32, "prims.convert_element_type": 2}


def test_layer_norm():
    found = levels(lambda x, w, b: F.layer_norm(x, (8,), w, b), meta(4, 8), meta(8), meta(8))
    assert found[:2] == [{"aten.native_layer_norm": 1}] * 2  # a core operator
    assert found[2] == {
        "prims.var": 1, "prims.sum": 1, "prims.div": 1,  # variance, and the mean as sum / count
        "prims.add": 2, "prims.rsqrt": 1,                # + eps; + bias
        "prims.sub": 1, "prims.mul": 2,                  # (x - mean) · rstd · weight
    }  # fmt: skip


def test_softmax_and_its_backward():
    found = op_counts(graph_of(lambda x: x.softmax(-1), meta(4, 8)))
    # exp(x - max) / sum
    assert found.levels[2].ops == dict.fromkeys(("prims.amax", "prims.div", "prims.exp", "prims.sub", "prims.sum"), 1)
    x = meta(4, 8).requires_grad_()
    both = op_counts(graph_of(lambda x: x.softmax(-1), x, mode="training"))
    assert both.level("ATen").ops["aten._softmax_backward_data"] == 1
    assert not any(name.startswith("aten._softmax") for name in both.level("prims").ops)


def test_calls_are_counted_and_distinct_ops_once():
    graph = graph_of(nn.Sequential(*[nn.Linear(8, 8) for _ in range(5)]), meta(4, 8))
    found = op_counts(graph)
    assert [(level.distinct, level.calls) for level in found.levels] == [(1, 5), (1, 5), (3, 20)]


def test_each_kind_of_call_is_decomposed_once(monkeypatch):
    decomposed = []
    original = memwall.fusing.op_counts._leaves
    monkeypatch.setattr(
        "memwall.fusing.op_counts._leaves",
        lambda graph, op, table: decomposed.append(op.name) or original(graph, op, table),
    )
    op_counts(graph_of(nn.Sequential(*[nn.Linear(8, 8) for _ in range(50)]), meta(4, 8)))
    assert decomposed == ["aten.addmm"] * 2  # once for each table


def test_views_and_allocations_are_counted_apart():
    found = op_counts(graph_of(lambda x: x.t().reshape(2, 16).exp(), meta(4, 8)))
    # t, the copy's view; the copy itself does work
    assert found.levels[0].ops == {"aten.clone": 1, "aten.exp": 1}
    assert found.levels[0].free_calls == 2
    assert found.levels[1].calls == 2


def test_in_place_ops_count_as_functional_below_aten():
    found = levels(lambda x: x.exp().add_(1), meta(4, 8))
    assert found == [
        {"aten.add_.Tensor": 1, "aten.exp": 1},
        {"aten.add.Tensor": 1, "aten.exp": 1},
        {"prims.add": 1, "prims.exp": 1},
    ]


def test_what_has_no_decomposition_is_listed():
    found = op_counts(graph_of(lambda x, w: (F.relu(x @ w)).topk(2)[0], meta(4, 8), meta(8, 8)))
    assert found.no_decomposition == {"aten.mm": 1, "aten.topk": 1}
    assert found.failed == {}


def test_an_op_recorded_by_name_alone_counts_as_itself():
    found = op_counts(graph_of(nn.LSTM(8, 8), meta(3, 2, 8)))
    assert found.level("prims").ops["aten._cudnn_rnn"] == 1
    assert "aten._cudnn_rnn" in found.failed


def test_the_optimizer_is_left_out():
    step = graph_of(nn.Linear(8, 8), meta(4, 8), mode="training", optimizer="sgd-plain")
    assert any(op.phase == "optimizer" for op in step.ops)
    plain = graph_of(nn.Linear(8, 8), meta(4, 8), mode="training")
    assert op_counts(step).levels[1].ops == op_counts(plain).levels[1].ops


def test_inductors_levels_follow_when_they_are_given():
    graph = graph_of(F.gelu, meta(4, 8))
    kernel = LoweredKernel("k", "triton", (0,), (), 1, 0, 0, loop_ops={"load": 1, "mul": 3, "store": 1})
    found = op_counts(graph, Lowered((kernel,), {}, ("aten.sort",)))
    names = ["ATen", "core ATen", "prims", "Inductor graph", "loop IR", "kernels"]
    assert [level.name for level in found.levels] == names
    assert (found.level("loop IR").distinct, found.level("loop IR").calls) == (3, 5)
    assert found.fallbacks == ("aten.sort",)
    assert json.loads(json.dumps(write(found)))["levels"][4]["ops"] == {"mul": 3, "load": 1, "store": 1}


def test_a_reference_model_decomposes_without_failure():
    workload = resolve("profiles/resnet50/model.py", batch=2, mode="training")
    found = op_counts(trace(workload, TraceOptions(mode="training")).graph)
    assert found.failed == {}
    assert found.no_decomposition["aten.convolution"] == 53
    assert found.no_decomposition["aten.copy"] == 2 * 53  # running mean and variance of each batch norm


def test_the_operator_sets_of_this_torch():
    sets = operator_sets()
    assert sets["ATen overloads"] > sets["ATen"] > 1000  # ~2000+ announced
    assert sets["ATen"] > sets["core ATen"] > sets["prims"] > 100  # ~250 announced
    assert sets["loop IR"] > 50  # ~50 announced, 54 in the paper; special functions joined since


def test_the_report_says_what_this_torch_does():
    text = (ROOT / "reports" / "funnel.md").read_text(encoding="utf-8")
    written = re.search(r"Written with torch ([\d.]+)", text)[1]
    if written != torch.__version__.partition("+")[0]:
        pytest.skip(f"reports/funnel.md was written with torch {written}")
    workload = resolve(str(ROOT / "profiles/bert_layer/model.py"), mode="training")
    found = op_counts(trace(workload, TraceOptions(mode="training")).graph)
    rows = [[cell.strip() for cell in line.split("|")[2:5]] for line in text.splitlines() if "bert\\_layer" in line]
    assert rows[0] == [f"{level.distinct:,}" for level in found.levels]
    assert rows[1] == [f"{level.calls:,}" for level in found.levels]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_fuse_shows_inductors_levels():
    """Four layers of x · W, GELU, of which four products, four loops of a load and a store, and eight launches."""
    record = memwall.profile(
        nn.Sequential(*[nn.Sequential(nn.Linear(64, 64, bias=False), nn.GELU()) for _ in range(4)]),
        (torch.randn(256, 64),), gpu="a100",
    )  # fmt: skip
    found = with_op_counts(fused(record, ("inductor",))).op_counts
    assert found.level("Inductor graph").ops["aten.mm"] == 4
    loops = found.level("loop IR").ops
    assert (loops["erf"], loops["store"], loops["load"]) == (4, 4, 8)  # x is loaded for each of its two uses
    assert found.level("kernels").calls == 8


EXAMPLE = OpCounts(
    (
        IrLevel("ATen", {"aten.mm": 3, "aten._softmax": 1}, 7),
        IrLevel("core ATen", {"aten.mm": 3, "aten._softmax": 1}, 8),
        IrLevel("prims", {f"prims.op{i:02}": 30 - i for i in range(14)}, 9),
        IrLevel("loop IR", {"load": 12, "store": 4}),
    ),
    {"aten.mm": 3},
    ("aten.sort",),
    {"aten.odd": "no operator of this name to decompose"},
)


def test_as_a_picture():
    png = funnel_figure({"tiny": EXAMPLE})
    assert png.startswith(b"\x89PNG") and png == funnel_figure({"tiny": EXAMPLE})
    ET.fromstring(funnel_figure({"one": EXAMPLE, "two": EXAMPLE}, "svg"))
    with pytest.raises(UsageError, match="no op counts"):
        funnel_figure({})
