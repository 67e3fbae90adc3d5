"""What a gate compares the head with: saved profiles, or a commit that is profiled in a temporary worktree."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from memwall.core.errors import UsageError
from memwall.core.files import write_whole
from memwall.core.units import few
from memwall.core.version import __version__
from memwall.frontend.targets.target import is_saved, split_target
from memwall.gate.checkout import Checkout
from memwall.gate.config import GateConfig, GatedWorkload
from memwall.gate.reading import read_config
from memwall.gate.result import Baseline
from memwall.gate.tracing import TraceOutcome
from memwall.record.profile import Profile

#: suffixes of a saved profile, the one written first
SUFFIXES = (".json.gz", ".json")


@dataclass
class Bases:
    """The base's profile of each workload, or why there is no usable one."""

    baseline: Baseline = field(default_factory=Baseline)
    profiles: dict[str, Profile] = field(default_factory=dict)
    #: why a workload must not be compared
    refused: dict[str, str] = field(default_factory=dict)
    #: workloads that the base does not have, with what it said of them
    missing: dict[str, str] = field(default_factory=dict)


def noted(baseline: Baseline, who: str, notes: Sequence[str]) -> Baseline:
    return replace(baseline, notes=(*baseline.notes, *[f"{who}: {note}" for note in notes]))


def other_version(baseline: Profile) -> str:
    """Why a saved profile must not be compared with this memwall's figures; empty where it may."""
    if baseline.memwall_version == __version__:
        return ""
    return (
        f"the baseline was made by memwall {baseline.memwall_version[:40]}, this is {__version__}: their figures "
        "are not comparable; --update it, or compare with --baseline-ref"
    )


def not_comparable(row: TraceOutcome) -> str:
    """Why a workload has no figures to compare: traced again, it is another; empty where it is the same."""
    if not row.unstable:
        return ""
    return (
        f"not comparable: two traces of the same commit differ ({row.unstable}); the model depends on the time, the "
        "process or unseeded random numbers (random, numpy.random and torch are seeded): make it the same in every run"
    )


# -- saved profiles ----------------------------------------------------------------------------------------------------


def saved_profile(workload: GatedWorkload, root: Path) -> Profile:
    """A saved profile as it is, or on the GPUs and policies that it is gated on. Needs neither torch nor the model."""
    from memwall.pipeline import resimulate

    profile = Profile.load(root / workload.target)
    gpus, policies = workload.gpus or profile.gpus, workload.policies or profile.policies
    if options := {name: workload.options[name] for name in ("host", "cuda_graph") if name in workload.options}:
        return resimulate(profile, gpus, policies, **options)
    wanted = {(gpu, policy) for policy in policies for gpu in gpus}
    if wanted <= {(s.gpu, s.policy) for s in profile.simulations}:
        return profile.with_simulations(tuple(s for s in profile.simulations if (s.gpu, s.policy) in wanted))
    return resimulate(profile, gpus, policies)


def baseline_path(place: Path, name: str, *, several: bool) -> Path:
    """Where the baseline of a workload is: the file itself, or ``NAME.json.gz`` (or ``.json``) in a folder. Raises
    ``UsageError``: one file for several workloads."""
    if place.name.endswith(SUFFIXES):
        if several:
            raise UsageError(f"{place} is one file, and there are several workloads; name a folder")
        return place
    paths = [place / f"{name}{suffix}" for suffix in SUFFIXES]
    return next(filter(Path.is_file, paths), paths[0])


def write_baselines(profiles: Mapping[Path, Profile]) -> None:
    """Write each profile whole, making the folder. Raises ``UsageError``: one cannot be written."""
    for path, profile in profiles.items():
        try:
            path.parent.mkdir(parents=True)
        except FileExistsError:
            pass
        except OSError as error:
            raise UsageError(f"cannot make {path.parent}: {error.strerror or error}") from None
        text = profile.to_json()
        write_whole(path, gzip.compress(text.encode(), mtime=0) if path.name.endswith(".gz") else text)


