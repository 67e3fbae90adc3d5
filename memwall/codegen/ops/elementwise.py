"""Ops whose result has its element from the arguments' elements at the same place."""

from __future__ import annotations

from typing import Any

from memwall.codegen.index import AffineIndex, ravel
from memwall.codegen.kernel import NotGenerated
from memwall.codegen.ops.base import Made, OpRule, OpView, broadcast, constant, promoted, rules
from memwall.codegen.tensors import Body, Indices, Tensor, cast, compute_dtype, triton_dtype
from memwall.ops.expressions import UNCAST, Operands, literal, write
from memwall.ops.registry import find_row


def point(view: OpView) -> Made:
    """The result's element from its arguments' elements at the same place."""
    dtype = view.spec.dtype
    row = find_row(view.op.name)
    if row is None or row.expression is None:
        raise NotGenerated(f"no expression for {view.packet}")
    casts, expression = row.casts, row.expression
    inputs = view.inputs
    if any(len(t.shape) > len(view.spec.shape) for _, t in inputs):
        raise NotGenerated(f"{view.packet} writes over a smaller tensor")
    attributes = dict(view.op.attributes or {})
    if view.packet == "mse_loss_backward":
        attributes["count"] = view.tensor("self").numel if view.number("reduction", 1) == 1 else 1
    common = promoted([t.dtype for _, t in inputs])

    def rule(body: Body, indices: Indices) -> str:
        arguments = {}
        for name, tensor in inputs:
            text = tensor.at(body, broadcast(tensor, indices))
            if casts != "none" and name not in UNCAST:
                text = cast(text, tensor.dtype, common if casts == "common" else dtype)
            arguments[name] = text
        return write(expression, Operands(arguments, attributes, compute_dtype(dtype)))

    return [Tensor(view.spec.shape, dtype, rule)]


def _full(value: Any = None) -> OpRule:
    def rule(view: OpView) -> Made:
        given = (view.number(name) for name in ("fill_value", "value", "s"))
        number = value if value is not None else next((n for n in given if n is not None), None)
        if number is None:
            raise NotGenerated(f"the number that {view.packet} writes is not in the trace")
        return [constant(view.spec.shape, view.spec.dtype, number)]

    return rule


def _arange(view: OpView) -> Made:
    start, step = view.number("start", 0), view.number("step", 1)
    dtype = compute_dtype(view.spec.dtype)

    def rule(body: Body, indices: Indices) -> str:
        text = f"({indices[0].text})"
        if not indices[0].axes:  # a number
            text = f"tl.full([1], {indices[0].text}, {triton_dtype(dtype)})"
        if (start, step) == (0, 1):
            return cast(text, "int32", dtype) if indices[0].axes else text
        return f"({literal(start, dtype)} + {literal(step, dtype)} * {cast(text, 'int32', dtype)})"

    return [Tensor(view.spec.shape, view.spec.dtype, rule)]


def _copy(view: OpView) -> Made:
    source = view.find("src") or view.tensor("self")
    dtype = view.spec.dtype

    def rule(body: Body, indices: Indices) -> str:
        return cast(source.at(body, broadcast(source, indices)), source.dtype, dtype)

    return [Tensor(view.spec.shape, dtype, rule)]


def _dropout(view: OpView) -> Made:
    """Philox: element ``i`` of the op's result is kept where number ``i`` of ``seed + op`` is at least ``p``."""
    source, p = view.tensor("input"), float(view.number("p", 0.5))
    shape = view.spec.shape
    if not view.number("train", True):
        return [source, constant(shape, "bool", True)]
    scale = 1 / (1 - p) if p < 1 else 0.0

    def keep(body: Body, indices: Indices) -> str:
        place = ravel(indices, shape)
        text = f"({place.text})" if place.axes else f"tl.full([1], {place.text}, tl.int32)"
        return f"draw(seed + {view.position}, {text}, AXIS={_axis_of_quads(place)}) >= {p!r}"

    mask = Tensor(shape, "bool", keep)
    out = Tensor(
        shape, view.spec.dtype, lambda body, i: f"{source.at(body, i)} * {mask.at(body, i)}.to(tl.float32) * {scale!r}"
    )
    return [out, mask]


#: variable -> the axis of the tile along which it varies: 0 the first, 1 the last; tiles begin at multiples of 4
_AXES = {"x": 0, "m": 0, "k_right": 0, "r": 1, "n": 1, "k_left": 1}


def _axis_of_quads(place: AffineIndex) -> int:
    """The axis along which neighbours come in fours at places 4q to 4q + 3, or -1 if no such axis is known."""
    steps = [digit for digit, factor in place.terms if factor == 1 and digit.divisor == 1 and digit.modulus % 4 == 0]
    if len(steps) != 1 or place.constant % 4:
        return -1
    others = [(digit, factor) for digit, factor in place.terms if digit != steps[0]]
    same = [digit for digit, _ in others if digit.variable == steps[0].variable]
    if any(factor % 4 for _, factor in others) or any(digit.divisor % 4 for digit in same):
        return -1
    return _AXES.get(steps[0].variable.text, -1)


#: packet -> rule
RULES = rules({
    _copy: "clone contiguous _to_copy copy expand_copy view_copy slice_copy lift_fresh_copy",
    _full(): "full fill full_like new_full scalar_tensor",
    _full(0): "zeros zeros_like zero new_zeros",
    _full(1): "ones ones_like new_ones",
    _arange: "arange",
    _dropout: "native_dropout",
})  # fmt: skip
