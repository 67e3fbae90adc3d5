"""memwall: where the time of a PyTorch model goes on any GPU, without a GPU and without weights.

The public names are resolved when first used, so that ``import memwall`` imports neither torch nor pandas.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from memwall._version import __version__

if TYPE_CHECKING:
    from memwall.compare import Comparison
    from memwall.cost import Call, Cost, register_cost
    from memwall.errors import MemwallError
    from memwall.graph import Pipe
    from memwall.hardware import Gpu, load_gpu
    from memwall.pipeline import compare, profile
    from memwall.profile import Profile
    from memwall.tracing import trace
    from memwall.workload import Workload

__all__ = [
    "Call",
    "Comparison",
    "Cost",
    "Gpu",
    "MemwallError",
    "Pipe",
    "Profile",
    "Workload",
    "__version__",
    "compare",
    "load_gpu",
    "profile",
    "register_cost",
    "trace",
]

#: Public name -> the module that defines it.
_HOMES = {
    "Call": "memwall.cost",
    "Comparison": "memwall.compare",
    "Cost": "memwall.cost",
    "Gpu": "memwall.hardware",
    "MemwallError": "memwall.errors",
    "Pipe": "memwall.graph",
    "Profile": "memwall.profile",
    "Workload": "memwall.workload",
    "compare": "memwall.pipeline",
    "load_gpu": "memwall.hardware",
    "profile": "memwall.pipeline",
    "register_cost": "memwall.cost",
}

#: Public names that are packages too: importing a part of one binds the package, which can be called.
_CALLABLE = ("trace",)


if not TYPE_CHECKING:  # a checker knows the names from the imports above, and that there are no others

    def __getattr__(name: str) -> Any:
        if name in _CALLABLE:
            return import_module(f"memwall.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'memwall' has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})


class _Package(ModuleType):
    """Importing a submodule binds it in the package; ``memwall.profile`` and ``memwall.compare`` stay functions."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
