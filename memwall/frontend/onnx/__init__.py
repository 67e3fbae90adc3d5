"""``model.onnx`` → Graph: nodes become the aten ops that mean the same. Weights are not read.

Begin with ``program.py``; ``reading`` checks a file and its sizes, ``importer`` goes over the nodes, folds numbers and
infers shapes, ``table`` joins the rows: ``rows`` (pointwise, reductions, norms), ``views`` (what moves), ``products``,
``quantised``, ``attention``, ``contrib`` (com.microsoft). ``node`` is what a row sees, ``control`` enters bodies.
"""

from __future__ import annotations

from memwall.frontend.onnx.program import OnnxProgram

__all__ = ["OnnxProgram"]
