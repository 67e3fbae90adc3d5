"""Recorded runs as evidence: what the latest run of a workload took, next to its modeled time.

The rule. A run decides a budget of ``time_s`` over the model if it is of the very commit that is gated, no file
differed from that commit in either, nothing slowed down or shared its device, and the whole interval of its median
keeps the budget or breaks it. All else is shown and decides nothing: an older run, one in doubt, an interval around the
budget, a limit relative to the baseline (which is modeled).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memwall.analysis.limits import parse_limit
from memwall.core.git import head_of
from memwall.core.units import duration
from memwall.gate.result import Check
from memwall.record.measurement import EXECUTORS, Timing
from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule
from memwall.wings import part

_QUANTITY = "time_s"
_KEEPS = {True: "keeps", False: "breaks"}


@dataclass(frozen=True)
class RunEvidence:
    """The runs of a folder, oldest first; ``commit`` is the gated tree's, empty where files differ from it or
    no commit is known; ``refused`` has a line for each file that is no run."""

    runs: Sequence[Any] = ()
    commit: str = ""
    refused: tuple[str, ...] = ()

    @classmethod
    def of(cls, place: Path, root: Path) -> RunEvidence:
        """What a folder of runs, or one file, has for the tree at ``root``. Raises ``UsageError``: it has no run."""
        runs, refused = part("bench.read_runs")(place)
        head = head_of(root)
        return cls(runs, head[0] if head and not head[1] else "", tuple(refused))

    def judged(self, checks: Sequence[Check], profile: Profile) -> tuple[list[Check], list[str]]:
        """The checks of a profile with what was measured, which decides some of them; and a line for each run used."""
        own = [run for run in self.runs if run.fits and run.what == part("bench.workload_key")(profile.workload)]
        found = [run for run in own if any(run.measurement.gpu == s.gpu.name for s in profile.simulations)]
        made: list[Check] = []
        notes: dict[str, None] = {}
        for check in checks:
            schedule = _schedule_of(check, profile)
            run, step = self._latest(found, schedule) if schedule else (None, None)
            if run is not None and step is not None:
                check, note = self._decided(check, run, step)
                notes[note] = None
            made.append(check)
        return made, list(notes)

    def _latest(self, runs: Sequence[Any], schedule: Schedule) -> tuple[Any, Timing | None]:
        """The latest run that timed the step of a schedule: of the gated commit where there is one."""
        steps = [
            (run, run.step(schedule.policy, schedule.launch))
            for run in runs
            if run.measurement.gpu == schedule.gpu.name
        ]
        timed = [(run, step) for run, step in steps if step is not None]
        order = tuple(EXECUTORS)
        return max(
            timed,
            key=lambda row: (self._is_own(row[0]), row[0].time, -order.index(row[0].measurement.executor)),
            default=(None, None),
        )

    def _is_own(self, run: Any) -> bool:
        return bool(self.commit) and run.commit == self.commit and not run.changes

    def _decided(self, check: Check, run: Any, step: Timing) -> tuple[Check, str]:
        """A check with what was measured, and what is to be said of it."""
        of = f"{check.policy} on {check.gpu}"
        shown = f"{duration(step.median_s)} ({duration(step.low_s)} to {duration(step.high_s)})"
        said = f"{of} was measured at {shown} on {run.place}, modeled at {duration(check.value or 0.0)}"
        check = replace(check, recorded_s=step.median_s)
        if why := self._undecided(check, run, step):
            return check, f"{said}; the model decides {_QUANTITY} {check.limit}: {why}"
        holds = step.high_s <= (check.allowed or 0.0)
        verdict = "pass" if holds else "fail"
        both = f"the run {_KEEPS[holds]} {_QUANTITY} {check.limit} and decides"
        if verdict == check.verdict:
            return check, f"{said}; {both}, as the model does"
        other = f"{both}, where the model {_KEEPS[not holds]} it"
        return replace(check, verdict=verdict, message=f"{said}; {other}", causes=()), f"{said}; {other}"

    def _undecided(self, check: Check, run: Any, step: Timing) -> str:
        """Why a run does not decide a check; empty where it does."""
        limit = parse_limit(check.quantity, check.limit)
        if limit.relative:
            return "the limit is relative to a modeled baseline"
        if not self.commit:
            return "the gated files are of no commit"
        if not self._is_own(run):
            return "the run is of another commit, or of files that differed from it"
        if run.doubts:
            return f"the run is in doubt ({run.doubts[0]})"
        if check.allowed is None or step.low_s <= check.allowed < step.high_s:
            return "the interval of the run has the limit within"
        return ""


def _schedule_of(check: Check, profile: Profile) -> Schedule | None:
    """The simulation that a check of the whole step's time is of; None of any other check."""
    if check.quantity != _QUANTITY or check.module:
        return None
    own = (s for s in profile.simulations if (s.gpu.name, s.policy) == (check.gpu, check.policy))
    return next(own, None)
