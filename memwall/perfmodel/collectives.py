"""Collectives between GPUs: how long they take on a cluster (:mod:`memwall.hardware.cluster`).

An algorithm says how many steps a collective takes on each level of links, and how many bytes leave a group of GPUs
there. In a ring of n GPUs each sends ``(n - 1) / n`` of the message, and twice that in an all-reduce (Patarasu and
Yuan, 2009); between nodes that crosses all rails. A tree sends 2 messages in ``log n`` steps between nodes (double
binary trees: Sanders et al., 2009). A switch that does the sums (NVLS) has each GPU send its message and receive its
part of the sum: ``(n + 1) / n``. Hierarchically, nodes exchange only what their GPUs have summed. NCCL has three
protocols: LL and LL128 have short steps and a low rate, Simple the opposite. On a torus of TPUs rings run along all
axes at once and in both directions: bytes over the links of these, whatever their lengths (JAX scaling book, "Sharded
matrices"); an all-to-all of a ring crosses a quarter of it. Each time is that of
:class:`~memwall.hardware.cluster.Protocol`; levels overlap, and the fastest algorithm and protocol is taken.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypedDict

from memwall.core.errors import UsageError, unknown
from memwall.core.question import Option
from memwall.core.ranks import read_ranks
from memwall.core.units import counted, percent
from memwall.hardware.cluster import hardware_of, load_cluster
from memwall.hardware.links import KINDS, LIBRARIES, Cluster, Link
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.ops.launches import Message
from memwall.perfmodel.collective_algorithms import (
    CUSTOM,
    OPS,
    LinkLevel,
    bound_s_per_byte,
    nominal_s_per_byte,
    protocol_ways,
)

LAUNCHES = ("eager", "graph")
#: the link of a GPU of which no cluster is known
OWN_LINK = "link"
#: beyond it vLLM and SGLang call NCCL (``max_size`` in vLLM's custom_all_reduce.py)
CUSTOM_BYTES = 8 << 20


def link_s(nbytes: float, gpu: Gpu) -> float:
    """Seconds of bytes that cross the GPU's link one way, at the datasheet's rate; 0 where it has no link."""
    return nbytes / (gpu.link_bytes_per_s / 2) if gpu.link_bytes_per_s else 0.0


def sent_s(cost: Cost, gpu: Gpu) -> tuple[float, float]:
    """Seconds of what a cost sends, and the fewest that any algorithm takes: of its messages on the GPU's
    cluster; without one, of its bytes on the GPU's own link."""
    messages = [launch for launch in cost.launches if isinstance(launch, Message)] if gpu.cluster is not None else []
    if gpu.cluster is None or not messages:
        return link_s(cost.link_bytes, gpu), link_s(cost.link_bytes - cost.spared_link_bytes, gpu)
    found = [message_time(message, gpu.cluster) for message in messages]
    return sum(each.time_s for each in found), sum(each.bound_s for each in found)


def ways_of(cost: Cost, gpu: Gpu) -> tuple[str, ...]:
    """What a cost occupies: ``""`` for the GPU itself, or directions of the link that its messages cross. Links are
    full duplex: a transfer uses one direction of the link, a collective uses both."""
    link = link_of(cost, gpu)
    messages = [launch for launch in cost.launches if isinstance(launch, Message)]
    if not link:
        return ("",)
    if any(message.op != "send_recv" for message in messages):
        return f"{link} out", f"{link} in"
    return (f"{link} in" if cost.write_bytes else f"{link} out",)


def link_of(cost: Cost, gpu: Gpu) -> str:
    """The outermost link that a cost's messages cross; "" where it has none."""
    message = next((launch for launch in cost.launches if isinstance(launch, Message)), None)
    if message is None or gpu.cluster is None:
        return OWN_LINK if message else ""
    return levels_of(gpu.cluster, *placed(message, gpu.cluster))[-1].name


#: medium of the outermost link → thread blocks of NCCL's kernels, one for each channel, each of which holds a
#: multiprocessor: inside a node 24 (logs in NVIDIA/nccl issues 1235 and 1259, of 8 A100 and 8 H100), between nodes 8 to
#: 16 (what its authors say in issue 652); over PCIe as between nodes, for lack of a source
_BLOCKS: Mapping[str, int] = {"nvlink": 24, "network": 16, "pcie": 16}


def taken_shares(link: Link | None, gpu: Gpu, bytes_per_s: float = 0.0) -> tuple[float, float]:
    """What a message takes from other kernels: shares of the multiprocessors and of the memory's bandwidth. ``link``:
    the outermost that it crosses, None for the GPU's own; ``bytes_per_s``: what it reads and writes in memory. Links
    of TPUs move data without their cores."""
    medium = KINDS[link.kind][0] if link else "nvlink"
    blocks = 0 if gpu.tpu else _BLOCKS[medium]
    return blocks / gpu.sm_count, bytes_per_s / gpu.dram_bytes_per_s


def message_time(message: Message, cluster: Cluster) -> CollectiveTime:
    """The time of a message between the ranks of its group, of which each node has ``gpus_per_node`` in turn.

    Raises:
        UsageError: as :func:`collective_s`, such as for a group with more ranks on one node than on another.
    """
    workers, per_node = placed(message, cluster)
    return collective_s(message.op, message.nbytes, workers, cluster, per_node=per_node)


