"""All rows by the name of an op: ``onnx.Conv``, ``microsoft.MatMulNBits``."""

from __future__ import annotations

from collections.abc import Mapping

from memwall.frontend.onnx import contrib
from memwall.frontend.onnx.attention import ATTENTION, ATTENTION_SHAPES
from memwall.frontend.onnx.products import PRODUCTS
from memwall.frontend.onnx.rows import POINTWISE, ROWWISE, Row, Shapes, compared
from memwall.frontend.onnx.views import DATA_SHAPES, MOVES

ROWS: Mapping[str, Row] = {
    **{f"onnx.{name}": row for rows in (POINTWISE, ROWWISE, MOVES, PRODUCTS) for name, row in rows.items()},
    **{f"microsoft.{name}": row for name, row in contrib.ROWS.items()},
    **ATTENTION,
}

#: ops whose results are views of what they read
VIEWS = frozenset(
    f"onnx.{name}"
    for name in (
        "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Slice", "Split", "Identity", "Dropout",
    )
)  # fmt: skip

#: shapes of outputs that ONNX does not infer
SHAPES: Mapping[str, Shapes] = {
    **{f"microsoft.{name}": shapes for name, shapes in contrib.SHAPES.items()},
    **DATA_SHAPES,
    **ATTENTION_SHAPES,
    "onnx.SimplifiedLayerNormalization": contrib.like_first,  # ONNX Runtime's, under ONNX's own domain
    "onnx.GroupNormalization": contrib.like_first,
    **dict.fromkeys(("onnx.LessOrEqual", "onnx.GreaterOrEqual"), compared),  # of opset 13
}
