"""Values carried along while a module is built, and the places that masks stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memwall.core import compat
from memwall.frontend.torch.dispatch.tensors import flat_tensors, is_wrapper
from memwall.frontend.torch.values.known import KnownValues
from memwall.frontend.torch.values.value_rules import COPIES, INDEXED, MASKS, NONZERO
from memwall.ops.signatures import signature_of

#: what makes tensors without values, or keeps the storage: most calls while a module is built
_VALUELESS = frozenset((torch.ops.aten.empty.memory_format, torch.ops.aten.detach.default))
_HOST = torch.device("cpu")


class Carrying(compat.TorchDispatchMode):
    """While open, values are carried along and nothing is recorded: a module is built so. What is on the host meets
    what is on ``meta`` as if it were there too, as both would be on the host where weights are built with data. What
    has no value stays on ``meta`` when it is copied to the host."""

    supports_higher_order_operators = True

    def __init__(self, values: KnownValues) -> None:
        super().__init__()
        self._values = values

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _VALUELESS and not types:
            return func(*args, **kwargs)
        if any(map(is_wrapper, types)):
            return NotImplemented
        if not isinstance(func, compat.OpOverload):
            return func(*args, **kwargs)
        signature = signature_of(func)
        if signature.name not in COPIES:
            tensors = flat_tensors(args)
            if any(t.is_meta for t in tensors) and not all(t.is_meta for t in tensors):
                args = compat.tree_map_only(torch.Tensor, lambda t: t if t.is_meta else self._values.made(t), args)
        elif args[0].is_meta and kwargs.get("device") == _HOST and not self._values.has(args[0]):
            kwargs = {**kwargs, "device": args[0].device}
        if signature.name in INDEXED and all(self._values.of(mask) is not None for mask in masks_of(args)):
            args = with_places(self._values.of, args, lambda found: self._values.call(signature_of(NONZERO), found, {}))
        return self._values.call(signature, args, kwargs)


def masks_of(args: tuple) -> list[torch.Tensor]:
    """The masks among the indices of an index."""
    return [index for index in args[1] if index is not None and index.dtype in MASKS]


def with_places(
    known: Callable[[torch.Tensor], torch.Tensor | None], args: tuple, nonzero: Callable[[tuple], torch.Tensor]
) -> tuple:
    """The arguments of an index with the places that its masks stand for, which ``nonzero`` finds first; ``known`` is
    the value of a tensor."""
    masks = masks_of(args)
    # x[mask] = 0 is masked_fill (TensorAdvancedIndexing.cpp); into unknown places all may be written
    writes = len(args) > 2
    if not masks or (writes and (args[2].numel() == 1 or any(known(mask) is None for mask in masks))):
        return args
    found: list[torch.Tensor | None] = []
    for index in args[1]:
        if index is None or index.dtype not in MASKS:
            found.append(index)
        else:
            places = nonzero((index,))
            found += [places.select(1, axis) for axis in range(index.dim())]
    return (args[0], found, *args[2:])
