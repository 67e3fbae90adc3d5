"""The ops of ai.onnx: node → aten calls. A row is a function of the node; :func:`call` makes the rows that are one
call.

Reshape, Transpose, Squeeze, Slice, Split, Expand and what else strides can say are views, as in torch: TensorRT and
ONNX Runtime fold most of them into the kernels around, and a kernel that needs its operand in one piece copies it.
A constant of one element is a number in the kernel's text, as TensorRT folds it, and no tensor that is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from memwall.frontend.onnx.node import Node, OnnxTensor

Row = Callable[[Node], Sequence[OnnxTensor]]
#: what a row says of the attributes of its call
Attributes = Callable[[Node], dict[str, Any]]
Shapes = Callable[[Node], list[tuple[tuple[int, ...], str]]]


def call(op: str, arguments: str = "self", attributes: Attributes | None = None) -> Row:
    """One call on the operands in order; ``-`` in ``arguments`` leaves an operand out."""
    names = arguments.split()

    def row(node: Node) -> list[OnnxTensor]:
        given = [i for i, name in enumerate(names) if name != "-" and node.has(i)]
        outputs = node.news()
        said = attributes(node) if attributes else {}
        node.run(op, [node.id(i) for i in given], [names[i] for i in given], said, outputs)
        return in_places(node, outputs)

    return row


def in_places(node: Node, outputs: Sequence[int]) -> list[OnnxTensor]:
    """The tensors of some values in the places of the outputs that the file uses."""
    rest = iter(node.made_of(outputs))
    return [OnnxTensor((), "bool") if made is None else next(rest) for made in node.made]


def first(node: Node, value: int) -> list[OnnxTensor]:
    """A value as the first output."""
    return [OnnxTensor(node.shape, node.dtype, value)]


def binary(op: str, swapped: str = "", **attributes: Any) -> Row:
    """A function of two tensors, or of a tensor and a number. ``swapped`` is the op that takes the number first."""

    def row(node: Node) -> list[OnnxTensor]:
        left, right = node.need(0), node.need(1)
        if right.scalar is not None and left.scalar is None:
            value = node.run(op, [node.id(0)], "self", {"other": right.scalar, **attributes})
        elif left.scalar is not None and right.scalar is None and swapped:
            value = node.run(swapped, [node.id(1)], "self", {"other": left.scalar, **attributes})
        else:
            value = node.run(op, [node.id(0), node.id(1)], "self other", attributes)
        return first(node, value)

    return row


def chained(op: str, after: str = "") -> Row:
    """The same function of two over all operands, one after another."""

    def row(node: Node) -> list[OnnxTensor]:
        value = node.id(0)
        for i in range(1, len(node.inputs)):
            value = node.run(op, [value, node.id(i)], "self other", outputs=[node.new()])
        if after:
            value = node.run(after, [value], "self", {"other": len(node.inputs)}, [node.new()])
        return first(node, value)

    return row


def compared(node: Node) -> list[tuple[tuple[int, ...], str]]:
    """The shape of a truth for each pair of elements of two operands."""
    return [(np.broadcast_shapes(node.need(0).shape, node.need(1).shape), "bool")]


# -- pointwise ---------------------------------------------------------------------------------------------------------


def power(node: Node) -> list[OnnxTensor]:
    """``pow``; an exponent that is a number is multiplied out."""
    exponent = node.need(1).scalar
    if exponent is not None:
        return first(node, node.run("aten.pow.Tensor_Scalar", [node.id(0)], "self", {"exponent": exponent}))
    return first(node, node.run("aten.pow.Tensor_Tensor", [node.id(0), node.id(1)], "self exponent"))


def divided(node: Node) -> list[OnnxTensor]:
    """A number over a tensor is the tensor's reciprocal, times the number unless that is 1, as in torch."""
    above = node.need(0).scalar
    if above is None or node.need(1).scalar is not None:
        return list(binary("aten.div.Tensor")(node))
    value = node.run("reciprocal", [node.id(1)], "self", outputs=[node.new()])
    if above != 1:
        value = node.run("aten.mul.Tensor", [value], "self", {"other": above}, [node.new()])
    return first(node, value)


def clip(node: Node) -> list[OnnxTensor]:
    """Bounds that are numbers, else tensors."""
    bounds = {name: node.need(i) for i, name in ((1, "min"), (2, "max")) if node.has(i)}
    said = {name: tensor.scalar for name, tensor in bounds.items() if tensor.scalar is not None}
    read = [name for name in bounds if name not in said]
    return first(node, node.run("clamp", [node.id(0), *(node.placed(bounds[n]) for n in read)], ["self", *read], said))


