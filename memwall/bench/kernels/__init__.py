"""Every kernel of a model run and timed on this machine: eager ops, generated Triton kernels, torch.compile's.

In: a profile or a target, a device, executors. Out: the profile with a measurement for each executor. Start at ``run``
(:func:`measure`); ``benchmark_run`` finds the distinct kernels and asks for them in rounds, ``workers`` are the
processes and ``session`` what happens in them: ``executors`` build a kernel, ``oracle`` checks what it computes (random
inputs from ``arena``, float64 results from ``evaluate``, tolerances from ``numerics``), ``bench.clock`` times it.
"""

from memwall.bench.kernels.run import Interrupted, measure
from memwall.bench.kernels.workers import WorkerPool

__all__ = ["Interrupted", "WorkerPool", "measure"]
