"""What CUDA computes and the CPU does not, for traces of real tensors: a model is told that it runs on a GPU, and calls
CUDA's form."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from memwall.core import compat

_CPU = compat.DispatchKeySet(compat.DispatchKey.CPU)


@contextlib.contextmanager
def real_kernels() -> Iterator[None]:
    """While open, the CPU counts integers (``histc``) as CUDA does."""
    counted: Any = torch.library.get_kernel("aten::histc", "CPU")

    def histc(data: torch.Tensor, *options: Any, **bounds: Any) -> Any:
        floats = data if data.is_floating_point() else data.double()
        return counted.call_boxed(_CPU, floats, *options, **bounds).to(data.dtype)

    library: Any = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that a kernel is overridden
        library.m.impl("histc", "CPU", histc, False)
    try:
        yield
    finally:
        compat.destroy_library(library)
