"""A workload → what TorchDynamo makes of it: the step runs through Dynamo under the tracer, so that each op of a traced
Graph is known to belong to one run of a partial graph, or to none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from memwall.core.errors import UsageError
from memwall.core.graph import EAGER, Graph, Op
from memwall.core.progress import CountedLine, tell
from memwall.frontend.targets import Workload
from memwall.frontend.torch.options import TraceOptions, parse_dtype
from memwall.frontend.torch.run import trace
from memwall.inductor.dynamo.record import DynamoRun, RegionRecorder
from memwall.record.capture import REAL_BYTES, Break, Capture, Guard, PartialGraph, carry, place_before

#: Guards that are listed; the rest is counted.
GUARDS_SHOWN = 40

#: Parts of guards' names that belong to the tracer: modules that it has and that it loads a file as, modes that it
#: enters, and the folders of a file's function.
_OURS = (
    "__import_memwall_", "torch_function_mode_stack",
    *(f"__closure__[0].cell_contents[{number}]._str" for number in (0, 1)),
)  # fmt: skip

#: Dynamo's names of the modules that it found functions in; guards on those are counted and not listed.
_IMPORTED = "G['__import_"

#: Guard kinds in the order in which they are listed: first what a caller can change.
_KINDS = ("SHAPE_ENV", "TENSOR_MATCH", "CONSTANT_MATCH", "EQUALS_MATCH", "SEQUENCE_LENGTH", "DICT_LENGTH")


def capture(workload: Workload, options: TraceOptions, graph: Graph, others: Sequence[Any] = ()) -> Capture:
    """Run a workload through Dynamo.

    It runs on tensors without data; where the model needs data, on real ones, if its weights are small enough. The
    result has what Dynamo cannot do, and Dynamo's own failures.

    Args:
        options: how ``graph`` was traced.
        graph: the Graph whose ops ``regions`` and ``cuts`` number.
        others: inputs of further calls, as a workload holds them, which may recompile.

    Raises:
        UsageError: an option is wrong.
    """
    dtype = None if options.dtype is None else parse_dtype(options.dtype)
    ways = [(options.real, False), (options.real, True)]  # on real tensors; with Dynamo tracing the device's mode
    if not options.real and graph.role_bytes["parameter"] + graph.role_bytes["buffer"] <= REAL_BYTES:
        ways.append((True, False))
    what = f"tracing {workload.name} under TorchDynamo"
    total = sum(op.phase == "forward" for op in graph.ops)

    def reached(ops: int) -> None:
        tell(CountedLine(what, min(ops, total), total))

    reached(0)
    first: tuple[DynamoRun, str] | None = None
    for real, on_device in ways:
        run = DynamoRun(others, dtype, on_device, reached)
        try:
            plain = replace(workload, optimizer=None)
            traced = trace(plain, replace(options, real=real), execute=run, recorder=RegionRecorder)
        except UsageError as error:
            first = first or (run, run.failure or str(error))
            continue
        return _result(run, traced.graph.ops, graph.ops, "real" if real else "meta")
    assert first is not None
    run, failure = first
    run.runs.clear()  # truncated: nothing of it can be placed
    return replace(_result(run, (), graph.ops, "meta"), failure=failure)


def _result(run: DynamoRun, captured: Sequence[Op], ops: Sequence[Op], data: str) -> Capture:
    regions, places, unmatched = carry([int(op.module or EAGER) for op in captured], captured, ops)
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
        recompiles=tuple(run.calls),
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
    seen, before = run.breaks[number], list(enumerate(run.breaks[:number]))
    called = any(b.call and not b.gives_up and seen.ops in _stops(run, i) for i, b in before)
    return seen.gives_up and not called and not any(b.gives_up for _, b in before)


def _guards(seen: Sequence[Guard]) -> list[Guard]:
    """Distinct guards on the user's things, guards first that a caller can change."""
    distinct = dict.fromkeys(guard for guard in seen if not any(part in guard.name for part in _OURS))
    order = {kind: rank for rank, kind in enumerate(_KINDS)}
    return sorted(distinct, key=lambda g: (_distance(g), order.get(g.kind, len(order))))


def _distance(guard: Guard) -> int:
    """How far a guard is from what a caller changes: 0 an input or a setting, 1 a weight, 2 a type, 3 a global."""
    if guard.name.startswith("G["):
        return 3
    if guard.kind == "TENSOR_MATCH" and "." in guard.name:
        return 1
    return 0 if guard.kind in _KINDS else 2
