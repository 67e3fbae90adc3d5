"""Tensors of few bits. A file writes a product in eight bits as one of what DequantizeLinear makes of its operands;
runtimes multiply the stored numbers instead (ONNX Runtime's QDQ transformer, TensorRT's explicit quantization).

- Both operands dequantized from eight bits: the product reads these, and scales its result.
- A matrix of four bits or fewer, stored in blocks, by activations that are not: MatMulNBits (ONNX Runtime's
  DQMatMulToMatMulNBits).
- Whatever else takes a dequantized tensor reads what a kernel of its own has written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memwall.frontend.onnx.node import PACKED, Node, OnnxTensor

#: dtypes of eight bits in which products run → the op of a product of matrices
_PRODUCTS: Mapping[str, str] = {
    **dict.fromkeys(("int8", "uint8"), "_int_mm"),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), "_scaled_mm"),
}
#: dtypes of the matrices that MatMulNBits takes
_FEW_BITS = frozenset(PACKED) - {"float4_e2m1fn_x2"}


def dequantized(node: Node) -> list[OnnxTensor]:
    """DequantizeLinear: written only where a kernel takes the result as it is."""
    writer, place = node.writer, (node.writer.module, node.writer.source)
    given = [tensor for tensor in node.inputs if tensor is not None]

    def make() -> int:
        before, (writer.module, writer.source) = (writer.module, writer.source), place
        names = ["self", "scale", "zero_point"][: len(given)]
        value = node.run("dequantize", [node.placed(tensor) for tensor in given], names, {}, [node.new()])
        writer.module, writer.source = before
        return value

    return [OnnxTensor(node.shape, node.dtype, stored=tuple(given), make=make)]


def in_eight_bits(node: Node, places: Sequence[int]) -> str:
    """The op of a product of operands that are stored in eight bits; empty where they are not."""
    dtypes = [tensor.stored[0].dtype if (tensor := node.need(i)).stored else "" for i in places]
    return _PRODUCTS.get(dtypes[0], "") if all(dtype in _PRODUCTS for dtype in dtypes) else ""


def operand(node: Node, i: int) -> int:
    """The id of an operand as it is stored."""
    tensor = node.need(i)
    return node.placed(tensor.stored[0] if tensor.stored else tensor)


def of_few_bits(node: Node) -> list[OnnxTensor] | None:
    """MatMul by a matrix [K, N] that is stored in four bits or fewer; None of any other."""
    data, weight = node.need(0), node.need(1)
    if not weight.stored or len(weight.shape) != 2 or weight.stored[0].dtype not in _FEW_BITS:
        return None
    depth, columns = weight.shape
    said = {"K": depth, "N": columns, "bits": 8 // PACKED[weight.stored[0].dtype]}
    names = ["A", "B", "scales", "zero_points"][: 1 + len(weight.stored)]
    inputs = [node.placed(data), *(node.placed(tensor) for tensor in weight.stored)]
    value = node.run("microsoft.MatMulNBits", inputs, names, said, [node.new()])
    return [OnnxTensor(node.shape, node.dtype, value)]