def shown(place: Path, root: Path) -> str:
    """A path as the configuration has it: relative to its folder where it lies in it."""
    return (place.relative_to(root) if place.is_relative_to(root) else place).as_posix()


def from_files(place: Path, root: Path, workloads: Sequence[GatedWorkload], first: bool) -> Bases:
    if not place.exists() and not first:
        raise UsageError(f"no such baseline: {place}; --update writes it")
    if place.is_file() and not place.name.endswith(SUFFIXES):
        raise UsageError(f"{place} is neither a folder nor a saved profile ({' or '.join(SUFFIXES)})")
    base = Bases(Baseline("file", shown(place, root)))
    versions = set()
    for workload in workloads:
        path = baseline_path(place, workload.name, several=len(workloads) > 1)
        if not path.is_file():
            base.missing[workload.name] = f"no such file: {path}"
            continue
        base.profiles[workload.name] = profile = Profile.load(path)
        versions.add(profile.memwall_version)
        if refused := other_version(profile):
            base.refused[workload.name] = refused
    base.baseline = replace(base.baseline, memwall_version=", ".join(sorted(versions)))
    return base


# -- a commit ----------------------------------------------------------------------------------------------------------


def from_commit(
    ref: str,
    checkout: Checkout,
    workloads: Sequence[GatedWorkload],
    traced: Mapping[str, TraceOutcome],
    heads: Mapping[str, TraceOutcome],
) -> Bases:
    base = Bases(Baseline("ref", ref, checkout.commit, notes=checkout.notes))
    for workload in workloads:
        kind, place, _ = split_target(workload.target)
        path = checkout.folder / place
        if (kind != "module" or is_saved(workload.target)) and not path.resolve().is_relative_to(checkout.top):
            base.refused[workload.name] = f"{place} is not in the repository, which has no other version of it"
            continue
        row = traced.get(workload.name) or TraceOutcome(workload.name, None)
        if is_saved(workload.target) and path.is_file():
            base.profiles[workload.name] = profile = saved_profile(workload, checkout.folder)
            base.refused[workload.name] = other_version(profile)
        elif is_saved(workload.target):
            base.missing[workload.name] = f"no such file: {place}"
        elif row.absent:
            base.missing[workload.name] = row.error
        elif row.foreign:
            why = f"the base would run the working tree's {few(row.foreign)}, which is installed from there"
            base.refused[workload.name] = why
        elif row.unstable:
            base.refused[workload.name] = not_comparable(row)
        elif row.profile is None:
            base.refused[workload.name] = (
                f"the base cannot be profiled: {row.error}{checkout.lacks(heads[workload.name])}"
            )
        else:
            base.profiles[workload.name] = row.profile
            base.baseline = noted(base.baseline, f"{workload.name} (base)", row.notes)
            base.baseline = noted(base.baseline, workload.name, checkout.untracked(heads[workload.name]))
    base.baseline = replace(base.baseline, notes=(*base.baseline.notes, *checkout.borrowed()))
    return base


def left_out(config: GateConfig, checkout: Checkout | None, place: Path | None) -> list[str]:
    """Gaps in the configuration itself: workloads no longer gated, limits that differ from the base's."""
    ours = {workload.name: workload for workload in config.workloads}
    if checkout is None:
        saved = sorted(place.iterdir()) if place is not None and place.is_dir() else []
        names = [path.name.removesuffix(s) for path in saved for s in SUFFIXES if path.name.endswith(s)]
        gone = [name for name in names if name not in ours] if ours else []
        return [f"not gated, but in the baseline: {', '.join(gone)}"] if gone else []
    path = checkout.folder / config.source
    if not config.source or not path.is_file():
        return []
    try:
        before = read_config(path)
    except UsageError as error:
        return [f"the base's configuration cannot be read: {error}"]
    theirs = {workload.name: workload for workload in before.workloads}
    gone = [name for name in theirs if name not in ours]
    other = [name for name in theirs if name in ours and (ours[name], config.scope) != (theirs[name], before.scope)]
    rows = (("gated no longer", gone), ("gated otherwise than in the base's configuration", other))
    return [f"{what}: {', '.join(names)}" for what, names in rows if names]
