"""Record running code: the calls of any block of PyTorch, on CUDA's, ``meta``'s or the CPU's tensors.

There is no workload here, so the trace infers what :mod:`memwall.frontend.torch.run` is given. A called module is named
by its class, its parts by their paths below it; an optimizer's step is the phase of that name;
:mod:`memwall.frontend.live.recorder` infers the role of each tensor.

Results do not change: tensors on the CPU get their usual values, though calls that are other kernels on a GPU are
recorded as those, and multi-tensor optimizers take their CUDA form.
"""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from memwall.core.errors import UsageError
from memwall.core.graph import TensorSpec
from memwall.frontend.live.recorder import LiveRecorder, plain_tensor
from memwall.frontend.torch.cuda_forms import ATTENTION_BACKENDS, CudaForms
from memwall.frontend.torch.modules import module_names
from memwall.frontend.torch.optimizers import fused_everywhere
from memwall.frontend.torch.real_forms import RealForms
from memwall.frontend.torch.recorder import ModuleTimeline
from memwall.frontend.torch.run import Traced, exclusive, inference_mode_as_no_grad
from memwall.frontend.torch.tensors import dtype_name
from memwall.frontend.torch.triton_calls import triton_calls

#: devices whose tensors represent the GPU's: the first of these on which anything ran; the others are its host
DEVICES = ("cuda", "meta", "cpu")

_FORMS: Mapping[str, type[CudaForms]] = {"meta": CudaForms, "cpu": RealForms}


