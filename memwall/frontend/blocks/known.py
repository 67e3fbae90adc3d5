"""What a replay must know of values: whether a block depends on any, and which values go in and come out."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy
import torch
from torch import nn

from memwall.frontend.torch.dispatch.recorder import Recorder
from memwall.frontend.torch.values.assumptions import Basis

#: A tensor's value and what it rests on.
Known = tuple[torch.Tensor, tuple[Basis, ...]]


def marks(recorder: Recorder) -> tuple[Any, ...]:
    """Equal to earlier marks where no value was asked for in between (the first), and no random number drawn on the
    host (the others)."""
    known = recorder.known
    if known is None:
        return (0,)
    state: Any = numpy.random.get_state()
    return known.asked, known.draws.count, hash(random.getstate()), state[1].tobytes(), state[2]


def values_given(recorder: Recorder, tensors: Iterable[torch.Tensor]) -> Any:
    """The known values of a block's arguments and buffers, as one key."""
    if recorder.known is None:
        return None
    with recorder.unrecorded():
        return recorder.known.digest([t for t in tensors if not isinstance(t, nn.Parameter)])


def values_of(recorder: Recorder, tensors: Iterable[torch.Tensor]) -> tuple[Known | None, ...]:
    """Copies of the known values of a block's results, with what they rest on."""
    known = recorder.known
    with recorder.unrecorded():
        found = [(t, None if known is None or not known.has(t) else known.of(t)) for t in tensors]
        return tuple(None if value is None or known is None else (_copy(value), known.assumed(t)) for t, value in found)


def _copy(value: torch.Tensor) -> torch.Tensor:
    """A copy of a host tensor; of one element that stands for all, that alone is copied."""
    if not value.numel() or any(value.stride()):
        return value.clone()
    return value.as_strided((), ()).clone().expand(value.shape)


def give_values(recorder: Recorder, tensors: Sequence[torch.Tensor], values: Sequence[Known | None]) -> None:
    """The results of a replayed block have the values that the results of the copied block have."""
    if recorder.known is not None and any(value is not None for value in values):
        with recorder.unrecorded():
            for tensor, known in zip(tensors, values, strict=True):
                if known is None:
                    continue
                value, assumed = known
                if value.numel() and not any(value.stride()):
                    recorder.known.give_uniform(tensor, value.as_strided((), ()), *assumed)
                else:
                    recorder.known.give(tensor, value, *assumed)
