"""What keeps an expression small while it runs, since anybody may write one: numbers, lists, ops and their results."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from memwall.core import compat
from memwall.core.errors import UsageError

ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mult": operator.mul, "Div": operator.truediv, "MatMult": operator.matmul,
    "FloorDiv": operator.floordiv, "Mod": operator.mod, "LShift": operator.lshift, "RShift": operator.rshift,
    "Pow": operator.pow, "BitAnd": operator.and_, "BitOr": operator.or_, "BitXor": operator.xor,
}  # fmt: skip
_LARGEST, _MOST_SHIFT = 1 << 62, 62
#: ops of an expression and their operands; items of a list, and results of an op
_MOST_OPS, MOST_ITEMS = 20_000, 10_000
#: numbers of a tensor from which it has no data
_MOST_NUMBERS = 1 << 24
#: ops that make a tensor of each part → the parts of a dimension of ``size``, of the argument behind the tensor
_PARTS: Mapping[str, Callable[[int, Any], float]] = {
    "unbind": lambda size, _: size,
    **dict.fromkeys(("split", "unsafe_split"), lambda size, each: size / max(each, 1) if type(each) is int else 0),
    **dict.fromkeys(("chunk", "unsafe_chunk"), lambda size, count: min(size, count)),
}


def computed(name: str, left: Any, right: Any) -> Any:
    """``left`` and ``right`` joined by an operator of :mod:`ast`: tensors and numbers, of which none grows without
    end. Raises UsageError: a number is too large, or one of them is no number."""
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return ARITHMETIC[name](left, right)
    numbers = all(isinstance(each, (int, float, complex)) for each in (left, right))
    try:
        is_long = name in ("Pow", "LShift") and not abs(right) <= _MOST_SHIFT
        made = ARITHMETIC[name](left, right) if numbers and not is_long else math.inf
    except (ZeroDivisionError, TypeError, OverflowError, ValueError):
        made = math.inf
    if not abs(made) <= _LARGEST:
        raise UsageError("it is no number, or too large")
    return made


def listed(items: list[Any] | tuple[Any, ...]) -> list[Any] | tuple[Any, ...]:
    """A list of an expression. Raises UsageError: it has too many items, counted with the items of lists in it."""
    if _leaves(items) > MOST_ITEMS:
        raise UsageError(f"a list in an expression has at most {MOST_ITEMS:,} items")
    return items


def _leaves(item: Any) -> int:
    return sum(map(_leaves, item)) if type(item) in (list, tuple) else 1


class Restraint(compat.TorchDispatchMode):
    """While open, there are not too many ops, none has too many results, and large tensors have no data."""

    def __init__(self) -> None:
        super().__init__()
        self._ops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        items = [*_items((*args, *kwargs.values()))]
        tensors = [item for item in items if isinstance(item, torch.Tensor)]
        self._ops += max(len(tensors), 1)
        if self._ops > _MOST_OPS:
            raise UsageError(f"an expression has at most {_MOST_OPS:,} ops and operands of ops")
        named = [argument.name for argument in compat.schema(func).arguments]
        if name in _PARTS and tensors[0].dim():
            given = dict(zip(named, args, strict=False)) | kwargs
            if _PARTS[name](tensors[0].shape[given.get("dim", 0)], args[1] if len(args) > 1 else 0) > MOST_ITEMS:
                raise UsageError(f"{name} has at most {MOST_ITEMS:,} results")
        on_host = [tensor.numel() for tensor in tensors if not tensor.is_meta]
        numbers = _numbers((*args, *kwargs.values())) * math.prod(on_host)
        if numbers > _MOST_NUMBERS:
            if (on_host and "device" not in named) or name == "bincount":
                raise UsageError(f"{name} makes more than {_MOST_NUMBERS:,} numbers that are written out")
            if not tensors and "device" in named:
                kwargs = {**kwargs, "device": torch.device("meta")}
        return func(*args, **kwargs)


def _items(given: Iterable[Any]) -> Iterator[Any]:
    for each in given:
        if isinstance(each, (list, tuple)):
            yield from each
        else:
            yield each


def _numbers(given: Iterable[Any]) -> float:
    """The most numbers that options of an op may ask for."""
    most = 1.0
    for each in given:
        if isinstance(each, (list, tuple)):
            most = max(most, math.prod(size for size in each if type(size) is int))
        elif isinstance(each, (int, float)) and abs(each) < _LARGEST:  # a slice's end may be the largest number
            most = max(most, abs(each))
    return most
