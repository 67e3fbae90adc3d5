"""The gate's result for a terminal: the verdict, then workload by workload what fails and why, what passes last."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import memwall.report.columns as col
from memwall.analysis.modules import module_tree
from memwall.core.errors import UsageError
from memwall.core.units import duration, listed
from memwall.gate import wording as say
from memwall.gate.comment import gate_comment, gate_summary
from memwall.gate.diff import other_step
from memwall.gate.forges import CONFIG, gate_code_quality, gate_commands, gate_junit, gate_sarif
from memwall.gate.result import Check, GateResult
from memwall.gate.wording import NAME, TOP, name
from memwall.record.kernels import schedule_label, wall_shares
from memwall.record.profile import Profile
from memwall.report.document import (
    Block,
    Document,
    Facts,
    Glance,
    Picture,
    PictureChoice,
    Section,
    Sentence,
    ShellCommand,
    Table,
)
from memwall.report.figures.modules import difference_chart
from memwall.report.figures.scene import Chart, Scene, stacked
from memwall.report.kinds import Report
from memwall.report.pages.glance import glance, held_bytes, limit_fact, memory_fact
from memwall.simulate.schedule import Schedule

#: A workload with at most so many checks that pass shows them, one a line; with more they are counted.
SHOWN = 12
#: Workloads that have a picture, the ones that fail first.
_PICTURES = 6

_WORD = {"pass": "pass", "fail": "FAIL", "inconclusive": "inconclusive"}
#: What a runner of GitHub takes for a command: ``::`` at the start of a line, ``##[`` anywhere.
_COMMAND = re.compile(r"(?m)(^(?:\s|\x1b\[[\d;]*m)*:)(?=:)|(##)(?=\[)")


@dataclass(frozen=True, slots=True)
class GateReport(Report):
    """A gate's result for people, for forges and for test dashboards; the same result always gives the same text.

    ``top`` causes are shown under each check. ``folder`` is where the gate ran, as seen from the root of the repository
    (empty: at its root), and ``config`` the file with the limits, seen from that folder: the place of a finding that
    has no other.
    """

    noun = "a gate"
    kinds = ("text", "md", "html", "svg", "png", "pdf", "summary", "github", "junit", "gitlab", "sarif", "json")
    own = MappingProxyType(
        {
            "md": lambda r: gate_comment(r.result, r.top, r.again),
            "summary": lambda r: gate_summary(r.result, r.top, r.again),
            "github": lambda r: gate_commands(r.result, r.top, r.folder),
            "junit": lambda r: gate_junit(r.result, r.top),
            "gitlab": lambda r: gate_code_quality(r.result, r.folder, r.config),
            "sarif": lambda r: gate_sarif(r.result, r.top, r.folder, r.config),
        }
    )

    result: GateResult
    top: int = TOP
    folder: str = ""
    config: str = CONFIG
    #: words of the options that the gate was given besides its baseline, and the folder in which it was
    given: tuple[str, ...] = ()
    place: str = ""
    #: the profiles that were judged and the baseline's, by workload, for pictures
    heads: Mapping[str, Profile] = field(default_factory=dict)
    bases: Mapping[str, Profile] = field(default_factory=dict)

    def document(self, kind: str) -> Document:
        """The verdict, for HTML what changed first and the command that shows it again, then workload by workload what
        fails and why, what passes last."""
        result = self.result
        told, sections = f"{say.counts(result)}; {say.compared_with(result)}", list[Section]()
        again = self.again if kind == "html" else ""
        answer: list[Block] = [Sentence(told), *(Sentence(note, strong=bool(again)) for note in say.notes(result))]
        answer += [self._glance(), ShellCommand("Again", again), self._accepting(again)] if again else []
        if result.problems:
            rows = [
                Sentence(f"{_WORD[row.verdict]}  {say.problem_sentence(row)}", strong=row.verdict == "fail")
                for row in result.problems
            ]
            sections.append(Section("problems", rows))
        for workload, checks in say.by_workload(result).items():
            sections.append(_workload_section(name(workload) or "(unnamed)", checks, self.top))
        drawn: list[Block] = [PictureChoice(shown)] if kind == "html" and (shown := self._pictures()) else []
        return Document(f"{NAME}: {result.verdict.upper()}", sections, [*answer, *drawn])

    @property
    def again(self) -> str:
        """The command that shows it again; empty where everything passes."""
        return say.command(self.result, self.given, self.place)

    def _accepting(self, again: str) -> Block:
        """How to take the figures as they are: a baseline is written again, limits of a commit are raised."""
        if self.result.baseline.kind == "file":
            return ShellCommand("To accept it", f"{again} --update")
        return Sentence(f"To accept it, raise the limit in {self.config}.")

    def _glance(self) -> Glance:
        """What changed first, what to do about it, and of the step that holds most what limits it and its memory."""
        (checks, *_) = say.of_workloads(say.raised(self.result.checks))
        head, base = (sides.get(checks[0].workload) for sides in (self.heads, self.bases))
        place = next((cause.source for check in checks for cause in check.causes if cause.source), "")
        facts = [
            say.changed_first(self.result),
            ("do first", "mend it, or accept it", place and f"look at {name(place)}"),
        ]
        if head and (others := other_step(base, head)):
            alike = listed(each.partition(" ")[0] for each in others)
            facts[1] = "do first", f"give both the same {alike}", name("; ".join(others))
        if head and head.simulations:
            most = max(head.simulations, key=held_bytes)
            limit = limit_fact((), wall_shares(most), most.totals.time_s)
            facts += glance(limit, ("", ""), memory_fact(held_bytes(most), most.gpu.dram_bytes)).facts[::2]
        return Glance(facts)

    def figure(self) -> Chart:
        """Differential flame graphs of what moved, or a line that nothing did. Raises UsageError: no baseline."""
        if not self.bases:
            raise UsageError("nothing to draw: a flame graph of the difference needs --baseline or --baseline-ref")
        return stacked([picture.chart for _, picture in self._pictures()] or [_unmoved])

    def _pictures(self) -> list[tuple[str, Picture]]:
        """A differential flame graph of the time of each workload whose step changed, what fails first."""
        failed = {check.workload for check in say.raised(self.result.checks)}
        found = []
        for workload in sorted(self.heads.keys() & self.bases.keys(), key=lambda each: (each not in failed, each)):
            head, base = self.heads[workload], self.bases[workload]
            pairs = [(new, old) for new in head.simulations for old in base.simulations if _alike(new, old)]
            moved = [pair for pair in pairs if pair[0].totals.time_s != pair[1].totals.time_s]
            for new, old in moved[:1]:
                label = f"{name(workload)}, {schedule_label(head, new)}"
                trees = module_tree(base, old), module_tree(head, new)
                chart = difference_chart(label, *trees, "time")
                found.append((label, Picture(chart, f"{label}: differential flame graph")))
        return found[:_PICTURES]

    def text(self, *, width: int | None, color: bool) -> str:
        """No name in it can act as a command of a CI's log."""
        return _COMMAND.sub(lambda m: f"{m[0]} ", Report.text(self, width=width, color=color))

    def record(self) -> str:
        """``memwall.gate/1``."""
        return self.result.to_json()


