"""The one table of colours: each means one thing in text, on pages and in pictures.

Within a group any two colours are at least 14 apart (CIELAB), for normal sight and for each of the three kinds of
colour blindness; between groups at least 10. Walls and kinds of memory, which stack, differ in lightness too, for grey
print. All can be seen on white and on the dark page, so only the neutral ones change with the reader's scheme.
``tests/unit/report/test_pictures_colors.py`` checks it.
"""

from __future__ import annotations

from collections.abc import Mapping

CLASS_COLORS: Mapping[str, str] = {
    "contraction": "#3088b8", "convolution": "#26bffa", "attention": "#c83fa3", "normalization": "#8a1268",
    "reduction": "#c2aa52", "elementwise": "#136c38", "movement": "#999999", "optimizer": "#e2922a",
    "communication": "#0957b3", "other": "#666666",
}  # fmt: skip
#: colour of an op class -> its shape where a style shows classes in shapes as well
CLASS_SHAPES: Mapping[str, str] = dict(zip(
    CLASS_COLORS.values(),
    ("circle", "hexagon", "star", "pentagon", "bar", "triangle", "cross", "diamond", "post", "square"), strict=True,
))  # fmt: skip
WALL_COLORS: Mapping[str, str] = {
    "compute": "#523c81", "bandwidth": "#c0aa05", "latency": "#528940", "overhead": "#8ad56b", "link": "#6394df",
}  # fmt: skip
#: kind of ``MemoryPeak`` -> colour, in the order in which they stack
MEMORY_COLORS: Mapping[str, str] = {
    "parameters": "#7a2488", "buffers": "#2a36e8", "optimizer_state": "#dc6405", "gradients": "#faaa8c",
    "inputs": "#b582fa", "activations": "#27b8ad", "temporaries": "#905d2d",
}  # fmt: skip
#: what has no colour of its own: GPUs, quantities of a machine, workloads; in this order
SERIES_COLORS = ("#0576c9", "#d27208", "#9a5a9f", "#c2bd05", "#1ad4ec", "#5b4c39")
#: a change for the worse or the better
SIGN_COLORS: Mapping[str, str] = {"worse": "#c32314", "better": "#63b28f"}
#: name -> on white; ``report.css`` has those of the dark page
NEUTRAL: Mapping[str, str] = {
    "ink": "#1b1f24", "dim": "#667080", "pale": "#a9b1bb", "line": "#dfe3e8", "card": "#ffffff",
}  # fmt: skip


def class_color(op_class: str) -> str:
    """The colour of a class; that of ``other`` for an unknown one."""
    return CLASS_COLORS.get(op_class, CLASS_COLORS["other"])


def series_color(number: int) -> str:
    return SERIES_COLORS[number % len(SERIES_COLORS)]


def luminance(color: str) -> float:
    """Relative luminance of ``#rrggbb``, 0 to 1 (WCAG 2)."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def text_on(color: str) -> str:
    """White or black, whichever can be read on a colour."""
    return "#ffffff" if luminance(NEUTRAL.get(color, color)) < 0.18 else "#000000"
