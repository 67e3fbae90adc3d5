"""CUDA's operators on the CPU: a graph names the kernels of a GPU, and some of them have no other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ATEN = torch.ops.aten


class CpuForms:
    """While one lives, a CUDA operator called on CPU tensors runs the CPU's own kernel for the same thing."""

    def __init__(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        for name, form in _FORMS.items():
            if hasattr(_ATEN, name):  # each version of torch has its own
                self._library.impl(name, form, "CPU")


def _attention(q: Any, k: Any, v: Any, p: float, causal: bool, bias: Any, scale: Any) -> Any:
    if p:
        raise NotImplementedError("attention with dropout")
    return _ATEN._scaled_dot_product_flash_attention_for_cpu(q, k, v, p, causal, attn_mask=bias, scale=scale)


def _attention_backward(
    grad: Any, q: Any, k: Any, v: Any, output: Any, logsumexp: Any, p: float, causal: bool, bias: Any, scale: Any
) -> Any:
    if p:
        raise NotImplementedError("attention with dropout")
    return _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, output, logsumexp, p, causal, attn_mask=bias, scale=scale
    )


def _flash(
    q: Any, k: Any, v: Any, p: float = 0.0, causal: bool = False, mask: bool = False, *, scale: Any = None
) -> Any:
    output, logsumexp = _attention(q, k, v, p, causal, None, scale)
    nothing = q.new_empty(0)
    seed = torch.zeros(2, dtype=torch.int64)
    return output, logsumexp, nothing, nothing, q.size(2), k.size(2), seed, nothing, nothing


def _flash_backward(
    grad: Any, q: Any, k: Any, v: Any, output: Any, logsumexp: Any, cum_q: Any, cum_k: Any, max_q: int, max_k: int,
    p: float, causal: bool, seed: Any, offset: Any, *, scale: Any = None,
) -> Any:  # fmt: skip
    return _attention_backward(grad, q, k, v, output, logsumexp, p, causal, None, scale)


def _efficient(
    q: Any, k: Any, v: Any, bias: Any, logsumexp_too: bool, p: float = 0.0, causal: bool = False, *, scale: Any = None
) -> Any:  # fmt: skip
    seed = torch.zeros((), dtype=torch.int64)
    return *_attention(q, k, v, p, causal, bias, scale), seed, seed.clone()


def _efficient_backward(
    grad: Any, q: Any, k: Any, v: Any, bias: Any, output: Any, logsumexp: Any, seed: Any, offset: Any, p: float,
    wanted: Any, causal: bool = False, *, scale: Any = None,
) -> Any:  # fmt: skip
    return *_attention_backward(grad, q, k, v, output, logsumexp, p, causal, bias, scale), None


def _rms_norm_backward(grad: Any, x: Any, shape: Any, rstd: Any, weight: Any, wanted: Any) -> Any:
    of_x, of_weight = rms_norm_gradients(grad, x, len(shape), rstd, weight)
    return of_x.to(x.dtype), None if of_weight is None else of_weight.to(weight.dtype)


def rms_norm_gradients(
    gradient: Tensor, x: Tensor, columns: int, rstd: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Gradients of y = x · rstd · w, in float32 at least: CPUs have no kernel for it. ``columns``: axes of a row."""
    wide = torch.promote_types(rstd.dtype, torch.float32)
    gradient, x = gradient.to(wide), x.to(wide)
    normalized = x * rstd
    weighted = gradient if weight is None else gradient * weight
    inner = (weighted * normalized).mean(tuple(range(-columns, 0)), keepdim=True)
    rows = tuple(range(gradient.dim() - columns))
    product = gradient * normalized
    of_weight = None if weight is None else (product.sum(rows) if rows else product)
    return rstd * (weighted - normalized * inner), of_weight


#: operator → what represents it on the CPU
_FORMS = {
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention": _efficient,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_fused_rms_norm_backward": _rms_norm_backward,
}
