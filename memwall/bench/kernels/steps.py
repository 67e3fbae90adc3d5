"""A whole step: as its kernels run it (:class:`StepRunner`), and as the model's user would (:func:`module_step`).

A :class:`StepRunner` runs kernels one after another, each on what the ones before it made.
Tensors that exist before the step (parameters, inputs, optimizer state) are made once; all others live from the kernel
that makes them to the last one that reads them, so the step takes the memory that the model takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from memwall.bench.kernels.executors import BUILDERS, BuiltKernel, KernelBuilder
from memwall.bench.kernels.oracle import Oracle
from memwall.core import compat
from memwall.core.errors import UsageError
from memwall.core.graph import SERVING, Graph, TensorSpec, Value
from memwall.frontend.targets import Workload, resolve
from memwall.frontend.targets.inputs import stays_on_host
from memwall.frontend.targets.sizes import SIZES
from memwall.frontend.torch.build import make_optimizer
from memwall.frontend.torch.losses import backward, forward_step, scalar_loss
from memwall.frontend.torch.options import parse_dtype
from memwall.fusion import Group, Plan
from memwall.ops.evaluate import dtype_of
from memwall.ops.expressions import NotGenerated
from memwall.simulate.memory import memory_peak

#: standard deviation of parameters and inputs that are made up
SCALE = 0.02
#: the step's own memory is held twice: by the calls that warm it up and by the captured graph
COPIES = 2


class NoView(RuntimeError):
    """A kernel made a tensor of another layout than was traced, and something else reads a part of it."""


class StepRunner:
    """The kernels of a step, ready to run; ``settle`` gives each its tuned setting."""

    def __init__(
        self,
        graph: Graph,
        builder: KernelBuilder,
        executor: str,
        groups: Sequence[Group],
        settle: Callable[[BuiltKernel], None],
    ) -> None:
        self.graph, self.builder, self.executor, self.groups = graph, builder, executor, groups
        self._settle = settle
        self._eager = 0
        self.peak_bytes = COPIES * memory_peak(graph, Plan(executor, tuple(groups))).total
        self._steps: list[tuple[BuiltKernel, tuple[int, ...]]] = []
        self._made: dict[int, tuple[torch.Tensor, Value]] = {}
        self._filled: set[int] = set()

    def prepare(self, seed: int, device: str) -> None:
        """Build every kernel and make what exists before the step."""
        built = [self._build(group) for group in self.groups]
        last: dict[int, int] = {}
        for index, kernel in enumerate(built):
            for value_id in (*kernel.inputs, *kernel.outputs):
                last[self.graph.values[value_id].storage] = index
        kept = {self.graph.values[i].storage for i in self.graph.outputs}
        dies: dict[int, list[int]] = {}
        for storage, index in last.items():
            if storage not in kept:
                dies.setdefault(index, []).append(storage)
        self._steps = [(kernel, tuple(dies.get(index, ()))) for index, kernel in enumerate(built)]
        self._make_first(built, seed, device)

    def _build(self, group: Group) -> BuiltKernel:
        try:
            built = BUILDERS[self.executor](self.builder, group)
            self._settle(built)
            return built
        except NotGenerated:
            self._eager += 1
            return self.builder.eager(group)

    def _make_first(self, built: Sequence[BuiltKernel], seed: int, device: str) -> None:
        """The tensors that are read before any kernel has made them."""
        generator = torch.Generator(device).manual_seed(seed)
        made: set[int] = set()
        for group, kernel in zip(self.groups, built, strict=True):
            for value_id in kernel.inputs:
                value = self.graph.values[value_id]
                if value.storage in made:
                    continue
                if not value.spec.dtype.startswith(("float", "bfloat")):
                    self._integers(group, value, seed, device)
                elif value.storage not in self._made:
                    self._made[value.storage] = self._floats(value, device, generator)
            made.update({self.graph.values[i].storage for i in kernel.outputs} - self._made.keys())

    def _floats(self, value: Value, device: str, generator: torch.Generator) -> tuple[torch.Tensor, Value]:
        """A storage of random numbers at the scale of weights."""
        storage = self.graph.storages[value.storage]
        whole = TensorSpec((storage.nbytes // value.spec.itemsize,), (1,), value.spec.dtype)
        tensor = torch.empty(whole.shape, dtype=dtype_of(whole.dtype), device=device)
        tensor.normal_(0.0, SCALE, generator=generator)
        if storage.role in ("optimizer_state", "buffer"):
            tensor.abs_()  # second moments and variances
        return tensor, Value(value.id, whole, value.storage, 0)

    def _integers(self, group: Group, value: Value, seed: int, device: str) -> None:
        """What the group that reads them needs: indices within their table, masks of both kinds. Each part of a storage
        is filled by the first group that reads it."""
        given = Oracle(self.graph, self.builder.flow, group).inputs(seed, device)
        if value.storage not in self._made:
            self._made[value.storage] = given[value.id], value
        elif value.id not in self._filled:
            self._view(self._made, value).copy_(given[value.id])
        self._filled.add(value.id)

    @property
    def note(self) -> str:
        """The kernels that do not run as the executor's."""
        if not self._eager:
            return ""
        return f"{self._eager} of {len(self.groups)} groups run eagerly: no kernel is generated for them"

    def run(self) -> None:
        """Run the step once."""
        tensors = dict(self._made)
        for kernel, dies in self._steps:
            given = [self._view(tensors, self.graph.values[i]) for i in kernel.inputs]
            for value_id, result in zip(kernel.outputs, kernel.run(*given), strict=True):
                value = self.graph.values[value_id]
                tensors.setdefault(value.storage, (result, value))
            for storage in dies:
                tensors.pop(storage, None)

    def _view(self, tensors: dict[int, tuple[torch.Tensor, Value]], value: Value) -> torch.Tensor:
        """A value as a view of its storage."""
        tensor, made = tensors[value.storage]
        if (made.spec, made.offset) == (value.spec, value.offset):
            return tensor
        spec = value.spec
        pairs = zip(tensor.shape, tensor.stride(), made.spec.strides, strict=True)
        as_traced = all(size == 1 or own == traced for size, own, traced in pairs)
        if spec.dtype != made.spec.dtype or not as_traced:
            raise NoView(f"value {value.id} cannot be read from the tensor that was made in its place")
        start = tensor.storage_offset() + value.offset - made.offset
        return tensor.as_strided(spec.shape, spec.strides, start)


