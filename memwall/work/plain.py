"""A launch of which only its cost is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from memwall.graph import Pipe
from memwall.work.base import Constants, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain(Work):
    """FLOPs by pipe and bytes, nothing about their shape."""

    FAMILY: ClassVar[str] = "plain"
    flops: Mapping[Pipe, int] = field(default_factory=dict, hash=False)
    #: FLOPs of the kernel beyond those, on the same pipes
    extra_flops: int = 0

    @property
    def pipe_flops(self) -> Mapping[Pipe, int]:
        return self.flops

    @property
    def variant(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class PlainConstants(Constants):
    """None: the board's achievable fractions stand for everything."""

    FAMILY: ClassVar[str] = "plain"
