"""Tensors that functions remember (``functools.lru_cache``, ``functools.cache``): those of one trace are of no use to
the next one, nor to the caller's own runs."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import weakref
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch

_Cached: Any = type(functools.cache(lambda: None))
_CACHES: weakref.WeakSet[Any] = weakref.WeakSet()
_SEARCHED: set[tuple[str, int]] = set()
#: what a module with such functions has among its names
_MAKERS = frozenset(("functools", "cache", "lru_cache", "compile_compatible_method_lru_cache"))
#: packages whose caches hold no tensors of a model
_OTHERS = frozenset((*sys.stdlib_module_names, "torch", "numpy", "sympy", "memwall"))


@contextlib.contextmanager
def empty_caches() -> Iterator[None]:
    """Functions of the model and its libraries remember no tensors when the body begins, nor when it has ended: every
    trace sees the first call."""
    _forget_tensors()
    try:
        yield
    finally:
        _forget_tensors()


def _forget_tensors() -> None:
    for name, module in list(sys.modules.items()):
        if (name, id(module)) in _SEARCHED:
            continue
        _SEARCHED.add((name, id(module)))
        if isinstance(module, ModuleType) and name.partition(".")[0] not in _OTHERS:
            _CACHES.update(() if _MAKERS.isdisjoint(vars(module)) else _caches_in(module))
    for cached in list(_CACHES):
        if cached.cache_info().currsize and _holds_tensor(cached):
            cached.cache_clear()


def _caches_in(module: ModuleType) -> Iterator[Any]:
    """Functions with a cache in a module and in its classes, also those that another function wraps."""
    own = list(vars(module).values())
    classes = [item for item in own if isinstance(item, type) and item.__module__ == module.__name__]
    for item in (*own, *(item for kind in classes for item in vars(kind).values())):
        function = getattr(item, "__func__", item) if isinstance(item, (staticmethod, classmethod)) else item
        if type(function) is _Cached:
            yield function
        elif isinstance(function, FunctionType):
            held: Iterable[Any] = gc.get_referents(*function.__closure__) if function.__closure__ else ()
            yield from (inner for inner in held if type(inner) is _Cached)


def _holds_tensor(cached: Any) -> bool:
    """Whether a result is a tensor, or a tuple or list that begins with one, on whatever level."""
    for held in gc.get_referents(cached):
        values = held.values() if type(held) is dict else (held,)
        for value in values:
            results = gc.get_referents(value) if type(value).__name__ == "_lru_list_elem" else [value]
            if any(isinstance(_first(result), torch.Tensor) for result in results):
                return True
    return False


def _first(result: Any) -> Any:
    while isinstance(result, (tuple, list)) and result:
        result = result[0]
    return result
