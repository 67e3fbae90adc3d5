"""Kernels of linear attention and state spaces in inference servers, built from shapes: the gated delta rule (Gated
DeltaNet of Qwen3-Next and Qwen3.5, KDA of Kimi), the scan of Mamba-2, and the causal convolution before both.

A layer keeps a state of ``key_size x value_size`` numbers for each value head. Decodes read and write it once a token.
Prompts are cut into chunks: products inside a chunk run in parallel, and the states between chunks one after another
(Yang et al., Gated Delta Networks, 2412.06464; Dao and Gu, Transformers are SSMs, 2405.21060).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import ceil

from memwall.core.graph import ITEMSIZE, Pipe
from memwall.ops.base import Call, Cost
from memwall.ops.launches import Walk
from memwall.ops.registry import formula

op = partial(formula, "other")

#: tokens of a chunk of the gated delta rule, in all its kernels
DELTA_CHUNK = 64
#: bytes of queries, keys, values, results and what passes between the kernels of a chunk
_HALF = 2
_TENSOR = Pipe("tensor", "bfloat16")
#: channels of a block of the Triton convolutions, tokens of their tile; tokens of the CUDA kernel's
_COLUMNS, _TILE_TOKENS, _ROW_TOKENS = 256, 8, 1024
#: tokens of a row that the CUDA kernel loads at once, where rows begin at whole vectors
_VECTOR = 8
#: values of a state that a block of a Triton decode holds, and of one of the walk along chunks
_DECODE_VALUES, _WALK_VALUES = 32, 64


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of a linear attention on one GPU: of queries and keys, and of values, with the sizes of each; ``gates`` are
    the gates of a head of values: one, or one for each number of a key (KDA)."""

    keys: int
    values: int
    key_size: int = 128
    value_size: int = 128
    gates: int = 1

    @property
    def state(self) -> int:
        """Numbers of the state of a sequence."""
        return self.values * self.key_size * self.value_size

    @property
    def channels(self) -> int:
        """Numbers of a token's queries, keys and values, which the convolution takes."""
        return 2 * self.keys * self.key_size + self.values * self.value_size


def _cost(flops: int, read: int, write: int, launches: tuple[Walk, ...]) -> Cost:
    return Cost({_TENSOR: flops} if flops else {}, read, write, launches=launches)


@lru_cache(maxsize=1 << 16)
def causal_conv(batch: int, tokens: int, channels: int, taps: int = 4, *, rows: bool = False) -> Cost:
    """A causal convolution of ``taps`` tokens of each channel with its SiLU, which leaves the last tokens as a state.
    ``rows``: a CUDA block walks along a channel of a sequence (causal-conv1d, TensorRT-LLM); otherwise a Triton block
    takes 256 channels of 8 tokens (vLLM, SGLang)."""
    moved = _HALF * batch * tokens * channels
    weights, state = _HALF * taps * channels, _HALF * batch * (taps - 1) * channels
    if rows:
        turns = 1 if tokens % _VECTOR == 0 else 2  # loads of single numbers
        grid = Walk(kind="conv_rows", blocks=batch * channels, steps=turns * ceil(tokens / _ROW_TOKENS), per_sm=16)
    else:
        blocks = batch * ceil(tokens / _TILE_TOKENS) * ceil(channels / _COLUMNS)
        grid = Walk(kind="conv_tiles", blocks=blocks, per_sm=2)
    work = replace(grid, read_bytes=moved + weights, write_bytes=moved + state)
    return _cost(0, work.read_bytes, work.write_bytes, (work,))


@lru_cache(maxsize=1 << 16)
def conv_update(batch: int, channels: int, taps: int = 4, *, rows: bool = False) -> Cost:
    """The same of one token of each sequence, with the state before it; ``rows``: a CUDA block takes 64 channels."""
    state, moved = _HALF * batch * (taps - 1) * channels, _HALF * batch * channels
    width = 64 if rows else _COLUMNS
    work = Walk(
        kind="conv_update_rows" if rows else "conv_update",
        blocks=batch * ceil(channels / width),
        per_sm=16 if rows else 4,
        read_bytes=state + moved + _HALF * taps * channels,
        write_bytes=state + moved,
    )
    return _cost(0, work.read_bytes, work.write_bytes, (work,))


