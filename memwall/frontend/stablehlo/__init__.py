"""StableHLO → Graph: text (``.mlir``), bytecode, and what ``jax.export`` serializes, in the vocabulary of jaxprs
(``lax.dot_general``; :mod:`memwall.ops.lax`). Begin with ``program.py``, then ``importer.py``. Needs JAX, whose wheel
reads MLIR."""

from __future__ import annotations

from memwall.frontend.stablehlo.program import StablehloProgram

__all__ = ["StablehloProgram"]
