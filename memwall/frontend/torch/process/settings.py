"""What a process sets for all of PyTorch and a trace depends on: read at one time, set again at another."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

#: how each setting is read, and set
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    *((partial(getattr, torch.backends.cudnn, name), partial(setattr, torch.backends.cudnn, name))
      for name in ("enabled", "benchmark", "deterministic", "allow_tf32")),
)  # fmt: skip


def settings() -> tuple[Any, ...]:
    """The settings as they are."""
    return tuple(read() for read, _ in _SETTINGS)


def restore(before: tuple[Any, ...]) -> None:
    """Set what is no longer as it was; no default device is set, as at first."""
    torch.set_default_device(None)
    for (read, put), value in zip(_SETTINGS, before, strict=True):
        if read() != value:
            put(value)


#: Frames that Python code may nest: each nested module takes about six, and a thread's stack of 8 MB holds these.
_MOST_FRAMES = 8_000


@contextlib.contextmanager
def deep_calls() -> Iterator[None]:
    """Allow modules nested deeper than Python's usual limit, which naming their calls would reach earlier."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _MOST_FRAMES))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def saved_by_autograd(found: list[torch.Tensor]) -> contextlib.AbstractContextManager[Any]:
    """While open, what autograd saves for a backward pass is appended, and so stays alive without one."""

    def save(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor)


@contextlib.contextmanager
def inference_mode_as_no_grad() -> Iterator[None]:
    """Inference mode skips the autograd keys, under which composite ops split into the kernels that run."""

    def enter(self: Any) -> None:
        self._inference_mode_context = torch.no_grad() if self.mode else contextlib.nullcontext()
        self._inference_mode_context.__enter__()

    with patch.object(torch.inference_mode, "__enter__", enter):
        yield


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads of torch; 0: as many as there are. Known values are small, and threads that share a few numbers
    wait for each other far longer than they compute where other processes have the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
