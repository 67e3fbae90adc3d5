"""The pictures of a sweep: a quantity along one option, with the end of the memory and the walls; heat maps of two
options; the Pareto front. Colours of lines are GPUs or targets, and so are the colours of a front's dots; along an
option the dots have the colours of walls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from memwall.analysis.quantities import QUANTITIES, Quantity
from memwall.report.figures.axes import PlotAxis, draw_frame, draw_x, draw_y, engineering, plain
from memwall.report.figures.colors import SERIES_COLORS, WALL_COLORS, series_color
from memwall.report.figures.labels import Box, LabelLine, Placer
from memwall.report.figures.picture import time_unit
from memwall.report.figures.scene import Chart, Scene, fit, text_width
from memwall.sweeping.growth import GROWS_ON, Growth, GrowthSeries, is_number

if TYPE_CHECKING:
    from pandas import DataFrame

#: wall -> number of the colour of series that is like it
_ALIKE = {"link": 0, "bandwidth": 1, "compute": 2, "latency": 4}
#: pixels down of a picture, and of a row of a heat map
_HIGH, _ROW = 300.0, 26.0
#: dots of points that are not on the front at most, and labels of points that are
_DUST, _LABELS = 4000, 12
#: points up to which each is a dot that can be seen alone
_FEW = 200
#: options of which a front shows each value in a colour, the first that varies
_COLORED = ("gpu", "target")


def growth_chart(grown: Growth) -> Chart:
    """A line for each series: dashed where the memory does not hold it, a ring where to stop, dots by wall."""

    def draw(scene: Scene) -> float:
        quantity = QUANTITIES[grown.quantity]
        top = scene.title(f"{quantity.title} over {grown.across}")
        names = max(text_width(each.name) for each in grown.series) + 12
        frame = Box(58.0, top + 22, scene.width - min(names, scene.width / 3), top + 22 + _HIGH)
        xs, ys = ([value for each in grown.series for value in values(each)] for values in (_xs, _ys))
        x, y = _axis(xs, frame.left, frame.right), _axis(ys, frame.lower, frame.upper)
        ticks = sorted(set(xs)) if len(set(xs)) < 14 else None
        draw_x(scene, frame, x, plain, grown.across, ticks)
        draw_y(scene, frame, y, *_ticked(quantity, ys))
        draw_frame(scene, frame)
        placer = Placer(Box(frame.left, frame.upper - 6, scene.width, frame.lower + 6))
        walls = [wall for wall in WALL_COLORS if any(wall in each.walls for each in grown.series)]
        colors = line_colors(len(grown.series), walls)
        for series, color in zip(grown.series, colors, strict=True):
            _draw_series(scene, series, x, y, color)
        for series, color in zip(grown.series, colors, strict=True):
            _name(scene, placer, series, x, y, color)
        entries = [(wall, WALL_COLORS[wall], "circle") for wall in walls]
        entries += [("stop here", "ink", "hollow"), ("beyond the memory", "ink", "dashed")]
        return frame.lower + 42 + scene.legend(frame.lower + 42, entries, "walls")

    return draw


def line_colors(count: int, walls: Sequence[str]) -> list[str]:
    """Colours of lines whose dots have the colours of walls: one that is like a wall's comes last."""
    alike = {_ALIKE[wall] for wall in walls if wall in _ALIKE}
    order = sorted(range(len(SERIES_COLORS)), key=lambda number: number in alike)
    return [SERIES_COLORS[order[number % len(order)]] for number in range(count)]


def _xs(series: GrowthSeries) -> Sequence[float]:
    return series.xs


def _ys(series: GrowthSeries) -> Sequence[float]:
    return series.ys


def _draw_series(scene: Scene, series: GrowthSeries, x: PlotAxis, y: PlotAxis, color: str) -> None:
    places = [(x(a), y(b)) for a, b in zip(series.xs, series.ys, strict=True)]
    held = next((i for i, fits in enumerate(series.fits) if not fits), len(places))
    if held > 1:
        scene.line(*places[:held], color=color, width=1.8)
    if held < len(places):
        scene.line(*places[max(held - 1, 0) :], color=color, width=1.3, dash=(4, 3))
    if 0 < held < len(places):
        px, py = places[held - 1]
        scene.line((px, py - 11), (px, py + 11), color=color, width=2.4)
    for i, (px, py) in enumerate(places):
        said = f"{series.name}\n{series.xs[i]:,.0f}: {series.ys[i]:,.4g}\n{series.walls[i]}"
        said += "" if series.fits[i] else "\nthe memory does not hold it"
        scene.dot(px, py, 3.4, WALL_COLORS.get(series.walls[i], color), title=said)
    stop, why = series.stop
    if stop is not None and why != GROWS_ON:
        px, py = places[series.xs.index(stop)]
        scene.dot(px, py, 8.0, "ink", hollow=True)


