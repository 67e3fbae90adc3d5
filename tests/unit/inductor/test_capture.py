"""TorchDynamo under the tracer: partial graphs, breaks, guards and recompiles, against what the models below say."""

import functools
import inspect
import json
import logging
import re
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from memwall.core.graph import EAGER, Op
from memwall.core.progress import listening
from memwall.core.structure import write
from memwall.frontend.targets import Workload, resolve
from memwall.frontend.torch import TraceOptions, trace
from memwall.inductor.dynamo.run import capture
from memwall.record.capture import carry

TRAINING = TraceOptions(mode="training")


@functools.cache
def captured(model, mode="training", real=False, others=(), loss=None, optimizer=None, batch=8):
    """The graph of a plain trace, and what Dynamo made of the same workload."""
    inputs = (torch.ones(batch, 16),)
    workload = Workload(model, inputs, loss=loss, optimizer=optimizer)
    options = TraceOptions(mode=mode, real=real)
    graph = trace(workload, options).graph
    return graph, capture(workload, options, graph, others)


def squared(output):
    return output.square().mean()


def names(graph, found):
    """``name region`` of each op."""
    return [f"{op.name.removeprefix('aten.')} {r}" for op, r in zip(graph.ops, found.regions, strict=True)]


def line_of(model, text):
    """The number of the first line of a class that has the text."""
    lines, start = inspect.getsourcelines(model)
    return start + next(i for i, line in enumerate(lines) if text in line)


class Clean(nn.Module):
    """One linear layer and a ReLU."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 16)
        self.scale = 3

    def forward(self, x):
        return self.a(x).relu() * self.scale


class Broken(Clean):
    """A break between the layer and the ReLU."""

    def forward(self, x):
        y = self.a(x)
        torch._dynamo.graph_break()
        return y.relu()


class PrintsFirst(Clean):
    def forward(self, x):
        print("before any op")
        return self.a(x).relu()


class Printer(Clean):
    def forward(self, x):
        y = self.a(x).relu()
        print("a side effect")
        return y * 2


class CallsPrinters(nn.Module):
    """Two calls of a module that breaks inside."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 16)
        self.parts = nn.ModuleList([Printer(), Printer()])

    def forward(self, x):
        x = self.a(x)
        x = self.parts[0](x)
        x = self.parts[1](x)
        return x.sum()


class LoopsOverPrinters(CallsPrinters):
    def forward(self, x):
        x = self.a(x)
        for part in self.parts:
            x = part(x)
        return x.sum()


class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])

    def forward(self, x):
        for part in self.parts:
            x = part(x)
            print("a side effect")
            x = x.relu()
        return x


class CallsALoop(Clean):
    def __init__(self):
        super().__init__()
        self.loop = Loop()

    def forward(self, x):
        x = self.a(x)
        x = self.loop(x)
        return x * self.scale


class ReadsData(Clean):
    def forward(self, x):
        x = self.a(x)
        largest = x.max().item()
        if x.sum() > 1e9:
            x = x + 1
        return (x * largest).sum()


class NeedsData(Clean):
    def forward(self, x):
        x = self.a(x)
        return (x * torch.histogram(x.detach(), 4).hist.sum()).sum()


class NamesCuda(Clean):
    def forward(self, x):
        return self.a(x) + torch.ones(16, device="cuda") + torch.ones(16)


class Checkpoints(Clean):
    def forward(self, x):
        return checkpoint(lambda y: F.gelu(self.a(y)).exp(), x, use_reentrant=False).relu()


