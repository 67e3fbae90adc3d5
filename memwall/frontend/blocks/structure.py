"""Which modules have equal structure: a number per module, equal for modules that would run the same ops.

A layer with hooks or loose tensors never equals another: it is traced separately. A layer that only stores its number
(``layer_idx`` and the like) equals its siblings unless forward reads it, which :func:`watch_numbers` detects.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from memwall.core import compat

_PRIMITIVE = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_HOOKS = tuple(name for name in nn.Module().__dict__ if "hooks" in name)
#: Attributes in which layers keep their own number.
_NUMBERS = frozenset(
    ("layer_idx", "layer_id", "layer_index", "layer_number", "layer_num", "block_idx", "block_id", "block_index", "idx",
     "index")
)  # fmt: skip
_OWN_FIELDS = frozenset(nn.Module().__dict__) - {"training"}


class Structures:
    """The structure numbers of all modules under a root. ``repeated`` holds the ids of modules with children, whose
    structure occurs at least twice and whose parts and parameters are registered in no other module."""

    def __init__(self, root: nn.Module) -> None:
        self._numbers: dict[Any, int] = {}
        self._of: dict[int, int | None] = {}
        uses = _uses(root)
        self.number(root)
        counts = Counter(self._of.values())
        del counts[None]
        self.repeated = frozenset(
            id(module)
            for module in root.modules()
            if compat.submodules(module)
            and counts[self._of[id(module)]] > 1
            and all(uses[key] == count for key, count in _uses(module).items())
        )

    def number(self, module: nn.Module) -> int | None:
        """The current structure number of a module; None when it must be traced separately."""
        described = self._describe(module)
        number = None if described is None else self._numbers.setdefault(described, len(self._numbers))
        self._of[id(module)] = number
        return number

    def _describe(self, module: nn.Module) -> Any:
        children = tuple(
            [(name, None if m is None else self.number(m)) for name, m in compat.submodules(module).items()]
        )
        fields = module.__dict__
        if any(map(fields.get, _HOOKS)) or "forward" in fields:
            return None
        if any(number is None and compat.submodules(module)[name] is not None for name, number in children):
            return None
        attributes = []
        for name in fields.keys() - _OWN_FIELDS:
            value = fields[name]
            if name in _NUMBERS and type(value) is int:
                continue
            key = _attribute(value)
            if key is None:
                return None
            attributes.append((name, key))
        tensors = tuple(
            [
                (n, None if t is None else (t.shape, _strides(t), t.dtype, t.requires_grad))
                for held in (compat.parameters(module), compat.buffers(module))
                for n, t in held.items()
            ]
        )
        return type(module), frozenset(attributes), tensors, children


def _attribute(value: Any) -> Any:
    """A key equal for equal plain values and for the same object with the same plain fields, which a layer may count
    in; None for a tensor: its data might steer the model."""
    if isinstance(value, _PRIMITIVE):
        return type(value), value
    if isinstance(value, torch.Tensor):
        return None
    if isinstance(value, (list, tuple)):
        items = tuple([_attribute(item) for item in value])
        return None if any(item is None for item in items) else (type(value), items)
    fields = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    held = list(fields.items()) if isinstance(fields, dict) else []
    plain = [(_plain(name), _plain(item)) for name, item in held]
    return "object", id(value), tuple(plain)


def _plain(item: Any) -> Any:
    return item if isinstance(item, _PRIMITIVE) else id(item)


def _uses(root: nn.Module) -> Counter[int]:
    """How often each parameter and each module is registered in a module under the root."""
    uses: Counter[int] = Counter()
    for module in root.modules():
        uses.update(id(p) for p in compat.parameters(module).values() if p is not None)
        uses.update(id(part) for part in compat.submodules(module).values() if part is not None)
    return uses


def ties(module: nn.Module) -> tuple[Any, ...]:
    """Which parts of a module are one object, and which of its tensors share a storage and how far apart."""
    parts: dict[int, int] = {}
    storages: dict[int, tuple[int, int]] = {}
    pattern: list[Any] = []

    def walk(part: nn.Module) -> None:
        pattern.append(parts.setdefault(id(part), len(parts)))
        for held in (compat.parameters(part), compat.buffers(part)):
            for tensor in held.values():
                if tensor is not None:
                    offset = int(tensor.storage_offset())
                    place, base = storages.setdefault(compat.cdata(tensor.untyped_storage()), (len(storages), offset))
                    pattern.append((place, offset - base))
        for child in compat.submodules(part).values():
            if child is not None:
                walk(child)

    walk(module)
    return tuple(pattern)


@contextlib.contextmanager
def watch_numbers(module: nn.Module) -> Iterator[list[str]]:
    """While open, layers cannot see their own numbers: the list names the numbers that were read."""
    hidden: dict[int, dict[str, int]] = {}
    parts = list(module.modules())
    for part in parts:
        numbers = {n: v for n, v in part.__dict__.items() if n in _NUMBERS and type(v) is int}
        hidden[id(part)] = numbers
        for name in numbers:
            del part.__dict__[name]
    asked: list[str] = []
    original = nn.Module.__getattr__

    def find(self: nn.Module, name: str) -> Any:
        held = hidden.get(id(self), {})
        if name not in held:
            return original(self, name)
        asked.append(name)
        return held[name]

    try:
        with patch.object(nn.Module, "__getattr__", find):
            yield asked
    finally:
        for part in parts:
            part.__dict__.update(hidden.get(id(part), {}))


def _strides(tensor: torch.Tensor) -> Any:
    """The strides of a tensor; of a sparse one, which may have none, its layout."""
    return tensor.stride() if tensor.layout is torch.strided else tensor.layout
