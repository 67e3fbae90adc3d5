"""What a CUDA device would run where the CPU or ``meta`` would run something else.

PyTorch picks some kernels by device: attention backends, dropout, RMS norm, cuDNN's recurrent layers. These overrides are
registered at the dispatcher, so they also catch C++ callers such as ``nn.MultiheadAttention``. They hold for the whole
process while :class:`CudaForms` is open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from memwall.trace.recorder import Recorder

ATTENTION_BACKENDS = ("flash", "efficient", "math")

_KEYS = {"meta": ("AutogradMeta", "Meta"), "cpu": ("AutogradCPU", "CPU")}


class CudaForms:
    """Context manager: while open, calls on ``recorder.device`` take their CUDA form.

    Args:
        recorder: opaque ops (those that torch has no shape function for) are recorded here.
        attention: the fused SDPA backend that the GPU prefers: ``flash``, ``efficient`` or ``math``.
    """

    def __init__(self, recorder: Recorder, attention: str) -> None:
        self.recorder = recorder
        self.attention = attention
        self._library: torch.library.Library | None = None
        self._fastpath = True

    def __enter__(self) -> CudaForms:
        library = torch.library.Library("aten", "IMPL")
        table: dict[str, Callable[..., Any]] = {
            "scaled_dot_product_attention": self._attention,
            "dropout": _dropout,
            "rms_norm": self._rms_norm,
            "lstm.input": self._recurrent(2),
            "gru.input": self._recurrent(3),
            "rnn_tanh.input": self._recurrent(1),
            "rnn_relu.input": self._recurrent(0),
        }
        if self.recorder.device == "cpu":
            del table["rms_norm"]  # with real data the decomposed form computes the same
            for name in ("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input"):
                del table[name]
        for name, kernel in table.items():
            for key in _KEYS[self.recorder.device]:
                # Library.impl refuses Meta kernels for composite ops; here that is the point.
                library.m.impl(name, key, kernel, False)
        self._library = library
        # The inference fast path of nn.TransformerEncoderLayer hides its ops from the trace.
        self._fastpath = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        return self

    def __exit__(self, *exc: object) -> None:
        torch.backends.mha.set_fastpath_enabled(self._fastpath)
        if self._library is not None:
            self._library._destroy()
            self._library = None

    # -- attention -------------------------------------------------------------------------------------------------

    def _attention(
        self, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        backend = choose_attention(
            self.attention, query, key, value, masked=attn_mask is not None, gqa=enable_gqa
        )
        if self.recorder.device == "cpu" and backend == "flash":
            backend = "math" if attn_mask is not None else "cpu"
        return _ATTENTION[backend](query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)

    # -- opaque ops ------------------------------------------------------------------------------------------------

    def _rms_norm(self, x: torch.Tensor, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> torch.Tensor:
        if weight is not None and weight.dtype != x.dtype:
            return _rms_norm_composite(x, shape, weight, eps)
        attributes = (("normalized_shape", tuple(map(int, shape))),)
        rows = [*x.shape[: x.dim() - len(shape)], *([1] * len(shape))]
        outputs = (_like(x), (rows, torch.float32))
        names = ("input", "weight")
        return Opaque.run(
            self.recorder, "aten._fused_rms_norm", attributes, names, (x, weight), outputs, saved=(0, 1), saved_outputs=(1,)
        )[0]

    def _recurrent(self, mode: int) -> Callable[..., Any]:
        def run(
            x: torch.Tensor, hx: Any, params: Sequence[torch.Tensor], has_biases: bool, num_layers: int,
            dropout: float, train: bool, bidirectional: bool, batch_first: bool,
        ) -> Any:  # fmt: skip
            states = list(hx) if isinstance(hx, (list, tuple)) else [hx]
            hidden = int(params[0].shape[0]) // _GATES[mode]
            directions = 2 if bidirectional else 1
            attributes = (
                ("mode", mode), ("hidden_size", hidden), ("num_layers", num_layers), ("batch_first", batch_first),
                ("bidirectional", bidirectional), ("has_biases", has_biases), ("dropout", dropout if train else 0.0),
            )  # fmt: skip
            output = ([*x.shape[:-1], int(states[0].shape[-1]) * directions], x.dtype)
            names = ("input", *(("hx", "cx")[: len(states)]), *(["weight"] * len(params)))
            inputs = (x, *states, *params)
            reserve = ([_reserve_elements(x, hidden, num_layers, directions, _GATES[mode])], x.dtype)
            keep_reserve = train and any(t.requires_grad for t in inputs) and torch.is_grad_enabled()
            outputs = (output, *(_like(s) for s in states), *((reserve,) if keep_reserve else ()))
            result = Opaque.run(
                self.recorder, "aten._cudnn_rnn", attributes, names, inputs, outputs,
                saved=tuple(range(len(inputs))), saved_outputs=(0, len(states) + 1) if keep_reserve else (0,),
            )  # fmt: skip
            return tuple(result[: 1 + len(states)])

        return run


_GATES = {0: 1, 1: 1, 2: 4, 3: 3}


def _reserve_elements(x: torch.Tensor, hidden: int, layers: int, directions: int, gates: int) -> int:
    """Elements of cuDNN's reserve space: the gates and states of every step, which backward reads again."""
    steps_times_batch = x.numel() // int(x.shape[-1]) if x.numel() else 0
    return steps_times_batch * hidden * directions * layers * (gates + 1)


def _like(tensor: torch.Tensor) -> tuple[list[int], torch.dtype]:
    return list(tensor.shape), tensor.dtype


