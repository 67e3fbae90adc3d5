"""TARGET → :class:`Workload`: what to run, on what inputs, with what loss and optimizer. Imports no torch."""

from __future__ import annotations

from memwall.frontend.targets.blame import blame
from memwall.frontend.targets.contract import Workload
from memwall.frontend.targets.target import is_target, named, resolve

__all__ = ["Workload", "blame", "is_target", "named", "resolve"]