@lru_cache(maxsize=1 << 16)
def delta_prefill(
    batch: int, tokens: int, heads: Heads, *, state_dtype: str = "float32", given: bool = True, fused: bool = False
) -> Cost:
    """The gated delta rule over prompts, without its convolution.

    Args:
        tokens: of each sequence.
        state_dtype: of the state that a sequence leaves, and begins with where it is ``given``.
        fused: FlashInfer's kernel, whose blocks walk along the chunks of a head with the state in registers; otherwise
            FLA's Triton kernels, of which five take the chunks in parallel and one walks along them.
    """
    chunks, k, v = ceil(tokens / DELTA_CHUNK), heads.key_size, heads.value_size
    of_token = _HALF * (2 * heads.keys * k + 2 * heads.values * v) + 4 * heads.values * (heads.gates + 1)
    state = batch * heads.state * ITEMSIZE[state_dtype]
    read, write = state * given + batch * tokens * (of_token - _HALF * heads.values * v), state
    write += _HALF * batch * tokens * heads.values * v
    needed = 6 * batch * tokens * heads.state  # the state times a key, its change, the state times a query
    padded, sequences = batch * chunks * DELTA_CHUNK * heads.values, batch * heads.values
    # of a token's head: scores of keys and of queries, products with the triangular inverse and with the scores
    inside, across = 2 * DELTA_CHUNK * (3 * k + 2 * v), 2 * k * v
    if fused:
        work = Walk(
            kind="delta_fused", blocks=sequences, steps=chunks, pipe=_TENSOR,
            flops=padded * (inside + 3 * across), read_bytes=read, write_bytes=write,
        )  # fmt: skip
        return _cost(needed, read, write, (work,))
    # what one kernel leaves to the next: w and u, the values less what the state knew, the inverse, a state a chunk
    between = batch * heads.values * (tokens * _HALF * (k + 2 * v + DELTA_CHUNK) + chunks * _HALF * k * v)
    walked = Walk(
        kind="delta_triton", blocks=sequences * ceil(v / _WALK_VALUES), steps=chunks, per_sm=2, pipe=_TENSOR,
        flops=padded * 2 * across, read_bytes=state * given + between // 2, write_bytes=state + between // 2,
    )  # fmt: skip
    parallel = Walk(
        kind="delta_triton", blocks=sequences * chunks, per_sm=2, count=5, pipe=_TENSOR,
        flops=padded * (inside + across), read_bytes=2 * read + between, write_bytes=write + between // 2,
    )  # fmt: skip
    return _cost(needed, read, write, (parallel, walked))


@lru_cache(maxsize=1 << 16)
def delta_decode(
    batch: int, heads: Heads, *, state_dtypes: tuple[str, str] = ("float32", "float32"), fused: bool = False
) -> Cost:
    """One token of each sequence: the state is read as the first of ``state_dtypes`` and written as the second.
    ``fused``: FlashInfer's kernel; otherwise FLA's in Triton, with a block for 32 values of a head."""
    before, after = (batch * heads.state * ITEMSIZE[dtype] for dtype in state_dtypes)
    rows = batch * _HALF * (2 * heads.keys * heads.key_size + heads.values * (heads.value_size + heads.gates + 1))
    return _state_update(
        batch * heads.values * ceil(heads.value_size / _DECODE_VALUES),
        (before + rows, after + _HALF * batch * heads.values * heads.value_size),
        fused=fused,
    )


def _state_update(blocks: int, moved: tuple[int, int], *, fused: bool = False) -> Cost:
    read, write = moved
    kind = "state_fused" if fused else "state_triton"
    work = Walk(kind=kind, blocks=blocks, per_sm=16, read_bytes=read, write_bytes=write)
    return _cost(0, read, write, (work,))


@dataclass(frozen=True, slots=True)
class StateSpace:
    """The heads of Mamba-2 on one GPU: ``size`` numbers each, whose state has ``state`` of each of them; ``groups`` of
    heads share their input and output vectors B and C; ``chunk`` tokens."""

    heads: int
    size: int
    state: int
    groups: int
    chunk: int = 128

    @property
    def numbers(self) -> int:
        """Numbers of the state of a sequence."""
        return self.heads * self.size * self.state

    @property
    def channels(self) -> int:
        """Numbers of a token that the convolution takes."""
        return self.heads * self.size + 2 * self.groups * self.state


