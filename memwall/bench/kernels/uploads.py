"""What a kernel copies to the device while a graph of it is captured: ordinary memory cannot be copied from then, so
the copy's place is taken at once and filled when the capture is over.

Kernels over lists of tensors hand the device a table of addresses, made anew for other addresses: within the graph of a
whole step they are the graph's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

#: the captures that are going on: one or none
_captures: list[Uploads] = []


class Uploads(TorchDispatchMode):
    """While it is active, copies from the host to a type of device are put off until :meth:`finish`."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        target = given.get("device")
        is_copy = func is torch.ops.aten._to_copy.default and args[0].device.type == "cpu"
        if not is_copy or target is None or torch.device(target).type != self._device:
            return func(*args, **given)
        source = args[0].contiguous()
        made = torch.empty(source.shape, dtype=given.get("dtype") or source.dtype, device=target)
        self._waiting.append((made, source))
        return made

    def finish(self) -> None:
        """Fill the places that were taken."""
        waiting, self._waiting = self._waiting, []
        for made, source in waiting:
            made.copy_(source)


@contextlib.contextmanager
def capturing(device: str = "cuda") -> Iterator[None]:
    """Around a capture: at its end, also where it failed, what was put off is copied."""
    uploads = Uploads(device)
    _captures.append(uploads)
    try:
        yield
    finally:
        _captures.remove(uploads)
        uploads.finish()


def put_off(run: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel's function that, called in a capture, puts off what it copies to the device."""

    def called(*tensors: Tensor, **options: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for uploads in _captures:
                stack.enter_context(uploads)
            return run(*tensors, **options)

    return called
