"""Ops of com.microsoft, ONNX Runtime's own, which have no shape inference: their rows and the shapes of their outputs
(onnxruntime, ContribOperators.md)."""

from __future__ import annotations

from collections.abc import Mapping

from memwall.frontend.onnx.node import Node, OnnxTensor
from memwall.frontend.onnx.products import PRODUCTS, call_of, convolution, integer_product, matmul
from memwall.frontend.onnx.rows import ROWWISE, Row, Shapes, call

# -- rows --------------------------------------------------------------------------------------------------------------


def skip_norm(node: Node) -> list[OnnxTensor]:
    """The norm of the sum of input, skip and bias; the sum is written where the file asks for it."""
    names = ["input", "skip", "weight", *(["bias"] if "Simplified" not in node.op else []), "added"]
    given = [i for i in range(len(node.inputs)) if node.has(i)]
    said = {"eps": node.attributes.get("epsilon", 1e-5)}
    return call_of(node, node.op, [node.id(i) for i in given], [names[i] for i in given], said)


def few_bits(node: Node) -> list[OnnxTensor]:
    """MatMulNBits: A [..., K] times a packed B [N, K], with scales and zero points of blocks of K."""
    names = ("A", "B", "scales", "zero_points", "groups", "bias")
    given = [i for i in range(len(node.inputs)) if node.has(i)]
    said = {name: node.attributes[name] for name in ("K", "N", "bits", "block_size") if name in node.attributes}
    return call_of(node, node.op, [node.id(i) for i in given], [names[i] for i in given], {"bits": 4, **said})


def gelu(node: Node) -> list[OnnxTensor]:
    """Gelu of the input and a bias; FastGelu by tanh, QuickGelu by a sigmoid."""
    given = [i for i in range(len(node.inputs)) if node.has(i)]
    said = {"approximate": "tanh" if node.op.endswith("FastGelu") else "none"}
    op = "silu" if node.op.endswith("QuickGelu") else "gelu"
    return call_of(node, op, [node.id(i) for i in given], ["self", "bias"][: len(given)], {} if op == "silu" else said)


def scaled_integer_product(node: Node) -> list[OnnxTensor]:
    """MatMulIntegerToFloat and DynamicQuantizeMatMul: a product in eight bits, whose scales are read with it."""
    if node.op.endswith("DynamicQuantizeMatMul"):
        data = node.need(0)
        shape = data.shape
        packed = node.new(shape, "int8")
        node.run("quantize_per_tensor_dynamic", [node.id(0)], "self", {}, [packed])
        node.inputs = [OnnxTensor(shape, "int8", packed), *node.inputs[1:]]
    return integer_product(node)


def experts(node: Node) -> list[OnnxTensor]:
    """MoE, and QMoE with scales behind each weight: two products, or three where the gate is apart."""
    parts = ("fc1", "scales1", "bias1", "fc2", "scales2", "bias2", "fc3", "scales3", "bias3")
    names = ["input", "router", *(name for name in parts if node.op.endswith("QMoE") or "scales" not in name)]
    given = [i for i in range(min(len(node.inputs), len(names))) if node.has(i)]
    said = {"k": node.attributes.get("k", 1)}
    if node.op.endswith("QMoE"):
        said["bits"] = node.attributes.get("expert_weight_bits", 4)
    return call_of(node, node.op, [node.id(i) for i in given], [names[i] for i in given], said)


ROWS: Mapping[str, Row] = {
    "MoE": experts, "QMoE": experts,
    "FusedMatMul": matmul,
    "FusedConv": convolution,
    "MatMulNBits": few_bits,
    "MatMulIntegerToFloat": scaled_integer_product,
    "DynamicQuantizeMatMul": scaled_integer_product,
    "SkipLayerNormalization": skip_norm,
    "SkipSimplifiedLayerNormalization": skip_norm,
    "SimplifiedLayerNormalization": ROWWISE["SimplifiedLayerNormalization"],
    "Gelu": gelu, "BiasGelu": gelu, "FastGelu": gelu, "QuickGelu": gelu,
    "DequantizeLinear": PRODUCTS["DequantizeLinear"],
    "QuantizeLinear": PRODUCTS["QuantizeLinear"],
    "GatherBlockQuantized": call("embedding", "weight indices scales zero_points"),
}  # fmt: skip


# -- shapes ------------------------------------------------------------------------------------------------------------

Made = list[tuple[tuple[int, ...], str]]


def like_first(node: Node) -> Made:
    """As the first operand."""
    return [(node.need(0).shape, node.need(0).dtype)]


def _skip_norm(node: Node) -> Made:
    data = node.need(0)
    row = (*data.shape[:-1], 1)
    return [(data.shape, data.dtype), (row, "float32"), (row, "float32"), (data.shape, data.dtype)]


def _few_bits(node: Node) -> Made:
    data = node.need(0)
    return [((*data.shape[:-1], node.attributes["N"]), data.dtype)]


def _product(node: Node) -> Made:
    left, right = list(node.need(0).shape), list(node.need(1).shape)
    if node.attributes.get("transA"):
        left[-2:] = left[:-3:-1]
    if node.attributes.get("transB"):
        right[-2:] = right[:-3:-1]
    ahead = [max(pair) for pair in zip(_padded(left[:-2], right), _padded(right[:-2], left), strict=True)]
    dtype = node.need(0).dtype if "Float" not in node.op and "Dynamic" not in node.op else "float32"
    return [((*ahead, left[-2], right[-1]), dtype)]


def _padded(batch: list[int], other: list[int]) -> list[int]:
    return [1] * (len(other) - 2 - len(batch)) + batch


def _gathered(node: Node) -> Made:
    data, places = node.need(0), node.need(1)
    axis = node.attributes.get("gather_axis", 0) % len(data.shape)
    width = (data.shape[-1] * (2 if data.dtype == "uint8" else 1),)
    return [((*data.shape[:axis], *places.shape, *data.shape[axis + 1 : -1], *width), node.need(2).dtype)]


def _dequantized(node: Node) -> Made:
    return [(node.need(0).shape, node.need(1).dtype)]


def _quantized(node: Node) -> Made:
    return [(node.need(0).shape, node.need(2).dtype if node.has(2) else "uint8")]


SHAPES: Mapping[str, Shapes] = {
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
    **dict.fromkeys(
        ("MoE", "QMoE", "SimplifiedLayerNormalization", "Gelu", "BiasGelu", "FastGelu", "QuickGelu", "RotaryEmbedding"),
        like_first,
    ),
    "MatMulNBits": _few_bits,
    **dict.fromkeys(("FusedMatMul", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"), _product),
    "GatherBlockQuantized": _gathered,
    "DequantizeLinear": _dequantized,
    "QuantizeLinear": _quantized,
}
