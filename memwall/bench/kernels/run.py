"""``measure``: profile → kernels → a benchmark run on this machine → the same profile with its measurements."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from memwall.bench.device import RUN_OPTIONS, in_doubt, need_compiler
from memwall.bench.kernels.benchmark_run import BenchmarkRun, Limits, MeasurementWork, flags, plan_work
from memwall.bench.kernels.workers import WorkerPool
from memwall.bench.origin import origin_of
from memwall.bench.question import MeasureOptions
from memwall.core.cache import refused
from memwall.core.errors import MissingError, UsageError
from memwall.core.progress import heard, tell
from memwall.core.question import completed, filled, part_of, signature_of
from memwall.hardware.lookup import DEFAULT_GPU, Gpu, load_gpu, match_device
from memwall.pipeline import profile as trace_profile
from memwall.record.measurement import EXECUTORS
from memwall.record.profile import Profile
from memwall.step import Step
from memwall.subjects import workload_of

#: the executors if none is named
DEFAULT_EXECUTORS = {"cuda": ("eager", "generated", "inductor"), "cpu": ("eager", "inductor")}


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while kernels were timed; ``profile`` holds what was measured until then."""

    def __init__(self, profile: Profile) -> None:
        super().__init__("interrupted")
        self.profile = profile


@heard
@signature_of(MeasureOptions)
def measure(
    profile_or_target: Any,
    inputs: Any = None,
    *,
    progress: Callable[[str], None] | None = None,
    updated: Callable[[Profile], None] | None = None,
    pool: WorkerPool | None = None,
    model: tuple[str, Mapping[str, Any]] | None = None,
    **asked: Unpack[MeasureOptions],
) -> Profile:
    """Time every kernel of a model on this machine, by several executors, and the whole step.

    Args:
        profile_or_target, inputs: a profile (its model is not needed), or as for :func:`memwall.profile`, as are the
            options of a step.
        progress, updated: called with one-line messages; after each block with the profile so far, marked incomplete.
        pool: workers that outlive this measurement; None starts some and stops them.
        model: the target of a profile and the options that it was traced with, where the model itself is to be timed
            next to the step; a target given as such is timed anyway.

    Returns: the profile with simulations of the device's spec and one measurement for each executor.

    Raises:
        UsageError: the target or an option is wrong.
        MissingError: the device, a compiler or a dependency is missing, or ``strict_device`` refuses it.
        Interrupted: Ctrl-C; has what was measured.
    """
    began, said, step = time.monotonic(), filled(MeasureOptions, asked), part_of(Step, asked)
    kind = said.device or ("cuda" if _has_cuda() else "cpu")
    names = _checked(kind, said.executors)
    try:
        spec = device_spec(kind, said.gpu)
    except MissingError:
        if not isinstance(profile_or_target, Profile):  # what cannot be measured at all is said first
            workload_of(profile_or_target, completed(Step, step), load_gpu(DEFAULT_GPU), inputs)
        raise
    profile = _profile_of(profile_or_target, inputs, spec, step)
    if (spec.architecture == "cpu") != (kind == "cpu"):
        tell(f"modeled as {spec.name}, which is no {'CPU' if kind == 'cpu' else 'GPU'}: the errors say nothing")
    work = plan_work(profile, spec, names, said.top)
    profile = _simulated(profile, work)
    limits = Limits(said.samples, began + said.time_limit_s, said.check, said.steps, said.build_limit_s)
    source, given = model or (profile_or_target, step)
    module = _module(source, given, inputs) if said.steps else None
    with nullcontext(pool) if pool else WorkerPool() as workers:
        run = BenchmarkRun(work, kind, profile.workload.target, limits, workers, module)
        return _run(run, profile, said.strict_device, updated, origin_of(source))


def _profile_of(target: Any, inputs: Any, spec: Gpu, options: Mapping[str, Any]) -> Profile:
    """A profile as it is, anything else traced."""
    if not isinstance(target, Profile):
        return trace_profile(target, inputs, gpu=spec, **options)
    if options:
        raise UsageError(f"{', '.join(options)}: says how to trace a model, and a profile is already traced")
    return target


