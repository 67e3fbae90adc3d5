"""Sentences and findings that every kind shares: verdict, check, cause, what it was compared with. Plain, one line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from memwall.analysis.numbers import NO_CHANGE, apart, change_text, signed, unit_of
from memwall.core.units import few
from memwall.gate.diff import ELSEWHERE, Cause
from memwall.gate.result import Check, GateResult, Problem
from memwall.report.document import clean

NAME = "memwall gate"
#: Causes under a check before the rest is summed.
TOP = 5
#: A name longer than this loses its middle, prose its end.
LONGEST_NAME, LONGEST_TEXT = 120, 1000

#: checks that a cause moves in one place, before the rest is counted
_NAMED = 8
_NUMBER = re.compile(r"\d[\d.,]*")


class CheckFigures(NamedTuple):
    """The numbers of one check as text, with enough digits to differ; empty if it has no numbers."""

    value: str
    baseline: str
    change: str


def name(text: str, longest: int = LONGEST_NAME) -> str:
    """A name as one printable line of at most ``longest`` characters; its middle goes first."""
    text = _printable(text)
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"


def prose(text: str) -> str:
    """A message as one printable line."""
    text = _printable(text)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in clean(text)).strip()


def figures(check: Check) -> CheckFigures:
    unit = unit_of(check.quantity)
    value, baseline, _ = apart((check.value, check.baseline, check.allowed), unit)
    allowed_change = check.allowed / check.baseline - 1 if check.baseline and check.allowed is not None else None
    return CheckFigures(value, baseline, change_text(check.change, allowed_change, unit))


def subject(check: Check) -> str:
    """``dram_bytes[encoder.*]``: what was limited."""
    return name(check.quantity) + (f"[{name(check.module)}]" if check.module else "")


def title(check: Check) -> str:
    """``dram_bytes[encoder.*] of bert``: what was limited, of what."""
    return subject(check) + (f" of {name(check.workload)}" if name(check.workload) else "")


def sentence(check: Check) -> str:
    """``dram_bytes of bert on h100-sxm, eager: 1.22 GB, limit +0.5% of 1.20 GB: +1.7 %``."""
    gpu = f" on {name(check.gpu)}" if check.gpu else ""
    policy = f", {name(check.policy)}" if check.policy else ""
    where = f"{title(check)}{gpu}{policy}"
    if check.value is None:
        return f"{where}: no figure, limit {name(check.limit)}"
    shown = figures(check)
    head = f"{where}: {shown.value}, limit {name(check.limit)}"
    change = "no change" if shown.change == NO_CHANGE else shown.change
    change = f": {change}" if change else ""
    if check.baseline is not None and check.limit.lstrip()[:1] in ("+", "-", "−"):  # a change of the baseline: +2%
        return f"{head} of {shown.baseline}{change}"
    return f"{head}; baseline {shown.baseline}{change}" if shown.baseline else head


def explained(check: Check) -> str:
    """The sentence of a check and, where it did not pass, its message."""
    said = prose(check.message) if check.verdict != "pass" else ""
    return f"{sentence(check)}; {said}" if said else sentence(check)


def group_sentence(group: Sequence[Check]) -> str:
    """The sentence of checks that share causes or a message: of the first, or what keeps all from a verdict."""
    first = group[0]
    if len(group) == 1 or first.causes:
        return explained(first)
    of = f" of {name(first.workload)}" if name(first.workload) else ""
    return f"{len(group):,} checks{of} are {first.verdict}: {prose(first.message)}"


def cause_line(cause: Cause) -> str:
    """``grew x12: mm in encoder.*.attention (forward), model.py:42: +20.45 MB, +12.10 us; fp32, was bf16``."""
    return f"{cause_label(cause)}: {cause_text(cause)}"


def cause_label(cause: Cause) -> str:
    """``grew x12``: what happened, in how many places."""
    return name(cause.kind) + (f" x{cause.count:,}" if cause.count > 1 and cause.op else "")


def cause_text(cause: Cause, most: Cause | None = None) -> str:
    """``mm in encoder.*.attention (forward), model.py:42: +20.45 MB, +12.10 us; fp32, was bf16``; up to what it adds at
    ``most``."""
    place = f" in {name(cause.module)}" if cause.module else ""
    phase = f" ({name(cause.phase)})" if cause.phase else ""
    source = f", {name(cause.source)}" if cause.source else ""
    what = f"{name(cause.op)}{place}{phase}{source}"
    added = deltas(cause, most)
    said = "; ".join(part for part in (added, prose(cause.detail)) if part)
    if not cause.op:  # what has no op of its own, such as waiting
        return said
    return f"{what}: {said}" if added else f"{what}; {said}" if said else what


#: what a cause adds or takes away -> its unit
_MOVED = {"kernels": "kernel", "flops": "FLOP", "dram_bytes": "B", "time_s": "s"}


def deltas(cause: Cause, most: Cause | None = None) -> str:
    """``+3 kernels, +20.45 MB, +12.10 us``: what a cause added or took away; what it left alone is not named. Up to
    what it adds at ``most``: ``+12.10 us to +40.02 us``."""
    parts = []
    for field, unit in _MOVED.items():
        low, high = getattr(cause, field), getattr(most or cause, field)
        texts = dict.fromkeys(_added(amount, unit) for amount in (low, high))
        if low or high:
            parts.append(" to ".join(texts))
    return ", ".join(parts)


def _added(amount: float, unit: str) -> str:
    if unit == "kernel":
        return f"{amount:+,} kernel{'' if abs(amount) == 1 else 's'}"
    return signed(amount, unit)


class Moved(NamedTuple):
    """A cause with all checks that it moves, and what it adds in each; that differs from GPU to GPU and from policy to
    policy."""

    causes: Sequence[Cause]
    checks: Sequence[Check]

    @property
    def ends(self) -> tuple[Cause, Cause]:
        """With the least and the most that it adds."""
        return _ends(self.causes)


def moved_by(checks: Iterable[Check]) -> list[Moved]:
    """Each cause of some checks once."""
    found: dict[tuple[str, ...], list[tuple[Cause, Check]]] = {}
    for check in checks:
        for cause in check.causes:
            key = (cause.kind, cause.op, cause.module, cause.phase, cause.source, cause.detail)
            found.setdefault(key, []).append((cause, check))
    return [Moved(*zip(*rows, strict=True)) for rows in found.values()]


def _ends(causes: Sequence[Cause]) -> tuple[Cause, Cause]:
    """The first cause with the least and with the most that any of them adds."""
    values = {field: [getattr(cause, field) for cause in causes] for field in _MOVED}
    least, most = (
        replace(causes[0], **{field: end(rows, key=abs) for field, rows in values.items()}) for end in (min, max)
    )
    return least, most


def moved_lines(moved: Sequence[Moved], top: int) -> list[tuple[str, str]]:
    """The first ``top`` causes as label and text, with the checks that they move, and what the others add up to."""
    rows = [(cause_label(row.causes[0]), f"{cause_text(*row.ends)}; moves {places(row.checks)}") for row in moved[:top]]
    rest = moved[top:]
    return [*rows, *([("", moved_rest(rest))] if rest else [])]


def moved_rest(moved: Sequence[Moved]) -> str:
    """What causes add up to that are not listed: on each GPU under each policy, the least and the most of them. No sum
    where some are only counted, since what one check counts another may name."""
    named = [row for row in moved if row.causes[0].kind != ELSEWHERE]
    if len(named) < len(moved):
        return f"and {len(named):,} more, and further changes elsewhere" if named else "and further changes elsewhere"
    at: dict[tuple[str, str], dict[int, Cause]] = {}
    for i, row in enumerate(moved):
        for cause, check in zip(row.causes, row.checks, strict=True):
            at.setdefault((check.gpu, check.policy), {})[i] = cause
    return _more(len(moved), *_ends([_total(list(causes.values())) for causes in at.values()]))


def places(checks: Sequence[Check]) -> str:
    """``kernels, time_s on a100 and h100, eager and memwall``: checks by the GPUs and policies that they share."""
    subjects: dict[tuple[str, str], dict[str, None]] = {}
    for check in checks:
        subjects.setdefault((name(check.gpu), name(check.policy)), {})[subject(check)] = None
    alike: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for place, moved in subjects.items():
        alike.setdefault(tuple(sorted(moved)), []).append(place)
    parts = []
    for moved_subjects, places in alike.items():
        gpus, policies = (list(dict.fromkeys(filter(None, names))) for names in zip(*places, strict=True))
        if len(places) == max(len(gpus), 1) * max(len(policies), 1):
            where = ", ".join(" and ".join(names) for names in (gpus, policies) if names)
        else:
            where = " and ".join(" ".join(filter(None, place)) for place in places)
        parts.append(few(moved_subjects, _NAMED) + (f" on {where}" if where else ""))
    return "; ".join(parts)


def cause_lines(causes: Sequence[Cause], top: int) -> list[str]:
    """The first ``top`` causes, a line each, and what the others add up to."""
    rest = causes[top:]
    return [*map(cause_line, causes[:top]), *([_more(len(rest), _total(rest))] if rest else [])]


def _more(count: int, total: Cause, most: Cause | None = None) -> str:
    """``and 7 more causes: +1.20 MB, +3.40 us``; up to what they add at ``most``."""
    added = deltas(total, most)
    return f"and {count:,} more cause{'' if count == 1 else 's'}" + (f": {added}" if added else "")


def _total(causes: Sequence[Cause]) -> Cause:
    kernels, flops, dram_bytes = (
        sum(getattr(cause, field) for cause in causes) for field in ("kernels", "flops", "dram_bytes")
    )
    return Cause("", "", "", "", "", 1, kernels, flops, dram_bytes, sum(cause.time_s for cause in causes), "")


def problem_sentence(problem: Problem) -> str:
    """What could not be judged, and of which workload."""
    of = name(problem.workload or problem.target)
    message = prose(problem.message) or "could not be judged"
    return f"{of}: {message}" if of else message


def counts(result: GateResult) -> str:
    """``42 checks: 3 fail, 1 inconclusive, 38 pass; 2 problems``."""
    total = len(result.checks)
    if not total:
        text = "nothing was checked"
    elif result.count("pass") == total:
        text = "1 check passes" if total == 1 else f"all {total:,} checks pass"
    else:
        verdicts = ", ".join(f"{result.count(v):,} {v}" for v in (*RAISED, "pass") if result.count(v))
        text = f"{total:,} check{'' if total == 1 else 's'}: {verdicts}"
    problems = len(result.problems)
    return f"{text}; {problems:,} problem{'' if problems == 1 else 's'}" if problems else text


def compared_with(result: GateResult) -> str:
    """``compared with origin/main at 1a2b3c4d5e6f; memwall 0.6.0``, and the baseline's version where it is another."""
    base, ours = result.baseline, f"memwall {name(result.memwall_version)}"
    if base.kind == "none":
        return f"no baseline; {ours}"
    at = f" at {name(base.commit)[:12]}" if base.commit else ""
    theirs = base.memwall_version
    of = f", the baseline by memwall {name(theirs)}" if theirs not in ("", result.memwall_version) else ""
    return f"compared with {name(base.name)}{at}; {ours}{of}"


