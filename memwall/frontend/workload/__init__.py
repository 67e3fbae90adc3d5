"""TARGET → :class:`Workload`: what to run, on what inputs, with what loss and optimizer. Imports no torch."""

from __future__ import annotations

from memwall.frontend.workload.blame import blame
from memwall.frontend.workload.contract import Workload
from memwall.frontend.workload.target import is_target, resolve

__all__ = ["Workload", "blame", "is_target", "resolve"]
