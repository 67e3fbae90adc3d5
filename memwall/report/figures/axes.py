"""Axes of a chart, linear or logarithmic: places of values, round ticks, grid lines and their texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memwall.core.units import PREFIXES
from memwall.report.figures.labels import Box
from memwall.report.figures.scene import Scene, text_width

_TICK_FONT = 10.0


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """Values from ``low`` to ``high`` on pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self, most: int = 6) -> list[float]:
        """At most so many round values within the axis."""
        return _log_ticks(self.low, self.high, most) if self.log else _ticks(self.low, self.high, most)


def _ticks(low: float, high: float, most: int) -> list[float]:
    least = (high - low) / most
    size = 10.0 ** math.floor(math.log10(least))
    step = next(size * part for part in (1, 2, 5, 10) if size * part >= least * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    """Decades, every so many of them; within few decades also their doubles and halves."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    decades = [10.0**power for power in range(first, last + 1)]
    if len(decades) >= 3:
        every = -(-len(decades) // most)
        return decades[::every]
    parts = [p * 10.0**power for power in range(first - 1, last + 1) for p in (1, 2, 5)]
    return [value for value in parts if low <= value * (1 + 1e-9) and value <= high * (1 + 1e-9)]


def engineering(value: float) -> str:
    """``10 T``."""
    scale, prefix = next(((scale, f" {prefix}") for scale, prefix in PREFIXES if value >= scale), (1.0, ""))
    return f"{value / scale:g}{prefix}"


def plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


Texts = Callable[[float], str]


def draw_x(
    scene: Scene, frame: Box, axis: PlotAxis, text: Texts, label: str, ticks: Sequence[float] | None = None
) -> None:
    """Grid lines, their values and the label below the frame; 34 pixels below it are used."""
    last = -math.inf
    for value in axis.ticks(max(4, int((frame.right - frame.left) / 80))) if ticks is None else ticks:
        x, name = axis(value), text(value)
        scene.line((x, frame.upper), (x, frame.lower), color="line", faint=True)
        half = text_width(name, _TICK_FONT) / 2
        x = min(max(x, half), scene.width - half)
        if x - half > last:
            scene.text(x, frame.lower + 14, name, _TICK_FONT, "middle", color="dim")
            last = x + half + 6
    if label:
        scene.text((frame.left + frame.right) / 2, frame.lower + 30, label, anchor="middle")


def draw_y(
    scene: Scene, frame: Box, axis: PlotAxis, text: Texts, label: str = "", ticks: Sequence[float] | None = None
) -> None:
    """Grid lines and their values left of the frame; the label stands above its upper left corner."""
    for value in axis.ticks(max(3, int((frame.lower - frame.upper) / 45))) if ticks is None else ticks:
        y = axis(value)
        scene.line((frame.left, y), (frame.right, y), color="line", faint=True)
        scene.text(frame.left - 6, y + 3.5, text(value), _TICK_FONT, "end", color="dim")
    if label:
        scene.text(0, frame.upper - 8, label)


def draw_frame(scene: Scene, frame: Box) -> None:
    """The left and the lower edge."""
    scene.line((frame.left, frame.upper), (frame.left, frame.lower), (frame.right, frame.lower), color="pale")
