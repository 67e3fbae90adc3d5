"""The user's own Triton kernels, read without a GPU: a launch → its IR (``launch.py``) → what all of its programs load,
store and compute (``reader.py``) → :class:`memwall.ops.triton.KernelWork` (``work.py``), from which an op
``triton.NAME`` has its cost. Begin with ``reader.py``.

Triton writes the IR, on a CPU and for any GPU that it knows; nothing runs. What is read: bounds, masks, strides and
trips, exactly, as functions of the program's number. What data decides is assumed, and said so.
"""

from __future__ import annotations

from memwall.frontend.triton.work import kept_ir, kernel_work

__all__ = ["kept_ir", "kernel_work"]
