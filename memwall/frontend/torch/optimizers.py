"""Optimizers by name, as a CUDA device would run them, in their steady state."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch

from memwall.core.errors import UsageError

_BY_NAME: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": lambda params, **options: torch.optim.SGD(params, lr=0.1, momentum=0.9, **options),
    "sgd-plain": lambda params, **options: torch.optim.SGD(params, lr=0.1, **options),
}
OPTIMIZERS = tuple(_BY_NAME)
_VARIANTS = {"": {}, "foreach": {"foreach": True}, "fused": {"fused": True}, "loop": {"foreach": False}}


def make_optimizer(source: Any, parameters: list[torch.Tensor]) -> torch.optim.Optimizer | None:
    """An optimizer from a name (``adamw``, ``sgd:fused``, ...), a function of the parameters, or None.

    ``sgd`` has momentum 0.9. Without a variant an optimizer takes the multi-tensor form that PyTorch takes on CUDA.

    Raises:
        UsageError: unknown name or variant, or the function returned no optimizer.
    """
    if source is None or source == "none" or not parameters:
        return None
    if isinstance(source, str):
        name, _, variant = source.partition(":")
        if name not in _BY_NAME or variant not in _VARIANTS:
            raise UsageError(
                f"no optimizer {source!r}; want {', '.join(OPTIMIZERS)} or none; :foreach, :fused or :loop may follow"
            )
        optimizer = _BY_NAME[name](parameters, **_VARIANTS[variant])
    else:
        optimizer = source(parameters)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"the optimizer function returned {type(optimizer).__name__}, not a torch.optim.Optimizer")
    for group in optimizer.param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True
    return optimizer


def settle(optimizer: torch.optim.Optimizer) -> None:
    """Take one dense dummy step, so that the state exists, as it does from the second step on.

    Raises:
        UsageError: the optimizer takes sparse gradients only (``SparseAdam``); ``meta`` cannot coalesce those either.
    """
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise UsageError("SparseAdam cannot be traced; SGD on sparse gradients can, and so can dense gradients")
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


@contextlib.contextmanager
def fused_everywhere(*devices: str) -> Iterator[None]:
    """Let ``fused=True`` and ``foreach=True`` accept these types of device, and be the default there, as on CUDA."""
    import torch.optim.optimizer as base
    import torch.utils._foreach_utils as utils

    names = ("_get_fused_kernels_supported_devices", "_get_foreach_kernels_supported_devices")
    with contextlib.ExitStack() as stack:
        for place, name in itertools.product((base, utils), names):
            if original := getattr(place, name, None):
                replaced = lambda original=original: [*original(), *devices]  # noqa: E731
                stack.enter_context(patch.object(place, name, replaced))
        yield