class Opaque(torch.autograd.Function):
    """An op recorded by name without being dispatched, and its backward ``NAME_backward`` likewise."""

    @staticmethod
    def run(
        recorder: Recorder, name: str, attributes: tuple, names: Sequence[str], inputs: Sequence[Any],
        outputs: Sequence[tuple], saved: tuple[int, ...], saved_outputs: tuple[int, ...],
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        """Record the call; returns tensors of the given (shape, dtype) ``outputs``.

        ``saved`` and ``saved_outputs`` number what backward reads besides the gradient of the first output.
        """
        result: tuple[torch.Tensor, ...] = Opaque.apply(
            recorder, name, attributes, tuple(names), tuple(outputs), saved, saved_outputs, *inputs
        )
        return result

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, name: str, attributes: tuple, names: tuple, outputs: tuple,
                saved: tuple, saved_outputs: tuple, *inputs: Any) -> tuple[torch.Tensor, ...]:  # fmt: skip
        given = [(n, t) for n, t in zip(names, inputs, strict=True) if t is not None]
        device = given[0][1].device
        results = tuple(torch.empty(shape, dtype=dtype, device=device) for shape, dtype in outputs)
        if not recorder.paused:
            recorder.emit(name, [n for n, _ in given], [t for _, t in given], results, attributes)
        ctx.recorder, ctx.call = recorder, (name, attributes, names, saved)
        kept = [inputs[i] for i in saved if inputs[i] is not None] + [results[i] for i in saved_outputs]
        ctx.kept_names = [names[i] for i in saved if inputs[i] is not None] + ["saved"] * len(saved_outputs)
        ctx.save_for_backward(*kept)
        ctx.shapes = [(t.shape, t.dtype) if isinstance(t, torch.Tensor) else None for t in inputs]
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        name, attributes, _, _ = ctx.call
        kept = ctx.saved_tensors
        needed = ctx.needs_input_grad[7:]
        results = [
            torch.empty(shape[0], dtype=shape[1], device=kept[0].device) if shape and wanted else None
            for shape, wanted in zip(ctx.shapes, needed, strict=True)
        ]
        given = [g for g in grads if g is not None]
        if not ctx.recorder.paused:
            ctx.recorder.emit(
                f"{name}_backward", ["grad_output"] * len(given) + ctx.kept_names, [*given, *kept],
                [r for r in results if r is not None], attributes,
            )  # fmt: skip
        return (None,) * 7 + tuple(results)


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    return torch.ops.aten.native_dropout(x, p, train)[0] if train and p > 0 else x


def _rms_norm_composite(x: torch.Tensor, shape: Sequence[int], weight: Any, eps: float | None) -> torch.Tensor:
    """RMS norm as torch decomposes it when the weight has another dtype than the input."""
    axes = list(range(x.dim() - len(shape), x.dim()))
    upcast = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    epsilon = torch.finfo(upcast.dtype).eps if eps is None else eps
    result = upcast * upcast.pow(2).mean(axes, keepdim=True).add_(epsilon).rsqrt()
    return (result * weight).type_as(x)


# -- attention backends ------------------------------------------------------------------------------------------------


def choose_attention(preferred: str, query: Any, key: Any, value: Any, *, masked: bool, gqa: bool) -> str:
    """The SDPA backend that a CUDA build would take, as in ATen/native/transformers/cuda/sdp_utils.cpp.

    Flash takes no mask and only half precision up to head dimension 256; memory-efficient attention takes a mask, not
    grouped queries, and bf16 only where flash exists (sm_80 on); math takes anything.
    """
    if preferred == "math" or query.dim() != 4 or query.dtype is torch.float64:
        return "math"
    half = query.dtype in (torch.float16, torch.bfloat16)
    head = max(int(query.shape[-1]), int(value.shape[-1]))
    if preferred == "flash" and half and not masked and head <= 256 and query.shape[-1] == value.shape[-1]:
        return "flash"
    if gqa and query.shape[-3] != key.shape[-3]:
        return "math"
    if preferred == "efficient" and query.dtype is torch.bfloat16:
        return "math"
    return "efficient"




def _flash(q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: float | None, gqa: bool) -> torch.Tensor:
    head = int(q.shape[-1])
    if head % 8:  # the kernel takes head dimensions in steps of 8
        scale = head**-0.5 if scale is None else scale
        q, k, v = (torch.nn.functional.pad(t, (0, 8 - head % 8)) for t in (q, k, v))
        padded: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout, causal, False, scale=scale)[0]
        return padded[..., :head]
    result: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout, causal, False, scale=scale)[0]
    return result


def _efficient(q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: float | None, gqa: bool) -> torch.Tensor:
    if mask is not None:
        if mask.dtype is torch.bool:
            zero = torch.zeros((), dtype=q.dtype, device=q.device)
            mask = torch.where(mask, zero, float("-inf")).to(q.dtype)
        mask = mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    needs_logsumexp = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    result: torch.Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(
        q, k, v, mask, needs_logsumexp, dropout, causal, scale=scale
    )[0]
    return result


def _math(q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: float | None, gqa: bool) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(
        q, k, v, mask, dropout, causal, scale=scale, enable_gqa=gqa
    )[0]
    return result


def _cpu(q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: float | None, gqa: bool) -> torch.Tensor:
    """Real data on the CPU: its own flash kernel, which the cost table treats as the CUDA one."""
    if gqa:
        repeats = q.shape[-3] // k.shape[-3]
        k, v = k.repeat_interleave(repeats, -3), v.repeat_interleave(repeats, -3)
    if dropout > 0:
        return _math(q, k, v, mask, dropout, causal, scale, False)
    result: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, scale=scale)[0]
    return result


_ATTENTION = {"flash": _flash, "efficient": _efficient, "math": _math, "cpu": _cpu}
