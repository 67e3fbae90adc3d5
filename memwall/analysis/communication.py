"""Collectives of several sizes → rows of time and bandwidth, as nccl-tests define them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memwall.core.errors import UsageError
from memwall.hardware.links import Cluster
from memwall.perfmodel.collectives import OPS, CollectiveTime, collective_s


@dataclass(frozen=True, slots=True)
class CommRow:
    """One collective of ``nbytes``. Bandwidths in bytes/s: ``nbytes / time_s``, and times the factor of the op, which
    makes it comparable with the rate of a link (nccl-tests, PERFORMANCE.md)."""

    op: str
    nbytes: int
    workers: int
    found: CollectiveTime

    @property
    def time_s(self) -> float:
        return self.found.time_s

    @property
    def algorithm_bytes_per_s(self) -> float:
        return self.nbytes / self.time_s if self.time_s else 0.0

    @property
    def bus_bytes_per_s(self) -> float:
        return OPS[self.op].bus_factor(self.workers) * self.algorithm_bytes_per_s

    @property
    def link_share(self) -> float:
        """Seconds of a ring's bytes at the nominal rate, over the time: on one link bus bandwidth over its rate."""
        return self.found.wire_s / self.time_s if self.time_s else 0.0

    @property
    def way(self) -> str:
        return f"{self.found.algorithm} {self.found.protocol}".strip()


def sweep(
    cluster: Cluster, ops: Iterable[str], workers: int, least: int, most: int, *, per_node: int | None = None,
    library: str = "nccl", launch: str = "graph",
) -> list[CommRow]:  # fmt: skip
    """Each op with messages of ``least`` bytes, and twice as many up to ``most``.

    Raises:
        UsageError: as :func:`memwall.perfmodel.collectives.collective_s`, or no size is asked for.
    """
    if least > most:
        raise UsageError(f"the smallest message, {least:,} bytes, is larger than the largest, {most:,} bytes")
    sizes = [least << i for i in range((most // least).bit_length())]
    return [
        CommRow(op, nbytes, workers, collective_s(op, nbytes, workers, cluster, per_node=per_node, library=library,
                                                  launch=launch))
        for op in dict.fromkeys(ops) for nbytes in sizes
    ]  # fmt: skip
