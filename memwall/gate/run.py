"""The wiring of a gate: workloads → profiles of head and base → checks → one result."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from memwall.analysis.communication import sent_bytes
from memwall.analysis.limits import Limit, parse_limit
from memwall.analysis.quantities import SERVED
from memwall.analysis.whole_profile import nchw_bytes
from memwall.core.errors import UsageError
from memwall.core.progress import tell
from memwall.core.units import few
from memwall.core.version import __version__
from memwall.frontend.targets.target import is_saved
from memwall.gate.baseline import (
    Bases,
    from_commit,
    from_files,
    left_out,
    not_comparable,
    noted,
    other_version,
    saved_profile,
    shown,
)
from memwall.gate.checkout import Checkout, checked_out
from memwall.gate.config import APART, GateConfig, GatedWorkload
from memwall.gate.diff import other_step
from memwall.gate.evaluate import Subject, check_workload
from memwall.gate.first import others_below
from memwall.gate.question import GateOptions
from memwall.gate.reading import base_of, configuration, selected
from memwall.gate.recorded import RunEvidence
from memwall.gate.result import Baseline, Check, GateResult, Problem
from memwall.gate.tracing import TraceJob, TraceOutcome, Tracers, Tree, differ, profile_both, repeated
from memwall.pipeline import Names, asked_gpus
from memwall.record.profile import Profile
from memwall.wings import part

NO_WORKLOAD = ("no workload to gate: name a TARGET, or list workloads in [tool.memwall.gate] of pyproject.toml"
               " or in memwall.toml, which memwall gate --init writes")  # fmt: skip
NO_CHECK = "nothing is limited: add limits such as dram_bytes = '+2%', --limit 'time_s=3.2 ms', or a baseline"

_MEASURED = "measured_s"
#: the slow-down that is allowed where nothing is written
_SLOWER = "+5%"


@dataclass(frozen=True)
class GateRun:
    """A result with the profiles that it is about, by workload."""

    result: GateResult
    heads: Mapping[str, Profile]
    bases: Mapping[str, Profile]
    #: workloads whose head could not be profiled
    failed: frozenset[str] = frozenset()
    evidence: RunEvidence = field(default_factory=RunEvidence)


def gate(
    targets: str | Path | Iterable[str | Path] = (),
    *,
    limits: Iterable[str] = (),
    config: str | Path | None = None,
    baseline: str | Path | None = None,
    baseline_ref: str | None = None,
    gpu: Names | None = None,
) -> GateResult:
    """Compare workloads with limits and a baseline, as ``memwall gate`` does.

    Args:
        targets: files, saved profiles, or names of workloads of the configuration; none: all that it has.
        limits: such as ``"time_s=3.2 ms"`` or ``"dram_bytes=+2%"``.
        config: the TOML file with the limits; None: ``memwall.toml`` or ``pyproject.toml`` of this folder or one above.
        baseline: a saved profile, or a folder with one for each workload.
        baseline_ref: a commit, branch or tag in its place.
        gpu: names, specs or paths to specs; one or a list. None: the configuration's, else ``h100-sxm``.

    Returns:
        The checks; ``verdict`` is ``pass``, ``fail`` or ``inconclusive``.

    Raises:
        UsageError: as :func:`run_gate`, or a target, a limit or the configuration is wrong.
    """
    asked = GateOptions(baseline=None if baseline is None else str(baseline), baseline_ref=baseline_ref)
    whole = configuration(None if config is None else str(config), tuple(limits))
    named = [str(each) for each in ((targets,) if isinstance(targets, (str, Path)) else targets)]
    gpus = asked_gpus(gpu) if gpu else []
    return run_gate(whole, selected(whole, named, gpus, ()), base_of(whole, asked), asked).result


def run_gate(
    config: GateConfig,
    workloads: Sequence[GatedWorkload],
    base: Path | str | None = None,
    asked: GateOptions | None = None,
    *,
    tracers: Tracers | None = None,
) -> GateRun:
    """Judge some workloads by a configuration, against saved profiles, a git ref or nothing.

    Args:
        base: the path of a saved profile, or of a folder with one per workload; a commit, branch or tag, where the head
            parted from it; or None.
        asked: with ``update`` there need not be a baseline yet, and every workload may be new; ``device`` is ``cpu`` or
            ``cuda``. None asks for nothing more.
        tracers: servers that other gates use too.

    Raises:
        UsageError: a baseline is missing, damaged or of a newer schema, or the ref cannot be checked out.
    """
    asked, ref = asked or GateOptions(), base if isinstance(base, str) else None
    if asked.measured and ref is None:
        raise UsageError("--measured times base and head against each other: give --baseline-ref")
    if not workloads:
        return GateRun(GateResult((), (Problem("", "", "fail", _no_workload(config.root)),)), {}, {})
    evidence = _evidence(config, asked)
    heads = {w.name: TraceOutcome(w.name, saved_profile(w, config.root)) for w in workloads if is_saved(w.target)}
    traced = [w for w in workloads if w.name not in heads]
    jobs = [_job(config, w, compared=base is not None) for w in traced]
    timed = GateResult(())
    with contextlib.ExitStack() as stack:
        checkout = stack.enter_context(checked_out(config.root, ref)) if ref is not None else None
        theirs: dict[str, TraceOutcome] = {}
        if jobs:
            tracers = tracers or stack.enter_context(Tracers(captures=any(job.breaks for job in jobs)))
            tree = Tree(checkout.folder, checkout.head_top) if checkout else None
            prepare = checkout.lend if checkout else lambda rows: None
            ours, theirs = profile_both(config.root, tree, jobs, tracers, prepare)
            heads |= ours
        if checkout is not None:
            bases = from_commit(ref or "", checkout, workloads, theirs, heads)
        else:
            bases = from_files(base, config.root, workloads, asked.update) if isinstance(base, Path) else Bases()
            heads |= _checked_twice(config, jobs, heads, bases, tracers)
        if {w.name for w in config.workloads} <= {w.name for w in workloads}:
            notes = left_out(config, checkout, base if isinstance(base, Path) else None)
            bases.baseline = replace(bases.baseline, notes=(*bases.baseline.notes, *notes))
        if checkout is not None and asked.measured:
            there = [w for w in traced if w.name in bases.profiles and heads[w.name].profile]
            timed = _measured(config, there, checkout, asked.device)
    run = _judged(config, workloads, heads, bases, asked.allow_new or asked.update, evidence)
    checks, problems = run.result.checks + timed.checks, run.result.problems + timed.problems
    return replace(run, result=replace(run.result, checks=checks, problems=problems, contests=timed.contests))


def _evidence(config: GateConfig, asked: GateOptions) -> RunEvidence:
    """The recorded runs that are named; the command line overrides the configuration. Raises ``UsageError``: there is
    none."""
    place = config.root / config.runs if config.runs is not None and asked.runs is None else asked.runs
    return RunEvidence() if place is None else RunEvidence.of(Path(place), config.root)


def _no_workload(folder: Path) -> str:
    """What to do where there is nothing to gate."""
    others = others_below(folder)
    if not others:
        return NO_WORKLOAD
    return f"no workload to gate here, but in {few(others, 8)}: run memwall gate --config {others[0]}, and so for each"


def _checked_twice(
    config: GateConfig,
    jobs: Sequence[TraceJob],
    heads: Mapping[str, TraceOutcome],
    base: Bases,
    tracers: Tracers | None,
) -> dict[str, TraceOutcome]:
    """The heads that differ from their saved base, with whether they equal themselves."""
    rows = [
        (heads, Tree(config.root), job)
        for job in jobs
        if job.name not in base.refused and differ(heads[job.name].profile, base.profiles.get(job.name))
    ]
    return {row.name: row for row in repeated(rows, tracers)} if rows and tracers else {}


def _job(config: GateConfig, workload: GatedWorkload, *, compared: bool) -> TraceJob:
    places = itertools.product(workload.gpus, workload.policies)
    limited = (config.limits(workload, gpu.name, policy, compared=compared) for gpu, policy in places)
    breaks = any(("graph_breaks", "") in limits for limits in limited)
    asked = breaks and "graph_breaks" in config.limited(workload)
    return TraceJob(workload.name, workload.target, workload.tracing, workload.gpus, workload.policies, breaks, asked)


def judge_again(config: GateConfig, workloads: Sequence[GatedWorkload], run: GateRun, place: Path) -> GateRun:
    """The heads of a run judged with themselves as the baseline, which was written to ``place``."""
    heads = {name: TraceOutcome(name, profile) for name, profile in run.heads.items()}
    base = Bases(Baseline("file", shown(place, config.root), memwall_version=__version__), dict(run.heads))
    return _judged(config, workloads, heads, base, allow_new=False, evidence=run.evidence)


# -- judging -----------------------------------------------------------------------------------------------------------


def _judged(
    config: GateConfig,
    workloads: Sequence[GatedWorkload],
    heads: Mapping[str, TraceOutcome],
    base: Bases,
    allow_new: bool,
    evidence: RunEvidence,
) -> GateRun:
    checks: list[Check] = []
    problems: list[Problem] = []
    baseline, compared = noted(base.baseline, "runs", evidence.refused), base.baseline.kind != "none"
    for workload in workloads:
        head = heads[workload.name]
        if head.profile is None:
            why = f"cannot be profiled: {head.error}"
            problems.append(Problem(workload.name, workload.target, "inconclusive", why))
            continue
        before = base.profiles.get(workload.name)
        baseline = noted(baseline, workload.name, [*head.notes, *other_step(before, head.profile)])
        unknown = _unknown(head.profile, before, saved=is_saved(workload.target), served=workload.load is not None)
        limits = {
            (s.gpu.name, s.policy): config.limits(workload, s.gpu.name, s.policy, compared=compared, unknown=unknown)
            for s in head.profile.simulations
        }
        if {name for rows in limits.values() for name, _ in rows} <= APART:
            problems.append(Problem(workload.name, workload.target, "fail", NO_CHECK))
        subject = Subject(
            workload.name,
            workload.target,
            head.profile,
            before,
            compared,
            base.refused.get(workload.name, "") or other_version(head.profile) or not_comparable(head),
            base.missing.get(workload.name, ""),
            allow_new and workload.name in base.missing,
            workload.load,
        )
        found, wrong = check_workload(subject, limits)
        of_head = replace(evidence, commit="") if is_saved(workload.target) else evidence
        found, said = of_head.judged(found, head.profile)
        baseline = noted(baseline, workload.name, said)
        checks += found
        problems += wrong
    profiles = {name: row.profile for name, row in heads.items() if row.profile is not None}
    result = GateResult(tuple(checks), tuple(problems), baseline)
    return GateRun(result, profiles, base.profiles, frozenset(heads.keys() - profiles.keys()), evidence)


def _unknown(head: Profile, base: Profile | None, *, saved: bool, served: bool) -> set[str]:
    """Quantities with a default limit that neither side has: graph breaks without a capture (which a ``saved`` head
    cannot make), bytes in NCHW, a server's quantities, what is sent to other GPUs."""
    captured = _captured(head) or (_captured(base) and not saved)
    converts = any(nchw_bytes(side) for side in (head, base) if side is not None)
    sends = any(sent_bytes(side, schedule) for side in (head, base) if side for schedule in side.simulations[:1])
    known = {"graph_breaks": captured, "nchw_bytes": converts} | dict.fromkeys(SERVED, served)
    known |= dict.fromkeys(("communication_bytes", "exposed_communication_s"), sends)
    return {name for name in known if not known[name]}


