"""What TorchDynamo makes of a model: its partial graphs, the breaks between them, the guards, and recompilations.

The step runs through Dynamo under the tracer, so the ops of a traced Graph are known to belong to one run of a partial
graph, or to none; a compiler fuses within one run only. Backward ops belong to the run of their forward op; gradient
accumulation in ``.grad`` and the optimizer's step to none. The workload's own loss is captured with the model.

A break is counted where it ends a graph. Inside a function called from a captured one it ends two graphs, the caller's
and the function's own; ``cuts`` has both, ``count`` is how often the line itself was reached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Annotated, Any

from memwall.core.errors import UsageError
from memwall.core.graph import EAGER, Graph, Op
from memwall.core.structure import BadRecord, read, write

if TYPE_CHECKING:
    from memwall.frontend.dynamo.record import DynamoRun, SeenCall, SeenGuard
    from memwall.frontend.torch import TraceOptions
    from memwall.frontend.workload import Workload

#: Ops beyond which the regions of a saved capture are damage.
MAX_OPS = 10_000_000

#: where a saved profile keeps its capture
CAPTURE_KEY = "dynamo"

#: Guards that are listed; the rest is counted.
GUARDS_SHOWN = 40

#: Bytes of weights beyond which a model is not run on real tensors for its breaks.
REAL_BYTES = 4 << 30

#: Parts of guards' names that belong to the tracer.
_OURS = ("memwall", "torch_function_mode_stack")

#: Dynamo's names of the modules that it found functions in; guards on those are counted and not listed.
_IMPORTED = "G['__import_"

#: Guard kinds in the order in which they are listed: first what a caller can change.
_KINDS = ("SHAPE_ENV", "TENSOR_MATCH", "CONSTANT_MATCH", "EQUALS_MATCH", "SEQUENCE_LENGTH", "DICT_LENGTH")


@dataclass(frozen=True)
class PartialGraph:
    """One run of a captured graph. ``code`` numbers the captures: a block called N times is captured once, runs N."""

    code: int
    forward_ops: int
    backward_ops: int


@dataclass(frozen=True)
class Break:
    """A line that Dynamo could not capture.

    ``after_op`` is the last op before the line was first reached, ``cuts`` every op after which a graph ended because
    of it; ids of the Graph, None for a break before the first op. Where Dynamo gave up the model's own function because
    of the line, ``lost_from`` is the first op of the rest, which graphs hold only as far as it is in other functions.
    """

    reason: str
    detail: str
    file: str
    line: int
    source_line: str
    function: str
    count: int
    after_op: int | None
    cuts: tuple[int, ...]
    lost_from: int | None = None


@dataclass(frozen=True)
class Guard:
    """What must hold for a captured graph to be used again; if it fails, Dynamo captures anew."""

    name: str
    kind: str
    check: str


@dataclass(frozen=True)
class Recompile:
    """A further call: its inputs, how many graphs were captured for it, the guards that failed, and the dimensions
    that the new graphs take in any size, as in ``dimension 0 of x (s77)``."""

    inputs: tuple[str, ...]
    captures: int
    reasons: tuple[str, ...]
    dynamic: tuple[str, ...]


def _regions(value: Any) -> tuple[int, ...]:
    """``regions`` from runs of ``[region, ops]``."""
    try:
        runs = [(int(region), int(count)) for region, count in value]
    except (TypeError, ValueError):
        raise BadRecord("is not a list of [region, ops]") from None
    if sum(count for _, count in runs) > MAX_OPS:
        raise BadRecord("holds more ops than a profile can have")
    return tuple([region for region, count in runs for _ in range(count)])


@dataclass(frozen=True)
class Capture:
    """What Dynamo made of a workload.

    ``regions`` has, for each op of the Graph, the index in ``graphs`` of the run that holds it, or ``EAGER``.
    ``captures`` counts distinct captured graphs. ``unmatched`` counts ops of the Graph that are missing at their place
    in the run under Dynamo: 0 where both streams are equal. ``data`` is ``meta`` or ``real``: the tensors that ran.
    ``failure`` says why nothing was captured. ``behind`` is the first op after the model: the sum of its outputs, where
    that replaces a loss.
    """

    graphs: tuple[PartialGraph, ...] = ()
    captures: int = 0
    breaks: tuple[Break, ...] = ()
    guard_kinds: Mapping[str, int] = field(default_factory=dict)
    guards: tuple[Guard, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    regions: Annotated[tuple[int, ...], _regions] = ()
    unmatched: int = 0
    data: str = "meta"
    notes: tuple[str, ...] = ()
    failure: str | None = None
    behind: int | None = None

    @property
    def guards_left_out(self) -> int:
        """Guards that are counted in ``guard_kinds`` and not listed."""
        return sum(self.guard_kinds.values()) - len(self.guards)

    @property
    def eager_ops(self) -> int:
        """Ops of the Graph that no captured graph holds."""
        return self.regions.count(EAGER)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it; ``regions`` as runs of ``[region, ops]``."""
        result = write(self)
        runs: list[list[int]] = []
        for region in self.regions:
            if runs and runs[-1][0] == region:
                runs[-1][1] += 1
            else:
                runs.append([region, 1])
        return {**result, "regions": runs, "guards_left_out": self.guards_left_out}

    @classmethod
    def from_dict(cls, record: Any) -> Capture:
        """The capture that a profile holds.

        Raises:
            UsageError: it is damaged; names the key.
        """
        try:
            return read(cls, record, "capture")
        except BadRecord as error:
            raise UsageError(f"the profile's capture is damaged: {error}") from None