#: kind of a baseline -> the option that names it
_AGAINST = {"ref": "--baseline-ref", "file": "--baseline"}


def command(result: GateResult, given: Sequence[str] = (), folder: str = "") -> str:
    """``memwall gate models/bert.py --baseline-ref 1a2b3c4d5e6f``: what shows again what did not pass, of many
    workloads all; empty where everything passes. ``given``: the words of other options; ``folder``: the place in the
    repository that it is run in."""
    failed, base = raised(result.checks), result.baseline
    targets = [*dict.fromkeys(check.target for check in failed if check.target)]
    place = base.commit[:12] or base.name
    words = [*(targets if len(targets) <= _NAMED else ()), *([_AGAINST[base.kind], place] if place else ())]
    words += ["--measured"] if any(check.measured for check in failed) else []
    cd = f"cd {shlex.quote(name(folder))} && " if folder else ""
    return f"{cd}memwall gate {shlex.join(map(name, (*words, *given)))}".rstrip() if failed else ""


def notes(result: GateResult) -> list[str]:
    return [prose(note) for note in result.baseline.notes]


def changed_first(result: GateResult) -> tuple[str, str, str]:
    """``bert, first of 3 causes``, ``appeared x12``, ``_to_copy in ...``; where no cause is known, the first check."""
    (checks, *_) = of_workloads(raised(result.checks))
    of = f"{name(checks[0].workload)}, " if name(checks[0].workload) else ""
    if not (moved := moved_by(checks)):
        return f"{of}first check", subject(checks[0]), explained(checks[0])
    count = f"first of {len(moved):,} causes" if len(moved) > 1 else "the only cause"
    return f"{of}{count}", cause_label(moved[0].causes[0]), cause_text(*moved[0].ends)


