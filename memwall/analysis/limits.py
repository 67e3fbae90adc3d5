"""Limits as people write them: ``3.2 ms``, ``70 GB``, ``120``, ``+2%``, ``+1``, ``-0.5 pp``; what each allows.

Without a sign a limit is a budget: the most allowed, or the least where more is better. With a sign it is relative to
a baseline: a percentage of it, or an amount to add in the unit of the quantity. ``pp`` are percentage points.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from memwall.analysis.quantities import ALIASES, LIMITS, Quantity
from memwall.core.errors import UsageError, suggest

_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}

#: unit of a quantity -> suffix -> what one of it is in the base unit; the empty suffix is the base unit itself
UNITS: dict[str, dict[str, float]] = {
    "s": {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9},
    "B": {"": 1.0, **{f"{p}B": scale for p, scale in (_PREFIXES | _BINARY).items()}},
    "FLOP": {"": 1.0, **{f"{p}FLOP{s}": scale for p, scale in _PREFIXES.items() for s in ("", "s")}},
    "count": {"": 1.0, "k": 1e3},
    "fraction": {"": 1.0, "%": 1e-2, "pp": 1e-2},
    "per s": {"": 1.0, "/s": 1.0, "k/s": 1e3},
    "USD": {"": 1.0, "USD": 1.0, "$": 1.0},
    "J": {"": 1.0, "J": 1.0, "mJ": 1e-3},
    "W": {"": 1.0, "W": 1.0, "kW": 1e3},
    "g": {"": 1.0, "g": 1.0, "kg": 1e3},
}  # fmt: skip

#: unit of a quantity -> limits of it, for messages
_EXAMPLES = {"s": "'3.2 ms' or '+2%'", "B": "'70 GB' or '+2%'", "FLOP": "'1.2 TFLOP' or '+0%'", "count": "120 or '+0'",
             "fraction": "'45 %' or '-1 pp'", "per s": "'20/s'", "USD": "'1.5 USD'", "J": "'0.2 J'",
             "W": "'500 W'", "g": "'90 g'"}  # fmt: skip
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
        listed = [row.name for row in LIMITS.values() if row.per != "server"]
        raise UsageError(f"{where}: " * bool(where) + f"no quantity {name!r}; {suggest(name, LIMITS, 1, 0.5, listed)}")
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
