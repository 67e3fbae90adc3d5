"""The view operators, transparent to a compiler, that lead from the tensor of a storage to one view of it.

A traced value is shape, strides and offset within a storage. ``as_strided`` could express it but stops every fusion, so
it is the last resort: most views are the storage cut into factors at their strides, each factor sliced, then permuted
and expanded. Offsets and strides are in elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from memwall.core.graph import TensorSpec


class ViewStep(NamedTuple):
    """One view operator: its name, and its arguments without the tensor."""

    name: str
    arguments: tuple[Any, ...]


def row_major_order(spec: TensorSpec) -> tuple[int, ...] | None:
    """The axes from the largest stride to the smallest; None when the elements do not fill one dense block."""
    order = sorted(range(len(spec.shape)), key=lambda i: (-spec.strides[i], spec.shape[i] == 1, i))
    expected = 1
    for axis in reversed(order):
        if spec.shape[axis] != 1:
            if spec.strides[axis] != expected:
                return None
            expected *= spec.shape[axis]
    return tuple(order)


def view_steps(base: TensorSpec, base_offset: int, wanted: TensorSpec, offset: int) -> list[ViewStep]:
    """The steps from a tensor of spec ``base`` that starts at ``base_offset`` to the view ``wanted`` at ``offset``.

    Both have one dtype and count from the start of the same storage.
    """
    if (base.shape, base.strides, base_offset) == (wanted.shape, wanted.strides, offset):
        return []
    real, real_wanted = (
        [(n, s) for n, s in zip(spec.shape, spec.strides, strict=True) if n != 1] for spec in (base, wanted)
    )
    if base_offset == offset and real == real_wanted:  # only axes of one element differ
        return [ViewStep("view", (wanted.shape,))]
    found = _cut(base, wanted, offset - base_offset)
    if found is None:
        return [ViewStep("as_strided", (wanted.shape, wanted.strides, offset))]
    return found


def _cut(base: TensorSpec, wanted: TensorSpec, offset: int) -> list[ViewStep] | None:
    """Cut the block into one factor per axis of the view, at its strides, and take a slice of each factor."""
    order = row_major_order(base)
    if order is None or offset < 0 or 0 in wanted.shape or 0 in base.shape:
        return None
    axes = [i for i, (n, s) in enumerate(zip(wanted.shape, wanted.strides, strict=True)) if n > 1 and s > 0]
    axes.sort(key=lambda i: -wanted.strides[i])
    total = prod(base.shape)
    if total == 1:
        ones = tuple(1 for _ in wanted.shape)
        return [ViewStep("view", (ones,)), *([ViewStep("expand", (wanted.shape,))] if ones != wanted.shape else [])]
    steps = [] if order == tuple(range(len(order))) else [ViewStep("permute", (order,))]
    shape = tuple(base.shape[i] for i in order)
    if axes and total % wanted.strides[axes[0]]:  # every third row of eight: the last part is less than a stride
        length = wanted.strides[axes[0]] * wanted.shape[axes[0]]
        start = min(offset, total - length)
        if start < 0:
            return None
        steps += [ViewStep("view", ((total,),)), ViewStep("slice", (0, start, start + length))]
        shape, total, offset = (length,), length, offset - start
    factors, slices = _factors(wanted, axes, total, offset)
    if factors is None:
        return None
    if tuple(factors) != shape:
        steps.append(ViewStep("view", (tuple(factors),)))
    for axis, (factor, (start, stop)) in enumerate(zip(factors, slices, strict=True)):
        if axis < len(axes) and (start, stop) != (0, factor):
            steps.append(ViewStep("slice", (axis, start, stop)))
    if len(factors) > len(axes):  # one position between two elements of the smallest stride
        steps.append(ViewStep("select", (len(axes), slices[-1][0])))
    return steps + _arrange(wanted, axes)


def _factors(
    wanted: TensorSpec, axes: Sequence[int], total: int, offset: int
) -> tuple[list[int] | None, list[tuple[int, int]]]:
    factors, slices, above = [], [], total
    for axis in axes:
        stride, size = wanted.strides[axis], wanted.shape[axis]
        if above % stride:
            return None, []
        digit, offset = divmod(offset, stride)
        factors.append(above // stride)
        slices.append((digit, digit + size))
        if digit + size > factors[-1]:
            return None, []
        above = stride
    if above > 1 or not axes:
        factors.append(above)
        slices.append((offset, offset + 1))
    return factors, slices


def _arrange(wanted: TensorSpec, axes: Sequence[int]) -> list[ViewStep]:
    """From axes in order of stride to the axes of the view: permute, insert single elements, broadcast."""
    steps = []
    order = tuple(sorted(range(len(axes)), key=lambda position: axes[position]))
    if order != tuple(range(len(axes))):
        steps.append(ViewStep("permute", (order,)))
    for axis in range(len(wanted.shape)):
        if axis not in axes:
            steps.append(ViewStep("unsqueeze", (axis,)))
    if any(n > 1 and s == 0 for n, s in zip(wanted.shape, wanted.strides, strict=True)):
        steps.append(ViewStep("expand", (wanted.shape,)))
    return steps