def _unmoved(scene: Scene) -> float:
    scene.text(0, 13, "No step takes another time than its baseline.", 13.0)
    return 20.0


def _alike(new: Schedule, old: Schedule) -> bool:
    return (new.gpu.name, new.policy) == (old.gpu.name, old.policy)


def _workload_section(heading: str, checks: Sequence[Check], top: int) -> Section:
    bad = say.raised(checks)
    good = [check for check in checks if check.verdict == "pass"]
    shown = [*bad, *(good if len(good) <= SHOWN else [])]
    blocks: list[Block] = [_checks_table(shown)] if shown else []
    if len(good) > SHOWN:
        blocks.append(Sentence(f"{len(good):,} checks pass"))
    for group in say.by_causes(bad):
        if not group[0].causes and group[0].message:
            blocks.append(Sentence(say.group_sentence(group), strong=True))
        elif group[0].causes:
            blocks += [Sentence(say.explained(check), strong=True) for check in group if check.message]
    if moved := say.moved_by(bad):
        blocks.append(Facts(say.moved_lines(moved, top)))
    return Section(heading, blocks)


def _checks_table(checks: Sequence[Check]) -> Table:
    table = [
        (
            _WORD[check.verdict],
            say.subject(check),
            name(check.gpu),
            name(check.policy),
            shown.baseline,
            shown.value,
            shown.change,
            name(check.limit, 24),
            duration(check.recorded_s) if check.recorded_s else "",
        )
        for check in checks
        for shown in [say.figures(check)]
    ]
    specs = (
        ": 0, check: 1 name, GPU: 2 name, policy: 3 name, baseline: 4 right, value: 5 right, change: 6 right,"
        "limit: 7 right, measured: 8 right"
    )
    return col.table("", [column for column in col.of(table, specs) if any(column[1])])
