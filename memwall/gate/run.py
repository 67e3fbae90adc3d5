"""The wiring of a gate: workloads → profiles of head and base → checks → one result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from memwall._version import __version__
from memwall.errors import UsageError
from memwall.fused import CAPTURE_KEY
from memwall.gate.baseline import Checkout, baseline_path, checked_out, other_version, read_baseline
from memwall.gate.config import GateConfig, GatedWorkload
from memwall.gate.evaluate import Subject, check_workload
from memwall.gate.result import Baseline, Check, GateResult, Problem
from memwall.gate.sides import Job, Traced, profile_sides
from memwall.profile import Profile
from memwall.workload.target import split_target


@dataclass(frozen=True)
class GateRun:
    """A result with the profiles that it is about, by workload."""

    result: GateResult
    heads: Mapping[str, Profile]
    bases: Mapping[str, Profile]
    #: workloads whose head could not be profiled
    failed: frozenset[str] = frozenset()


@dataclass
class _Base:
    """The base's profiles, what it is, and why some of it must not be used."""

    baseline: Baseline = field(default_factory=Baseline)
    profiles: dict[str, Profile] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    @property
    def asked(self) -> bool:
        return self.baseline.kind != "none"


def run_gate(
    config: GateConfig, workloads: Sequence[GatedWorkload], *, baseline: Path | None = None,
    baseline_ref: str | None = None, allow_new: bool = False, first: bool = False,
    say: Callable[[str], None] = lambda message: None,
) -> GateRun:  # fmt: skip
    """Judge some workloads by a configuration, against saved profiles, a git ref or nothing.

    Args:
        baseline: a saved profile, or a folder with one per workload.
        baseline_ref: a commit, branch or tag; the base is where it and the head parted.
        allow_new: a workload that the base does not have passes its relative limits.
        first: there need not be a baseline yet.

    Raises:
        UsageError: a baseline is missing, damaged or of a newer schema, the ref cannot be checked out, a child died.
    """
    if not workloads:
        return GateRun(GateResult((), (Problem("", "", "fail", NO_WORKLOAD),)), {}, {})
    saved = {w.name: _saved(w, config) for w in workloads if _is_saved(w.target)}
    jobs = [
        _job(config, w, compared=bool(baseline or baseline_ref)) for w in workloads if w.name not in saved
    ]
    with _base_of(config, baseline_ref) as checkout:
        heads: dict[str, Traced] = {}
        bases: dict[str, Traced] = {}
        if jobs:
            heads, bases = profile_sides(config.root, checkout.folder if checkout else None, jobs, say,
                                         avoid=checkout.head_top if checkout else None)  # fmt: skip
        if checkout is not None:
            base = _from_ref(baseline_ref or "", checkout, workloads, bases)
        else:
            base = _from_files(baseline, workloads, first) if baseline else _Base()
    traced = {name: Traced(name, profile) for name, profile in saved.items()} | heads
    return _judged(config, workloads, traced, base, allow_new)


NO_WORKLOAD = (
    "no workload to gate: name a TARGET, or list workloads in [tool.memwall.gate] of pyproject.toml or in memwall.toml"
)  # fmt: skip
NO_CHECK = "nothing is limited: add limits such as dram_bytes = '+2%', --limit 'time_s=3.2 ms', or a baseline"


def _is_saved(target: str) -> bool:
    return target.lower().endswith((".json", ".json.gz")) and not target.startswith("hf:")


def _saved(workload: GatedWorkload, config: GateConfig) -> Profile:
    """A saved profile as it is, or on the GPUs and policies that it is gated on. Needs neither torch nor the model."""
    from memwall.pipeline import resimulate

    profile = Profile.load(config.root / workload.target)
    wanted = {(gpu, policy) for policy in workload.policies for gpu in workload.gpus}
    if not wanted or wanted <= {(s.gpu, s.policy) for s in profile.simulations}:
        kept = tuple(s for s in profile.simulations if not wanted or (s.gpu, s.policy) in wanted)
        return profile.with_simulations(kept)
    return resimulate(profile, workload.gpus, workload.policies)


def _job(config: GateConfig, workload: GatedWorkload, *, compared: bool) -> Job:
    limited = (
        config.limits(workload, gpu.name, policy, compared=compared)
        for gpu in workload.gpus
        for policy in workload.policies
    )
    breaks = any(("graph_breaks", "") in limits for limits in limited)
    return Job(workload.name, workload.target, workload.options, workload.gpus, workload.policies, breaks)


