"""A trace's own collectives: the bus bandwidth of each and its share of the links, next to the model's time; and, of
traces of several ranks, who waits for whom.

The kernel of a collective runs from when its rank comes to it until all ranks have and the message is through. So of
collectives that are alike (op, group, bytes) the shortest is nearest to the time of the message, in one trace as over
ranks: the k-th collective of a group is the same one on all its ranks, the rank on which it is shortest came last, and
what it takes longer elsewhere is waiting.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from memwall.core.errors import UsageError
from memwall.core.graph import ITEMSIZE
from memwall.core.units import counted, size
from memwall.hardware.links import Cluster
from memwall.perfmodel.collective_algorithms import OPS
from memwall.perfmodel.collectives import CollectiveTime, collective_s
from memwall.traces.records import ProfilerTrace, TracedOp
from memwall.traces.rows import KernelRows, Launches
from memwall.traces.schemas import DTYPES, SCALAR_TYPES
from memwall.traces.values import whole_number

#: op of :data:`~memwall.perfmodel.collective_algorithms.OPS`, names that others contain last -> how collectives and
#: kernels are called
_CALLED = {
    "reduce_scatter": "reduce_?scatter", "all_reduce": "all_?reduce", "all_gather": "all_?gather",
    "all_to_all": "all_?to_?all", "broadcast": "broadcast|reduce", "send_recv": "send|recv",
}  # fmt: skip
_RECORDED = ("c10d::", "nccl:", "record_param_comms", "_c10d_functional::")
#: in which what a rank has of its own is one part of the message
_PARTED = ("all_gather", "reduce_scatter")
_GROUP = "Process Group Name"
_US = 1e-6


class TracedMessage(NamedTuple):
    """What a row sends: the op (empty: unknown), its name in the trace, ``nbytes`` as nccl-tests define it and how many
    ranks take part (0: not recorded), and the name of their group."""

    op: str
    name: str
    nbytes: int
    ranks: int
    group: str


def traced_message(row: Launches, trace: ProfilerTrace) -> TracedMessage:
    """The message of a row of communication: as its kernel says, else as the ops around its launch do."""
    kernel = row.kernels[0]
    around = [op for op in trace.around(row.op) if op.name.startswith(_RECORDED) or "Collective name" in op.attributes]
    stated = (kernel.attributes, *(op.attributes for op in around))
    said = [str(attributes["Collective name"]) for attributes in stated if attributes.get("Collective name")]
    name = next(iter((*said, *(op.name for op in around), kernel.name))).lower()
    texts = (*said, *(op.name for op in around), kernel.name)  # the nearest first
    op = next((op for text in texts for op, called in _CALLED.items() if re.search(called, text.lower())), "")
    tensors = [nbytes for each in around for nbytes in _tensors(each)]
    nbytes = max((_stated_bytes(attributes) for attributes in stated), default=0) or max(tensors, default=0)
    groups = [str(attributes[_GROUP]) for attributes in stated if _GROUP in attributes]
    sizes = [whole_number(attributes.get("Group size")) for attributes in stated]
    sizes += [trace.ranks[group] for group in groups if group in trace.ranks]
    if op in _PARTED and tensors and nbytes % min(tensors) == 0:
        sizes.append(nbytes // min(tensors) if nbytes > min(tensors) else 0)
    sizes.append(trace.ranks.get("", 0))
    return TracedMessage(op, name, nbytes, next((size for size in sizes if size > 0), 0), next(iter(groups), ""))


def _stated_bytes(attributes: Mapping[str, Any]) -> int:
    count = max(0, *(whole_number(attributes.get(f"{way} msg nelems")) for way in ("In", "Out")))
    dtype = str(attributes.get("dtype", ""))
    return count * ITEMSIZE.get(SCALAR_TYPES.get(dtype, dtype.lower()), 0)


def _tensors(op: TracedOp) -> list[int]:
    """The bytes of each tensor of an op whose shapes were recorded."""
    return [
        math.prod(dims) * ITEMSIZE[DTYPES[kind]]
        for dims, kind in zip(op.dims, op.types, strict=False)
        if kind in DTYPES and dims and all(type(n) is int for n in dims)
    ]


@dataclass(frozen=True, slots=True)
class Alike:
    """Collectives of a trace that are alike, with the seconds of each in order; ``modeled``: on a cluster, None where
    it cannot run them."""

    SAVED: ClassVar = (
        "message.op",
        "message.group",
        "message.ranks",
        "bytes=message.nbytes",
        "count",
        "measured_s",
        "shortest_s",
        "bus_bytes_per_s",
        "link_share",
        "modeled_s",
    )

    message: TracedMessage
    seconds: tuple[float, ...]
    modeled: CollectiveTime | None = None

    @property
    def measured_s(self) -> float:
        """Seconds of all."""
        return sum(self.seconds)

    @property
    def shortest_s(self) -> float:
        """Seconds of the kernel that waited least."""
        return min(self.seconds)

    @property
    def bus_bytes_per_s(self) -> float:
        """Bus bandwidth of the shortest (nccl-tests, PERFORMANCE.md)."""
        factor = OPS[self.message.op].bus_factor(self.message.ranks)
        return factor * self.message.nbytes / self.shortest_s if self.shortest_s else 0.0

    @property
    def link_share(self) -> float | None:
        """Seconds of a ring's bytes at the links' nominal rate, over the seconds of the shortest."""
        return self.modeled.wire_s / self.shortest_s if self.modeled and self.shortest_s else None

    @property
    def count(self) -> int:
        return len(self.seconds)

    @property
    def modeled_s(self) -> float | None:
        return self.modeled.time_s if self.modeled else None


def collectives(trace: ProfilerTrace, cluster: Cluster | None) -> list[Alike]:
    """The collectives of a trace whose op, bytes and ranks are known, the longest together first."""
    found: dict[TracedMessage, list[float]] = {}
    for message, seconds in _each(trace):
        found.setdefault(message, []).append(seconds)
    rows = [Alike(message, tuple(seconds), _modeled(message, cluster)) for message, seconds in found.items()]
    return sorted(rows, key=lambda row: -row.measured_s)


def _each(trace: ProfilerTrace) -> Iterable[tuple[TracedMessage, float]]:
    communicates = [kind.category == "communication" for kind in trace.kernels.kinds]
    rows = KernelRows(trace) if any(communicates) else ()
    for number in range(len(rows)):
        row = rows[number]
        if row.kind == "communication":
            message = traced_message(row, trace)
            if message.op and message.nbytes and message.ranks > 1:
                yield message, sum(kernel.dur_us for kernel in row.kernels) * _US


def _modeled(message: TracedMessage, cluster: Cluster | None) -> CollectiveTime | None:
    """The model's time, the ranks on as few nodes as hold them; None where they do not fill these."""
    try:
        return collective_s(message.op, message.nbytes, message.ranks, cluster) if cluster else None
    except UsageError:
        return None