class Numbered(Clean):
    """Dynamo takes the number for a constant, so each is captured for itself."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def forward(self, x):
        y = x * self.number
        torch._dynamo.graph_break()
        return y.relu()


class ManyNumbers(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(Numbered(i) for i in range(10))

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x


def test_a_clean_model_is_one_graph_with_its_backward():
    graph, found = captured(Clean)
    # the default loss is a sum that no compiler sees; ones_like seeds backward
    assert names(graph, found) == [
        "addmm 0", "relu 0", "mul.Tensor 0", "sum -1", "ones_like -1",
        "mul.Tensor 0", "threshold_backward 0", "mm 0", "sum.dim_IntList 0",
    ]  # fmt: skip
    assert [(g.forward_ops, g.backward_ops) for g in found.graphs] == [(3, 4)]
    assert (found.captures, found.breaks, found.unmatched, found.data) == (1, (), 0, "meta")
    assert found.failure is None and found.regions.count(EAGER) == 2


def test_it_says_how_many_of_the_ops_dynamo_has_reached():
    lines = []
    with listening(lines.append):
        captured(Clean, mode="inference")
    counts = [(line.done, line.total) for line in lines if "TorchDynamo" in line]
    assert counts == [(0, 3), (1, 3), (2, 3), (3, 3)]  # addmm, relu, mul


def test_the_workloads_loss_is_captured_and_the_optimizer_is_not():
    graph, found = captured(Clean, loss=squared, optimizer="sgd-plain")
    assert set(found.regions) == {0, EAGER}
    assert [op.name for op in graph.ops].count("aten.mean") == 1
    for op, region in zip(graph.ops, found.regions, strict=True):
        expected = EAGER if op.phase == "optimizer" or op.name == "aten.ones_like" else 0
        assert region == expected, op


@pytest.mark.versions
def test_a_break_splits_forward_and_backward():
    graph, found = captured(Broken)
    assert names(graph, found) == [
        "addmm 0", "relu 1", "sum -1", "ones_like -1", "threshold_backward 1", "mm 0", "sum.dim_IntList 0",
    ]  # fmt: skip
    (the_break,) = found.breaks
    assert the_break.reason == "Call to `torch._dynamo.graph_break()`"
    assert "Remove the `torch._dynamo.graph_break()` call" in the_break.detail
    assert the_break.file.endswith("test_capture.py") and not the_break.file.startswith("/")
    assert the_break.line == line_of(Broken, "graph_break()")
    assert the_break.source_line == "torch._dynamo.graph_break()"
    assert (the_break.function, the_break.count) == ("forward", 1)
    assert (the_break.after_op, the_break.cuts) == (0, (0,))


def test_a_break_before_the_first_op():
    _, found = captured(PrintsFirst, mode="inference")
    (the_break,) = found.breaks
    assert "`print`" in the_break.detail
    assert the_break.line == line_of(PrintsFirst, "print(")
    assert (the_break.after_op, the_break.cuts) == (None, ())
    assert found.regions == (0, 0)


def test_a_break_inside_a_called_module_ends_the_callers_graph_too():
    graph, found = captured(CallsPrinters)
    # forward: | a | a relu || *2 | a relu || *2 | sum; || is the print, | the call of what prints
    assert names(graph, found)[:8] == [
        "addmm 0", "addmm 1", "relu 1", "mul.Tensor 2", "addmm 3", "relu 3", "mul.Tensor 4", "sum 5",
    ]  # fmt: skip
    backward = [r for op, r in zip(graph.ops, found.regions, strict=True) if op.phase == "backward"]
    assert [r for i, r in enumerate(backward) if i == 0 or backward[i - 1] != r] == [EAGER, 4, 3, 2, 1, 0]
    (the_break,) = found.breaks
    assert the_break.line == line_of(Printer, "print(")
    assert the_break.count == 2  # printed twice
    assert the_break.after_op == 2  # the ReLU before the first print
    assert the_break.cuts == (0, 2, 3, 5, 6)  # calls and prints, and where the model goes on behind its last call
    assert the_break.lost_from is None
    # six runs of four captured graphs: the printer's two are captured once
    assert [g.code for g in found.graphs] == [0, 1, 2, 1, 2, 3]
    assert found.captures == 4


def test_a_break_in_a_loop_leaves_the_whole_function_to_eager():
    graph, found = captured(LoopsOverPrinters, mode="inference")
    assert names(graph, found) == [
        "addmm -1", "addmm 0", "relu 0", "mul.Tensor 1", "addmm 2", "relu 2", "mul.Tensor 3", "sum -1",
    ]  # fmt: skip
    loop, inside = found.breaks
    assert loop.reason == "graph break in loop (caused by: Failed to trace builtin operator)"
    first = line_of(LoopsOverPrinters, "def forward")
    assert re.match(rf"No graph holds any of forward \(\S*test_capture\.py:{first}\)\.", loop.detail)
    assert (loop.count, loop.after_op, loop.cuts, loop.lost_from) == (1, None, (), 0)
    assert (inside.count, inside.after_op, inside.cuts, inside.lost_from) == (2, 2, (2, 5), None)


def test_a_function_given_up_inside_a_captured_one_loses_no_more_than_its_call():
    """The caller's graph ends before the call and goes on behind it: those two cuts hold all that is lost."""
    graph, found = captured(CallsALoop, mode="inference")
    assert names(graph, found) == ["addmm 0", "addmm -1", "relu -1", "addmm -1", "relu -1", "mul.Tensor 1"]
    call, loop = found.breaks
    assert (call.cuts, call.lost_from) == ((0, 4), None)
    assert loop.reason.startswith("graph break in loop") and loop.lost_from is None


