"""Traces of XLA's profiler (``jax.profiler``, TensorFlow, PyTorch/XLA): ``.xplane.pb`` and ``.trace.json(.gz)``.

``wire`` and ``space`` read an XSpace, of which the JSON is a part. ``lanes`` hands on what ran on GPUs, TPUs and the
host in the words of Kineto's events, so that all behind it is that of any trace. ``programs`` finds the optimized HLO
(in the XSpace, or in a dump), ``linking`` makes each run of an instruction an op, and ``costs`` has its cost. Begin
with ``reading``.
"""

#: how the name of an XSpace ends
XSPACE = ".xplane.pb"
