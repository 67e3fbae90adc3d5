"""Tensors that functions remember (``functools.lru_cache``, ``functools.cache``): the tensors of one trace are of no
use to the next one, nor to the caller's own runs."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import sys
import weakref
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch

from memwall.frontend.torch.process.loaded import names_by_package

_Cached: Any = type(functools.cache(lambda: None))
_METHODS = (staticmethod, classmethod)
_CACHES: weakref.WeakSet[Any] = weakref.WeakSet()
#: name of a module → which it was when it was searched, and its spec, which reloading replaces
_SEARCHED: dict[str, tuple[tuple[int, int, int], Any]] = {}
#: what a module with such functions has among its names, or by another name
_MAKERS = frozenset(("functools", "cache", "lru_cache", "compile_compatible_method_lru_cache"))
_MADE_BY = frozenset(map(id, (functools, functools.cache, functools.lru_cache)))
#: levels of containers and objects that a result is searched to
_DEPTH = 4
#: packages whose caches hold no tensors of a model
_OTHERS = frozenset((
    *sys.stdlib_module_names, "torch", "numpy", "sympy", "memwall", "mpmath", "triton", "huggingface_hub", "tokenizers",
    "PIL", "jinja2", "yaml", "_pytest", "hypothesis", "pluggy", "rich", "jax", "jaxlib", "flax", "optax", "haiku",
    "equinox", "scipy", "pandas", "pyarrow", "matplotlib", "networkx", "onnx", "pydantic", "mcp", "distributed",
))  # fmt: skip
#: modules whose large caches hold names and texts
_TEXTS = frozenset((
    "transformers.utils.import_utils", "diffusers.utils.import_utils", "transformers.utils.auto_docstring",
))  # fmt: skip


@contextlib.contextmanager
def empty_caches() -> Iterator[None]:
    """Functions of the model and its libraries remember no tensors when the body begins, nor when it has ended: every
    trace sees the first call. Tensors that the caller's own runs left stay: while the body runs, other functions stand
    where theirs do."""
    _search()
    moved = [place for cached in _with_tensors() for place in _places(cached)]
    _ASIDE.update(cached for _, _, cached in moved)
    fresh = {id(cached): functools.lru_cache(**cached.cache_parameters())(cached.__wrapped__) for _, _, cached in moved}
    for holder, name, cached in moved:
        setattr(holder, name, fresh[id(cached)])
    _forget_tensors()
    try:
        yield
    finally:
        for holder, name, cached in moved:
            setattr(holder, name, cached)
        _search()
        _forget_tensors()
        _ASIDE.difference_update(cached for _, _, cached in moved)


#: the caller's, in whose place others stand
_ASIDE: set[Any] = set()


def _search() -> None:
    for name, module in _searched():
        if _is_new(name, module):
            held = vars(module)
            if any(name in held for name in _MAKERS) or not _MADE_BY.isdisjoint(map(id, list(held.values()))):
                _CACHES.update(cached for cached in _caches_in(module) if cached.__module__ not in _TEXTS)


def _searched() -> list[tuple[str, ModuleType]]:
    names = [name for package, names in names_by_package().items() if package not in _OTHERS for name in names]
    return [(name, module) for name in names if isinstance(module := sys.modules.get(name), ModuleType)]


def _with_tensors() -> list[Any]:
    found = [cached for cached in list(_CACHES) if cached not in _ASIDE and cached.cache_info().currsize]
    return [cached for cached in found if _holds_tensor(cached)]


def _forget_tensors() -> None:
    for cached in _with_tensors():
        cached.cache_clear()


def _places(cached: Any) -> list[tuple[Any, str, Any]]:
    """The modules and classes that have a function by a name, where it can be set."""
    modules = [module for _, module in _searched()]
    own = [(m, kind) for m in modules for kind in list(vars(m).values()) if issubclass(type(kind), type)]
    classes = dict.fromkeys(kind for module, kind in own if kind.__module__ == module.__name__)
    return [
        (holder, name, cached)
        for holder in (*modules, *classes)
        for name, item in list(vars(holder).items())
        if item is cached
    ]


def _is_new(name: str, module: ModuleType) -> bool:
    """Whether a module was not searched since it was loaded, or has more names since. A notebook's is always new."""
    held = vars(module)
    spec = held.get("__spec__")
    state = (id(module), id(spec), len(held))
    before = _SEARCHED.get(name)
    _SEARCHED[name] = (state, spec)
    return before is None or before[0] != state or name == "__main__"


def _caches_in(module: ModuleType) -> Iterator[Any]:
    """Functions with a cache in a module and in its classes, also functions that another function wraps."""
    own = list(vars(module).values())
    classes = [item for item in own if isinstance(item, type) and item.__module__ == module.__name__]
    for item in (*own, *(item for kind in classes for item in vars(kind).values())):
        kind = type(item)
        if kind in _METHODS:
            item, kind = item.__func__, type(item.__func__)
        if kind is _Cached:
            yield item
        elif kind is FunctionType and item.__closure__:
            yield from (inner for inner in gc.get_referents(*item.__closure__) if type(inner) is _Cached)


def _holds_tensor(cached: Any) -> bool:
    """Whether a result is a tensor, or holds one."""
    for held in gc.get_referents(cached):
        values = held.values() if type(held) is dict else (held,)
        for value in values:
            results = gc.get_referents(value) if type(value).__name__ == "_lru_list_elem" else [value]
            if any(_has_tensor(result, _DEPTH) for result in results):
                return True
    return False


def _has_tensor(item: Any, depth: int) -> bool:
    """Whether a tensor is among the first items of a container, or in an object's fields; a module's are weights, which
    belong to whoever made it."""
    if isinstance(item, torch.Tensor):
        return True
    if not (depth and gc.is_tracked(item)):  # what holds only numbers and text is not tracked
        return False
    if isinstance(item, (type, ModuleType, FunctionType, torch.nn.Module, _Cached)):
        return False
    fields = item if isinstance(item, dict) else getattr(item, "__dict__", None)
    parts = item if isinstance(item, (tuple, list)) else fields.values() if isinstance(fields, dict) else ()
    return any(_has_tensor(part, depth - 1) for part in itertools.islice(parts, 16))


_search()  # what is loaded by now is searched once in a process, not in each fork of it