def cast(node: Node) -> list[OnnxTensor]:
    """A conversion; none where the dtype is the same."""
    if node.need(0).dtype == node.dtype:
        return identity(node)
    return first(node, node.run("_to_copy", [node.id(0)], "self", {"dtype": node.dtype}))


def identity(node: Node) -> list[OnnxTensor]:
    """What it reads; nothing reads the mask of a Dropout that drops nothing."""
    node.writer.free(node.op)
    made = node.need(0)
    if made.numbers is None:
        node.placed(made)
    return [replace(made), *(OnnxTensor(*(one or ((), "bool"))) for one in node.made[1:])]


def softsign(node: Node) -> list[OnnxTensor]:
    """x / (1 + |x|)."""
    size = node.run("abs", [node.id(0)], "self", outputs=[node.new()])
    more = node.run("aten.add.Tensor", [size], "self", {"other": 1, "alpha": 1}, [node.new()])
    return first(node, node.run("aten.div.Tensor", [node.id(0), more], "self other"))


def _named(**names: tuple[str, Any]) -> Attributes:
    """Attributes of a call from the attributes of the node: ``alpha=("negative_slope", 0.01)`` with the default of
    ONNX."""
    return lambda node: {to: node.attributes.get(name, default) for name, (to, default) in names.items()}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _gelu(node: Node) -> dict[str, Any]:
    return {"approximate": _text(node.attributes.get("approximate", "none"))}


POINTWISE: Mapping[str, Row] = {
    **{name: call(name.lower()) for name in (
        "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor",
        "Hardswish", "Mish", "Log", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus",
        "Sqrt", "Tan", "Tanh", "IsInf", "IsNaN", "Selu", "HardSwish",
    )},
    "Not": call("logical_not"),
    "BitwiseNot": call("bitwise_not"),
    "Swish": call("silu"),
    "Softsign": softsign,
    "Elu": call("elu", "self", _named(alpha=("alpha", 1.0))),
    "Celu": call("celu", "self", _named(alpha=("alpha", 1.0))),
    "HardSigmoid": call("hardsigmoid"),
    "LeakyRelu": call("leaky_relu", "self", _named(alpha=("negative_slope", 0.01))),
    "ThresholdedRelu": call("threshold", "self", _named(alpha=("threshold", 1.0))),
    "Shrink": call("hardshrink", "self", _named(lambd=("lambd", 0.5))),
    "Gelu": call("gelu", "self", _gelu),
    "PRelu": call("_prelu_kernel", "self weight"),
    "Add": binary("aten.add.Tensor", "aten.add.Tensor", alpha=1),
    "Sub": binary("aten.sub.Tensor", "aten.rsub.Scalar", alpha=1),
    "Mul": binary("aten.mul.Tensor", "aten.mul.Tensor"),
    "Div": divided,
    "Mod": binary("aten.remainder.Tensor"),
    "And": binary("logical_and"), "Or": binary("logical_or"), "Xor": binary("logical_xor"),
    "BitwiseAnd": binary("aten.bitwise_and.Tensor"), "BitwiseOr": binary("aten.bitwise_or.Tensor"),
    "BitwiseXor": binary("aten.bitwise_xor.Tensor"), "BitShift": binary("bitwise_left_shift"),
    "Equal": binary("aten.eq.Tensor", "aten.eq.Tensor"),
    "Less": binary("aten.lt.Tensor", "aten.gt.Tensor"), "LessOrEqual": binary("aten.le.Tensor", "aten.ge.Tensor"),
    "Greater": binary("aten.gt.Tensor", "aten.lt.Tensor"), "GreaterOrEqual": binary("aten.ge.Tensor", "aten.le.Tensor"),
    "Max": chained("maximum"), "Min": chained("minimum"),
    "Sum": chained("aten.add.Tensor"), "Mean": chained("aten.add.Tensor", "aten.div.Tensor"),
    "Pow": power,
    "Where": call("aten.where.self", "condition self other"),
    "Clip": clip,
    "Cast": cast, "CastLike": cast,
    "Identity": identity, "Dropout": identity,
}  # fmt: skip


# -- reductions and rows -----------------------------------------------------------------------------------------------


def _axes(node: Node) -> tuple[int, ...]:
    rank = len(node.need(0).shape)
    given = node.attributes.get("axes") or node.numbers(1, ())
    if not given and node.attributes.get("noop_with_empty_axes"):
        return ()
    return tuple(sorted(axis % rank for axis in given or range(rank)))


