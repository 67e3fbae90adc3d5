"""The ``server`` policy: what inference engines (vLLM, SGLang, TensorRT-LLM) run in place of a model's own ops.

In: the graph of a step with a cache. Out: a :class:`~memwall.fusion.plan.Plan` of that step, and its kernels as
functions of batch, context and share of the GPUs (:func:`served`), of which one trace is enough. Start with
:mod:`~memwall.serving.steps.regions`: which ops each kernel stands for. :mod:`~memwall.serving.steps.reading` finds its
sizes, and :mod:`~memwall.serving.steps.caches` the sizes of what has a cache, from what
:mod:`~memwall.serving.steps.traced` says of the step; :mod:`~memwall.serving.steps.kernels` and
:mod:`~memwall.serving.steps.attention` say what each must do.

The rewrites: attention reads a paged cache in place of a concatenated one, rotates and stores in the same kernel;
matmuls of one module that read the same tensor are one; the experts of a mixture are one fused layer; norms,
activations and residual sums between them are one kernel each; masks and rotary tables are prepared once.
"""

from memwall.serving.steps.plan import ServedKernels, served, server_plan
from memwall.serving.steps.step import EngineStep, Layout

__all__ = ["EngineStep", "Layout", "ServedKernels", "served", "server_plan"]
