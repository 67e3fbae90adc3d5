"""The modeled timeline in the Trace Event Format: opens in Perfetto and chrome://tracing.

One process per GPU, or traced rank. In it each policy has a row for what the CPU issues, one for what the GPU runs,
one for the phases and modules that this belongs to, one for each further stream (copies, the messages of a process
group), one for each link with the messages that cross it, and two counters: the bytes alive, and the same by what
they hold. A gap in the GPU's row is a wait for the CPU or for another stream; one at its start is the end of the step
before. An arrow leads from each launch to its kernel. A pipeline is one more process: a row for each of its ranks,
with the tasks of the schedule; of a layout each stage has a second row, of what it sends. Times are in microseconds,
as the format wants, to the nanosecond.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from memwall.analysis.communication import traced_ranks
from memwall.analysis.pipelines import PipelineStep
from memwall.core.graph import Graph
from memwall.fusion import Plan
from memwall.perfmodel.collectives import link_of
from memwall.perfmodel.roofline import Estimate
from memwall.record.kernels import kernel_module, kernel_phase, short_name
from memwall.record.profile import Profile
from memwall.report.events import Events, Span, span_of, tasks, written
from memwall.simulate.memory import KINDS, MemoryPeak, memory_levels
from memwall.simulate.schedule import Schedule, ScheduledKernels

#: source lines that are named of a fused kernel
_MOST_LINES = 3


def render_trace(
    profile: Profile, ranks: Mapping[int, Profile] | None = None, pipeline: PipelineStep | None = None
) -> str:
    """All simulations of a profile as one trace, all of one GPU in one process; or of each of some ``ranks``, with
    the step of their ``pipeline``."""
    sides = {f"rank {rank}, ": each for rank, each in traced_ranks(ranks).items()} if ranks else {"": profile}
    return written(profile, _events(sides, pipeline))


def _events(sides: Mapping[str, Profile], pipeline: PipelineStep | None) -> Iterator[dict[str, Any]]:
    gpus = dict.fromkeys((label, schedule.gpu.name) for label, side in sides.items() for schedule in side.simulations)
    processes = {key: Events(pid) for pid, key in enumerate(gpus, 1)}
    for (label, name), process in processes.items():
        yield from process.name("process", f"{label}{name} (modeled)", process.pid)
    tid, arrow = len(processes) + 2, 1  # no two processes, rows or arrows of a trace have one number
    for label, side in sides.items():
        for schedule in side.simulations:
            rows = _rows(side, schedule, tid)
            yield from _policy(side, schedule, processes[label, schedule.gpu.name], rows, arrow)
            tid, arrow = tid + len(rows), arrow + len(schedule.kernels)
    if pipeline is not None:
        yield from _pipeline(Events(len(processes) + 1), pipeline, tid)


def _pipeline(process: Events, step: PipelineStep, tid: int) -> Iterator[dict[str, Any]]:
    """The tasks of all ranks of a pipeline, a row for each, from ``tid`` on."""
    yield from process.name("process", f"pipeline of {len(step.pipeline.ranks)} ranks (modeled)", process.pid)
    for row, (rank, order) in enumerate(zip(step.pipeline.ranks, step.orders, strict=True), tid):
        yield from tasks(process, f"rank {rank}", step.run, order, row)


#: keys of the rows of a schedule, besides (``stream``, number) and (``link``, name)
_LAUNCHES, _MODULES = ("launches", ""), ("modules", "")

Row = tuple[str, str]


def _rows(profile: Profile, schedule: Schedule, tid: int) -> dict[Row, int]:
    """The numbers of a schedule's rows, from ``tid`` on."""
    ops, costs = profile.graphs[schedule.graph].ops, profile.costs[schedule.graph]
    firsts = [kernel.op_ids[0] for kernel in schedule.kernels]
    streams = sorted({0, *(ops[i].stream for i in firsts)})
    links = dict.fromkeys(filter(None, (link_of(costs[i], schedule.gpu) for i in firsts)))
    keys = [_LAUNCHES, *[("stream", str(n)) for n in streams[:1]], _MODULES]
    keys += [*[("stream", str(n)) for n in streams[1:]], *[("link", name) for name in links if len(streams) > 1]]
    return {key: number for number, key in enumerate(keys, tid)}


