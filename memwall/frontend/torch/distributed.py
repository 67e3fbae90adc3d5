"""Programs of several GPUs seen from one rank, without the others: process groups and DistributedDataParallel.

A process group that the model makes is a fake one of torch's own, in which collectives return at once; they are
recorded. ``DistributedDataParallel`` is made again around the module's copy, so that its own reducer
copies gradients into buckets and sends them.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from memwall.core.errors import UsageError


@contextlib.contextmanager
def fake_groups() -> Iterator[None]:
    """While open, a process group that is made is a fake one, and what a wrapper checks over it is left out."""
    if not dist.is_available():
        yield
        return
    import torch.nn.parallel.distributed as parallel

    with contextlib.ExitStack() as stack:
        for home in (dist, dist.distributed_c10d):
            stack.enter_context(patch.object(home, "init_process_group", _init))
        for name in ("_verify_param_shape_across_processes", "_sync_module_states"):
            stack.enter_context(patch.object(parallel, name, lambda *args, **kwargs: None))
        original = parallel.DistributedDataParallel.__init__

        def make(self: Any, module: nn.Module, device_ids: Any = None, output_device: Any = None, **rest: Any) -> None:
            original(self, module, **rest)

        stack.enter_context(patch.object(parallel.DistributedDataParallel, "__init__", make))
        yield


def has_other_ranks() -> bool:
    """Whether the process group that the model made has other ranks, which a trace does not run."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _init(
    backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: int = -1, rank: int = -1,
    *args: Any, **kwargs: Any,
) -> None:  # fmt: skip
    """A group of torch's fake backend, of the size asked for or that the environment states."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    world_size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
    rank = rank if rank >= 0 else int(os.environ.get("RANK", "0"))
    _ORIGINAL("fake", store=FakeStore(), rank=rank, world_size=world_size)


_ORIGINAL: Callable[..., None] = dist.init_process_group if dist.is_available() else _init


@contextlib.contextmanager
def own_group() -> Iterator[None]:
    """A process group that is made in the body ends with it: the model may be built again, and makes it again."""
    before = dist.is_available() and dist.is_initialized()
    try:
        yield
    finally:
        if not before:
            end_group()


def end_group() -> None:
    """End the process group, if there is one."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def one_rank() -> str:
    """What to say of a trace in a process group of several; else empty."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return ""
    return (
        f"rank {dist.get_rank()} of {dist.get_world_size()}: what this rank holds and computes, and the collectives"
        " that it calls; waiting for other ranks is not modeled"
    )


def is_data_parallel(module: nn.Module) -> bool:
    """Whether a module is a DistributedDataParallel, whose reducer waits for gradients."""
    return type(module).__name__ == "DistributedDataParallel" and hasattr(module, "reducer")


def remade(wrapped: Any, module: nn.Module) -> nn.Module:
    """A DistributedDataParallel like ``wrapped`` around another module; it does not search for unused parameters, which
    needs data."""
    from torch.nn.parallel import DistributedDataParallel

    with fake_groups(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # broadcast_buffers has a new name
        made = DistributedDataParallel(
            module, process_group=wrapped.process_group, broadcast_buffers=wrapped.broadcast_buffers,
            bucket_cap_mb=wrapped.bucket_bytes_cap / 2**20, gradient_as_bucket_view=wrapped.gradient_as_bucket_view,
        )  # fmt: skip
    made.register_comm_hook(None, _all_reduced)
    return made


def _all_reduced(state, bucket):  # type: ignore[no-untyped-def]  # torch reads the annotations of a hook
    """What the reducer does with a bucket: a fake group returns no result of its own."""
    buffer = bucket.buffer()
    dist.all_reduce(buffer.div_(dist.get_world_size()))
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(buffer)
    return done


def refuse_sharded(module: nn.Module) -> None:
    """A UsageError where a module's parameters are sharded by FSDP."""
    kinds = {kind.__name__ for kind in type(module).__mro__}
    if kinds & {"FullyShardedDataParallel", "FSDPModule"}:
        raise UsageError(
            "FSDP gathers parameters through streams and storages that a trace without a GPU lacks: profile the module"
            " before it is wrapped (fully_shard, FullyShardedDataParallel); DDP and parallelize_module are traced"
        )
