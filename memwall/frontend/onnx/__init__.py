"""``model.onnx`` → Graph: nodes become the aten ops that mean the same, by the tables of :mod:`.rows` and
:mod:`.contrib`. Weights are not read; begin with ``program.py``, then ``importer.py``."""

from __future__ import annotations

from memwall.frontend.onnx.program import OnnxProgram

__all__ = ["OnnxProgram"]
