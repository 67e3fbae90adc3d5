"""The CUDA form of calls for which the CPU or ``meta`` would run something else.

PyTorch picks some kernels by device: attention backends, dropout, RMS norm, softmax, cuDNN's recurrent layers. These
overrides are registered at the dispatcher, so they also catch C++ callers such as ``nn.MultiheadAttention``. They hold
for the whole process while :class:`CudaForms` is open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from memwall.core import compat
from memwall.frontend.torch.dispatch.attention import attend, call_of, laid_out
from memwall.frontend.torch.dispatch.recorder import Recorder
from memwall.frontend.torch.dispatch.shapes import ShapeFunctions, ctc_loss_of_lists
from memwall.frontend.torch.dispatch.tensors import batch_norm, is_wrapper
from memwall.ops.sdpa import FORWARD, ORDER, AttentionCall, Backends

_KEYS = {"meta": ("AutogradMeta", "Meta"), "cpu": ("AutogradCPU", "CPU")}


class CudaForms:
    """Context manager: while open, calls on ``recorder.device`` take their CUDA form.

    Opaque ops (for which torch has no shape function) are recorded by name; so is attention, whose kernels depend
    on the GPU (:mod:`memwall.ops.sdpa`), unless it ``decomposes``: then it is recorded as the kernels of one GPU and
    version of torch, ``attention``. ``note`` is called with an assumption whenever one is made.
    """

    def __init__(
        self,
        recorder: Recorder,
        attention: Backends,
        decomposes: bool = False,
        note: Callable[[str], None] = lambda assumed: None,
    ) -> None:
        self.recorder = recorder
        self._note = note
        self.attention = attention
        self._decomposes = decomposes
        self._library: torch.library.Library | None = None
        self._cpu_attention: Any = None
        self._fastpath = True
        self._shapes = ShapeFunctions()

    def __enter__(self) -> CudaForms:
        if self.recorder.device == "cpu":  # before it is overridden
            self._cpu_attention = torch.library.get_kernel("aten::scaled_dot_product_attention", "CPU")
        library: Any = torch.library.Library("aten", "IMPL")
        table: dict[str, Callable[..., Any]] = {
            "scaled_dot_product_attention": self._attention,
            "dropout": _dropout,
            "rms_norm": self._rms_norm,
            **{name: self._recurrent(name) for name in RECURRENT},
            "softmax.int": self._softmax("_softmax"),
            "log_softmax.int": self._softmax("_log_softmax"),
            "one_hot": _one_hot,
            "batch_norm": batch_norm,
            "ctc_loss.Tensor": partial(ctc_loss_of_lists, self._note),
        }
        for name, kernel in table.items():
            for key in _KEYS[self.recorder.device]:
                # Library.impl refuses Meta kernels for composite ops; here that is the point.
                library.m.impl(name, key, kernel, False)
        if self.recorder.device == "meta":
            self._shapes.__enter__()
        self._library = library
        # The inference fast path of nn.TransformerEncoderLayer hides its ops from the trace.
        self._fastpath = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        return self

    def __exit__(self, *exc: object) -> None:
        torch.backends.mha.set_fastpath_enabled(self._fastpath)
        self._shapes.close()
        if self._library is not None:
            compat.destroy_library(self._library)
            self._library = None

    # -- attention -------------------------------------------------------------------------------------------------

    def _attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        tensors = (query, key, value, attn_mask)
        made = call_of(*tensors, dropout_p, is_causal, scale, enable_gqa)
        # transforms refuse a Function like Real, and wrappers choose the shapes of what runs
        as_usual = self._decomposes or compat.are_functorch_transforms_active() or _is_wrapper(query)
        if as_usual or made.backends(self.attention.torch) in ((), ("math",)):
            return self._called(made, tensors)
        call = OpaqueCall(
            FORWARD,
            tuple(made.attributes.items()),
            ("query", "key", "value", "attn_bias"),
            (),
            saved=(0, 1, 2, 3),
            saved_outputs=((0, "out"),),
            gradient="grad_out",
        )
        compute = self._attend(made)
        results = Fused.apply(self.recorder, compute, call, torch.is_grad_enabled(), *tensors)
        result: torch.Tensor = results[0]
        return result

    def _called(self, call: AttentionCall, tensors: Sequence[Any]) -> torch.Tensor:
        """Attention that is recorded as the kernels of one backend."""
        backend = call.backend(self.attention)
        if self.recorder.device != "cpu" or backend == "math":
            return attend(call, backend, *tensors)
        # with real tensors the CUDA kernel by name: the CPU has none, and with random weights values do not matter
        batch, heads, rows, _ = tensors[0].shape
        known = tuple((name, call.attributes[name]) for name in ("dropout_p", "is_causal"))
        result = ([batch, heads, rows, tensors[2].shape[-1]], tensors[0].dtype)
        by_name = OpaqueCall(
            f"aten._scaled_dot_product_{backend}_attention",
            known,
            ("query", "key", "value", "attn_bias"),
            (result, ([batch, heads, rows], torch.float32)),
            saved=(0, 1, 2, 3),
            saved_outputs=((0, "out"), (1, "logsumexp")),
            gradient="grad_out" if backend == "flash" else "grad_out_",
        )
        return Opaque.apply(self.recorder, by_name, *tensors)[0]

    def _attend(self, call: AttentionCall) -> Callable[..., Any]:
        """What gives the results of attention that is recorded as one op; of ``meta`` tensors their layout: flash
        attention's where some GPU runs it, which is that of the query. Models transpose and reshape the result as they
        did the query, so that another kernel's needs the copy with which its form ends, and this one's none."""
        taken = call.backends(self.attention.torch)
        backend = next(name for name in ORDER if name in taken and name != "math")
        if self._cpu_attention is not None:
            known, run = call.attributes, partial(self._cpu_attention.call_boxed, _CPU)
            kernel = partial(run, scale=known.get("scale"), enable_gqa=bool(known.get("enable_gqa")))
            given = known["dropout_p"], known["is_causal"]
            return lambda *tensors: self._placed(call, backend, kernel(*tensors, *given), tensors)
        return partial(attend, call, backend)

    def _placed(self, call: AttentionCall, backend: str, made: torch.Tensor, tensors: Sequence[Any]) -> torch.Tensor:
        return laid_out(call, backend, made, tensors)

    def _softmax(self, name: str) -> Callable[..., torch.Tensor]:
        """Half to float goes through one kernel on CUDA (SoftMax.cpp), through a cast of its own elsewhere."""
        kernel = getattr(torch.ops.aten, name)
        on_meta = self.recorder.device == "meta"

        def run(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
            widens = on_meta and x.dtype is torch.float16 and dtype is torch.float32
            result: torch.Tensor = kernel(x if dtype is None or widens else x.to(dtype), dim, widens)
            return result

        return run

    # -- opaque ops ------------------------------------------------------------------------------------------------

    def _opaque(
        self, compute: Callable[..., Any], op: str, call: OpaqueCall, inputs: Sequence[Any]
    ) -> tuple[torch.Tensor, ...]:
        """The results of an op that is recorded by name. ``compute(run, *inputs)`` calls torch's own kernel of ``op``,
        ``run``; unused where values do not matter."""
        results: tuple[torch.Tensor, ...] = Opaque.apply(self.recorder, call, *inputs)
        return results

    def _rms_norm(self, x: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> torch.Tensor:
        if (weight is not None and weight.dtype != x.dtype) or _is_wrapper(x):
            return _rms_norm_composite(x, shape, weight, eps)
        given = () if eps is None else (("eps", float(eps)),)
        attributes = (("normalized_shape", tuple(map(int, shape))), *given)
        rows = [*x.shape[: x.dim() - len(shape)], *([1] * len(shape))]
        call = OpaqueCall(
            "aten._fused_rms_norm",
            attributes,
            ("input", "weight"),
            (_like(x), (rows, torch.float32)),
            saved=(0, 1),
            saved_outputs=((1, "rstd"),),
            gradient="grad_out",
        )
        return self._opaque(lambda run, x, weight: run(x, shape, weight, eps), "rms_norm", call, (x, weight))[0]

    def _recurrent(self, name: str) -> Callable[..., Any]:
        mode, packed = RECURRENT[name], name.endswith(".data")

        def run(x: torch.Tensor, *given: Any) -> Any:
            """Arguments as in the schema: a packed sequence has the batch of each step, another may be batch first."""
            steps, (hx, params, has_biases, num_layers, *rest) = given[:packed], given[packed:]
            dropout, train, bidirectional, *first = rest
            states = list(hx) if isinstance(hx, (list, tuple)) else [hx]
            hidden = int(params[0].shape[0]) // _GATES[mode]
            directions = 2 if bidirectional else 1
            attributes = (
                ("mode", mode),
                ("hidden_size", hidden),
                ("num_layers", num_layers),
                ("batch_first", any(first)),
                ("bidirectional", bidirectional),
                ("has_biases", has_biases),
                ("dropout", dropout if train else 0.0),
                *(("batch_sizes", tuple(sizes.tolist())) for sizes in steps),
            )
            output = ([*x.shape[:-1], int(states[0].shape[-1]) * directions], x.dtype)
            names = ("input", *(("hx", "cx")[: len(states)]), *(["weight"] * len(params)))
            inputs = (x, *states, *params)
            # cuDNN's reserve space: the gates and states of every step, which backward reads again
            steps_times_batch = x.numel() // int(x.shape[-1]) if x.numel() else 0
            reserve = ([steps_times_batch * hidden * directions * num_layers * (_GATES[mode] + 1)], x.dtype)
            reserve_name = ((len(states) + 1, "reserve"),)
            keep_reserve = train and any(t.requires_grad for t in inputs) and torch.is_grad_enabled()
            outputs = (output, *(_like(s) for s in states), *((reserve,) if keep_reserve else ()))

            def compute(run: Callable[..., Any], x: torch.Tensor, *others: torch.Tensor) -> Any:
                """The call of torch's own kernel; an LSTM takes a list of states, the others one tensor."""
                state, weights = others[: len(states)], others[len(states) :]
                return run(x, *steps, state if mode == 2 else state[0], weights, has_biases, num_layers, *rest)

            call = OpaqueCall(
                "aten._cudnn_rnn",
                attributes,
                names,
                outputs,
                saved=tuple(range(len(inputs))),
                saved_outputs=((0, "output"), *(reserve_name if keep_reserve else ())),
            )
            result = self._opaque(compute, name, call, inputs)
            return tuple(result[: 1 + len(states)])

        return run


