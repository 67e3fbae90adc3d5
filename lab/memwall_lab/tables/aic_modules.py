"""Whole modules of DeepSeek's sparse attention in inference servers (wheel ``aisimulate``): the products before and
after, the index, its choice, and attention, on the heads of one GPU.

A module is the kernels of :mod:`memwall.serving` with their norms, rotations and casts between them. It shows the
constants of sparse attention alone; its other kernels have rows of their own. A prompt of no more tokens than the index
chooses attends to the keys and values of all where SGLang's rows say so; the kernels of vLLM and TensorRT-LLM are the
sparse ones at any length. Prompts run eagerly in vLLM and SGLang, so that short ones take as long as their launches:
they are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memwall.bench.accuracy.kinds import Record, Skip
from memwall.ops import Cost, served_calls, table_calls
from memwall.ops import sparse_attention as sparse
from memwall.ops.quantised import quantised_product
from memwall_lab.tables.base import Call, Table, count, known, size


@dataclass(frozen=True)
class _Shape:
    """A model's attention: numbers of a row, of the queries' latent, of a head's parts, and heads of the index."""

    hidden: int
    queries: int
    nope: int
    value: int
    index: int
    rank: int = 512
    rope: int = 64
    chosen: int = 2048


_MODELS = {
    "DeepseekV32ForCausalLM": _Shape(7168, 1536, 128, 128, 64),
    "GlmMoeDsaForCausalLM": _Shape(6144, 2048, 192, 256, 32),
}
_SCHEMES = {"bfloat16": "", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "fp8": "fp8"}
#: rows of prompts from which the kernels take longer than their launches
_LEAST_ROWS = 1024
_INDEX_SIZE = 128
#: small kernels of a module without and with an index, beside norms and rotations: vLLM stores the latents, clears and
#: converts the places, stores the index's keys and scales its weights in two products (``deepseek_v2.py``,
#: ``sparse_attn_indexer.py``), TensorRT-LLM all but the clearing, and SGLang fuses them
_SMALL = {"vllm": (2, 6), "trtllm": (0, 4), "sglang": (0, 0)}


def _module(record: Record) -> Call:
    shape, scheme = known(_MODELS, record["architecture"], "model"), known(_SCHEMES, record["gemm_type"], "format")
    batch, new, heads = (size(record, name) for name in ("batch_size", "isl", "num_heads"))
    keys, engine = count(record, "step") + new, record["framework"].lower()
    if new > 1 and engine != "trtllm" and batch * new < _LEAST_ROWS:
        raise Skip("an eager prompt of few tokens, which takes as long as its launches")
    indexed = "skip_indexer" not in record["op_name"]
    cache = "fp8" if record["kv_cache_dtype"].startswith("fp8") else "bfloat16"
    dense = "dense" in record["kernel_source"]
    costs = _kernels(shape, (batch, heads, new, keys), (scheme, engine, cache), indexed=indexed, dense=dense)
    cost = sum(costs, start=Cost(launches=()))
    kind = f"{'generation' if new == 1 else 'context'}{' indexed' * indexed}"
    text = f"{engine},b={batch},h={heads},q={new},k={keys},{record['gemm_type']},{cache}"
    return Call(op_class=kind, dtype=record["gemm_type"], shape=text, cost=cost, warm=0, shows="walk")


def _kernels(
    shape: _Shape, sizes: tuple[int, int, int, int], how: tuple[str, str, str], *, indexed: bool, dense: bool
) -> Iterator[Cost]:
    (batch, heads, new, keys), (scheme, engine, cache) = sizes, how
    rows, key_size = batch * new, shape.nope + shape.rope

    def product(n: int, k: int, own: str = scheme) -> Cost:
        return quantised_product(rows, n, k, own, engine=engine) if own else table_calls.product(rows, n, k, "bfloat16")

    yield product(shape.queries + shape.rank + shape.rope, shape.hidden)
    yield _between(rows, shape.queries + shape.rank + shape.rope)  # norms
    yield product(heads * key_size, shape.queries)
    yield _between(rows, heads * shape.rope)  # rotation
    if indexed:
        yield product(shape.index * _INDEX_SIZE, shape.queries)
        yield product(_INDEX_SIZE + shape.index, shape.hidden, "")
        yield _between(rows, _INDEX_SIZE)  # norm and rotation of the key
        yield _between(rows, shape.index * _INDEX_SIZE)  # rotation and cast of the queries
        yield from _index(shape, batch, new, keys)
    for _ in range(_SMALL[engine][indexed]):
        yield _between(rows, _INDEX_SIZE)
    yield from _attention(shape, (batch, heads, new, keys), engine, cache, dense=dense and new > 1)
    yield product(shape.hidden, heads * shape.value)


def _between(rows: int, width: int) -> Cost:
    return table_calls.stream(2 * rows * width, 2 * rows * width, rows * width)


def _index(shape: _Shape, batch: int, new: int, keys: int) -> Iterator[Cost]:
    rows = batch * new
    if new == 1:
        yield sparse.index_scores_paged(rows * keys, rows, batch * keys, shape.index)
    else:
        yield sparse.index_scores(batch, shape.index, new, keys)
    yield sparse.choice(rows, keys - new + 1, keys, shape.chosen)


def _attention(
    shape: _Shape, sizes: tuple[int, int, int, int], engine: str, cache: str, *, dense: bool
) -> Iterator[Cost]:
    batch, heads, new, keys = sizes
    widths = shape.nope, shape.rope, shape.rank, shape.value
    if dense:
        yield table_calls.product(batch * keys, heads * (shape.nope + shape.value), shape.rank, "bfloat16")
        yield served_calls.latent_prefill(
            batch, heads, new, keys, cache, engine=served_calls.IN_GRAPHS.get(engine, engine), widths=widths
        )
        return
    yield served_calls.latent_product(batch * new, heads, "mla_gen_pre", widths=widths)
    yield _between(batch * new, heads * (shape.rank + shape.rope))  # rotated and other numbers of queries joined
    yield served_calls.latent_chosen(batch, new, heads, keys, shape.chosen, widths, engine=engine, cache=cache)
    yield served_calls.latent_product(batch * new, heads, "mla_gen_post", widths=widths)


MODULES = Table(
    "aic_dsa_modules",
    "system framework op_name kernel_source architecture kv_cache_dtype gemm_type num_heads batch_size isl tp_size step"
    " latency",
    _module, gpu="system", time="latency",
)  # fmt: skip
