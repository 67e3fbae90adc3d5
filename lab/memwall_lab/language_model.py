"""The language models of published training runs: GPT and Llama by their sizes, as Megatron-LM and llm-foundry write
them."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from memwall_lab.expert_layers import Experts, Permuted, Summed
from memwall_lab.narrow_layers import LINEAR
from memwall_lab.sizes import Latents, Sizes

#: kernels of attention, the preferred first
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class MaskedSoftmax(nn.Module):
    """Scores are scaled, masked and normalised: one kernel of Megatron-LM's."""

    def forward(self, scores: Tensor, scale: float, later: Tensor) -> Tensor:
        return F.softmax(scores.mul_(scale).masked_fill_(later, -10000.0), dim=-1)


class Residual(nn.Module):
    """Adds what a branch made, with dropout: one kernel of Megatron-LM's."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.p = dropout

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + F.dropout(branch, self.p, self.training) if self.p else x + branch


class Adapter(nn.Module):
    """Two narrow products next to a layer's (Hu et al., 2021)."""

    def __init__(self, given: int, made: int, rank: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(given, rank, bias=False), nn.Linear(rank, made, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        linear, self.cudnn = LINEAR[sizes.products], sizes.cudnn
        self.dropout = sizes.dropout
        self.num_heads, self.num_kv_heads = sizes.heads, sizes.kv_heads or sizes.heads
        self.head_dim = sizes.head_width
        made = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        self.qkv = linear(sizes.width, made, bias=sizes.bias)
        self.qkv_adapter = Adapter(sizes.width, made, sizes.adapters) if sizes.adapters else None
        self.out = linear(sizes.heads * self.head_dim, sizes.width, bias=sizes.bias)
        self.softmax, self.drop = MaskedSoftmax(), nn.Dropout(sizes.dropout)

    def forward(self, x: Tensor, later: Tensor | None, angles: tuple[Tensor, Tensor] | None) -> Tensor:
        each = self.num_heads // self.num_kv_heads  # queries of a group, next to their key and value
        made = self.qkv(x) if self.qkv_adapter is None else self.qkv(x) + self.qkv_adapter(x)
        parts = made.unflatten(-1, (self.num_kv_heads, -1, self.head_dim)).split((each, 1, 1), dim=3)
        q, k, v = (part.flatten(2, 3) for part in parts)
        if angles is not None:
            q, k = _rotate(q, *angles), _rotate(k, *angles)
        return self.out(self._fused(q, k, v) if later is None else self._unfused(q, k, v, later))

    def _fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (part.permute(1, 2, 0, 3) for part in (q, k, v))
        p, grouped = self.dropout if self.training else 0.0, q.shape[1] != k.shape[1]
        preferred = sdpa_kernel([SDPBackend.CUDNN_ATTENTION, *_KERNELS], set_priority=True)
        with preferred if self.cudnn else nullcontext():
            mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True, enable_gqa=grouped)
        return mixed.permute(2, 0, 1, 3).flatten(2)

    def _unfused(self, q: Tensor, k: Tensor, v: Tensor, later: Tensor) -> Tensor:
        seq, batch = q.shape[:2]
        q, k, v = (part.flatten(1, 2).transpose(0, 1) for part in (q, k, v))
        scores = self.softmax(q @ k.transpose(1, 2), 1 / math.sqrt(self.head_dim), later)
        mixed = self.drop(scores) @ v
        return mixed.transpose(0, 1).reshape(seq, batch, -1)


class LatentAttention(nn.Module):
    """Attention whose queries, keys and values are products of latents; one rotated key is of all heads."""

    def __init__(self, sizes: Sizes, latents: Latents) -> None:
        super().__init__()
        linear, self.latents = LINEAR[sizes.products], latents
        self.num_heads, made = sizes.heads, latents.plain + latents.rotated
        self.query_down = linear(sizes.width, latents.queries, bias=False)
        self.query_up = linear(latents.queries, sizes.heads * made, bias=False)
        self.key_down = linear(sizes.width, latents.keys + latents.rotated, bias=False)
        self.key_up = linear(latents.keys, sizes.heads * (latents.plain + latents.value), bias=False)
        self.query_norm, self.key_norm = nn.RMSNorm(latents.queries), nn.RMSNorm(latents.keys)
        self.out = linear(sizes.heads * latents.value, sizes.width, bias=False)

    def forward(self, x: Tensor, later: Tensor | None, angles: tuple[Tensor, Tensor]) -> Tensor:
        plain, rotated, value = self.latents.plain, self.latents.rotated, self.latents.value
        q = self.query_up(self.query_norm(self.query_down(x))).unflatten(-1, (-1, plain + rotated))
        latent, key = self.key_down(x).split((self.latents.keys, rotated), dim=-1)
        k, v = self.key_up(self.key_norm(latent)).unflatten(-1, (-1, plain + value)).split((plain, value), dim=-1)
        key = _rotate(key.unsqueeze(2), *angles).expand(-1, -1, k.shape[2], -1)
        q = torch.cat((q[..., :plain], _rotate(q[..., plain:], *angles)), dim=-1)
        q, k, v = (part.permute(1, 2, 0, 3) for part in (q, torch.cat((k, key), dim=-1), v))
        # cuDNN's kernel, which TransformerEngine runs: PyTorch asks it for heads of 128 alone
        mixed = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True)[0]
        return self.out(mixed.permute(2, 0, 1, 3).flatten(2))


