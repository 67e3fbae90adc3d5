"""Profiles → tables: what the figures of a workload say, computed once for reports, gates and histories.

In: profiles (:mod:`memwall.record`) and files of measured times. Out: frozen rows that :mod:`memwall.report` shows and
:mod:`memwall.gate` judges; nothing here formats a page. Start with ``quantities``, which says what every figure is
called, its unit and where it appears, ``limits``, how a bound of it is written, and ``table``, which groups and sums
kernels. ``matching`` and ``plan_diff`` find what changed; ``compare`` shows profiles side by side. ``verdict``,
``levers``, ``explanation``, ``savings``, ``whatif``, ``breaks``, ``rewrites`` and ``op_counts`` say what limits a step
and what would help; ``fused`` is all of ``memwall fuse``. ``validation`` has modeled next to measured times; scores of
them are :mod:`memwall.bench.accuracy`.
"""
