"""Timing on a CPU that others may use too: samples in interleaved rounds, disturbed ones dropped.

A sample repeats a benchmark's function for :data:`SAMPLE_S`. It counts if the process had the core (its CPU time is the
wall time) and nothing else ran on the other cores, which share caches, memory and, as hardware threads, arithmetic. All
benchmarks take turns, so that a disturbance affects each of them once rather than one of them always.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from memwall.bench.clock import Clocks
from memwall.bench.device import LEAST_SHARE
from memwall.bench.stats import spread
from memwall.core.errors import MissingError
from memwall.core.progress import counting, tell
from memwall.core.units import few

SAMPLE_S = 0.01
#: calls that determine how many make a sample
TRIALS = 4
#: cores that other processes may keep busy, on average over a round, before its samples are thrown away
MOST_OTHERS = 0.1
#: fewest good samples that make a quantity
LEAST_SAMPLES = 3
#: a quantity whose quartiles are further from the median than this is uncertain
WIDE = 0.05


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A function to time, and how much work one call does: bytes, FLOPs, elements or calls. ``calls``: how many make a
    sample; 0: as many as take :data:`SAMPLE_S`."""

    name: str
    work: float
    run: Callable[[], Any]
    calls: int = 0


@dataclass(frozen=True, slots=True)
class SampledQuantity:
    """What a benchmark took: the median of the good samples in seconds per call, half the distance between their
    quartiles over that median, and how many samples there were and how many were thrown away."""

    name: str
    work: float
    seconds: float
    spread: float
    samples: int
    rejected: int

    @property
    def rate(self) -> float:
        """Work per second."""
        return self.work / self.seconds

    @classmethod
    def of(cls, name: str, work: float, good: Sequence[float], rejected: int) -> SampledQuantity:
        """From seconds per call."""
        return cls(name, work, statistics.median(good), spread(good), len(good), rejected)


class Busy(MissingError):
    """Other processes left too few good samples."""


def measure(
    benchmarks: Sequence[Benchmark],
    rounds: int,
    *,
    accept_busy: bool = False,
    clocks: Clocks | None = None,
    wait: Callable[[], Any] = lambda: None,
) -> dict[str, SampledQuantity]:
    """Time all benchmarks, ``rounds`` samples each.

    ``accept_busy`` keeps the samples that others disturbed, in CPU time where the process had to wait for its core.
    ``wait`` is called before each sample: a device that still works must not slow down who issues more.

    Raises:
        Busy: a benchmark has too few good samples.
    """
    clocks = clocks or Clocks()
    calls = {}
    for bench in benchmarks:
        tell(f"measuring this machine, first calls of {bench.name}")
        calls[bench.name] = bench.calls or _calls(bench, clocks)
    good: dict[str, list[float]] = {bench.name: [] for bench in benchmarks}
    for _ in counting(range(rounds), "measuring this machine, rounds"):
        wall, own, machine = clocks.wall(), clocks.own(), clocks.machine()
        taken = {bench.name: _sample(bench, calls[bench.name], clocks, accept_busy, wait) for bench in benchmarks}
        others = (clocks.machine() - machine - (clocks.own() - own)) / (clocks.wall() - wall)
        if accept_busy or others <= MOST_OTHERS:
            for name, seconds in taken.items():
                good[name] += [] if seconds is None else [seconds]
    short = [name for name, samples in good.items() if len(samples) < min(LEAST_SAMPLES, rounds)]
    if short:
        raise Busy(
            f"this machine is too busy to be measured: fewer than {LEAST_SAMPLES} of {rounds} samples were undisturbed"
            f" of {few(short)}; stop what else runs, or accept rough figures with --accept-busy"
        )
    return {b.name: SampledQuantity.of(b.name, b.work, good[b.name], rounds - len(good[b.name])) for b in benchmarks}


def _calls(bench: Benchmark, clocks: Clocks) -> int:
    """How many calls make a sample long enough, by the fastest of some: the first warms up, others may be
    interrupted."""
    fastest = min(clocks.time(bench.run)[0] for _ in range(TRIALS))
    return max(1, round(SAMPLE_S / fastest)) if fastest > 0 else 1000


def _sample(bench: Benchmark, calls: int, clocks: Clocks, accept_busy: bool, wait: Callable[[], Any]) -> float | None:
    """Seconds per call; if the process did not have its core, in CPU time if that is accepted, else None."""
    if calls > 1 or bench.calls:
        bench.run()  # other benchmarks have taken the caches meanwhile
    wait()
    seconds, share = clocks.time(bench.run, calls)
    if share >= LEAST_SHARE:
        return seconds / calls
    return share * seconds / calls if accept_busy else None
