"""Rows of matrix products, convolutions, pooling, recurrent layers and attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from memwall.frontend.onnx.node import Node, OnnxTensor
from memwall.frontend.onnx.quantised import dequantized, in_eight_bits, of_few_bits, operand
from memwall.frontend.onnx.rows import Row, call, first

# -- matrix products ---------------------------------------------------------------------------------------------------


def multiply(node: Node, left: int, right: int, shape: Sequence[int], dtype: str, op: str = "") -> int:
    """[..., m, k] x [..., k, n] as torch's ``matmul`` runs it: a matrix on the right meets all rows at once, else the
    batches are expanded and multiplied by ``bmm``, which copies what does not lie as [batch, rows, columns]."""
    a, b = node.spec(left), node.spec(right)
    result, batch = node.new(shape, dtype), tuple(shape[: len(shape) - (len(a.shape) > 1) - (len(b.shape) > 1)])
    if len(a.shape) == 1:
        left = node.reshape(left, (1, *a.shape))
    if len(b.shape) == 1:
        right = node.reshape(right, (*b.shape, 1))
    a, b = node.spec(left), node.spec(right)
    rows, depth, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    if len(b.shape) == 2:
        count = prod(a.shape[:-1])
        left = node.reshape(left, (count, depth))
        made = node.view(result, (count, columns), (columns, 1))
        node.run(op or "mm", [left, right], "self mat2", _EXACT, [made])
        return result
    count = prod(batch)
    left = node.reshape(node.expand(left, (*batch, rows, depth)), (count, rows, depth))
    right = node.reshape(node.expand(right, (*batch, depth, columns)), (count, depth, columns))
    made = node.view(result, (count, rows, columns), (rows * columns, columns, 1))
    node.run("bmm", [left, right], "self mat2", _EXACT, [made])
    return result


#: as torch's default for products; engines that round float32 to TF32 are asked to
_EXACT = {"allow_tf32": False}


def matmul(node: Node) -> list[OnnxTensor]:
    """MatMul, and FusedMatMul of com.microsoft with its transposes."""
    if (made := of_few_bits(node)) is not None:
        return made
    op = in_eight_bits(node, (0, 1))
    left, right = (operand(node, i) if op else node.id(i) for i in (0, 1))
    if node.attributes.get("transA"):
        left = node.swapped(left)
    if node.attributes.get("transB"):
        right = node.swapped(right)
    return first(node, multiply(node, left, right, node.shape, node.dtype, op))


def gemm(node: Node) -> list[OnnxTensor]:
    """alpha A B + beta C."""
    if op := in_eight_bits(node, (0, 1)):
        return _stored_gemm(node, op)
    left, right = node.id(0), node.id(1)
    left = node.swapped(left) if node.attributes.get("transA") else left
    right = node.swapped(right) if node.attributes.get("transB") else right
    if not node.has(2):
        return first(node, node.run("mm", [left, right], "self mat2", _EXACT))
    said = {"beta": node.attributes.get("beta", 1.0), "alpha": node.attributes.get("alpha", 1.0), **_EXACT}
    return first(node, node.run("addmm", [node.id(2), left, right], "self mat1 mat2", said))


def _stored_gemm(node: Node, op: str) -> list[OnnxTensor]:
    """The same of operands in eight bits, whose C has 32."""
    left, right = operand(node, 0), operand(node, 1)
    left = node.swapped(left) if node.attributes.get("transA") else left
    right = node.swapped(right) if node.attributes.get("transB") else right
    given, names = ([operand(node, 2)], " bias") if node.has(2) else ([], "")
    return first(node, node.run(op, [left, right, *given], f"self mat2{names}", {}, [node.new()]))


def integer_product(node: Node) -> list[OnnxTensor]:
    """MatMulInteger, and QLinearMatMul with its scales."""
    right = 3 if node.op.endswith("QLinearMatMul") else 1
    return first(node, multiply(node, node.id(0), node.id(right), node.shape, node.dtype, op="_int_mm"))


def einsum(node: Node) -> list[OnnxTensor]:
    """Two operands as one batched product of permuted views, more from left to right, as ONNX Runtime does; one operand
    as a view and a sum. What is neither is kept under its own name."""
    terms, result = _einsum_axes(node)
    if any(len(set(term)) < len(term) for term in terms):
        return _kept(node)
    if len(terms) == 1:
        order = [terms[0].index(c) for c in (*result, *(c for c in terms[0] if c not in result))]
        value = node.permute(node.id(0), order)
        dims = tuple(range(len(result), len(terms[0])))
        return first(node, node.run("aten.sum.dim_IntList", [value], "self", {"dim": dims}) if dims else value)
    sizes: dict[str, int] = {}
    for i, term in enumerate(terms):
        for c, n in zip(term, node.need(i).shape, strict=True):
            sizes[c] = n if sizes.get(c, 1) == 1 else sizes[c]
    made = [terms[0]]  # what is left after each product
    for number, right in enumerate(terms[1:], 1):
        axes = dict.fromkeys(made[-1] + right)
        asked = {*result}.union(*terms[number + 1 :])
        made.append("".join(c for c in axes if c in asked) if number + 1 < len(terms) else result)
        if {*made[-1]} - {*axes} or {*axes} - {*made[-1], *({*made[-2]} & {*right})}:
            return _kept(node)  # it sums an operand alone, or repeats one
    value = node.id(0)
    for number, right in enumerate(terms[1:], 1):
        value = _product(node, (value, node.id(number)), (made[number - 1], right, made[number]), sizes)
    return first(node, value)


def _product(node: Node, values: tuple[int, int], terms: tuple[str, str, str], sizes: Mapping[str, int]) -> int:
    """The batched product of two operands, whose axes are letters, as the result's are."""
    left, right, result = terms
    batch = [c for c in result if c in left and c in right]
    rows = [c for c in result if c in left and c not in right]
    columns = [c for c in result if c in right and c not in left]
    summed = [c for c in left if c in right and c not in result]
    a, b = (node.expand(value, [sizes[c] for c in term]) for value, term in zip(values, terms, strict=False))
    a = node.permute(a, [left.index(c) for c in (*batch, *rows, *summed)])
    b = node.permute(b, [right.index(c) for c in (*batch, *summed, *columns)])
    count = [prod(sizes[c] for c in group) for group in (batch, rows, summed, columns)]
    a, b = node.reshape(a, (count[0], count[1], count[2])), node.reshape(b, (count[0], count[2], count[3]))
    made = node.run("bmm", [a, b], "self mat2", _EXACT, [node.new((count[0], count[1], count[3]))])
    whole = node.reshape(made, [sizes[c] for c in (*batch, *rows, *columns)])
    return node.permute(whole, [[*batch, *rows, *columns].index(c) for c in result])


