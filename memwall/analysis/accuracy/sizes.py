"""Sizes of the language models of published runs, which :mod:`.language_model` builds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a model. ``fused``: attention is one kernel (``cudnn``: that of cuDNN); else the scores are written,
    masked and normalised. ``fp8``: products of layers are in 8 bits."""

    width: int
    layers: int
    heads: int
    vocab: int
    seq: int
    ffn: int = 0
    kv_heads: int = 0
    gated: bool = False
    rotary: bool = False
    fused: bool = False
    dropout: float = 0.1
    bias: bool = True
    tied: bool = True
    cudnn: bool = False
    fp8: bool = False

    @property
    def inner(self) -> int:
        """Width inside the MLP."""
        return self.ffn or 4 * self.width
