"""TorchDynamo under the recorder: each recorded op is known to belong to a run of a partial graph, or to none.

The backend gives Dynamo a function that runs the captured graph as it is, op for op, and notifies the recorder. Breaks
are read from Dynamo's logs, guards and their failures through its hooks.
"""

from __future__ import annotations

import contextlib
import linecache
from collections.abc import Callable, Iterable, Iterator, Sequence
from traceback import FrameSummary
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from memwall.core import compat
from memwall.frontend.targets.blame import first_line, portable
from memwall.frontend.torch.build import build_inputs
from memwall.frontend.torch.dispatch.recorder import Recorder
from memwall.frontend.torch.dispatch.tensors import dtype_name
from memwall.frontend.torch.process.device import TracedDevice
from memwall.inductor.dynamo import text
from memwall.inductor.dynamo.alone import alone, no_function_modes, pause_while_compiling
from memwall.ops.signatures import signature_of
from memwall.record.capture import Guard, Recompile


class SourceLine(NamedTuple):
    """A line of a function."""

    file: str
    function: str
    line: int


class SeenBreak(NamedTuple):
    """A place where Dynamo gave up capturing.

    ``cause`` is the kind of the break that caused this one, if Dynamo names one. ``own`` says that the line is in the
    function that Dynamo was compiling, not in one that it called; ``call`` is then the line that called it. ``ops``
    counts the ops recorded before that function ran on; where it ``gives_up``, it ran on without Dynamo.
    """

    kind: str
    cause: str
    detail: str
    file: str
    line: int
    source_line: str
    function: str
    own: bool
    ops: int
    call: SourceLine | None
    gives_up: bool


class SeenGraph(NamedTuple):
    """A captured graph: the number of the break that ended it, the call after which its function resumed, and its
    dynamic dimensions."""

    broken_by: int | None
    behind: SourceLine | None
    dynamic: tuple[str, ...]


class SeenRun(NamedTuple):
    """One execution of captured graph number ``graph``: recorded ops ``start`` up to ``stop``."""

    graph: int
    start: int
    stop: int


class RegionRecorder(Recorder):
    """A recorder that Dynamo compiles under, and that names the running partial graph instead of the module."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Dynamo compiles while the recorder is open, and the recorder is closed while Dynamo compiles."""
        return True

    def told(self, count: int) -> None:
        """The run under Dynamo says how far it is, of the ops of a trace before."""

    def own(self, tensor: torch.Tensor, path: str) -> None:
        """Gradients are accumulated outside all graphs, so parameters belong to none."""