@lru_cache(maxsize=1 << 16)
def scan_prefill(batch: int, tokens: int, space: StateSpace, *, state_dtype: str = "float32") -> Cost:
    """Mamba-2 over prompts, without its convolution: of five Triton kernels three multiply inside chunks, in parallel,
    and one walks along the chunks' states."""
    chunks = ceil(tokens / space.chunk)
    rows = _HALF * batch * tokens * space.heads * space.size
    shared = _HALF * batch * tokens * 2 * space.groups * space.state
    steps = 4 * batch * tokens * space.heads  # of time, float32
    final = batch * space.numbers * ITEMSIZE[state_dtype]
    read, write = rows + shared + steps // 2, rows + final
    needed = 4 * batch * tokens * space.numbers  # into the state, and out of it
    padded, states = batch * chunks * space.chunk, 4 * batch * chunks * space.numbers
    scores = 2 * space.chunk * (space.groups * space.state + space.heads * space.size)
    parallel = Walk(
        kind="delta_triton", blocks=batch * chunks * space.heads, per_sm=2, count=4, pipe=_TENSOR,
        flops=padded * (scores + 4 * space.numbers),
        read_bytes=2 * (rows + shared + steps) + states // 2, write_bytes=write + states + steps,
    )  # fmt: skip
    walked = Walk(
        kind="delta_triton", blocks=batch * space.heads * ceil(space.size * space.state / 256), per_sm=16,
        steps=chunks, read_bytes=states, write_bytes=states // 2 + final,
    )  # fmt: skip
    return _cost(needed, read, write, (parallel, walked))


@lru_cache(maxsize=1 << 16)
def scan_decode(batch: int, space: StateSpace, *, state_dtype: str = "float32") -> Cost:
    """One token of each sequence: its state is read and written once."""
    state = batch * space.numbers * ITEMSIZE[state_dtype]
    rows = _HALF * batch * (space.heads * (space.size + 1) + 2 * space.groups * space.state)
    return _state_update(
        batch * space.heads * ceil(space.size / _DECODE_VALUES),
        (state + rows, state + _HALF * batch * space.heads * space.size),
    )


# -- what libraries run for transformers' models -----------------------------------------------------------------------
# flash-linear-attention's delta rules, mamba-ssm's scan of Mamba-2, causal-conv1d's convolutions: forward alone, of two
# bytes.


@op("causal_conv1d::causal_conv1d_fn")
def installed_causal_conv(call: Call) -> Cost:
    """``x`` [b, channels, t], ``weight`` [channels, taps]."""
    batch, channels, tokens = call.need("x").shape
    return causal_conv(batch, tokens, channels, call.need("weight").shape[-1], rows=True)


@op("causal_conv1d::causal_conv1d_update")
def installed_conv_update(call: Call) -> Cost:
    """``x`` [b, channels, 1], and the state [b, channels, taps or one less], which is written too."""
    batch, channels, _ = call.need("x").shape
    return conv_update(batch, channels, call.need("weight").shape[-1], rows=True)


def _heads(call: Call) -> Heads:
    keys, values = call.need("k").shape, call.need("v").shape
    return Heads(keys[2], values[2], keys[3], values[3], keys[3] if "kda" in call.name else 1)


@op("fla::chunk_gated_delta_rule fla::chunk_kda")
def installed_delta_prefill(call: Call) -> Cost:
    """``k`` [b, t, heads, size], ``v`` [b, t, heads, size]; ``initial_state`` where the sequences have one."""
    batch, tokens = call.need("v").shape[:2]
    return delta_prefill(batch, tokens, _heads(call), given=call.arg("initial_state") is not None)


@op("fla::fused_recurrent_gated_delta_rule fla::fused_recurrent_kda")
def installed_delta_decode(call: Call) -> Cost:
    """The same of one token of each sequence."""
    return delta_decode(call.need("v").shape[0], _heads(call))


@op("mamba_ssm::mamba_chunk_scan_combined")
def installed_scan_prefill(call: Call) -> Cost:
    """``x`` [b, t, heads, size], ``B`` [b, t, groups, state]."""
    (batch, tokens, heads, size), shared = call.need("x").shape, call.need("B").shape
    space = StateSpace(heads, size, shared[3], shared[2], call.attributes["chunk_size"])
    return scan_prefill(batch, tokens, space)


@op("mamba_ssm::selective_state_update")
def installed_scan_decode(call: Call) -> Cost:
    """``x`` [b, heads, size], ``B`` [b, groups, state], and the state, which is written too."""
    (batch, heads, size), shared, state = call.need("x").shape, call.need("B").shape, call.need("state")
    space = StateSpace(heads, size, shared[2], shared[1])
    return scan_decode(batch, space, state_dtype=state.dtype)
