"""Kernels of inference servers built from shapes: attention with a cache, latent attention, and experts."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from memwall.core.graph import ITEMSIZE, Pipe, contiguous
from memwall.ops import Cost
from memwall.ops.experts import cost_of_experts
from memwall.ops.product_launches import FusedAttention
from memwall.ops.routing import BY_CHANCE, ExpertRouting, loads_of
from memwall.ops.serving import ChosenLatent, ExpertsLaunch, LatentLaunch, LatentProduct
from memwall.ops.sparse_attention import pairs_of
from memwall.ops.table_calls import cost

#: engine of whose latent attention all rows are of eager calls -> the one that runs the same kernels (FlashMLA,
#: CUTLASS, FlashInfer) in a CUDA graph
IN_GRAPHS = {"vllm": "sglang"}


@lru_cache(maxsize=1 << 16)
def served_attention(
    batch: int,
    heads: int,
    kv_heads: int,
    queries: int,
    keys: int,
    size: int,
    dtype: str,
    kv: str = "",
    causal: bool = True,
    *,
    value_size: int = 0,
    most: int = 0,
) -> Cost:
    """Attention of an inference server, causal with a last query that attends to every key: a prefill or a decode step;
    or of every query to every key. The cache holds numbers of ``kv``, empty: of ``dtype``. ``value_size``: of
    values, where it is another than of keys; ``most``: a query attends to so many keys, 0 for all before it."""
    query, made = (contiguous((batch, queries, heads, width), dtype) for width in (size, value_size or size))
    key, value = (contiguous((batch, keys, kv_heads, width), dtype) for width in (size, value_size or size))
    inputs, window = (("query", query), ("key", key), ("value", value)), most - 1 if most else -1
    found = cost(
        "aten._flash_attention_forward.default", inputs, [made],
        is_causal=causal, dropout_p=0.0, window_size_left=window,
    )  # fmt: skip
    spared = (key.numel + value.numel) * (key.itemsize - ITEMSIZE[kv or dtype])
    launches = tuple(
        replace(work, kernel="serving", read_bytes=work.read_bytes - spared)
        if isinstance(work, FusedAttention)
        else work
        for work in found.launches
    )
    return replace(found, read_bytes=found.read_bytes - spared, launches=launches)


#: DeepSeek-V2 and V3: numbers of a head's query without position, of its rotated part, of the latent, of a value
LATENT_WIDTHS = (128, 64, 512, 128)


@lru_cache(maxsize=1 << 16)
def latent_prefill(
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    dtype: str = "bfloat16",
    *,
    engine: str = "trtllm",
    absorbed: bool = False,
    eager: bool = False,
    widths: tuple[int, int, int, int] = LATENT_WIDTHS,
) -> Cost:
    """Causal latent attention (MLA) of ``queries`` new tokens whose last attends to all ``keys``, without the products
    before and after it; ``heads`` are the heads of one GPU, ``dtype`` the cache's (bfloat16 or fp8). ``absorbed``
    kernels attend to the latents, and do more than is needed."""
    nope, rope, rank, value = widths
    pairs = pairs_of(queries, keys, keys)
    pipe, itemsize = Pipe("tensor", dtype), 1 if dtype == "fp8" else 2
    new_bytes = batch * queries * (rank + rope) * itemsize
    of_keys = keys * (rank + rope if absorbed else heads * (nope + value) + rope)
    per_query = heads * (rank + rope if absorbed else nope + rope)
    read = 2 * batch * (queries * per_query + of_keys)
    write = 2 * batch * queries * heads * (rank if absorbed else value) + new_bytes
    work = LatentLaunch(
        pipe=pipe,
        engine=engine,
        cache=dtype,
        itemsize=itemsize,
        batch=batch,
        heads=heads,
        queries=queries,
        keys=keys,
        pairs=pairs,
        nope=nope,
        rope=rope,
        rank=rank,
        value=value,
        absorbed=absorbed,
        eager=eager,
        read_bytes=read,
        write_bytes=write,
    )
    flops = 2 * batch * heads * pairs * (nope + rope + value)
    return Cost({pipe: flops}, read, write, launches=(work,))


@lru_cache(maxsize=1 << 16)
def latent_decode(
    batch: int,
    heads: int,
    keys: int,
    kv_dtype: str = "bfloat16",
    dtype: str = "bfloat16",
    *,
    engine: str = "trtllm",
    eager: bool = False,
    widths: tuple[int, int, int, int] = LATENT_WIDTHS,
) -> Cost:
    """One new token of each sequence against the cached latents of ``keys`` tokens, all ``heads`` of one GPU sharing
    them: queries of ``rank + rope`` and results of ``rank`` numbers of ``dtype``, absorbed into which
    :func:`latent_product` is."""
    nope, rope, rank, value = widths
    itemsize = 1 if kv_dtype == "fp8" else 2
    rows = batch * heads * ITEMSIZE[dtype]
    pipe = Pipe("tensor", kv_dtype)
    work = LatentLaunch(
        pipe=pipe,
        engine=engine,
        cache=kv_dtype,
        itemsize=itemsize,
        batch=batch,
        heads=heads,
        queries=1,
        keys=keys,
        pairs=keys,
        nope=nope,
        rope=rope,
        rank=rank,
        value=value,
        absorbed=True,
        eager=eager,
    )
    work = replace(work, read_bytes=work.latent_bytes + rows * (rank + rope), write_bytes=rows * rank)
    return Cost(work.pipe_flops, work.read_bytes, work.write_bytes, launches=(work,))


@lru_cache(maxsize=1 << 16)
def latent_chosen(
    batch: int,
    queries: int,
    heads: int,
    keys: int,
    chosen: int,
    widths: tuple[int, int, int, int] = LATENT_WIDTHS,
    *,
    engine: str = "sglang",
    cache: str = "bfloat16",
    dtype: str = "bfloat16",
) -> Cost:
    """Latent attention of each of ``queries`` of a sequence to ``chosen`` of the latents of its ``keys`` tokens. The
    FLOPs of prompts are of keys and values of heads; decodes are absorbed.

    Args:
        widths: as of :func:`latent_decode`.
    """
    nope, rope, rank, value = widths
    size, seen, rows = rank + rope, min(chosen, keys), batch * queries
    pairs = batch * pairs_of(queries, keys, seen)
    launch = ChosenLatent(
        engine=engine, cache=cache, heads=heads, rows=rows, chosen=chosen, pairs=pairs, size=size, value=rank,
        read_bytes=(1 if cache == "fp8" else 2) * batch * seen * size + 2 * rows * heads * size + 4 * rows * seen,
        write_bytes=2 * rows * heads * rank,
    )  # fmt: skip
    if queries == 1:
        whole = latent_decode(batch, heads, seen, cache, dtype, engine=IN_GRAPHS.get(engine, engine), widths=widths)
        (dense,) = whole.launches
        assert isinstance(dense, LatentLaunch)
        return replace(whole, read_bytes=launch.read_bytes, launches=(replace(launch, dense=dense),))
    flops = 2 * heads * pairs * (nope + rope + value)
    return Cost({Pipe("tensor", "bfloat16"): flops}, launch.read_bytes, launch.write_bytes, launches=(launch,))


@lru_cache(maxsize=1 << 16)
def latent_product(
    tokens: int, heads: int, kind: str, dtype: str = "bfloat16", widths: tuple[int, int, int, int] = LATENT_WIDTHS
) -> Cost:
    """The products around absorbed attention, one for each head of one GPU: ``mla_gen_pre`` turns queries into the
    latent's space, ``mla_gen_post`` results out of it. With ``dtype`` fp8 they are quantised on the way."""
    nope, _, rank, value = widths
    n, k = {"mla_gen_pre": (rank, nope), "mla_gen_post": (value, rank)}[kind]
    pipe, itemsize = Pipe("tensor", dtype), 1 if dtype == "fp8" else 2
    read, write = heads * k * (2 * tokens + itemsize * n), 2 * heads * tokens * n
    work = LatentProduct(
        pipe=pipe, batch=heads, m=tokens, n=n, k=k, itemsize=itemsize, read_bytes=read, write_bytes=write
    )
    return Cost({pipe: work.flops}, read, write, launches=(work,))


