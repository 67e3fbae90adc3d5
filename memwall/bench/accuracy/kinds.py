"""What a measured time is, what a kind of table is, how its cells are read, and the table that memwall writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

from memwall.analysis.validation import COLUMNS, TimedRow

Record = Mapping[str, Any]

#: the smallest and the largest plausible time in seconds, and rate
LEAST, _MOST = 1e-12, 1e12


class Skip(Exception):
    """A row that cannot be scored; says why. Rows are counted by this reason."""


class Timed(ABC):
    """A measured time that is not modeled yet."""

    __slots__ = ()
    #: whether samples are simulated, which takes so long that tables are thinned
    IS_SIMULATED: ClassVar[bool] = False

    @property
    @abstractmethod
    def in_fit_half(self) -> bool:
        """Whether constants may be fitted to it."""

    @abstractmethod
    def left_out(self) -> Self:
        """The sample as if nothing had been measured on its GPU."""

    def kernels(self) -> Any:
        """The launches that constants can be fitted to (:class:`memwall.bench.accuracy.samples.Sample`); None where
        something else has a part in the time."""
        return None

    def row(self) -> TimedRow:
        """The sample, modeled and measured; a class whose samples are modeled together has :meth:`model` instead."""
        raise NotImplementedError

    @classmethod
    def model(cls, samples: Sequence[Self], skipped: Counter[str]) -> list[TimedRow]:
        """The rows of some samples; why others have none is counted in ``skipped``."""
        return [sample.row() for sample in samples]


@dataclass(frozen=True)
class TableKind(ABC):
    """A kind of table, identified by its columns."""

    name: str
    #: the columns, separated by spaces
    told_by: str

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(self.told_by.split())

    @abstractmethod
    def read(self, record: Record, source: Path) -> Iterator[Timed | TimedRow]:
        """The samples of a row of the file ``source``, or rows that are already modeled. Raises ValueError if a cell is
        wrong, and :class:`Skip` if the row holds nothing to score."""


class OwnKind(TableKind):
    """The table that ``memwall measure -o rows.csv`` writes, whose rows are already modeled."""

    def read(self, record: Record, source: Path) -> Iterator[TimedRow]:
        if record["status"] != "ok":
            raise Skip(f"status {str(record['status'])[:40]!r}")
        yield TimedRow(
            f"memwall {record['executor']}",
            record["gpu"],
            record["class"],
            record["dtype"],
            seconds(record, "modeled_s", 1.0, least=0.0),
            seconds(record, "measured_s", 1.0),
            seconds(record, "bound_s", 1.0, least=0.0),
        )


OWN = OwnKind("measured kernels as memwall writes them", "gpu executor class dtype modeled_s measured_s bound_s status")
assert OWN.columns <= set(COLUMNS)

#: the package that reads tables of other projects; it lies in the repository and is no part of the wheel
LAB = "memwall_lab"


def kinds() -> tuple[TableKind, ...]:
    """Kinds of tables that can be read here; the first whose columns are all present is used."""
    return (OWN, *(import_module(f"{LAB}.tables").TABLES if find_spec(LAB) else ()))


def seconds(record: Record, name: str, unit_s: float = 1e-3, *, least: float = LEAST) -> float:
    """A time in seconds; the cell is in ``unit_s``."""
    return number(record, name, least, _MOST, "a time", unit_s)


def number(record: Record, name: str, least: float, most: float, what: str, unit: float = 1.0) -> float:
    """A number in a range. Raises ValueError: the cell is not ``what`` it should be."""
    try:
        found = float(record[name]) * unit
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {str(record[name])[:40]!r}, not a number") from None
    if not least <= found <= most:
        raise ValueError(f"{name} is {str(record[name])[:40]!r}, not {what}")
    return found
