"""The wiring of a gate: workloads → profiles of head and base → checks → one result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from memwall._version import __version__
from memwall.errors import UsageError
from memwall.fused import capture_of
from memwall.gate.baseline import (
    SUFFIXES,
    Checkout,
    baseline_path,
    checked_out,
    other_version,
    read_baseline,
)
from memwall.gate.config import APART, GateConfig, GatedWorkload, read_config
from memwall.gate.evaluate import Subject, check_workload
from memwall.gate.measured import Measured, measure
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
    #: workloads that the base does not have, with what it said of them
    missing: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def asked(self) -> bool:
        return self.baseline.kind != "none"


def run_gate(
    config: GateConfig, workloads: Sequence[GatedWorkload], *, baseline: Path | None = None,
    baseline_ref: str | None = None, allow_new: bool = False, first: bool = False, measured_on: str | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> GateRun:  # fmt: skip
    """Judge some workloads by a configuration, against saved profiles, a git ref or nothing.

    Args:
        baseline: a saved profile, or a folder with one per workload.
        baseline_ref: a commit, branch or tag; the base is where it and the head parted.
        allow_new: a workload that the base does not have passes its relative limits.
        first: there need not be a baseline yet.
        measured_on: also time base and head against each other on this machine's ``cpu`` or ``cuda``.

    Raises:
        UsageError: a baseline is missing, damaged or of a newer schema, or the ref cannot be checked out.
    """
    if measured_on and baseline_ref is None:
        raise UsageError("--measured times base and head against each other: give --baseline-ref")
    if not workloads:
        return GateRun(GateResult((), (Problem("", "", "fail", NO_WORKLOAD),)), {}, {})
    saved = {w.name: _saved(w, config.root) for w in workloads if _is_saved(w.target)}
    jobs = [
        _job(config, w, compared=bool(baseline or baseline_ref)) for w in workloads if w.name not in saved
    ]
    with _base_of(config, baseline_ref) as checkout:
        heads: dict[str, Traced] = {}
        bases: dict[str, Traced] = {}
        if jobs:
            heads, bases = profile_sides(config.root, checkout.folder if checkout else None, jobs, say,
                                         avoid=checkout.head_top if checkout else None)  # fmt: skip
        timed = Measured()
        if checkout is not None:
            base = _from_ref(baseline_ref or "", checkout, workloads, bases)
        else:
            base = _from_files(baseline, workloads, first) if baseline else _Base()
        if {w.name for w in config.workloads} <= {w.name for w in workloads}:
            notes = _left_out(config, checkout, baseline)
            base.baseline = replace(base.baseline, notes=(*base.baseline.notes, *notes))
        if checkout is not None and measured_on:
            there = [
                w
                for w in workloads
                if w.name in base.profiles and w.name not in saved and heads[w.name].profile
            ]
            timed = measure(config, there, checkout, measured_on, say)
    traced = {name: Traced(name, profile) for name, profile in saved.items()} | heads
    run = _judged(config, workloads, traced, base, allow_new)
    result = replace(
        run.result, checks=(*run.result.checks, *timed.checks), problems=(*run.result.problems, *timed.problems),
        contests=timed.contests,
    )  # fmt: skip
    return replace(run, result=result)


NO_WORKLOAD = (
    "no workload to gate: name a TARGET, or list workloads in [tool.memwall.gate] of pyproject.toml or in memwall.toml"
)  # fmt: skip
NO_CHECK = "nothing is limited: add limits such as dram_bytes = '+2%', --limit 'time_s=3.2 ms', or a baseline"


def _is_saved(target: str) -> bool:
    return target.lower().endswith((".json", ".json.gz")) and not target.startswith("hf:")


def _saved(workload: GatedWorkload, root: Path) -> Profile:
    """A saved profile as it is, or on the GPUs and policies that it is gated on. Needs neither torch nor the model."""
    from memwall.pipeline import resimulate

    profile = Profile.load(root / workload.target)
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
    asked = breaks and config.limits_breaks(workload)
    return Job(
        workload.name, workload.target, workload.options, workload.gpus, workload.policies, breaks, asked
    )


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
        kind, place, _ = split_target(workload.target)
        path = checkout.folder / place
        if (kind != "module" or _is_saved(workload.target)) and not path.resolve().is_relative_to(
            checkout.top
        ):
            base.refused[workload.name] = (
                f"{place} is not in the repository, which has no other version of it"
            )
            continue
        if _is_saved(workload.target):
            if path.is_file():
                profile = _saved(workload, checkout.folder)
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
            base.baseline = _noted(base.baseline, f"{workload.name} (base)", row.notes)
    return base


def _from_files(place: Path, workloads: Sequence[GatedWorkload], first: bool) -> _Base:
    if not place.exists() and not first:
        raise UsageError(f"no such baseline: {place}; --update writes it")
    if place.is_file() and not place.name.endswith(SUFFIXES):
        raise UsageError(f"{place} is neither a folder nor a saved profile ({' or '.join(SUFFIXES)})")
    base = _Base(Baseline("file", place.as_posix()))
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


def _left_out(config: GateConfig, checkout: Checkout | None, place: Path | None) -> list[str]:
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
    other = [
        name for name in theirs if name in ours and (ours[name], config.scope) != (theirs[name], before.scope)
    ]
    rows = (("gated no longer", gone), ("gated otherwise than in the base's configuration", other))
    return [f"{what}: {', '.join(names)}" for what, names in rows if names]


def _noted(baseline: Baseline, who: str, notes: Sequence[str]) -> Baseline:
    return replace(baseline, notes=(*baseline.notes, *[f"{who}: {note}" for note in notes]))


def _other_step(before: Profile | None, after: Profile) -> list[str]:
    """What is other about the step that is compared, which no limit sees: smaller inputs cost less."""
    names = ("mode", "inputs", "optimizer", "autocast")
    rows = (
        [(name, getattr(before.workload, name), getattr(after.workload, name)) for name in names]
        if before
        else []
    )
    return [f"{name} {_short(new)} where the base has {_short(old)}" for name, old, new in rows if old != new]


def _short(value: Any) -> str:
    """``bfloat16[101, 64]`` of inputs, anything else as it is, of readable length."""
    if isinstance(value, tuple):
        value = ", ".join(f"{row.get('dtype', '')}{row.get('shape', '')}" for row in value)
    return value if len(str(value)) <= 80 else f"{str(value)[:79]}…"


def _captured(profile: Profile | None) -> bool:
    capture = capture_of(profile.capture) if profile is not None else None
    return capture is not None and not capture.failure


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
        before = base.profiles.get(workload.name)
        baseline = _noted(baseline, workload.name, _other_step(before, head.profile))
        limits = {
            (s.gpu.name, s.policy): config.limits(
                workload,
                s.gpu.name,
                s.policy,
                compared=base.asked,
                breaks=_captured(head.profile) or (_captured(before) and not _is_saved(workload.target)),
            )
            for s in head.profile.simulations
        }
        written = {key for rows in limits.values() for key in rows}
        if {name for name, _ in written} <= APART:
            problems.append(Problem(workload.name, workload.target, "fail", NO_CHECK))
        subject = Subject(
            workload.name, workload.target, head.profile, before, base.asked,
            base.refused.get(workload.name, "") or other_version(head.profile),
            base.missing.get(workload.name, ""), allow_new and workload.name in base.missing,
        )  # fmt: skip
        found, wrong = check_workload(subject, limits)
        checks += found
        problems += wrong
    profiles = {name: row.profile for name, row in heads.items() if row.profile is not None}
    failed = frozenset(name for name, row in heads.items() if row.profile is None)
    return GateRun(GateResult(tuple(checks), tuple(problems), baseline), profiles, base.profiles, failed)
