"""If, Loop and Scan: bodies written into the graph.

- If takes the branch that the condition says, where that is known, else the one with more nodes.
- Loop and Scan are written out for as many trips as are known; a loop whose trips depend on data is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from memwall.frontend.onnx.node import Node, OnnxTensor, Scope, called
from memwall.frontend.onnx.reading import DTYPES
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
    """Nodes of a graph, with the nodes of bodies within."""
    return sum(1 + sum(nodes_in(item.g) for item in node.attribute if item.HasField("g")) for node in graph.node)


def branch(to: BodyWriter, proto: Any, operands: Sequence[OnnxTensor | None], scope: Scope) -> Sequence[OnnxTensor]:
    """If."""
    branches, condition = _attributes(proto), operands[0]
    known = condition.scalar if condition else None
    if known is None:
        name = max(("then_branch", "else_branch"), key=lambda side: nodes_in(branches[side]))
        to.notes[f"{called(proto)}: its condition depends on data, and the {name.replace('_', ' ')} is taken"] = None
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
        to.notes[f"{called(proto)}: its number of trips depends on data, and one trip is counted"] = None
        count = 1
    stacked: list[list[OnnxTensor]] = []
    going = True if condition is None else condition.scalar
    state = [tensor for tensor in carried if tensor is not None]
    for trip in range(int(count)):
        if going is False:
            break
        to.writer.trip()
        names = [item.name for item in body.input]
        number = OnnxTensor((), "int64", numbers=np.array(trip))
        still = OnnxTensor((), "bool", numbers=np.array(True))
        next_condition, *made = to.graph(body, {**scope, **dict(zip(names, (number, still, *state), strict=True))})
        going = next_condition.scalar
        state, added = made[: len(state)], made[len(state) :]
        stacked.append(added)
    return [*state, *_stacks(node, stacked, body.output[1 + len(state) :])]


def scan(to: BodyWriter, proto: Any, operands: Sequence[OnnxTensor | None], scope: Scope) -> Sequence[OnnxTensor]:
    """Scan: what is carried, then what is read slice by slice along an axis, the first unless it says another."""
    attributes, node = _attributes(proto), _node(to, proto, operands)
    body, count = attributes["body"], attributes["num_scan_inputs"]
    given = [tensor for tensor in operands if tensor is not None]
    state, scanned = given[: len(given) - count], given[len(given) - count :]
    axes = [
        axis % len(tensor.shape)
        for axis, tensor in zip(attributes.get("scan_input_axes") or [0] * count, scanned, strict=True)
    ]
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
    return [*state, *_stacks(node, stacked, body.output[len(state) :], attributes.get("scan_output_axes"))]


def _stacks(
    node: Node, stacked: Sequence[Sequence[OnnxTensor]], outputs: Sequence[Any], axes: Sequence[int] | None = None
) -> list[OnnxTensor]:
    """What each trip added, copied into one tensor for each of the body's ``outputs``, along the first axis unless
    ``axes`` say another; without a trip there are no elements."""
    found = []
    for i, output in enumerate(outputs):
        parts = [added[i] for added in stacked]
        if not parts:
            found.append(_empty(node, output))
            continue
        axis = axes[i] % (len(parts[0].shape) + 1) if axes else 0
        shape = (*parts[0].shape[:axis], len(parts), *parts[0].shape[axis:])
        whole = OnnxTensor(shape, parts[0].dtype, node.new(shape, parts[0].dtype))
        names = ["tensors"] * len(parts)
        node.run("stack", [node.placed(part) for part in parts], names, {"dim": axis}, [node.placed(whole)])
        found.append(whole)
    return found


def _empty(node: Node, output: Any) -> OnnxTensor:
    """What no trip has added to: its rank and dtype are as the body says."""
    kind = output.type.tensor_type
    if kind.elem_type not in DTYPES:
        raise node.wrong(f"it makes no trip, and its body does not say of what kind {output.name!r} is")
    return OnnxTensor((0, *(axis.dim_value for axis in kind.shape.dim)), DTYPES[kind.elem_type])


CONTROL: Mapping[str, Control] = {"If": branch, "Loop": loop, "Scan": scan}
