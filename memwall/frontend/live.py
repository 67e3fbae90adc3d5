"""Record running code: the calls of any block of PyTorch, on CUDA's, ``meta``'s or the CPU's tensors.

The trace infers what :mod:`memwall.frontend.torch.run` is given. A called module is named by its class, its parts by
their paths below it; an optimizer's step is the phase of that name. Parameters are the parameters of modules that are
called, leaves that require a gradient, and what an optimizer updates; inputs are in memory before they are first read;
outputs are still alive at the end. Results do not change: tensors on the CPU get their usual values, though calls that
are other kernels on a GPU are recorded as those, and multi-tensor optimizers take their CUDA form.
"""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from memwall.core import compat
from memwall.core.errors import UsageError
from memwall.core.graph import Graph
from memwall.frontend.facts import TraceFacts, noted
from memwall.frontend.program import TraceResult, described
from memwall.frontend.torch.build import fused_everywhere
from memwall.frontend.torch.dispatch.attention_kinds import lowered
from memwall.frontend.torch.dispatch.cuda_forms import CudaForms, RealForms
from memwall.frontend.torch.dispatch.library_answers import library_answers
from memwall.frontend.torch.dispatch.origin import ModuleTimeline, module_calls, module_names
from memwall.frontend.torch.dispatch.recorder import Recorder
from memwall.frontend.torch.dispatch.tensors import dtype_name, flat_tensors, is_wrapper, plain_parts
from memwall.frontend.torch.dispatch.triton_calls import triton_calls
from memwall.frontend.torch.process.settings import inference_mode_as_no_grad
from memwall.frontend.torch.run import exclusive
from memwall.hardware.torch_versions import NEWEST, TORCH
from memwall.ops.sdpa import GENERATIONS, Backends

#: devices whose tensors represent the GPU's: the first of these on which anything ran; the others are its host
DEVICES = ("cuda", "meta", "cpu")

_FORMS: Mapping[str, type[CudaForms]] = {"meta": CudaForms, "cpu": RealForms}


