"""Ops of other libraries along a sequence: scans, linear attention, causal convolutions, recursive filters; what each
must do, as a trace has its call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from memwall.core.errors import Unsupported
from memwall.core.graph import Pipe, TensorSpec
from memwall.ops.base import Cost
from memwall.ops.contraction import product_pipe
from memwall.ops.launches import Plain
from memwall.ops.passes import looped, streamed, vector_flops
from memwall.ops.recorded import Recorded


class Counted(NamedTuple):
    """What a rule says of a call: its cost, its class, and what was not recorded and is counted instead."""

    cost: Cost
    op_class: str
    notes: tuple[str, ...] = ()


Rule = Callable[[Recorded], Counted]


#: FLOPs of a state of a selective scan: the step times A, its exponential, the step's input times B, the state's
#: multiply-add, C's (Gu and Dao 2023; selective_scan_fwd_kernel.cuh); of a token and channel: the step times the input,
#: and where given softplus (4), D (2), the gate (silu 4, product 1)
_SCAN_STATE, _SCAN_TOKEN, _SOFTPLUS, _SKIP, _GATE = 7, 1, 4, 2, 5


def selective_scan(call: Recorded) -> Counted:
    """``u`` and ``delta`` of one shape, ``A`` [channels, states]; the result takes the place of ``delta``."""
    tokens, states = call.need("u"), call.need("A").shape[-1]
    each = _SCAN_STATE * states + _SCAN_TOKEN + _SOFTPLUS * bool(call.value("delta_softplus", False))
    each += _SKIP * (call.tensor("D") is not None) + _GATE * (call.tensor("z") is not None)
    names = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "x")
    read = sum(spec.nbytes for name in names if (spec := call.tensor(name)))
    return Counted(
        streamed(Cost(vector_flops(tokens, each * tokens.numel), read, tokens.nbytes), tokens.numel), "other"
    )


def causal_convolution(call: Recorded) -> Counted:
    """Each channel by itself: 2 FLOP for each of the window's taps, and silu's 4. A step of a decoder reads its state
    too."""
    data, weight, state = call.need("input"), call.need("weight"), call.tensor("conv_state")
    activated = 4 * bool(call.value("silu_activation", False))
    bias, channels = call.tensor("bias"), weight.shape[0]
    kept = 0 if state is None else data.shape[0] * channels * (weight.shape[-1] - 1) * state.itemsize
    flops = vector_flops(data, (2 * weight.shape[-1] + activated) * data.numel)
    cost = Cost(flops, data.nbytes + weight.nbytes + (bias.nbytes if bias else 0) + kept, data.nbytes + kept)
    return Counted(streamed(cost, data.numel), "convolution")


def causal_convolution_backward(call: Recorded) -> Counted:
    """2 FLOP a tap for the input's gradient and 2 for the weight's, silu's gradient 8; the input is read again."""
    data, grad, weight = call.need("input"), call.need("grad"), call.need("weight")
    each = 4 * weight.shape[-1] + 8 * bool(call.value("silu_activation", False))
    read, write = data.nbytes + grad.nbytes + weight.nbytes, data.nbytes + weight.nbytes
    return Counted(streamed(Cost(vector_flops(data, each * data.numel), read, write), data.numel), "convolution")


def recursive_filter(call: Recorded) -> Counted:
    """``data`` [batch, channels, samples], ``coefficients`` [channels, order]: 2 FLOP a coefficient and sample. A
    thread goes through the samples of its channel, each of which waits for the one before (torchaudio, iir_cuda.cu)."""
    data, order = call.need("data"), call.need("coefficients").shape[-1]
    samples = data.shape[-1] if data.shape else 1
    blocks = math.ceil(data.numel / max(samples, 1) / _BLOCK_THREADS)
    cost = Cost(vector_flops(data, 2 * order * data.numel), data.nbytes + call.need("coefficients").nbytes, data.nbytes)
    return Counted(streamed(cost, data.numel, steps=samples, blocks=blocks), "other")


#: tokens of a chunk of linear attention, at most (fla/ops/*/chunk.py)
_CHUNK = 64
#: its kernels one after another: the gates' sum, states, results; the delta rule's inverse and its two products too
_CHUNK_KERNELS, _DELTA_KERNELS = 4, 6
#: columns of the state that a block of the recurrent form keeps in registers, one warp a block (fused_recurrent.py)
_STATE_COLUMNS = 8
_SEQUENCE = ("q", "k", "v", "beta", "g", "gk", "gv", "g_gamma", "initial_state")


