"""The modeled timeline in the Trace Event Format: opens in Perfetto and chrome://tracing.

One process per GPU. In it each policy has a row for what the CPU issues, one for what the GPU runs, one for the phases
and modules that this belongs to, and two counters: the bytes alive, and the same by what they hold. A gap in the
GPU's row is a wait for the CPU; an arrow leads from each launch to its kernel. Times are in microseconds, as the format
wants, to the nanosecond.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from memwall.perfmodel.roofline import Estimate
from memwall.record.kernels import kernel_module, kernel_phase, short_name
from memwall.record.profile import Profile
from memwall.report.timeline import Span, Timeline, timeline
from memwall.simulate.memory import MemoryPeak
from memwall.simulate.schedule import Schedule

#: source lines that are named of a fused kernel
_MOST_LINES = 3


def render_trace(profile: Profile) -> str:
    """All simulations of a profile as one trace, those of one GPU in one process."""
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    lines = ",\n".join(encode(event) for event in _events(profile))
    other = encode({"workload": profile.workload.name, "modeled": f"memwall {profile.memwall_version}"})
    return f'{{"displayTimeUnit":"ns","otherData":{other},"traceEvents":[\n{lines}\n]}}\n'


@dataclass(frozen=True, slots=True)
class _Events:
    """Makes the events of the process that is number ``pid``."""

    pid: int

    def name(self, kind: str, name: str, place: int, tid: int | None = None) -> Iterator[dict[str, Any]]:
        """What a ``process`` or ``thread`` is called, and its place among the others."""
        of = {"ph": "M", "pid": self.pid} | ({} if tid is None else {"tid": tid})
        yield {**of, "name": f"{kind}_name", "args": {"name": name}}
        yield {**of, "name": f"{kind}_sort_index", "args": {"sort_index": place}}

    def slice(
        self, tid: int, name: str, category: str, span: Span, args: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return {
            "ph": "X", "pid": self.pid, "tid": tid, "name": name, "cat": category, "ts": span.start_ns / 1000,
            "dur": (span.end_ns - span.start_ns) / 1000, **({"args": args} if args else {}),
        }  # fmt: skip

    def arrow(self, number: int, tail: tuple[int, int], head: tuple[int, int]) -> Iterator[dict[str, Any]]:
        """From the slice of a thread that holds a nanosecond to one of another."""
        for (tid, ns), end in ((tail, {"ph": "s"}), (head, {"ph": "f", "bp": "e"})):
            yield {
                **end, "id": number, "pid": self.pid, "tid": tid, "ts": ns / 1000, "name": "launch", "cat": "launch",
            }  # fmt: skip

    def counter(self, name: str, ns: int, series: dict[str, int]) -> dict[str, Any]:
        return {"ph": "C", "pid": self.pid, "name": name, "ts": ns / 1000, "args": series}


def _events(profile: Profile) -> Iterator[dict[str, Any]]:
    gpus = dict.fromkeys(schedule.gpu.name for schedule in profile.simulations)
    processes = {name: _Events(pid) for pid, name in enumerate(gpus, 1)}
    for name, process in processes.items():
        yield from process.name("process", f"{name} (modeled)", process.pid)
    tid, arrow = len(processes) + 1, 1  # no two processes, rows or arrows of a trace have one number
    for schedule in profile.simulations:
        yield from _policy(profile, schedule, processes[schedule.gpu.name], tid, arrow)
        tid, arrow = tid + 3, arrow + len(schedule.kernels)


def _policy(profile: Profile, schedule: Schedule, process: _Events, tid: int, arrow: int) -> Iterator[dict[str, Any]]:
    """The rows ``tid`` (launches; none where the CPU issues nothing), ``tid + 1`` (kernels) and ``tid + 2`` (modules)
    of one schedule, its arrows from number ``arrow`` on, and its counters."""
    times = timeline(profile, schedule)
    issues = any(span.end_ns > span.start_ns for span in times.launches)
    launches, runs, scopes = tid, tid + 1, tid + 2
    rows = [(launches, "CPU launches")] if issues else []
    rows += [(runs, "GPU" if schedule.gpu.cpu is None else "kernels"), (scopes, "modules")]
    for row, name in rows:
        yield from process.name("thread", f"{schedule.policy}: {name}", row, row)
    for i, (kernel, launch, run) in enumerate(zip(schedule.kernels, times.launches, times.runs, strict=True)):
        name = short_name(kernel.name)
        if issues:
            yield process.slice(launches, name, "launch", launch)
            yield from process.arrow(arrow + i, (launches, launch.start_ns), (runs, run.start_ns))
        yield process.slice(runs, name, kernel.op_class, run, _arguments(profile, schedule, kernel))
    for scope in times.scopes:
        yield process.slice(scopes, scope.name, "module" if scope.depth else "phase", scope.span)
    yield from _memory(process, schedule.policy, times)


def _memory(process: _Events, policy: str, times: Timeline) -> Iterator[dict[str, Any]]:
    """Bytes alive: in all, and by the roles that hold any. Perfetto calls a track by both names, that of the counter
    and that of the series."""
    for ns, alive in times.memory:
        yield process.counter(f"{policy}: memory", ns, {"total": alive.total})
    names = [field.name for field in fields(MemoryPeak)]
    roles = [name for name in names if any(getattr(alive, name) for _, alive in times.memory)]
    for ns, alive in times.memory if roles else ():
        yield process.counter(f"{policy}: memory:", ns, {role: getattr(alive, role) for role in roles})


def _arguments(profile: Profile, schedule: Schedule, kernel: Estimate) -> dict[str, Any]:
    ops = profile.graphs[schedule.graph].ops
    sources = list(dict.fromkeys(ops[i].source for i in kernel.op_ids if ops[i].source))
    more = [f"{len(sources) - _MOST_LINES} more"] if len(sources) > _MOST_LINES else []
    source = {"source": ", ".join(sources[:_MOST_LINES] + more)} if sources else {}
    return {
        "module": kernel_module(profile, schedule, kernel), **source, "class": kernel.op_class,
        "phase": kernel_phase(profile, schedule, kernel), "launches": kernel.launches,
        "flops": kernel.flops, "read_bytes": kernel.read_bytes, "write_bytes": kernel.write_bytes,
        "bound_us": _us(kernel.bound_s), "compute_us": _us(kernel.compute_s), "memory_us": _us(kernel.memory_s),
        "overhead_us": _us(kernel.overhead_s), "limited_by": kernel.limited_by,
    }  # fmt: skip


def _us(seconds: float) -> float:
    """Microseconds to a tenth of a nanosecond."""
    return round(seconds * 1e6, 4)