def _name(scene: Scene, placer: Placer, series: GrowthSeries, x: PlotAxis, y: PlotAxis, color: str) -> None:
    """The name of a series right of its end."""
    px, py = x(series.xs[-1]), y(series.ys[-1])
    name = fit(series.name, scene.width - px - 12) or series.name[:3]
    found = placer.place(px, py, 8.0, text_width(name), 13.0)
    if found is not None:
        scene.text(found[0].left, found[0].lower - 3, name, color=color, bold=True)


def _ticked(quantity: Quantity, values: Sequence[float]) -> tuple[Callable[[float], str], str]:
    """How an axis of a quantity writes its ticks, and what it is called: times are in s, ms or us, as in tables."""
    scale, unit = time_unit(max(values)) if quantity.unit == "s" else (1.0, quantity.unit)
    return lambda value: engineering(value / scale), f"{quantity.title}, {unit}"


def _axis(values: Sequence[float], start: float, end: float) -> PlotAxis:
    """Logarithmic where the values span some octaves."""
    low, high = min(values), max(values)
    if low > 0 and high > 6 * low:
        return PlotAxis(low / 1.15, high * 1.2, start, end, log=True)
    room = 0.08 * (high - low) or abs(high) or 1.0
    return PlotAxis(max(low - room, 0.0) if low >= 0 else low - room, high + room, start, end)


# -- heat maps ---------------------------------------------------------------------------------------------------------


class OptionPair(NamedTuple):
    """Two options of a heat map and its cells: the best of a quantity by the values of both; None where no point is
    left."""

    down: str
    across: str
    rows: Sequence[Any]
    columns: Sequence[Any]
    cells: Sequence[Sequence[float | None]]


def pairs_of(left: DataFrame, varied: Sequence[str], quantity: str, most: int = 4) -> list[OptionPair]:
    """The pairs of options with the most values, each with the best of a quantity over all others."""
    names = sorted((name for name in varied if left[name].nunique() > 1), key=lambda name: -left[name].nunique())
    found = []
    for one, other in itertools.islice(itertools.combinations(names, 2), most):
        down, across = sorted((one, other), key=lambda name: left[name].map(is_number).all())
        best = left.groupby([down, across], sort=False)[quantity].agg("min" if QUANTITIES[quantity].lower else "max")
        rows, columns = _values(left, down), _values(left, across)
        cells = [[best.get((row, column)) for column in columns] for row in rows]
        found.append(OptionPair(down, across, rows, columns, cells))
    return found


def _values(left: DataFrame, name: str) -> list[Any]:
    values = list(dict.fromkeys(left[name].dropna()))
    return sorted(values) if all(map(is_number, values)) else sorted(values, key=str)


def heat_chart(pair: OptionPair, quantity: str) -> Chart:
    """A cell for each pair of values, the darker the better."""

    def draw(scene: Scene) -> float:
        row = QUANTITIES[quantity]
        top = scene.title(f"The best {row.title} by {pair.down} and {pair.across}") + 34
        labels = min(max(text_width(str(each)) for each in (pair.down, *pair.rows)) + 10, scene.width / 3)
        wide = (scene.width - labels) / len(pair.columns)
        known = [value for cells in pair.cells for value in cells if value is not None]
        low, high = min(known), max(known)
        scene.text(0, top - 6, fit(pair.down, labels - 6) or pair.down[:3], color="dim")
        scene.text(labels, top - 20, pair.across, color="dim")
        for i, column in enumerate(pair.columns):
            scene.text(labels + (i + 0.5) * wide, top - 6, fit(str(column), wide - 2) or "", anchor="middle")
        for j, (name, cells) in enumerate(zip(pair.rows, pair.cells, strict=True)):
            y = top + j * _ROW
            scene.text(0, y + 17, fit(str(name), labels - 6) or str(name)[:3])
            for i, value in enumerate(cells):
                box = labels + i * wide, y, labels + (i + 1) * wide - 2, y + _ROW - 2
                said = f"{pair.down} {name}, {pair.across} {pair.columns[i]}"
                _cell(scene, box, value, said, _goodness(value, low, high, lower_is_better=row.lower))
        return top + len(pair.rows) * _ROW + 4

    return draw


def _goodness(value: float | None, low: float, high: float, *, lower_is_better: bool) -> float:
    """From 0, the worst, to 1."""
    if value is None or high <= low:
        return 0.0 if value is None else 1.0
    share = (value - low) / (high - low)
    return 1 - share if lower_is_better else share


def _cell(scene: Scene, box: tuple[float, float, float, float], value: float | None, said: str, good: float) -> None:
    left, upper, right, lower = box
    corners = [(left, upper), (right, upper), (right, lower), (left, lower)]
    text, short = _cell_texts(value)
    scene.area(
        corners,
        "line" if value is None else series_color(0),
        f"{said}: {text}",
        opacity=0.5 if value is None else 0.06 + 0.5 * good,
    )
    bold = good == 1.0
    shown = next((each for each in (text, short) if right - left > text_width(each, 10.0, bold=bold)), None)
    if shown is not None:
        scene.text((left + right) / 2, upper + 16, shown, 10.0, "middle", bold=bold)


