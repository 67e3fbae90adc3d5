"""What ``torch.compile`` would really decide on a GPU that is not there: Inductor's own schedule, read off, not run.

The traced graph is replayed into the joint graph that AOTAutograd would make, and torch's own passes, partitioner and
scheduler take it from there, and are made to see the given GPU. Each op of the forward and backward phases ends up
in exactly one kernel. The optimizer is not compiled: ``torch.compile(model)`` leaves it alone.

Known differences from a run on the device: no choice that needs a clock is made (padding of products, autotuning); the
attention kernel is the traced one, and decomposed attention is recognised in fewer cases, since a trace keeps
what views were of and not how the program got there; a tensor that Python unpacked (``q, k, v = x``) has the eager
backward. Everything here rests on torch's internals; where they have moved, the error says so and the other policies
still work. torch and Triton are imported when :func:`lower` is called.
"""

from memwall.fusion.inductor.lowering import lower
from memwall.fusion.inductor.types import Lowered, LoweredKernel

__all__ = ["Lowered", "LoweredKernel", "lower"]
