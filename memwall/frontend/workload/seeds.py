"""Random numbers that a model's structure may depend on: the same in every trace."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

_RUNNING: list[bool] = []


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """``random``, numpy and torch begin at seed 0, and go on afterwards as if nothing had been drawn; inside of
    another such block they go on as they are. A seed that the user's code sets itself holds."""
    import torch

    if _RUNNING:
        yield
        return
    numpy: Any = sys.modules.get("numpy")  # where nobody has imported it, importing it draws from the system
    before = random.getstate(), torch.get_rng_state(), numpy and numpy.random.get_state()
    random.seed(0)
    torch.default_generator.manual_seed(0)
    if numpy:
        numpy.random.seed(0)
    _RUNNING.append(True)
    try:
        yield
    finally:
        _RUNNING.clear()
        random.setstate(before[0])
        torch.set_rng_state(before[1])
        if numpy:
            numpy.random.set_state(before[2])
