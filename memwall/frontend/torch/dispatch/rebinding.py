"""A recorded block that runs again: its calls are the ops that were recorded, its new tensors stand for theirs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def rebind(recorder: Any, name: str, inputs: list[torch.Tensor], outputs: Iterable[torch.Tensor]) -> None:
    """Treat the call as the next op of ``rebinding`` and bind its new storages to that op's."""
    op = next(recorder.rebinding or iter(()), None)
    if op is None or op.name != name:
        raise LookupError(f"{name} where {op.name if op else 'nothing'} was recorded")
    for tensor, number in zip(inputs, op.inputs, strict=False):
        if recorder.knows(tensor) is None:  # made by a call that is not recorded, such as empty()
            _stand_for(recorder, tensor, [number])
    if tuple([recorder.value(t) for t in inputs]) != op.inputs:
        raise LookupError(f"{name} reads other tensors than were recorded")
    seen: list[int] = []
    for tensor in outputs:
        if tensor.device.type != recorder.device:
            continue
        if recorder.knows(tensor) is None:
            _stand_for(recorder, tensor, [i for i in op.outputs if i not in seen])
        seen.append(recorder.value(tensor))


def _stand_for(recorder: Any, tensor: torch.Tensor, candidates: list[int]) -> None:
    """Bind a new tensor to the first value of its shape."""
    shape = tuple(tensor.shape)
    number = next((i for i in candidates if recorder.values[i].spec.shape == shape), None)
    if number is None:
        raise LookupError(f"a tensor of shape {shape} that was not recorded")
    recorder.bind(tensor, recorder.values[number].storage)
