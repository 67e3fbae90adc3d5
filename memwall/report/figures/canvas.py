"""A scene on a matplotlib figure: for PNG, PDF and notebooks. Its last axes are the sheet, in pixels, with all that is
drawn; the axes before it are the frames of the scene: empty, transparent and in the units of their data.

Matplotlib is used without its global state, and imported where something is drawn. Text from a model is drawn as it
stands (``parse_math=False``), never as a formula. Equal scenes give equal bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from memwall.report.document import clean
from memwall.report.figures.colors import hexed
from memwall.report.figures.scene import Area, Dot, Dust, Frame, Rect, Scene, Stroke, Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: pixels of a scene to an inch, and to a point of 1/72 inch; dots per inch of a PNG
_INCH, _POINT, DPI = 100, 0.72, 150
#: kind of file -> what matplotlib is given so that equal figures give equal bytes
METADATA: Mapping[str, Mapping[str, None]] = {
    "png": {"Software": None}, "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}  # fmt: skip
_SETTINGS: Mapping[str, Any] = {"text.parse_math": False, "text.hinting": "none", "pdf.fonttype": 42}


def to_file(scene: Scene, kind: str) -> bytes:
    """The scene as ``png`` or ``pdf``."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        return saved(to_figure(scene, Figure), kind)


def saved(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=DPI, metadata=dict(METADATA[kind]))
    return buffer.getvalue()


def to_figure(scene: Scene, kind: type[Figure]) -> Figure:
    """The scene on a figure of some class; the caller restores matplotlib's settings. What is drawn on the axes of a
    frame, in its own units, stands above the scene."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    matplotlib.rcdefaults()
    matplotlib.rcParams.update({**_SETTINGS, "font.family": [scene.style.font, "DejaVu Sans"]})
    figure = kind(figsize=(scene.width / _INCH, scene.height / _INCH), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    for frame in scene.frames:
        _add_axes(figure, scene, frame)
    axes = figure.add_axes((0, 0, 1, 1), zorder=-1)
    axes.set_axis_off()
    axes.set(xlim=(0, scene.width), ylim=(scene.height, 0))
    for order, mark in enumerate(scene.marks):
        _PAINTERS[type(mark)](axes, mark, order + 2)
    return figure


def _add_axes(figure: Figure, scene: Scene, frame: Frame) -> None:
    left, upper, right, lower = frame.box
    place = left / scene.width, 1 - lower / scene.height, (right - left) / scene.width, (lower - upper) / scene.height
    figure.add_axes(
        place,
        label=clean(frame.title),
        xscale="log",
        yscale="log",
        xlim=frame.x,
        ylim=frame.y,
        xlabel=frame.x_label,
        ylabel=frame.y_label,
        autoscale_on=False,
    ).set_axis_off()


def _text(axes: Any, mark: Text, order: int) -> None:
    from matplotlib.patheffects import withStroke

    effects = [withStroke(linewidth=3 * _POINT, foreground="white")] if mark.halo else []
    axes.text(
        mark.x,
        mark.y,
        clean(mark.text),
        fontsize=mark.size * _POINT,
        color=hexed(mark.color),
        ha={"start": "left", "middle": "center", "end": "right"}[mark.anchor],
        va="baseline",
        rotation=mark.angle,
        rotation_mode="anchor",
        fontweight="bold" if mark.bold else "normal",
        path_effects=effects,
        zorder=order,
    )


def _stroke(axes: Any, mark: Stroke, order: int) -> None:
    xs, ys = zip(*mark.places, strict=True)
    dash = {"linestyle": (0, [part / mark.width for part in mark.dash])} if mark.dash else {}
    axes.plot(xs, ys, color=hexed(mark.color), linewidth=mark.width * _POINT, zorder=order, clip_on=False, **dash)


def _area(axes: Any, mark: Area, order: int) -> None:
    from matplotlib.patches import Polygon

    axes.add_patch(
        Polygon(list(mark.places), facecolor=hexed(mark.color), edgecolor="none", alpha=mark.opacity, zorder=order)
    )


def _rect(axes: Any, mark: Rect, order: int) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(
        Rectangle(
            (mark.x, mark.y),
            mark.width,
            mark.height,
            facecolor=hexed(mark.color),
            zorder=order,
            linewidth=0.8 * _POINT if mark.edge else 0,
            edgecolor=hexed("card"),
        )
    )
    if mark.text is not None:
        _text(axes, mark.text, order)


def _dot(axes: Any, mark: Dot, order: int) -> None:
    from matplotlib.patches import Circle, Polygon

    fill = "none" if mark.hollow else hexed(mark.color)
    edge = hexed(mark.color if mark.hollow else mark.edge)
    look: dict[str, Any] = {
        "facecolor": fill,
        "edgecolor": edge,
        "linewidth": (1.3 if mark.hollow else 0.8) * _POINT,
        "zorder": order,
    }
    shape = Circle((mark.x, mark.y), mark.r, **look) if mark.shape == "circle" else Polygon(mark.outline, **look)
    axes.add_patch(shape)


def _dust(axes: Any, mark: Dust, order: int) -> None:
    xs, ys = zip(*mark.places, strict=True)
    axes.scatter(
        xs,
        ys,
        s=(2 * mark.r * _POINT) ** 2,
        color=hexed(mark.color),
        alpha=0.45,
        linewidths=0,
        zorder=order,
        rasterized=True,
    )


_PAINTERS: dict[type, Callable[[Any, Any, int], None]] = {
    Text: _text, Stroke: _stroke, Area: _area, Rect: _rect, Dot: _dot, Dust: _dust,
}  # fmt: skip