def capture(
    workload: Workload,
    options: TraceOptions,
    classify: Callable[[str], str],
    graph: Graph | None = None,
    *,
    others: Sequence[Any] = (),
    warn: Callable[[str], None] = lambda message: None,
) -> Capture:
    """Run a workload through Dynamo.

    It runs on tensors without data; where the model needs data, on real ones, if its weights are small enough. The
    result has what Dynamo cannot do, and Dynamo's own failures.

    Args:
        options: how ``graph`` was traced.
        classify: op name → op class.
        graph: the Graph whose ops ``regions`` and ``cuts`` number; None numbers those recorded under Dynamo.
        others: inputs of further calls, as a workload holds them, which may recompile.
        warn: called with one-line messages.

    Raises:
        UsageError: an option is wrong.
    """
    from memwall.frontend.dynamo.record import DynamoRun
    from memwall.frontend.torch.run import parse_dtype, trace

    dtype = None if options.dtype is None else parse_dtype(options.dtype)
    plain = replace(workload, optimizer=None)
    first: tuple[DynamoRun, str] | None = None
    for real, on_device in _attempts(options, graph):
        if real and first is not None:
            warn("TorchDynamo cannot capture the model on tensors without data; running it on real ones")
        run = DynamoRun(others, dtype, on_device)
        try:
            traced = trace(plain, replace(options, real=real), classify, warn, run)
        except UsageError as error:
            first = first or (run, run.failure or str(error))
            continue
        ops = traced.graph.ops
        return _result(run, ops, graph.ops if graph else ops, "real" if real else "meta")
    assert first is not None
    run, failure = first
    run.runs.clear()  # truncated: nothing of it can be placed
    return replace(_result(run, (), graph.ops if graph else (), "meta"), failure=failure)


def recompiles(
    workload: Workload, options: TraceOptions, classify: Callable[[str], str], *others: Any
) -> tuple[Recompile, ...]:
    """Dynamo's recompilations for each of some further inputs, in order, after the workload's own.

    Raises:
        UsageError: the model could not be captured at all.
    """
    found = capture(workload, options, classify, others=others)
    if found.failure is not None:
        raise UsageError(f"TorchDynamo captured nothing: {found.failure}")
    return found.recompiles


Carried = tuple[tuple[int, ...], tuple[int | None, ...], int]


