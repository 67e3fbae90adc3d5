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

from memwall.core import compat
from memwall.core.errors import UsageError


@contextlib.contextmanager
def constructing() -> Iterator[None]:
    """While open, wrappers are made of modules without data, whatever ``device_id`` they are given."""
    import torch.distributed.fsdp.fully_sharded_data_parallel as wrapper

    def place(module: nn.Module, *args: Any) -> torch.device:
        return next((p.device for p in module.parameters()), torch.device("meta"))

    def on_cuda(state: Any, *args: Any) -> Any:
        setattr(state, compat.name_of("device_handle"), torch.cuda)
        return state

    answers = {
        "device_from_device_id": lambda *args: None,
        "compute_device": place,
        "need_to_materialize_module": lambda *args: (False, False),
        "sync_module_params_and_buffers": lambda *args: None,
    }
    unmade: dict[str, Any] = {compat.name_of(name): answer for name, answer in answers.items()}
    with (
        patch.object(compat.FSDPDeviceHandle, "from_device", lambda device: torch.cuda),
        patch.object(wrapper, compat.name_of("init_device_handle"), on_cuda),
        patch.multiple(compat.flat_init, **unmade),
        patch.object(compat.fsdp_param, compat.name_of("chunk_with_empty"), _ShardChunks),
    ):
        yield


class _ShardChunks:
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
        order, handle = compat.exec_order_data(unit), compat.flat_handle(unit)
        limits = compat.backward_prefetch_limit(order), compat.forward_prefetch_limit(order)
        new = {
            "exec_order_data": type(order)(compat.debug_level(unit), *limits),
            "is_root": None,
            "device_handle": torch.cuda,
        }
        for name, value in new.items():
            setattr(unit, compat.name_of(name), value)
        unit.compute_device = torch.device("meta")
        if handle is not None:
            handle.device = unit.compute_device
            setattr(handle, compat.name_of("handle_device"), torch.cuda)
            if compat.use_orig_params(handle):
                compat.use_sharded_views(handle)


def whole_elements(module: nn.Module, parameters: Iterable[torch.Tensor]) -> int:
    """Elements of a module's parameters, with what flat parameters keep on other ranks."""
    whole: dict[int, int] = {}
    handles = map(compat.flat_handle, _units(module))
    for flat in (handle.flat_param for handle in handles if handle is not None):
        counts = [shape.numel() for shape in compat.flat_shapes(flat)]
        whole[id(flat)] = sum(counts)
        whole |= {id(own): count for own, count in zip(compat.flat_parts(flat) or (), counts, strict=False)}
    return sum(whole.get(id(parameter), parameter.numel()) for parameter in parameters)


@contextlib.contextmanager
def gathering(module: nn.Module) -> Iterator[None]:
    """While open, the wrappers in a module run without data."""
    if not _units(module):
        yield
        return
    # memory of tensors on meta has a size and no address
    with patch.object(compat.flat_param, compat.name_of("data_ptr_allocated"), compat.storage_size_allocated):
        yield


def _units(module: nn.Module) -> list[Any]:
    return [part for part in module.modules() if is_flat_sharded(part)]
