"""What was modeled next to what was measured, each figure computed here and nowhere else.

In: a profile with measurements. Out: devices with their runs, executors compared on the same groups, and the same as
rows for files and other tools (``devices``); in a run the pairs of modeled and measured kernels with their errors and
sums (``pairs``). Tables of others are read into the same rows by :mod:`memwall.bench.accuracy`.
"""

from memwall.analysis.validation.devices import (
    COLUMNS,
    GroupTimes,
    MeasuredDevice,
    MeasuredPoint,
    SameGroups,
    devices,
    measured_points,
    measurements,
    rows,
    summary,
)
from memwall.analysis.validation.pairs import MeasuredRun, Pair, Share, TimedRow

__all__ = [
    "COLUMNS",
    "GroupTimes",
    "MeasuredDevice",
    "MeasuredPoint",
    "MeasuredRun",
    "Pair",
    "SameGroups",
    "Share",
    "TimedRow",
    "devices",
    "measured_points",
    "measurements",
    "rows",
    "summary",
]
