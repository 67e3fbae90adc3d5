"""TARGET → :class:`Workload`: what to run, on what inputs, with what loss and optimizer. Imports no torch."""

from __future__ import annotations

from memwall.workload.base import Workload
from memwall.workload.blame import blame
from memwall.workload.target import is_target, resolve

__all__ = ["Workload", "blame", "is_target", "resolve"]