class DynamoRun:
    """An execution of a traced step through Dynamo (:data:`~memwall.frontend.torch.recorded_step.Execute`); keeps what
    it saw. ``others`` are inputs of further calls, ``dtype`` what floating inputs are cast to. ``on_device`` lets
    Dynamo trace the mode that puts tensors on the traced device: it breaks where plain code would not
    (``Tensor.unflatten``), so this is for models that name ``cuda`` or no device in their forward. ``reached`` is told
    how many ops have run or are captured, which is fewer again where Dynamo begins a function anew."""

    def __init__(
        self,
        others: Sequence[Any] = (),
        dtype: torch.dtype | None = None,
        on_device: bool = False,
        reached: Callable[[int], None] = lambda ops: None,
    ) -> None:
        self.others = tuple(others)
        self.dtype = dtype
        self.on_device = on_device
        self.reached = reached
        self.breaks: list[SeenBreak] = []
        self.graphs: list[SeenGraph] = []
        self.runs: list[SeenRun] = []
        self.guards: list[Guard] = []
        self.calls: list[Recompile] = []
        self.notes: list[str] = []
        #: ops recorded when the step was done; ops after it are of memwall's substitute loss, and backward
        self.stop = 0
        #: the failure of Dynamo itself, rather than of the model
        self.failure: str | None = None
        #: ops that Dynamo has tried of the function at hand
        self._tried = 0
        self._failed_guards: list[str] = []
        self._again = False
        self._broken_at: tuple[str, int | None] | None = None
        self._broken_in: FrameSummary | None = None

    def __call__(
        self, step: Callable[..., Any], recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the step through Dynamo; the result of the first inputs."""
        modes = contextlib.nullcontext() if self.on_device else no_function_modes()
        with (
            alone(self.notes),
            _break_log(lambda error: self._see_break(recorder, error)),
            _tried_ops(lambda: self._see_op(recorder)),
            modes,
        ):
            pause_while_compiling(recorder)
            compiled: Any = compat.dynamo.optimize(
                lambda graph, examples: self._backend(recorder, graph),
                guard_export_fn=lambda guards: self.guards.extend(() if self._again else map(_guard, guards)),
                guard_fail_fn=lambda failure: self._failed_guards.append(failure.reason),
            )(step)
            try:
                output = compiled(*args, **kwargs)
                self.stop = len(recorder.ops)
                recorder.paused = self._again = True
                for inputs in self.others:
                    self._call_again(compiled, recorder, inputs)
            except compat.dynamo.exc.TorchDynamoException as error:
                self.failure = f"{type(error).__name__}: {first_line(error)}"
                raise
            finally:
                recorder.paused = False
            return output

    def _call_again(self, compiled: Callable[..., Any], recorder: Recorder, inputs: Any) -> None:
        args, kwargs, *_ = build_inputs(inputs, recorder.device, self.notes.append, self.dtype)
        self._failed_guards.clear()
        before = len(self.graphs)
        failed = ""
        try:
            compiled(*args, **kwargs)
        except Exception as error:  # the model may not take this size; the result for the first one stays
            failed = f"the call failed: {first_line(error)}"
        shapes = [_looks(t) for t in compat.tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
        failures = dict.fromkeys(filter(None, [*map(text.failed_check, self._failed_guards), failed]))
        graphs = self.graphs[before:]
        dynamic = dict.fromkeys(dimension for graph in graphs for dimension in graph.dynamic)
        self.calls.append(Recompile(tuple(shapes), len(graphs), tuple(failures), tuple(dynamic)))

    def _backend(self, recorder: Recorder, graph: torch.fx.GraphModule) -> Callable[..., Any]:
        """Dynamo's backend: a function that runs each captured graph and records the run."""
        self._tried = 0
        number = len(self.graphs)
        reason: Any = getattr(graph, "compile_subgraph_reason", None)
        broken = reason is not None and reason.graph_break
        same = broken and self._broken_at is not None and _last(reason.user_stack) == self._broken_at
        broken_by = len(self.breaks) - 1 if same else None
        frame = self._broken_in if same else next(iter(getattr(reason, "user_stack", None) or ()), None)
        self.graphs.append(SeenGraph(broken_by, _behind(frame), tuple(dict.fromkeys(_dynamic_dimensions(graph)))))

        def run(*inputs: Any) -> Any:
            previous = recorder.modules.enter(str(len(self.runs)) if not recorder.paused else "")
            device = contextlib.nullcontext() if self.on_device else TracedDevice(recorder.device)
            start = len(recorder.ops)
            try:
                with device:
                    return graph.forward(*inputs)
            finally:
                recorder.modules.leave(previous)
                if not recorder.paused:
                    self.runs.append(SeenRun(number, start, len(recorder.ops)))

        return run

    def _see_op(self, recorder: Recorder) -> None:
        if not self._again:
            self._tried += 1
            self.reached(len(recorder.ops) + self._tried)

    def _see_break(self, recorder: Recorder, error: Any) -> None:
        if self._again:
            return
        self._tried = 0
        stack: Sequence[FrameSummary] = getattr(error, "real_stack", None) or ()
        message = getattr(error, "msg", None) or str(error)
        self._broken_at = _last(stack)
        self._broken_in = next(iter(stack), None)
        file, line, function = text.user_place(stack)
        caller = stack[0] if len(stack) > 1 else None
        self.breaks.append(
            SeenBreak(
                kind=getattr(error, "gb_type", None) or type(error).__name__,
                cause=text.first_kind(message),
                detail=text.explanation(message),
                file=portable(file),
                line=line,
                source_line=linecache.getline(file, line).strip(),
                function=function,
                own=len(stack) == 1,
                ops=len(recorder.ops),
                call=caller and SourceLine(caller.filename, text.plain_function(caller.name), caller.lineno or 0),
                gives_up=text.gives_up_function(message),
            )
        )


def _last(stack: Any) -> tuple[str, int | None] | None:
    """File and line of the innermost frame."""
    return (stack[-1].filename, stack[-1].lineno) if stack else None


def _behind(frame: FrameSummary | None) -> SourceLine | None:
    """The line after which Dynamo resumed the function of a frame; None where it began with the function."""
    resumed = text.resumed_at(frame.name) if frame else None
    return SourceLine(frame.filename, *resumed) if frame and resumed else None


def _guard(guard: Any) -> Guard:
    """A Dynamo guard as text; for a tensor, its properties."""
    kind = guard.create_fn_name()
    found = guard.obj_weakref() if callable(guard.obj_weakref) else None
    if isinstance(found, torch.Tensor) and kind == "TENSOR_MATCH":
        check = _looks(found) + (", requires grad" if found.requires_grad else "")
    else:
        check = text.checks(guard.code_list or ())
    return Guard(text.plain_name(guard.name), kind, check)


def _looks(tensor: torch.Tensor) -> str:
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"


def _dynamic_dimensions(graph: torch.fx.GraphModule) -> Iterator[str]:
    """The dynamic dimensions of a captured graph's inputs."""
    for node in graph.graph.find_nodes(op="placeholder"):
        example, argument = node.meta.get("example_value"), node.meta.get("grapharg")
        if isinstance(example, torch.Tensor) and argument is not None:
            name = argument.source.name
            shown_name = text.plain_name(name() if callable(name) else name)
            sizes: Iterable[Any] = example.shape
            for dimension, size in enumerate(sizes):
                if isinstance(size, torch.SymInt):
                    yield f"dimension {dimension} of {shown_name} ({size})"


@contextlib.contextmanager
def _break_log(see: Callable[[Any], None]) -> Iterator[None]:
    """Call ``see`` with the exception of each break."""
    translator = compat.InstructionTranslatorBase
    original = translator.log_graph_break

    def log_graph_break(self: Any, code_options: Any, reason: str, exc: Any) -> None:
        if not exc.logged:
            see(exc)
        original(self, code_options, reason, exc)

    with patch.object(translator, "log_graph_break", log_graph_break):
        yield


@contextlib.contextmanager
def _tried_ops(see: Callable[[], None]) -> Iterator[None]:
    """Call ``see`` after each op that Dynamo tries on tensors without data, but for views and what an op calls."""
    mode = compat.FakeTensorMode
    original = mode.dispatch
    inside = False

    def dispatch(self: Any, func: Any, *call: Any, **keywords: Any) -> Any:
        nonlocal inside
        if inside:
            return original(self, func, *call, **keywords)
        inside = True
        try:
            return original(self, func, *call, **keywords)
        finally:
            inside = False
            if isinstance(func, compat.OpOverload) and func.namespace != "prim" and not signature_of(func).free:
                see()

    with patch.object(mode, "dispatch", dispatch):
        yield