def test_what_stands_for_a_loss_is_behind_the_model():
    assert captured(Clean)[1].behind == 3  # addmm, relu, mul; then their sum
    graph, found = captured(Clean, loss=squared)
    assert graph.ops[found.behind].phase == "backward"
    graph, found = captured(Clean, mode="inference")
    assert found.behind == len(graph.ops)


def test_a_model_that_reads_data_is_captured_on_real_tensors():
    graph, found = captured(ReadsData, real=True)
    assert names(graph, found)[:6] == [
        "addmm 0", "max 0", "sum 1", "gt.Scalar 1", "mul.Tensor 2", "sum 2",
    ]  # fmt: skip
    item, branch = found.breaks
    assert ".item()" in item.reason and item.line == line_of(ReadsData, ".item()")
    assert branch.reason == "Data-dependent branching" and branch.line == line_of(ReadsData, "if x.sum()")
    assert (item.after_op, branch.after_op) == (1, 3)
    assert (found.data, found.unmatched) == ("real", 0)


def test_without_data_it_falls_back_to_real_tensors_by_itself():
    workload = Workload(NeedsData, (torch.ones(8, 16),))
    found = capture(workload, TRAINING, trace(workload, TraceOptions(mode="training", real=True)).graph)
    assert (found.data, found.unmatched) == ("real", 0)


def test_what_python_reads_of_activations_is_assumed_in_a_capture_too():
    graph, found = captured(ReadsData)
    assert names(graph, found)[:7] == [
        "addmm 0", "max 0", "sum 1", "gt.Scalar 1", "add.Tensor 2", "mul.Tensor 2", "sum 2",
    ]  # fmt: skip
    assert (found.data, found.unmatched, len(found.breaks)) == ("meta", 0, 2)


def test_a_model_that_names_cuda_is_captured_on_the_traced_device():
    graph, found = captured(NamesCuda, mode="inference")
    assert names(graph, found) == ["addmm 0", "ones 0", "add.Tensor 0", "ones 0", "add.Tensor 0"]
    assert (found.breaks, found.data) == ((), "meta")


def test_a_checkpoint_recomputes_inside_its_graph():
    graph, found = captured(Checkpoints)
    assert [op.name for op in graph.ops].count("aten.addmm") == 2  # forward and again in backward
    assert (len(found.graphs), found.breaks) == (1, ())
    assert found.unmatched in (0, 3)  # torch 2.11 runs a captured checkpoint without recomputing: addmm, gelu, exp
    assert all(r == 0 for op, r in zip(graph.ops, found.regions, strict=True) if op.name == "aten.addmm")


def test_a_reference_model_has_one_graph_with_the_plain_traces_ops():
    workload = resolve("profiles/bert_layer/model.py", batch=2, seq=64, mode="training")
    graph = trace(workload, TRAINING).graph
    found = capture(workload, TRAINING, graph)
    assert (len(found.graphs), found.breaks, found.unmatched, found.failure) == (1, (), 0, None)
    outside = [op for op, r in zip(graph.ops, found.regions, strict=True) if r == EAGER]
    assert {op.phase for op in outside if op.name != "aten.ones_like"} == {"optimizer"}


