"""What the measuring process and its workers tell each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memwall.core.graph import Graph
from memwall.fusion import Group
from memwall.hardware.lookup import Gpu
from memwall.record.measurement import Sensors


@dataclass(frozen=True)
class Setup:
    """The first message, and one between two graphs: what a worker measures.

    ``target`` is a file or module whose import registers custom ops.
    """

    kind: str
    graph: Graph
    gpu: Gpu
    target: str = ""
    seed: int = 0


@dataclass(frozen=True)
class Run:
    """Time a kernel; it is built, checked and tuned first where it is new here. ``samples`` 0 only compiles it, for
    the caches on disk. ``graphed`` False: launch it plainly, a graph of it cannot be captured."""

    number: int
    executor: str
    group: Group
    samples: int
    budget_s: float
    check: bool = True
    graphed: bool = True


@dataclass(frozen=True)
class Step:
    """Time a whole step: the groups one after another."""

    executor: str
    groups: tuple[Group, ...]
    samples: int
    budget_s: float


@dataclass(frozen=True)
class Whole:
    """Time the model itself, as its user would run it. ``options`` is a :class:`.modules.ModuleOptions`."""

    options: Any
    compiled: bool
    samples: int
    budget_s: float


@dataclass(frozen=True)
class Rest:
    """Give back all memory: others have their turn."""


@dataclass(frozen=True)
class Copy:
    """Time a copy of ``nbytes`` (0: as large as is sensible here) and an empty kernel."""

    nbytes: int
    samples: int


@dataclass(frozen=True)
class Ran:
    """How a kernel or a step went; ``fatal``: the worker cannot go on; ``graphed`` False: no graph of it could be
    captured."""

    status: str
    reason: str = ""
    samples_s: tuple[float, ...] = ()
    error: float | None = None
    schedule: str = ""
    config: Mapping[str, int] = field(default_factory=dict)
    sensors: Sensors = field(default_factory=Sensors)
    fatal: bool = False
    graphed: bool = True


@dataclass(frozen=True)
class Copied:
    """``bytes`` that a copy moved, read and written together, and timings of it and of an empty kernel."""

    bytes: int
    samples_s: tuple[float, ...]
    floor_s: tuple[float, ...]
    sensors: Sensors = field(default_factory=Sensors)


@dataclass(frozen=True)
class Started:
    """The answer to :class:`Setup`: the device and the versions, or why there is none (``missing``: exit 3)."""

    environment: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    missing: bool = False
