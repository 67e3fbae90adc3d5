"""The ``server`` policy: what inference engines (vLLM, SGLang, TensorRT-LLM) run in place of a model's own ops.

In: the graph of a step with a cache. Out: a :class:`~memwall.fusion.plan.Plan` of that step, and its kernels as
functions of batch, context and share of the GPUs (:func:`served`), of which one trace is enough. Start with
:mod:`~memwall.fusion.server.regions`: which ops each kernel stands for. :mod:`~memwall.fusion.server.reading` finds its
sizes, and :mod:`~memwall.fusion.server.caches` those of what has a cache, from what
:mod:`~memwall.fusion.server.traced` says of the step; :mod:`~memwall.fusion.server.kernels` and
:mod:`~memwall.fusion.server.attention` say what each must do.

The rewrites: attention reads a paged cache in place of a concatenated one, rotates and stores in the same kernel;
products of one module that read the same tensor are one; the experts of a mixture are one fused layer; norms,
activations and residual sums between them are one kernel each; masks and rotary tables are prepared once.
"""

from memwall.fusion.server.plan import Served, served, server_plan
from memwall.fusion.server.step import Layout, Step

__all__ = ["Layout", "Served", "Step", "served", "server_plan"]