def test_another_batch_size_recaptures_once_with_a_dynamic_dimension():
    others = (torch.ones(9, 16),), (torch.ones(12, 16),)
    workload = Workload(Clean, (torch.ones(8, 16),), optimizer=None)
    nine, twelve = capture(workload, TRAINING, trace(workload, TRAINING).graph, others).recompiles
    assert (nine.inputs, nine.captures) == (("float32[9, 16]",), 1)
    assert nine.reasons == ("tensor 'x' size mismatch at index 0. expected 8, actual 9",)
    (dynamic,) = nine.dynamic
    assert re.fullmatch(r"dimension 0 of x \(s\d+\)", dynamic)
    assert (twelve.captures, twelve.reasons, twelve.dynamic) == (0, (), ())


def test_a_second_input_recaptures_each_partial_graph():
    _, found = captured(Broken, others=((torch.ones(9, 16),),))
    (call,) = found.recompiles
    assert call.captures == 2
    assert len(found.graphs) == 2 and found.captures == 2  # further calls are not part of the step


def test_a_function_captured_too_often_is_said():
    _, found = captured(ManyNumbers, mode="inference")
    (note,) = found.notes
    first = line_of(Numbered, "def forward")
    assert re.match(rf"forward \(\S*test_capture\.py:{first}\) was captured 8 times \(recompile_limit\)", note)
    assert note.endswith("self.number == 7")
    # 8 of 10 parts: * in one graph, relu in the next; the last two run without
    assert found.regions == (*range(16), *[EAGER] * 4)


def test_guards_are_readable_and_the_same_on_every_machine():
    _, found = captured(Clean)
    by_name = {(guard.name, guard.kind): guard.check for guard in found.guards}
    assert by_name["x", "TENSOR_MATCH"] == "float32[8, 16]"
    assert by_name["self.scale", "EQUALS_MATCH"] == "self.scale == 3"
    assert by_name["self", "TYPE_MATCH"].startswith("type is ") and "Clean" in by_name["self", "TYPE_MATCH"]
    weight = "float32[16, 16], requires grad"  # torch 2.11 does not say what it knows of weights
    assert by_name.get(("self.a.weight", "TENSOR_MATCH"), weight) == weight
    assert found.guards[0].name == "x"
    assert found.guard_kinds["TENSOR_MATCH"] == 3  # x, weight, bias
    assert sum(found.guard_kinds.values()) == len(found.guards) + found.guards_left_out
    text = json.dumps(write(found))
    assert not re.search(r"\d{9,}|0x[0-9a-f]{6}|memwall_target|_dynamo_dynamic|-packages/", text)


class NamedAlike(nn.Module):
    def forward(self, memwall_x):
        return memwall_x * 2


def test_a_model_may_have_the_name_of_the_tracer_in_its_own():
    _, found = captured(NamedAlike(), mode="inference")
    assert [guard.name for guard in found.guards if guard.kind == "TENSOR_MATCH"] == ["memwall_x"]


def test_guards_do_not_say_where_a_file_lies(tmp_path):
    """The functions of a file are called with its folder at hand, which is nobody's guard but memwall's."""
    (tmp_path / "net.py").write_text(
        "import torch\ndef model(): return torch.nn.Linear(4, 4)\ndef inputs(): return (torch.ones(2, 4),)\n"
        "def loss(output): return output.square().mean()\n", encoding="utf-8",
    )  # fmt: skip
    workload = resolve(str(tmp_path / "net.py"), mode="training")
    found = capture(workload, TRAINING, trace(workload, TRAINING).graph)
    assert any(guard.name.startswith("loss") for guard in found.guards)
    assert str(tmp_path) not in json.dumps(write(found)) and not found.breaks


def test_the_record_holds_it_as_json():
    _, found = captured(Broken)
    record = json.loads(json.dumps(write(found)))
    assert record["regions"] == [[0, 1], [1, 1], [EAGER, 2], [1, 1], [0, 2]]
    assert record["breaks"][0]["after_op"] == 0
    assert record["graphs"][1] == {"code": 1, "forward_ops": 1, "backward_ops": 1}


