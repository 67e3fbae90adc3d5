"""The terms of one launch on one GPU, and how a family finds its constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar, cast

from memwall.hardware.constants import Constants
from memwall.hardware.lookup import Gpu

C = TypeVar("C", bound=Constants)


@dataclass(frozen=True, slots=True)
class Terms:
    """One launch on one GPU, in seconds: ``max(compute_s, memory_s) + latency_s``, without the launch latency.

    ``latency_s`` is time in which neither wall limits (a pipeline fills, blocks synchronize). ``facts`` are the numbers
    that explain the terms, by name; for :func:`memwall.perfmodel.families.explain` alone.
    """

    compute_s: float
    memory_s: float
    latency_s: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def time_s(self) -> float:
        """Seconds without the launch latency."""
        return max(self.compute_s, self.memory_s) + self.latency_s


def constants(kind: type[C], gpu: Gpu, variant: str) -> C:
    """A family's constants on a GPU, from the table that :func:`table_of` names; the defaults where there is none."""
    found: C = _constants(cast(Any, kind), gpu, variant)
    return found


@lru_cache(maxsize=4096)
def _constants(kind: Any, gpu: Gpu, variant: str) -> Any:
    table = table_of(kind, gpu, variant)
    if table is None:
        return kind()
    start = f"{table}."
    return kind(**{key.removeprefix(start): n for key, n in gpu.utilization.items() if key.startswith(start)})


def table_of(kind: type[Constants], gpu: Gpu, variant: str) -> str | None:
    """``gemm.bfloat16``: the variant's table, else the first other one of the family that the GPU has."""
    tables = {key.rpartition(".")[0] for key in gpu.utilization}
    wanted = (f"{kind.FAMILY}.{name}" for name in (variant, *kind.VARIANTS))
    return next((table for table in wanted if table in tables), None)


def interval(kind: type[Constants], gpu: Gpu, variant: str) -> tuple[float, float]:
    """The 80 % interval of a family's launches on a GPU, as multiples of the modeled time."""
    found: tuple[float, float] = _interval(cast(Any, kind), gpu, variant)
    return found


@lru_cache(maxsize=4096)
def _interval(kind: Any, gpu: Gpu, variant: str) -> tuple[float, float]:
    known = constants(kind, gpu, variant)
    of_status = dict(
        zip(CALIBRATED, ((known.interval_low, known.interval_high), kind.FOREIGN, kind.UNKNOWN), strict=True)
    )
    found: tuple[float, float] = of_status[calibrated(kind, gpu, variant)]
    return found


#: How the constants of a launch are known, the best first.
CALIBRATED = ("yes", "by architecture", "datasheet only")


def calibrated(kind: type[Constants], gpu: Gpu, variant: str) -> str:
    """How a family's constants on a GPU are known: scored on rows of this GPU and variant; of a similar GPU, another
    variant or published figures; or the defaults for a GPU without data."""
    table = table_of(kind, gpu, variant)
    if table is None:
        return CALIBRATED[2]
    return CALIBRATED[table != f"{kind.FAMILY}.{variant}" or gpu.fitted_on.get(table) != gpu.name]
