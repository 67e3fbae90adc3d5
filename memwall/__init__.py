"""memwall: where the time of a PyTorch model goes on any GPU, without a GPU and without weights.

The public names are resolved when first used, so that ``import memwall`` imports neither torch nor pandas.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from memwall.core.version import __version__

if TYPE_CHECKING:
    from memwall.analysis.communication import comm
    from memwall.bounding.run import bound
    from memwall.core.errors import MemwallError
    from memwall.core.graph import Pipe
    from memwall.frontend.targets import Workload
    from memwall.frontend.targets.inputs import on_host
    from memwall.fusing.run import fuse
    from memwall.gate.run import gate
    from memwall.hardware.lookup import Gpu, load_gpu
    from memwall.ops import Call, Cost, register_cost
    from memwall.pipeline import profile, trace
    from memwall.record.profile import Profile
    from memwall.serving import serve
    from memwall.serving.search import search
    from memwall.sweeping.compare import compare
    from memwall.sweeping.comparison import Comparison
    from memwall.sweeping.run import sweep
    from memwall.training.run import parallel
    from memwall.training.search import search_layouts

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
    "bound",
    "comm",
    "compare",
    "fuse",
    "gate",
    "load_gpu",
    "on_host",
    "parallel",
    "profile",
    "register_cost",
    "search",
    "search_layouts",
    "serve",
    "sweep",
    "trace",
]

#: Public name -> the module that defines it.
_HOMES = {
    "Call": "memwall.ops",
    "Comparison": "memwall.sweeping.comparison",
    "Cost": "memwall.ops",
    "Gpu": "memwall.hardware.lookup",
    "MemwallError": "memwall.core.errors",
    "Pipe": "memwall.core.graph",
    "Profile": "memwall.record.profile",
    "Workload": "memwall.frontend.targets",
    "bound": "memwall.bounding.run",
    "comm": "memwall.analysis.communication",
    "compare": "memwall.sweeping.compare",
    "fuse": "memwall.fusing.run",
    "gate": "memwall.gate.run",
    "load_gpu": "memwall.hardware.lookup",
    "on_host": "memwall.frontend.targets.inputs",
    "parallel": "memwall.training.run",
    "profile": "memwall.pipeline",
    "register_cost": "memwall.ops",
    "search": "memwall.serving.search",
    "search_layouts": "memwall.training.search",
    "serve": "memwall.serving",
    "sweep": "memwall.sweeping.run",
    "trace": "memwall.pipeline",
}


if not TYPE_CHECKING:  # a checker knows the names from the imports above, and that there are no others

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'memwall' has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        return globals().setdefault(name, value)  # what imports ``memwall.gate``, a folder, has set it


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
