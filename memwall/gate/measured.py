"""The measured half of a gate: base and head timed against each other on this machine, workload by workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memwall.bench.ab import ABResult, Side, run_ab
from memwall.core.errors import UsageError
from memwall.gate.baseline import Checkout
from memwall.gate.config import GateConfig, GatedWorkload
from memwall.gate.limits import Limit, parse_limit
from memwall.gate.result import Check, Problem

#: the slow-down that is allowed where nothing is written
DEFAULT = "+5%"
QUANTITY = "measured_s"

#: options of ``memwall.profile`` that say what is run; the others say how it is modeled
_RUN = ("mode", "batch", "seq", "input_specs", "dtype", "autocast", "optimizer")


@dataclass(frozen=True)
class Measured:
    """What was timed: checks, what could not be, and every contest with its samples, by workload."""

    checks: tuple[Check, ...] = ()
    problems: tuple[Problem, ...] = ()
    contests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def allowed_of(config: GateConfig, workload: GatedWorkload) -> Limit:
    """The slow-down that a workload may show.

    Raises:
        UsageError: it is no percentage above 0.
    """
    written = {**config.scope.limits, **workload.scope.limits, **config.over.limits}.get((QUANTITY, ""), ())
    limit = written[0] if written else parse_limit(QUANTITY, DEFAULT)
    if not limit.percent or limit.sign < 0 or not limit.amount or len(written) > 1:
        raise UsageError(f"{QUANTITY} is {limit.text!r}; want one slow-down in percent above 0, such as '{DEFAULT}'")
    return limit


def measure(
    config: GateConfig, workloads: Sequence[GatedWorkload], checkout: Checkout, device: str,
    say: Callable[[str], None],
) -> Measured:  # fmt: skip
    """Time the head against the base for each workload.

    Args:
        device: ``cpu`` or ``cuda``.

    Raises:
        UsageError: a limit is no slow-down in percent.
        MissingError: the device is not there.
    """
    limits = {workload.name: allowed_of(config, workload) for workload in workloads}
    checks: list[Check] = []
    problems: list[Problem] = []
    contests: dict[str, Mapping[str, Any]] = {}
    for workload in workloads:
        options = {key: workload.options[key] for key in _RUN if key in workload.options}
        base, head = (Side(folder, workload.target, options) for folder in (checkout.folder, config.root))
        say(f"measuring {workload.name}, base and head in turns")
        try:
            contest = run_ab(base, head, allowed=limits[workload.name].amount, device=device, progress=say)
        except UsageError as error:
            problems.append(Problem(workload.name, workload.target, "fail", f"cannot be measured: {error}"))
            continue
        contests[workload.name] = contest.to_dict()
        checks.append(_check(workload, limits[workload.name], contest))
    return Measured(tuple(checks), tuple(problems), contests)


def _check(workload: GatedWorkload, limit: Limit, contest: ABResult) -> Check:
    allowed = limit.allowed(contest.base_s) if contest.base_s is not None else None
    return Check(
        workload.name, workload.target, contest.device, "eager", "", QUANTITY, limit.text, contest.head_s,
        contest.base_s, allowed, contest.verdict, contest.sentence.removeprefix(contest.verdict).lstrip(" :"),
        measured=True,
    )  # fmt: skip
