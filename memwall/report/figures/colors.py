"""The one table of colours: each means one thing in text, on pages and in pictures.

Each has two shades, one for white and one for the dark page, that stand out from it (3 to 1 by WCAG 2). In both, any
two colours of a group are at least 13.5 apart (CIELAB), for normal sight and for each of the three kinds of colour
blindness, and of two groups at least 10; a wall and a class, which stand on one page, are at least 30 apart. Walls and
kinds of memory, which stack, differ in lightness too, for grey print. ``tests/unit/report/test_pictures_colors.py``
checks it. A colour goes by its shade on white or, of the neutral ones, by its name; ``on`` and a colour is what can be
read on it.
"""

from __future__ import annotations

from collections.abc import Mapping

#: on white, on the dark page
_Pair = tuple[str, str]

_CLASSES: Mapping[str, _Pair] = {
    "contraction": ("#0a98cf", "#3a7396"), "convolution": ("#186c97", "#3bc2fa"),
    "attention": ("#b01e89", "#d84cb4"), "normalization": ("#ee6097", "#9b586e"),
    "reduction": ("#7b680d", "#e2c870"), "elementwise": ("#2e8f53", "#4d9e66"), "movement": ("#6f6f6f", "#bcbcbc"),
    "optimizer": ("#c67a09", "#faa840"), "communication": ("#08459d", "#0088f8"), "other": ("#4c4c4c", "#959595"),
}  # fmt: skip
_WALLS: Mapping[str, _Pair] = {
    "compute": ("#8c4ce2", "#bd9fda"), "bandwidth": ("#9c3334", "#dd5c5a"), "latency": ("#1e9f98", "#9ef6ef"),
    "overhead": ("#2e4515", "#93d64d"), "link": ("#14244b", "#4858fe"),
}  # fmt: skip
#: in the order in which they stack
_MEMORY: Mapping[str, _Pair] = {
    "parameters": ("#751f83", "#f395fa"), "buffers": ("#2032e3", "#8452fa"),
    "optimizer_state": ("#d65e05", "#ec7015"), "gradients": ("#6a2c17", "#e89a7c"), "inputs": ("#8f60d2", "#bc84fa"),
    "kv_cache": ("#c0855c", "#e2e40b"),
    "activations": ("#057c6f", "#53d8cd"), "temporaries": ("#814f1f", "#946030"),
}  # fmt: skip
_SERIES: tuple[_Pair, ...] = (
    ("#0e6ec3", "#599ff6"), ("#832205", "#fa9334"), ("#7a3d80", "#cb88d0"), ("#9f9705", "#e0d933"),
    ("#05a2b7", "#3de3fa"), ("#87877d", "#978572"),
)  # fmt: skip
_SIGNS: Mapping[str, _Pair] = {
    "worse": ("#c2270a", "#fa583c"), "better": ("#247555", "#83d3ae"),
}  # fmt: skip
_NEUTRAL: Mapping[str, _Pair] = {
    "ink": ("#1b1f24", "#e6e9ed"), "dim": ("#667080", "#97a1ae"), "pale": ("#8a929d", "#6b7480"),
    "line": ("#dfe3e8", "#333a43"), "card": ("#ffffff", "#1d2126"),
}  # fmt: skip


def _on_white(pairs: Mapping[str, _Pair]) -> Mapping[str, str]:
    return {name: pair[0] for name, pair in pairs.items()}


CLASS_COLORS = _on_white(_CLASSES)
#: colour of an op class -> its shape where a style shows classes in shapes as well
CLASS_SHAPES: Mapping[str, str] = dict(zip(
    CLASS_COLORS.values(),
    ("circle", "hexagon", "star", "pentagon", "bar", "triangle", "cross", "diamond", "post", "square"), strict=True,
))  # fmt: skip
WALL_COLORS = _on_white(_WALLS)
#: kind of ``MemoryPeak`` -> colour
MEMORY_COLORS = _on_white(_MEMORY)
#: what has no colour of its own: GPUs, quantities of a machine, workloads; in this order
SERIES_COLORS = tuple(light for light, _ in _SERIES)
#: a change for the worse or the better
SIGN_COLORS = _on_white(_SIGNS)
NEUTRAL = _on_white(_NEUTRAL)
#: colour -> its shade on the dark page
DARK: Mapping[str, str] = {
    **dict(pair for pairs in (_CLASSES, _WALLS, _MEMORY, _SIGNS) for pair in pairs.values()), **dict(_SERIES),
    **{name: dark for name, (_, dark) in _NEUTRAL.items()},
}  # fmt: skip


def class_color(op_class: str) -> str:
    """The colour of a class; the colour of ``other`` for an unknown one."""
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
    return "#ffffff" if luminance(color) < 0.18 else "#000000"


def hexed(color: str) -> str:
    """``#rrggbb`` of a colour on white."""
    return text_on(hexed(color[3:])) if color.startswith("on ") else NEUTRAL.get(color, color)


def css(color: str) -> str:
    """A colour as a variable of the page that it is put on, which has another shade where it is dark."""
    return f"var(--{_variable(color)},{hexed(color)})" if color.removeprefix("on ") in DARK else hexed(color)


def variables(dark: bool) -> str:
    """What the variables are on a page, as its style sheet sets them."""
    shades = {color: shade if dark else hexed(color) for color, shade in DARK.items()}
    letters = {f"on {color}": text_on(shade) for color, shade in shades.items()}
    return ";".join(f"--{_variable(color)}:{value}" for color, value in (shades | letters).items())


def _variable(color: str) -> str:
    return color.replace("on ", "on-").replace("#", "")
