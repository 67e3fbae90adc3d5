"""Greedy placement of labels: next to their points, over nothing.

All in pixels, y downwards. The picture asks for one label after another, the most important first; each takes the first
free spot of a ring of candidates around its point, or stays away.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple


class Box(NamedTuple):
    left: float
    upper: float
    right: float
    lower: float

    def overlaps(self, other: Box) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.upper < other.lower and other.upper < self.lower

    def inside(self, other: Box) -> bool:
        across = self.left >= other.left and self.right <= other.right
        return across and self.upper >= other.upper and self.lower <= other.lower


class LabelLine(NamedTuple):
    """A straight line that labels keep off."""

    x0: float
    y0: float
    x1: float
    y1: float

    def crosses(self, box: Box) -> bool:
        """True when it passes through a rectangle (sampled every two pixels)."""
        steps = max(2, int(max(abs(self.x1 - self.x0), abs(self.y1 - self.y0)) / 2))
        for i in range(steps + 1):
            x = self.x0 + (self.x1 - self.x0) * i / steps
            y = self.y0 + (self.y1 - self.y0) * i / steps
            if box.left < x < box.right and box.upper < y < box.lower:
                return True
        return False


#: distances from the rim of the point, nearest first; a label farther than ``NEAR`` gets a leader
GAPS, NEAR = (3.0, 10.0, 20.0, 34.0, 50.0, 70.0), 12.0
#: directions, best first: right, above right, below right, left, above, below, above left, below left
_SIDES = ((1, 0), (1, 1), (1, -1), (-1, 0), (0, 1), (0, -1), (-1, 1), (-1, -1))


@dataclass
class Placer:
    """Places labels within a frame, off the obstacles and off each other."""

    frame: Box
    #: points, which labels keep off; a leader may cross one
    boxes: list[Box] = field(default_factory=list)
    lines: list[LabelLine] = field(default_factory=list)
    labels: list[Box] = field(default_factory=list)

    def is_free(self, boxes: Sequence[Box]) -> bool:
        """Whether boxes lie within the frame, off everything."""
        taken = (*self.boxes, *self.labels)
        return not any(
            not box.inside(self.frame) or any(map(box.overlaps, taken)) or any(line.crosses(box) for line in self.lines)
            for box in boxes
        )

    def place(
        self, x: float, y: float, radius: float, width: float, height: float
    ) -> tuple[Box, LabelLine | None] | None:
        """The box of a label of this size for a point, and the leader that ties them where they stand apart.

        None where there is no room. What is placed is taken: later labels keep off the box and the leader.
        """
        for box in _candidates(x, y, radius, width, height):
            if not self.is_free((box,)):
                continue
            leader = _leader(x, y, radius, box)
            if leader and any(leader.crosses(other) for other in self.labels):
                continue
            self.labels.append(box)
            self.lines += [leader] if leader else []
            return box, leader
        return None


def _leader(x: float, y: float, radius: float, box: Box) -> LabelLine | None:
    nx, ny = min(max(x, box.left), box.right), min(max(y, box.upper), box.lower)
    distance = math.hypot(nx - x, ny - y)
    if distance <= radius + NEAR:
        return None
    return LabelLine(x + (nx - x) * radius / distance, y + (ny - y) * radius / distance, nx, ny)


def _candidates(x: float, y: float, radius: float, width: float, height: float) -> Iterator[Box]:
    for gap, (side, rise) in product(GAPS, _SIDES):
        reach = radius + gap
        slant = 0.71 if side and rise else 1.0
        cx = x + side * (reach * slant + width / 2)
        cy = y + rise * (reach * slant + height / 2)
        yield Box(cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2)
