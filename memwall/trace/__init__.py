"""Workload → Graph: run one step on tensors without data and write down what a CUDA device would run.

It is public too, as what users call: ``with memwall.trace() as t`` records any block (:func:`memwall.tracing.trace`).
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from memwall.trace.run import Traced, TraceOptions, trace

__all__ = ["TraceOptions", "Traced", "trace"]


class _Package(ModuleType):
    """This package as what users call; its modules and names stay where they are."""

    def __call__(self, **options: Any) -> Any:
        """Record a block of code; see :func:`memwall.tracing.trace`, which stands above this package."""
        return import_module("memwall.tracing").trace(**options)


sys.modules[__name__].__class__ = _Package
