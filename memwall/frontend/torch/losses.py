"""What a training step differentiates: forward followed by a scalar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

import torch

from memwall.core import compat
from memwall.core.errors import UsageError
from memwall.frontend.targets import Workload


def forward_step(module: Callable[..., Any], loss: Callable[[Any], Any] | None) -> Callable[..., Any]:
    """Forward, followed by the workload's own loss if there is one."""
    if loss is None:
        return module

    def step(*args: Any, **kwargs: Any) -> Any:
        return loss(module(*args, **kwargs))

    return step


def scalar_loss(workload: Workload, output: Any) -> torch.Tensor:
    """The scalar to differentiate: what the workload's loss gave, else the output's ``.loss``, else the sum of its
    floating tensors."""
    loss: Any = output
    if workload.loss is None:
        loss = getattr(output, "loss", None)
        if loss is None and isinstance(output, Mapping):
            loss = output.get("loss")
    if workload.loss is None and loss is None:
        floating = [t for t in tensors_in(output) if t.is_floating_point() and t.requires_grad]
        if not floating:
            raise UsageError(
                "training needs a loss: no output of the model is a floating tensor that depends on a parameter"
            )
        loss = sum((tensor.sum() for tensor in floating[1:]), floating[0].sum())
    if not isinstance(loss, torch.Tensor):
        raise UsageError(f"the loss is a {type(loss).__name__}; want a tensor")
    if not loss.requires_grad:
        raise UsageError("the loss depends on no parameter, so there is nothing to train")
    return loss


def backward(loss: torch.Tensor) -> None:
    """Gradients of a loss, summed over its elements."""
    loss.backward(None if loss.numel() == 1 else torch.ones_like(loss))


def tensors_in(output: Any) -> list[torch.Tensor]:
    """The tensors of an output: of a container that torch's pytree knows, or of a dataclass. Raises ``UsageError``: it
    holds itself."""
    if is_dataclass(output) and not isinstance(output, (type, Mapping)):
        output = vars(output)
    return [t for t in flattened(output, "what the model returns") if isinstance(t, torch.Tensor)]


def flattened(tree: Any, what: str) -> list[Any]:
    """What a tree that torch's pytree knows holds. Raises ``UsageError``: it holds itself."""
    try:
        return compat.tree_flatten(tree)[0]
    except RecursionError:
        raise UsageError(f"{what} holds itself, or is nested without end: leave that out") from None