# -- the base ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _base_of(config: GateConfig, ref: str | None) -> Iterator[Checkout | None]:
    if ref is None:
        yield None
    else:
        with checked_out(config.root, ref) as checkout:
            yield checkout


def _from_ref(
    ref: str, checkout: Checkout, workloads: Sequence[GatedWorkload], traced: Mapping[str, Traced]
) -> _Base:
    base = _Base(Baseline("ref", ref, checkout.commit, notes=checkout.notes))
    for workload in workloads:
        if _is_saved(workload.target):
            path = checkout.folder / workload.target
            if path.is_file():
                base.profiles[workload.name] = Profile.load(path)
            else:
                base.missing.add(workload.name)
            continue
        row = traced[workload.name]
        kind, place, _ = split_target(workload.target)
        if kind == "file" and not (checkout.folder / place).is_file():
            base.missing.add(workload.name)
        elif row.foreign:
            files = ", ".join(row.foreign[:3]) + (" …" if len(row.foreign) > 3 else "")
            base.refused[workload.name] = (
                f"the base would run the working tree's {files}, which is installed from there"
            )
        elif row.profile is None:
            base.refused[workload.name] = f"the base cannot be profiled: {row.error}"
        else:
            base.profiles[workload.name] = row.profile
            base.baseline = _noted(base.baseline, f"{workload.name} (base)", row.notes)
    return base


def _from_files(place: Path, workloads: Sequence[GatedWorkload], first: bool) -> _Base:
    if not place.exists() and not first:
        raise UsageError(f"no such baseline: {place}; --update writes it")
    base = _Base(Baseline("file", place.as_posix()))
    versions = set()
    for workload in workloads:
        path = baseline_path(place, workload.name, several=len(workloads) > 1)
        profile = read_baseline(path)
        if profile is None:
            base.missing.add(workload.name)
            continue
        versions.add(profile.memwall_version)
        refused = other_version(profile)
        if refused:
            base.refused[workload.name] = refused
        base.profiles[workload.name] = profile
    base.baseline = replace(base.baseline, memwall_version=", ".join(sorted(versions)))
    return base


def _noted(baseline: Baseline, who: str, notes: Sequence[str]) -> Baseline:
    return replace(baseline, notes=(*baseline.notes, *[f"{who}: {note}" for note in notes]))


def judge_again(config: GateConfig, workloads: Sequence[GatedWorkload], run: GateRun, place: Path) -> GateRun:
    """The heads of a run judged with themselves as the baseline, which was written to ``place``."""
    heads = {name: Traced(name, profile) for name, profile in run.heads.items()}
    base = _Base(Baseline("file", place.as_posix(), memwall_version=__version__), dict(run.heads))
    return _judged(config, workloads, heads, base, allow_new=False)


# -- judging -----------------------------------------------------------------------------------------------------------


def _judged(
    config: GateConfig,
    workloads: Sequence[GatedWorkload],
    heads: Mapping[str, Traced],
    base: _Base,
    allow_new: bool,
) -> GateRun:
    checks: list[Check] = []
    problems = list(base.problems)
    baseline = base.baseline
    for workload in workloads:
        head = heads[workload.name]
        if head.profile is None:
            problems.append(
                Problem(workload.name, workload.target, "fail", f"cannot be profiled: {head.error}")
            )
            continue
        baseline = _noted(baseline, workload.name, head.notes)
        limits = {
            (s.gpu.name, s.policy): config.limits(
                workload,
                s.gpu.name,
                s.policy,
                compared=base.asked,
                breaks=CAPTURE_KEY in head.profile.capture,
            )
            for s in head.profile.simulations
        }
        written = {key for rows in limits.values() for key in rows}
        if written <= {("coverage", "")}:
            problems.append(Problem(workload.name, workload.target, "fail", NO_CHECK))
        subject = Subject(
            workload.name, workload.target, head.profile, base.profiles.get(workload.name), base.asked,
            base.refused.get(workload.name, "") or other_version(head.profile),
            allow_new and workload.name in base.missing,
        )  # fmt: skip
        found, wrong = check_workload(subject, limits)
        checks += found
        problems += wrong
    profiles = {name: row.profile for name, row in heads.items() if row.profile is not None}
    failed = frozenset(name for name, row in heads.items() if row.profile is None)
    return GateRun(GateResult(tuple(checks), tuple(problems), baseline), profiles, base.profiles, failed)