# -- the model itself --------------------------------------------------------------------------------------------------


def module_step(target: str | Workload, options: Mapping[str, Any], device: str, compiled: bool) -> Callable[[], Any]:
    """A function that runs one step, with everything on the device; ``options`` are some of
    :data:`memwall.bench.device.RUN_OPTIONS`. Raises ``UsageError``: the target is wrong, or gives no loss to train
    on."""
    mode = options.get("mode", "inference")
    if mode in SERVING:
        raise UsageError(
            f"--mode {mode} cannot be measured: the step changes its cache, so that no run repeats another"
        )
    sizes = {key: options[key] for key in (*SIZES, "input_specs") if key in options}
    workload = target if isinstance(target, Workload) else resolve(target, **sizes, mode=mode, gpu=None)
    module, args, kwargs = _built(workload, options.get("dtype"), device)
    training = mode == "training"
    if mode != "forward":
        module.train(training)
    step = forward_step(torch.compile(module) if compiled else module, workload.loss if training else None)
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    if options.get("autocast") is not None:
        autocast = partial(torch.autocast, device, parse_dtype(options["autocast"]))
    if not training:

        def infer() -> Any:
            with torch.set_grad_enabled(mode == "forward" and not options.get("no_grad")), autocast():
                return step(*args, **kwargs)

        return infer
    named = options.get("optimizer", "adamw")
    named = named if named != "adamw" else workload.optimizer or "adamw"
    optimizer = make_optimizer(named, [p for p in module.parameters() if p.requires_grad])

    def train() -> None:
        module.zero_grad(set_to_none=True)
        with autocast():
            loss = scalar_loss(workload, step(*args, **kwargs))
        backward(loss)
        if optimizer is not None:
            optimizer.step()

    return train


def _built(workload: Workload, name: str | None, device: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The module and its inputs on the device, in the dtype asked for."""
    with torch.device(device):
        module = workload.model if isinstance(workload.model, nn.Module) else workload.model()
        inputs = workload.inputs() if callable(workload.inputs) else workload.inputs
    dtype = None if name is None else parse_dtype(name)

    def place(item: Any) -> Any:
        if not isinstance(item, torch.Tensor) or stays_on_host(item):
            return item
        return item.to(device, dtype if item.is_floating_point() else None)

    placed, module = compat.tree_map(place, inputs), module.to(device, dtype)
    if isinstance(placed, dict):
        return module, (), placed
    return module, (placed,) if isinstance(placed, torch.Tensor) else tuple(placed), {}
