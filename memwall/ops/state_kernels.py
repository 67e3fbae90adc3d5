"""Kernels of states that libraries have for transformers' models: flash-linear-attention's delta rules, mamba-ssm's
scan of Mamba-2, and causal-conv1d's convolutions, as :mod:`memwall.ops.linear_attention` builds them from shapes.
Forward alone; queries, keys and values of two bytes. The delta rule of a vector of gates (KDA) counts as that of one
gate."""

from __future__ import annotations

from functools import partial

from memwall.ops import linear_attention as linear
from memwall.ops.base import Call, Cost
from memwall.ops.registry import formula

op = partial(formula, "other")


@op("causal_conv1d::causal_conv1d_fn")
def causal_conv(call: Call) -> Cost:
    """``x`` [b, channels, t], ``weight`` [channels, taps]."""
    batch, channels, tokens = call.need("x").shape
    return linear.causal_conv(batch, tokens, channels, call.need("weight").shape[-1], rows=True)


@op("causal_conv1d::causal_conv1d_update")
def conv_update(call: Call) -> Cost:
    """``x`` [b, channels, 1], and the state [b, channels, taps or one less], which is written too."""
    batch, channels, _ = call.need("x").shape
    return linear.conv_update(batch, channels, call.need("weight").shape[-1], rows=True)


def _heads(call: Call) -> linear.Heads:
    keys, values = call.need("k").shape, call.need("v").shape
    return linear.Heads(keys[2], values[2], keys[3], values[3])


@op("fla::chunk_gated_delta_rule fla::chunk_kda")
def delta_prefill(call: Call) -> Cost:
    """``k`` [b, t, heads, size], ``v`` [b, t, heads, size]; ``initial_state`` where the sequences have one."""
    batch, tokens = call.need("v").shape[:2]
    return linear.delta_prefill(batch, tokens, _heads(call), given=call.arg("initial_state") is not None)


@op("fla::fused_recurrent_gated_delta_rule fla::fused_recurrent_kda")
def delta_decode(call: Call) -> Cost:
    """The same of one token of each sequence."""
    return linear.delta_decode(call.need("v").shape[0], _heads(call))


@op("mamba_ssm::mamba_chunk_scan_combined")
def scan_prefill(call: Call) -> Cost:
    """``x`` [b, t, heads, size], ``B`` [b, t, groups, state]."""
    (batch, tokens, heads, size), shared = call.need("x").shape, call.need("B").shape
    space = linear.StateSpace(heads, size, shared[3], shared[2], call.attributes["chunk_size"])
    return linear.scan_prefill(batch, tokens, space)


@op("mamba_ssm::selective_state_update")
def scan_decode(call: Call) -> Cost:
    """``x`` [b, heads, size], ``B`` [b, groups, state], and the state, which is written too."""
    (batch, heads, size), shared, state = call.need("x").shape, call.need("B").shape, call.need("state")
    space = linear.StateSpace(heads, size, shared[2], shared[1])
    return linear.scan_decode(batch, space, state_dtype=state.dtype)
