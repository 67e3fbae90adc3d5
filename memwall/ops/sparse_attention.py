"""Kernels of sparse attention in inference servers, built from shapes: the index of DeepSeek-V3.2 and GLM-5, its
choice, and latent attention to the chosen tokens; and the amax and casts to eight bits before their products.

DeepGEMM scores the keys: a block takes as many queries as have 128 rows of heads, and walks along 256 keys a step. A
block of FlashMLA takes the 64 heads of a query and walks along 64 chosen keys a step.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from memwall.core.graph import Pipe
from memwall.ops import Cost
from memwall.ops.launches import Walk

_FP8, _HALF = Pipe("tensor", "fp8"), Pipe("tensor", "bfloat16")
#: rows of heads and keys of a step of DeepGEMM's index
_INDEX_ROWS, _INDEX_KEYS = 128, 256
#: query heads of a block and keys of a step of FlashMLA's sparse kernels
SPARSE_HEADS, SPARSE_KEYS = 64, 64
#: numbers of a row that the blocks of the choice take in a step, and bytes that the blocks of a cast do
_CHOICE_STEP, _CAST_BYTES = 1024, 4096


def pairs_of(queries: int, keys: int, most: int) -> int:
    """(query, key) pairs of causal attention whose last query sees all keys, each at most so many."""
    short = max(min(most - (keys - queries), queries), 0)  # queries that see fewer
    return short * (keys - queries) + short * (short + 1) // 2 + (queries - short) * most


class IndexKeys(NamedTuple):
    """Keys of an index: ``size`` numbers of fp8 with a float32 scale, which stand for ``ratio`` tokens. ``block``: the
    numbers are bfloat16, and each head keeps the largest score of so many keys, 0: the weighted sum of all heads."""

    size: int = 128
    ratio: int = 1
    block: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of a key, or of a head's query."""
        return 2 * self.size if self.block else self.size + 4

    @property
    def pipe(self) -> Pipe:
        return _HALF if self.block else _FP8

    def scores(self, pairs: int, heads: int) -> int:
        """Scores that are written of so many pairs of a token and a key."""
        return ceil(pairs / self.block) * heads if self.block else pairs


DEEPSEEK_KEYS = IndexKeys()


