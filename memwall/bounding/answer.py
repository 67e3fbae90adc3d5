"""What is said of a kernel on a GPU, and saved: ``memwall.bound/1``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memwall.bounding.own_kernels import OwnKernel
from memwall.core.errors import UsageError
from memwall.core.files import read_json
from memwall.core.structure import BadRecord, check_schema, read, write
from memwall.core.version import __version__
from memwall.core.views import ShownResult

_FAMILY, _VERSION = "memwall.bound", 1
SCHEMA = f"{_FAMILY}/{_VERSION}"


@dataclass(frozen=True, slots=True)
class BoundWall:
    """What one resource alone needs: ``amount`` FLOPs or bytes at ``per_s``, its peak."""

    name: str
    unit: str
    amount: float
    per_s: float
    time_s: float


@dataclass(frozen=True, slots=True)
class OtherBound:
    """The bound as it is where one thing is otherwise, ``name`` says what: others count so."""

    name: str
    bound_s: float


@dataclass(frozen=True, slots=True)
class BoundRun:
    """The kernels of one policy, one after another without waits: ``time_s`` on the GPU with its 80 % range, and
    ``called_s``, a call from Python that finds the GPU idle; of a kernel inside a step, which nobody calls, the same
    as ``time_s``."""

    policy: str
    kernels: int
    dram_bytes: int
    time_s: float
    low_s: float
    high_s: float
    limited_by: str
    called_s: float
    #: the backend of attention, where another than torch's choice is faster
    attention: str = ""


@dataclass(frozen=True, slots=True)
class JudgedTime:
    """A measured time: the share of the bound that it reaches, whether it can be so, and what there is to say of it.
    ``slower_than``: the share of measured kernels of this kind that are faster in relation to their prediction;
    ``raised_by``: what a slow one may lack."""

    time_s: float
    of_bound: float
    possible: bool
    why: str
    slower_than: float | None = None
    raised_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelBound:
    """A kernel on a GPU. ``time_s`` with its 80 % range and ``limited_by`` are of the fastest of ``runs``;
    ``bound_by`` is the wall of the bound, ``levers`` what would make the fastest run faster."""

    gpu: str
    flops: int
    dram_bytes: int
    bound_s: float
    time_s: float
    low_s: float
    high_s: float
    limited_by: str
    bound_by: str
    walls: tuple[BoundWall, ...]
    runs: tuple[BoundRun, ...]
    others: tuple[OtherBound, ...] = ()
    why: str = ""
    levers: tuple[str, ...] = ()
    measured: JudgedTime | None = None
    notes: tuple[str, ...] = ()
    #: Triton kernels that it launches itself
    own: tuple[OwnKernel, ...] = ()

    def run(self, policy: str) -> BoundRun | None:
        """The run of a policy; None where it has none."""
        return next((run for run in self.runs if run.policy == policy), None)

    @property
    def fastest(self) -> BoundRun:
        """The run that takes least on the GPU."""
        return min(self.runs, key=lambda run: run.time_s)


@dataclass(frozen=True, kw_only=True, repr=False)
class KernelBounds(ShownResult):
    """``memwall.bound/1``: what was asked, and an answer for each GPU."""

    schema: str = SCHEMA
    memwall_version: str = __version__
    target: str
    name: str
    answers: tuple[KernelBound, ...]

    def check(self) -> None:
        """Raises BadRecord: there is no answer, or one without a run."""
        if not self.answers or not all(answer.runs for answer in self.answers):
            raise BadRecord("is empty", ".answers")

    @classmethod
    def load(cls, path: str | Path) -> KernelBounds:
        """Read a record. Raises ``UsageError``: not such a record, or a damaged one; says which key."""
        raw = read_json(Path(path))
        check_schema(raw, _FAMILY, _VERSION, str(path))
        try:
            found: KernelBounds = read(cls, raw)
        except BadRecord as error:
            raise UsageError(f"{path}: {error}") from None
        return found

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON types, base SI units."""
        record: dict[str, Any] = write(self)
        return record

    def to_json(self) -> str:
        """The record as text."""
        return json.dumps(self.to_dict(), indent=1) + "\n"


def sol_score(time_s: float, baseline_s: float, bound_s: float) -> float:
    """The score of SOL-ExecBench (arXiv 2603.19173): 1 at the bound, one half at the baseline's time, towards 0 beyond.
    A baseline at its bound leaves nothing between: 1 for a time that reaches it, else 0."""
    if baseline_s <= bound_s:
        return 1.0 if time_s <= bound_s else 0.0
    return 1 / (1 + (time_s - bound_s) / (baseline_s - bound_s))


def fast_p(speedups: Sequence[float], p: float) -> float:
    """KernelBench's fast_p: the share of kernels that are more than ``p`` times as fast as their baseline."""
    return sum(each > p for each in speedups) / len(speedups) if speedups else 0.0
