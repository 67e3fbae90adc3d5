"""Run and time on this machine: every kernel of a model, two versions of it, what the machine itself reaches.

``kernels/`` measures a profile's kernels and steps next to their models; ``ab/`` times two checkouts of a model in
turns; ``calibrate/`` writes a hardware spec of this machine. All use the same parts: ``clock`` (how a call is timed;
``cuda`` on a GPU), ``machine`` and ``sensors`` (was the machine quiet, how hot, how fast), ``stats`` (samples → median,
interval, ratio), and :mod:`memwall.core.process` for the processes in which everything runs. Nothing of a user's model
runs in the process that asks. Start reading at ``kernels/run.py``.
"""
