"""Rows of what strides can say, and of ops that move elements: copies, gathers, windows of places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memwall.frontend.onnx.node import PACKED, Node, OnnxTensor
from memwall.frontend.onnx.rows import Row, call, first, identity

# -- views -------------------------------------------------------------------------------------------------------------


def viewed(see: Callable[[Node, int], int]) -> Row:
    """A view; what is packed into less than bytes has no strides, and counts as a whole."""

    def row(node: Node) -> list[OnnxTensor]:
        node.writer.free(node.op)
        source, value = node.need(0), node.id(0)
        if source.dtype in PACKED:
            return [replace(source, shape=node.shape)]
        return first(node, see(node, value))

    return row


def transposed(node: Node, value: int) -> int:
    """Axes in another order, the reverse one unless it is said."""
    rank = len(node.need(0).shape)
    return node.permute(value, node.attributes.get("perm") or range(rank)[::-1])


def sliced(node: Node) -> list[OnnxTensor]:
    """Starts, ends, axes and steps of each axis; what goes backwards is a copy."""
    data = node.need(0)
    starts, ends = node.numbers(1), node.numbers(2)
    axes = node.numbers(3, range(len(starts)))
    steps = node.numbers(4, [1] * len(starts))
    if any(step < 0 for step in steps):
        return first(node, node.run("flip", [node.id(0)], "self", {"dims": axes}))
    value = node.id(0)
    node.writer.free(node.op)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = data.shape[axis]
        begin, stop, _ = slice(start, end, step).indices(size)
        value = node.part(value, axis % len(data.shape), begin, len(range(begin, stop, step)), step)
    return first(node, value)


def split(node: Node) -> list[OnnxTensor]:
    """Parts along an axis, as long as the outputs say."""
    axis, start, found = node.attributes.get("axis", 0) % len(node.need(0).shape), 0, []
    node.writer.free(node.op)
    for made in node.made:
        if made is None:
            raise node.wrong("an output of it is unused, so that the length of that part is unknown")
        length = made[0][axis]
        found.append(OnnxTensor(*made, node.part(node.id(0), axis, start, length)))
        start += length
    return found


def depth_to_space(node: Node) -> list[OnnxTensor]:
    """Channels into places: DCR order unless it says CRD."""
    images, channels, height, width = node.need(0).shape
    block = node.attributes["blocksize"]
    inner = channels // block**2
    crd = node.attributes.get("mode", b"DCR") == b"CRD"
    cut = (images, inner, block, block, height, width) if crd else (images, block, block, inner, height, width)
    order = (0, 1, 4, 2, 5, 3) if crd else (0, 3, 4, 1, 5, 2)
    return first(node, node.reshape(node.permute(node.reshape(node.id(0), cut), order), node.shape))


def space_to_depth(node: Node) -> list[OnnxTensor]:
    """Places into channels."""
    images, channels, height, width = node.need(0).shape
    block = node.attributes["blocksize"]
    cut = (images, channels, height // block, block, width // block, block)
    return first(node, node.reshape(node.permute(node.reshape(node.id(0), cut), (0, 3, 5, 1, 2, 4)), node.shape))


# -- copies and gathers ------------------------------------------------------------------------------------------------


def concatenated(node: Node) -> list[OnnxTensor]:
    """All operands along an axis; one alone is what it is, and what has no elements is left out."""
    given = [i for i in range(len(node.inputs)) if 0 not in node.need(i).shape]
    if len(given) == 1:
        return [replace(node.need(given[0]), value=node.id(given[0]))]
    said = {"dim": node.attributes["axis"]}
    return first(node, node.run("cat", [node.id(i) for i in given], ["tensors"] * len(given), said))


def gathered(node: Node) -> list[OnnxTensor]:
    """Slices at some places: one that is known is a view, rows of a table are an embedding."""
    data, places = node.need(0), node.need(1)
    axis = node.attributes.get("axis", 0) % len(data.shape)
    if places.scalar is not None and data.dtype not in PACKED:
        node.writer.free(node.op)
        one = node.part(node.id(0), axis, int(places.scalar) % data.shape[axis], 1)
        return first(node, node.reshape(one, node.shape))
    if axis == 0 and len(data.shape) == 2:
        return first(node, node.run("embedding", [node.id(0), node.id(1)], "weight indices"))
    return first(node, node.run("index_select", [node.id(0), node.id(1)], "self index", {"dim": axis}))


def one_hot(node: Node) -> list[OnnxTensor]:
    """Zeros, and ones scattered into them."""
    value = node.run("zeros", [], "", {"size": node.shape, "dtype": node.dtype})
    node.run("aten.scatter_.value", [value, node.id(0)], "self index", {"dim": -1, "value": 1}, [value])
    return first(node, value)


def hardmax(node: Node) -> list[OnnxTensor]:
    """Zeros, and a one at the place of the largest element of each row."""
    axis = node.attributes.get("axis", -1)
    shape = list(node.shape)
    shape[axis] = 1
    places = node.run("argmax", [node.id(0)], "self", {"dim": axis, "keepdim": True}, [node.new(shape, "int64")])
    value = node.run("zeros", [], "", {"size": node.shape, "dtype": node.dtype})
    node.run("aten.scatter_.value", [value, places], "self index", {"dim": axis, "value": 1}, [value])
    return first(node, value)


def padded(node: Node) -> list[OnnxTensor]:
    """Constants around an array, or its own elements (reflect, edge)."""
    pads = node.numbers(1)
    axes = node.numbers(3, range(len(pads) // 2))
    rank, half = len(node.need(0).shape), len(pads) // 2
    around = {axis % rank: (pads[i], pads[i + half]) for i, axis in enumerate(axes)}
    least = min((axis for axis, pad in around.items() if any(pad)), default=rank)
    flat = [n for axis in range(rank - 1, least - 1, -1) for n in around.get(axis, (0, 0))]
    if not flat:
        return identity(node)
    mode = node.attributes.get("mode", b"constant").decode()
    if mode == "constant":
        return first(node, node.run("constant_pad_nd", [node.id(0)], "self", {"pad": flat, "value": 0}))
    name = {"reflect": "reflection", "edge": "replication", "wrap": "circular"}[mode]
    op = f"{name}_pad{len(flat) // 2}d"
    return first(node, node.run(op, [node.id(0)], "self", {"padding": flat}))


def resized(node: Node) -> list[OnnxTensor]:
    """Places interpolated: the nearest, along lines or by cubics; the first two axes stay unless the file says
    otherwise."""
    data = node.need(0)
    if data.shape == node.shape:
        return identity(node)
    moved = [axis for axis, size in enumerate(data.shape) if size != node.shape[axis]]
    rank = len(data.shape) - 2 if moved[0] >= 2 else len(moved)
    mode = node.attributes.get("mode", b"nearest").decode()
    lines = {1: "linear1d", 2: "bilinear2d", 3: "trilinear3d"}
    name = {"nearest": f"nearest{rank}d", "linear": lines.get(rank, ""), "cubic": "bicubic2d"}[mode]
    said: dict[str, Any] = {"output_size": node.shape[2:]}
    if mode != "nearest":
        said["align_corners"] = node.attributes.get("coordinate_transformation_mode") == b"align_corners"
    return first(node, node.run(f"upsample_{name}", [node.id(0)], "self", said))


_ALL_KEPT = "NonZero, Compress and Unique: all elements are assumed to be kept"


def nonzero(node: Node) -> list[OnnxTensor]:
    """The places of elements that are not zero: all of them, as none are known."""
    node.notes[_ALL_KEPT] = None
    return first(node, node.run("nonzero", [node.id(0)], "self"))


def compressed(node: Node) -> list[OnnxTensor]:
    """The elements where a condition holds: all of them, as none are known."""
    node.notes[_ALL_KEPT] = None
    return first(node, node.run("masked_select", [node.id(0), node.id(1)], "self mask"))


def triangle(node: Node) -> list[OnnxTensor]:
    """The upper triangle unless it says the lower."""
    diagonal = node.numbers(1, (0,))[0]
    op = "triu" if node.attributes.get("upper", 1) else "tril"
    return first(node, node.run(op, [node.id(0)], "self", {"diagonal": diagonal}))


def filled(op: str, *places: int) -> Row:
    """An array that is written and reads nothing."""

    def row(node: Node) -> list[OnnxTensor]:
        return first(node, node.run(op, [], "", {"size": node.shape, "dtype": node.dtype}))

    return row


def _axis(node: Node) -> dict[str, Any]:
    return {"dim": node.attributes.get("axis", 0)}


def _reshaped(node: Node, value: int) -> int:
    return node.reshape(value, node.shape)


MOVES: Mapping[str, Row] = {
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), viewed(_reshaped)),
    "Transpose": viewed(transposed),
    "Expand": viewed(lambda node, value: node.expand(value, node.shape)),
    "Slice": sliced,
    "Split": split,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
    "Concat": concatenated,
    "Gather": gathered,
    "GatherElements": call("gather", "self index", _axis),
    "GatherND": call("index", "self indices"),
    "ScatterElements": call("scatter", "self index src", _axis),
    "ScatterND": call("index_put", "self indices values"),
    "TensorScatter": call("index_copy", "self source index", _axis),
    "OneHot": one_hot,
    "Hardmax": hardmax,
    "ReverseSequence": call("flip", "self -"),
    "MaxUnpool": call("max_unpool2d", "self indices -"),
    "Col2Im": call("col2im", "self - -"),
    "Unique": call("_unique2"),
    "Pad": padded,
    "Tile": call("repeat", "self -", lambda node: {"repeats": node.numbers(1)}),
    "Resize": resized,
    "NonZero": nonzero,
    "Compress": compressed,
    "Trilu": triangle,
    "ConstantOfShape": filled("full"),
    "Range": filled("arange"),
    "EyeLike": filled("eye"),
    "RandomNormal": filled("randn"), "RandomNormalLike": filled("randn"),
    "RandomUniform": filled("rand"), "RandomUniformLike": filled("rand"),
    "Bernoulli": call("bernoulli"),
    "GridSample": call("grid_sampler_2d", "input grid"),
}  # fmt: skip


def _kept(node: Node) -> list[tuple[tuple[int, ...], str]]:
    shape = node.need(0).shape
    count = 1
    for size in shape:
        count *= size
    if node.op == "onnx.NonZero":
        return [((len(shape), count), "int64")]
    if node.op == "onnx.Unique":
        node.notes[_ALL_KEPT] = None
        axis = node.attributes.get("axis")
        found = count if axis is None else shape[axis]
        return [((count,) if axis is None else shape, node.need(0).dtype), *[((found,), "int64")] * 3]
    axis = node.attributes.get("axis")
    kept: Sequence[int] = (count,) if axis is None else shape
    return [(tuple(kept), node.need(0).dtype)]


#: shapes of outputs that depend on data, as large as they can be
DATA_SHAPES = {"onnx.NonZero": _kept, "onnx.Compress": _kept, "onnx.Unique": _kept}
