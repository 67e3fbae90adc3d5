"""A chart as a file: SVG by ourselves, PNG and PDF by matplotlib, all from one scene."""

from __future__ import annotations

from memwall.report.columns import SECONDS
from memwall.report.figures.canvas import to_file
from memwall.report.figures.scene import STYLES, Chart, Scene, Style, drawn
from memwall.report.figures.svg import to_svg

KINDS = ("png", "svg", "pdf")
#: white around a picture in a file, pixels
_MARGIN = 10.0


def picture(kind: str, chart: Chart, style: Style = STYLES["screen"]) -> bytes:
    """A chart as ``svg``, ``png`` or ``pdf``."""
    scene = sheet(chart, style)
    return to_svg(scene).encode("utf-8") if kind == "svg" else to_file(scene, kind)


def sheet(chart: Chart, style: Style = STYLES["screen"]) -> Scene:
    """A chart on a sheet of the style's width, with a margin around it."""

    def framed(scene: Scene) -> float:
        return chart(scene.part(_MARGIN, _MARGIN, scene.width - 2 * _MARGIN)) + 2 * _MARGIN

    return drawn(framed, style)


def time_unit(longest_s: float) -> tuple[float, str]:
    return next((unit for unit in SECONDS if longest_s >= unit[0]), SECONDS[-1])


def cut(name: str, width: int) -> str:
    """A name of at most so many characters."""
    return name if len(name) <= width else f"{name[: width - 1]}…"
