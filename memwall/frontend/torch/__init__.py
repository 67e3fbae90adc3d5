"""Workload → Graph: run one step on tensors without data and record what a CUDA device would run.

``run`` is the wiring: start there. ``build`` makes the module, its inputs and its optimizer on the traced device
(``device``), ``recorder`` records the calls with their module and line (``origin``). ``cuda_forms``, ``autocast`` and
``triton_calls`` give what CUDA would run where ``meta`` or the CPU would not.
"""

from memwall.frontend.torch.options import Traced, TraceOptions
from memwall.frontend.torch.run import trace

__all__ = ["TraceOptions", "Traced", "trace"]
