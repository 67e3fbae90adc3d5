"""Run and time on this machine: every kernel of a model, two versions of it, and the machine's own ceilings.

``kernels/`` measures a profile's kernels and steps next to modeled times; ``ab/`` times two checkouts of a model in
turns; ``calibrate/`` writes a hardware spec of this machine. All use the same parts: ``clock`` (how a call is timed;
``cuda`` on a GPU), ``device`` (its interface and sensors), ``machine`` (was it quiet), ``stats`` (samples → median,
interval, ratio), and :mod:`memwall.core.process` for the processes in which everything runs. A user's model never runs
in the calling process. Start reading at ``kernels/run.py``.
"""