def reduced(op: str, before: str = "", after: str = "", **said: Any) -> Row:
    """A reduction over some axes, of what ``before`` makes; ``after`` is called on its result."""

    def row(node: Node) -> list[OnnxTensor]:
        axes, data = _axes(node), node.id(0)
        if not axes:
            return identity(node)
        if before:
            spec = node.spec(data)
            attributes = {"exponent": 2} if before.startswith("aten.pow") else {}
            data = node.run(before, [data], "self", attributes, [node.new(spec.shape, spec.dtype)])
        keep = bool(node.attributes.get("keepdims", 1))
        value = node.run(op, [data], "self", {"dim": axes, "keepdim": keep, **said})
        if after:
            value = node.run(after, [value], "self", outputs=[node.new()])
        return first(node, value)

    return row


def _place(node: Node) -> dict[str, Any]:
    return {"dim": node.attributes.get("axis", 0), "keepdim": bool(node.attributes.get("keepdims", 1))}


def _row(node: Node) -> dict[str, Any]:
    return {"dim": node.attributes.get("axis", -1), "half_to_float": False}


def _scanned(node: Node) -> dict[str, Any]:
    return {"dim": node.numbers(1)[0]}


def _top(node: Node) -> dict[str, Any]:
    return {
        "k": node.numbers(1)[0],
        "dim": node.attributes.get("axis", -1),
        "largest": bool(node.attributes.get("largest", 1)),
        "sorted": bool(node.attributes.get("sorted", 1)),
    }


def normalised(node: Node) -> list[OnnxTensor]:
    """LpNormalization: each row over its norm, in two kernels, as torch's ``normalize``."""
    axis = node.attributes.get("axis", -1)
    shape = list(node.shape)
    shape[axis] = 1
    said = {"ord": node.attributes.get("p", 2), "dim": (axis,), "keepdim": True}
    length = node.run("linalg_vector_norm", [node.id(0)], "self", said, [node.new(shape)])
    return first(node, node.run("aten.div.Tensor", [node.id(0), length], "self other"))


def layer_norm(node: Node) -> Sequence[OnnxTensor]:
    """Of all axes from ``axis`` on; statistics are written where the file asks for them."""
    data = node.need(0)
    shape = data.shape[node.attributes.get("axis", -1) % len(data.shape) :]
    whole = node.op == "onnx.LayerNormalization"
    op, names = ("native_layer_norm", "input weight bias") if whole else ("_fused_rms_norm", "input weight")
    said = {"normalized_shape": shape, "eps": node.attributes.get("epsilon", 1e-5)}
    return call(op, names, lambda _: said)(node)


def group_norm(node: Node) -> Sequence[OnnxTensor]:
    """Of groups of channels; an instance norm has a group for each channel."""
    images, channels, *places = node.need(0).shape
    groups = node.attributes.get("num_groups", channels)
    said = {"N": images, "C": channels, "HxW": prod(places), "group": groups}
    return call("native_group_norm", "input weight bias", lambda n: {**said, "eps": n.attributes.get("epsilon", 1e-5)})(
        node
    )


def batch_norm(node: Node) -> Sequence[OnnxTensor]:
    """With given statistics, or of the batch where it says ``training_mode``."""
    said = {
        "training": bool(node.attributes.get("training_mode", 0)),
        "momentum": 1 - node.attributes.get("momentum", 0.9),
        "eps": node.attributes.get("epsilon", 1e-5),
    }
    return call("native_batch_norm", "input weight bias running_mean running_var", lambda _: said)(node)


ROWWISE: Mapping[str, Row] = {
    "ReduceSum": reduced("aten.sum.dim_IntList"),
    "ReduceMean": reduced("aten.mean.dim"),
    "ReduceMax": reduced("amax"),
    "ReduceMin": reduced("amin"),
    "ReduceProd": reduced("aten.prod.dim_int"),
    "ReduceL1": reduced("linalg_vector_norm", ord=1),
    "ReduceL2": reduced("linalg_vector_norm", ord=2),
    "ReduceLogSumExp": reduced("logsumexp"),
    "ReduceLogSum": reduced("aten.sum.dim_IntList", after="log"),
    "ReduceSumSquare": reduced("aten.sum.dim_IntList", before="aten.pow.Tensor_Scalar"),
    "ArgMax": call("argmax", "self", _place),
    "ArgMin": call("argmin", "self", _place),
    "CumSum": call("cumsum", "self -", _scanned),
    "CumProd": call("cumprod", "self -", _scanned),
    "TopK": call("topk", "self -", _top),
    "Softmax": call("_softmax", "self", _row),
    "LogSoftmax": call("_log_softmax", "self", _row),
    "LpNormalization": normalised,
    "LayerNormalization": layer_norm,
    "SimplifiedLayerNormalization": layer_norm,
    "RMSNormalization": layer_norm,
    "GroupNormalization": group_norm,
    "InstanceNormalization": group_norm,
    "BatchNormalization": batch_norm,
}  # fmt: skip