@lru_cache(maxsize=1 << 16)
def index_scores(batch: int, heads: int, queries: int, keys: int, form: IndexKeys = DEEPSEEK_KEYS) -> Cost:
    """The scores of an index over keys in a row: products of ``heads`` queries with the keys of all tokens before, of
    which scores are written in float32. A block of queries of several sequences walks along the keys of them all."""
    rows = max(_INDEX_ROWS // heads, 1)
    spanned = max(rows // queries, 1)
    pairs, keys = max(batch * pairs_of(queries, keys, keys) // form.ratio, 1), max(keys // form.ratio, 1)
    blocks, mean = ceil(batch * queries / rows), pairs / (batch * queries) * spanned / _INDEX_KEYS
    steps = ceil(keys * spanned / _INDEX_KEYS)
    read, write = batch * (keys + queries * heads) * form.nbytes, 4 * form.scores(pairs, heads)
    work = Walk(
        kind="index", blocks=blocks, steps=steps, mean_steps=max(mean, 1.0), pipe=form.pipe,
        flops=int(2 * blocks * mean * _INDEX_ROWS * _INDEX_KEYS * form.size), read_bytes=read, write_bytes=write,
    )  # fmt: skip
    return Cost({form.pipe: 2 * pairs * heads * form.size}, read, write, launches=(work,))


@lru_cache(maxsize=1 << 16)
def index_scores_paged(pairs: int, queries: int, held: int, heads: int, form: IndexKeys = DEEPSEEK_KEYS) -> Cost:
    """The same over a paged cache of ``held`` keys: steps of 256 keys of a query are shared evenly among the SMs."""
    parts = ceil(pairs / _INDEX_KEYS) + queries // 2
    read, write = (held + queries * heads) * form.nbytes, 4 * form.scores(pairs, heads)
    work = Walk(
        kind="index_paged", blocks=max(parts, queries), pipe=form.pipe,
        flops=2 * max(parts, queries) * _INDEX_KEYS * heads * form.size, read_bytes=read, write_bytes=write,
    )  # fmt: skip
    return Cost({form.pipe: 2 * pairs * heads * form.size}, read, write, launches=(work,))


@lru_cache(maxsize=1 << 16)
def choice(rows: int, shortest: int, longest: int, chosen: int, *, flat: bool = False) -> Cost:
    """The ``chosen`` largest of each of ``rows`` rows of float32 scores, a block each; ``flat``: all are equal, and the
    radix passes go on to the last digit. Lengths of rows are spread evenly; a row of no more than ``chosen`` scores is
    not searched: its places are written as they are (SGLang's ``fast_topk``)."""
    lengths = longest - shortest + 1
    searched = min(max(longest - chosen, 0), lengths)  # lengths that are searched, of these
    mean = searched / lengths * (longest - (searched - 1) / 2)
    read, write = round(4 * rows * mean), 4 * rows * min(chosen, longest)
    kind = "top_k_flat" if flat else "top_k"
    steps = longest / _CHOICE_STEP if searched else 0
    work = Walk(kind=kind, blocks=rows, steps=steps, mean_steps=mean / _CHOICE_STEP, per_sm=2, read_bytes=read)
    work = replace(work, write_bytes=write)
    return Cost({}, read, write, launches=(work,))


#: sequences of a pass of vLLM's sparse prefill, and kernels of a pass: latents are gathered and cast back to bfloat16,
#: the window's and the compressed ones, then attention runs; kernels of any call besides
_PASS, _PASS_KERNELS, _CALL_KERNELS = 4, 3, 6
#: bytes of a token's latent in the fp8 cache of DeepSeek-V4: 448 fp8 numbers, 64 in bfloat16, and scales
CACHED_BYTES = 584


@lru_cache(maxsize=1 << 16)
def sparse_window(
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    entries: int,
    *,
    window: int,
    size: int = 512,
    cached_bytes: int = CACHED_BYTES,
) -> Cost:
    """Attention of DeepSeek-V4 to the last ``window`` tokens and to ``entries`` that stand for several tokens each,
    over a cache of latents with ``cached_bytes`` of each, by vLLM: one new token in a single kernel, prompts in passes
    of four sequences."""
    held = min(keys, queries + window) + entries
    later = round(queries * entries * (1 - (queries - 1) / (2 * keys)))  # entries that queries see, made as they go on
    steps = ceil(min(keys, window) / SPARSE_KEYS) + ceil(entries / SPARSE_KEYS)
    blocks, rows = batch * queries * ceil(heads / SPARSE_HEADS), batch * queries * heads
    read, write = batch * held * cached_bytes + 2 * rows * size, 2 * rows * size
    is_prompt = queries > 1
    passes, gathered = (ceil(batch / _PASS), 2 * batch * held * size) if is_prompt else (1, 0)
    mean = ceil(min(keys, window) / SPARSE_KEYS) + later / queries / SPARSE_KEYS
    work = Walk(
        kind="sparse_window", blocks=blocks, steps=steps, mean_steps=mean, pipe=_HALF, passes=passes,
        count=_CALL_KERNELS + (passes * _PASS_KERNELS if is_prompt else 1), paired=ceil(heads / SPARSE_HEADS),
        flops=int(2 * blocks * mean * SPARSE_HEADS * SPARSE_KEYS * 2 * size),
        read_bytes=read + gathered, write_bytes=write + gathered,
    )  # fmt: skip
    pairs = pairs_of(queries, keys, min(window, keys)) + later
    return Cost({_HALF: 4 * batch * heads * pairs * size}, read, write, launches=(work,))


@lru_cache(maxsize=1 << 16)
def cast_fp8(rows: int, columns: int, *, kind: str = "cast_rows") -> Cost:
    """A cast from bfloat16 to fp8 by scales that are known. ``kind``: ``cast_rows`` has a block for each row (vLLM),
    ``cast`` spreads the elements (TensorRT-LLM), ``cast_eager`` is four element-wise kernels with float32 between them:
    a quotient, its limits, the cast, and a copy (PyTorch)."""
    count, by_row = rows * columns, kind == "cast_rows"
    moved = ((2, 4), (4, 4), (4, 1), (1, 1)) if kind == "cast_eager" else ((2, 1),)
    work = Walk(
        kind=kind,
        blocks=rows if by_row else ceil(2 * count / _CAST_BYTES),
        steps=ceil(2 * columns / _CAST_BYTES) if by_row else 1,
        per_sm=8,
    )
    launches = (replace(work, read_bytes=count * before, write_bytes=count * after) for before, after in moved)
    return Cost({}, 2 * count, count, launches=tuple(launches))


@lru_cache(maxsize=1 << 16)
def amax(rows: int, columns: int, *, by_row: bool = False) -> Cost:
    """The largest magnitude before a cast: of a tensor, a memset and a kernel that loads it all (TensorRT-LLM), or
    ``by_row``, the first pass of a kernel that casts each row by its own scale."""
    read = 2 * rows * columns
    work = Walk(
        kind="amax_rows" if by_row else "amax",
        blocks=rows if by_row else ceil(read / _CAST_BYTES),
        steps=ceil(2 * columns / _CAST_BYTES) if by_row else 1,
        per_sm=8,
        count=1 if by_row else 2,
        read_bytes=read,
        write_bytes=4 * (rows if by_row else 1),
    )
    return Cost({}, read, work.write_bytes, launches=(work,))
