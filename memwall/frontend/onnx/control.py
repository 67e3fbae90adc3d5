"""If, Loop and Scan: bodies written into the graph.

- If takes the branch that the condition says, where that is known, else the one with more nodes.
- Loop and Scan are written out for as many trips as are known; a loop whose trips depend on data is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from memwall.frontend.onnx.node import Node, OnnxTensor, Scope
from memwall.frontend.writing import GraphWriter
from memwall.hardware.chips import Chip


class BodyWriter(Protocol):
    """What writes the nodes of a body (:class:`memwall.frontend.onnx.importer.Importer`)."""

    writer: GraphWriter
    chip: Chip
    notes: dict[str, None]

    def graph(self, graph: Any, scope: Scope) -> list[OnnxTensor]:
        """Write the nodes of a graph; its outputs."""


Control = Callable[[BodyWriter, Any, Sequence[OnnxTensor | None], Scope], Sequence[OnnxTensor]]


def _attributes(proto: Any) -> dict[str, Any]:
    import onnx.helper

    return {item.name: onnx.helper.get_attribute_value(item) for item in proto.attribute}


def _node(to: BodyWriter, proto: Any, operands: Sequence[OnnxTensor | None]) -> Node:
    return Node(f"onnx.{proto.op_type}", proto.name, operands, (), {}, to.writer, to.chip, to.notes)


def nodes_in(graph: Any) -> int:
    """Nodes of a graph, those of bodies within included."""
    return sum(1 + sum(nodes_in(item.g) for item in node.attribute if item.HasField("g")) for node in graph.node)


def branch(to: BodyWriter, proto: Any, operands: Sequence[OnnxTensor | None], scope: Scope) -> Sequence[OnnxTensor]:
    """If."""
    branches, condition = _attributes(proto), operands[0]
    known = condition.scalar if condition else None
    if known is None:
        name = max(("then_branch", "else_branch"), key=lambda side: nodes_in(branches[side]))
        to.notes[f"If {proto.name}: its condition depends on data, and the {name.replace('_', ' ')} is taken"] = None
    else:
        name = "then_branch" if known else "else_branch"
    return to.graph(branches[name], {**scope})


def loop(to: BodyWriter, proto: Any, operands: Sequence[OnnxTensor | None], scope: Scope) -> Sequence[OnnxTensor]:
    """Loop: inputs are the trips, whether to begin, and what is carried; the body's are the trip, the condition and
    what is carried, its outputs the condition, what is carried on and what each trip adds to a stack."""
    import numpy as np

    body, node = _attributes(proto)["body"], _node(to, proto, operands)
    trips, condition, *carried = operands
    count = None if trips is None else trips.scalar
    if count is None or count > 1 << 40:
        to.notes[f"Loop {proto.name}: its number of trips depends on data, and one trip is counted"] = None
        count = 1
    stacked: list[list[OnnxTensor]] = []
    going = True if condition is None else condition.scalar
    state = [tensor for tensor in carried if tensor is not None]
    for trip in range(int(count)):
        if going is False:
            break
        names = [item.name for item in body.input]
        said = OnnxTensor((), "int64", numbers=np.array(trip))
        still = OnnxTensor((), "bool", numbers=np.array(True))
        next_condition, *made = to.graph(body, {**scope, **dict(zip(names, (said, still, *state), strict=True))})
        going = next_condition.scalar
        state, added = made[: len(state)], made[len(state) :]
        stacked.append(added)
    return [*state, *_stacks(node, stacked)]


def scan(to: BodyWriter, proto: Any, operands: Sequence[OnnxTensor | None], scope: Scope) -> Sequence[OnnxTensor]:
    """Scan: what is carried, then what is read slice by slice along an axis, the first unless it says another."""
    attributes, node = _attributes(proto), _node(to, proto, operands)
    body, count = attributes["body"], attributes["num_scan_inputs"]
    given = [tensor for tensor in operands if tensor is not None]
    state, scanned = given[: len(given) - count], given[len(given) - count :]
    axes = attributes.get("scan_input_axes") or [0] * count
    backwards = attributes.get("scan_input_directions") or [0] * count
    length = scanned[0].shape[axes[0]] if scanned else 0
    names = [item.name for item in body.input]
    stacked = []
    for trip in range(length):
        parts = []
        for tensor, axis, back in zip(scanned, axes, backwards, strict=True):
            shape = tensor.shape[:axis] + tensor.shape[axis + 1 :]
            one = node.part(node.placed(tensor), axis, length - 1 - trip if back else trip, 1)
            parts.append(OnnxTensor(shape, tensor.dtype, node.reshape(one, shape)))
        made = to.graph(body, {**scope, **dict(zip(names, (*state, *parts), strict=True))})
        state, added = made[: len(state)], made[len(state) :]
        stacked.append(added)
    return [*state, *_stacks(node, stacked)]


def _stacks(node: Node, stacked: Sequence[Sequence[OnnxTensor]]) -> list[OnnxTensor]:
    """What each trip added, copied into one tensor for each output."""
    found = []
    for parts in zip(*stacked, strict=True):
        whole = replace(parts[0], shape=(len(parts), *parts[0].shape), value=None, numbers=None, name="")
        whole.value = node.new(whole.shape, whole.dtype)
        node.run("stack", [node.placed(part) for part in parts], ["tensors"] * len(parts), {"dim": 0}, [whole.value])
        found.append(whole)
    return found


CONTROL: Mapping[str, Control] = {"If": branch, "Loop": loop, "Scan": scan}
