"""The scheduler's decisions as plain data: one record per launch, with the traced ops that it computes.

Inductor lists for each buffer the FX nodes that went into it; a tensor that is read from memory through a view adds
the names of all its origins. Here a node counts only if the loop computes it from what it reads.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.fx import Node

from memwall.core.compat import fused_kernel_name, name_of
from memwall.core.compat import inductor_ir as ir
from memwall.inductor.compiling import Scheduled
from memwall.inductor.origins import RESULT, behind_views, is_view, ops_of, users_behind_views
from memwall.inductor.owners import Laid, ScheduleNode

_ATEN: Any = torch.ops.aten


def launches(scheduled: Scheduled) -> list[ScheduleNode]:
    """The launches of one schedule, in order."""
    parts = [part.node for node in scheduled.nodes for part in node.get_nodes() if part.node is not None]
    holding = _holders(scheduled.results, parts)
    return [_launch(node, scheduled, holding) for node in scheduled.nodes]


def _launch(node: Any, scheduled: Scheduled, holding: Mapping[Node, set[str]]) -> ScheduleNode:
    parts = list(node.get_nodes())
    buffers = [part.node for part in parts if part.node is not None]
    handed = {behind_views(origin) for b in buffers if (origin := b.get_origin_node()) is not None}
    kind = _kind(node, buffers)
    origins = {origin for b in buffers for origin in b.get_origins()}
    if kind == "extern":
        origins = nodes = _called(buffers, origins, handed)
    else:
        written = {output.get_name() for output in node.get_outputs()}
        read = {dependency.name for dependency in node.read_writes.reads} - written
        outside = frozenset(scheduled.real_names.get(name, name) for name in read)  # buffers that others wrote
        nodes = _computed(buffers, outside, holding)
    name, source = scheduled.sources.get(parts[0].get_name(), (_name(node, kind, buffers), ""))
    return ScheduleNode(
        name=name,
        kind=kind,
        computes=_by_op(nodes, torch.Tensor.numel),
        shows=_results(nodes),
        hands_on=_by_op((n for n in handed if _results([n])), lambda tensor: tensor.numel() * tensor.itemsize),
        concerns=frozenset(op for origin in origins for op in ops_of(origin)),
        reads=frozenset(dependency.name for dependency in node.read_writes.reads),
        writes=frozenset(output.get_name() for output in node.get_outputs()),
        read_bytes=int(node.get_read_buffer_sizes()) if kind != "none" else 0,
        write_bytes=int(node.get_write_buffer_sizes()) if kind != "none" else 0,
        loop_ops=_loop_ops(parts),
        library_op=_library_op(buffers),
        source=source,
        channels_last=kind == "extern" and any(map(_takes_channels_last, buffers)),
        rows=_rows(node, buffers) if kind == "triton" else 0,
        operands=_operands(buffers) if kind == "extern" else (),
    )


def _rows(node: Any, buffers: Iterable[Any]) -> int:
    """The rows of a reduction that writes an element for each that it reads: it goes over a row twice."""
    if not node.is_reduction():
        return 0
    _, (rows, columns) = node.group
    rows, columns = int(rows), int(columns)
    whole = any(int(buffer.get_numel()) == rows * columns for buffer in buffers)
    return rows if whole and columns > 1 else 0


#: the products of two matrices that a library runs
_PRODUCTS = frozenset((_ATEN.mm, _ATEN.addmm, _ATEN.bmm, _ATEN.baddbmm))


def _operands(buffers: Iterable[Any]) -> tuple[Laid, ...]:
    """The matrices that a product multiplies: the last two of its tensors."""
    for buffer in buffers:
        overload = getattr(buffer, "op_overload", None)
        if getattr(overload, "overloadpacket", None) in _PRODUCTS:
            return tuple((_whole(one.get_size()), _whole(one.get_stride())) for one in buffer.inputs[-2:])
    return ()


def _whole(sizes: Iterable[Any]) -> tuple[int, ...]:
    return tuple(map(int, sizes))


def _takes_channels_last(buffer: Any) -> bool:
    """Whether a library's first tensor has its channels innermost."""
    first = next(iter(getattr(buffer, "inputs", ())), None)
    strides = first.maybe_get_stride() if isinstance(first, ir.IRNode) else None
    return strides is not None and len(strides) in (4, 5) and bool(strides[1] == 1 and strides[-1] != 1)


def _loop_ops(parts: Iterable[Any]) -> Counter[str]:
    """Calls in the bodies of a launch's loops, without calls that only begin and end a body."""
    total: Counter[str] = Counter()
    for part in parts:
        body = getattr(part, name_of("loop_body"), None)
        if body is not None:
            total.update(body.op_counts)
    for name in ("output", "placeholder"):
        total.pop(name, None)
    return total


def _called(buffers: list[Any], origins: set[Any], handed: set[Any]) -> set[Any]:
    """What a library computes: not its arguments, though Inductor lists them among the origins."""
    targets = {getattr(buffer, "op_overload", None) for buffer in buffers}
    by_name = {origin for origin in origins if origin.target in targets}
    return handed or by_name or set(sorted(sorted(origins), key=lambda o: max(ops_of(o), default=-1))[-1:])


