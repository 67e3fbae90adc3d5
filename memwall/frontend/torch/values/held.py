"""What a step finds in memory and what it leaves there: tensors in results, arguments and modules, in any object.

A cache of keys and values that grows is written anew, and the tensors that it had before are gone after their last use;
one that is made during the step stays.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

import torch

from memwall.frontend.torch.dispatch.recorder import Recorder
from memwall.frontend.torch.dispatch.tensors import plain_parts

#: what leads away from a model's own objects
_ELSEWHERE = (type, ModuleType, CodeType, FrameType, TracebackType)
_PACKAGES = ("memwall.", "torch._", "torch.fx.node", "torch.fx.graph.")


def tensors_held(*roots: Any) -> Iterator[torch.Tensor]:
    """The tensors that objects hold, each once: in containers, fields and slots, and in what functions close over. What
    a tensor holds itself, its gradient for one, is not among them."""
    seen: dict[int, Any] = {}
    waiting = list(roots)
    while waiting:
        item = waiting.pop()
        if id(item) in seen or not gc.is_tracked(item):
            continue
        seen[id(item)] = item
        kind: Any = type(item)
        if _is_opened(kind):
            waiting += gc.get_referents(item)
        elif issubclass(kind, torch.Tensor):
            yield item
        elif kind is FunctionType:
            waiting += [item.__closure__, item.__defaults__, item.__kwdefaults__, item.__dict__]


@functools.lru_cache(4096)
def _is_opened(kind: Any) -> bool:
    """Whether what objects of a class refer to is looked at, all of it."""
    if issubclass(kind, (torch.Tensor, FunctionType, *_ELSEWHERE)):
        return False
    return not f"{kind.__module__}.".startswith(_PACKAGES)


def storages_held(recorder: Recorder, *roots: Any) -> dict[int, torch.Tensor]:
    """The storages of the device that objects hold tensors of, each with one of those."""
    parts = [part for tensor in tensors_held(*roots) for part in plain_parts(tensor)]
    of_device = [(recorder.knows(part), part) for part in parts if part.device.type == recorder.device]
    return {storage: part for storage, part in of_device if storage is not None}


def settle_state(recorder: Recorder, before: dict[int, torch.Tensor], after: dict[int, torch.Tensor]) -> list[int]:
    """The values that the step made and that something holds ``after`` it. Inputs and buffers that were held ``before``
    and are no longer get the role ``replaced``."""
    for number in before.keys() - after.keys():
        storage = recorder.storages[number]
        if storage.role in ("input", "buffer"):
            recorder.set_role(before[number], "replaced", storage.name)
    written = {recorder.values[i].storage for op in recorder.ops for i in op.outputs}
    made = [n for n in after if n in written and recorder.storages[n].role == "activation"]
    return [recorder.value(after[n]) for n in sorted(made)]
