"""TARGET → :class:`Workload`: what to run, on what inputs, with what loss and optimizer. Importing this imports no torch."""

from __future__ import annotations

from memwall.workload.blame import blame
from memwall.workload.target import is_target, resolve
from memwall.workload.base import Workload

__all__ = ["Workload", "blame", "is_target", "resolve"]