#: ATen's name of a recurrent layer, of padded and of packed sequences -> cuDNN's number; and its gates
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
RECURRENT = {f"{name}.{form}": mode for name, mode in _MODES.items() for form in ("input", "data")}
_GATES = {0: 1, 1: 1, 2: 4, 3: 3}


def _is_wrapper(tensor: Any) -> bool:
    kind: Any = type(tensor)
    return is_wrapper(kind)


def _like(tensor: torch.Tensor) -> tuple[list[int], torch.dtype]:
    return list(tensor.shape), tensor.dtype


class OpaqueCall(NamedTuple):
    """An op recorded by name without being dispatched: the argument that each input is, and the (shape, dtype) of its
    outputs.

    Its backward, ``NAME_backward``, reads the gradients that arrive, as argument ``gradient``, the inputs numbered by
    ``saved`` and the outputs numbered and named by ``saved_outputs``.
    """

    name: str
    attributes: tuple
    names: tuple[str, ...]
    outputs: tuple[tuple[Sequence[int], torch.dtype], ...]
    saved: tuple[int, ...]
    saved_outputs: tuple[tuple[int, str], ...]
    gradient: str = "grad_output"

    def record(self, ctx: Any, recorder: Recorder, inputs: Sequence[Any], results: Sequence[torch.Tensor]) -> None:
        """Record the call, and keep what its backward reads."""
        given = [(n, t) for n, t in zip(self.names, inputs, strict=True) if t is not None]
        if not recorder.paused:
            recorder.emit(self.name, [n for n, _ in given], [t for _, t in given], results, self.attributes)
        kept = [(self.names[i], inputs[i]) for i in self.saved if inputs[i] is not None]
        kept += [(name, results[i]) for i, name in self.saved_outputs]
        ctx.recorder, ctx.call, ctx.kept_names = recorder, self, [name for name, _ in kept]
        ctx.save_for_backward(*[tensor for _, tensor in kept])
        ctx.set_materialize_grads(False)

    def record_backward(
        self, ctx: Any, saved: Sequence[torch.Tensor], gradients: Sequence[Any], results: Sequence[Any]
    ) -> None:
        """Record the backward call. ``saved`` is ``ctx.saved_tensors``, which a checkpoint gives only once."""
        given = [g for g in gradients if g is not None]
        if not ctx.recorder.paused:
            ctx.recorder.emit(
                f"{self.name}_backward",
                [self.gradient] * len(given) + ctx.kept_names,
                [*given, *saved],
                [r for r in results if r is not None],
                self.attributes,
            )


