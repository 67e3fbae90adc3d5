"""Random numbers whose values are known: numbers of a seeded generator on the host."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

#: Numbers that are drawn at once where only the generator's state is wanted; a multiple of 16, by which randn draws.
_PART = 1 << 20
#: Numbers of a call that wait in a step.
_MOST_WAITING = 1 << 24


def draw_in_parts(make: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Draw the numbers of torch.randn or the like, which takes a shape, and let them go: in little memory."""
    place = next((i for i, item in enumerate(args) if isinstance(item, (list, tuple))), None)
    if place is None:
        make(*args, **options)
        return
    left = math.prod(args[place])
    while left:
        part = _PART if left >= 2 * _PART else left
        make(*args[:place], [part], *args[place + 1 :], **options)
        left -= part


def as_drawn(function: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> Callable[[], None]:
    """What draws on the host as many numbers as a call that takes a shape, or fills a tensor on ``meta``."""
    if not isinstance(args[0], torch.Tensor):
        return partial(draw_in_parts, function, args, {**options, "device": "cpu"})
    dtype = args[0].dtype
    fill = lambda size: function(torch.empty(size, dtype=dtype, device="cpu"), *args[1:], **options)  # noqa: E731
    return partial(draw_in_parts, fill, (list(args[0].shape),), {})


class Draws:
    """Draws by calls on the host, in the order of a run with data. While the user's function makes the inputs they are
    torch's own numbers, else numbers that follow seed 0. What was not needed is drawn before what is needed, unless a
    seed was set since. ``missed``: as many were drawn before as activations say, so that the numbers of a run
    differ."""

    def __init__(self) -> None:
        self.count = 0
        self.missed = False
        self._state = torch.Generator().manual_seed(0).get_state()
        self._of_torch = False
        #: what was not drawn, with the state of torch's generator then
        self._waiting: list[tuple[torch.Tensor, Callable[[], Any]]] = []

    @contextlib.contextmanager
    def in_order(self) -> Iterator[None]:
        """While open, numbers are what torch draws on the host."""
        self._of_torch, self._waiting = True, []
        try:
            yield
        finally:
            self._of_torch, self._waiting = False, []

    def wait(self, call: Callable[[], Any], numbers: int) -> None:
        """Draw so many numbers by a call only if later ones are needed."""
        if self._of_torch or numbers <= _MOST_WAITING:
            self.count += 1
            self._waiting.append((torch.get_rng_state(), call))
        else:
            self.missed = True

    def draw(self, call: Callable[[], Any]) -> Any:
        """What a call that draws returns."""
        self.count += 1
        before = torch.get_rng_state()
        if not self._of_torch:
            torch.set_rng_state(self._state)
        try:
            waiting, self._waiting = self._waiting, []
            for state, draw in waiting:
                if not self._of_torch or torch.equal(state, before):
                    draw()
            return call()
        finally:
            if not self._of_torch:
                self._state = torch.get_rng_state()
                torch.set_rng_state(before)
