"""Attention of ai.onnx and of com.microsoft: one fused kernel, and what keeps keys and values for later steps.

Half precision without an added mask runs in flash attention where the GPU has it, the rest in the memory-efficient
kernel, as ONNX Runtime's CUDA kernels choose (group_query_attention.cc, multihead_attention.cc). The last query attends
to the last key: the diagonal of a causal call is aligned at the bottom right. Keys and values of earlier steps are
copied in front of the new ones, as runtimes do that share no buffer between past and present.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from memwall.frontend.onnx.node import Node, OnnxTensor
from memwall.frontend.onnx.products import multiply
from memwall.frontend.onnx.rows import Row, Shapes

#: places of what a call keeps and of what it is given for that: (past keys, past values)
Past = tuple[int, int]


def in_heads(node: Node, value: int, heads: int) -> int:
    """[batch, tokens, heads * size] → [batch, tokens, heads, size]."""
    batch, tokens, width = node.spec(value).shape
    return node.reshape(value, (batch, tokens, heads, width // heads))


def heads_last(node: Node, value: int) -> int:
    """[batch, heads, tokens, size] ↔ [batch, tokens, heads, size]."""
    return node.permute(value, (0, 2, 1, 3))


def attend(node: Node, operands: Sequence[int], mask: int | None = None, causal: bool = False, window: int = -1) -> int:
    """The result, [batch, tokens, heads, size]; so are the operands: query, keys, values."""
    spec = node.spec(operands[0])
    made = node.new((*spec.shape[:3], node.spec(operands[2]).shape[3]), spec.dtype)
    names = ["query", "key", "value"]
    if spec.dtype in ("float16", "bfloat16") and mask is None and node.chip.attention == "flash":
        said: dict[str, Any] = {"is_causal": causal, "dropout_p": 0.0}
        if window > 0:
            said |= {"window_size_left": window, "window_size_right": 0}
        node.run("_flash_attention_forward", operands, names, said, [made])
        return made
    said = {"custom_mask_type": 2 * causal, "dropout_p": 0.0, "compute_log_sumexp": False}
    if window > 0:
        said["window_size"] = window + 1
    if mask is not None:
        operands, names = [*operands, mask], [*names, "bias"]
    node.run("_efficient_attention_forward", operands, names, said, [made])
    return made


def kept(node: Node, new: int, past: int, output: int) -> tuple[int, OnnxTensor]:
    """New keys or values [batch, tokens, heads, size] behind the keys or values of earlier steps (an operand): what the
    kernel reads, and the output that keeps them, [batch, heads, tokens, size]."""
    place = output < len(node.made) and node.made[output] is not None
    if not place and not node.has(past):
        return new, OnnxTensor((), "bool")
    batch, tokens, heads, size = node.spec(new).shape
    before = node.need(past).shape[2] if node.has(past) else 0
    whole = node.new((batch, heads, before + tokens, size), node.spec(new).dtype)
    laid = heads_last(node, new)
    if before:
        node.run("cat", [node.id(past), laid], ["tensors"] * 2, {"dim": 2}, [whole])
    else:
        node.run("clone", [laid], "self", {}, [whole])
    return heads_last(node, whole), OnnxTensor(node.spec(whole).shape, node.spec(whole).dtype, whole)


def attention(node: Node) -> list[OnnxTensor]:
    """Attention of ai.onnx: operands in three axes (heads by attributes) or in four (heads first)."""
    wide = len(node.need(0).shape) == 3
    counts = ("q_num_heads", "kv_num_heads", "kv_num_heads")
    query, keys, values = (
        in_heads(node, node.id(i), node.attributes[counts[i]]) if wide else heads_last(node, node.id(i))
        for i in range(3)
    )
    keys, present_keys = kept(node, keys, 4, 1)
    values, present_values = kept(node, values, 5, 2)
    mask = node.id(3) if node.has(3) else None
    made = attend(node, (query, keys, values), mask, bool(node.attributes.get("is_causal", 0)))
    made = node.reshape(made, node.shape) if wide else heads_last(node, made)
    scores = [OnnxTensor(*(one or ((), "bool"))) for one in node.made[3:]]
    if any(node.made[3:]):
        node.notes["the scores that Attention returns are not counted"] = None
    return [OnnxTensor(node.shape, node.dtype, made), present_keys, present_values, *scores][: len(node.made)]


def rotated(node: Node, value: int, tables: Sequence[int], positions: int) -> int:
    """A value turned by the angles of its positions, which are read from tables of cosines and sines."""
    spec = node.spec(value)
    said = {"positions": positions}
    names = ["input", "cos_cache", "sin_cache"]
    return node.run("microsoft.RotaryEmbedding", [value, *tables], names, said, [node.new(spec.shape, spec.dtype)])


def rotary(node: Node) -> list[OnnxTensor]:
    """RotaryEmbedding: of com.microsoft the places stand before the tables, of ai.onnx behind them."""
    tables = (1, 2) if node.op.startswith("onnx") else (2, 3)
    heads = node.attributes.get("num_heads") or (node.need(0).shape[1] if len(node.need(0).shape) == 4 else 0)
    tokens = prod(node.shape) // (heads * node.shape[-1] if len(node.shape) == 4 else node.shape[-1])
    made = rotated(node, node.id(0), [node.id(i) for i in tables], tokens)
    return [OnnxTensor(node.shape, node.dtype, made)]


def grouped_query(node: Node) -> list[OnnxTensor]:
    """GroupQueryAttention: query, key, value (or all three in the first), past keys and values, lengths, tables."""
    heads, key_heads = node.attributes["num_heads"], node.attributes["kv_num_heads"]
    if node.has(1):
        parts = [in_heads(node, node.id(i), n) for i, n in ((0, heads), (1, key_heads), (2, key_heads))]
    else:
        whole = in_heads(node, node.id(0), heads + 2 * key_heads)
        ends = (0, heads, heads + key_heads, heads + 2 * key_heads)
        parts = [node.part(whole, 2, ends[i], ends[i + 1] - ends[i]) for i in range(3)]
    query, keys, values = parts
    if node.attributes.get("do_rotary"):
        tables = [node.id(i) for i in (7, 8)]
        count = prod(node.shape[:2])
        query, keys = (rotated(node, part, tables, count) for part in (query, keys))
    keys, present_keys = kept(node, keys, 3, 1)
    values, present_values = kept(node, values, 4, 2)
    mask = node.id(10) if node.has(10) else None
    window = node.attributes.get("local_window_size", -1)
    made = attend(node, (query, keys, values), mask, causal=True, window=window)
    found = [OnnxTensor(node.shape, node.dtype, node.reshape(made, node.shape)), present_keys, present_values]
    return found[: len(node.made)]


def multi_head(node: Node) -> list[OnnxTensor]:
    """MultiHeadAttention: query, key, value [batch, tokens, width]; or packed [batch, tokens, heads, 3, size]."""
    heads = node.attributes["num_heads"]
    if len(node.need(0).shape) == 5:
        packed = node.spec(node.id(0)).shape
        parts = [node.reshape(node.part(node.id(0), 3, i, 1), (*packed[:3], packed[4])) for i in range(3)]
    else:
        given = [node.id(i) for i in range(3)]
        if node.has(3):
            given = [_biased(node, value, i) for i, value in enumerate(given)]
        parts = [in_heads(node, v, heads) if len(node.spec(v).shape) == 3 else heads_last(node, v) for v in given]
    query, keys, values = parts
    keys, present_keys = kept(node, keys, 6, 1)
    values, present_values = kept(node, values, 7, 2)
    mask = node.id(5) if node.has(5) else node.id(4) if node.has(4) else None
    made = attend(node, (query, keys, values), mask, bool(node.attributes.get("unidirectional", 0)))
    found = [OnnxTensor(node.shape, node.dtype, node.reshape(made, node.shape)), present_keys, present_values]
    return found[: len(node.made)]


def _biased(node: Node, value: int, which: int) -> int:
    """An operand with its part of the bias [3 * width] added."""
    spec = node.spec(value)
    bias = node.part(node.id(3), 0, which * spec.shape[-1], spec.shape[-1])
    said = {"alpha": 1}
    return node.run("aten.add.Tensor", [value, bias], "self other", said, [node.new(spec.shape, spec.dtype)])


def projected(node: Node) -> list[OnnxTensor]:
    """Attention of com.microsoft: the projections to queries, keys and values in one product, then the heads."""
    batch, tokens, _ = node.need(0).shape
    heads, width = node.attributes["num_heads"], node.need(1).shape[1]
    made = multiply(node, node.id(0), node.id(1), (batch, tokens, width), node.dtype)
    if node.has(2):
        bias = [made, node.id(2)]
        made = node.run("aten.add.Tensor", bias, "self other", {"alpha": 1}, [node.new((batch, tokens, width))])
    each = width // 3
    query, keys, values = (in_heads(node, node.part(made, 2, i * each, each), heads) for i in range(3))
    mask = node.id(5) if node.has(5) else None
    result = attend(node, (query, keys, values), mask, bool(node.attributes.get("unidirectional", 0)))
    return [OnnxTensor(node.shape, node.dtype, node.reshape(result, node.shape))]


# -- shapes that ONNX does not infer -----------------------------------------------------------------------------------


def _past(node: Node, past: int, tokens: int, heads: int, size: int) -> tuple[tuple[int, ...], str]:
    batch = node.need(0).shape[0]
    before = node.need(past).shape[2] if node.has(past) else 0
    return (batch, heads, before + tokens, size), node.need(0).dtype


def grouped_query_shapes(node: Node) -> list[tuple[tuple[int, ...], str]]:
    """The result, and keys and values for later steps."""
    heads, key_heads = node.attributes["num_heads"], node.attributes["kv_num_heads"]
    batch, tokens, width = node.need(0).shape
    size = width // heads if node.has(1) else width // (heads + 2 * key_heads)
    present = [_past(node, past, tokens, key_heads, size) for past in (3, 4)]
    return [((batch, tokens, heads * size), node.need(0).dtype), *present]


def multi_head_shapes(node: Node) -> list[tuple[tuple[int, ...], str]]:
    """The result, and keys and values for later steps."""
    heads, shape = node.attributes["num_heads"], node.need(0).shape
    width = shape[2] * shape[4] if len(shape) == 5 else shape[2]
    values = node.need(2).shape if node.has(2) else (*shape[:2], width)
    wide = values[-1] if len(values) == 3 else values[1] * values[3]
    tokens = values[1] if len(values) == 3 else values[2]
    present = [_past(node, past, tokens, heads, size) for past, size in ((6, width // heads), (7, wide // heads))]
    return [((*shape[:2], wide), node.need(0).dtype), *present]


def projected_shapes(node: Node) -> list[tuple[tuple[int, ...], str]]:
    """The result."""
    return [((*node.need(0).shape[:2], node.need(1).shape[1] // 3), node.need(0).dtype)]


ATTENTION: Mapping[str, Row] = {
    "onnx.Attention": attention,
    "onnx.RotaryEmbedding": rotary,
    "microsoft.RotaryEmbedding": rotary,
    "microsoft.GroupQueryAttention": grouped_query,
    "microsoft.MultiHeadAttention": multi_head,
    "microsoft.Attention": projected,
}
ATTENTION_SHAPES: Mapping[str, Shapes] = {
    "microsoft.GroupQueryAttention": grouped_query_shapes,
    "microsoft.MultiHeadAttention": multi_head_shapes,
    "microsoft.Attention": projected_shapes,
}
