"""The model itself, run as its user would: a forward pass or a training step, eager or under ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from memwall.core.errors import UsageError
from memwall.frontend.torch.optimizers import make_optimizer
from memwall.frontend.torch.run import parse_dtype
from memwall.frontend.workload import Workload, resolve


@dataclass(frozen=True)
class ModuleOptions:
    """Which step of which target: as for :func:`memwall.profile`."""

    target: str
    mode: str = "inference"
    batch: int | None = None
    seq: int | None = None
    input_specs: tuple[str, ...] = ()
    dtype: str | None = None
    autocast: str | None = None
    optimizer: Any = "adamw"


def module_step(options: ModuleOptions, device: str, compiled: bool) -> Callable[[], Any]:
    """A function that runs one step, with everything on the device.

    Raises:
        UsageError: the target is wrong, or gives no loss to train on.
    """
    workload = resolve(
        options.target, batch=options.batch, seq=options.seq, input_specs=options.input_specs, mode=options.mode
    )
    module, args, kwargs = _built(workload, options, device)
    module.train(options.mode == "training")
    forward = torch.compile(module) if compiled else module
    autocast = _autocast(options.autocast, device)
    if options.mode == "inference":

        def infer() -> Any:
            with torch.no_grad(), autocast():
                return forward(*args, **kwargs)

        return infer
    named = options.optimizer if options.optimizer != "adamw" else workload.optimizer or "adamw"
    optimizer = make_optimizer(named, [p for p in module.parameters() if p.requires_grad])

    def train() -> None:
        module.zero_grad(set_to_none=True)
        with autocast():
            loss = _loss(workload, forward(*args, **kwargs))
        loss.backward()
        if optimizer is not None:
            optimizer.step()

    return train


def _built(
    workload: Workload, options: ModuleOptions, device: str
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The module and its inputs on the device, in the dtype asked for."""
    with torch.device(device):
        module = workload.model if isinstance(workload.model, nn.Module) else workload.model()
        inputs = workload.inputs() if callable(workload.inputs) else workload.inputs
    dtype = None if options.dtype is None else parse_dtype(options.dtype)

    def place(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        return item.to(device, dtype if item.is_floating_point() else None)

    placed = tree_map(place, inputs)
    module = module.to(device, dtype)
    if isinstance(placed, dict):
        return module, (), placed
    return module, (placed,) if isinstance(placed, torch.Tensor) else tuple(placed), {}


def _autocast(name: str | None, device: str) -> Callable[[], AbstractContextManager[Any]]:
    if name is None:
        return nullcontext
    dtype = parse_dtype(name)
    return lambda: torch.autocast(device, dtype)


def _loss(workload: Workload, output: Any) -> torch.Tensor:
    """What the workload's loss gives, else the output's ``.loss``, else the sum of its floating tensors."""
    if workload.loss is not None:
        return workload.loss(output)
    loss = getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    tensors = torch.utils._pytree.tree_flatten(output)[0]
    floating = [t for t in tensors if isinstance(t, torch.Tensor) and t.is_floating_point() and t.requires_grad]
    if not floating:
        raise UsageError("training needs a loss: no output of the model depends on a parameter")
    total = floating[0].sum()
    for tensor in floating[1:]:
        total = total + tensor.sum()
    return total
