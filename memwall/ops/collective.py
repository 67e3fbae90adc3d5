"""Collectives of process groups: what a rank reads and writes in its memory, and what crosses its link.

A rank of n sends and receives ``(n - 1) / n`` of the message in a ring all-gather or reduce-scatter and in an
all-to-all, twice that in a ring all-reduce, which is both (Patarasu and Yuan, 2009), and all of it in a broadcast, a
reduction to one rank or a transfer. Where a switch does the sums (NVLink SHARP), an all-reduce needs half. Its own part
of a gathered message is in its place already. Sums count no FLOPs, as a switch may do them. On a cluster the time is
that of a :class:`memwall.ops.launches.Message` (:mod:`memwall.perfmodel.collectives`).
"""

from __future__ import annotations

from functools import partial

from memwall.core.graph import Graph
from memwall.ops.base import Call, Cost
from memwall.ops.launches import Message, Plain
from memwall.ops.registry import call_of, cost_of, formula

op = partial(formula, "communication")

#: collectives in which a rank sends or receives the whole message, not ``(n - 1) / n`` of it
_WHOLE_MESSAGE = ("send", "recv", "broadcast")


def least_share(collective: str, ranks: int) -> float:
    """The share of its message that one of n ranks must send or receive; a half where n is unknown (0)."""
    if any(word in collective for word in _WHOLE_MESSAGE):
        return 1.0
    return (ranks - 1) / ranks if ranks else 0.5


def receives(name: str) -> bool:
    """Whether an op receives what another rank's op of its own sends."""
    return "recv" in name


def sent(graph: Graph) -> tuple[int, float]:
    """How many collectives a graph calls, and the bytes that cross the link in them, the one way that takes more."""
    costs = [cost_of(call_of(graph, op)) for op in graph.ops if op.op_class == "communication"]
    return len(costs), sum(cost.link_bytes for cost in costs)


@op("lax::all_gather")
@op("c10d::_allgather_base_ c10d::allgather_ c10d::allgather_into_tensor_coalesced_ c10d::allgather_coalesced_")
@op("_c10d_functional::all_gather_into_tensor _c10d_functional::all_gather_into_tensor_out"
    " _c10d_functional::all_gather_into_tensor_coalesced")  # fmt: skip
def all_gather(call: Call) -> Cost:
    """Reads its own part, writes the parts of the others."""
    of_others = call.write_bytes * _others(call)
    return _cost(call, "all_gather", call.write_bytes, call.read_bytes, of_others, of_others)


@op("lax::reduce_scatter")
@op("c10d::_reduce_scatter_base_ c10d::reduce_scatter_ c10d::reduce_scatter_tensor_coalesced_")
@op("_c10d_functional::reduce_scatter_tensor _c10d_functional::reduce_scatter_tensor_out"
    " _c10d_functional::reduce_scatter_tensor_coalesced")  # fmt: skip
def reduce_scatter(call: Call) -> Cost:
    """Reads the message, writes a part of the sum."""
    nbytes = call.read_bytes
    return _cost(call, "reduce_scatter", nbytes, nbytes, call.write_bytes, nbytes * _others(call))


@op("lax::all_reduce")
@op("c10d::allreduce_ c10d::allreduce_coalesced_")
@op("_c10d_functional::all_reduce _c10d_functional::all_reduce_coalesced")
@op("_c10d_functional::all_reduce_ _c10d_functional::all_reduce_coalesced_")
def all_reduce(call: Call) -> Cost:
    """Reads the message, writes the sum."""
    scattered = call.write_bytes * _others(call)
    return _cost(call, "all_reduce", call.write_bytes, call.read_bytes, call.write_bytes, 2 * scattered)


@op("lax::all_to_all")
@op("c10d::alltoall_base_ c10d::alltoall_ _c10d_functional::all_to_all_single _dtensor::shard_dim_alltoall")
def all_to_all(call: Call) -> Cost:
    """Reads a part for each rank, writes a part of each; parts of unequal sizes are taken to be equal on the link."""
    nbytes = max(call.read_bytes, call.write_bytes)
    return _cost(call, "all_to_all", nbytes, call.read_bytes, call.write_bytes, nbytes * _others(call))


