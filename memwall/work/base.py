"""What a launch is, as far as its time depends on it, and the constants that a GPU's file may state about it.

A :class:`Work` is geometry: it knows no GPU. A family's :class:`Constants` are numbers of a GPU: each has a meaning, a
range and a default, and the GPU's file says from which rows it was fitted (``[utilization.<family>.<variant>]``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from memwall.graph import Pipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One launch. The bytes are those that this kernel asks for, its second passes included."""

    FAMILY: ClassVar[str] = ""
    read_bytes: int = 0
    write_bytes: int = 0

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.write_bytes

    @property
    def pipe_flops(self) -> Mapping[Pipe, int]:
        """FLOPs by the pipe that executes them; empty where bytes are all that counts."""
        return {}

    @property
    def variant(self) -> str:
        """Which of its family's tables of constants it goes by: a dtype or a kind."""
        raise NotImplementedError


def constant(default: float, low: float, high: float, meaning: str) -> Any:
    """A field of :class:`Constants`: the value without data, the range that a fit may use, and what it is."""
    return field(default=default, metadata={"low": low, "high": high, "meaning": meaning})


@dataclass(frozen=True, slots=True)
class Constants:
    """The numbers of one family on one GPU; the defaults are what holds for GPUs without data."""

    FAMILY: ClassVar[str] = ""
    #: tables that a file may state; a missing one is taken from the first of the others that is there
    VARIANTS: ClassVar[tuple[str, ...]] = ()
    #: measured over modeled time, 10th and 90th percentile, with another board's constants, and with the defaults or
    #: the former where that is wider (``tools/foreign_intervals.py``); here the widest of all families
    FOREIGN: ClassVar[tuple[float, float]] = (0.61, 2.34)
    UNKNOWN: ClassVar[tuple[float, float]] = (0.61, 2.34)
    interval_low: float = constant(0.61, 0.01, 1.0, "measured over modeled time, 10th percentile")
    interval_high: float = constant(2.34, 1.0, 100.0, "measured over modeled time, 90th percentile")


def names_of(kind: type[Constants]) -> tuple[str, ...]:
    """The names of a family's constants."""
    return tuple(item.name for item in fields(kind))
