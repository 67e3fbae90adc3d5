"""Workload → a module, its inputs and its optimizer as tensors without data (or, with ``--real``, small real ones).

The caller's module and tensors are not changed: an existing module is copied without its data.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.utils._pytree import tree_map

from memwall.core.errors import UsageError, message_of
from memwall.frontend.torch.device import TracedDevice
from memwall.frontend.workload.blame import blame, first_line


def build_module(source: nn.Module | Callable[[], nn.Module], device: str, warn: Callable[[str], None]) -> nn.Module:
    """The module on ``device``, sharing nothing with the caller's; a UsageError where the caller's function raises, or
    returns no module."""
    if isinstance(source, nn.Module):
        return _copy_module(source, device)
    module = _construct(source, device, "building the model", warn)
    if not isinstance(module, nn.Module):
        raise UsageError(f"the model function returned {type(module).__name__}, not a torch.nn.Module")
    # what the function returned may be kept by the user's file, a module-level singleton perhaps
    return _copy_module(module, device)


def build_inputs(source: Any, device: str, warn: Callable[[str], None]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of the forward call, their tensors on ``device``; a UsageError where the
    caller's function raises, or returns neither tensors, a tuple, a list nor a dict."""
    inputs = _construct(source, device, "making the inputs", warn) if callable(source) else source
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, (tuple, list, dict)):
        raise UsageError(f"inputs are a {type(inputs).__name__}; want a tuple, a list or a dict of tensors")
    moved = tree_map(lambda item: _place(item, device) if isinstance(item, torch.Tensor) else item, inputs)
    return ((), dict(moved)) if isinstance(moved, dict) else (tuple(moved), {})


def cast(module: nn.Module, args: Any, kwargs: Any, dtype: torch.dtype) -> tuple[nn.Module, Any, Any]:
    """Module and inputs with their floating tensors in ``dtype``."""

    def change(item: Any) -> Any:
        if isinstance(item, torch.Tensor) and item.is_floating_point():
            return item.detach().to(dtype).requires_grad_(item.requires_grad)
        return item

    return module.to(dtype), tree_map(change, args), tree_map(change, kwargs)


def _construct(make: Callable[[], Any], device: str, doing: str, warn: Callable[[str], None]) -> Any:
    """Call the user's function with tensors on ``device``; where it needs data, build on the host after all."""
    try:
        with TracedDevice(device, building=True):
            return make()
    except Exception as error:
        may_need_data = isinstance(error, (RuntimeError, TypeError)) and "meta" in message_of(error)
        if device == "cpu" or not may_need_data:
            raise blame(error, doing) from error
        reason = first_line(error) or type(error).__name__
    try:
        warn(f"{doing} needs data ({reason[:80]}): building on the host, weights in memory")
        with TracedDevice("cpu", building=True):
            return make()
    except Exception as error:
        raise blame(error, doing) from error


def _place(tensor: torch.Tensor, device: str) -> torch.Tensor:
    if tensor.is_nested:
        raise UsageError(
            "a nested tensor is given to the model; memwall traces dense ones: pad it, as in .to_padded_tensor(0)"
        )
    if device == "cpu":
        return tensor.detach().to("cpu", copy=True).requires_grad_(tensor.requires_grad)
    if tensor.layout is not torch.strided:
        raise UsageError(
            f"an input is a {tensor.layout} tensor; memwall traces strided tensors: pass its dense form,"
            " .to_dense(), or trace real tensors with --real"
        )
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return empty.requires_grad_(tensor.requires_grad)


def _copy_module(module: nn.Module, device: str) -> nn.Module:
    """A deep copy whose tensors are on ``device``: on ``meta`` no data is copied, ties between weights are kept."""
    if isinstance(module, torch.jit.ScriptModule):
        raise UsageError("a TorchScript module hides its ops; give memwall the nn.Module that it was made from")
    module = getattr(module, "_orig_mod", module)  # torch.compile(m): eager execution is what is traced
    memo: dict[int, Any] = {}
    try:
        for part in module.modules():
            for holder in (part._parameters, part._buffers, part.__dict__):
                for tensor in _tensors_among(holder.values()):
                    if isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)):
                        raise UsageError(
                            f"{type(part).__name__} has lazy parameters: call the module once before it is profiled"
                        )
                    if id(tensor) not in memo:
                        placed, is_parameter = _place(tensor, device), isinstance(tensor, nn.Parameter)
                        memo[id(tensor)] = (
                            nn.Parameter(placed.detach(), tensor.requires_grad) if is_parameter else placed
                        )
        copied = _copy_part(module, memo)
    except Exception as error:
        raise blame(error, "copying the module") from error
    for part in copied.modules():
        part._compiled_call_impl = None
    return copied


def _tensors_among(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among some values and in the lists, tuples and dicts among them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif type(value) in (list, tuple):
            yield from _tensors_among(value)
        elif type(value) is dict:
            yield from _tensors_among(value.values())


_PLAIN = frozenset((bool, int, float, str, bytes, type(None), torch.dtype, torch.device, torch.Size))
_CONTAINERS = frozenset((dict, set, list, collections.OrderedDict))
_HELD = frozenset(("_parameters", "_buffers"))


def _copy_part(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """What ``copy.deepcopy`` does for a module, faster: most of its fields are plain or empty."""
    if id(module) in memo:
        known: nn.Module = memo[id(module)]
        return known
    kind = type(module)
    if hasattr(kind, "__deepcopy__") or kind.__reduce_ex__ is not object.__reduce_ex__:
        return copy.deepcopy(module, memo)
    result = memo[id(module)] = kind.__new__(kind)
    fields = result.__dict__
    for name, value in module.__dict__.items():
        if type(value) in _PLAIN:
            fields[name] = value
        elif name in _HELD:
            fields[name] = type(value)((key, memo.get(id(tensor))) for key, tensor in value.items())
        elif name == "_modules":
            fields[name] = type(value)(
                (key, None if part is None else _copy_part(part, memo)) for key, part in value.items()
            )
        elif type(value) in _CONTAINERS and not value:
            fields[name] = type(value)()
        else:
            fields[name] = copy.deepcopy(value, memo)
    return result


# -- optimizers, as a CUDA device would run them, in their steady state ------------------------------

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
    kind = type(optimizer)
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UsageError(
            f"{kind.__name__} runs the model itself, as often as its search asks (by a closure): profile one"
            " evaluation with --optimizer none (optimizer=None) and multiply"
        )
    for group in optimizer.param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True
    return optimizer


def settle(optimizer: torch.optim.Optimizer) -> None:
    """Take one dense dummy step, so that the state exists, as it does from the second step on. A UsageError for
    ``SparseAdam``: ``meta`` cannot coalesce its gradients."""
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise UsageError("SparseAdam cannot be traced: take SGD for the sparse gradients, or dense ones (sparse=False)")
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


@contextlib.contextmanager
def any_scalar() -> Iterator[None]:
    """During an optimizer's step: a number that it reads from the device (``.item()``, a norm perhaps) is 1. It scales
    the update and changes no shape."""

    def reading(original: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
        return lambda tensor: 1.0 if tensor.is_meta and tensor.numel() == 1 else original(tensor)

    with contextlib.ExitStack() as stack:
        for name in ("item", "__float__"):
            stack.enter_context(patch.object(torch.Tensor, name, reading(getattr(torch.Tensor, name))))
        yield


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
