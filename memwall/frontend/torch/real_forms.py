"""CUDA's forms of calls on the CPU's tensors, with the values that the CPU computes: only what is written down differs.

Attention, RMS norm and recurrent layers are other kernels on CUDA than on the CPU. :class:`RealForms` records the CUDA
kernel's name, arguments and results, and lets torch's own CPU kernel compute them, unrecorded, forward and backward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from memwall.frontend.torch.cuda_forms import CudaForms, OpaqueCall
from memwall.frontend.torch.recorder import Recorder

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


class RealForms(CudaForms):
    """Context manager: like :class:`CudaForms` on the CPU, with true values."""

    def __enter__(self) -> RealForms:
        # before they are overridden
        names = (
            "scaled_dot_product_attention",
            "rms_norm",
            "lstm.input",
            "gru.input",
            "rnn_tanh.input",
            "rnn_relu.input",
        )
        self._kernels: dict[str, Any] = {name: torch.library.get_kernel(f"aten::{name}", "CPU") for name in names}
        super().__enter__()
        return self

    def _opaque(self, call: Callable[..., Any], op: str, *description: Any, **options: Any) -> tuple[torch.Tensor, ...]:
        compute = partial(call, partial(self._kernels[op].call_boxed, _CPU))
        # vmap and grad refuse such a Function as Real; torch's kernel calls what they know
        if torch._C._are_functorch_transforms_active():
            computed = compute(*description[3])
            return (computed,) if isinstance(computed, torch.Tensor) else tuple(computed)
        return Real.run(self.recorder, compute, *description, **options)


@contextlib.contextmanager
def unrecorded(recorder: Recorder) -> Iterator[None]:
    """What runs inside is not written down."""
    before, recorder.paused = recorder.paused, True
    try:
        yield
    finally:
        recorder.paused = before


class Real(torch.autograd.Function):
    """An op recorded under another name than that of the kernel that computes it, and its backward likewise."""

    @staticmethod
    def run(
        recorder: Recorder, compute: Callable[..., Any], name: str, attributes: tuple, names: Sequence[str],
        inputs: Sequence[Any], outputs: Sequence[tuple], saved: tuple[int, ...],
        saved_outputs: tuple[tuple[int, str], ...], gradient: str = "grad_output",
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        """Record the call; returns what ``compute(*inputs)`` returns, and behind it what only CUDA's kernel writes.

        The other arguments are those of :meth:`memwall.frontend.torch.cuda_forms.Opaque.run`.
        """
        call = OpaqueCall(name, attributes, tuple(names), saved, saved_outputs, gradient)
        tracked = torch.is_grad_enabled()
        result: tuple[torch.Tensor, ...] = Real.apply(recorder, compute, call, tuple(outputs), tracked, *inputs)
        return result

    @staticmethod
    def forward(
        ctx: Any, recorder: Recorder, compute: Callable[..., Any], call: OpaqueCall, outputs: tuple, tracked: bool,
        *inputs: Any,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        with unrecorded(recorder), torch.set_grad_enabled(tracked):
            ctx.leaves = [
                None if tensor is None else tensor.detach().requires_grad_(wanted)
                for tensor, wanted in zip(inputs, ctx.needs_input_grad[5:], strict=True)
            ]
            computed = compute(*ctx.leaves)
            ctx.computed = (computed,) if isinstance(computed, torch.Tensor) else tuple(computed)
            known = tuple([tensor.detach() for tensor in ctx.computed])
            device = known[0].device
            results = known + tuple(
                [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in outputs[len(known) :]]
            )
        given = [(n, t) for n, t in zip(call.names, inputs, strict=True) if t is not None]
        if not recorder.paused:
            recorder.emit(call.name, [n for n, _ in given], [t for _, t in given], results, call.attributes)
        kept = [(call.names[i], inputs[i]) for i in call.saved if inputs[i] is not None]
        kept += [(name, results[i]) for i, name in call.saved_outputs]
        ctx.recorder, ctx.call, ctx.kept_names = recorder, call, [name for name, _ in kept]
        ctx.save_for_backward(*[tensor for _, tensor in kept])
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        wanted = [i for i, wants in enumerate(ctx.needs_input_grad[5:]) if wants]
        pairs = [(t, g) for t, g in zip(ctx.computed, gradients, strict=False) if g is not None and t.requires_grad]
        results: list[Any] = [None] * len(ctx.leaves)
        if pairs:
            with unrecorded(ctx.recorder):
                found = torch.autograd.grad(
                    [t for t, _ in pairs], [ctx.leaves[i] for i in wanted], [g for _, g in pairs],
                    retain_graph=True, allow_unused=True,
                )  # fmt: skip
            for i, gradient in zip(wanted, found, strict=True):
                results[i] = gradient
        given = [g for g in gradients if g is not None]
        if not ctx.recorder.paused:
            ctx.recorder.emit(
                f"{ctx.call.name}_backward", [ctx.call.gradient] * len(given) + ctx.kept_names,
                [*given, *ctx.saved_tensors], [r for r in results if r is not None], ctx.call.attributes,
            )  # fmt: skip
        return (None, None, None, None, None, *results)
