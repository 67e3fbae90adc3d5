"""Random numbers that a model's structure may depend on: the same in every trace of a target."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

#: whether the block that runs has been seeded; empty where none runs
_BLOCKS: list[bool] = []


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """The first target that is loaded in the block finds ``random``, numpy and torch at seed 0; afterwards they go on
    as if nothing had been drawn. A block in another one changes nothing, and a seed that the target sets holds."""
    if _BLOCKS:
        yield
        return
    _BLOCKS.append(False)
    with undrawn():
        try:
            yield
        finally:
            _BLOCKS.clear()


@contextlib.contextmanager
def undrawn() -> Iterator[None]:
    """After the block ``random``, numpy and torch go on as if nothing had been drawn in it."""
    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    before = random.getstate(), torch and torch.get_rng_state(), numpy and numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        if torch:
            torch.set_rng_state(before[1])
        if numpy:
            numpy.random.set_state(before[2])


def seed() -> None:
    """Seed the block that runs, where one does and was not seeded yet."""
    if _BLOCKS == [False]:
        seed_all()
        _BLOCKS[0] = True


def seed_all() -> None:
    """Seed what a model's structure may depend on."""
    import numpy
    import torch

    random.seed(0)
    numpy.random.seed(0)
    torch.default_generator.manual_seed(0)
