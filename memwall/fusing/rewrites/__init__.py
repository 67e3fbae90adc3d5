"""Library kernels in place of decomposed ops: a graph and its costs → the same step in the other forms.

``forms`` prices every form that torch ships, GPU by GPU: start there. ``norms`` finds decomposed norms,
``losses`` a linear layer followed by a cross entropy; ``rewrite`` replaces them with other ops.
"""

from memwall.fusing.rewrites.forms import Family, alternatives

__all__ = ["Family", "alternatives"]