def _captured(profile: Profile | None) -> bool:
    capture = profile.traced.dynamo if profile is not None else None
    return capture is not None and not capture.failure


# -- timing ------------------------------------------------------------------------------------------------------------


def _slow_down(config: GateConfig, workload: GatedWorkload) -> Limit:
    """The slow-down that a workload may show."""
    written = {**config.scope.limits, **workload.scope.limits, **config.over.limits}.get((_MEASURED, ""), ())
    limit = written[0] if written else parse_limit(_MEASURED, _SLOWER)
    if not limit.percent or limit.sign < 0 or not limit.amount or len(written) > 1:
        raise UsageError(f"{_MEASURED} is {limit.text!r}; want one slow-down in percent above 0, such as '{_SLOWER}'")
    return limit


def _measured(config: GateConfig, workloads: Sequence[GatedWorkload], checkout: Checkout, device: str) -> GateResult:
    """The head timed against the base, workload by workload. Raises ``UsageError``: a limit is no slow-down in percent;
    ``MissingError``: the device is not there."""
    limits = {workload.name: _slow_down(config, workload) for workload in workloads}
    checks: list[Check] = []
    problems: list[Problem] = []
    contests: dict[str, Mapping[str, Any]] = {}
    for workload in workloads:
        options = {key: value for key, value in workload.tracing.items() if key in part("bench.RUN_OPTIONS")}
        base, head = (part("bench.Side")(folder, workload.target, options) for folder in (checkout.folder, config.root))
        limit = limits[workload.name]
        tell(f"measuring {workload.name}, base and head in turns")
        try:
            found = part("bench.run_ab")(base, head, part("bench.Rules")(limit.amount, device))
        except UsageError as error:
            problems.append(Problem(workload.name, workload.target, "fail", f"cannot be measured: {error}"))
            continue
        contests[workload.name] = found.to_dict()
        checks.append(
            Check(
                workload.name,
                workload.target,
                found.device,
                "eager",
                "",
                _MEASURED,
                limit.text,
                found.head_s,
                found.base_s,
                limit.allowed(found.base_s) if found.base_s is not None else None,
                found.verdict,
                found.sentence.removeprefix(found.verdict).lstrip(" :"),
                measured=True,
            )
        )
    return GateResult(tuple(checks), tuple(problems), contests=contests)