def align(captured: Sequence[Op], ops: Sequence[Op]) -> Carried:
    """The region of each op, the counterpart of each captured op, and how many ops have no counterpart."""
    return carry([int(op.module or EAGER) for op in captured], captured, ops)


def carry(known: Sequence[int], given: Sequence[Op], ops: Sequence[Op]) -> Carried:
    """The regions of some ops (``known``, of ``given``) for another trace of the same step, as :func:`align`.

    An op without a counterpart belongs to the region of its neighbours where both agree, else to none.
    """
    wanted = [(op.phase, op.name) for op in ops if op.phase != "optimizer"]
    names = [(op.phase, op.name) for op in given if op.phase != "optimizer"]
    regions: list[int | None] = [None] * len(wanted)
    places: list[int | None] = [None] * len(names)
    for i, j, size in _matching(names, wanted):
        for k in range(size):
            regions[j + k] = known[i + k]
            places[i + k] = ops[j + k].id
    unmatched = regions.count(None)
    before = EAGER
    for j, region in enumerate(regions):
        if region is None:
            after = next((r for r in regions[j + 1 :] if r is not None), EAGER)
            regions[j] = before if before == after else EAGER
        before = regions[j] or 0
    filled = [EAGER if r is None else r for r in regions]
    return (*filled, *[EAGER] * (len(ops) - len(wanted))), tuple(places), unmatched


def place_before(places: Sequence[int | None], stop: int) -> int | None:
    """The counterpart of the last of the first ``stop`` given ops that has one."""
    return next((place for place in reversed(places[:stop]) if place is not None), None)


def _matching(given: list[Any], wanted: list[Any]) -> Iterable[tuple[int, int, int]]:
    """Equal runs of two sequences; equal ends are not searched."""
    short = min(len(given), len(wanted))
    head = next((i for i in range(short) if given[i] != wanted[i]), short)
    tail = next((i for i in range(short - head) if given[-1 - i] != wanted[-1 - i]), short - head)
    yield 0, 0, head
    middle = SequenceMatcher(None, given[head : len(given) - tail], wanted[head : len(wanted) - tail], autojunk=False)
    for i, j, size in middle.get_matching_blocks():
        yield head + i, head + j, size
    yield len(given) - tail, len(wanted) - tail, tail


def _attempts(options: TraceOptions, graph: Graph | None) -> Iterable[tuple[bool, bool]]:
    """Ways to run the model: on real tensors or not, with Dynamo tracing the device's mode or not."""
    yield options.real, False
    yield options.real, True
    held = 0 if graph is None else graph.role_bytes["parameter"] + graph.role_bytes["buffer"]
    if not options.real and held <= REAL_BYTES:
        yield True, False


def _result(run: DynamoRun, captured: Sequence[Op], ops: Sequence[Op], data: str) -> Capture:
    regions, places, unmatched = align(captured, ops)
    counts = [Counter[str]() for _ in run.runs]
    for op, region in zip(ops, regions, strict=True):
        if region != EAGER:
            counts[region][op.phase] += 1
    guards = _guards(run.guards)
    return Capture(
        graphs=tuple(
            PartialGraph(seen.graph, count["forward"], count["backward"])
            for seen, count in zip(run.runs, counts, strict=True)
        ),
        captures=len({seen.graph for seen in run.runs}),
        breaks=tuple(_breaks(run, places)),
        guard_kinds=dict(sorted(Counter(guard.kind for guard in guards).items())),
        guards=tuple([g for g in guards if g.name and g.check and _IMPORTED not in g.name][:GUARDS_SHOWN]),
        recompiles=tuple(_recompile(run, call) for call in run.calls),
        regions=regions,
        unmatched=unmatched,
        data=data,
        notes=tuple(run.notes),
        behind=_next(place_before(places, run.stop)),
    )


