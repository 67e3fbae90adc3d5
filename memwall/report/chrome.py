"""The modeled schedule as a Chrome trace: opens in Perfetto and chrome://tracing. One process per GPU and policy.

Each kernel is a slice on one track, each phase on a second. Times are in microseconds, as the format wants.
"""

from __future__ import annotations

import json
from typing import Any

from memwall.analysis import kernel_module, kernel_phase, schedule_label
from memwall.profile import Profile
from memwall.simulate import Schedule


def render_trace(profile: Profile) -> str:
    """All simulations of a profile as one trace."""
    events: list[dict[str, Any]] = []
    for process, schedule in enumerate(profile.simulations):
        events += _process(profile, schedule, process)
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    lines = ",\n".join(encode(event) for event in events)
    other = encode({"workload": profile.workload.name, "modeled": "memwall " + profile.memwall_version})
    return f'{{"displayTimeUnit":"ns","otherData":{other},"traceEvents":[\n{lines}\n]}}\n'


def _process(profile: Profile, schedule: Schedule, process: int) -> list[dict[str, Any]]:
    label = f"{schedule_label(profile, schedule)} (modeled)"
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": process, "name": "process_name", "args": {"name": label}},
        {"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": process}},
        {"ph": "M", "pid": process, "tid": 0, "name": "thread_name", "args": {"name": "kernels"}},
        {"ph": "M", "pid": process, "tid": 1, "name": "thread_name", "args": {"name": "phases"}},
    ]
    start_s = 0.0
    phases: list[list[Any]] = []
    for kernel in schedule.kernels:
        phase = kernel_phase(profile, schedule, kernel)
        args = {
            "module": kernel_module(profile, schedule, kernel), "class": kernel.op_class, "phase": phase,
            "flops": kernel.flops, "read_bytes": kernel.read_bytes, "write_bytes": kernel.write_bytes,
            "bound_us": _us(kernel.bound_s), "compute_us": _us(kernel.compute_s), "memory_us": _us(kernel.memory_s),
            "overhead_us": _us(kernel.overhead_s), "limited_by": kernel.limited_by,
        }  # fmt: skip
        events.append(_slice(process, 0, kernel.name, kernel.op_class, start_s, kernel.time_s, args))
        if not phases or phases[-1][0] != phase:
            phases.append([phase, start_s, 0.0])
        start_s += kernel.time_s
        phases[-1][2] = start_s
    events += [_slice(process, 1, name, "phase", begin, end - begin, {}) for name, begin, end in phases]
    return events


def _slice(
    process: int, track: int, name: str, category: str, start_s: float, time_s: float, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X", "pid": process, "tid": track, "name": name, "cat": category, "ts": _us(start_s), "dur": _us(time_s),
        "args": args,
    }  # fmt: skip


def _us(seconds: float) -> float:
    """Microseconds to a tenth of a nanosecond."""
    return round(seconds * 1e6, 4)
