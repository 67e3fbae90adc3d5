"""What was modeled next to what was measured, each figure computed here and nowhere else.

In: a profile with measurements. Out: devices with their runs (``devices``), in a run the pairs of modeled and measured
kernels with their errors and sums (``pairs``), and the same as rows for files and other tools (``rows``).
"""

from memwall.analysis.validation.devices import (
    Device,
    GroupTimes,
    Point,
    SameGroups,
    devices,
    measured_points,
    measurements,
)
from memwall.analysis.validation.pairs import Pair, Run, Share, geomean
from memwall.analysis.validation.rows import COLUMNS, rows, summary

__all__ = [
    "COLUMNS",
    "Device",
    "GroupTimes",
    "Pair",
    "Point",
    "Run",
    "SameGroups",
    "Share",
    "devices",
    "geomean",
    "measured_points",
    "measurements",
    "rows",
    "summary",
]  # fmt: skip
