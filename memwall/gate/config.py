"""What to gate: workloads and their limits, and limits as people write them: ``3.2 ms``, ``70 GB``, ``120``, ``+2%``,
``+1``, ``-0.5 pp``; what each allows.

Without a sign a limit is a budget: the most allowed, or the least where more is better. With a sign it is relative to
the baseline: a percentage of it, or an amount to add in the unit of the quantity. ``pp`` are percentage points. A
workload's limits override those of the whole gate; within either, those of a policy or a GPU override the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memwall.analysis.quantities import ALIASES, LIMITS, Quantity
from memwall.core.errors import UsageError, suggest, unknown
from memwall.frontend.workload.target import is_saved
from memwall.hardware.lookup import Gpu, load_gpu

_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}

#: unit of a quantity -> suffix -> what one of it is in the base unit; the empty suffix is the base unit itself
UNITS: dict[str, dict[str, float]] = {
    "s": {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9},
    "B": {"": 1.0, **{f"{p}B": scale for p, scale in (_PREFIXES | _BINARY).items()}},
    "FLOP": {"": 1.0, **{f"{p}FLOP{s}": scale for p, scale in _PREFIXES.items() for s in ("", "s")}},
    "count": {"": 1.0, "k": 1e3},
    "fraction": {"": 1.0, "%": 1e-2, "pp": 1e-2},
}  # fmt: skip

#: unit of a quantity -> limits of it, for messages
_EXAMPLES = {"s": "'3.2 ms' or '+2%'", "B": "'70 GB' or '+2%'", "FLOP": "'1.2 TFLOP' or '+0%'", "count": "120 or '+0'",
             "fraction": "'45 %' or '-1 pp'"}  # fmt: skip
_NUMBER = re.compile(r"([+-]?)\s*+((?:\d++(?:_\d++)*+(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?)\s*+(\S*+)")

#: how far a sum of floats may exceed a limit by rounding alone; for exact counts, bytes and FLOPs, only the rounding of
#: the limit itself
ROUNDING, EXACT = 1e-9, 1e-15


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of one quantity. ``sign`` is 0 for a budget; else the limit is ``baseline * (1 + sign * amount)`` with
    ``percent``, else ``baseline + sign * amount``. ``amount`` is in base units, or a fraction with ``percent``."""

    quantity: Quantity
    text: str
    amount: float
    sign: int = 0
    percent: bool = False

    @property
    def relative(self) -> bool:
        """Whether it needs a baseline."""
        return self.sign != 0

    def allowed(self, baseline: float | None) -> float:
        """The worst value that passes, in base units. Raises ``ValueError``: the limit is relative and there is no
        baseline."""
        if not self.relative:
            return self.amount
        if baseline is None:
            raise ValueError(f"{self.text} is relative to a baseline")
        return baseline * (1 + self.sign * self.amount) if self.percent else baseline + self.sign * self.amount

    def holds(self, value: float, baseline: float | None = None) -> bool:
        """Whether a value is within the limit."""
        allowed = self.allowed(baseline)
        exact = self.quantity.unit not in ("s", "fraction")
        slack = max(1e-3, EXACT * abs(allowed)) if exact else ROUNDING * max(abs(value), abs(allowed))
        return value <= allowed + slack if self.quantity.lower else value >= allowed - slack


def find_quantity(name: str, where: str = "") -> Quantity:
    """The quantity of a name or another spelling of it; ``where`` it was found, for the message. Raises ``UsageError``:
    no such quantity; the message names the nearest."""
    known = LIMITS.get(ALIASES.get(name, name))
    if known is None:
        raise unknown("quantity", name, LIMITS, 0.5, where)
    return known


def parse_limit(quantity: Quantity | str, text: object, where: str = "") -> Limit:
    """A limit from text or a plain number in base units. Raises ``UsageError``: not a number, no unit of this quantity
    (names the nearest), or a budget that every value or none can keep."""
    if isinstance(quantity, str):
        quantity = find_quantity(quantity, where)
    place, example = f"{where}: {quantity.name}" if where else quantity.name, _EXAMPLES[quantity.unit]
    if isinstance(text, bool) or not isinstance(text, (int, float, str)):
        raise UsageError(f"{place}: a limit is a number or text such as {example}, not {str(text)[:40]!r}")
    written = str(text).strip()
    found = _NUMBER.fullmatch(written)
    if found is None:
        raise UsageError(f"{place}: cannot read the limit {written[:40]!r}; want one such as {example}")
    sign = {"+": 1, "-": -1, "": 0}[found[1]]
    if sign and not isinstance(text, str):
        raise UsageError(f"{place}: {text} is below zero; write a change of the baseline as text, such as '+2%'")
    number = float(found[2].replace("_", ""))
    if not math.isfinite(number):
        raise UsageError(f"{place}: {written[:40]!r} is no finite number")
    unit = found[3]
    if sign and unit == "%":
        return Limit(quantity, written, number / 100, sign, percent=True)
    units = UNITS[quantity.unit]
    if unit not in units:
        named = [name for name in units if name]
        hint = suggest(unit, [*named, "%"], cutoff=0.5) if named else "it is a plain number"
        if unit == "%":
            hint = f"a percentage is of the baseline and has a sign, as in '+2%'; a budget is in {example}"
        raise UsageError(f"{place}: no unit {unit[:20]!r} for {quantity.title}; {hint}")
    amount = number * units[unit]
    if quantity.unit == "fraction" and not sign and amount > 1:
        raise UsageError(f"{place}: {written} is above 100 %; want a budget such as '45 %' or 0.45")
    return Limit(quantity, written, amount, sign)