class MLP(nn.Module):
    def __init__(self, sizes: Sizes, inner: int = 0) -> None:
        super().__init__()
        linear, inner = LINEAR[sizes.products], inner or sizes.inner
        self.gate = linear(sizes.width, inner, bias=sizes.bias) if sizes.gated else None
        self.up = linear(sizes.width, inner, bias=sizes.bias)
        self.down = linear(inner, sizes.width, bias=sizes.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(F.gelu(self.up(x), approximate="tanh"))
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    """Routes each token to some experts, equally many tokens to each, and sums what they make."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(sizes.width, sizes.experts, bias=False), Experts(sizes)
        self.top_k, self.count = sizes.top_k, sizes.experts
        self.shared = MLP(sizes, sizes.shared) if sizes.shared else None

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).float().softmax(-1).topk(self.top_k)
        order = chosen.flatten().sort()[1]
        ends = torch.arange(1, self.count + 1, dtype=torch.int32, device=x.device) * (len(order) // self.count)
        rows: Tensor = Permuted.apply(tokens, order, self.top_k)
        made = self.experts(rows, ends, weights.flatten()[order, None])
        routed: Tensor = Summed.apply(made, order, self.top_k).view_as(x)
        return routed if self.shared is None else routed + self.shared(x)


class Block(nn.Module):
    """Pre-norm decoder block."""

    def __init__(self, sizes: Sizes, is_dense: bool = False) -> None:
        super().__init__()
        norm = nn.RMSNorm if sizes.rotary else nn.LayerNorm
        self.norm1, self.norm2 = norm(sizes.width), norm(sizes.width)
        self.attention = LatentAttention(sizes, sizes.latents) if sizes.latents else Attention(sizes)
        self.mlp = MLP(sizes, sizes.dense_ffn) if is_dense or not sizes.experts else Mixture(sizes)
        self.residual1, self.residual2 = Residual(sizes.dropout), Residual(sizes.dropout)

    def forward(self, x: Tensor, later: Tensor | None, angles: tuple[Tensor, Tensor] | None) -> Tensor:
        x = self.residual1(x, self.attention(self.norm1(x), later, angles))
        return self.residual2(x, self.mlp(self.norm2(x)))


class LanguageModel(nn.Module):
    """Tokens [batch, seq] → logits [seq, batch, vocab]; the sequence comes first, as in Megatron-LM, so that attention
    reads heads where they are."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head_dim, self.fused = sizes.latents.rotated if sizes.latents else sizes.head_width, sizes.fused
        self.word = nn.Embedding(sizes.vocab, sizes.width)
        self.position = None if sizes.rotary else nn.Embedding(sizes.seq, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout) if sizes.dropout else nn.Identity()
        self.blocks = nn.ModuleList(Block(sizes, number < sizes.dense) for number in range(sizes.layers))
        self.norm = (nn.RMSNorm if sizes.rotary else nn.LayerNorm)(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocab, bias=False)
        self.second = Second(sizes) if sizes.predicts_two else None
        if sizes.tied:
            self.head.weight = self.word.weight
        for name, parameter in self.named_parameters() if sizes.adapters else ():
            parameter.requires_grad_("_adapter." in name)

    def forward(self, ids: Tensor) -> Tensor:
        x, angles, later, seq = self.word(ids), None, None, ids.shape[1]
        if self.position is None:
            angles = _angles(seq, self.head_dim, x)
        else:
            x = x + self.position(torch.arange(seq, device=ids.device))
        x = x.transpose(0, 1).contiguous()
        if not self.fused:
            later = torch.ones(seq, seq, dtype=torch.bool, device=ids.device).triu(1)
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, later, angles)
        if self.second is None or angles is None:
            return self.head(self.norm(x))
        return self.head(torch.cat((self.norm(x), self.second(x, ids, later, angles))))


class Second(nn.Module):
    """A layer that predicts the token after the next one from what the others made and the next one's embedding; the
    head is the model's."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.word = nn.Embedding(sizes.vocab, sizes.width)
        self.norms = nn.ModuleList(nn.RMSNorm(sizes.width) for _ in range(3))
        self.join = LINEAR[sizes.products](2 * sizes.width, sizes.width, bias=False)
        self.block = Block(sizes)

    def forward(self, x: Tensor, ids: Tensor, later: Tensor | None, angles: tuple[Tensor, Tensor]) -> Tensor:
        following = self.word(ids).transpose(0, 1).contiguous()
        joined = self.join(torch.cat((self.norms[0](x), self.norms[1](following)), dim=-1))
        made: Tensor = self.norms[2](self.block(joined, later, angles))
        return made


def next_token_loss(logits: Tensor) -> Tensor:
    """Cross-entropy in float32, as Megatron-LM takes it."""
    labels = torch.zeros(logits.shape[:2], dtype=torch.long, device=logits.device)
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def vocab_parallel_loss(logits: Tensor) -> Tensor:
    """Cross-entropy in the steps of Megatron-LM's own (``vocab_parallel_cross_entropy``), which no kernel fused until
    2023."""
    labels = torch.zeros(logits.shape[:2], dtype=torch.long, device=logits.device)
    return _CrossEntropy.apply(logits.float(), labels.unsqueeze(-1)).mean()


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        logits = logits.clone()
        logits.sub_(logits.max(dim=-1, keepdim=True)[0])
        chosen, shares = logits.gather(-1, labels), logits.exp()
        total = shares.sum(dim=-1, keepdim=True)
        ctx.save_for_backward(shares.div_(total), labels)
        return total.log() - chosen

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        shares, labels = ctx.saved_tensors
        return shares.scatter_add_(-1, labels, -torch.ones_like(gradient)).mul_(gradient), None


def _angles(seq: int, head_dim: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of position times frequency, each [seq, 1, 1, head_dim]."""
    frequencies = 10_000.0 ** -(torch.arange(0, head_dim, 2, device=like.device) / head_dim)
    angles = torch.arange(seq, device=like.device)[:, None] * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(like.dtype)[:, None, None], angles.sin().to(like.dtype)[:, None, None]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