def _results(origins: Iterable[Any]) -> frozenset[int]:
    """The ops whose result is among some FX nodes."""
    return frozenset(op for o in origins for op in ops_of(o) if o.meta["custom"].get(RESULT))


def _by_op(nodes: Iterable[Node], measure: Callable[[torch.Tensor], int]) -> dict[int, int]:
    """The elements of some FX nodes, summed by op."""
    found: dict[int, int] = {}
    for node in nodes:
        value = node.meta.get("val")
        for op in ops_of(node):
            found[op] = found.get(op, 0) + (measure(value) if isinstance(value, torch.Tensor) else 0)
    return found


def _kind(node: Any, buffers: list[Any]) -> str:
    if node.is_template():
        return "template"
    if node.is_extern():
        return "none" if all(isinstance(b, (ir.MultiOutput, ir.NopKernel)) for b in buffers) else "extern"
    if all(isinstance(b, ir.NopKernel) for b in buffers):
        return "none"
    device = node.get_device()
    return "cpp" if device is not None and device.type == "cpu" else "triton"


def _name(node: Any, kind: str, buffers: list[Any]) -> str:
    """The kernel's name, without the number that Inductor adds during code generation."""
    if kind in ("triton", "cpp"):
        family = "red" if node.is_reduction() else "poi"
        return f"{kind}_{family}_{fused_kernel_name(node.get_nodes(), 'original_aten')}"
    if kind == "none":
        return "none"
    buffer = buffers[0]
    return _library_op(buffers) or getattr(buffer, "python_kernel_name", None) or type(buffer).__name__


def _library_op(buffers: list[Any]) -> str:
    """The operator that a library runs here, by its name in aten; empty where Inductor has its own kernel."""
    for buffer in buffers:
        overload = getattr(buffer, "op_overload", None)
        if overload is not None and isinstance(buffer, ir.ExternKernel):
            return str(overload)
    return ""


def _holders(results: Mapping[Node, Any], buffers: Iterable[Any]) -> dict[Node, set[str]]:
    """FX node -> names of the buffers that hold its lowering or a part of it; empty where it was inlined."""
    holding: dict[Node, set[str]] = {}
    for node, result in results.items():
        names = holding[node] = set()
        for value in result if isinstance(result, (list, tuple)) else (result,):
            while isinstance(value, (ir.MutableBox, ir.BaseView)):
                value = value.data
            if isinstance(value, ir.Buffer):
                names.add(value.get_name())
    for buffer in buffers:
        if buffer.get_origin_node() is None:  # a product without its bias, a sum before it becomes a mean
            for node in _last(_origins(buffer)):
                holding.setdefault(node, set()).add(buffer.get_name())
    return holding


def _origins(buffer: Any) -> set[Node]:
    return {node for node in buffer.get_origins() if node.op == "call_function" and not is_view(node)}


def _last(nodes: set[Node]) -> set[Node]:
    """The nodes that no other of them uses."""
    return {node for node in nodes if nodes.isdisjoint(users_behind_views(node))}


def _computed(buffers: Iterable[Any], reads: frozenset[str], holding: Mapping[Node, set[str]]) -> set[Node]:
    """The FX nodes of which a launch that writes ``buffers`` computes something, from their results back to ``reads``.

    A launch that only copies a tensor, for example into another layout, or only adds up the partial sums of another,
    computes none.
    """
    origins: set[Node] = set()
    results: set[Node] = set()
    for buffer in buffers:
        origins |= _origins(buffer)
        last = buffer.get_origin_node()
        results.update(() if last is None else (behind_views(last),))
    made: set[Node] = set()
    named = origins | results
    several = (user for node in named for user in node.users if user.target is operator.getitem)
    for node in sorted(named.union(several)):
        inputs = [(one, behind_views(one)) for one in node.all_input_nodes]
        is_made = all(  # a range of numbers is recomputed, not read
            _is_read(one, reads, holding) or base in made or (base.op == "call_function" and not base.all_input_nodes)
            for one, base in inputs
        )
        if is_made and not _is_read(node, reads, holding):
            made.add(node)
    last_made = {node for node in made & named if made.isdisjoint(users_behind_views(node))}
    return _back_from(last_made | (results & made), made)


def _is_read(node: Node, reads: frozenset[str], holding: Mapping[Node, set[str]]) -> bool:
    """Whether the node's tensor, or what it is a view of, is in a buffer that is read."""
    while reads.isdisjoint(holding.get(node, ())):
        if not (is_view(node) and node.args and isinstance(node.args[0], Node)):
            return False
        node = node.args[0]
    return True


def _back_from(ends: set[Node], made: set[Node]) -> set[Node]:
    """The ends, and the nodes of ``made`` that they depend on."""
    found: set[Node] = set()
    pending = list(ends)
    while pending:
        node = pending.pop()
        if node in made and node not in found:
            found.add(node)
            pending.extend(behind_views(one) for one in node.all_input_nodes)
    return found
