"""Which kernels of the runs that ``memwall measure --record`` kept have left their range, since when, what changed.

In: a folder of saved profiles with measurements (``runs.keep``, ``runs.read_runs``). Out: for each kernel of each
workload on each device whether its latest time lies outside of what its runs before span, or of its modeled range, and
since which run (``finding.find_drift``); ``page`` shows it. The gate takes the same runs as evidence. Start reading in
``finding``.
"""
