"""What the families share: the terms of a launch, seconds of memory traffic, and how a family finds its constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from memwall.hardware.chips import chip_of
from memwall.hardware.constants import NO_ROWS, Constants
from memwall.hardware.lookup import Gpu, products_of

C = TypeVar("C", bound=Constants)
_cached: Any = lru_cache(maxsize=4096)  # whose type would refuse a class as a key


@dataclass(frozen=True, slots=True)
class Terms:
    """One launch on one GPU, in seconds, without the launch latency: what its arithmetic, its traffic and its
    latencies would take, each alone, and what they take together.

    ``latency_s`` is time that more FLOP/s or DRAM bandwidth would not shorten: instructions other than the arithmetic,
    dependent steps, loads that are waited for, multiprocessors without work, ``ends_s``. ``facts`` are the numbers that
    explain the terms, by name; for :func:`memwall.perfmodel.families.explain` alone. ``peak_s`` is said where the
    kernel does other FLOPs than its launch states (Winograd), or does them on another pipe.
    """

    compute_s: float
    memory_s: float
    latency_s: float
    #: all of them as far as they overlap
    body_s: float
    #: before and after that: a pipeline fills, further passes
    ends_s: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: seconds that the FLOPs which the kernel does take at the peak of the pipe that does them
    peak_s: float | None = None

    @classmethod
    def of(
        cls,
        compute_s: float,
        memory_s: float,
        latency_s: float = 0.0,
        ends_s: float = 0.0,
        facts: Mapping[str, Any] | None = None,
    ) -> Terms:
        """Terms that overlap in full, but for ``ends_s``, a latency of its own."""
        body_s = max(compute_s, memory_s, latency_s)
        return cls(compute_s, memory_s, latency_s + ends_s, body_s, ends_s, facts or {})

    @property
    def time_s(self) -> float:
        """Seconds without the launch latency."""
        return self.body_s + self.ends_s

    @property
    def wall(self) -> str:
        """``bandwidth``, ``compute`` or ``latency``: the largest term; of equal ones the first."""
        return max(
            ("bandwidth", self.memory_s),
            ("compute", self.compute_s),
            ("latency", self.latency_s),
            key=lambda term: term[1],
        )[0]


# -- traffic -----------------------------------------------------------------------------------------------------------

#: share of the L2 bandwidth (bytes per clock x boost clock) that warm elementwise kernels reach: residual adds of 12 to
#: 25 MB take 4 to 9 us on an A100 and 25 MB 4.5 us on an H100 (Vidur)
L2_REACHED = 0.45
#: shares of L2 up to which all of a footprint stays in it, and from which none does over repeated passes: fp32 add,
#: mul, relu and gelu on an A100 (NeuSight); each half of that L2 keeps its own copy
STAYS, GONE = 0.6, 1.0


def traffic_s(gpu: Gpu, dram_bytes: float, l2_bytes: float = 0.0, fraction: float | None = None) -> float:
    """Seconds that the bytes take at ``fraction`` of the DRAM bandwidth, by default a triad's."""
    reached = gpu.achievable["dram"] if fraction is None else fraction
    return dram_bytes / (gpu.dram_bytes_per_s * reached) + l2_bytes / (gpu.l2_bytes_per_s * L2_REACHED)


def kept_share(gpu: Gpu, footprint_bytes: float) -> float:
    """Share of a footprint that a second pass over it finds in L2: 1 up to :data:`STAYS` of L2, 0 from :data:`GONE`."""
    if not gpu.l2_bytes:
        return 0.0
    return min(max((GONE - footprint_bytes / gpu.l2_bytes) / (GONE - STAYS), 0.0), 1.0)


# -- constants ---------------------------------------------------------------------------------------------------------


def _constants(kind: type[C], gpu: Gpu, variant: str) -> C:
    table = table_of(kind, gpu, variant)
    if table is None:
        return kind()
    start = f"{table}."
    return kind(**{key.removeprefix(start): n for key, n in gpu.utilization.items() if key.startswith(start)})


