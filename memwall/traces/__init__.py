"""Profiler traces: PyTorch's (Kineto's), XLA's (:mod:`.xla`) and Nsight Compute's CSV, compared with a GPU.

A file's events (``stream``) are kept in columns (``events``), some bytes for each, and linked: kernel to launch
(``matching``), launch to the op around it (``nesting``), backward to forward (``owners``); :mod:`.reading` returns
the :class:`ProfilerTrace`. Then what one execution of an op launched is a row (``rows``), and its record a call that
the formulas of ``ops/`` count (``schemas``, ``calls``, ``triton``), with its context in the trace if the record is not
enough. ``costs`` prices a row on a GPU, once for all that are alike; ``analysing.analyse`` returns the rows
(``attained``) with their sums and record (``analysis``). Start reading in ``records``, then ``reading`` and
``analysing``."""
