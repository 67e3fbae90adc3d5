"""The bases of a gate: what each workload is compared with, from saved profiles or from a commit, and what must not be
compared and why."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from memwall.core.errors import UsageError
from memwall.frontend.workload.target import split_target
from memwall.gate.baseline import SUFFIXES, Checkout, baseline_path, checked_out, other_version, read_baseline
from memwall.gate.config import GateConfig, GatedWorkload, is_saved
from memwall.gate.reading import read_config
from memwall.gate.result import Baseline, Problem
from memwall.gate.sides import Traced
from memwall.record.profile import Profile


@dataclass
class Bases:
    """The base's profiles, what it is, and why some of it must not be used."""

    baseline: Baseline = field(default_factory=Baseline)
    profiles: dict[str, Profile] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    #: workloads that the base does not have, with what it said of them
    missing: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def asked(self) -> bool:
        """Whether a baseline was asked for."""
        return self.baseline.kind != "none"


def saved_profile(workload: GatedWorkload, root: Path) -> Profile:
    """A saved profile as it is, or on the GPUs and policies that it is gated on. Needs neither torch nor the model."""
    from memwall.pipeline import resimulate

    profile = Profile.load(root / workload.target)
    gpus = workload.gpus or tuple({s.gpu.name: s.gpu for s in profile.simulations}.values())
    policies = workload.policies or tuple(dict.fromkeys(s.policy for s in profile.simulations))
    wanted = {(gpu, policy) for policy in policies for gpu in gpus}
    if wanted <= {(s.gpu, s.policy) for s in profile.simulations}:
        return profile.with_simulations(tuple(s for s in profile.simulations if (s.gpu, s.policy) in wanted))
    return resimulate(profile, gpus, policies)


@contextlib.contextmanager
def base_checkout(config: GateConfig, ref: str | None) -> Iterator[Checkout | None]:
    if ref is None:
        yield None
    else:
        with checked_out(config.root, ref) as checkout:
            yield checkout


def from_ref(ref: str, checkout: Checkout, workloads: Sequence[GatedWorkload], traced: Mapping[str, Traced]) -> Bases:
    base = Bases(Baseline("ref", ref, checkout.commit, notes=checkout.notes))
    for workload in workloads:
        kind, place, _ = split_target(workload.target)
        path = checkout.folder / place
        if (kind != "module" or is_saved(workload.target)) and not path.resolve().is_relative_to(checkout.top):
            base.refused[workload.name] = f"{place} is not in the repository, which has no other version of it"
            continue
        if is_saved(workload.target):
            if path.is_file():
                profile = saved_profile(workload, checkout.folder)
                base.refused[workload.name] = other_version(profile)
                base.profiles[workload.name] = profile
            else:
                base.missing[workload.name] = f"no such file: {place}"
            continue
        row = traced[workload.name]
        if row.absent:
            base.missing[workload.name] = row.error
        elif row.foreign:
            files = ", ".join(row.foreign[:3]) + (" …" if len(row.foreign) > 3 else "")
            base.refused[workload.name] = (
                f"the base would run the working tree's {files}, which is installed from there"
            )
        elif row.profile is None:
            base.refused[workload.name] = f"the base cannot be profiled: {row.error}"
        else:
            base.profiles[workload.name] = row.profile
            base.baseline = noted(base.baseline, f"{workload.name} (base)", row.notes)
    return base


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
        profile = read_baseline(path)
        if profile is None:
            base.missing[workload.name] = f"no such file: {path}"
            continue
        versions.add(profile.memwall_version)
        refused = other_version(profile)
        if refused:
            base.refused[workload.name] = refused
        base.profiles[workload.name] = profile
    base.baseline = replace(base.baseline, memwall_version=", ".join(sorted(versions)))
    return base


def left_out(config: GateConfig, checkout: Checkout | None, place: Path | None) -> list[str]:
    """What the configuration itself lets pass: workloads that it gates no longer, limits that are not the base's."""
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


def noted(baseline: Baseline, who: str, notes: Sequence[str]) -> Baseline:
    return replace(baseline, notes=(*baseline.notes, *[f"{who}: {note}" for note in notes]))
