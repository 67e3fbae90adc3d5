"""Closing the loop: what was modeled beside what was measured, each figure computed here and nowhere else."""

from memwall.analysis.validation.devices import (
    Contest,
    Device,
    GroupTimes,
    Point,
    devices,
    measured_points,
    measurements,
)
from memwall.analysis.validation.pairs import Pair, Run, Share, geomean
from memwall.analysis.validation.rows import COLUMNS, rows, summary

__all__ = [
    "COLUMNS", "Contest", "Device", "GroupTimes", "Pair", "Point", "Run", "Share", "devices", "geomean",
    "measured_points", "measurements", "rows", "summary",
]  # fmt: skip
