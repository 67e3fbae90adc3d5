"""CUDA's forms of calls on the CPU's tensors, with the values that the CPU computes: only the record differs.

Attention, RMS norm and recurrent layers are other kernels on CUDA than on the CPU. :class:`RealForms` records the CUDA
kernel's name, arguments and results, and lets torch's own CPU kernel compute them, unrecorded, forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from memwall.frontend.torch.cuda_forms import RECURRENT, CudaForms, OpaqueCall
from memwall.frontend.torch.recorder import Recorder

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


class RealForms(CudaForms):
    """Context manager: like :class:`CudaForms` on the CPU, with true values."""

    def __enter__(self) -> RealForms:
        names = ("scaled_dot_product_attention", "rms_norm", *RECURRENT.values())  # before they are overridden
        self._kernels: dict[str, Any] = {name: torch.library.get_kernel(f"aten::{name}", "CPU") for name in names}
        super().__enter__()
        return self

    def _opaque(
        self, compute: Callable[..., Any], op: str, call: OpaqueCall, inputs: Sequence[Any]
    ) -> tuple[torch.Tensor, ...]:
        kernel = partial(compute, partial(self._kernels[op].call_boxed, _CPU))
        # vmap and grad refuse such a Function as Real; torch's kernel calls what they know
        if torch._C._are_functorch_transforms_active():
            return _several(kernel(*inputs))
        results: tuple[torch.Tensor, ...] = Real.apply(self.recorder, kernel, call, torch.is_grad_enabled(), *inputs)
        return results


def _several(computed: Any) -> tuple[torch.Tensor, ...]:
    return (computed,) if isinstance(computed, torch.Tensor) else tuple(computed)


class Real(torch.autograd.Function):
    """An op recorded under another name than that of the kernel that computes it, and its backward likewise.

    Its results are those of ``compute(*inputs)``, followed by what only CUDA's kernel writes.
    """

    @staticmethod
    def forward(
        ctx: Any, recorder: Recorder, compute: Callable[..., Any], call: OpaqueCall, tracked: bool, *inputs: Any
    ) -> tuple[torch.Tensor, ...]:
        with recorder.unrecorded(), torch.set_grad_enabled(tracked):
            ctx.leaves = [
                None if tensor is None else tensor.detach().requires_grad_(wanted)
                for tensor, wanted in zip(inputs, ctx.needs_input_grad[4:], strict=True)
            ]
            ctx.computed = _several(compute(*ctx.leaves))
            known = [tensor.detach() for tensor in ctx.computed]
            device = known[0].device
            further = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in call.outputs[len(known) :]]
        results = (*known, *further)
        call.record(ctx, recorder, inputs, results)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        wanted = [i for i, wants in enumerate(ctx.needs_input_grad[4:]) if wants]
        pairs = [(t, g) for t, g in zip(ctx.computed, gradients, strict=False) if g is not None and t.requires_grad]
        results: list[Any] = [None] * len(ctx.leaves)
        if pairs:
            with ctx.recorder.unrecorded():
                found = torch.autograd.grad(
                    [t for t, _ in pairs], [ctx.leaves[i] for i in wanted], [g for _, g in pairs],
                    retain_graph=True, allow_unused=True,
                )  # fmt: skip
            for i, gradient in zip(wanted, found, strict=True):
                results[i] = gradient
        ctx.call.record_backward(ctx, gradients, results)
        return (None, None, None, None, *results)
