"""The process that profiles the workloads of one folder for a gate; started by :mod:`memwall.gate.sides`."""

from __future__ import annotations

import contextlib
import functools
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from memwall.core.errors import MemwallError, NeedsData
from memwall.frontend.workload import Workload
from memwall.gate.sides import Job, Traced
from memwall.record.profile import Profile


def main(task: str, answer: str) -> None:
    """Do the jobs of file ``task`` and write what became of them to file ``answer``."""
    jobs, avoid = pickle.loads(Path(task).read_bytes())
    folder = Path.cwd()
    sys.path[:0] = [str(place) for place in _roots(folder)]
    with contextlib.redirect_stdout(sys.stderr), Path(answer).open("wb") as file:
        for job in jobs:
            _as_at_the_start()
            row = trace_job(job)
            if avoid is not None:
                row = replace(row, foreign=_loaded_from(avoid, folder))
            pickle.dump(row, file)
            file.flush()  # the next model may end this process


def _as_at_the_start() -> None:
    """Take back what the model before may have set for the whole process."""
    import torch

    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)


def _roots(folder: Path) -> list[Path]:
    """Where a checkout's own packages lie: the folder and those above it up to the repository's, each with its src."""
    top = _top(folder)
    above = [place for place in (folder, *folder.parents) if place.is_relative_to(top)]
    return [place for one in above for place in (one, one / "src") if place.is_dir()]


def _top(folder: Path) -> Path:
    """The top of a folder's repository; the folder itself outside of any."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), folder)


def trace_job(job: Job) -> Traced:
    """One workload profiled, with its graph breaks where they are asked for or where it reads its own data."""
    from memwall.frontend.workload import resolve
    from memwall.frontend.workload.blame import blame

    notes: list[str] = []
    options = dict(job.options)
    sizes = {key: options.pop(key) for key in ("batch", "seq", "input_specs") if key in options}
    try:
        workload = resolve(job.target, **sizes, mode=options.get("mode", "inference"))
    except MemwallError as error:  # one that the user's code raised has a cause
        return Traced(job.name, None, str(error), absent=error.__cause__ is None)
    try:
        profile = _profile(workload, job, options, notes)
        if job.breaks or notes:
            profile = _with_capture(workload, profile, options, notes, asked=job.asked)
    except MemwallError as error:
        return Traced(job.name, None, str(error))
    except (SystemExit, GeneratorExit, Exception) as error:
        return Traced(job.name, None, str(blame(error, f"running {job.target}")))
    return Traced(job.name, profile, notes=tuple(notes), real=bool(options.get("real")))


def _profile(workload: Workload, job: Job, options: dict[str, Any], notes: list[str]) -> Profile:
    """The profile; on real tensors where the model reads them and they are not too many."""
    from memwall.pipeline import profile

    try:
        return profile(workload, gpu=job.gpus, policy=job.policies, **options)
    except NeedsData as error:
        if not _small(workload):
            raise
        options["real"] = True
        notes.append(f"traced on real tensors: {str(error).partition(';')[0]}")
        return profile(workload, gpu=job.gpus, policy=job.policies, **options)


def _small(workload: Workload) -> bool:
    from memwall.frontend.dynamo.capture import REAL_BYTES
    from memwall.frontend.torch.build import build_module

    module = build_module(workload.model, "meta", lambda message: None)
    return sum(p.numel() * p.element_size() for p in module.parameters()) <= REAL_BYTES


def _with_capture(
    workload: Workload, profile: Profile, options: dict[str, Any], notes: list[str], *, asked: bool
) -> Profile:
    """The profile with what TorchDynamo makes of the workload."""
    from memwall.analysis.fused import CAPTURE_KEY, MOST_UNASKED, distinct_ops
    from memwall.frontend.dynamo.capture import capture
    from memwall.frontend.torch import TraceOptions
    from memwall.ops import classify

    count = distinct_ops(profile.graph)
    if count > MOST_UNASKED and not asked:
        notes.append(f"no capture: TorchDynamo would take {count:,} ops one by one")
        return profile
    keys = ("mode", "dtype", "autocast", "real", "max_ops")
    traced = TraceOptions(attention=profile.graph.attention, **{key: options[key] for key in keys if key in options})
    found = capture(workload, traced, classify, profile.graph)
    if found.failure:
        notes.append(f"TorchDynamo captures nothing: {found.failure}")
    return replace(profile, capture={**profile.capture, CAPTURE_KEY: found.to_dict()})


def _loaded_from(avoid: Path, folder: Path) -> tuple[str, ...]:
    """Modules' files under ``avoid``, relative to it, that are neither installed packages nor memwall's own."""
    found = []
    home, top = Path(__file__).parents[1], _top(folder)
    for file in {getattr(module, "__file__", None) for module in list(sys.modules.values())}:
        if not isinstance(file, str):
            continue
        path = _resolved(file)
        if path.is_relative_to(avoid) and not (path.is_relative_to(top) or path.is_relative_to(home)):
            inside = path.relative_to(avoid)
            if not {"site-packages", "dist-packages"} & set(inside.parts):
                found.append(inside.as_posix())
    return tuple(sorted(found))


_resolved = functools.cache(lambda file: Path(file).resolve())