# -- what is gated -----------------------------------------------------------------------------------------------------

#: the limits if none are written and there is a baseline: what a code change may not do by accident
DEFAULTS = {"kernels": "+0", "dram_bytes": "+0.5%", "flops": "+0.5%", "time_s": "+0.5%", "peak_memory": "+0.5%",
            "graph_breaks": "+0", "nchw_bytes": "+0.5%"}  # fmt: skip
#: the policies if none is named: what runs today, and what a compiler could fuse, so that a lost fusion shows
DEFAULT_POLICIES = ("eager", "memwall")
#: limits of every workload unless it says otherwise
ALWAYS = {"coverage": "100 %"}
#: quantities whose limits do not replace :data:`DEFAULTS`: they do not limit the cost of the step
APART = frozenset(("coverage", "measured_s"))

#: (quantity, module pattern) -> limits
Limits = dict[tuple[str, str], tuple[Limit, ...]]


@dataclass(frozen=True)
class Scope:
    """The limits of one table, those of single GPUs and policies in it apart."""

    limits: Limits = field(default_factory=dict)
    policies: Mapping[str, Limits] = field(default_factory=dict)
    gpus: Mapping[str, Limits] = field(default_factory=dict)

    def of(self, gpu: str, policy: str) -> Limits:
        """What holds on a GPU under a policy."""
        return {**self.limits, **self.policies.get(policy, {}), **self.gpus.get(gpu, {})}

    @property
    def names(self) -> frozenset[str]:
        """The quantities that are limited somewhere."""
        rows = (self.limits, *self.policies.values(), *self.gpus.values())
        return frozenset(name for limits in rows for name, _ in limits)


@dataclass(frozen=True)
class GatedWorkload:
    """One workload: its target (relative to the root), how it is profiled, on what, and its own limits."""

    name: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    policies: tuple[str, ...] = ()
    scope: Scope = Scope()


@dataclass(frozen=True)
class GateConfig:
    """The whole gate. ``root`` is the folder that targets and baselines are relative to; ``gpus`` and ``policies`` are
    as written, :meth:`workload` knows what runs without; ``over``: the limits of the command line, which go first."""

    root: Path
    source: str = ""
    workloads: tuple[GatedWorkload, ...] = ()
    scope: Scope = Scope()
    options: Mapping[str, Any] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    policies: tuple[str, ...] = ()
    baseline: str | None = None
    baseline_ref: str | None = None
    history: str | None = None
    over: Scope = Scope()

    def workload(
        self, name: str, target: str, options: Mapping[str, Any] | None = None, gpus: tuple[Gpu, ...] = (),
        policies: tuple[str, ...] = (), scope: Scope = Scope(),
    ) -> GatedWorkload:  # fmt: skip
        """A workload with what the gate says where it says nothing; a saved profile has GPUs of its own."""
        saved = is_saved(target)
        return GatedWorkload(
            name, target, {**self.options, **(options or {})},
            gpus or self.gpus or (() if saved else (load_gpu("h100-sxm"),)),
            policies or self.policies or (() if saved else DEFAULT_POLICIES), scope,
        )  # fmt: skip

    def limits(
        self, workload: GatedWorkload, gpu: str, policy: str, *, compared: bool, unknown: Container[str] = ()
    ) -> Limits:
        """The limits of a workload on a GPU under a policy. ``compared``: there is a baseline, and :data:`DEFAULTS`
        hold where nothing is limited (aside from :data:`APART`), but those of quantities that are ``unknown``."""
        written = {**self.scope.of(gpu, policy), **workload.scope.of(gpu, policy), **self.over.limits}
        if compared and self.limited(workload) <= APART:
            written |= limits_of({k: v for k, v in DEFAULTS.items() if k not in unknown}, "")
        return {**limits_of(ALWAYS, ""), **written}

    def limited(self, workload: GatedWorkload) -> frozenset[str]:
        """The quantities of a workload that are limited by more than :data:`DEFAULTS`."""
        return self.scope.names | workload.scope.names | self.over.names


def parse_scope(texts: Sequence[str]) -> Scope:
    """The limits of ``('dram_bytes=+2%', 'time_s=3.2 ms')``. Raises ``UsageError``: not NAME=LIMIT, or no such quantity
    or unit; names the nearest."""
    found: Limits = {}
    for text in texts:
        name, equals, limit = text.partition("=")
        if not equals:
            raise UsageError(f"--limit: cannot read {text[:60]!r}; want NAME=LIMIT, as in 'dram_bytes=+2%'")
        parsed = parse_limit(name.strip(), limit, "--limit")
        key = parsed.quantity.name, ""
        found[key] = (*found.get(key, ()), parsed)
    return Scope(found)


def limits_of(table: Mapping[str, object], where: str, module: str = "") -> Limits:
    """The limits of a table of them; ``where`` it stands, for the message. Raises ``UsageError``: no such quantity or
    unit, none that modules have, an empty list, or one quantity twice."""
    found: Limits = {}
    for name, text in table.items():
        quantity = find_quantity(name, where)
        if module and not quantity.adds:
            summed = ", ".join(row.name for row in LIMITS.values() if row.adds)
            raise UsageError(f"{where}: {name} has no value per module; {summed} have")
        texts = text if isinstance(text, list) else [text]
        if not texts:
            raise UsageError(f"{where}: {name} is an empty list, which limits nothing; leave it out")
        if (quantity.name, module) in found:
            raise UsageError(f"{where}: {name} is {quantity.name}, which is limited already; want one list of limits")
        found[quantity.name, module] = tuple(parse_limit(quantity, item, where) for item in texts)
    return found
