"""Modules wrapped for several GPUs, seen from one rank: DistributedDataParallel and ``fully_shard``
(FullyShardedDataParallel: :mod:`memwall.frontend.torch.ranks.flat_shards`).

``DistributedDataParallel`` is made again around the module's copy, so that its own reducer copies gradients into
buckets and sends them. Of a sharded module the shards are made whole and freed as on a device.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn

from memwall.core import compat
from memwall.core.errors import UsageError
from memwall.frontend.torch.ranks.distributed import fake_groups
from memwall.frontend.torch.ranks.flat_shards import gathering, is_flat_sharded, settle_flat_shards


def is_data_parallel(module: nn.Module) -> bool:
    """Whether a module is a DistributedDataParallel, whose reducer waits for gradients."""
    return type(module).__name__ == "DistributedDataParallel" and hasattr(module, "reducer")


def waits_for_ranks(module: nn.Module, training: bool) -> bool:
    """Whether blocks of a module depend on what others do: a reducer waits for gradients, shards are gathered ahead."""
    return any(
        is_sharded(part) or is_flat_sharded(part) or (training and is_data_parallel(part)) for part in module.modules()
    )


def remade(wrapped: Any, module: nn.Module) -> nn.Module:
    """A DistributedDataParallel like ``wrapped`` around another module; it does not search for unused parameters, which
    needs data."""
    from torch.nn.parallel import DistributedDataParallel

    cap = None if wrapped.bucket_bytes_cap_default else wrapped.bucket_bytes_cap / 2**20
    with fake_groups(), _buckets_of_later_steps(wrapped), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # broadcast_buffers has a new name
        made = DistributedDataParallel(
            module,
            process_group=wrapped.process_group,
            broadcast_buffers=wrapped.broadcast_buffers,
            bucket_cap_mb=cap,
            gradient_as_bucket_view=wrapped.gradient_as_bucket_view,
        )
    made.register_comm_hook(buckets := list[torch.Tensor](), _all_reduced)
    _BUCKETS[made] = buckets
    return made


#: DistributedDataParallel → the buffers of its buckets, which it holds from step to step
_BUCKETS: WeakKeyDictionary[nn.Module, list[torch.Tensor]] = WeakKeyDictionary()


def buckets_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers in which modules below one send gradients, by name."""
    for path, part in module.named_modules():
        for number, buffer in enumerate(_BUCKETS.get(part, ())):
            yield f"{path}.bucket{number}".lstrip("."), buffer


@contextlib.contextmanager
def _buckets_of_later_steps(wrapped: Any) -> Iterator[None]:
    """While open, a reducer is made with the buckets to which torch changes after the first step, which has one alone:
    parameters from the last to the first, as gradients come (``Reducer::rebuild_buckets``)."""
    name = compat.name_of("bucket_assignment")
    assign = getattr(dist, name)
    limits = [compat.first_bucket_bytes] * wrapped.bucket_bytes_cap_default + [wrapped.bucket_bytes_cap]

    def rebuilt(parameters: Any, _: Any, sparse: Any) -> tuple[list[list[int]], list[int]]:
        buckets, sizes = assign(parameters[::-1], limits, sparse[::-1])
        last = len(parameters) - 1
        return [[last - place for place in bucket] for bucket in reversed(buckets)], sizes[::-1]

    with patch.object(dist, name, rebuilt):
        yield


def _all_reduced(state, bucket):  # type: ignore[no-untyped-def]  # torch reads the annotations of a hook
    """What the reducer does with a bucket: a fake group returns no result of its own."""
    buffer = bucket.buffer()
    state.append(buffer)
    dist.all_reduce(buffer.div_(dist.get_world_size()), async_op=True)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(buffer)
    return done


def is_sharded(module: nn.Module) -> bool:
    """Whether ``fully_shard`` shards a module's parameters."""
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def keep_state(module: nn.Module, made: nn.Module, copied: Callable[[Any], Any]) -> None:
    """Give a sharded module's copy the copy of what ``fully_shard`` knows of it."""
    compat.insert_module_state(made, copied(compat.module_state(module)))


def _groups(module: nn.Module) -> list[Any]:
    """The groups of parameters below a module that are gathered together."""
    states: dict[int, Any] = {id(s): s for m in module.modules() if is_sharded(m) and (s := compat.module_state(m))}
    several = compat.name_of("fsdp_param_groups")
    # torch 2.11 has one group a state
    return [g for s in states.values() for g in getattr(s, several, [compat.fsdp_param_group(s)]) if g]


def settle_shards(module: nn.Module) -> None:
    """Let the shards of a module's copy be as torch makes them on a device."""
    settle_flat_shards(module)
    _settle_groups(module)


def _settle_groups(module: nn.Module) -> None:
    """Let sharded parameters without data be parts of what their groups gather, padded as on a device. torch does so
    for those with data (``FSDPParam.reset_sharded_param``)."""
    for parameter in (item for group in _groups(module) for item in group.fsdp_params):
        if parameter.offload_to_cpu:
            raise UsageError("CPUOffloadPolicy keeps parameters on the host, which is not modeled: leave it out")
        info, axis = compat.module_info(parameter), parameter.fsdp_placement.dim
        own = parameter.sharded_param = getattr(info.module, info.param_name)
        setattr(parameter, compat.name_of("sharding_spec"), compat.dtensor_spec(own))
        local = compat.local_tensor(own)
        if local.is_meta:
            padded = torch.empty(parameter.padded_sharded_param_size, dtype=local.dtype, device="meta")
            setattr(parameter, compat.name_of("sharded_param_data"), padded.view(-1))
            own_part = padded.narrow(axis, 0, local.size(axis) if local.numel() else 0)
            setattr(own, compat.name_of("local_tensor"), own_part)


@contextlib.contextmanager
def sharding(module: nn.Module, release: Callable[[torch.UntypedStorage], None]) -> Iterator[None]:
    """While open, a sharded module runs without data, and ``release`` is called with memory that it frees and asks for
    again."""
    if not waits_for_ranks(module, training=False):
        yield
        return
    resize = torch.UntypedStorage.resize_

    def resized(storage: torch.UntypedStorage, size: int) -> Any:
        release(storage)
        return resize(storage, size)

    with _gathering_groups(module), gathering(module), patch.object(torch.UntypedStorage, "resize_", resized):
        yield


@contextlib.contextmanager
def _gathering_groups(module: nn.Module) -> Iterator[None]:
    """While open, copies of what ``fully_shard`` gathers are recorded as the ops of aten that they are."""
    if not _groups(module):
        yield
        return
    ops, collectives = torch.ops.fsdp, compat.fsdp_collectives
    copies: Any = {
        "all_gather_copy_in": collectives.all_gather_copy_in_cuda,
        "split_with_sizes_copy": collectives.split_with_sizes_copy,
        "chunk_cat": collectives.chunk_cat,
    }
    with (
        patch.multiple(ops, **copies),
        patch.object(collectives, compat.name_of("get_device_handle"), lambda kind: torch.cuda),
        patch.object(type(_groups(module)[0]), compat.name_of("refuse_meta"), lambda group: None),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # of what forward returns, whatever it is used for
        yield
