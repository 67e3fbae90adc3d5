"""A scene as SVG: with fixed colours for a file; on a page with colours of the reader's scheme.

Text is drawn as text, never as markup: every name is escaped. What can be pointed at has its ``<title>``; its ``key``,
as ``data-key``, is what the page's script acts on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from memwall.report.document import clean
from memwall.report.figures.colors import css, hexed
from memwall.report.figures.scene import FONT, Area, Dot, Dust, Place, Rect, Scene, Stroke, Text

_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "'": "&#39;", '"': "&#34;"})

Paint = Callable[[str], str]


def to_svg(scene: Scene, *, label: str = "", themed: bool = False, look: str = "") -> str:
    """The scene. ``themed``: colours are CSS variables of the page that it is put into, and its class ``look``
    is too; else it is a file of its own on white."""
    paint = css if themed else hexed
    width, height = _number(scene.width), _number(scene.height)
    own = f'class="{look}"' if themed else f'xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
    family = f"{scene.style.font},DejaVu Sans,Verdana,sans-serif"
    parts = [
        f'<svg {own} viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}"'
        f' font-family="{family}" font-size="{_number(FONT)}" fill="{paint("ink")}">'
    ]
    if not themed:
        parts.append('<rect width="100%" height="100%" fill="#ffffff"/>')
    parts += [_WRITERS[type(mark)](mark, paint) for mark in scene.marks]
    return "\n".join([*parts, "</svg>"])


def escape(text: object) -> str:
    return str(text).translate(_ESCAPES)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _path(places: Iterable[Place]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in places)


def _text(mark: Text, paint: Paint) -> str:
    more = "" if mark.color == "ink" else f' fill="{paint(mark.color)}"'
    more += "" if mark.size == FONT else f' font-size="{_number(mark.size)}"'
    more += "" if mark.anchor == "start" else f' text-anchor="{mark.anchor}"'
    more += ' font-weight="bold"' if mark.bold else ""
    x, y = _number(mark.x), _number(mark.y)
    more += f' transform="rotate({_number(-mark.angle)} {x} {y})"' if mark.angle else ""
    if mark.halo:
        more += f' paint-order="stroke" stroke="{paint("card")}" stroke-width="3"'
    return f'<text x="{x}" y="{y}"{more}>{escape(clean(mark.text))}</text>'


def _stroke(mark: Stroke, paint: Paint) -> str:
    dash = f' stroke-dasharray="{" ".join(map(_number, mark.dash))}"' if mark.dash else ""
    look = f'fill="none" stroke="{paint(mark.color)}" stroke-width="{_number(mark.width)}"{dash}'
    return f'<polyline points="{_path(mark.places)}" {look}/>'


def _told(tag: str, mark: Area | Rect | Dot, attributes: str) -> str:
    """An element with its key and its title."""
    key = f' data-key="{escape(mark.key)}"' if mark.key else ""
    if not mark.title:
        return f"<{tag} {attributes}{key}/>"
    return f"<{tag} {attributes}{key}><title>{escape(mark.title)}</title></{tag}>"


def _area(mark: Area, paint: Paint) -> str:
    opacity = "" if mark.opacity == 1 else f' fill-opacity="{mark.opacity:g}"'
    return _told("polygon", mark, f'points="{_path(mark.places)}" fill="{paint(mark.color)}"{opacity}')


def _rect(mark: Rect, paint: Paint) -> str:
    place = f'x="{_number(mark.x)}" y="{_number(mark.y)}" width="{_number(mark.width)}" height="{_number(mark.height)}"'
    edge = f' stroke="{paint("card")}" stroke-width="0.8"' if mark.edge else ""
    drawn = _told("rect", mark, f'{place} fill="{paint(mark.color)}"{edge}')
    label = mark.text
    if label is None:
        return drawn
    return (
        f'{drawn}<text x="{_number(label.x)}" y="{_number(label.y)}" fill="{paint(label.color)}"'
        f' font-size="{_number(label.size)}" pointer-events="none">{escape(clean(label.text))}</text>'
    )


def _dot(mark: Dot, paint: Paint) -> str:
    fill = "none" if mark.hollow else paint(mark.color)
    edge = paint(mark.color if mark.hollow else mark.edge)
    look = f'fill="{fill}" stroke="{edge}" stroke-width="{"1.3" if mark.hollow else "0.8"}"'
    if mark.shape == "circle":
        place = f'cx="{_number(mark.x)}" cy="{_number(mark.y)}" r="{_number(mark.r)}"'
        return _told("circle", mark, f"{place} {look}")
    return _told("polygon", mark, f'points="{_path(mark.outline)}" {look}')


def _dust(mark: Dust, paint: Paint) -> str:
    dots = "".join(f"M{_number(x)} {_number(y)}h0" for x, y in mark.places)
    look = f'stroke="{paint(mark.color)}" stroke-width="{_number(2 * mark.r)}" stroke-linecap="round"'
    return f'<path d="{dots}" {look} stroke-opacity=".45"/>'


_WRITERS: dict[type, Callable[[Any, Paint], str]] = {
    Text: _text, Stroke: _stroke, Area: _area, Rect: _rect, Dot: _dot, Dust: _dust,
}  # fmt: skip
