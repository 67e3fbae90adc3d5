"""What an instruction yields within a kernel: a view, or the ops of ``jax.lax`` that compute it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memwall.core.graph import TensorSpec
from memwall.core.ranks import ranks_text
from memwall.frontend.hlo.convolutions import Window, dot_numbers, window_of
from memwall.frontend.hlo.groups import replica_groups
from memwall.frontend.hlo.libraries import LIBRARIES, OWN, target_of_call, top_k
from memwall.frontend.hlo.module import HloArray, HloInstruction, HloShape
from memwall.frontend.hlo.names import REARRANGED, SCANS, known_call, scanned_axis
from memwall.frontend.hlo.scalars import folded, primitive_of
from memwall.frontend.hlo.sheet import HloConstant, Node, Sheet
from memwall.frontend.hlo.step import HloStep
from memwall.frontend.jax.views import View, broadcast, reshaped, sliced, transposed

_SLICE = re.compile(r"\[(\d+):(\d+)(?::(\d+))?\]")


def computed(
    to: Sheet, one: HloInstruction, operands: Sequence[Node], shapes: Sequence[HloShape], in_place: bool
) -> Node:
    """What an instruction yields; an operation without a rule is an op of its name, on all that it is given."""
    step = HloStep(to, one, operands, shapes, in_place)
    if primitive := primitive_of(one):
        return _elementwise(step, primitive)
    name = one.opcode.replace("-", "_")
    rule = _RULES.get(name)
    return rule(step) if rule is not None else step.write(name, step.values())


def _elementwise(step: HloStep, name: str) -> Node:
    if step.operands and all(isinstance(node, HloConstant) for node in step.operands):
        return HloConstant(_folded(step, name))
    array = step.results[0]
    made = step.to.new(array)
    step.to.op(f"lax.{name}", step.values(), (made,), arguments=("x", "y", "z"), attributes=_said(name, array))
    if not array.shape and (known := _folded(step, name)) is not None:
        step.to.numbers[made] = known
    return made


def _said(name: str, array: HloArray) -> Mapping[str, Any]:
    return {"new_dtype": array.dtype} if name == "convert_element_type" else {}


def _folded(step: HloStep, name: str) -> float | None:
    return folded(name, [step.number(number) for number in range(len(step.operands))])


# -- views -------------------------------------------------------------------------------------------------------------


def _viewed(view: Callable[[HloStep, TensorSpec], View | None]) -> Callable[[HloStep], Node]:
    """A rule for what is another view of its first operand."""

    def rule(step: HloStep) -> Node:
        node = step.operands[0]
        if not isinstance(node, int):
            return node
        found = view(step, step.to.spec(node))
        return step.to.seen(node, found, step.results[0], f"lax.{REARRANGED[step.one.opcode]}")

    return rule


def _bitcast(step: HloStep, spec: TensorSpec) -> View | None:
    """The same bytes in another shape and layout: the axes of both from the slowest, and a reshape between them."""
    source, result = step.shapes[0], step.results[0]
    assert isinstance(source, HloArray)
    laid = result.minor_to_major[::-1]
    physical = transposed(spec, source.minor_to_major[::-1])
    found = reshaped(TensorSpec(*physical[:2], spec.dtype), [result.shape[axis] for axis in laid])
    if found is None:
        return None
    return transposed(TensorSpec(*found[:2], spec.dtype), [laid.index(axis) for axis in range(len(laid))])


def _broadcast(step: HloStep, spec: TensorSpec) -> View:
    return broadcast(spec, step.results[0].shape, step.one.integers("dimensions"))


def _reshape(step: HloStep, spec: TensorSpec) -> View | None:
    return reshaped(spec, step.results[0].shape)


def _transpose(step: HloStep, spec: TensorSpec) -> View:
    return transposed(spec, step.one.integers("dimensions"))


def _slice(step: HloStep, spec: TensorSpec) -> View:
    bounds = [[int(number or 1) for number in each] for each in _SLICE.findall(step.one.attributes["slice"])]
    starts, limits, steps = zip(*bounds, strict=True) if bounds else ((), (), ())
    return sliced(spec, starts, limits, steps)


def _dynamic_slice(step: HloStep, spec: TensorSpec) -> View:
    return _part(step, spec, 1, step.results[0].shape)


def _part(step: HloStep, spec: TensorSpec, first: int, sizes: Sequence[int]) -> View:
    """A part that begins where scalar operands say, at 0 where they cannot be told, and moved back to end within."""
    asked = [int(step.number(number) or 0) for number in range(first, len(step.operands))]
    starts = [min(max(s, 0), whole - size) for s, whole, size in zip(asked, spec.shape, sizes, strict=True)]
    return sliced(spec, starts, [start + size for start, size in zip(starts, sizes, strict=True)])


# -- places ------------------------------------------------------------------------------------------------------------


def _is_of_others(step: HloStep, node: Node) -> bool:
    return step.in_place and isinstance(node, int) and not step.to.is_made_here(node)


def _dynamic_update_slice(step: HloStep) -> Node:
    whole, update = step.operands[0], step.value(1)
    if not _is_of_others(step, whole):
        return step.write("dynamic_update_slice", [step.value(0), update], ("operand", "update"))
    assert isinstance(whole, int)
    shape = step.shapes[1]
    assert isinstance(shape, HloArray)
    part = step.to.seen(whole, _part(step, step.to.spec(whole), 2, shape.shape), shape, "lax.slice")
    step.to.op("lax.dynamic_update_slice", (update,), (part,), arguments=("update",))
    step.to.left.add(whole)
    return whole


def _scatter(step: HloStep) -> Node:
    adds = {"sum": "_add", "min": "_min", "max": "_max", "prod": "_mul"}.get(step.combined(), "")
    name, whole = f"scatter{adds}", step.operands[0]
    if len(step.operands) != 3:
        return step.write(name, step.values(), ("operand", "indices", "updates"))
    if not _is_of_others(step, whole):
        return step.write(name, step.values([0, 1, 2]), ("operand", "indices", "updates"))
    assert isinstance(whole, int)
    step.to.op(f"lax.{name}", step.values([1, 2]), (whole,), arguments=("indices", "updates"))
    step.to.left.add(whole)
    return whole


def _gather(step: HloStep) -> Node:
    sizes = {"slice_sizes": list(step.one.integers("slice_sizes"))}
    return step.write("gather", step.values([0, 1]), ("operand", "indices"), sizes)


def _concatenate(step: HloStep) -> Node:
    attributes = {"dimension": step.one.integers("dimensions")[0]}
    return step.write("concatenate", step.values(), ("operands",) * 64, attributes)


def _pad(step: HloStep) -> Node:
    if isinstance(step.operands[0], HloConstant):
        return HloConstant()
    return step.write("pad", step.values([0]), ("operand",))


def _iota(step: HloStep) -> Node:
    return step.write("iota", ())


# -- reductions --------------------------------------------------------------------------------------------------------


def _reduce(step: HloStep) -> Node:
    half = len(step.operands) // 2
    data = [node for node in step.operands[:half] if isinstance(node, int)]
    kind = step.combined()
    axes = {"axes": list(step.one.integers("dimensions"))}
    if not data:
        return HloConstant() if half == 1 else tuple(HloConstant() for _ in range(half))
    name = (f"reduce_{kind}" if kind else "") if half == 1 else step.extreme() if half == 2 else ""
    return step.write(name or "reduce", data, ("operand",) * half, axes)


def _reduce_window(step: HloStep) -> Node:
    half, kind = len(step.operands) // 2, step.combined()
    said = window_of(step.one)
    rank = len(step.results[0].shape)
    window, steps = (
        [int(n) for n in said[key].split("x")] if key in said else [1] * rank for key in ("size", "stride")
    )
    pads = [[int(n) for n in pad.split("_")] for pad in said["pad"].split("x")] if "pad" in said else [[0, 0]] * rank
    axis = scanned_axis(window, steps, pads, step.results[0].shape)
    if axis >= 0 and kind in SCANS and half == 1 and not step.to.program.is_scheduled:  # compilers look for scans here
        return step.write(SCANS[kind], step.values([0]), ("operand",), {"axis": axis})
    name = f"reduce_window_{kind}" if kind in ("sum", "max", "min") and half == 1 else "reduce_window"
    return step.write(name, step.values(range(half)), ("operand",) * half, {"window_dimensions": window})


def _sort(step: HloStep) -> Node:
    attributes = {"dimension": step.one.integers("dimensions")[0], "num_keys": 1}
    return step.write("sort", step.values(range(len(step.operands))), ("operand",) * 8, attributes)


def _fft(step: HloStep) -> Node:
    attributes = {"fft_lengths": list(step.one.integers("fft_length"))}
    return step.write("fft", step.values([0]), ("operand",), attributes)


# -- products ----------------------------------------------------------------------------------------------------------


def _dot(step: HloStep) -> Node:
    return step.write("dot_general", step.values([0, 1]), ("lhs", "rhs"), dot_numbers(step.one))


def _convolution(step: HloStep) -> Node:
    window = Window.of(step.one, [step.array(0), step.array(1), step.results[0]])
    is_dot = step.to.program.is_of_tpu or not window.axes
    numbers = window.as_dot() if is_dot else None
    if numbers is not None:
        left, right = step.values([0, 1])
        starts, limits = zip(*window.part(step.array(0)), strict=True)
        met = sliced(step.to.spec(left), starts, limits)
        if met.shape != step.to.spec(left).shape:
            left = step.to.view(left, *met)
        return step.write("dot_general", [left, right], ("lhs", "rhs"), numbers)
    return step.write("conv_general_dilated", step.values([0, 1]), ("lhs", "rhs"), window.attributes())


def _custom_call(step: HloStep) -> Node:
    target = target_of_call(step.one)
    for prefix, rule in LIBRARIES.items():
        if target.startswith(prefix):
            return rule(step)
    if primitive := known_call(target):
        return step.write(primitive, step.values())
    estimate = step.one.backend_config.get("custom_call_config", {}).get("cost_estimate")
    attributes = {"target": target, "cost_estimate": estimate}
    return step.write("pallas_call" if target in OWN else "custom_call", step.values(), ("operand",) * 64, attributes)


# -- messages ----------------------------------------------------------------------------------------------------------

#: collective → the op that is costed as it
MESSAGES = {
    **{name: f"lax.{name}" for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")},
    "ragged_all_to_all": "lax.all_to_all",
    "collective_broadcast": "lax.collective_broadcast",
    "collective_permute": "lax.ppermute",
}


def _message(step: HloStep) -> Node:
    name = step.one.opcode.replace("-", "_")
    groups = replica_groups(step.one, step.to.program.partitions)
    attributes = {"ranks": len(groups), "group": ranks_text(groups)}
    made = [step.to.new(array) for array in step.results]
    step.to.op(MESSAGES[name], step.values(), made, arguments=("input",) * 64, attributes=attributes)
    return made[0] if len(made) == 1 else tuple(made)


_RULES: Mapping[str, Callable[[HloStep], Node]] = {
    "bitcast": _viewed(_bitcast),
    "broadcast": _viewed(_broadcast),
    "reshape": _viewed(_reshape),
    "transpose": _viewed(_transpose),
    "slice": _viewed(_slice),
    "dynamic_slice": _viewed(_dynamic_slice),
    "dynamic_update_slice": _dynamic_update_slice,
    "scatter": _scatter,
    "gather": _gather,
    "concatenate": _concatenate,
    "pad": _pad,
    "iota": _iota,
    "reverse": lambda step: step.write("rev", step.values([0]), ("operand",)),
    "reduce": _reduce,
    "reduce_window": _reduce_window,
    "select_and_scatter": lambda step: step.write("select_and_scatter_add", step.values([1, 0]), ("source", "operand")),
    "sort": _sort,
    "topk": top_k,
    "fft": _fft,
    "rng": lambda step: step.write("rng_uniform", ()),
    "dot": _dot,
    "convolution": _convolution,
    "custom_call": _custom_call,
    **dict.fromkeys(MESSAGES, _message),
}