class LiveRecorder(Recorder):
    """A recorder that keeps no data alive and finds the roles of tensors by itself."""

    def __init__(self, device: str, max_ops: int) -> None:
        super().__init__(device=device, max_ops=max_ops)
        #: parameters by id, kept alive so that the id stays theirs
        self.parameters: dict[int, torch.Tensor] = {}
        #: ids of parameters that belong to no module that is called and to no optimizer
        self._met: set[int] = set()
        #: an optimizer is stepping that counts its steps on the host
        self.counts_on_host = False
        self._alive: dict[int, StorageWeakRef] = {}

    def bind(self, tensor: torch.Tensor, storage: int) -> None:
        """Bind a tensor to a storage; its address stays reserved, its data may be freed."""
        raw = tensor.untyped_storage()
        self._alive[storage] = StorageWeakRef(raw)
        self._storage_ids[compat.cdata(raw)] = storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            args and isinstance(args[0], torch.Tensor) and not is_wrapper(type(args[0]))
        ):  # a view of a leaf is not a leaf
            self._meet(args[0])
        return super().__torch_dispatch__(func, types, args, kwargs)

    def emit(
        self,
        name: str,
        names: Iterable[str],
        inputs: Iterable[torch.Tensor],
        outputs: Iterable[torch.Tensor],
        attributes: Iterable[tuple[str, Any]] = (),
    ) -> None:
        """Record one call; what it reads but nothing has written existed before."""
        read = list(inputs)
        for tensor in read:
            if not self._meet(tensor) and tensor.device.type == self.device and self.knows(tensor) is None:
                self.storage(tensor, "input")
        super().emit(name, names, read, outputs, attributes)

    def _meet(self, tensor: torch.Tensor) -> bool:
        """Note a leaf that requires a gradient; whether it is one."""
        if not (tensor.requires_grad and tensor.is_leaf and tensor.device.type == self.device):
            return False
        if self.knows(tensor) is None:
            self.take(tensor, "")
            self._met.add(id(tensor))
        return True

    def take(self, tensor: torch.Tensor, name: str, path: str = "") -> None:
        """Register a parameter by its name."""
        self._met.discard(id(tensor))
        if tensor.device.type == self.device and id(tensor) not in self.parameters:
            self.parameters[id(tensor)] = tensor
            self.set_role(tensor, "parameter", name)
            self.own(tensor, path)

    @property
    def counted(self) -> list[torch.Tensor]:
        """The parameters of the model; none that ops only write, as an average that follows the weights."""
        read: set[int] = set()
        for op in self.ops:
            touched, written = ({self.values[i].storage for i in each} for each in (op.inputs, op.outputs))
            read |= touched - written
        return [t for number, t in self.parameters.items() if number not in self._met or self.storage(t) in read]

    def _is_host_call(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
        counts = self.counts_on_host and not any(t.dim() for t in (*inputs, *outputs))
        return counts or super()._is_host_call(inputs, outputs)

    def finished(self, attention: str, roots: Counter[str]) -> Graph:
        """The graph of what was recorded, modules named by :func:`plain_name`."""
        for tensor in self.parameters.values():
            for part in flat_tensors(tensor.grad):
                if self.knows(part) is not None:
                    self.set_role(part, "gradient", self.storages[self.storage(tensor)].name)
        first: dict[int, int] = {}
        for value in self.values:
            first.setdefault(value.storage, value.id)
        graph = self.graph(
            [i for storage, i in first.items() if self.storages[storage].role == "input"],
            [first[self.storage(t)] for t in self.parameters.values() if self.storage(t) in first],
            self._outputs(),
            attention,
        )
        ops = [replace(op, module=plain_name(op.module, roots)) if op.module else op for op in graph.ops]
        return replace(graph, ops=tuple(ops))

    def _outputs(self) -> list[int]:
        """The last value written into each live storage; if none is live, into each storage that nothing reads."""
        read = {self.values[i].storage for op in self.ops for i in op.inputs}
        written = {self.values[i].storage: i for op in self.ops for i in op.outputs}
        results = {storage: value for storage, value in written.items() if self.storages[storage].role == "activation"}
        alive = [value for storage, value in results.items() if not self._alive[storage].expired()]
        return alive or [value for storage, value in results.items() if storage not in read]


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """What torch.func's wrappers (``vmap``, ``grad``) hold: the tensor that has the storage."""
    while compat.is_functorch_wrapped_tensor(tensor):
        tensor = compat.unwrapped(tensor)
    return tensor


def plain_name(path: str, roots: Counter[str]) -> str:
    """``Net.0.up`` is ``Net.up`` where one ``Net`` was called; of several each keeps its number."""
    name, _, rest = path.partition(".")
    return name + rest.removeprefix("0") if roots[name] == 1 else path


class LiveTrace:
    """Context manager: records what runs inside, in this thread and in the backward passes that it starts. A UsageError
    where another trace runs in this thread, or there is no such attention."""

    def __init__(self, attention: str, max_ops: int) -> None:
        if attention not in GENERATIONS:
            raise UsageError(f"attention is {attention!r}; want one of {', '.join(GENERATIONS)}")
        self.attention = Backends(GENERATIONS[attention], TORCH[NEWEST])
        devices = DEVICES if torch.cuda.is_available() else DEVICES[1:]
        self.recorders = {device: LiveRecorder(device, max_ops) for device in devices}
        self.timeline = ModuleTimeline()
        self.optimizers: dict[str, None] = {}
        self.assumed: dict[str, None] = {}
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
                assume = lambda assumed: self.assumed.setdefault(assumed)  # noqa: E731
                stack.enter_context(triton_calls(self.recorders["meta"], assume))
            stack.enter_context(
                library_answers(contextlib.nullcontext, lambda assumed: self.assumed.setdefault(assumed))
            )
            stack.enter_context(module_calls(self.timeline, self._path))
            for name in ("backward", "grad"):
                original = getattr(torch.autograd, name)
                stack.enter_context(patch.object(torch.autograd, name, self._as_backward(original)))
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
        return any(isinstance(mode, LiveRecorder) for mode in compat.dispatch_modes())

    def _path(self, module: nn.Module) -> str | None:
        """The path of a called module; None where it has none: it is held outside the modules that call it."""
        if not self._is_recording():
            return None
        path = self._names.get(id(module))
        return self._root(module) if path is None and not self.timeline.path else path

    def _root(self, module: nn.Module) -> str:
        """Name a module that the block itself calls, and its parts."""
        self._kept.append(module)
        plain = getattr(module, compat.name_of("orig_mod"), module)  # torch.compile(m)
        kind = type(plain).__name__
        root = f"{kind}.{self.roots[kind]}"
        self.roots[kind] += 1
        paths = {number: f"{root}.{path}" if path else root for number, path in module_names(plain).items()}
        self._names |= {id(module): root, **paths}
        for recorder in self.recorders.values():
            for name, parameter in plain.named_parameters():
                for part in plain_parts(plain_tensor(parameter)):
                    recorder.take(part, name, f"{root}.{name}".rpartition(".")[0])
            for name, buffer in plain.named_buffers():
                for part in plain_parts(plain_tensor(buffer)):
                    if part.device.type == recorder.device:
                        recorder.set_role(part, "buffer", name)
        return root

    def _as_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What the engine does before its first node (the loss's gradient of ones) is also backward."""

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
        if self._is_recording():
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

    def traced(self) -> TraceResult | None:
        """The trace of the first of ``DEVICES`` on which anything ran; None where nothing ran."""
        gc.collect()  # so that only referenced tensors count as alive
        recorder = next((r for r in self.recorders.values() if r.ops), None)
        if recorder is None:
            return None
        with exclusive(), torch.inference_mode(False):
            graph, attention = lowered(recorder.finished(self.attention.label, self.roots), self.attention)
        optimizer = ", ".join(self.optimizers) or None
        facts = TraceFacts(device=recorder.device, torch=self.attention.torch.name, notes=noted((), self.assumed))
        mode = "inference" if all(op.phase == "forward" for op in graph.ops) else "training"
        name = ", ".join(self.roots) or "trace"
        sizes = [(dtype_name(each.dtype), each.numel()) for each in recorder.counted]
        traced = described(graph, sizes, name=name, target="", mode=mode, optimizer=optimizer)
        return TraceResult(graph, traced, facts, attention)
