"""Conditions on evaluated points: ``fits``, ``time_s<200ms``, ``limited_by==compute``, ``batch>=8``.

A condition names a column: a quantity of :mod:`memwall.analysis.quantities` in any of its spellings, or an option. Its
value has the quantity's units, as limits do.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memwall.analysis.limits import UNITS, parse_limit
from memwall.analysis.quantities import ALIASES, QUANTITIES, SERVED_ALIASES
from memwall.core.errors import UsageError, unknown
from memwall.sweeping.kinds import NAMED, named

if TYPE_CHECKING:
    from pandas import DataFrame, Series

_CONDITION = re.compile(r"\s*(not\s+|!)?([\w.]+)\s*(?:(<=|>=|==|!=|=|<|>)\s*(.+?))?\s*")
_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "=": operator.eq,
    "!=": operator.ne,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Condition:
    """A column, how it is compared, and with what; ``text`` as it was written."""

    text: str
    column: str
    compare: str
    value: Any

    def holds(self, frame: DataFrame) -> Series:
        """For each point whether it is satisfied; a point without a value is not."""
        values = frame[self.column]
        found: Series = _COMPARE[self.compare](values, self.value)
        return (found & values.notna()).astype(bool)


def column_of(name: str, columns: Sequence[str]) -> str:
    """The column of a name or of another spelling of it. Raises ``UsageError``, with the nearest, if none has it."""
    for known in (name, ALIASES.get(name, ""), SERVED_ALIASES.get(name, "")):
        if known in columns:
            return known
    raise unknown("quantity or option", name, columns, 0.5)


def parse_condition(text: str, columns: Sequence[str]) -> Condition:
    """A condition from text. Raises ``UsageError``: it cannot be read, or there is no such column or unit."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise UsageError(f"cannot read the condition {text[:60]!r}; want one such as fits, 'time_s<200ms' or 'tp==8'")
    negated, name, compare, value = found.groups()
    column = column_of(name, columns)
    row = QUANTITIES.get(column)
    if compare is None:
        if row is None or row.unit != "flag":
            raise UsageError(f"{text.strip()}: compare {column} with a value, as in '{column}<1'")
        return Condition(text.strip(), column, "==", not negated)
    if negated:
        raise UsageError(f"{text.strip()}: 'not' goes with a quantity that is true or false, such as 'not fits'")
    if row is not None and row.unit == "flag" and (compare not in ("==", "=", "!=") or type(_plain(value)) is not bool):
        raise UsageError(f"{text.strip()}: {column} is true or false; say {column}, or not {column}")
    if row is not None and row.unit in UNITS:
        return Condition(text.strip(), column, compare, parse_limit(row, value).amount)
    return Condition(text.strip(), column, compare, named(column, value) if column in NAMED else _plain(value))


def _plain(text: str) -> Any:
    """A number or a truth value where it reads as one, else the text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return float(text)
    except ValueError:
        return text.strip("'\"")


def mentioned(where: Sequence[str], best: str | None, pareto: Sequence[str]) -> list[str]:
    """The names of columns that a question mentions."""
    found = (_CONDITION.fullmatch(text) for text in where)
    return [*(match[2] for match in found if match is not None), *filter(None, [best]), *pareto]