def placed(message: Message, cluster: Cluster) -> tuple[int, int]:
    """How many ranks a message's group has, and how many of them a node."""
    ranks = read_ranks(message.group)
    on_node = Counter(rank // cluster.gpus_per_node for rank in ranks).values()
    if len(set(on_node)) > 1:
        raise UsageError(
            f"ranks {message.group} are not equally many on each node of {cluster.name}, which has"
            f" {counted(cluster.gpus_per_node, 'GPU')}: make groups that are, or name another cluster"
        )
    return len(ranks), max(on_node)


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """Seconds of one collective. ``wire_s``: the bytes of the op's first algorithm (most often a ring) at the nominal
    rate of the slowest level, which ``time_s`` may beat where switches do sums; ``bound_s``: the fewest bytes that any
    algorithm could send. ``sent_bytes``: link → bytes that leave a group of GPUs one way, as taken."""

    time_s: float
    wire_s: float
    bound_s: float
    algorithm: str
    protocol: str
    sent_bytes: Mapping[str, float]
    words: str


class CollectiveOptions(TypedDict, total=False):
    """How a collective runs, as keywords of :func:`collective_s`."""

    per_node: Annotated[int | None, Option(None, "GPUs on each node. [default: as many as fit]", metavar="N")]
    library: Annotated[str, Option(
        "nccl", "nccl; custom: all-reduces of vLLM and SGLang; trtllm: collectives of TensorRT-LLM.", metavar="NAME",
        shown=True)]  # fmt: skip
    launch: Annotated[str, Option(
        "graph", "graph: back to back or in a CUDA graph; eager: calls from Python, no faster than the host.",
        metavar="NAME", shown=True)]  # fmt: skip


def collective_s(
    op: str,
    nbytes: float,
    workers: int,
    cluster: str | Cluster,
    *,
    per_node: int | None = None,
    library: str = "nccl",
    launch: str = "graph",
) -> CollectiveTime:
    """Time of one collective.

    Args:
        op: a key of :data:`OPS`.
        nbytes: the message as nccl-tests define its size: what a GPU holds of an all-reduce, all that an all-gather
            makes, a reduce-scatter takes or a GPU sends in an all-to-all.
        workers: GPUs that take part; ``per_node`` of them on each node, as many as fit if None.
        library: ``nccl``; ``custom``, as vLLM and SGLang, or ``trtllm``, which have all-reduces of their own inside a
            node and call NCCL for other ops and beyond :data:`CUSTOM_BYTES`.
        launch: ``graph``: in a CUDA graph or back to back; ``eager``: from Python, no faster than the host; custom
            all-reduces then copy the message first.

    Raises:
        UsageError: unknown names, or a number of GPUs that the cluster does not join.
    """
    for kind, name, known in (("op", op, OPS), ("library", library, LIBRARIES), ("launch", launch, LAUNCHES)):
        if name not in known:
            raise unknown(kind, name, known)
    if not 0 < nbytes < math.inf:
        raise UsageError(f"a message has 1 byte or more, not {nbytes:g}")
    found = load_cluster(cluster)
    levels = levels_of(found, workers, per_node)
    if not levels:
        return CollectiveTime(0.0, 0.0, 0.0, "none", "", {}, "one GPU has nobody to send to")
    ways = list(protocol_ways(op, levels, library if nbytes <= CUSTOM_BYTES else "nccl"))
    if not ways:
        links = ", ".join(f"{each.name} ({each.link.kind})" for each in levels)
        raise UsageError(
            f"{found.name}: {library} has no algorithm for {op} over {links}: they state none of the protocols that"
            " one needs on all of them (memwall clusters shows a cluster's protocols)"
        )
    bound_s = bound_s_per_byte(OPS[op], levels) * nbytes
    time_s, way = min(((way.time_s(nbytes), way) for way in ways), key=lambda item: item[0])
    sent = {leg.level.name: leg.share * nbytes for leg in way.legs}
    eager_s = _eager_s(found, time_s, nbytes, library, op) if launch == "eager" else time_s
    algorithms = OPS[op].algorithms
    first = "torus" if way.algorithm == "torus" else next(iter(algorithms))
    wire_s = nominal_s_per_byte(algorithms[first](levels, OPS[op].rounds)) * nbytes
    words = f"{way.words()}; {percent(wire_s / time_s)} of the link's rate"
    return CollectiveTime(max(eager_s, bound_s), wire_s, bound_s, way.algorithm, way.protocol, sent, words)


def levels_of(cluster: Cluster, workers: int, per_node: int | None = None) -> list[LinkLevel]:
    """The links that a job crosses, the innermost first.

    Raises:
        UsageError: as :meth:`Cluster.groups`.
    """
    levels, gpus = [], 1
    for (name, link), groups in zip(cluster.link.items(), cluster.groups(workers, per_node), strict=True):
        if groups > 1:
            levels.append(LinkLevel(name, link, groups, gpus))
        gpus *= groups
    return levels


def _eager_s(cluster: Cluster, time_s: float, nbytes: float, library: str, op: str) -> float:
    """Of calls from Python: custom all-reduces copy the message, and the host takes its time."""
    if CUSTOM[library] and op == "all_reduce":
        gpu = hardware_of(cluster)
        time_s += 2 * nbytes / (gpu.dram_bytes_per_s * gpu.achievable["dram"])
    return max(time_s, cluster.eager_s.get(library, 0.0))