def _breaks(run: DynamoRun, places: Sequence[int | None]) -> Iterable[Break]:
    """One entry per line and kind of break, in order of occurrence."""
    found: dict[tuple, list[int]] = {}
    for number, seen in enumerate(run.breaks):
        found.setdefault((seen.kind, seen.file, seen.line), []).append(number)
    for numbers in found.values():
        seen = run.breaks[numbers[0]]
        ends = [(run.breaks[n].own, stop) for n in numbers for stop in _stops(run, n)]
        reached = [stop for own, stop in ends if own] or [stop for _, stop in ends]
        stops = {stop for _, stop in ends}.union(*(_returns(run, n) for n in numbers))
        cuts = {place for stop in stops if (place := place_before(places, stop)) is not None}
        lost = next((run.breaks[n].ops for n in numbers if _loses_all(run, n)), None)
        yield Break(
            reason=seen.kind + (f" (caused by: {seen.cause})" if seen.cause else ""),
            detail=seen.detail,
            file=seen.file,
            line=seen.line,
            source_line=seen.source_line,
            function=seen.function,
            count=len(reached),
            after_op=place_before(places, min(reached)),
            cuts=tuple(sorted(cuts)),
            lost_from=None if lost is None else _next(place_before(places, lost)),
        )


def _next(place: int | None) -> int:
    return 0 if place is None else place + 1


def _stops(run: DynamoRun, number: int) -> list[int]:
    """How many ops were recorded whenever break ``number`` ended a graph; before it, where no graph was open."""
    graphs = {i for i, graph in enumerate(run.graphs) if graph.broken_by == number}
    stops = [seen.stop for seen in run.runs if seen.graph in graphs]
    return stops or [run.breaks[number].ops]


def _returns(run: DynamoRun, number: int) -> list[int]:
    """How many ops were recorded whenever the function that called into break ``number`` resumed after the call."""
    seen = run.breaks[number]
    if seen.call is None:
        return []
    ended = [i for i, r in enumerate(run.runs) if run.graphs[r.graph].broken_by == number]
    next_runs = [i + 1 for i in ended] or [sum(r.start < seen.ops for r in run.runs)]
    starts = []
    for i in next_runs:
        own = run.runs[i - 1].graph if ended else None
        for r in run.runs[i:]:
            if r.graph == own:  # the function was called again
                break
            if run.graphs[r.graph].behind == seen.call:
                starts.append(r.start)
                break
    return starts


def _loses_all(run: DynamoRun, number: int) -> bool:
    """Whether Dynamo gave up the model's own function: one that neither a captured nor a given-up function called."""
    seen = run.breaks[number]
    before = list(enumerate(run.breaks[:number]))
    called = any(b.call and not b.gives_up and seen.ops in _stops(run, i) for i, b in before)
    return seen.gives_up and not called and not any(b.gives_up for _, b in before)


def _guards(seen: Sequence[SeenGuard]) -> list[Guard]:
    """Distinct guards on the user's things, those first that a caller can change."""
    distinct = dict.fromkeys(
        Guard(guard.name, guard.kind, guard.check) for guard in seen if not any(part in guard.name for part in _OURS)
    )
    order = {kind: rank for rank, kind in enumerate(_KINDS)}
    return sorted(distinct, key=lambda g: (_distance(g), order.get(g.kind, len(order))))


def _distance(guard: Guard) -> int:
    """How far a guard is from what a caller changes: 0 an input or a setting, 1 a weight, 2 a type, 3 a global."""
    if guard.name.startswith("G["):
        return 3
    if guard.kind == "TENSOR_MATCH" and "." in guard.name:
        return 1
    return 0 if guard.kind in _KINDS else 2


def _recompile(run: DynamoRun, call: SeenCall) -> Recompile:
    dynamic = dict.fromkeys(d for number in call.graphs for d in run.graphs[number].dynamic)
    return Recompile(call.inputs, len(call.graphs), call.failures, tuple(dynamic))


def capture_of(record: Mapping[str, Any]) -> Capture | None:
    """The capture that a saved profile holds, if it holds one.

    Raises:
        UsageError: it is damaged.
    """
    saved = record.get(CAPTURE_KEY)
    if saved is None:
        return None
    return Capture.from_dict(saved)
