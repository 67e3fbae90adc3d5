"""Sizes of the language models of published runs, which :mod:`.language_model` builds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Latents:
    """Widths of latent attention (DeepSeek-V2, arXiv 2405.04434): of the latents of queries, and of keys and values; of
    a head's query and key without and with rotation, and of its value."""

    queries: int
    keys: int
    plain: int
    rotated: int
    value: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a model. ``fused``: attention is one kernel (``cudnn``: cuDNN's); else the scores are written,
    masked and normalised. ``products``: format of the layers' products, ``fp8`` or ``fp4``; empty: the model's."""

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
    #: of a head, if the heads are not as wide as the model in all
    head_dim: int = 0
    #: in place of each MLP so many, ``ffn`` wide, of which a token chooses ``top_k``; 0: none
    experts: int = 0
    top_k: int = 0
    #: whether each expert's products are launched by themselves
    loops: bool = False
    #: whether experts have biases and clamp what they activate, by PyTorch's own ops
    clamps: bool = False
    #: width of an expert that all tokens share
    shared: int = 0
    #: first layers with an MLP of ``dense_ffn`` in place of experts
    dense: int = 0
    dense_ffn: int = 0
    latents: Latents | None = None
    #: a further layer and loss, for the token after the next (DeepSeek-V3, arXiv 2412.19437)
    predicts_two: bool = False
    cudnn: bool = False
    products: str = ""
    #: rank of adapters next to the products that make queries, keys and values (LoRA), all other weights frozen
    adapters: int = 0

    @property
    def inner(self) -> int:
        """Width inside the MLP."""
        return self.ffn or 4 * self.width

    @property
    def head_width(self) -> int:
        return self.head_dim or self.width // self.heads
