"""``torch.autograd.graph.save_on_cpu``: activations that wait for backward in the host's memory.

What is saved is no longer held on the device until backward, when a copy of it is made there. The copy to the host is
no kernel, that from the host writes device memory; the link between the two is not modeled, which the header states.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from memwall.frontend.torch.dispatch.recorder import Recorder


class _Kept(NamedTuple):
    """What the host holds of a tensor: without data its look alone."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype


@contextlib.contextmanager
def offloading(recorder: Recorder, assume: Callable[[str], None]) -> Iterator[None]:
    """While open, ``save_on_cpu`` works without data; ``assume`` is called with what that assumes."""
    if recorder.device != "meta":
        yield
        return

    def pack(tensor: torch.Tensor) -> Any:
        assume("the link to the host takes no time: save_on_cpu's copies cost what they write in device memory")
        return _Kept(tensor.shape, tensor.stride(), tensor.dtype) if tensor.is_meta else tensor

    def unpack(kept: Any) -> torch.Tensor:
        if not isinstance(kept, _Kept):
            return kept
        with recorder.unrecorded():
            made = torch.empty_strided(kept.shape, kept.strides, dtype=kept.dtype, device="meta")
        if not recorder.paused:
            recorder.emit("aten._to_copy", [], [], [made])
        return made

    def make(self: Any, pin_memory: bool = False, device_type: str = "cuda") -> None:
        super(type(self), self).__init__(pack, unpack)

    with patch.object(torch.autograd.graph.save_on_cpu, "__init__", make):
        yield