def _policy(
    profile: Profile, schedule: Schedule, process: Events, rows: Mapping[Row, int], arrow: int
) -> Iterator[dict[str, Any]]:
    """The rows of one schedule (of launches none where the CPU issues nothing), its arrows from number ``arrow`` on,
    and its counters."""
    times = timeline(profile, schedule)
    ops, costs = profile.graphs[schedule.graph].ops, profile.costs[schedule.graph]
    issues = any(span.end_ns > span.start_ns for span in times.launches)
    own = "GPU" if schedule.gpu.cpu is None else "kernels"
    names = {_LAUNCHES: "CPU launches", ("stream", "0"): own, _MODULES: "modules"}
    for key, row in rows.items():
        if issues or key != _LAUNCHES:
            yield from process.name("thread", f"{schedule.policy}: {names.get(key) or ' '.join(key)}", row, row)
    launches, messages = rows[_LAUNCHES], []
    for i, (kernel, launch, run) in enumerate(zip(schedule.kernels, times.launches, times.runs, strict=True)):
        if not kernel.launches:  # a group that the policy does not run
            continue
        name, first = short_name(kernel.name), kernel.op_ids[0]
        row = rows["stream", str(ops[first].stream)]
        if issues:
            yield process.slice(launches, name, "launch", launch)
            yield from process.arrow(arrow + i, (launches, launch.start_ns), (row, run.start_ns))
        yield process.slice(row, name, kernel.op_class, run, **_arguments(profile, schedule, kernel))
        if link := rows.get(("link", link_of(costs[first], schedule.gpu))):
            messages.append(
                (run, process.slice(link, name, kernel.op_class, run, ranks=ops[first].attributes["group"]))
            )
    yield from (event for _, event in sorted(messages, key=itemgetter(0)))
    for scope in times.scopes:
        if scope.span.end_ns > scope.span.start_ns:
            yield process.slice(rows[_MODULES], scope.name, "module" if scope.depth else "phase", scope.span)
    yield from _memory(process, schedule.policy, times)


def _memory(process: Events, policy: str, times: Timeline) -> Iterator[dict[str, Any]]:
    """Bytes alive: in all, and by the kinds that there are. Perfetto calls a track by both names, the counter's
    and the series'."""
    for ns, alive in times.memory:
        yield process.counter(f"{policy}: memory", ns, {"total": alive.total})
    kinds = [kind for kind in KINDS if any(getattr(alive, kind) for _, alive in times.memory)]
    for ns, alive in times.memory if kinds else ():
        yield process.counter(f"{policy}: memory:", ns, {kind: getattr(alive, kind) for kind in kinds})


def _arguments(profile: Profile, schedule: Schedule, kernel: Estimate) -> dict[str, Any]:
    ops = profile.graphs[schedule.graph].ops
    sources = list(dict.fromkeys(ops[i].source for i in kernel.op_ids if ops[i].source))
    more = [f"{len(sources) - _MOST_LINES} more"] if len(sources) > _MOST_LINES else []
    source = {"source": ", ".join(sources[:_MOST_LINES] + more)} if sources else {}
    return {
        "module": kernel_module(profile, schedule, kernel),
        **source,
        "class": kernel.op_class,
        "phase": kernel_phase(profile, schedule, kernel),
        "launches": kernel.launches,
        "flops": kernel.flops,
        "read_bytes": kernel.read_bytes,
        "write_bytes": kernel.write_bytes,
        "bound_us": _us(kernel.bound_s),
        "compute_us": _us(kernel.compute_s),
        "memory_us": _us(kernel.memory_s),
        "latency_us": _us(kernel.latency_s),
        "overhead_us": _us(kernel.overhead_s),
        "limited_by": kernel.limited_by,
    }


def _us(seconds: float) -> float:
    """Microseconds to a tenth of a nanosecond."""
    return round(seconds * 1e6, 4)


# -- the step on a clock, in whole nanoseconds ------------------------------------------------------------------------

#: a module and the numbers behind it: ``layers.0.attn`` is ``layers.0`` and ``attn``
_STEP = re.compile(r"[^.]+(?:\.\d+(?![^.]))*")


class ModuleScope(NamedTuple):
    """A phase (``depth`` 0), or a module within the scopes around it, while its kernels run without another between."""

    name: str
    depth: int
    span: Span


class Timeline(NamedTuple):
    """One schedule on a clock. ``launches[i]`` and ``runs[i]`` are of ``kernels[i]``; no two launches overlap,
    nor two runs of a stream.

    ``scopes`` are in the order in which they open. ``memory`` holds the bytes alive from a nanosecond on; it is empty
    where the plan is not known.
    """

    launches: list[Span]
    runs: list[Span]
    scopes: list[ModuleScope]
    memory: list[tuple[int, MemoryPeak]]


def timeline(profile: Profile, schedule: Schedule) -> Timeline:
    """The timeline of one of the profile's schedules. The GPU begins when it is done with the step before, which it
    may be after the CPU has begun to issue, and ends ``totals.time_s`` later."""
    launches, runs = _queue(profile, schedule)
    ops = profile.graphs[schedule.graph].ops
    on_gpu = [i for i, kernel in enumerate(schedule.kernels) if not ops[kernel.op_ids[0]].stream]
    paths = [
        (kernel_phase(profile, schedule, kernel), *_STEP.findall(kernel_module(profile, schedule, kernel)))
        for kernel in map(schedule.kernels.__getitem__, on_gpu)
    ]
    memory = _memory_levels(profile, schedule, runs)
    return Timeline(launches, runs, _scopes(paths, [runs[i] for i in on_gpu]), memory)


