"""What a GPU draws: in proportion to its power limit, at idle, and more for arithmetic and for traffic.

A kernel of ``time_s``, whose arithmetic alone would take ``compute_s`` and whose traffic alone ``memory_s``, draws::

    limit x min(IDLE + COMPUTE x compute_s / time_s + MEMORY x memory_s / time_s, 1)

between kernels the GPU draws ``IDLE``, and so it does in messages. ``lab/fits/fit_power.py`` has the fit and its
errors: rows of NVIDIA's collectors on a B200 of 1,000 W, the one GPU of which power is known here; others are taken to
draw the same shares of their limits.
"""

from __future__ import annotations

from memwall.hardware.lookup import Gpu
from memwall.perfmodel.roofline import Prediction

#: shares of the power limit: with a clock and without work, and what is added by arithmetic and by traffic all the time
IDLE, COMPUTE, MEMORY = 0.25, 0.81, 0.58


def idle_w(gpu: Gpu) -> float | None:
    """Watts of a GPU that waits; None where its power limit is not known."""
    return IDLE * gpu.tdp_w or None


def above_idle_j(found: Prediction, gpu: Gpu) -> float:
    """Joules that a kernel draws beyond what as long a wait does; 0 where the power limit is not known."""
    return drawn_j(found.compute_s, found.memory_s, found.time_s, gpu)


def drawn_j(compute_s: float, memory_s: float, time_s: float, gpu: Gpu) -> float:
    """The same of kernels of so many seconds, whose arithmetic and traffic are busy for some of them."""
    return gpu.tdp_w * min(COMPUTE * compute_s + MEMORY * memory_s, (1 - IDLE) * time_s)


def mean_w(above_idle_j: float, time_s: float, gpu: Gpu) -> float | None:
    """Watts over so many seconds with so many joules beyond idle, up to the power limit; None where that is not
    known."""
    idle = idle_w(gpu)
    return None if idle is None else min(idle + above_idle_j / time_s, gpu.tdp_w)
