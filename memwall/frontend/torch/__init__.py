"""Workload → Graph: run one step on tensors without data and record what a CUDA device would run.

``run`` is the wiring: start there. ``build`` makes the module and its inputs on the traced device (``device``),
``recorder`` records the calls with their module and line (``origin``). ``cuda_forms``, ``autocast``,
``optimizers`` and ``triton_calls`` give what CUDA would run where ``meta`` would not; ``real_forms`` does so with true
values.
"""

from memwall.frontend.torch.run import Traced, TraceOptions, trace

__all__ = ["TraceOptions", "Traced", "trace"]
