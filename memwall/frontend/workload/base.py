"""The workload: a model, its inputs, its loss and its optimizer, each as it is or as a function that builds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    Inputs = tuple[Any, ...] | list[Any] | dict[str, Any]


@dataclass(frozen=True)
class Workload:
    """What a step runs.

    Functions are called by whoever traces or measures, under the device that it chose; nothing is built before.

    Attributes:
        model: a module, or a function without arguments that builds one.
        inputs: positional inputs (tuple or list), keyword inputs (dict), or a function that builds them.
        loss: output -> scalar tensor; ``None`` takes the output's ``.loss``, else the sum of its floating tensors.
        optimizer: parameters -> optimizer, or a name such as ``"adamw"``; ``None`` stops after backward.
        name: a short name for reports.
        target: what the user wrote to name it.
    """

    model: nn.Module | Callable[..., nn.Module]
    inputs: Inputs | Callable[..., Inputs]
    loss: Callable[[Any], Tensor] | None = None
    optimizer: Callable[[Any], Optimizer] | str | None = "adamw"
    name: str = "model"
    target: str = ""