#: a family's constants on a GPU, from the table that :func:`table_of` names; the defaults if the GPU has no such table
constants: Callable[[type[C], Gpu, str], C] = _cached(_constants)


def table_of(kind: type[Constants], gpu: Gpu, variant: str) -> str | None:
    """``gemm.bfloat16``: the variant's table, else the first other one of the family that the GPU has."""
    tables = tables_of(gpu)
    like = (kind.LIKE,) if variant == kind.UNMEASURED else ()
    wanted = (f"{kind.FAMILY}.{name}" for name in (variant, *like, *kind.VARIANTS))
    return next((table for table in wanted if table in tables), None)


def tables_of(gpu: Gpu) -> set[str]:
    """The tables of constants that a GPU states, such as ``gemm.bfloat16``."""
    return {key.rpartition(".")[0] for key in gpu.utilization}


def _is_unmeasured(kind: type[Constants], variant: str, table: str | None) -> bool:
    """Whether no row of any GPU shows the variant."""
    return variant in (NO_ROWS, kind.UNMEASURED) and table != f"{kind.FAMILY}.{variant}"


class Interval(NamedTuple):
    """The 80 % interval of kernels, as multiples of the modeled time: ``low`` and ``high`` of kernels of up to
    :data:`SHORT_S`, their power ``long`` from :data:`LONG_S`, and by the logarithm of the time between."""

    low: float
    high: float
    long: float = 1.0

    def at(self, time_s: float) -> tuple[float, float]:
        """Both ends for a kernel of that modeled time."""
        if self.long == 1.0:
            return self.low, self.high
        power = power_at(time_s, self.long)
        return self.low**power, self.high**power


SHORT_S, LONG_S = 5e-6, 5e-4
_DECADES = math.log(LONG_S / SHORT_S)


def power_at(time_s: float, long: float) -> float:
    """The power of the ends of an interval at a modeled time."""
    return 1.0 + (long - 1.0) * math.log(min(max(time_s, SHORT_S), LONG_S) / SHORT_S) / _DECADES


def _interval(kind: type[Constants], gpu: Gpu, variant: str) -> Interval:
    if _is_unmeasured(kind, variant, table_of(kind, gpu, variant)):
        return Interval(*Constants.UNKNOWN)
    known = constants(kind, gpu, variant)
    known_as = CALIBRATED.index(calibrated(kind, gpu, variant))
    own = Interval(known.interval_low, known.interval_high, known.interval_long)
    foreign, unknown = (Interval(*kind.FOREIGN_OF.get(variant, of_all)) for of_all in (kind.FOREIGN, kind.UNKNOWN))
    return (own, foreign, unknown, unknown)[known_as]


#: the 80 % interval of a family's launches on a GPU
interval: Callable[[type[Constants], Gpu, str], Interval] = _cached(_interval)

#: families whose kernels are made for the instructions of tensor cores
_BY_TENSOR_CORES = frozenset(("gemm", "convolution", "attention", "latent", "experts"))
OTHER_INSTRUCTIONS = "by other instructions"
#: How the constants of a launch are known, the best first.
CALIBRATED = ("yes", "by architecture", OTHER_INSTRUCTIONS, "datasheet only")


def calibrated(kind: type[Constants], gpu: Gpu, variant: str) -> str:
    """How a family's constants on a GPU are known: scored on rows of this GPU and variant; of a similar GPU, another
    variant or published figures; of a GPU whose tensor cores multiply by other instructions, in other kernels; or not
    at all: a GPU without data, or a kind of kernel without rows on any GPU."""
    table = table_of(kind, gpu, variant)
    if table is None or _is_unmeasured(kind, variant, table):
        return CALIBRATED[3]
    donor = gpu.fitted_on.get(table, gpu.name)
    by_tensor_cores = kind.FAMILY in _BY_TENSOR_CORES and not table.endswith(".float32")
    if by_tensor_cores and products_of(donor) not in ("", chip_of(gpu).products):
        return CALIBRATED[2]
    return CALIBRATED[table != f"{kind.FAMILY}.{variant}" or gpu.fitted_on.get(table) != gpu.name]