#: names of the axes that an ellipsis stands for
_PLACES = "0123456789"


def _einsum_axes(node: Node) -> tuple[list[str], str]:
    """A character for each axis of each operand and of the result; axes of an ellipsis are told from the last one."""
    sides, arrow, result = node.attributes["equation"].decode().replace(" ", "").partition("->")
    terms = sides.split(",")
    if not arrow:
        result = "..." + "".join(sorted(c for c in set(sides) if c.isalpha() and sides.count(c) == 1))
    counts = [len(node.need(i).shape) - len(term.replace("...", "")) for i, term in enumerate(terms)]
    named = [term.replace("...", _PLACES[len(_PLACES) - n :]) for term, n in zip(terms, counts, strict=True)]
    return named, result.replace("...", _PLACES[len(_PLACES) - max(counts) :])


def _kept(node: Node) -> list[OnnxTensor]:
    places = range(len(node.inputs))
    return first(node, node.run(node.op, [node.id(i) for i in places], [f"input{i}" for i in places]))


# -- windows -----------------------------------------------------------------------------------------------------------


def _padding(node: Node, data: OnnxTensor, kernel: Sequence[int], made: Sequence[int]) -> tuple[int, ...]:
    """Elements in front of each axis; of ``auto_pad`` half of what the outputs need."""
    rank = len(kernel)
    auto = node.attributes.get("auto_pad", b"NOTSET")
    if auto in (b"SAME_UPPER", b"SAME_LOWER"):
        stride, dilation = _steps(node, "strides", rank), _steps(node, "dilations", rank)
        needed = [
            max((made[i] - 1) * stride[i] + (kernel[i] - 1) * dilation[i] + 1 - data.shape[2 + i], 0)
            for i in range(rank)
        ]
        return tuple(n // 2 if auto == b"SAME_UPPER" else -(-n // 2) for n in needed)
    pads = node.attributes.get("pads") or [0] * 2 * rank
    return tuple(max(pads[i], pads[i + rank]) for i in range(rank))


def _steps(node: Node, name: str, rank: int) -> tuple[int, ...]:
    return tuple(node.attributes.get(name) or [1] * rank)


def convolution(node: Node, data: int = 0, weight: int = 1, bias: int = 2) -> list[OnnxTensor]:
    """Conv and ConvTranspose; ConvInteger without a bias, QLinearConv with its operands among scales."""
    kernel = node.need(weight).shape[2:]
    rank = len(kernel)
    given = [(i, name) for i, name in ((data, "input"), (weight, "weight"), (bias, "bias")) if i >= 0 and node.has(i)]
    stored = bool(in_eight_bits(node, (data, weight)))
    said = {
        "stride": _steps(node, "strides", rank),
        "padding": _padding(node, node.need(data), kernel, node.shape[2:]),
        "dilation": _steps(node, "dilations", rank),
        "transposed": node.op.endswith("ConvTranspose"),
        "output_padding": tuple(node.attributes.get("output_padding") or [0] * rank),
        "groups": node.attributes.get("group", 1),
        "allow_tf32": True,  # as torch's default for convolutions
    }
    values = [operand(node, i) if stored else node.id(i) for i, _ in given]
    return first(node, node.run("convolution", values, [name for _, name in given], said))


def deformable(node: Node) -> list[OnnxTensor]:
    """DeformConv, whose operands lie in another order than torchvision's."""
    given = [(i, name) for i, name in enumerate(("input", "weight", "offset", "bias", "mask")) if node.has(i)]
    said = {"groups": node.attributes.get("group", 1), "use_mask": node.has(4), "allow_tf32": True}
    values, names = [node.id(i) for i, _ in given], [name for _, name in given]
    return first(node, node.run("torchvision.deform_conv2d", values, names, said))


def transformed(node: Node) -> list[OnnxTensor]:
    """DFT along an axis, an attribute before opset 20 and an input since, and STFT of frames, which a window weighs."""
    data = node.need(0).shape
    if node.op == "onnx.STFT":
        (points,) = node.numbers(3, node.need(2).shape if node.has(2) else None)
        said, given = {"count": prod(node.shape[:2]), "window": node.has(2)}, [0, *[2] * node.has(2)]
    else:
        (axis,) = node.numbers(2, [node.attributes.get("axis", -2)])
        (points,) = node.numbers(1, [data[axis]])
        said, given = {"count": prod(data[:-1]) // max(data[axis], 1), "window": False}, [0]
    said["points"] = points
    return first(node, node.run(node.op, [node.id(i) for i in given], [f"input{i}" for i in given], said))


def pooled(op: str) -> Row:
    """A window's largest or mean element; of one axis by the kernel of two."""

    def row(node: Node) -> list[OnnxTensor]:
        data, kernel = node.need(0), tuple(node.attributes["kernel_shape"])
        rank = len(kernel)
        said = {
            "kernel_size": kernel,
            "stride": _steps(node, "strides", rank),
            "padding": _padding(node, data, kernel, node.shape[2:]),
            "dilation": _steps(node, "dilations", rank),
            "ceil_mode": bool(node.attributes.get("ceil_mode", 0)),
        }
        value, made = node.id(0), node.new()
        if rank == 1:
            images, channels, length = data.shape
            value = node.reshape(value, (images, channels, 1, length))
            said = {name: (1 - (name == "padding"), *n) if isinstance(n, tuple) else n for name, n in said.items()}
        if op == "avg_pool":
            said["count_include_pad"] = bool(node.attributes.get("count_include_pad", 0))
            del said["dilation"]
        shape = node.shape if rank > 1 else (*node.shape[:2], 1, node.shape[2])
        outputs = [made if rank > 1 else node.reshape(made, shape)]
        name = f"{op}{max(rank, 2)}d"
        if len(node.made) > 1 and node.made[1] is not None:
            outputs.append(node.new(shape, "int64"))
            name += "_with_indices"
        node.run(name, [value], "self", said, outputs)
        return [OnnxTensor(node.shape, node.dtype, made), *node.made_of(outputs[1:])]

    return row


def over_places(op: str, **said: Any) -> Row:
    """A reduction over all places of each channel."""

    def row(node: Node) -> list[OnnxTensor]:
        axes = tuple(range(2, len(node.need(0).shape)))
        return first(node, node.run(op, [node.id(0)], "self", {"dim": axes, "keepdim": True, **said}))

    return row


# -- recurrent layers --------------------------------------------------------------------------------------------------

#: numbers of cuDNN's cells (:mod:`memwall.ops.recurrent`)
_CELLS = {"onnx.RNN": 1, "onnx.LSTM": 2, "onnx.GRU": 3}


def recurrent(node: Node) -> list[OnnxTensor]:
    """X [steps, batch, inputs], W, R and B of each direction, and states: one call of a library, as torch's layers."""
    directions = node.need(1).shape[0]
    weights: list[int] = []
    for each in range(directions):
        for i in (1, 2):
            part = node.part(node.id(i), 0, each, 1)
            weights.append(node.reshape(part, node.need(i).shape[1:]))
        if node.has(3):
            both = node.need(3).shape[1]
            line = node.reshape(node.part(node.id(3), 0, each, 1), (both,))
            weights += [node.part(line, 0, start, both // 2) for start in (0, both // 2)]
    states = [(i, name) for i, name in ((5, "hx"), (6, "cx")) if node.has(i)]
    said = {
        "mode": _CELLS[node.op],
        "hidden_size": node.attributes.get("hidden_size", node.need(2).shape[-1]),
        "num_layers": 1,
        "batch_first": bool(node.attributes.get("layout", 0)),
        "bidirectional": directions == 2,
        "has_biases": node.has(3),
        "dropout": 0.0,
        "allow_tf32": True,  # as torch's default for cuDNN
    }
    names = ["input", *(name for _, name in states), *["weight"] * len(weights)]
    return call_of(node, "_cudnn_rnn", [node.id(0), *(node.id(i) for i, _ in states), *weights], names, said)


def call_of(
    node: Node, op: str, inputs: Sequence[int], arguments: Sequence[str], said: Mapping[str, Any]
) -> list[OnnxTensor]:
    """A call on operands that were made for it, into all outputs that the file uses."""
    outputs = node.news()
    node.run(op, inputs, arguments, said, outputs)
    rest = iter(outputs)
    return [OnnxTensor((), "bool") if made is None else OnnxTensor(*made, next(rest)) for made in node.made]


PRODUCTS: Mapping[str, Row] = {
    "MatMul": matmul,
    "Gemm": gemm,
    "MatMulInteger": integer_product,
    "QLinearMatMul": integer_product,
    "Einsum": einsum,
    "Conv": convolution,
    "ConvTranspose": convolution,
    "ConvInteger": lambda node: convolution(node, bias=-1),
    "QLinearConv": lambda node: convolution(node, weight=3, bias=8),
    "MaxPool": pooled("max_pool"),
    "AveragePool": pooled("avg_pool"),
    "GlobalAveragePool": over_places("aten.mean.dim"),
    "GlobalMaxPool": over_places("amax"),
    "LSTM": recurrent, "GRU": recurrent, "RNN": recurrent,
    "DequantizeLinear": dequantized,
    "QuantizeLinear": call("quantize_per_tensor", "self scale zero_point"),
    "DynamicQuantizeLinear": call("quantize_per_tensor_dynamic"),
    "DFT": transformed,
    "STFT": transformed,
    "Det": call("_linalg_det", "A"),
    "DeformConv": deformable,
    "RoiAlign": call("torchvision.roi_align", "input rois batch"),
    "NonMaxSuppression": call("torchvision.nms", "dets scores"),
}  # fmt: skip
