"""A function that launches kernels, as a module without parameters: its ``forward()`` calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class Launching(nn.Module):
    """``forward()`` calls ``launch``."""

    def __init__(self, launch: Callable[..., Any]) -> None:
        super().__init__()
        self.launch = launch

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.launch(*args, **kwargs)