@op("lax::collective_broadcast")
@op("c10d::broadcast_ _c10d_functional::broadcast _c10d_functional::broadcast_ c10d::recv_ c10d::recv_any_source_")
@op("_c10d_functional::irecv")
def receive(call: Call) -> Cost:
    """Writes the message; the rank that a broadcast starts from reads it instead."""
    nbytes, op_name = call.write_bytes, "broadcast" if "broadcast" in call.name else "send_recv"
    return _cost(call, op_name, nbytes, 0, nbytes, nbytes * bool(_others(call)))


@op("c10d::reduce_ c10d::send _c10d_functional::isend")
def send(call: Call) -> Cost:
    """Reads the message, which crosses the link whole."""
    nbytes, op_name = call.read_bytes, "broadcast" if "reduce" in call.name else "send_recv"
    return _cost(call, op_name, nbytes, nbytes, 0, nbytes * bool(_others(call)))


@op("lax::ppermute")
def permute(call: Call) -> Cost:
    """Each rank sends its message to one and receives one of another."""
    nbytes = call.write_bytes
    return _cost(call, "send_recv", nbytes, call.read_bytes, nbytes, nbytes * bool(_others(call)))


@op("c10d::gather_ c10d::scatter_")
def gather(call: Call) -> Cost:
    """A part of each rank to, or from, one of them, which sends or receives as in an all-to-all; another moves its part
    alone."""
    parts = call.args("output_tensors"), call.args("input_tensors"), call.outputs
    part, is_root = min(spec.nbytes for specs in parts for spec in specs), any(len(specs) > 1 for specs in parts)
    of_others = part * (call.attributes["ranks"] - 1) if is_root else 0
    read, written = (part, of_others) if call.name.startswith("c10d.gather") else (of_others, part)
    whole = part * call.attributes["ranks"]
    return _cost(call, "all_to_all", whole, read, written, (of_others or part) * bool(_others(call)))


@op("c10d::barrier c10d::monitored_barrier_")
def barrier(call: Call) -> Cost:
    """No message but a number that NCCL sums."""
    return _cost(call, "all_reduce", _BARRIER_BYTES, 0, 0, 0)


#: ProcessGroupNCCL::barrier sums one float
_BARRIER_BYTES = 4

#: lists of tensors: copied one by one out of, or into, one buffer that NCCL fills or reads (ProcessGroupNCCL.cpp)
_LISTS = ("c10d.allgather_", "c10d.reduce_scatter_")
#: they copy the message first, and sum the copy in place (Functional.cpp)
_COPYING = ("_c10d_functional.all_reduce", "_c10d_functional.all_reduce_coalesced", "_c10d_functional.broadcast")


def _others(call: Call) -> float:
    """The share of a message that belongs to other ranks; a LookupError where their number was not recorded."""
    ranks: int = call.attributes["ranks"]
    return (ranks - 1) / ranks


def _cost(call: Call, kind: str, nbytes: int, read_bytes: int, write_bytes: float, link_bytes: float) -> Cost:
    """A message of ``nbytes`` in a collective of :data:`memwall.perfmodel.collective_algorithms.OPS`."""
    written, spared = int(write_bytes), link_bytes / 2 if kind == "all_reduce" else 0.0  # by a switch that sums
    kernels = [Plain(read_bytes=read_bytes, write_bytes=written)]
    if nbytes and call.attributes["ranks"] > 1:
        group = _group(call)
        kernels = [Message(read_bytes=read_bytes, write_bytes=written, op=kind, nbytes=nbytes, group=group)]
    name = call.name.removesuffix(".default")
    if name in _COPYING:
        kernels.insert(0, Plain(read_bytes=call.read_bytes, write_bytes=call.write_bytes))
    elif name in _LISTS:
        copies = Plain(read_bytes=nbytes, write_bytes=nbytes, count=call.attributes["ranks"])
        kernels.insert(len(kernels) if kind == "all_gather" else 0, copies)
    return Cost({}, read_bytes, written, link_bytes=link_bytes, spared_link_bytes=spared, launches=tuple(kernels))


def _group(call: Call) -> str:
    """The ranks that take part; the first ones where only their number was recorded."""
    return str(call.attributes.get("group") or f"0-{call.attributes['ranks'] - 1}")
