"""Layers with a state of constant size as functions of the step: the gated delta rule and the scan of Mamba-2, each
with the causal convolution before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memwall.core.graph import ITEMSIZE
from memwall.ops import Cost
from memwall.ops import linear_attention as linear
from memwall.serving.steps.kernels import NO_COST, State, share_of
from memwall.serving.steps.step import EngineStep, Layout

#: engines whose convolutions have a block for a channel; engines whose prompts FlashInfer's delta rule takes
_BY_CHANNEL, _FUSED = ("trtllm",), ("vllm",)
#: bytes of an input of the convolution
_HALF = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence(State):
    """A layer of ``heads`` states whose convolution has ``channels`` and so many ``taps``; GPUs share the heads. Of
    several prompts in a step each counts as long as their mean."""

    heads: int
    channels: int
    taps: int
    dtype: str

    @property
    def head(self) -> int:
        """Numbers of the state of a head."""
        raise NotImplementedError

    def kv_bytes(self, tokens: int, layout: Layout) -> int:
        """Engines keep the inputs of the convolution but the newest one."""
        window = share_of(self.channels, layout.tp) * (self.taps - 1) * _HALF
        return share_of(self.heads, layout.tp) * self.head * ITEMSIZE[self.dtype] + window

    def _over(
        self, step: EngineStep, layout: Layout, prompt: Callable[[int, int], Cost], token: Callable[[int], Cost]
    ) -> Cost:
        """What prompts, so many of so many tokens, and tokens of so many sequences take, with their convolutions."""
        channels, rows, found = share_of(self.channels, layout.tp), layout.engine in _BY_CHANNEL, NO_COST
        if decodes := step.decodes * step.verified:
            found += linear.conv_update(decodes, channels, self.taps, rows=rows) + token(decodes)
        if prompts := len(step.prefills):
            mean = -(-sum(new for new, _ in step.prefills) // prompts)
            found += linear.causal_conv(prompts, mean, channels, self.taps, rows=rows) + prompt(prompts, mean)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRule(Recurrence):
    """Gated DeltaNet and its like (KDA): ``keys`` heads of queries and of keys, ``heads`` of values with ``gates``
    each."""

    keys: int
    key_size: int
    value_size: int
    gates: int = 1

    @property
    def head(self) -> int:
        return self.key_size * self.value_size

    def cost(self, step: EngineStep, layout: Layout) -> Cost:
        keys, values = share_of(self.keys, layout.tp), share_of(self.heads, layout.tp)
        heads = linear.Heads(keys, values, self.key_size, self.value_size, self.gates)
        fused = layout.engine in _FUSED and self.gates == 1
        return self._over(
            step,
            layout,
            lambda batch, tokens: linear.delta_prefill(batch, tokens, heads, state_dtype=self.dtype, fused=fused),
            lambda batch: linear.delta_decode(batch, heads, state_dtypes=(self.dtype, self.dtype)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan(Recurrence):
    """Mamba-2: heads of ``size`` numbers with ``state`` each, of which ``groups`` share the vectors B and C."""

    size: int
    state: int
    groups: int

    @property
    def head(self) -> int:
        return self.size * self.state

    def cost(self, step: EngineStep, layout: Layout) -> Cost:
        heads, groups = share_of(self.heads, layout.tp), share_of(self.groups, layout.tp)
        space = linear.StateSpace(heads, self.size, self.state, groups)
        return self._over(
            step,
            layout,
            lambda batch, tokens: linear.scan_prefill(batch, tokens, space, state_dtype=self.dtype),
            lambda batch: linear.scan_decode(batch, space, state_dtype=self.dtype),
        )