def _run(
    run: BenchmarkRun,
    profile: Profile,
    strict: bool,
    updated: Callable[[Profile], None] | None,
    origin: Mapping[str, Any],
) -> Profile:
    """The profile with what a benchmark run found; a measurement of the same device, spec and executor is replaced."""

    def found() -> Profile:
        told = [replace(m, environment={**origin, **m.environment}) for m in run.measurements()]
        fresh = {(m.device, m.gpu, m.executor): m.to_dict() for m in told}
        kept = [m for m in profile.measurements if (m["device"], m["gpu"], m["executor"]) not in fresh]
        return replace(profile, measurements=(*kept, *fresh.values()))

    def refuse(flags: Iterable[str]) -> None:
        if strict and (doubts := in_doubt(flags)):
            raise MissingError(f"--strict-device: {'; '.join(doubts)}")

    try:
        run.start()
        refuse(run.copied.sensors.flags if run.copied else ())
        run.run((lambda: updated(found())) if updated else (lambda: None))
    except KeyboardInterrupt:
        raise Interrupted(found()) from None
    refuse(flags(run.measurements()))
    return found()


def device_spec(kind: str, gpu: str | Path | Gpu | None = None) -> Gpu:
    """The spec of this machine's device: the one named, else found by its name or, for a CPU, where ``memwall
    calibrate`` left it. Raises ``UsageError``: the spec named is wrong; ``MissingError``: there is no such device, or
    no spec of it."""
    if gpu is not None:
        return load_gpu(gpu)
    if kind == "cpu":
        from memwall.bench.calibrate import default_spec_path

        path = default_spec_path()
        if not path.is_file():
            raise MissingError(f"no spec of this CPU ({path}): run memwall calibrate first, or name one with --gpu")
        if why := refused(path.parent) or refused(path):
            raise UsageError(f"{path} is not read: {why}; name it with --gpu if it is to be trusted")
        return load_gpu(path)
    import torch

    name = torch.cuda.get_device_name()
    found = match_device(name)
    if found is None:
        raise MissingError(f"memwall has no spec of {name}; name one with --gpu (a name or a TOML file)")
    return found


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _checked(kind: str, executors: Sequence[str]) -> tuple[str, ...]:
    """The executors, each once; whatever is missing is reported before anything runs."""
    if kind not in DEFAULT_EXECUTORS:
        raise UsageError(f"no device {kind!r}; there is {', '.join(DEFAULT_EXECUTORS)}")
    names = tuple(dict.fromkeys(executors)) or DEFAULT_EXECUTORS[kind]
    for name in names:
        if name not in EXECUTORS:
            raise UsageError(f"no executor named {name!r}; there is {', '.join(EXECUTORS)}")
    if kind == "cuda" and not _has_cuda():
        raise MissingError("no CUDA device here; --device cpu measures this machine's CPU")
    if kind == "cpu" and "generated" in names:
        raise MissingError("generated kernels are Triton and need a CUDA device; the CPU has eager and inductor")
    if "inductor" in names:
        need_compiler(kind)
    return names


def _simulated(profile: Profile, work: MeasurementWork) -> Profile:
    """The profile with the schedules that are measured, in place of older ones of the same GPU and policy."""
    fresh = tuple(work.schedules.values())
    keys = {(s.gpu.name, s.policy) for s in fresh}
    kept = tuple(s for s in profile.simulations if (s.gpu.name, s.policy) not in keys)
    return profile.with_simulations((*kept, *fresh))


def _module(target: Any, options: Mapping[str, Any], inputs: Any) -> tuple[str, dict[str, Any]] | None:
    """The model itself and how to run it; None where a worker cannot build it: of a saved profile, of a caller's own
    module or with a caller's own tensors and functions."""
    own = callable(options.get("loss")) or callable(options.get("optimizer"))
    if not isinstance(target, (str, Path)) or inputs is not None or own:
        return None
    return str(target), {name: options[name] for name in RUN_OPTIONS if name in options}