class LiveTrace:
    """Context manager: records what runs inside, in this thread and in the backward passes that it starts.

    Args:
        classify: op name → op class.
        attention: the fused SDPA backend that the GPU prefers.
        max_ops: stop with an error beyond this many recorded ops.

    Raises:
        UsageError: on entering, another trace runs in this thread; or no such attention.
    """

    def __init__(self, classify: Callable[[str], str], *, attention: str, max_ops: int) -> None:
        if attention not in ATTENTION_BACKENDS:
            raise UsageError(f"attention is {attention!r}; want one of {', '.join(ATTENTION_BACKENDS)}")
        self.attention = attention
        devices = DEVICES if torch.cuda.is_available() else DEVICES[1:]
        self.recorders = {device: LiveRecorder(classify, device=device, max_ops=max_ops) for device in devices}
        self.timeline = ModuleTimeline()
        self.optimizers: dict[str, None] = {}
        self.roots: Counter[str] = Counter()
        self.is_used = False
        self._names: dict[int, str] = {}
        self._kept: list[nn.Module] = []
        #: the module that ran when an optimizer began its step
        self._outside: str | None = None
        self._stack = contextlib.ExitStack()
        for recorder in self.recorders.values():
            recorder.modules = self.timeline

    def __enter__(self) -> LiveTrace:
        self.is_used = True
        with contextlib.ExitStack() as stack:
            stack.enter_context(exclusive())
            if torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(False))
                stack.enter_context(torch.no_grad())
            stack.enter_context(inference_mode_as_no_grad())
            stack.enter_context(fused_everywhere("meta", "cpu"))
            for device, forms in _FORMS.items():
                stack.enter_context(forms(self.recorders[device], self.attention))
            if "cuda" not in self.recorders:  # on a real GPU its kernels are launched, not just recorded
                stack.enter_context(triton_calls(self.recorders["meta"]))
            stack.enter_context(self._named_modules())
            stack.enter_context(self._notified_of_backward())
            stack.callback(register_optimizer_step_pre_hook(self._before_step).remove)
            stack.callback(register_optimizer_step_post_hook(self._after_step).remove)
            for recorder in self.recorders.values():
                stack.enter_context(recorder)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _is_recording(self) -> bool:
        """Whether this thread's ops are recorded, not the modules, backward passes and optimizers of other threads. The
        engine's threads have the modes of the thread that started them."""
        modes = _get_current_dispatch_mode_stack()
        return any(isinstance(mode, LiveRecorder) for mode in modes)

    # -- modules ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _named_modules(self) -> Iterator[None]:
        original, timeline, live = nn.Module.__call__, self.timeline, self

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not live._is_recording():
                return original(module, *args, **kwargs)
            path = live._names.get(id(module))
            if path is None:
                if timeline.path:  # held outside the modules that call it
                    return original(module, *args, **kwargs)
                path = live._root(module)
            previous = timeline.enter(path)
            try:
                return original(module, *args, **kwargs)
            finally:
                timeline.leave(previous)

        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original  # type: ignore[method-assign]

    def _root(self, module: nn.Module) -> str:
        """Name a module that the block itself calls, and its parts."""
        self._kept.append(module)
        plain = getattr(module, "_orig_mod", module)  # torch.compile(m)
        kind = type(plain).__name__
        root = f"{kind}.{self.roots[kind]}"
        self.roots[kind] += 1
        paths = {number: f"{root}.{path}" if path else root for number, path in module_names(plain).items()}
        self._names |= {id(module): root, **paths}
        for name, parameter in plain.named_parameters():
            parameter = plain_tensor(parameter)
            for recorder in self.recorders.values():
                recorder.take(parameter, name, f"{root}.{name}".rpartition(".")[0])
        for name, buffer in plain.named_buffers():
            buffer = plain_tensor(buffer)
            for recorder in self.recorders.values():
                if buffer.device.type == recorder.device:
                    recorder.set_role(buffer, "buffer", name)
        return root

    # -- backward and optimizers ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _notified_of_backward(self) -> Iterator[None]:
        """What the engine does before its first node (the loss's gradient of ones) is also backward."""
        originals = {name: getattr(torch.autograd, name) for name in ("backward", "grad")}

        def notified(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                if not self._is_recording():
                    return original(*args, **kwargs)
                before = {recorder: recorder.phase for recorder in self.recorders.values()}
                for recorder in before:
                    recorder.phase = "backward"
                try:
                    return original(*args, **kwargs)
                finally:
                    for recorder, phase in before.items():
                        recorder.phase = phase

            return call

        for name, original in originals.items():
            setattr(torch.autograd, name, notified(original))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(torch.autograd, name, original)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self._is_recording():
            return
        self._restore()
        self.optimizers[type(optimizer).__name__] = None
        self._outside = self.timeline.enter("optimizer")
        on_device = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
        for recorder in self.recorders.values():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    recorder.take(parameter, "")
            self._take_state(recorder, optimizer)
            recorder.phase, recorder.counts_on_host = "optimizer", recorder.device == "cpu" and not on_device

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self._is_recording():
            return
        self._restore()
        for recorder in self.recorders.values():
            self._take_state(recorder, optimizer)

    def _take_state(self, recorder: LiveRecorder, optimizer: torch.optim.Optimizer) -> None:
        for parameter, state in optimizer.state.items():
            if id(parameter) not in recorder.parameters:
                continue
            owner = recorder.storages[recorder.storage(parameter)].name
            for key, item in state.items():
                if isinstance(item, torch.Tensor) and item.device.type == recorder.device and item.dim():
                    recorder.set_role(item, "optimizer_state", f"{owner}.{key}")

    def _restore(self) -> None:
        """Reset the optimizer's state: a step may have raised."""
        if self._outside is not None:
            self.timeline.leave(self._outside)
            self._outside = None
        for recorder in self.recorders.values():
            recorder.phase, recorder.counts_on_host = "forward", False

    # -- the result ------------------------------------------------------------------------------------------------

    def traced(self) -> Traced | None:
        """The trace of the first of ``DEVICES`` on which anything ran; None where nothing ran."""
        gc.collect()  # so that only referenced tensors count as alive
        recorder = next((r for r in self.recorders.values() if r.ops), None)
        if recorder is None:
            return None
        graph = recorder.finished(self.attention, self.roots)
        specs = [graph.values[i].spec for i in graph.inputs]
        parameters = list(recorder.parameters.values())
        return Traced(
            graph=graph,
            parameters=sum(p.numel() for p in parameters),
            inputs=tuple({"shape": list(spec.shape), "dtype": dtype_name(spec.dtype)} for spec in specs),
            dtype=_dtype(parameters, specs),
            samples=None,
            tokens=None,
            optimizer=", ".join(self.optimizers) or None,
            capture={"device": recorder.device},
        )


def _dtype(parameters: Sequence[torch.Tensor], inputs: Sequence[TensorSpec]) -> str:
    """The floating dtype of most parameters, else of the inputs."""
    for sizes in ([(dtype_name(p.dtype), p.numel()) for p in parameters], [(s.dtype, s.numel) for s in inputs]):
        total: Counter[str] = Counter()
        for name, count in sizes:
            if "float" in name:
                total[name] += count
        if total:
            return max(total, key=total.__getitem__)
    return "float32"