def by_workload(result: GateResult) -> dict[str, list[Check]]:
    """The checks of each workload, in the order of the configuration."""
    groups: dict[str, list[Check]] = {}
    for check in result.checks:
        groups.setdefault(check.workload, []).append(check)
    return groups


# -- what a forge is to show: problems, and the checks that did not pass -----------------------------------------------

#: Verdicts to show, the gravest first.
RAISED = ("fail", "inconclusive")


class Finding(NamedTuple):
    """A problem, or a check that did not pass; ``rule`` is its quantity, ``gate`` for a problem."""

    verdict: str
    rule: str
    workload: str
    title: str
    #: its sentence, on one line
    message: str
    target: str
    causes: tuple[Cause, ...]
    #: what it is from run to run, whatever its value and its line
    identity: tuple[str, ...]
    check: Check | None = None


def finding_of(found: Check | Problem) -> Finding:
    if isinstance(found, Problem):
        same = ("problem", found.workload, found.target, _NUMBER.sub("#", found.message))
        return Finding(
            found.verdict, "gate", found.workload, name(found.workload), problem_sentence(found), found.target, (), same
        )
    kind = "measured" if found.measured else "modeled"
    identity = (kind, found.workload, found.gpu, found.policy, found.module, found.quantity, found.limit)
    return Finding(
        found.verdict,
        found.quantity,
        found.workload,
        title(found),
        explained(found),
        found.target,
        found.causes,
        identity,
        found,
    )