def linear_attention(call: Recorded) -> Counted:
    """Linear attention in chunks: ``q``, ``k`` [batch, tokens, heads, K], ``v`` [batch, tokens, heads, V]. A token's
    products with the state, K x V, are two, the delta rule's three (``beta``); within a chunk each pair of a token and
    one before it (or itself) takes the scores' K and the result's V, and for the delta rule twice the K and once the V
    more (keys with keys, its W and its U; Yang et al. 2024). Gates and the inverse of the triangle are not counted.
    """
    flops, read, write = _linear_attention(call)
    kernels = _CHUNK_KERNELS if call.tensor("beta") is None else _DELTA_KERNELS
    work = Plain(flops=flops, read_bytes=read, write_bytes=write, count=kernels)
    return Counted(Cost(flops, read, write, launches=(work,)), "attention")


def linear_attention_backward(call: Recorded) -> Counted:
    """Two products for each of the forward's, which are not counted again; every operand has a gradient."""
    if call.forward is None:
        raise Unsupported("its forward op is not in the trace")
    flops, read, write = _linear_attention(call.forward)
    kernels = 2 * (_CHUNK_KERNELS if call.forward.tensor("beta") is None else _DELTA_KERNELS)
    twice, total = {pipe: 2 * count for pipe, count in flops.items()}, read + write
    work = Plain(flops=twice, read_bytes=total, write_bytes=read, count=kernels)
    return Counted(Cost(twice, total, read, launches=(work,)), "attention")


def _linear_attention(call: Recorded) -> tuple[dict[Pipe, int], int, int]:
    """FLOPs, and bytes read and written."""
    query, value, tokens, keys, values = _heads(call)
    delta = call.tensor("beta") is not None
    length = query.shape[1]
    full, rest = divmod(length, _CHUNK)
    pairs = (full * _CHUNK * (_CHUNK + 1) + rest * (rest + 1)) // 2 * (tokens // length)
    each_pair = 3 * keys + 2 * values if delta else keys + values
    flops = 2 * (pairs * each_pair + (3 if delta else 2) * tokens * keys * values)
    return {product_pipe(query.dtype, {}, allow_tf32=True): flops}, *_moved(call, value, keys)


def linear_recurrence(call: Recorded) -> Counted:
    """Linear attention token by token: 4 FLOP for each element of the state, K x V, to take in a token and to read; the
    delta rule's 2 to read what the key has stored; 1 for each gate. A block waits for a token to take in the next."""
    query, value, tokens, keys, values = _heads(call)
    gates = sum(call.tensor(name) is not None for name in ("g", "gk", "gv", "g_gamma"))
    each = 4 + 2 * (call.tensor("beta") is not None) + gates
    cost = Cost(vector_flops(query, each * tokens * keys * values), *_moved(call, value, keys))
    threads = tokens // query.shape[1] * math.ceil(values / _STATE_COLUMNS) * _WARP
    found = looped(cost, value.numel, threads, query.shape[1], "one token after another", _WARP)
    return Counted(found, "attention")


def _heads(call: Recorded) -> tuple[TensorSpec, TensorSpec, int, int, int]:
    """Queries, values, their tokens over all sequences and heads, and the state's rows and columns."""
    query, value = call.need("q"), call.need("v")
    if len(query.shape) != 4 or len(value.shape) != 4 or not query.numel or not value.numel:
        raise Unsupported("not queries and values by token and head")
    return query, value, value.numel // value.shape[-1], query.shape[-1], value.shape[-1]


def _moved(call: Recorded, value: TensorSpec, keys: int) -> tuple[int, int]:
    """Bytes read and written: a result like ``v`` and, where it is asked for, each sequence's last state, in float32;
    ``cu_seqlens`` holds where packed sequences begin and end."""
    read = sum(spec.nbytes for name in _SEQUENCE if (spec := call.tensor(name)))
    packed = call.tensor("cu_seqlens")
    sequences = value.shape[0] if packed is None else packed.numel - 1
    state = 4 * sequences * value.shape[2] * keys * value.shape[3]
    return read, value.nbytes + state * bool(call.value("output_final_state", False))


#: threads of a block as streams count them
_BLOCK_THREADS = 512
_WARP = 32
