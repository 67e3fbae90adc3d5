"""Reading profiler traces: PyTorch's (Kineto) Chrome traces and Nsight Compute's CSV.

:func:`read_trace` streams a trace and links every GPU row to the op that launched it; :mod:`memwall.traces.records`
says what comes out.
"""

from __future__ import annotations

from memwall.traces.devices import board, used
from memwall.traces.ncu import NcuJoin, NcuRow, join_ncu, read_ncu_csv
from memwall.traces.reading import read_trace
from memwall.traces.records import Device, Gap, Step, Trace, TracedKernel, TracedOp

__all__ = [
    "Device",
    "Gap",
    "NcuJoin",
    "NcuRow",
    "Step",
    "Trace",
    "TracedKernel",
    "TracedOp",
    "board",
    "join_ncu",
    "read_ncu_csv",
    "read_trace",
    "used",
]
