"""How a rank keeps the numbers of a parameter: the bytes of its weight, its gradient and the optimizer's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ParameterState(NamedTuple):
    """Bytes that each parameter takes: its weight, its gradient, and what the optimizer keeps; and bytes that move to
    add the gradient of a further microbatch."""

    weight: int
    gradient: int
    optimizer: int
    accumulate: int

    @property
    def update_bytes(self) -> int:
        """Bytes that move in memory for an update: gradients are read for their norm and read again; the optimizer's
        are read and written, the weight is written."""
        return 2 * self.gradient + 2 * self.optimizer + self.weight


#: how numbers are kept -> bytes of a parameter. ``mixed``: 16-bit weights, gradients in float32, a master copy and
#: Adam's two moments (Korthikanti et al., 2022: 18 bytes); ``fused``: the same, gradients summed by the matmuls that
#: make them (Megatron-LM's gradient accumulation fusion); ``half``: gradients of 16 bits; ``fused half``: both
STATES: Mapping[str, ParameterState] = {
    "mixed": ParameterState(2, 4, 12, 10), "fused": ParameterState(2, 4, 12, 0), "half": ParameterState(2, 2, 12, 6),
    "fused half": ParameterState(2, 2, 12, 0), "bf16": ParameterState(2, 2, 4, 6),
    "float32": ParameterState(4, 4, 8, 12),
}  # fmt: skip