def findings_of(result: GateResult) -> list[Finding]:
    """By verdict: problems, then checks, the worst first. That nothing was to be checked is a failed problem itself."""
    problems = list(result.problems)
    if not result.checks and not problems:
        problems.insert(0, Problem("", "", "fail", f"{counts(result)}; {compared_with(result)}"))
    found = [*map(finding_of, problems)]
    for group in by_causes(raised(result.checks)):
        if len(group) > 1 and not group[0].causes:
            first = finding_of(group[0])
            same = ("inconclusive", first.workload, first.target, _NUMBER.sub("#", group[0].message))
            found.append(first._replace(title=name(first.workload), message=group_sentence(group), identity=same))
        else:
            found += map(finding_of, group)
    return [finding for verdict in RAISED for finding in found if finding.verdict == verdict]


def raised(checks: Iterable[Check]) -> list[Check]:
    """The checks that failed, then the inconclusive ones, of each the worst first, else as configured."""
    found = [check for check in checks if check.verdict in RAISED]
    return sorted(found, key=lambda check: (RAISED.index(check.verdict), -_excess(check)))


def _excess(check: Check) -> float:
    """How far past its limit a check is, as a fraction of the limit; infinite where there is no figure or limit."""
    if check.value is None or not check.allowed:
        return float("inf")
    return abs(check.value - check.allowed) / abs(check.allowed)


def of_workloads(checks: Iterable[Check]) -> list[list[Check]]:
    """Checks of one workload whose causes are known, together; others as of :func:`by_causes`."""
    groups: dict[object, list[Check]] = {}
    for number, group in enumerate(by_causes(checks)):
        groups.setdefault(group[0].workload if group[0].causes else number, []).extend(group)
    return list(groups.values())


def by_causes(checks: Iterable[Check]) -> list[list[Check]]:
    """Checks of one workload, GPU and policy that the same causes moved, together; and checks of one workload that have
    no verdict for the same reason."""
    groups: dict[tuple[object, ...], list[Check]] = {}
    for check in checks:
        key: tuple[object, ...] = (check.workload, check.gpu, check.policy, check.causes)
        if not check.causes:
            unjudged = check.verdict == "inconclusive" and check.message
            key = (check.workload, check.message) if unjudged else (len(groups),)
        groups.setdefault(key, []).append(check)
    return list(groups.values())
