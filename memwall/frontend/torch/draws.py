"""Random numbers whose values are known: those of a seeded generator on the host."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

#: Numbers that are drawn at once where only the generator's state is wanted; a multiple of 16, by which randn draws.
_PART = 1 << 20


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


class Draws:
    """Draws by calls on the host. While the user's function makes the inputs they are torch's own numbers, in the order
    of a run on the host: what was not needed before is drawn first, unless a seed was set since."""

    def __init__(self) -> None:
        self.count = 0
        self._state = torch.Generator().manual_seed(0).get_state()
        #: what was not drawn, with the state of torch's generator then; None where torch's numbers are not asked for
        self._waiting: list[tuple[torch.Tensor, Callable[[], Any]]] | None = None

    @contextlib.contextmanager
    def in_order(self) -> Iterator[None]:
        """While open, numbers are those that torch draws on the host."""
        self._waiting = []
        try:
            yield
        finally:
            self._waiting = None

    def wait(self, call: Callable[[], Any]) -> None:
        """Draw by a call only if later numbers are needed."""
        if self._waiting is not None:
            self._waiting.append((torch.get_rng_state(), call))

    def draw(self, call: Callable[[], Any]) -> Any:
        """What a call that draws returns."""
        self.count += 1
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, []
            now = torch.get_rng_state()
            for state, before in waiting:
                if torch.equal(state, now):
                    before()
            return call()
        before_state = torch.get_rng_state()
        torch.set_rng_state(self._state)
        try:
            return call()
        finally:
            self._state = torch.get_rng_state()
            torch.set_rng_state(before_state)
