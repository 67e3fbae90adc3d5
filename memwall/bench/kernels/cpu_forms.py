"""CUDA's operators on the CPU: a graph names the kernels of a GPU, and some of them have no other.

While a :class:`CpuForms` lives, such an operator called on CPU tensors runs the CPU's own kernel for the same thing.
"""

from __future__ import annotations

from typing import Any

import torch

_ATEN = torch.ops.aten


def _without(p: float) -> None:
    if p:
        raise NotImplementedError("attention with dropout")


def _flash(
    q: Any, k: Any, v: Any, p: float = 0.0, causal: bool = False, mask: bool = False, *, scale: Any = None
) -> Any:
    _without(p)
    output, logsumexp = _ATEN._scaled_dot_product_flash_attention_for_cpu(q, k, v, p, causal, scale=scale)
    nothing = q.new_empty(0)
    seed = torch.zeros(2, dtype=torch.int64)
    return output, logsumexp, nothing, nothing, q.size(2), k.size(2), seed, nothing, nothing


def _flash_backward(
    grad: Any, q: Any, k: Any, v: Any, output: Any, logsumexp: Any, cum_q: Any, cum_k: Any, max_q: int, max_k: int,
    p: float, causal: bool, seed: Any, offset: Any, *, scale: Any = None,
) -> Any:  # fmt: skip
    _without(p)
    return _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, output, logsumexp, p, causal, scale=scale
    )


def _efficient(
    q: Any, k: Any, v: Any, bias: Any, logsumexp_too: bool, p: float = 0.0, causal: bool = False, *, scale: Any = None
) -> Any:  # fmt: skip
    _without(p)
    output, logsumexp = _ATEN._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, p, causal, attn_mask=bias, scale=scale
    )
    seed = torch.zeros((), dtype=torch.int64)
    return output, logsumexp, seed, seed.clone()


def _efficient_backward(
    grad: Any, q: Any, k: Any, v: Any, bias: Any, output: Any, logsumexp: Any, seed: Any, offset: Any, p: float,
    wanted: Any, causal: bool = False, *, scale: Any = None,
) -> Any:  # fmt: skip
    _without(p)
    gradients = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, output, logsumexp, p, causal, attn_mask=bias, scale=scale
    )
    return *gradients, None


def _rms_norm_backward(grad: Any, x: Any, shape: Any, rstd: Any, weight: Any, wanted: Any) -> Any:
    """Gradients of y = x · rstd · w."""
    rows = tuple(range(x.dim() - len(shape)))
    columns = tuple(range(-len(shape), 0))
    normal = x * rstd
    weighted = grad if weight is None else grad * weight
    of_x = rstd * (weighted - normal * (weighted * normal).mean(columns, keepdim=True))
    of_weight = None if weight is None else (grad * normal).sum(rows).to(weight.dtype)
    return of_x.to(x.dtype), of_weight


#: operator → what stands for it on the CPU
FORMS = {
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention": _efficient,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_fused_rms_norm_backward": _rms_norm_backward,
}


class CpuForms:
    """Registers the CPU's forms for this process."""

    def __init__(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        for name, form in FORMS.items():
            if hasattr(_ATEN, name):  # each version of torch has its own
                self._library.impl(name, form, "CPU")