def memory_line(profile: Profile, schedule: Schedule) -> tuple[list[tuple[int, MemoryPeak]], int]:
    """The bytes alive from a nanosecond on, none where the plan is not known; and the nanosecond of the last end."""
    runs = _queue(profile, schedule)[1]
    return _memory_levels(profile, schedule, runs), max((run.end_ns for run in runs), default=0)


def _memory_levels(profile: Profile, schedule: Schedule, runs: Sequence[Span]) -> list[tuple[int, MemoryPeak]]:
    plan = profile.plan(schedule)
    graph = profile.graphs[schedule.graph]
    memory = [] if plan is None else _alive(graph, plan, _in_turn(graph, schedule, runs))
    if max((level.total for _, level in memory), default=0) != schedule.totals.peak_memory_bytes:
        return []  # an older memwall's record, which counted otherwise
    return memory


def _in_turn(graph: Graph, schedule: Schedule, runs: Sequence[Span]) -> Sequence[Span]:
    """The runs on the clock of the first stream: what others run begins with the kernel issued before it."""
    found, now_ns = list[Span](), 0
    for kernel, run in zip(schedule.kernels, runs, strict=True):
        on_gpu = not graph.ops[kernel.op_ids[0]].stream
        found.append(run if on_gpu else Span(now_ns, now_ns))
        now_ns = run.end_ns if on_gpu else now_ns
    return found


def _queue(profile: Profile, schedule: Schedule) -> tuple[list[Span], list[Span]]:
    """When each kernel is launched and runs. The GPU is busy with the step before when the CPU begins to issue this
    one, for so long that no kernel starts before its first launch."""
    spans = _overlapping(profile, schedule) or [*_in_order(schedule.kernels)]
    launches, issued_s, ahead_s = list[Span](), 0.0, 0.0
    for kernel, (start_s, _) in zip(schedule.kernels, spans, strict=True):
        launches.append(span_of(issued_s, issued_s + kernel.issue_s))
        ahead_s = max(ahead_s, issued_s + kernel.issue_s / max(kernel.launches, 1) - start_s)
        issued_s += kernel.issue_s
    return launches, [span_of(ahead_s + start_s, ahead_s + end_s) for start_s, end_s in spans]


def _in_order(kernels: Iterable[Estimate]) -> Iterator[tuple[float, float]]:
    """Seconds in which each kernel runs, one after the other."""
    free_s = 0.0
    for kernel in kernels:
        yield free_s + kernel.wait_s, free_s + kernel.time_s
        free_s += kernel.time_s


def _overlapping(profile: Profile, schedule: Schedule) -> Sequence[tuple[float, float]]:
    """The same where kernels overlap: of a saved schedule simulated again; empty where none do."""
    made, graph = schedule.kernels, profile.graphs[schedule.graph]
    if (
        not isinstance(made, ScheduledKernels)
        and any(op.stream for op in graph.ops)
        and (plan := profile.plan(schedule))
    ):
        made = profile.schedule(
            schedule.gpu, schedule.policy, graph=schedule.graph, launch=schedule.launch, plan=plan
        ).kernels
    return made.spans if isinstance(made, ScheduledKernels) else ()


def _scopes(paths: Iterable[Sequence[str]], runs: Iterable[Span]) -> list[ModuleScope]:
    """Neighbours share the scopes that their paths begin with."""
    found: list[ModuleScope] = []
    starts: list[tuple[str, int, int]] = []  # name, start and place in ``found`` of each open scope
    end_ns = 0

    def close(depth: int) -> None:
        while len(starts) > depth:
            name, start_ns, place = starts.pop()
            found[place] = ModuleScope(name, len(starts), Span(start_ns, end_ns))

    for path, run in zip(paths, runs, strict=True):
        shared = 0
        while shared < min(len(path), len(starts)) and path[shared] == starts[shared][0]:
            shared += 1
        close(shared)
        for name in path[shared:]:
            starts.append((name, run.start_ns, len(found)))
            found.append(ModuleScope(name, len(starts) - 1, run))
        end_ns = run.end_ns
    close(0)
    return found


def _alive(graph: Graph, plan: Plan, runs: Sequence[Span]) -> list[tuple[int, MemoryPeak]]:
    """Changes of what is alive; what dies as a kernel ends is gone when the next one starts at the same time."""
    levels = (MemoryPeak(*level) for level in memory_levels(graph, plan))
    points = [(0, next(levels))]
    for run, during, after in zip(runs, levels, levels, strict=True):
        if points[-1][0] == run.start_ns:
            points.pop()
        if not points or points[-1][1] != during:
            points.append((run.start_ns, during))
        if after != during:
            points.append((run.end_ns, after))
    return points
