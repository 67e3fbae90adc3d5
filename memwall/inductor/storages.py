"""The tensors of a replay: each storage is one tensor, each value a view of it, taken as a program would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memwall.core.graph import Graph, TensorSpec
from memwall.fusion.view_steps import ViewStep, view_steps
from memwall.ops.evaluate import dtype_of, empty


class Storages:
    """Holds the tensor of every storage and its views by value id. Forward ops take their own views, as each
    call of a layer does; backward ops use the views of forward ops, as autograd saves them, and of other backward
    ops."""

    def __init__(self, graph: Graph, device: str) -> None:
        self.graph, self.device = graph, device
        self._bases: dict[int, tuple[torch.Tensor, TensorSpec, int]] = {}
        self._views: dict[int, torch.Tensor] = {}
        self._views_of: dict[int, list[int]] = {}
        self._steps: dict[tuple[int, ViewStep], tuple[torch.Tensor, torch.Tensor]] = {}
        self._spread: dict[tuple[int, int, int], torch.Tensor] = {}
        self._sharing = False
        self._taken: set[Any] = set()

    def begin(self, phase: str) -> None:
        """Begin another op, in that phase."""
        self._sharing = phase != "forward"
        self._taken.clear()

    def whole(self, storage: int) -> torch.Tensor:
        """The tensor that holds a storage."""
        return self._bases[storage][0]

    def holds(self, storage: int) -> bool:
        """Whether a storage has contents."""
        return storage in self._bases

    def bind(self, storage: int, tensor: torch.Tensor, spec: TensorSpec, offset: int) -> None:
        """Bind a tensor to a storage; ``spec`` is how it was traced, from ``offset`` elements on."""
        for value_id in self._views_of.pop(storage, ()):
            self._views.pop(value_id, None)
        for key in [key for key in self._spread if key[0] == storage]:
            del self._spread[key]
        self._bases[storage] = (tensor, spec, offset)

    def made(self, value_id: int, tensor: torch.Tensor) -> None:
        """Record the tensor that an op made of a value, in a new storage."""
        value = self.graph.values[value_id]
        self.bind(value.storage, tensor, value.spec, value.offset)
        self._keep(value_id, tensor)

    def allocate(self, value_id: int) -> None:
        """Allocate a storage that nothing has written yet: ``empty`` is not in the trace."""
        value = self.graph.values[value_id]
        if value.storage in self._bases:
            return
        count = self.graph.storages[value.storage].nbytes // value.spec.itemsize
        spec = value.spec
        if spec.numel != count or spec.distinct_elements != count or value.offset:
            spec = TensorSpec((count,), (1,), spec.dtype)
        self.bind(value.storage, empty(spec, self.device), spec, 0)

    def view(self, value_id: int) -> torch.Tensor:
        """The tensor of a value."""
        known = self._views.get(value_id)
        if known is not None and (self._sharing or value_id in self._taken):
            return known
        value = self.graph.values[value_id]
        tensor, spec, offset = self._bases[value.storage]
        one_element = value.spec.numel > 1 and not any(value.spec.strides)
        spread = (value.storage, value.offset, value.spec.numel)
        if one_element and spread in self._spread:  # the gradient of a sum: autograd reshapes what it expanded
            tensor, spec, offset = self._spread[spread].reshape(value.spec.shape), value.spec, value.offset
        if spec.dtype != value.spec.dtype:
            tensor, spec, offset = _in_dtype(tensor, spec, offset, value.spec)
        for step in view_steps(spec, offset, value.spec, value.offset):
            tensor = self._step(tensor, step)
        if one_element:
            self._spread.setdefault(spread, tensor)
        self._keep(value_id, tensor)
        return tensor

    def is_view(self, tensor: torch.Tensor, value_id: int) -> bool:
        """Whether a tensor is the one returned for a value."""
        return tensor is self._views.get(value_id)

    def _keep(self, value_id: int, tensor: torch.Tensor) -> None:
        self._taken.add(value_id)
        self._views[value_id] = tensor
        self._views_of.setdefault(self.graph.values[value_id].storage, []).append(value_id)

    def _step(self, tensor: torch.Tensor, step: ViewStep) -> torch.Tensor:
        key = (id(tensor), step)
        if key not in self._steps or not (self._sharing or key in self._taken):
            result = tensor
            split = _SPLIT.get(step.arguments) if step.name == "permute" else None
            for arguments in split or [step.arguments]:
                result = _VIEWS[step.name](result, *arguments)
            self._steps[key] = (tensor, result)  # the tensor is kept, so that its id is not reused
            self._taken.add(key)
        return self._steps[key][1]


#: A permutation as the two transpositions of decomposed attention: heads, then the last two axes. Of three axes it is
#: what nn.MultiheadAttention does; torch.compile 2.13 fails on the permutation written as one call, and says so.
_SPLIT: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {
    ((0, 2, 3, 1),): [((0, 2, 1, 3),), ((0, 1, 3, 2),)],
    ((0, 3, 1, 2),): [((0, 1, 3, 2),), ((0, 2, 1, 3),)],
    ((1, 2, 0),): [((1, 0, 2),), ((0, 2, 1),)],
}

_ATEN: Any = torch.ops.aten

#: View step -> operator. ``reshape`` where a kernel here has another layout of its result than was traced.
_VIEWS: dict[str, Callable[..., torch.Tensor]] = {
    "view": lambda t, shape: t.reshape(shape),
    "permute": _ATEN.permute.default,
    "slice": _ATEN.slice.Tensor,
    "select": _ATEN.select.int,
    "unsqueeze": _ATEN.unsqueeze.default,
    "expand": _ATEN.expand.default,
    "as_strided": _ATEN.as_strided.default,
}


def _in_dtype(
    tensor: torch.Tensor, spec: TensorSpec, offset: int, wanted: TensorSpec
) -> tuple[torch.Tensor, TensorSpec, int]:
    """The storage as elements of another dtype; real and imaginary parts are a last axis of two."""
    dtype = dtype_of(wanted.dtype)
    if tensor.is_complex() and not dtype.is_complex:
        strides = (*(2 * s for s in spec.strides), 1)
        return torch.view_as_real(tensor), TensorSpec((*spec.shape, 2), strides, wanted.dtype), 2 * offset
    flat = tensor.reshape(-1)
    if dtype.is_complex and not tensor.is_complex():
        flat = torch.view_as_complex(flat.reshape(-1, 2))
    else:
        flat = flat.view(dtype)
    return flat, TensorSpec(tuple(flat.shape), (1,), wanted.dtype), offset * spec.itemsize // wanted.itemsize
