"""Scaled dot-product attention as torch runs it: the backends that the model allows, and the call of each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch

from memwall.core import compat
from memwall.core.graph import TensorSpec
from memwall.frontend.torch.dispatch.tensors import dtype_name
from memwall.ops.sdpa import ORDER, AttentionCall

#: torch's numbers of its backends (torch.nn.attention.SDPBackend), and whether the model allows each
_NUMBERS = ("math", "flash", "efficient", "cudnn", "overrideable")
_ENABLED = {
    "math": compat.math_sdp_enabled,
    "flash": compat.flash_sdp_enabled,
    "efficient": compat.mem_efficient_sdp_enabled,
    "cudnn": compat.cudnn_sdp_enabled,
}


def allowed_order() -> tuple[str, ...]:
    """The backends that torch would try now, in its order: what ``sdpa_kernel`` and ``enable_*_sdp`` set."""
    names = [_NUMBERS[number] for number in compat.sdp_priority_order()]
    return tuple(name for name in names if name in _ENABLED and _ENABLED[name]())


def call_of(
    query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: float | None, gqa: bool
) -> AttentionCall:
    """The call that these arguments are, with the model's choice of backends."""
    given = {"query": query, "key": key, "value": value, "attn_bias": mask}
    tensors = {name: t for name, t in given.items() if t is not None}
    elsewhere = next((t.device for t in tensors.values() if t.device != query.device), None)
    if elsewhere is not None:
        raise RuntimeError(f"Tensor on device {elsewhere} is not on the expected device {query.device}!")
    wanted = tuple(name for name, t in tensors.items() if t.requires_grad) if torch.is_grad_enabled() else ()
    order = allowed_order()
    attributes = {
        "dropout_p": dropout,
        "is_causal": causal,
        "scale": scale,
        "enable_gqa": gqa or None,
        "gradients": wanted or None,
        "order": None if order == ORDER else order,
    }
    specs = {
        name: TensorSpec(tuple(map(int, t.shape)), tuple(map(int, t.stride())), dtype_name(t.dtype))
        for name, t in tensors.items()
    }
    return AttentionCall(specs, {name: item for name, item in attributes.items() if item is not None})


def attend(call: AttentionCall, backend: str, q: Any, k: Any, v: Any, mask: Any = None) -> torch.Tensor:
    """Attention as the call of a backend's kernel."""
    aten: Any = torch.ops.aten
    dropout, causal = call.attributes["dropout_p"], call.attributes["is_causal"]
    scale, gqa = call.attributes.get("scale"), bool(call.attributes.get("enable_gqa"))
    result: torch.Tensor
    if backend == "math":
        result = aten._scaled_dot_product_attention_math(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=gqa)[0]
    elif backend == "flash":
        head = int(q.shape[-1])
        if padding := -head % 8:  # the kernel takes head dimensions in steps of 8
            scale = head**-0.5 if scale is None else scale
            q, k, v = (torch.nn.functional.pad(t, (0, padding)) for t in (q, k, v))
        result = aten._scaled_dot_product_flash_attention(q, k, v, dropout, causal, False, scale=scale)[0]
        result = result[..., :head] if padding else result
    else:
        if mask is not None:
            if mask.dtype is torch.bool:
                zero = torch.zeros((), dtype=q.dtype, device=q.device)
                mask = torch.where(mask, zero, float("-inf")).to(q.dtype)
            mask = mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        trains = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
        given = (q, k, v, mask, trains, dropout, causal)
        if backend == "cudnn":
            result = aten._scaled_dot_product_cudnn_attention(*given, False, scale=scale)[0]
        else:
            result = aten._scaled_dot_product_efficient_attention(*given, scale=scale)[0]
    return result


def laid_out(call: AttentionCall, backend: str, made: torch.Tensor, tensors: Sequence[Any]) -> torch.Tensor:
    """Attention that another kernel computed, in the layout of a backend's result: copies after it depend on that."""
    shapes: list[Any] = [None if tensor is None else tensor.detach().to("meta") for tensor in tensors]
    with torch.no_grad():
        layout = attend(call, backend, *shapes)
    if layout.stride() == made.stride():
        return made
    return torch.empty_strided(layout.shape, layout.stride(), dtype=made.dtype, device=made.device).copy_(made)


@contextlib.contextmanager
def jagged_kernels() -> Iterator[None]:
    """While open, torch's choice for jagged tensors is that on a GPU (Ampere and after): on ``meta`` it finds no kernel
    that could run, and asks for a counter of FLOPs in a module that nothing has imported."""
    sdpa: Any = compat.nested_sdpa
    chosen_by, on_meta = compat.name_of("select_sdp_backend"), compat.name_of("is_computing_meta_flops")
    choose = getattr(sdpa, chosen_by)

    def on_gpu(query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, gqa: bool) -> Any:
        params = sdpa.SDPAParams(query, key, value, mask, dropout, causal, gqa)
        allowed = allowed_order() if mask is None and query.dtype is not torch.float64 else ()
        is_half = query.dtype in (torch.float16, torch.bfloat16)
        if "flash" in allowed and is_half and compat.can_use_flash_sdpa_jagged(params):
            return sdpa.SDPBackend.FLASH_ATTENTION
        if "efficient" in allowed and compat.can_use_efficient_sdpa_jagged(params):
            return sdpa.SDPBackend.EFFICIENT_ATTENTION
        return choose(query, key, value, mask, dropout, causal, gqa)

    with patch.object(sdpa, chosen_by, on_gpu), patch.object(sdpa, on_meta, lambda tensor: False):
        yield
