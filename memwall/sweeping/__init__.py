"""Sweeps: points of a space → each as ``memwall profile`` or ``memwall serve`` of it alone would say, in bulk.

:mod:`.run` is the whole way and the public function: start there. :mod:`.axes` and :mod:`.conditions` read what varies
and what is kept; :mod:`.kinds` has the kinds of points, its own and the kinds that wings bring (:mod:`memwall.points`);
:mod:`.engines` runs tasks here, in processes or on a Dask cluster; :mod:`.choice` finds the best and the front,
:mod:`.growth` how a quantity grows. :mod:`.compare` puts few points next to each other, with what differs between
them: GPUs, profiles, or machines (:mod:`.comparison` is the record). Traces are kept by :mod:`memwall.trace_cache`.
Commands: ``sweep`` (``command``), ``search`` (``search_command``), ``compare`` (``compare_command``).
"""