class Opaque(torch.autograd.Function):
    """An :class:`OpaqueCall` that is recorded and computes nothing, and its backward likewise."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, call: OpaqueCall, *inputs: Any) -> tuple[torch.Tensor, ...]:
        device = next(t.device for t in inputs if t is not None)
        results = tuple(_fresh(shape, dtype, device) for shape, dtype in call.outputs)
        call.record(ctx, recorder, inputs, results)
        ctx.shapes = [(t.shape, t.dtype) if isinstance(t, torch.Tensor) else None for t in inputs]
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        saved = ctx.saved_tensors
        device = saved[0].device
        results = [
            _fresh(like[0], like[1], device) if like and wanted else None
            for like, wanted in zip(ctx.shapes, ctx.needs_input_grad[2:], strict=True)
        ]
        ctx.call.record_backward(ctx, saved, gradients, results)
        return (None, None, *results)


def _fresh(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A result: without data on ``meta`` and for a compiler's fake tensors, with small random data on the CPU; not
    recorded either way."""
    if device.type == "meta" or compat.dispatch_mode(compat.DispatchModeKey.FAKE) is not None:
        return torch.empty(shape, dtype=dtype, device=device)
    generator = torch.Generator().manual_seed(0)
    with compat.DisableTorchDispatch():
        return torch.randn(shape, dtype=dtype, generator=generator).mul_(0.1)


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    return torch.ops.aten.native_dropout(x, p, train)[0] if train and p > 0 else x