def test_a_failure_of_dynamos_own_is_reported(monkeypatch):
    def fail(*_):
        raise ValueError("no backend today")

    monkeypatch.setattr("memwall.inductor.dynamo.record.DynamoRun._backend", fail)
    graph, found = captured.__wrapped__(Clean)
    assert found.failure is not None and "no backend today" in found.failure
    assert found.regions == (EAGER,) * len(graph.ops)
    assert found.graphs == ()


def test_nothing_leaks_and_nothing_is_printed(capfd):
    import torch._dynamo
    from torch._dynamo.utils import counters

    counters["frames"]["mine"] = 5
    counted = dict(counters["frames"])
    logger = logging.getLogger("torch._dynamo")
    handlers, filters = list(logger.handlers), list(warnings.filters)
    settings = torch._dynamo.config.get_config_copy()
    model = CallsPrinters()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    workload = Workload(model, (torch.ones(8, 16),))
    graph = trace(workload, TRAINING).graph
    capfd.readouterr()
    capture(workload, TRAINING, graph, [(torch.ones(9, 16),)])
    assert capfd.readouterr() == ("", "")
    assert dict(counters["frames"]) == counted
    del counters["frames"]["mine"]
    assert (logger.handlers, warnings.filters) == (handlers, filters)
    assert torch._dynamo.config.get_config_copy() == settings
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.compile(lambda x: x.sin(), backend="eager")(torch.zeros(2)).tolist() == [0.0, 0.0]


def op(number, name, phase="forward", region=""):
    return Op(number, f"aten.{name}", "other", phase, region, (), ())


def test_streams_that_differ_are_aligned():
    seen = [op(0, "mm", region="0"), op(1, "relu", region="0"), op(2, "add", region="1"), op(3, "exp", region="1")]
    wanted = ("mm", "view_copy", "relu", "mul", "add", "exp")
    ops = [op(i, name) for i, name in enumerate(wanted)] + [op(6, "adam", "optimizer")]
    regions, places, unmatched = carry([int(op.module) for op in seen], seen, ops)
    # view_copy lies between two ops of one graph, mul between two graphs
    assert regions == (0, 0, 0, EAGER, 1, 1, EAGER)
    assert places == (0, 2, 4, 5)
    assert unmatched == 2


def test_regions_are_carried_to_a_trace_with_another_attention_kernel():
    given = [op(0, "mm"), op(1, "flash"), op(2, "mm"), op(3, "exp"), op(4, "adam", "optimizer")]
    other = ("mm", "bmm", "softmax", "bmm", "mm", "exp")
    ops = [op(i, name) for i, name in enumerate(other)] + [op(6, "adam", "optimizer")]
    regions, places, unmatched = carry((0, 0, 0, 1, EAGER), given, ops)
    assert regions == (0, 0, 0, 0, 0, 1, EAGER)
    assert places == (0, None, 4, 5)
    assert unmatched == 3


@pytest.mark.parametrize("streams", [([], []), ([], ["mm"]), (["mm"], [])])
def test_empty_streams_are_aligned(streams):
    seen, ops = ([op(i, name, region="0") for i, name in enumerate(stream)] for stream in streams)
    regions, places, unmatched = carry([int(op.module) for op in seen], seen, ops)
    assert regions == (EAGER,) * len(ops) and places == (None,) * len(seen) and unmatched == len(ops)


ALONE = """
import sys, torch
from memwall.inductor.dynamo.run import capture
from memwall.frontend.torch import TraceOptions, trace
from memwall.frontend.targets import Workload
workload, options = Workload(torch.nn.Linear(2, 2), (torch.zeros(1, 2),)), TraceOptions()
assert capture(workload, options, trace(workload, options).graph, ()).failure is None
print([name for name in ("torch._dynamo.convert_frame", "torch._inductor.compile_fx") if name in sys.modules])
"""


def test_a_capture_imports_no_compiler(forks):
    """Dynamo's reset imports Inductor, for seconds, where a GPU is said to be there."""
    assert forks.printed(ALONE) == "['torch._dynamo.convert_frame']\n"
