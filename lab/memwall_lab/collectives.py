"""A collective that others timed on GPUs of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from memwall.analysis.validation import TimedRow
from memwall.bench.accuracy.halves import in_fit_half
from memwall.bench.accuracy.kinds import Timed
from memwall.hardware.cluster import stated_clusters, with_nearest_protocols
from memwall.hardware.links import Cluster
from memwall.perfmodel.collectives import CollectiveTime, collective_s

_R1_LINK, _R1_S = 0.85, 3e-6


@dataclass(frozen=True, slots=True)
class CollectiveSample(Timed):
    """One measured time; the arguments of :func:`memwall.perfmodel.collectives.collective_s`. ``label`` is the data
    set's name for the GPUs."""

    dataset: str
    label: str
    cluster: Cluster
    op: str
    dtype: str
    nbytes: int
    workers: int
    per_node: int | None
    library: str
    launch: str
    measured_s: float
    resolution_s: float = 0.0

    @property
    def shape(self) -> str:
        placed = f", {self.per_node} in a node" if self.per_node else ""
        return f"{self.op} of {self.nbytes} bytes, {self.workers} GPUs{placed}"

    @property
    def in_fit_half(self) -> bool:
        """Whether the constants may see its shape: the parity of a SHA-256, the same on every GPU and library."""
        return in_fit_half(self.shape)

    def left_out(self) -> CollectiveSample:
        """The sample as if nothing had been measured between GPUs of its kind."""
        return replace(self, cluster=without_own(self.cluster))

    def modeled(self) -> CollectiveTime:
        return collective_s(self.op, self.nbytes, self.workers, self.cluster, per_node=self.per_node,
                            library=self.library, launch=self.launch)  # fmt: skip

    def row(self) -> TimedRow:
        """The collective, modeled and measured; R0 is a ring's bytes at the nominal rate of the link."""
        found = self.modeled()
        op_class = self.op if self.library == "nccl" else f"{self.op} {self.library}"
        return TimedRow(
            self.dataset, self.label, op_class, self.dtype, found.time_s, self.measured_s, found.bound_s,
            shape=self.shape, r0_s=found.wire_s, r1_s=found.wire_s / _R1_LINK + _R1_S, resolution_s=self.resolution_s,
        )  # fmt: skip


@lru_cache(maxsize=64)
def _without(name: str, gpu: str) -> list[Cluster]:
    return [other for other in stated_clusters() if other.gpu != gpu and other.name != name]


def without_own(cluster: Cluster) -> Cluster:
    """The cluster with the protocols of the most similar links of other GPUs. What the host takes is kept: it is no
    property of the GPU or its links."""
    bare = {name: replace(link, protocols={}) for name, link in cluster.link.items()}
    return with_nearest_protocols(replace(cluster, link=bare, taken_from={}), _without(cluster.name, cluster.gpu))