# -- several ranks -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankWaits:
    """One rank among others: how many collectives it has in common with them, in how many of these it came last, and
    its seconds in them, of which it waits for others in ``waits_s``."""

    name: str
    count: int
    last: int
    measured_s: float
    waits_s: float


def rank_waits(traces: Sequence[ProfilerTrace]) -> list[RankWaits]:
    """The ranks whose traces these are, the one that waits least first: the others wait for it.

    Raises:
        UsageError: they have no collective in common.
    """
    ran = [_numbered(trace) for trace in traces]
    common = _in_all(ran)
    if not common:
        names = " and ".join(trace.path_name for trace in traces[:2])
        raise UsageError(f"{names} have no collective in common: give traces of the same step, of ranks of one group")
    least = {key: min(each[key] for each in ran) for key in common}
    found = []
    for trace, each in zip(traces, ran, strict=True):
        measured_s = sum(each[key] for key in common)
        last = sum(each[key] == least[key] for key in common)
        found.append(RankWaits(trace.path_name, len(common), last, measured_s, measured_s - sum(least.values())))
    return sorted(found, key=lambda row: row.waits_s)


def unshared(traces: Sequence[ProfilerTrace]) -> list[str]:
    """Which collectives of a rank are not in the traces of all, so that nothing is said of who waits in them: a line
    for each rank that has any."""
    ran = [_numbered(trace) for trace in traces]
    common, lines = set(_in_all(ran)), []
    for trace, each in zip(traces, ran, strict=True):
        kinds = Counter(
            f"{message.op} of {size(message.nbytes)}" for message, number in each if (message, number) not in common
        )
        if kinds:
            shown = [f"{kind} ({count:,})" for kind, count in kinds.most_common(_NAMED)]
            more = [f"{len(kinds) - _NAMED:,} more kinds"] * (len(kinds) > _NAMED)
            lines.append(
                f"{trace.path_name}: {kinds.total():,} of {counted(len(each), 'collective')} are not in the"
                f" traces of all ranks and were left out: {', '.join([*shown, *more])}"
            )
    return lines


#: kinds of collectives that a line names
_NAMED = 3


def _numbered(trace: ProfilerTrace) -> dict[tuple[TracedMessage, int], float]:
    """The seconds of each collective, by its message and how many like it were before."""
    seconds: dict[tuple[TracedMessage, int], float] = {}
    counts: Counter[TracedMessage] = Counter()
    for message, each_s in _each(trace):
        seconds[message, counts[message]] = each_s
        counts[message] += 1
    return seconds


def _in_all(ran: Sequence[Mapping[tuple[TracedMessage, int], float]]) -> list[tuple[TracedMessage, int]]:
    return [key for key in ran[0] if all(key in each for each in ran)]
