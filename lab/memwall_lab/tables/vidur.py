"""Vidur's table (microsoft/vidur): the layers of an LLM as vLLM runs them in float16."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from memwall.bench.accuracy.kinds import Record
from memwall.ops import Cost
from memwall.ops import table_calls as calls
from memwall.ops.indexing import select_steps
from memwall.ops.launches import Stream
from memwall.ops.product_launches import Gemm
from memwall.perfmodel.stream import BLOCK_THREADS
from memwall_lab.tables.base import Call, Table, gpu_named, known, size

_DTYPE, _ITEMSIZE = "float16", 2
_RESOLUTION_S = 1e-6

#: kernel -> integer instructions for each result. These kernels take a scalar at a time; the counts are fitted to the
#: rows of all three GPUs together
_INSTRUCTIONS = {"silu_and_mul": 52, "rotary_embedding": 40, "embedding": 116}
#: threads of the block that processes a token: vLLM's activation_kernels.cu and pos_encoding_kernels.cu
_SILU_THREADS, _ROPE_THREADS = 1024, 512


class _Layer:
    """The sizes of one row's layer on one of ``tp`` GPUs."""

    def __init__(self, record: Record) -> None:
        self.tokens, self.tp, self.heads, self.kv_heads, self.width, self.ffn, self.vocab = (
            size(record, name) for name in ("num_tokens", "tp", "n_head", "n_kv_head", "n_embd", "n_ffn", "vocab")
        )
        self.gated = str(record["gated_mlp"]).strip().lower() in ("true", "1")
        self.head_size = self.width // self.heads

    def product(self, n: int, k: int) -> Cost:
        """``[tokens, k] x [k, n]``."""
        return calls.product(self.tokens, max(n, 1), max(k, 1), _DTYPE)

    def moved(self, read: int, written: int, kernel: str, steps: int, blocks: float) -> Cost:
        """A kernel that reads and writes these elements, in blocks of 512 threads whose loop has ``steps``."""
        read_bytes, write_bytes = _ITEMSIZE * read, _ITEMSIZE * written
        work = Stream(read_bytes=read_bytes, write_bytes=write_bytes, elements=written, steps=steps,
                      instructions=_INSTRUCTIONS[kernel] * written,
                      blocks=math.ceil(blocks))  # fmt: skip
        return Cost({}, read_bytes, write_bytes, launches=(work,))


def _activation(layer: _Layer) -> Cost:
    width = layer.ffn // layer.tp
    if not layer.gated:
        return calls.elementwise("aten.gelu.default", (layer.tokens, width), _DTYPE, 1)
    steps = math.ceil(width / _SILU_THREADS)
    blocks = layer.tokens * _SILU_THREADS / BLOCK_THREADS
    return layer.moved(2 * layer.tokens * width, layer.tokens * width, "silu_and_mul", steps, blocks)


def _rope(layer: _Layer) -> Cost:
    """Queries and keys are rotated in place; a token's cosines and sines are a head's size, its position 8 bytes."""
    queries, keys = layer.heads // layer.tp, max(layer.kv_heads // layer.tp, 1)
    elements = layer.tokens * (queries + keys) * layer.head_size
    steps = sum(math.ceil(heads * layer.head_size / 2 / _ROPE_THREADS) for heads in (queries, keys))
    read = elements + layer.tokens * (layer.head_size + 4)
    return layer.moved(read, elements, "rotary_embedding", steps, layer.tokens * _ROPE_THREADS / BLOCK_THREADS)


def _embedding(layer: _Layer) -> Cost:
    """The table's rows are read by 8-byte index; with tensor parallelism each GPU holds a share of them."""
    elements = layer.tokens * layer.width
    return layer.moved(elements + 4 * layer.tokens, elements, "embedding", select_steps(layer.tokens), 1)


def _norm(layer: _Layer) -> Cost:
    return calls.rows("block_norm", (layer.tokens, layer.width), _DTYPE, 1, 1)


#: op of the table -> what it is scored as, and its cost
_OPS: Mapping[str, tuple[str, Callable[[_Layer], Cost]]] = {
    "attn_pre_proj": ("gemm", lambda s: s.product((s.heads + 2 * s.kv_heads) * s.head_size // s.tp, s.width)),
    "attn_post_proj": ("gemm", lambda s: s.product(s.width, s.width // s.tp)),
    "mlp_up_proj": ("gemm", lambda s: s.product((2 if s.gated else 1) * s.ffn // s.tp, s.width)),
    "mlp_down_proj": ("gemm", lambda s: s.product(s.width, s.ffn // s.tp)),
    "mlp_act": ("activation", _activation),
    "add": ("add", lambda s: calls.elementwise("aten.add.Tensor", (s.tokens, s.width), _DTYPE, 2)),
    "input_layernorm": ("norm", _norm),
    "post_attention_layernorm": ("norm", _norm),
    "attn_rope": ("rope", _rope),
    "emb": ("embedding", _embedding),
}


def _weight_bytes(cost: Cost) -> int:
    """Bytes of the right operand of a product."""
    return sum(int(work.k * work.n * work.itemsize) for work in cost.launches if isinstance(work, Gemm))


def _op(record: Record) -> Call:
    op = record["op"]
    op_class, build = known(_OPS, op, "op")
    gpu, layer = gpu_named(record["gpu"]), _Layer(record)
    cost = build(layer)
    warm = None
    if op_class == "gemm":  # the other layers' weights run through L2 between two calls
        warm = cost.read_bytes - _weight_bytes(cost) if cost.bytes <= gpu.l2_bytes else 0
    shape = f"{op} t={layer.tokens},tp={layer.tp},h={layer.heads}/{layer.kv_heads},w={layer.width},f={layer.ffn}"
    work = cost.launches[0]
    split = f"{work.m}x{work.n}x{work.k}" if isinstance(work, Gemm) else ""
    return Call(op_class=op_class, dtype=_DTYPE, shape=shape, cost=cost, warm=warm, split=split)


OPS = Table(
    "vidur_mlp_ops", "gpu op num_tokens tp n_head n_kv_head n_embd n_ffn vocab gated_mlp median_ms", _op, "kernel",
    time="median_ms", resolution_s=_RESOLUTION_S,
)  # fmt: skip
