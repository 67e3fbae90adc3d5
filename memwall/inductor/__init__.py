"""What ``torch.compile`` would decide on an absent GPU: Inductor's own schedule, read but not run.

The traced graph is replayed into the joint graph that AOTAutograd would make; torch's own passes, partitioner and
scheduler process it as if on the given GPU. Exactly one kernel owns each op of the forward and backward phases. The
optimizer is not compiled: ``torch.compile(model)`` leaves it alone.

Known differences from a run on the device: whether to pad a product, which Inductor times there, the model of the GPU
decides (:mod:`memwall.inductor.padding`), and other choices that need timing are not made; the attention kernel
is the traced one, and decomposed attention is recognised in fewer cases, since a trace keeps the base of a view but not
the operators that led to it; a tensor that Python unpacked (``q, k, v = x``) has the eager backward. This package
depends on torch's internals; where they have changed, the error says so. torch and Triton are imported when
:func:`lower` is called.

:mod:`~memwall.inductor.lowering` is the wiring: :mod:`~memwall.inductor.replay` makes the joint graph,
:mod:`~memwall.inductor.compiling` runs torch's scheduler, :mod:`~memwall.inductor.reading` reads it, and
:mod:`~memwall.inductor.owners` gives each op to one kernel. Kernels have to stay in launch order there: of two that
compute an op the earlier one owns it. :mod:`~memwall.inductor.compiled` makes a plan of them; ``dynamo/`` is what
TorchDynamo captures.
"""

from memwall.inductor.lowering import lower
from memwall.inductor.owners import Lowered, LoweredKernel

__all__ = ["Lowered", "LoweredKernel", "lower"]
