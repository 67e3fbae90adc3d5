"""What every picture shares: one style, the same bytes for the same input, colours, marks of legends, ticks.

Matplotlib is used without its global state, and imported where something is drawn. Text from a model is drawn as it
stands (``parse_math=False``), never as a formula.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memwall.core.units import PREFIXES
from memwall.report.columns import SECONDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: inches across and down, and what draws on a figure
Drawing = tuple[tuple[float, float], Callable[[Any], None]]

DPI = 150
STYLE = {
    "svg.hashsalt": "memwall", "svg.fonttype": "path", "font.family": "DejaVu Sans", "font.size": 9.0,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#667080", "axes.titleweight": "bold",
    "axes.titlelocation": "left", "axes.titlesize": 10.5, "xtick.color": "#444b55", "ytick.color": "#444b55",
    "text.parse_math": False, "figure.facecolor": "white", "axes.axisbelow": True, "grid.color": "#e3e6ea",
    "grid.linewidth": 0.7,
}  # fmt: skip
#: kind of file -> what matplotlib is given so that equal figures give equal bytes
METADATA: Mapping[str, Mapping[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}

INK, DIM, PALE = "#1b1f24", "#667080", "#98a0ab"

#: Paul Tol's bright scheme: one colour per op class, per wall and per kind of memory, the same in every picture
CLASS_COLORS = {
    "contraction": "#4477aa", "convolution": "#66ccee", "attention": "#aa3377", "normalization": "#ee6677",
    "reduction": "#ccbb44", "elementwise": "#228833", "movement": "#999999", "optimizer": "#ee8833",
    "other": "#555555",
}  # fmt: skip
WALL_COLORS = {"compute": "#228833", "bandwidth": "#ccaa22", "overhead": "#aa3377"}
MEMORY_COLORS = {
    "parameters": "#4477aa", "gradients": "#ee6677", "optimizer state": "#ee8833", "activations": "#228833",
}  # fmt: skip


def class_color(op_class: str) -> str:
    """The colour of a class; that of ``other`` for an unknown one."""
    return CLASS_COLORS.get(op_class, CLASS_COLORS["other"])


def picture(fmt: str, size: tuple[float, float], build: Callable[[Any], None]) -> bytes:
    """A figure of some size in inches as PNG or SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        return saved(drawn(Figure, size, build), fmt)


def drawn(kind: type[Figure], size: tuple[float, float], build: Callable[[Any], None]) -> Figure:
    """A figure of some size in inches, drawn in memwall's style; the caller restores matplotlib's own."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    matplotlib.rcdefaults()
    matplotlib.rcParams.update(STYLE)
    figure = kind(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    build(figure)
    return figure


def saved(figure: Figure, fmt: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=fmt, dpi=DPI, metadata=dict(METADATA[fmt]))
    if fmt != "svg":
        return buffer.getvalue()
    # matplotlib names clip paths by addresses in memory; numbers make the same picture the same bytes
    names: dict[bytes, bytes] = {}
    return re.sub(rb"\bp[0-9a-f]{10}\b", lambda m: names.setdefault(m[0], b"clip%d" % len(names)), buffer.getvalue())


def dots(colors: Iterable[str], **look: Any) -> list[Any]:
    from matplotlib.lines import Line2D

    return [Line2D([], [], **{"marker": "o", "ls": "", "markersize": 6, "color": color, **look}) for color in colors]


def patches(colors: Iterable[str]) -> list[Any]:
    from matplotlib.patches import Patch

    return [Patch(color=color) for color in colors]


def log_axes(axes: Any, x_range: Sequence[float], y_range: Sequence[float], x_label: str, y_label: str) -> None:
    """Two logarithmic axes, FLOP per byte against FLOP/s."""
    axes.set(xscale="log", yscale="log", xlim=x_range, ylim=y_range, xlabel=x_label, ylabel=y_label)
    axes.grid(True, which="major")
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(_engineering)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")


def _engineering(value: float, _: int) -> str:
    scale, prefix = next(((scale, f" {prefix}") for scale, prefix in PREFIXES[1:] if value >= scale), (1.0, ""))
    return f"{value / scale:g}{prefix}"


def note(axes: Any, text: str, at: tuple[float, float], shift: tuple[float, float], **look: Any) -> None:
    """Small print some points apart from a place."""
    look = {"textcoords": "offset points", "fontsize": 7.5, "color": DIM, **look}
    axes.annotate(text, at, shift, **look)


def time_unit(longest_s: float) -> tuple[float, str]:
    return next((unit for unit in SECONDS if longest_s >= unit[0]), SECONDS[-1])


def cut(name: str, width: int) -> str:
    """A name of at most so many characters."""
    return name if len(name) <= width else f"{name[: width - 1]}…"
