"""Sweeps: points of a space → each as ``memwall profile`` or ``memwall serve`` of it alone would say, in bulk.

:mod:`.kinds` says what a point is and evaluates those that share a trace; :mod:`.traces` keeps traces;
:mod:`.engines` runs tasks here, in processes or on a Dask cluster; :mod:`.run` is the whole way and the public
function. What is left, the best and the front are those of :mod:`memwall.analysis.sweep`.
"""
