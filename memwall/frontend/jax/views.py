"""Primitives whose result is a view of their operand: shape and strides, in elements. Knows no JAX."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from memwall.core.graph import TensorSpec
from memwall.frontend.writing import reshape_strides


class View(NamedTuple):
    """Shape, strides and offset of a view, in elements of its operand."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


def reshaped(spec: TensorSpec, shape: Sequence[int]) -> View | None:
    """A tensor in another shape; None where its strides cannot say that, and it is copied."""
    strides = reshape_strides(spec, shape) if math.prod(shape) == spec.numel else None
    return None if strides is None else View(tuple(shape), strides)


def transposed(spec: TensorSpec, permutation: Sequence[int]) -> View:
    """The axes in another order."""
    return View(tuple(spec.shape[i] for i in permutation), tuple(spec.strides[i] for i in permutation))


def broadcast(spec: TensorSpec, shape: Sequence[int], axes: Sequence[int]) -> View:
    """Axis ``i`` of the operand becomes axis ``axes[i]``; along others, and where its size is 1, the stride is 0."""
    strides = [0] * len(shape)
    for own, axis in enumerate(axes):
        strides[axis] = spec.strides[own] if spec.shape[own] == shape[axis] != 1 else 0
    return View(tuple(shape), tuple(strides))


def sliced(spec: TensorSpec, starts: Sequence[int], limits: Sequence[int], steps: Sequence[int] | None = None) -> View:
    """From each start up to its limit."""
    each = steps or (1,) * len(starts)
    sizes = [max(-(-(limit - start) // step), 0) for start, limit, step in zip(starts, limits, each, strict=True)]
    strides = [own * step for own, step in zip(spec.strides, each, strict=True)]
    return View(tuple(sizes), tuple(strides), sum(s * own for s, own in zip(starts, spec.strides, strict=True)))


def squeezed(spec: TensorSpec, axes: Sequence[int]) -> View:
    """Without some axes of size 1."""
    kept = [i for i in range(len(spec.shape)) if i not in {axis % len(spec.shape) for axis in axes}]
    return transposed(spec, kept)


def item(spec: TensorSpec, index: int) -> View:
    """One element of the first axis."""
    return View(spec.shape[1:], spec.strides[1:], index * spec.strides[0])


def parts(spec: TensorSpec, sizes: Sequence[int], axis: int) -> list[View]:
    """The pieces of an axis, one after another."""
    found, start = [], 0
    for size in sizes:
        shape = (*spec.shape[:axis], size, *spec.shape[axis + 1 :])
        found.append(View(shape, spec.strides, start * spec.strides[axis]))
        start += size
    return found


#: primitive → its views, by its parameters and the shape of its result; None where it is a copy
VIEWS: Mapping[str, Callable[[TensorSpec, Mapping[str, Any], Sequence[int]], View | None]] = {
    "reshape": lambda spec, said, shape: None if said.get("dimensions") is not None else reshaped(spec, shape),
    "transpose": lambda spec, said, shape: transposed(spec, said["permutation"]),
    "broadcast_in_dim": lambda spec, said, shape: broadcast(spec, shape, said["broadcast_dimensions"]),
    "slice": lambda spec, said, shape: sliced(spec, said["start_indices"], said["limit_indices"], said.get("strides")),
    "squeeze": lambda spec, said, shape: squeezed(spec, said["dimensions"]),
    "expand_dims": lambda spec, said, shape: reshaped(spec, shape),
}
