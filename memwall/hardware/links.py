"""The links of a cluster, level by level, and what a collective library reaches over each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Annotated, NamedTuple

from memwall.core.errors import UsageError, unknown
from memwall.core.structure import BadRecord, at_least_1, count, one_of
from memwall.hardware.checks import Line, NotNegative, Positive, fraction

#: kind of link -> its medium, and the sort of it: links of one sort resemble each other most, then links of one medium
KINDS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("nvlink", "nvswitch", "nvls", "xgmi"), ("nvlink", "")), "pcie": ("pcie", ""),
    **{kind: ("network", kind) for kind in ("infiniband", "efa", "ethernet", "dcn")}, "ici": ("ici", ""),
}  # fmt: skip
#: kinds that join TPUs, whose collectives are XLA's: links of a torus, and the network between slices
_OF_TPUS = ("ici", "dcn")
_OF_GPUS = tuple(kind for kind in KINDS if kind not in _OF_TPUS)
#: protocol -> the kinds of links that can run it
PROTOCOLS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("ll", "ll128", "simple", "direct_ll", "direct", "send"), _OF_GPUS),
    **dict.fromkeys(("one_shot", "two_shot", "trtllm_one_shot", "trtllm_two_shot"), _OF_GPUS[:5]),
    "nvls": ("nvls",),
    "torus": _OF_TPUS,
}
LIBRARIES = ("nccl", "custom", "trtllm")


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a library's kernels use a link. Seconds: ``start_s``, ``step_s`` for each step of the algorithm, and the
    bytes of the link at a ``share`` of its rate. A message is sent in pieces, of which the first must pass before the
    pipeline is full: of W seconds of bytes that takes ``2 sqrt(W fill_s)`` with the best number of pieces."""

    start_s: NotNegative
    step_s: NotNegative
    fill_s: NotNegative
    share: Annotated[float, fraction]
    #: parts of the message, one for each GPU, that take as long as on the link because the GPU copies its own
    own_parts: NotNegative = 0.0


class TorusAxis(NamedTuple):
    """Chips along an axis of a torus, and bytes/s of the links by which a chip sends to both neighbours, or, where the
    ends are not joined, to one."""

    chips: int
    rate: float

    def hops(self, link_bytes_per_s: float) -> int:
        """Links from a chip to the one that is furthest away; half as many where the ends are joined."""
        return self.chips // 2 if self.rate > link_bytes_per_s else self.chips - 1


@dataclass(frozen=True, slots=True)
class Link:
    """One level: what joins GPUs, or the groups that the level below joins."""

    kind: Annotated[str, one_of(KINDS)]
    #: most GPUs that it joins; 0: any number
    gpus: Annotated[int, count]
    #: one way, of one GPU; between groups, of one of the ``rails``; of a torus, of one of the two along an axis
    bytes_per_s: Positive
    #: paths from a group; each of its GPUs can use one
    rails: Annotated[int, at_least_1] = 1
    #: links that the rings use among 2, 3, ... GPUs, where no switch makes all equal; the last is all of them. Of a
    #: torus: for each axis 1 where its ends are joined, else 0
    rings: tuple[int, ...] = ()
    #: whether other links may take its protocols: not if it is known to be unlike its kind
    lends: bool = True
    #: name of :data:`PROTOCOLS` -> how it uses the link
    protocols: Mapping[str, Protocol] = field(default_factory=dict)
    #: chips along each axis of a torus, whose links join neighbours
    torus: tuple[int, ...] = ()

    def rate(self, gpus: int, groups: int) -> float:
        """Bytes/s one way out of a group of ``gpus`` to the other ``groups``."""
        if self.torus:
            return sum(axis.rate for axis in self.axes(groups))
        if self.rings and groups > 1:
            return self.bytes_per_s * self.rings[min(groups, len(self.rings) + 1) - 2] / self.rings[-1]
        return self.bytes_per_s * min(gpus, self.rails)

    def most_rate(self, gpus: int, groups: int) -> float:
        """Bytes/s that no way of sending exceeds: a chip of a torus may use all its links."""
        return 2 * len(self.torus) * self.bytes_per_s if self.torus else self.rate(gpus, groups)

    def axes(self, groups: int) -> tuple[TorusAxis, ...]:
        """The axes of a torus that so many of its chips fill: whole ones, as few as can be, else parts of them."""
        whole = [(length, bool(ring)) for length, ring in zip(self.torus, self.rings, strict=True) if length > 1]
        for number in range(1, len(whole) + 1):
            for some in combinations(whole, number):
                if math.prod(length for length, _ in some) == groups:
                    return tuple(TorusAxis(length, self.bytes_per_s * (1 + ring)) for length, ring in some)
        found = list[TorusAxis]()
        for length, ring in sorted(whole, reverse=True):
            part = math.gcd(length, groups)
            if part > 1:
                found.append(TorusAxis(part, self.bytes_per_s * (1 + (ring and part == length))))
                groups //= part
        return tuple(found) if groups == 1 else (*found, TorusAxis(groups, self.bytes_per_s))

    def check(self) -> None:
        if self.torus:
            if len(self.rings) != len(self.torus) or math.prod(self.torus) != self.gpus:
                raise BadRecord(": torus has a length for each axis, all chips in all; rings a 0 or 1 for each")
        elif self.rings and (0 in self.rings or self.gpus != len(self.rings) + 1):
            raise BadRecord(": rings has a number above 0 for each of 2, 3, ... GPUs that the link joins")
        for name in self.protocols:
            if name not in PROTOCOLS or self.kind not in PROTOCOLS[name]:
                known = [each for each, kinds in PROTOCOLS.items() if self.kind in kinds]
                raise BadRecord(f": {unknown(f'protocol of {self.kind}', name[:40], known)}")


