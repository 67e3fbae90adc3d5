"""What is timed against what, and what the contest's process and its workers tell each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memwall.bench.ab.machine import Usage


@dataclass(frozen=True)
class Side:
    """One version of a model: a checkout and the target in it, as it is written on the command line from there.

    ``options``: ``mode``, ``batch``, ``seq``, ``input_specs``, ``dtype``, ``autocast``, ``optimizer``, as for
    :func:`memwall.profile`.
    """

    folder: Path
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setup:
    """The first message: build the model. ``other`` is the checkout from which nothing may be imported."""

    kind: str
    side: Side
    other: Path
    seed: int


@dataclass(frozen=True)
class WarmUp:
    """Run steps until two spans of them agree."""


@dataclass(frozen=True)
class Time:
    """Time a block of so many steps."""

    steps: int


@dataclass(frozen=True)
class Ready:
    """The model is built, or warm: then ``step_s`` are the seconds of a step."""

    environment: Mapping[str, Any] = field(default_factory=dict)
    step_s: float = 0.0


@dataclass(frozen=True)
class Block:
    """A block of steps: the median of their seconds, and what the machine did meanwhile."""

    step_s: float
    usage: Usage


@dataclass(frozen=True)
class Failed:
    """Why there is no answer; ``missing``: a device or a package is not there."""

    message: str
    missing: bool = False
