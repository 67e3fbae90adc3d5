"""Ops that torch has no call for here: as formulas for the numerics check, and CUDA's operators on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from memwall.core.errors import Unsupported
from memwall.core.graph import Op
from memwall.ops.evaluate import Call

# -- formulas ----------------------------------------------------------------------------------------------------------


class Run(Protocol):
    """A run of a group's ops (:class:`.evaluate.GroupRun`)."""

    wide: bool
    #: masks of dropouts that are not drawn but taken as given, by value id
    kept: dict[int, Tensor]

    def tensor(self, value_id: int) -> Tensor:
        """The tensor of a value."""
        ...

    def call(self, call: Call) -> list[Tensor]:
        """What torch's operator gives."""
        ...


def _arguments(run: Run, op: Op) -> dict[str, Tensor]:
    return {name: run.tensor(i) for name, i in zip(op.arguments, op.inputs, strict=True)}


def _dropout(run: Run, call: Call) -> list[Tensor]:
    """By the mask that was kept; drawn anew where there is none."""
    mask = run.kept.get(call.op.outputs[1]) if len(call.op.outputs) > 1 else None
    if mask is None:
        if run.wide:
            raise Unsupported("the mask of a dropout is not known")
        return run.call(call)
    kept = 1.0 - call.op.attributes["p"]
    scale = 1.0 / kept if kept else 0.0
    return [run.tensor(call.op.inputs[0]) * mask * scale, mask]


def _rms_norm(run: Run, call: Call) -> list[Tensor]:
    """y = x · rstd · w; without an epsilon it is that of float32, whatever the dtype that it is computed in here."""
    given = _arguments(run, call.op)
    dims = tuple(range(-len(call.op.attributes["normalized_shape"]), 0))
    eps = call.op.attributes.get("eps")
    x = given["input"].to(torch.promote_types(given["input"].dtype, torch.float32))
    rstd = (x.pow(2).mean(dims, keepdim=True) + (2.0**-23 if eps is None else eps)).rsqrt()
    return [x * rstd * given.get("weight", 1.0), rstd]


def _rms_norm_backward(run: Run, call: Call) -> list[Tensor]:
    given = _arguments(run, call.op)
    columns = len(call.op.attributes["normalized_shape"])
    of_x, of_weight = rms_norm_gradients(given["grad_out"], given["input"], columns, given["rstd"], given.get("weight"))
    return [of_x] if of_weight is None else [of_x, of_weight]


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


def _sparse_add(run: Run, call: Call) -> list[Tensor]:
    """Rows added to a table in place: other is given as its indices and its rows."""
    table, indices, rows = map(run.tensor, call.op.inputs)
    table.index_add_(0, indices.reshape(-1), rows.to(table.dtype), alpha=call.op.attributes.get("alpha", 1))
    return []


def _embedding_bag(run: Run, call: Call) -> list[Tensor]:
    """Sums of rows, and the bookkeeping as GPUs write it: each index's bag, the size of each bag, nothing."""
    given = _arguments(run, call.op)
    if call.op.attributes.get("mode") or "per_sample_weights" in given:
        return run.call(call)
    table, indices, starts = given["weight"], given["indices"], given["offsets"]
    places = torch.arange(indices.numel(), device=indices.device)
    bags = torch.searchsorted(starts, places, right=True) - 1
    sums = table.new_zeros(starts.numel(), table.shape[1]).index_add_(0, bags, table[indices])
    sizes = torch.bincount(bags, minlength=starts.numel())
    return [sums, bags.to(indices.dtype), sizes.to(indices.dtype), indices.new_empty(0)]


FORMULAS: Mapping[str, Callable[[Run, Call], list[Tensor]]] = {
    "aten.native_dropout": _dropout,
    "aten._embedding_bag": _embedding_bag,
    "aten._fused_rms_norm": _rms_norm,
    "aten._fused_rms_norm_backward": _rms_norm_backward,
    "sparse.add_.Tensor": _sparse_add,
}


# -- CUDA's operators on the CPU: a graph names the kernels of a GPU, and some of them have no other -------------------

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


def _rms_norm_backward_form(
    grad: Any, x: Any, shape: Any, rstd: Any, weight: Any, wanted: Any
) -> Any:  # fmt: skip
    of_x, of_weight = rms_norm_gradients(grad, x, len(shape), rstd, weight)
    return of_x.to(x.dtype), None if of_weight is None else of_weight.to(weight.dtype)


#: operator → what stands for it on the CPU
FORMS = {
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention": _efficient,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_fused_rms_norm_backward": _rms_norm_backward_form,
}


class CpuForms:
    """While one lives, a CUDA operator called on CPU tensors runs the CPU's own kernel for the same thing."""

    def __init__(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        for name, form in FORMS.items():
            if hasattr(_ATEN, name):  # each version of torch has its own
                self._library.impl(name, form, "CPU")