def _cell_texts(value: float | None) -> tuple[str, str]:
    """A figure, and one for a narrow cell: 10,558 and 11 k."""
    if value is None:
        return "-", "-"
    if abs(value) < 100:
        return f"{value:.3g}", f"{value:.2g}"
    return f"{value:,.0f}", engineering(float(f"{value:.2g}")).replace(" ", "")


# -- the front ---------------------------------------------------------------------------------------------------------


def front_chart(left: DataFrame, front: DataFrame, axes: Sequence[str], name_of: Callable[[Any], str]) -> Chart:
    """All points as dust, and points that no other beats as a line; of three quantities as dots, which are the larger
    the better the third is. GPUs, or targets, have colours of their own."""
    x_row, y_row = (QUANTITIES[name] for name in axes[:2])
    color_of, entries = _colors(left)

    def draw(scene: Scene) -> float:
        top = scene.title(f"{y_row.title} against {x_row.title}")
        frame = Box(58.0, top + 22, scene.width - 8, top + 22 + _HIGH)
        shown = left.iloc[:: -(-len(left) // _DUST)]
        x = _axis([*shown[x_row.name], *front[x_row.name]], frame.left, frame.right)
        y = _axis([*shown[y_row.name], *front[y_row.name]], frame.lower, frame.upper)
        draw_x(scene, frame, x, *_ticked(x_row, shown[x_row.name]))
        draw_y(scene, frame, y, *_ticked(y_row, shown[y_row.name]))
        draw_frame(scene, frame)
        dust: dict[str, list[tuple[float, float]]] = {}
        for row in shown.to_dict("records"):
            dust.setdefault(color_of(row, series_color(5)), []).append((x(row[x_row.name]), y(row[y_row.name])))
        for color, dots in dust.items():
            scene.dust(dots, color, 2.6 if len(shown) <= _FEW else 1.3)
        rows = front.sort_values(x_row.name)
        places = [(x(a), y(b)) for a, b in zip(rows[x_row.name], rows[y_row.name], strict=True)]
        if len(axes) == 2 and len(places) > 1:
            scene.line(*places, color="dim" if entries else series_color(0), width=1.8)
        radii, said = [4.0] * len(places), ""
        if len(axes) == 3:
            third, values = QUANTITIES[axes[2]], rows[axes[2]].tolist()
            scale = _axis(values, 0.0, 1.0)
            ends = scale(min(values)), scale(max(values))
            radii = [2.5 + 6 * _goodness(scale(value), *ends, lower_is_better=third.lower) for value in values]
            worst, best = sorted((min(values), max(values)), reverse=third.lower)
            said = f"large dots: {third.title} of {best:.3g} {third.unit}; small ones: {worst:.3g}"
        marks = [(name_of(row), color_of(row, series_color(0))) for row in rows.to_dict("records")]
        _label_front(scene, frame, places, marks, radii)
        end = frame.lower + 38
        if entries:
            end += 4 + scene.legend(end + 4, [*entries, *([("front", "dim", "line")] if len(axes) == 2 else [])])
        if said:
            scene.text(0, end + 16, fit(said, scene.width) or said, color="dim")
            end += 24
        return end

    return draw


def _colors(points: DataFrame) -> tuple[Callable[[Any, str], str], list[tuple[str, str, str]]]:
    """The colour of a row, by its GPU or target where these vary, else one that is given; and the legend of them."""
    name = next((name for name in _COLORED if name in points and 1 < points[name].nunique() <= len(SERIES_COLORS)), "")
    colors = {value: series_color(i) for i, value in enumerate(dict.fromkeys(points[name]) if name else ())}
    return lambda row, other: colors.get(row.get(name), other), [
        (str(v), color, "circle") for v, color in colors.items()
    ]


def _label_front(
    scene: Scene,
    frame: Box,
    places: Sequence[tuple[float, float]],
    marks: Sequence[tuple[str, str]],
    radii: Sequence[float],
) -> None:
    """A dot for each point of the front, by its name, colour and radius, and the names of some."""
    steps = [LabelLine(*a, *b) for a, b in itertools.pairwise(places)]
    placer = Placer(frame, [Box(px - 4, py - 4, px + 4, py + 4) for px, py in places], steps)
    every = -(-len(places) // _LABELS)
    for i, ((px, py), (name, color), radius) in enumerate(zip(places, marks, radii, strict=True)):
        scene.dot(px, py, radius, color, title=name)
        found = placer.place(px, py, radius, text_width(name, 10.0), 12.0) if i % every == 0 else None
        if found is not None:
            box, leader = found
            if leader is not None:
                scene.line((leader.x0, leader.y0), (leader.x1, leader.y1), color="dim", width=0.7)
            scene.text(box.left, box.lower - 3, name, 10.0, halo=True)
