"""``memwall serve``: a language model → what a server of it does under load, on any GPU.

One decode step is traced; its kernels (:mod:`memwall.fusion.server`) are evaluated at any batch and context, on each
GPU and for each number of GPUs that share the model (:class:`~memwall.simulate.serving.timing.GpuSteps`), and a server
with those steps is run under each load (:mod:`memwall.simulate.serving`).
"""

from memwall.serving.model import CACHES, WEIGHTS, Model, read_model
from memwall.serving.points import Point, Serving
from memwall.serving.run import ENGINES, OWN, check_priced, prices_of, serve, steps_of

__all__ = [
    "CACHES", "ENGINES", "OWN", "WEIGHTS", "Model", "Point", "Serving", "check_priced", "prices_of", "read_model",
    "serve", "steps_of",
]  # fmt: skip
