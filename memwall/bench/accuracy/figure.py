"""Modeled vs. measured time, a panel for each GPU: the diagonal, the band of 20 %, a colour for each op class; classes
of tables of others have the colour of the op class that they belong to."""

from __future__ import annotations

import math
from collections.abc import Sequence

from memwall.bench.accuracy import CLOSE, TimedRow
from memwall.core.errors import UsageError
from memwall.core.units import duration, percent
from memwall.report.columns import SECONDS
from memwall.report.document import clean
from memwall.report.figures.axes import PlotAxis, draw_frame, draw_x, draw_y
from memwall.report.figures.colors import CLASS_COLORS
from memwall.report.figures.labels import Box
from memwall.report.figures.scene import Chart, Scene, fit, side_by_side, stacked

#: pixels of a panel at least, and points that one draws at most
_LEAST, _POINTS = 240.0, 4000
#: pixels of its axes at most
_MOST = 400.0
#: rows that are too few for a panel of their own
_FEW = 50
#: rows of a panel up to which each is a dot with a title
_SPARSE = 200


def scatter_chart(rows: Sequence[TimedRow]) -> Chart:
    """The picture.

    Raises:
        UsageError: there is nothing to draw.
    """
    if not rows:
        raise UsageError("there is no row to draw")
    gpus = _panels(rows)
    found = {_family(row.op_class) for row in rows}
    panels = side_by_side([_panel_chart(gpu, shown) for gpu, shown in gpus.items()], _LEAST)
    legend = [(name, color, "circle") for name, color in CLASS_COLORS.items() if name in found]
    return stacked([panels, lambda scene: scene.legend(0, legend)], gap=10)


#: what a class of a table begins with -> op class
_FAMILIES = {
    "gemm": "contraction", "linear": "contraction", "bmm": "contraction", "moe": "contraction", "mlp": "contraction",
    "conv": "convolution", "prefill": "attention", "decode": "attention", "mla": "attention",
    "softmax": "normalization", "layer": "normalization", "norm": "normalization", "rms": "normalization",
    "fused_add_rms": "normalization",
    "cross": "reduction", "stream": "elementwise", "add": "elementwise", "activation": "elementwise",
    "relu": "elementwise", "gelu": "elementwise", "silu": "elementwise", "swiglu": "elementwise", "rope": "elementwise",
    "embedding": "movement", "all": "communication", "reduce": "communication",
}  # fmt: skip


def _family(name: str) -> str:
    """The op class of a class of a table: by its longest known beginning."""
    known = {**_FAMILIES, **{name: name for name in CLASS_COLORS}}
    return known[max((start for start in known if name.startswith(start)), key=len, default="other")]


def _panels(rows: Sequence[TimedRow]) -> dict[str, list[TimedRow]]:
    """The rows of each GPU; where some have many, GPUs with few rows share the last panel."""
    found: dict[str, list[TimedRow]] = {}
    for row in sorted(rows, key=lambda row: row.gpu.lower()):
        found.setdefault(row.gpu, []).append(row)
    few = [gpu for gpu, own in found.items() if len(own) < _FEW]
    if len(few) in (0, 1, len(found)):
        return found
    others = [row for gpu in few for row in found.pop(gpu)]
    return {**found, f"{len(few)} others": others}


def _tick(value: float) -> str:
    scale, unit = next((unit for unit in SECONDS if value >= unit[0] * 0.999), (1e-9, "ns"))
    return f"{value / scale:.0f} {unit}"


def _panel_chart(gpu: str, rows: Sequence[TimedRow]) -> Chart:
    return lambda scene: _panel(scene, gpu, rows)


def _panel(scene: Scene, gpu: str, rows: Sequence[TimedRow]) -> float:
    times = [time for row in rows for time in (row.measured_s, row.modeled_s) if time > 0]
    low = 10.0 ** math.floor(math.log10(min(times)))
    high = 10.0 ** math.ceil(math.log10(max(times) * 1.01))
    scene.text(0, 12, fit(clean(gpu), scene.width, 11), bold=True)
    close = sum(abs(row.error) <= CLOSE for row in rows) / len(rows)
    scene.text(0, 26, f"{len(rows):,} rows, {percent(close, 0)} within {percent(CLOSE, 0)}", 10, color="dim")
    side = min(scene.width - 58, _MOST)
    frame = Box(52.0, 52.0, 52.0 + side, 52.0 + side)
    x, y = (
        PlotAxis(low, high, frame.left, frame.right, log=True),
        PlotAxis(low, high, frame.lower, frame.upper, log=True),
    )
    band = [
        (x(low), y(low)),
        (x(low), y(low * (1 + CLOSE))),
        (x(high / (1 + CLOSE)), y(high)),
        (x(high), y(high)),
        (x(high), y(high * (1 - CLOSE))),
        (x(low / (1 - CLOSE)), y(low)),
    ]
    scene.area(band, "line")
    draw_x(scene, frame, x, _tick, "measured", x.ticks(4))
    draw_y(scene, frame, y, _tick, "modeled", y.ticks(4))
    draw_frame(scene, frame)
    drawn = [row for row in rows[:: -(-len(rows) // _POINTS)] if row.measured_s > 0 and row.modeled_s > 0]
    scene.line((x(low), y(low)), (x(high), y(high)), width=0.8)
    for name, color in CLASS_COLORS.items():
        own = [row for row in drawn if _family(row.op_class) == name]
        if own and len(drawn) > _SPARSE:
            scene.dust([(x(row.measured_s), y(row.modeled_s)) for row in own], color)
        for row in own if len(drawn) <= _SPARSE else ():
            told = f"{clean(row.op_class)}: measured {duration(row.measured_s)}, modeled {duration(row.modeled_s)}"
            scene.dot(x(row.measured_s), y(row.modeled_s), 3.5, color, title=told)
    return frame.lower + 38
