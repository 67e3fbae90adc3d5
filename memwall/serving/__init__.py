"""``memwall serve``: a language model → what a server of it does under load, on any GPU.

One decode step is traced; its kernels (:mod:`memwall.serving.steps`) are evaluated at any batch and context, on each
GPU and for each number of GPUs that share the model (:class:`~memwall.serving.simulation.timing.GpuSteps`), and a
server with those steps is run under each load (:mod:`memwall.serving.simulation`).

:mod:`.question` has the options, :mod:`.run` is the whole way: start there. :mod:`.candidates` has objectives and the
cheapest server that keeps them, :mod:`.search` the search over GPUs, formats and layouts, :mod:`.kinds` the points of
sweeps, :mod:`.page` what is shown.
"""

from memwall.serving.answer import Point, Serving
from memwall.serving.model import CACHES, WEIGHTS, Model, read_model
from memwall.serving.run import ENGINES, OWN, serve, steps_of

__all__ = [
    "CACHES", "ENGINES", "OWN", "WEIGHTS", "Model", "Point", "Serving", "read_model", "serve", "steps_of",
]  # fmt: skip
