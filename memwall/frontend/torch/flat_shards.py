"""``FullyShardedDataParallel`` without a GPU: one rank's flat parameters, gathered before a unit and scattered after.

torch's own wrapper runs over tensors without data. Left out is what asks for a device or for data: weights that lie on
``meta`` are no longer made, nothing is sent to agree on them, and the unit stays where its parameters are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from memwall.core.errors import UsageError


@contextlib.contextmanager
def constructing() -> Iterator[None]:
    """While open, wrappers are made of modules without data, whatever ``device_id`` they are given."""
    import torch.distributed.fsdp._common_utils as common
    import torch.distributed.fsdp._init_utils as made
    import torch.distributed.fsdp.fully_sharded_data_parallel as wrapper

    def place(module: nn.Module, *args: Any) -> torch.device:
        return next((p.device for p in module.parameters()), torch.device("meta"))

    def on_cuda(state: Any, *args: Any) -> Any:
        state._device_handle = torch.cuda
        return state

    with (
        patch.object(common._FSDPDeviceHandle, "from_device", lambda device: torch.cuda),
        patch.object(wrapper, "_init_device_handle", on_cuda),
        patch.multiple(
            made, _get_device_from_device_id=lambda *args: None, _get_compute_device=place,
            _need_to_materialize_module=lambda *args: (False, False),
            _sync_module_params_and_buffers=lambda *args: None,
        ),
        patch("torch.distributed.fsdp._fully_shard._fsdp_param._chunk_with_empty", _Chunks),
    ):  # fmt: skip
        yield


class _Chunks:
    """The parts of a tensor for each of many ranks, of which one is asked for and torch makes all."""

    def __init__(self, tensor: torch.Tensor, count: int, dim: int) -> None:
        self.tensor, self.dim, self.length = tensor, dim, -(-tensor.size(dim) // count)

    def __getitem__(self, rank: int) -> torch.Tensor:
        start = rank * self.length
        if start >= self.tensor.size(self.dim):
            return self.tensor.new_empty(0)
        return self.tensor.narrow(self.dim, start, min(self.length, self.tensor.size(self.dim) - start))


def is_flat_sharded(module: nn.Module) -> bool:
    """Whether a module is a FullyShardedDataParallel."""
    return any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__)


def refuse_unmodeled(module: Any, device: str) -> None:
    """A UsageError for a FullyShardedDataParallel that cannot be traced."""
    if module.cpu_offload.offload_params:
        raise UsageError("CPUOffload keeps parameters on the host, which is not modeled: leave it out")
    if device == "cpu":
        raise UsageError("FullyShardedDataParallel does not run on the host: leave --real out, or use fully_shard")


def settle_flat_shards(module: nn.Module) -> None:
    """Let the copies of wrappers begin as torch makes them: before the first forward, on the traced device, with
    parameters that are views of the flat ones."""
    for unit in _units(module):
        order = unit._exec_order_data
        unit._exec_order_data = type(order)(
            unit._debug_level, order._backward_prefetch_limit, order._forward_prefetch_limit
        )
        unit._is_root, unit._device_handle, unit.compute_device = None, torch.cuda, torch.device("meta")
        if unit._handle is not None:
            unit._handle.device, unit._handle._device_handle = unit.compute_device, torch.cuda
            if unit._handle._use_orig_params:
                unit._handle._use_sharded_views()


def whole_elements(module: nn.Module, parameters: Iterable[torch.Tensor]) -> int:
    """Elements of a module's parameters, those that flat ones keep on other ranks included."""
    whole: dict[int, int] = {}
    for flat in (unit._handle.flat_param for unit in _units(module) if unit._handle is not None):
        counts = [shape.numel() for shape in flat._shapes]
        whole[id(flat)] = sum(counts)
        whole |= {id(own): count for own, count in zip(flat._params or (), counts, strict=False)}
    return sum(whole.get(id(parameter), parameter.numel()) for parameter in parameters)


@contextlib.contextmanager
def gathering(module: nn.Module) -> Iterator[None]:
    """While open, the wrappers in a module run without data."""
    if not _units(module):
        yield
        return
    import torch.distributed.fsdp._flat_param as flat

    # memory of tensors on meta has a size and no address
    with patch.object(flat, "_data_ptr_allocated", flat._storage_size_allocated):
        yield


def _units(module: nn.Module) -> list[Any]:
    return [part for part in module.modules() if is_flat_sharded(part)]
