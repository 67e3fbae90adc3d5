"""Launch × GPU → seconds.

In: the launches of a cost (:mod:`memwall.ops.launches`) and a GPU; out: a :class:`Prediction`, the terms of its time,
the wall that limits it, and an interval.

Start with :mod:`~memwall.perfmodel.roofline`: the bound, and the sum over the launches of a cost. Each kernel family
has a module (``gemm``, ``gemm_vector``, ``convolution``, ``attention``, ``recurrent``, ``rows``, ``stream``) with
``predict`` and ``explain``; :mod:`~memwall.perfmodel.families` is their table. ``reduction`` says which stream a
reduction is on a GPU. What they share is in ``base``, links between GPUs in ``collectives``, CPU kernels in ``cpu``.
"""
