"""Experts of mixtures and what moves rows around them, as Megatron-LM and TransformerEngine run them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memwall.core import compat
from memwall_lab.narrow_layers import times8
from memwall_lab.sizes import Sizes


class Experts(nn.Module):
    """Gated MLPs: rows sorted by expert, where each expert's end, and the weight of each row → rows. As in Megatron-LM
    what is between the products has its weight already."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(sizes.experts, 2 * sizes.inner, sizes.width))
        self.down = nn.Parameter(torch.empty(sizes.experts, sizes.width, sizes.inner))
        in_8 = sizes.products == "fp8"
        looped = _Looped8.apply if in_8 else _Looped.apply
        self.product = looped if sizes.loops else _Grouped8.apply if in_8 else _grouped
        self.clamp, self.add = Clamp() if sizes.clamps else None, Biases() if sizes.clamps else None
        self.bias = nn.Parameter(torch.empty(sizes.experts, sizes.width)) if sizes.clamps else None

    def forward(self, x: Tensor, ends: Tensor, weights: Tensor) -> Tensor:
        made: Tensor = self.product(x, self.up, ends)
        gate, up = (made if self.clamp is None else self.clamp(made)).chunk(2, dim=-1)
        made = self.product(F.silu(gate) * up * weights.to(x.dtype), self.down, ends)
        return made if self.add is None else self.add(made, weights, self.bias)


class Alone(nn.Module):
    """An op that no kernel fuses with others."""

    def forward(self, op: Any, *args: Any) -> Any:
        return op(*args)


class Clamp(nn.Module):
    """Both halves of rows clamped, as Megatron-LM does it for GPT-OSS (``weighted_bias_quick_geglu_impl``)."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.join = Alone(), Alone(), Alone()

    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        halves = self.gate(torch.clamp, gate, None, 7.0), self.up(torch.clamp, up, -7.0, 7.0)
        joined: Tensor = self.join(torch.cat, halves, -1)
        return joined


class Biases(nn.Module):
    """Each expert's bias times the weight of each row in float32, added (Megatron-LM's ``_apply_bias``)."""

    def __init__(self) -> None:
        super().__init__()
        self.times, self.plus, self.join, self.cast = Alone(), Alone(), Alone(), Alone()

    def forward(self, x: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
        parts = _parts(x, biases)
        scaled = [self.times(torch.mul, bias, weights[part]) for part, bias in zip(parts, biases, strict=True)]
        sums = [self.plus(torch.add, x[part], more) for part, more in zip(parts, scaled, strict=True)]
        made: Tensor = self.cast(self.join(torch.cat, sums).to, x.dtype)
        return made


class _Looped(torch.autograd.Function):
    """The products of each expert by themselves, as in TransformerEngine's GroupedLinear (``tex.split_quantize`` and
    ``general_grouped_gemm`` go over the experts)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        made = x.new_empty(len(x), weight.shape[1])
        for part, own in zip(_parts(x, weight), weight, strict=True):
            torch.mm(x[part], own.t(), out=made[part])
        ctx.save_for_backward(x, weight)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        back, made = torch.empty_like(x), torch.empty_like(weight)
        for number, part in enumerate(_parts(x, weight)):
            torch.mm(gradient[part], weight[number], out=back[part])
            torch.mm(gradient[part].t(), x[part], out=made[number])
        return back, made, None


class _Looped8(torch.autograd.Function):
    """As :class:`_Looped`, and as :class:`_Product8`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        x8, transposed = _cast_parts(x, torch.float8_e4m3fn, weight)
        cast, made = torch.empty_like(weight, dtype=torch.float8_e4m3fn), x.new_empty(len(x), weight.shape[1])
        for part, own in zip(_parts(x, weight), cast, strict=True):
            times8(x8[part], own, out=made[part])
        ctx.save_for_backward(transposed, cast)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        transposed, cast = ctx.saved_tensors
        g8, turned = _cast_parts(gradient, torch.float8_e5m2, cast)
        weights = torch.empty_like(cast.transpose(1, 2), memory_format=torch.contiguous_format)
        back, made = gradient.new_empty(len(gradient), cast.shape[2]), torch.empty_like(cast, dtype=gradient.dtype)
        for number, part in enumerate(_parts(gradient, cast)):
            times8(g8[part], weights[number], out=back[part])
            times8(turned[:, part], transposed[:, part], out=made[number])
        return back, made, None


def _parts(x: Tensor, weight: Tensor) -> list[slice]:
    """The rows of each expert, equally many, as many as products in 8 bits take (a multiple of 16)."""
    each = max(len(x) // len(weight) // 16, 1) * 16
    return [slice(first, first + each) for first in range(0, each * len(weight), each)]


def _cast_parts(x: Tensor, kind: torch.dtype, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of each expert in 8 bits, and these transposed."""
    cast, turned = torch.empty_like(x, dtype=kind), x.new_empty(x.shape[1], len(x), dtype=kind)
    for part in _parts(x, weight):
        cast[part].copy_(x[part])
        turned[:, part].copy_(x[part].t())
    return cast, turned


def _grouped(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return compat.grouped_mm(x, weight.transpose(1, 2), offs=ends)


class _Grouped8(torch.autograd.Function):
    """As :class:`_Product8`, by groups of rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        x8, cast = x.to(torch.float8_e4m3fn), torch.empty_like(weight, dtype=torch.float8_e4m3fn)
        ctx.save_for_backward(x8.t().contiguous(), cast, ends)
        return _times_grouped8(x8, cast.transpose(1, 2), ends)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        transposed, cast, ends = ctx.saved_tensors
        g8 = gradient.to(torch.float8_e4m3fn)
        back = torch.empty_like(cast.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)
        made = _times_grouped8(g8.t().contiguous(), transposed.t(), ends)
        return _times_grouped8(g8, back, ends), made, None


def _times_grouped8(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    rows, columns = (torch.empty(size, device=a.device) for size in (a.shape[0], b.shape[-1]))
    if b.dim() == 3:
        columns = torch.empty(b.shape[0], b.shape[-1], device=a.device)
    else:
        rows, columns = (each.repeat(len(ends)) for each in (rows, columns))
    return compat.scaled_grouped_mm(a, b, rows, columns, offs=ends, out_dtype=torch.bfloat16)


class Permuted(torch.autograd.Function):
    """A row for each expert of each token, in the order of the experts: one kernel of TransformerEngine's
    (``moe_permute_fusion``), whose gradient is as of :class:`Summed`."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, order: Tensor, top_k: int) -> Tensor:
        ctx.save_for_backward(order)
        ctx.top_k = top_k
        return tokens[order // top_k]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (order,) = ctx.saved_tensors
        return _sum_rows(gradient, order, ctx.top_k), None, None


class Summed(torch.autograd.Function):
    """The rows of each token, summed."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, top_k: int) -> Tensor:
        ctx.save_for_backward(order)
        ctx.top_k = top_k
        return _sum_rows(rows, order, top_k)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (order,) = ctx.saved_tensors
        return gradient[order // ctx.top_k], None, None


def _sum_rows(rows: Tensor, order: Tensor, top_k: int) -> Tensor:
    """Rows are read where the map of rows says (here the order itself, as many numbers)."""
    return rows[order].unflatten(0, (-1, top_k)).sum(1)
