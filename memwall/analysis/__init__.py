"""Profiles → tables: what the figures of a workload say, computed once for reports, gates and histories.

In: profiles (:mod:`memwall.record`) and files of measured times. Out: frozen rows that :mod:`memwall.report` shows and
:mod:`memwall.gate` judges; nothing here formats a page. Start with ``quantities``, which says what every figure is
called, its unit and where it appears, ``limits``, how a bound of it is written, and ``table``, which groups and sums
kernels. ``matching`` finds what changed, ``machines`` puts datasheets side by side. ``verdict``, ``levers``,
``explanation``, ``savings`` and ``whatif`` say what limits a step and what would help. ``validation`` has modeled next
to measured times; scores of them are :mod:`memwall.bench.accuracy`. Comparisons are :mod:`memwall.sweeping.compare`,
what fusion wins is :mod:`memwall.fusing`.
"""
