"""What grows along one axis: for each series where the memory ends, where the wall changes, and where to stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memwall.core.units import percent

if TYPE_CHECKING:
    from pandas import DataFrame

#: growth per doubling below which more of the axis is not worth it
WORTH = 0.10
#: why there is no place to stop yet
GROWS_ON = "it grows on"
#: how quantities of one of the GPUs end
_OF_ONE = "_per_gpu"
#: series that a picture shows, the best ones
MOST_SERIES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthSeries:
    """Points that differ in one option alone, by its value: the best quantity, the wall, and whether it fits. Where
    ``ys`` are of one GPU and the number of GPUs varies, ``wholes`` are of all together, and say what more is worth."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    walls: tuple[str, ...]
    fits: tuple[bool, ...]
    wholes: tuple[float, ...] = ()

    @property
    def last_fitting(self) -> float | None:
        """The last value before the memory ends; None where it does not end, or nothing fits."""
        ends = next((i for i, fits in enumerate(self.fits) if not fits), 0)
        return self.xs[ends - 1] if ends else None

    @property
    def wall_changes(self) -> list[tuple[float, str]]:
        """Values at which another wall begins, and which."""
        pairs = zip(self.xs[1:], self.walls, self.walls[1:], strict=False)
        return [(x, after) for x, before, after in pairs if before != after]

    @property
    def stop(self) -> tuple[float | None, str]:
        """Where to stop, and why; None where nothing fits."""
        if not self.fits[0]:
            return None, "nothing fits"
        if self.last_fitting is not None and self.last_fitting <= self.worth_until:
            return self.last_fitting, "the memory ends"
        if self.worth_until < self.xs[-1]:
            together = " all GPUs together" * bool(self.wholes)
            return self.worth_until, f"a doubling brings{together} less than {percent(WORTH, 0)}"
        return self.xs[-1], GROWS_ON

    @property
    def worth_until(self) -> float:
        """The value from which each further doubling brings less than :data:`WORTH`; the last one if none does."""
        ys = self.wholes or self.ys
        for i in range(len(self.xs) - 1):
            later = zip(self.xs[i:], self.xs[i + 1 :], ys[i:], ys[i + 1 :], strict=False)
            if all(_per_doubling(*each) < WORTH for each in later):
                return self.xs[i]
        return self.xs[-1]


def _per_doubling(x: float, x_after: float, y: float, y_after: float) -> float:
    """The growth that a doubling would bring at this rate."""
    return (y_after / y) ** (1 / math.log2(x_after / x)) - 1 if y > 0 and y_after > 0 and x_after > x > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Series of a quantity over an option; ``fixed`` are the values of the other options, as in the best point, and
    ``others`` counts the series that are left out."""

    across: str
    quantity: str
    series: tuple[GrowthSeries, ...]
    fixed: tuple[tuple[str, Any], ...]
    others: int = 0


def growth(
    frame: DataFrame, best: DataFrame, varied: Sequence[str], across: Sequence[str], quantity: str
) -> Growth | None:
    """The growth of a quantity along the first of some options that varies, around the best point: a series for each
    value of the next options (target, GPU), the others as there. None where no such option varies."""
    ran = frame[(frame["error"] == "") & frame[quantity].notna()]
    numeric = [name for name in varied if name in across and frame[name].dropna().map(is_number).all()]
    x = next((name for name in across if name in numeric), None)
    if x is None or not len(best) or ran[x].nunique() < 2:
        return None
    others = [name for name in varied if name != x]
    apart = [name for name in ("target", "gpu") if name in others] or others[:1]
    fixed = tuple((name, best.iloc[0][name]) for name in varied if name not in (x, *apart))
    for name, value in fixed:
        ran = ran[ran[name] == value]
    groups = [(" ".join(map(str, key)), own) for key, own in ran.groupby(apart, sort=False)] if apart else [("", ran)]
    found = [_series(name, own, x, quantity) for name, own in groups if own[x].nunique() > 1]
    top = sorted(found, key=lambda each: -max(each.ys))[:MOST_SERIES]
    kept = tuple(each for each in found if each in top)
    return (
        Growth(across=x, quantity=quantity, series=kept, fixed=fixed, others=len(found) - len(kept)) if kept else None
    )


def _series(name: str, own: DataFrame, x: str, quantity: str) -> GrowthSeries:
    rows = own.sort_values(x).drop_duplicates(x)
    is_shared = quantity.endswith(_OF_ONE) and "gpus" in rows and rows["gpus"].nunique() > 1
    walls = rows["limited_by"] if "limited_by" in rows else [""] * len(rows)
    return GrowthSeries(
        name=name,
        xs=tuple(map(float, rows[x])),
        ys=tuple(map(float, rows[quantity])),
        walls=tuple(map(str, walls)),
        fits=tuple(map(bool, rows["fits"])),
        wholes=tuple(map(float, rows[quantity] * rows["gpus"])) if is_shared else (),
    )


def is_number(value: Any) -> bool:
    """Whether a value is a number, and no flag."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
