"""The place and the name of a kernel: its phase, the module that all of its ops share, readable names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memwall.core.graph import PHASES, SERVING, TensorSpec
from memwall.core.layers import collapse as collapse
from memwall.core.units import few, size
from memwall.perfmodel.roofline import WALLS as WALLS
from memwall.perfmodel.roofline import Estimate
from memwall.record.job import replicas
from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule, time_by_wall


@dataclass(frozen=True, slots=True)
class Rates:
    """Throughput of all ranks: steps, samples and tokens per second, and of each GPU; None where the workload has
    no count."""

    steps_per_s: float
    samples_per_s: float | None
    tokens_per_s: float | None
    samples_per_s_per_gpu: float | None
    tokens_per_s_per_gpu: float | None


# -- where a kernel belongs --------------------------------------------------------------------------------------------


#: what is shown for the empty path of ops that lie in no module but the outermost
NO_MODULE = "(no module)"


def common_module(paths: Sequence[str]) -> str:
    """The longest module path that contains all of some paths."""
    if len(set(paths)) == 1:
        return paths[0]
    shared = []
    for parts in zip(*(path.split(".") for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def kernel_phase(profile: Profile, schedule: Schedule, kernel: Estimate) -> str:
    """The phase in which a kernel runs: its last op's."""
    ops = profile.graphs[schedule.graph].ops
    return phase_name(profile, ops[max(kernel.op_ids)].phase if kernel.op_ids else PHASES[0])


def phase_name(profile: Profile, phase: str) -> str:
    """A phase as it is called: the forward pass of a step with a cache is ``prefill`` or ``decode``."""
    mode = profile.workload.mode
    return mode if phase == PHASES[0] and mode in SERVING else phase


def kernel_module(profile: Profile, schedule: Schedule, kernel: Estimate) -> str:
    """The module that all ops of a kernel share."""
    ops = profile.graphs[schedule.graph].ops
    return common_module([ops[i].module for i in kernel.op_ids]) if kernel.op_ids else ""


def short_name(name: str) -> str:
    """A readable name: ``aten.add.Tensor`` is ``add``; each part of a fused kernel's; other libraries' names stay."""
    return _OVERLOAD.sub(r"\1", name)


def shown_name(name: str) -> str:
    """A readable name that fits into a table: of a kernel of many ops each once, with how often it stands, the first of
    them."""
    parts = short_name(name).split("+")
    if len(parts) <= _MOST_SHOWN:
        return "+".join(parts)
    counts = Counter(parts)
    return few([f"{part} x{count}" if count > 1 else part for part, count in counts.items()], _MOST_SHOWN, "+")


#: ops of a fused kernel that stand in a table
_MOST_SHOWN = 8

_OVERLOAD = re.compile(r"(?:(?<=\+)|^)(?:aten\.|(?<=\+)|(?=[^+]*\+))(\w+)(?:\.\w+)?(?=[+ ]|$)")


def shapes_text(specs: Iterable[TensorSpec]) -> str:
    """``f16[8,512] f16[512,64]``: the tensors that an op reads."""
    return " ".join(f"{_SHORT.get(s.dtype, s.dtype)}[{','.join(map(str, s.shape))}]" for s in specs)


_SHORT = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2", "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8",
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip


#: the phase of a peak, in words
_DURING = {
    "forward": "in the forward pass", "backward": "in the backward pass", "optimizer": "in the optimizer step",
    **{mode: f"in the {mode} step" for mode in SERVING},
}  # fmt: skip
#: ops of a fused kernel that are named
_MOST_NAMES = 3


def peak_place(profile: Profile, schedule: Schedule) -> str:
    """``in the optimizer step, at _foreach_sqrt``: the phase, the kernel and the module in which most memory is alive;
    empty where no kernel is known."""
    number = schedule.memory.kernel
    if number is None or number >= len(schedule.kernels):
        return ""
    kernel = schedule.kernels[number]
    names = few(short_name(kernel.name).split("+"), _MOST_NAMES, " + ")
    phase, module = kernel_phase(profile, schedule, kernel), kernel_module(profile, schedule, kernel)
    inside = f" of {module}" if module and phase != "optimizer" else ""
    return f"{_DURING[phase]}, at {names}{inside}"


def fit_text(schedule: Schedule) -> str:
    """``fits: 15.39 GB + 0.81 GB assumed for context and allocator of 16.95 GB``."""
    peak, reserved = schedule.totals.peak_memory_bytes, schedule.reserved_bytes
    room = f" + {size(reserved)} assumed for context and allocator" if reserved else ""
    return f"{'fits' if schedule.fits else 'DOES NOT FIT'}: {size(peak)}{room} of {size(schedule.gpu.dram_bytes)}"


# -- single figures ----------------------------------------------------------------------------------------------------


def wall_shares(schedule: Schedule) -> dict[str, float]:
    """Fraction of the time under each wall: all of :data:`WALLS`, and the link where it limits a kernel."""
    by_wall = time_by_wall(schedule.timings)
    total = sum(by_wall.values())
    return {wall: time_s / total if total else 0.0 for wall, time_s in by_wall.items()}


def rates(profile: Profile, schedule: Schedule, step_s: float | None = None) -> Rates:
    """Steps, samples and tokens per second.

    Args:
        step_s: seconds of the step of all ranks. None takes the traced rank's own; a rank of a pipeline, whose time
            without that of others is no step, then has no rate.
    """
    time_s = schedule.totals.time_s if step_s is None else step_s
    steps, job, info = 1.0 / time_s if time_s else 0.0, profile.traced.job, profile.workload
    known = step_s is not None or profile.traced.pipeline is None
    counts = [
        None if count is None or not known else count * replicas(profile) for count in (info.samples, info.tokens)
    ]
    rate = [None if count is None else count * steps for count in counts]
    return Rates(steps, *rate, *(None if each is None else each / (job.world if job else 1) for each in rate))


def schedule_label(profile: Profile, schedule: Schedule) -> str:
    """``h100-sxm``, with the policy where it is not eager or several were simulated."""
    several = len({s.policy for s in profile.simulations}) > 1
    return f"{schedule.gpu.name}, {schedule.policy}" if several or schedule.policy != "eager" else schedule.gpu.name
