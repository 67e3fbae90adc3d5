"""Measured kernels as rows for other tools, and the sums of each run."""

from __future__ import annotations

from typing import Any

from memwall.analysis.validation.devices import devices
from memwall.analysis.validation.pairs import Pair, Run
from memwall.record.measurement import Measurement
from memwall.record.profile import Profile

#: Columns of :func:`rows`: seconds, bytes, FLOPs and Hz; of one launch, ``repeats`` of them in a step. ``error`` is
#: modeled over measured less 1, ``of_bound`` and ``of_copy`` are fractions, ``deviation`` is the worst distance from
#: float64 in units of the tolerance. Empty: not known.
COLUMNS = (
    "workload", "mode", "device", "kind", "gpu", "executor", "policy", "id", "name", "class", "dtype", "phase",
    "module", "shapes", "ops", "repeats", "flops", "bytes", "bound_s", "modeled_s", "measured_s", "low_s", "high_s",
    "min_s", "max_s", "samples", "error", "of_bound", "of_copy", "copy_bytes_per_s", "status", "reason", "deviation",
    "schedule", "flags", "clock_hz", "memory_clock_hz", "power_w", "temperature_c",
)  # fmt: skip


def rows(profile: Profile) -> list[dict[str, Any]]:
    """One row of ``COLUMNS`` per distinct measured kernel of each run; ``pandas.DataFrame(rows(profile))`` takes it."""
    found = []
    for device in devices(profile):
        for run in device.runs:
            found += [_row(profile, run.measurement, pair) for pair in run.pairs]
    return found


def _row(profile: Profile, m: Measurement, pair: Pair) -> dict[str, Any]:
    k, timing, sensors = pair.kernel, pair.timing, pair.kernel.sensors
    spread = {
        name: getattr(timing, name) if timing else None for name in ("low_s", "high_s", "min_s", "max_s", "samples")
    }
    values = {
        "workload": profile.workload.name, "mode": profile.workload.mode, "device": m.device, "kind": m.kind,
        "gpu": m.gpu, "executor": m.executor, "policy": m.policy, "id": k.id, "name": k.name, "class": k.op_class,
        "dtype": pair.dtype, "phase": pair.phase, "module": pair.module, "shapes": pair.shapes, "ops": len(k.op_ids),
        "repeats": k.repeats, "flops": k.flops, "bytes": k.bytes, "bound_s": k.bound_s, "modeled_s": k.modeled_s,
        "measured_s": pair.measured_s, **spread, "error": pair.error, "of_bound": pair.of_bound,
        "of_copy": pair.of_copy, "copy_bytes_per_s": m.copy_bytes_per_s or None, "status": k.status,
        "reason": k.reason, "deviation": k.error, "schedule": k.schedule, "flags": "; ".join(sensors.flags),
        "clock_hz": sensors.clock_hz, "memory_clock_hz": sensors.memory_clock_hz, "power_w": sensors.power_w,
        "temperature_c": sensors.temperature_c,
    }  # fmt: skip
    return {name: values[name] for name in COLUMNS}


def summary(profile: Profile) -> list[dict[str, Any]]:
    """The sums of each run as plain JSON types."""
    return [
        {
            "device": device.name,
            "gpu": device.gpu,
            "violations": sum(len(run.violations) for run in device.runs),
            "runs": [_run_summary(run) for run in device.runs],
            "same_groups": [
                {"executor": c.executor, "versus": c.versus, "groups": c.groups, "ratio": c.ratio,
                 "geomean": c.geomean, "worst": c.worst, "slower": c.slower}
                for c in device.same_groups
            ],
        }
        for device in devices(profile)
    ]  # fmt: skip


def _run_summary(run: Run) -> dict[str, Any]:
    m, total = run.measurement, run.total
    return {
        "executor": m.executor, "policy": m.policy, "kernels": total.kernels, "distinct": total.distinct,
        "modeled_s": total.modeled_s, "measured_s": total.measured_s, "error": total.error,
        "median_error": total.median_error, "of_bound": total.of_bound, "of_copy": total.of_copy,
        "streaming_of_copy": run.streaming_of_copy, "violations": len(run.violations), "flags": dict(run.flags),
        "step_measured_s": m.step.median_s if m.step else None, "step_modeled_s": m.step_modeled_s,
        "step_error": run.step_error, "complete": m.complete,
    }  # fmt: skip
