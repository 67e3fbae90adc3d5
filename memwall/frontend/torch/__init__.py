"""Workload → Graph: run one step on tensors without data and record what a CUDA device would run.

``run`` is the wiring, ``recorded_step`` the step: start there. ``build`` makes module, inputs and optimizer.
Four rooms: ``dispatch`` records the calls with their module and line, in the form that CUDA would run; ``values`` has
what is known and assumed of numbers; ``process`` what a process says of devices and settings; ``ranks`` programs of
several GPUs from one rank.
"""

from memwall.frontend.torch.options import TraceOptions, TraceResult
from memwall.frontend.torch.run import trace

__all__ = ["TraceOptions", "TraceResult", "trace"]
