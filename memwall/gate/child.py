"""The process that profiles the workloads of one folder for a gate; started by :mod:`memwall.gate.sides`."""

from __future__ import annotations

import contextlib
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from memwall.errors import MemwallError, NeedsData
from memwall.gate.sides import Job, Traced
from memwall.profile import Profile
from memwall.workload import Workload


def main(task: str, answer: str) -> None:
    """Do the jobs of file ``task`` and write what became of them to file ``answer``."""
    jobs, avoid = pickle.loads(Path(task).read_bytes())
    folder = Path.cwd()
    sys.path[:0] = [str(place) for place in _roots(folder)]
    with contextlib.redirect_stdout(sys.stderr):
        rows = [trace_job(job) for job in jobs]
    if avoid is not None:
        foreign = _loaded_from(avoid, folder)
        rows = [replace(row, foreign=foreign) for row in rows]
    Path(answer).write_bytes(pickle.dumps(rows))


def _roots(folder: Path) -> list[Path]:
    """Where a checkout's own packages lie: the folder and those above it up to the repository's, each with its src."""
    places: list[Path] = []
    for place in (folder, *folder.parents):
        places += [p for p in (place, place / "src") if p.is_dir()]
        if (place / ".git").exists():
            return places
    return places[:2] if (folder / "src").is_dir() else places[:1]


def trace_job(job: Job) -> Traced:
    """One workload profiled, with its graph breaks where they are asked for or where it reads its own data."""
    from memwall.workload import resolve
    from memwall.workload.blame import blame

    notes: list[str] = []
    options = dict(job.options)
    sizes = {key: options.pop(key) for key in ("batch", "seq", "input_specs") if key in options}
    try:
        workload = resolve(job.target, **sizes, mode=options.get("mode", "inference"))
        profile = _profile(workload, job, options, notes)
        if job.breaks or notes:
            profile = _with_capture(workload, profile, options, notes)
    except MemwallError as error:
        return Traced(job.name, None, str(error))
    except (SystemExit, GeneratorExit, Exception) as error:
        return Traced(job.name, None, str(blame(error, f"running {job.target}")))
    return Traced(job.name, profile, notes=tuple(notes))


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
    from memwall.capture import REAL_BYTES
    from memwall.trace.build import build_module

    module = build_module(workload.model, "meta", lambda message: None)
    return sum(p.numel() * p.element_size() for p in module.parameters()) <= REAL_BYTES


def _with_capture(workload: Workload, profile: Profile, options: dict[str, Any], notes: list[str]) -> Profile:
    """The profile with what TorchDynamo makes of the workload."""
    from memwall.capture import capture
    from memwall.cost import classify
    from memwall.fused import CAPTURE_KEY, MOST_UNASKED, distinct_ops
    from memwall.trace import TraceOptions

    count = distinct_ops(profile.graph)
    if count > MOST_UNASKED:
        notes.append(f"no capture: TorchDynamo would take {count:,} ops one by one")
        return profile
    keys = ("mode", "dtype", "autocast", "real", "max_ops")
    traced = TraceOptions(
        attention=profile.graph.attention, **{key: options[key] for key in keys if key in options}
    )
    found = capture(workload, traced, classify, profile.graph)
    if found.failure:
        notes.append(f"TorchDynamo captures nothing: {found.failure}")
    return replace(profile, capture={**profile.capture, CAPTURE_KEY: found.to_dict()})


def _loaded_from(avoid: Path, folder: Path) -> tuple[str, ...]:
    """Modules' files under ``avoid``, relative to it, that are neither installed packages nor memwall's own."""
    found = []
    home = Path(__file__).parents[1]
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not file:
            continue
        path = Path(file).resolve()
        if path.is_relative_to(avoid) and not path.is_relative_to(folder) and not path.is_relative_to(home):
            inside = path.relative_to(avoid)
            if not {"site-packages", "dist-packages"} & set(inside.parts):
                found.append(inside.as_posix())
    return tuple(sorted(found))