def _one_hot(index: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Zeros and a scatter; ``meta`` would compare with a range instead."""
    if num_classes == -1:
        num_classes = int(index.max().item()) + 1
    return index.new_zeros((*index.shape, num_classes)).scatter_(-1, index.unsqueeze(-1), 1)


def _rms_norm_composite(x: torch.Tensor, shape: Sequence[int], weight: Any, eps: float | None) -> torch.Tensor:
    """RMS norm as torch decomposes it when the weight has another dtype than the input."""
    axes = list(range(x.dim() - len(shape), x.dim()))
    upcast = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    epsilon = torch.finfo(upcast.dtype).eps if eps is None else eps
    result = upcast * upcast.pow(2).mean(axes, keepdim=True).add_(epsilon).rsqrt()
    return (result * weight).type_as(x)


_CPU = compat.DispatchKeySet(compat.DispatchKey.CPU)


class RealForms(CudaForms):
    """Context manager: like ``CudaForms`` on the CPU; only the record differs. Torch's own CPU kernels compute what
    is recorded under the CUDA kernel's name, unrecorded, forward and backward."""

    def __enter__(self) -> RealForms:
        names = ("rms_norm", *RECURRENT)  # before they are overridden
        self._kernels: dict[str, Any] = {name: torch.library.get_kernel(f"aten::{name}", "CPU") for name in names}
        super().__enter__()
        return self

    def _called(self, call: AttentionCall, tensors: Sequence[Any]) -> torch.Tensor:
        if call.backend(self.attention) == "math":
            return super()._called(call, tensors)
        result: torch.Tensor = self._attend(call)(*tensors)
        return result

    def _placed(self, call: AttentionCall, backend: str, made: torch.Tensor, tensors: Sequence[Any]) -> torch.Tensor:
        return made

    def _opaque(
        self, compute: Callable[..., Any], op: str, call: OpaqueCall, inputs: Sequence[Any]
    ) -> tuple[torch.Tensor, ...]:
        kernel = partial(compute, partial(self._kernels[op].call_boxed, _CPU))
        # vmap and grad refuse such a Function as Real; torch's kernel calls what they know
        if compat.are_functorch_transforms_active():
            return _several(kernel(*inputs))
        results: tuple[torch.Tensor, ...] = Real.apply(self.recorder, kernel, call, torch.is_grad_enabled(), *inputs)
        return results


def _several(computed: Any) -> tuple[torch.Tensor, ...]:
    return (computed,) if isinstance(computed, torch.Tensor) else tuple(computed)


class Real(torch.autograd.Function):
    """An op recorded under another name than the kernel's that computes it, and its backward likewise. Its
    results are what ``compute(*inputs)`` returns, followed by what only CUDA's kernel writes."""

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
                    [t for t, _ in pairs],
                    [ctx.leaves[i] for i in wanted],
                    [g for _, g in pairs],
                    retain_graph=True,
                    allow_unused=True,
                )
            for i, gradient in zip(wanted, found, strict=True):
                results[i] = gradient
        ctx.call.record_backward(ctx, ctx.saved_tensors, gradients, results)
        return (None, None, None, None, *results)


class Fused(Real):
    """Attention; its kernels have no second derivative."""

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        return Real.backward(ctx, *gradients)