#: of a cluster whose links join any number; the largest that was announced has a quarter of it
MOST_GPUS = 1_000_000


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal nodes. A collective of few GPUs runs inside the innermost link that joins them."""

    name: Line
    gpu: Line
    gpus_per_node: Annotated[int, at_least_1]
    #: the innermost first
    link: Mapping[str, Link]
    full_name: str = ""
    #: library -> seconds between two calls from Python that the host takes, whatever the message
    eager_s: Mapping[str, NotNegative] = field(default_factory=dict)
    #: dotted key of the file -> the comment next to the number
    sources: Mapping[str, str] = field(default_factory=dict)
    #: "nvlink.simple" -> the cluster from which it is taken
    taken_from: Mapping[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.name, self.gpu))

    def check(self) -> None:
        reach = [link.gpus or math.inf for link in self.link.values()]
        if not reach or sorted(set(reach)) != reach:
            raise BadRecord(": each link joins more GPUs than the one before, the last any number where gpus is 0")
        for library in self.eager_s:
            if library not in LIBRARIES:
                raise BadRecord(f": {unknown('library', library[:40], LIBRARIES)}")

    @property
    def most_gpus(self) -> int | None:
        """GPUs that its links join; None: any number."""
        return list(self.link.values())[-1].gpus or None

    def groups(self, workers: int, per_node: int | None = None) -> tuple[int, ...]:
        """How many GPUs, or groups of the level below, each link joins: equal groups, as few as fit.

        Raises:
            UsageError: no such number of GPUs, or not equally many on each node.
        """
        self._check_workers(workers, per_node)
        sizes, links = list[int](), list(self.link.values())
        for lower in reversed([None, *links[:-1]]):
            most = self._most(lower, per_node) if lower else 1
            inside = next(size for size in range(min(most, workers), 0, -1) if workers % size == 0)
            sizes.append(workers // inside)
            workers = inside
        return tuple(reversed(sizes))

    def _most(self, link: Link, per_node: int | None) -> int:
        """GPUs of a job that a link can join; one that is wider than a node joins nodes."""
        return min(link.gpus, per_node) if per_node and link.gpus <= self.gpus_per_node else link.gpus

    def _check_workers(self, workers: int, per_node: int | None) -> None:
        most = self.most_gpus or MOST_GPUS
        if not 1 <= workers <= most:
            raise UsageError(f"{self.name} joins 1 to {most:,} GPUs, not {workers:,}")
        if per_node is not None and not 1 <= per_node <= self.gpus_per_node:
            raise UsageError(f"a node of {self.name} has 1 to {self.gpus_per_node} GPUs, not {per_node}")
        inside = per_node or max((link.gpus for link in list(self.link.values())[:-1]), default=workers)
        nodes = math.ceil(workers / inside)
        if workers % nodes or (per_node and workers % min(per_node, workers)):
            raise UsageError(f"{workers} GPUs are not equally many on each of {nodes} nodes of {inside}")
