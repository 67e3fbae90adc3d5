"""Launch × GPU → seconds.

In: the launches of a cost (:mod:`memwall.ops.launches`) and a GPU; out: a :class:`Prediction`, the terms of its time,
the wall that limits it, and an interval.

Start with :mod:`~memwall.perfmodel.roofline`: the bound, and the sum over the launches of a cost. Each kernel family
has a module (``gemm``, ``gemm_vector``, ``convolution``, ``attention``, ``rows``, ``stream``, ``plain``) with
``predict`` and ``explain``; :mod:`~memwall.perfmodel.families` is their table. Traffic is in ``memory``, links between
GPUs in ``collectives``, the host's time around a call in ``launch``, CPU kernels in ``cpu``.
"""

from memwall.perfmodel.roofline import (
    LINK,
    WALLS,
    Estimate,
    Prediction,
    bound_s,
    launch_floor_s,
    launches_of,
    peak_compute_s,
    predict_cost,
)

__all__ = [
    "LINK", "WALLS", "Estimate", "Prediction", "bound_s", "launch_floor_s", "launches_of", "peak_compute_s",
    "predict_cost",
]  # fmt: skip