def experts(
    tokens: int,
    hidden: int,
    inter: int,
    top_k: int,
    experts: int,
    *,
    tp: int = 1,
    ep: int = 1,
    dtype: str = "bfloat16",
    routing: ExpertRouting = BY_CHANCE,
    gated: bool = True,
    engine: str = "vllm",
    moved_rows: int = 0,
    alike: bool = False,
) -> Cost:
    """The experts of a mixture, without the router, on the GPU that has most rows.

    Args:
        tokens: of all ``ep`` GPUs; ``inter`` and ``experts`` are the model's, which ``tp`` and ``ep`` divide.
        dtype: of the weights (:data:`memwall.ops.experts.SCHEMES`).
        routing: how tokens choose experts.
        engine: whose kernels run: vllm, trtllm or sglang.
        moved_rows: rows that are activated and summed, if more than the rows of the GPU's experts: vLLM's Triton and
            Marlin kernels take ``tokens * top_k`` where ``ep`` GPUs share the experts.
        alike: all tokens choose the same.
    """
    same = ((tokens, min(top_k, -(-experts // ep))),)
    loads = same if alike else loads_of(tokens, experts, top_k, ep, routing)
    columns = -(-inter // tp)
    found = cost_of_experts(tokens, hidden, columns, loads, dtype, engine, gates=1 + gated, moved_rows=moved_rows)
    if routing.is_known:
        return found
    (work,) = found.launches
    assert isinstance(work, ExpertsLaunch)
    fewest = -(-top_k // ep)  # a token's experts are on some GPU so many at least, and others may choose the same
    return replace(found, spared_read_bytes=max(work.active - fewest, 0) * work.expert_bytes)
