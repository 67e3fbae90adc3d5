"""Library kernels in place of decomposed ops: a graph and its costs → the same step in the other forms.

``forms`` prices every form that torch ships, GPU by GPU: start there. ``norms`` finds decomposed norms,
``losses`` a linear layer followed by a cross entropy; ``rewrite`` replaces them with other ops.
"""

from memwall.analysis.rewrites.forms import Family, Form, alternatives
from memwall.analysis.rewrites.losses import LinearLoss, default_rows, linear_losses, with_chunked_loss
from memwall.analysis.rewrites.norms import DecomposedNorm, decomposed_norms, with_fused_norms

__all__ = [
    "DecomposedNorm", "Family", "Form", "LinearLoss", "alternatives", "decomposed_norms", "default_rows",
    "linear_losses", "with_chunked_loss", "with_fused_norms",
]  # fmt: skip
