"""Caches of keys and values, and of other states that a step hands to the next: which tensors they hold.

What belongs to a cache is told by the name of what holds it, or by its class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

#: how arguments and outputs of models call a cache, any word of a path of keys and attributes, but for a position in
#: one and for the past of a time series (``past_values``, ``past_time_features``, ``past_observed_mask``)
_CACHE = re.compile(
    r"(^|[._])(past_key_values?|layer_past|past(?!_(values|time_features|observed_mask))|caches?(?!_position)|mems)([._]|$)"
)


def is_of_cache(path: str) -> bool:
    """Whether a tensor at a path such as ``input.past_key_values.layers.0.keys`` is part of a cache."""
    return _CACHE.search(path) is not None


def is_cache_class(kind: type) -> bool:
    """Whether objects of a class are caches, whatever they are handed on as: transformers' DynamicCache, MambaCache."""
    return any(base.__name__.endswith("Cache") for base in kind.__mro__)


def cached_tensors(*given: Any) -> list[tuple[str, torch.Tensor]]:
    """The tensors of the caches among arguments and outputs, with their paths; single numbers count what they hold."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for path, tensor in (item for thing in given for item in _cached(thing, "", False, set())):
        if tensor.dim():
            found.setdefault(id(tensor), (path, tensor))
    return list(found.values())


def _cached(thing: Any, path: str, inside: bool, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    inside = inside or is_of_cache(path)
    if isinstance(thing, torch.Tensor):
        if inside:
            yield path, thing
        return
    if id(thing) in seen or isinstance(thing, (torch.nn.Module, type, str, bytes)):
        return
    seen.add(id(thing))
    inside = inside or is_cache_class(type(thing))
    if isinstance(thing, (list, tuple)):
        parts: Mapping[Any, Any] = dict(enumerate(thing))
    else:
        parts = thing if isinstance(thing, Mapping) else _attributes(thing)
    for key, item in list(parts.items()):
        yield from _cached(item, f"{path}.{key}" if path else str(key), inside, seen)


def _attributes(thing: Any) -> dict[str, Any]:
    """What an object holds by name, also where its class has ``__slots__``."""
    stated = (kind.__dict__.get("__slots__") or () for kind in type(thing).__mro__)
    slots = (name for names in stated for name in ((names,) if isinstance(names, str) else names))
    held = {name: getattr(thing, name) for name in slots if hasattr(thing, name)}
    return held | getattr(thing, "__dict__", {})
