"""What ops return on ``meta``, worked out once for each kind of call.

torch's shape functions are Python for the most part: some take a millisecond. The look of a result follows from the
look of the arguments, so an equal call gets tensors like the first call's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from memwall.core import compat
from memwall.frontend.torch.dispatch.tensors import flat_tensors

_TENSORS = (torch.Tensor, nn.Parameter)


class _FreshTensor(NamedTuple):
    """A fresh tensor without its storage."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype

    def made(self) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")


class Results:
    """The results of one trace's calls by op and by the look of its arguments."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def of(self, function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """What an op returns that writes no argument, whose results are new tensors and depend on no data. Where
        another dispatch mode watches, all calls are made."""
        if compat.dispatch_mode_count():
            return function(*args, **kwargs)
        given = (*args, *kwargs.values())
        looks = [_look(item) for item in given]
        key = (function, torch.get_default_dtype(), tuple(kwargs), *looks)
        try:
            known = None if None in looks else self._known.get(key, _NOTHING)
        except TypeError:  # what cannot be hashed
            known = None
        if known is None:
            return function(*args, **kwargs)
        if known is _NOTHING:
            result = function(*args, **kwargs)
            self._known[key] = _kept(result, given)
            return result
        kind, items = known
        made = [item.made() if type(item) is _FreshTensor else item for item in items]
        return made[0] if kind is torch.Tensor else kind(made)


#: a call that has not been made
_NOTHING = object()


def _look(item: Any) -> Any:
    """What a call's result may depend on of an argument; None where that is more than can be told."""
    kind = type(item)
    if kind in _TENSORS:
        if not item.is_meta or item.layout is not torch.strided or item.is_conj() or item.is_neg():
            return None
        return item.shape, item.stride(), item.dtype
    if kind is list or kind is tuple:
        looks = [_look(each) for each in item]
        return None if None in looks else (kind, *looks)
    return None if isinstance(item, torch.Tensor) else (kind, item)


def _kept(result: Any, args: Sequence[Any]) -> tuple[Any, tuple[Any, ...]] | None:
    """How to make a result again: what holds its parts, and those; None where it is more than new tensors."""
    kind = type(result)
    parts = (result,) if kind is torch.Tensor else tuple(result) if kind in (tuple, list) else None
    if parts is None:
        return None
    storages = {compat.cdata(tensor.untyped_storage()) for tensor in flat_tensors(args)}
    items: list[Any] = []
    for part in parts:
        if isinstance(part, torch.Tensor):
            look = _fresh(part)
            if look is None or compat.cdata(part.untyped_storage()) in storages:
                return None
            storages.add(compat.cdata(part.untyped_storage()))
            items.append(look)
        elif part is None or type(part) in (bool, int, float):
            items.append(part)
        else:
            return None
    return kind, tuple(items)


def _fresh(tensor: torch.Tensor) -> _FreshTensor | None:
    """The look of a tensor that fills its storage as a new one would."""
    if type(tensor) is not torch.Tensor or _look(tensor) is None or tensor.storage_offset():
        return None
    look = _FreshTensor(tensor.shape, tensor.stride(), tensor.dtype)
    return look if look.made().untyped_storage().nbytes() == tensor.untyped_storage().nbytes() else None
