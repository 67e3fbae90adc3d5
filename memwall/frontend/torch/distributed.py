"""Programs of several GPUs seen from one rank, without the others: process groups, DistributedDataParallel and
``fully_shard`` (FullyShardedDataParallel: :mod:`memwall.frontend.torch.flat_shards`).

A process group that the model makes is a fake one of torch's own, in which collectives return at once; they are
recorded. ``DistributedDataParallel`` is made again around the module's copy, so that its own reducer
copies gradients into buckets and sends them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn

from memwall.core.errors import UsageError
from memwall.core.graph import Graph
from memwall.core.ranks import ranks_text
from memwall.core.units import counted, size
from memwall.frontend.torch.dtensors import forget_meshes
from memwall.frontend.torch.flat_shards import constructing, gathering, is_flat_sharded, settle_flat_shards
from memwall.frontend.torch.streams import Streams
from memwall.frontend.workload.blame import is_machinery
from memwall.ops.collective import sent
from memwall.ops.signatures import Signature


@contextlib.contextmanager
def fake_groups() -> Iterator[None]:
    """While open, a process group that is made is a fake one, and what a wrapper checks over it is left out."""
    if not dist.is_available():
        yield
        return
    import torch.distributed.device_mesh as meshes
    import torch.nn.parallel.distributed as parallel

    set_up = meshes.DeviceMesh._setup_world_group_and_device

    with contextlib.ExitStack() as stack:

        def large_enough(mesh: Any) -> Any:
            _grow(mesh.size())
            if (ranks := dist.get_world_size()) % mesh.size():
                raise UsageError(
                    f"a mesh of {tuple(mesh.shape)} does not divide {ranks} ranks: {_divided(mesh, ranks)}"
                )
            stack.enter_context(constructing())
            return set_up(mesh)

        def init(*args: Any, **kwargs: Any) -> None:
            _init(*args, **kwargs)
            stack.enter_context(constructing())

        stack.enter_context(patch.dict(dist.Backend.backend_capability, _DEVICES))
        if "torch.distributed.fsdp" in sys.modules:
            stack.enter_context(constructing())
        for home in (dist, dist.distributed_c10d, meshes):
            stack.enter_context(patch.object(home, "init_process_group", init))
        for home in (dist, dist.distributed_c10d):
            stack.enter_context(patch.object(home, "new_group", _new_group))
        stack.enter_context(patch.object(dist, "get_backend", _backend_asked_for))
        library = stack.enter_context(torch.library._scoped_library("c10d", "IMPL"))
        for name in _COALESCED:
            library.impl(name, lambda *args: torch._C._distributed_c10d.FakeWork().boxed(), "Meta")
        stack.enter_context(patch.object(meshes.DeviceMesh, "_setup_world_group_and_device", large_enough))
        for name in ("_verify_param_shape_across_processes", "_sync_module_states"):
            stack.enter_context(patch.object(parallel, name, lambda *args, **kwargs: None))
        original = parallel.DistributedDataParallel.__init__

        def make(self: Any, module: nn.Module, device_ids: Any = None, output_device: Any = None, **rest: Any) -> None:
            original(self, module, **rest)

        stack.enter_context(patch.object(parallel.DistributedDataParallel, "__init__", make))
        yield


@contextlib.contextmanager
def as_rank(rank: int, world: int, per_node: int) -> Iterator[None]:
    """While open, a program finds what ``torchrun`` tells this rank of so many, ``per_node`` on each node; its process
    group ends with it."""
    told = {
        "RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank % per_node, "LOCAL_WORLD_SIZE": min(per_node, world),
        "GROUP_RANK": rank // per_node, "GROUP_WORLD_SIZE": -(-world // per_node), "MASTER_PORT": 29500,
    }  # fmt: skip
    environment = {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in told.items()}}
    with patch.dict(os.environ, environment), own_group(), fake_groups():
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

    stated = int(os.environ.get("WORLD_SIZE", "0"))  # which torchrun sets
    if 0 < stated != world_size > 0:
        raise UsageError(
            f"the program makes a process group of {counted(world_size, 'rank')}, and was started as {stated}: it is to"
            f" ask torchrun's WORLD_SIZE, or to be started with --world {world_size}"
        )
    dist.Backend.backend_capability.update(_DEVICES)  # the import above states its own when it is the first
    _SIZE_ASSUMED[:] = [world_size <= 0 and not stated]
    _ASKED[None] = backend
    world_size = world_size if world_size > 0 else stated or 1
    rank = rank if rank >= 0 else int(os.environ.get("RANK", "0"))
    _ORIGINAL("fake", store=FakeStore(), rank=rank, world_size=world_size)


def _new_group(
    ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """A further group: fake as the first one, whatever backend and options the program asks for."""
    group = _ORIGINAL_GROUP(ranks, timeout, None, None, *args, **kwargs)
    _ASKED[group] = backend or _ASKED.get(None)
    return group


def _backend_asked_for(group: Any = None) -> str:
    """``dist.get_backend``: NCCL where the program left the choice to torch; torch itself would ask NCCL then."""
    if is_machinery(sys._getframe(1).f_code.co_filename):
        return "fake"
    return str(_ASKED.get(group) or _ASKED.get(None) or "nccl").rpartition(":")[2]


#: backend → the devices of its tensors
_DEVICES = {"fake": ["cpu", "cuda", "meta"]}
#: what the fake group does without data only for want of kernels: calls that are issued together
_COALESCED = ("allreduce_coalesced_", "allgather_coalesced_", "allgather_into_tensor_coalesced_",
              "reduce_scatter_tensor_coalesced_")  # fmt: skip


def _divided(mesh: Any, ranks: int) -> str:
    """How to fix a mesh that does not divide the ranks."""
    fewer = ranks // mesh.size() * mesh.size()
    return f"start it with --world {fewer or mesh.size()}, or make the mesh of the ranks that there are"


def _grow(ranks: int) -> None:
    """Make the process group that a mesh of so many ranks needs, where nobody said how many there are."""
    if not dist.is_initialized():
        _init()
    if _SIZE_ASSUMED[0] and dist.get_world_size() < ranks:
        end_group()
        _init(world_size=ranks)


#: whether nobody said how many ranks there are in the group that :func:`_init` made last
_SIZE_ASSUMED = [False]
#: process group → the backend that the program asks for; None: of the first one
_ASKED: dict[Any, Any] = {}
_ORIGINAL_GROUP: Any = getattr(dist, "new_group", None)
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
        _ASKED.clear()
        forget_meshes()


def this_rank() -> dict[str, Any]:
    """What a record says of its rank, among several: ``job``."""
    return {"job": {"rank": dist.get_rank(), "world": dist.get_world_size()}} if has_other_ranks() else {}


def one_rank(graph: Graph) -> str:
    """What to say of a trace in a process group of several; else empty."""
    if not has_other_ranks():
        return ""
    count, link_bytes = sent(graph)
    sends = f"{counted(count, 'collective')}, {size(link_bytes)} on the link by rings"
    return (
        f"rank {dist.get_rank()} of {dist.get_world_size()}: what this rank holds, computes and sends ({sends}) of the"
        " inputs that it is given; the wait for slower ranks is not modeled"
    )


@contextlib.contextmanager
def sending(streams: Streams, signature: Signature, out: Any, attributes: list[tuple[str, Any]]) -> Iterator[None]:
    """While open, a call is issued. One that sends to other ranks has them among its ``attributes`` in place of its
    process group, and runs on a stream of theirs unless the program waits for it at once."""
    if not signature.sends:
        yield
        return
    said = dict(attributes)
    waits = not said.pop("async_op", signature.function.namespace != "_dtensor")
    ranks = ranks_of(next((said.pop(name) for name in GROUPS if name in said), None))
    peers = [_peer(ranks, said[name]) for name in ("src", "dst") if name in said and "broadcast" not in signature.name]
    members = sorted({dist.get_rank(), *peers}) if peers else ranks
    said |= {"ranks": len(members), "group": ranks_text(members)}
    attributes[:] = [item for item in said.items() if item[0] not in ("timeout", "reduce_op")]
    with contextlib.nullcontext() if waits else streams.issuing_to(said["group"]):
        yield
    handle = out[-1] if isinstance(out, (tuple, list)) and out else out
    if isinstance(handle, torch.ScriptObject):
        streams.hold(dist.Work.unbox(handle))


def _peer(ranks: list[int], number: int) -> int:
    if not 0 <= number < len(ranks):
        raise UsageError(
            f"the program sends to, or receives from, rank {number} of a group of {counted(len(ranks), 'rank')}: name"
            " one that there is, or start it with a larger --world"
        )
    return ranks[number]


BARRIER = "c10d.barrier"
#: names that operators have for their process group
GROUPS = ("process_group", "group_name")
#: the operator that waits for a collective, and the one that wraps its result in a tensor which waits when it is used;
#: both hand it on, and where it has no data torch makes another
_WAIT, _WRAP = "_c10d_functional.wait_tensor", "_c10d_functional._wrap_tensor_autograd"
HANDED_ON = frozenset((_WAIT, _WRAP))


def handed_on(recorder: Any, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """What an operator of :data:`HANDED_ON` returns on a GPU."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    recorder.free_calls[name] += not recorder.paused and recorder.rebinding is None
    if name == _WRAP:
        return AsyncCollectiveTensor(tensor)
    recorder.streams.wait_for_storage(recorder.storage(tensor))
    return tensor


def ranks_of(group: Any) -> list[int]:
    """The ranks in a process group, which operators are given boxed or by name."""
    if isinstance(group, str):
        by_name: Any = vars(dist.distributed_c10d)["_resolve_process_group"]
        group = by_name(group)
    elif isinstance(group, torch.ScriptObject):
        group = dist.ProcessGroup.unbox(group)
    return dist.get_process_group_ranks(group)


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
            module, process_group=wrapped.process_group, broadcast_buffers=wrapped.broadcast_buffers,
            bucket_cap_mb=cap, gradient_as_bucket_view=wrapped.gradient_as_bucket_view,
        )  # fmt: skip
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
    torch_own: Any = dist
    assign, first = torch_own._compute_bucket_assignment_by_size, torch_own._DEFAULT_FIRST_BUCKET_BYTES
    limits = [first] * wrapped.bucket_bytes_cap_default + [wrapped.bucket_bytes_cap]

    def rebuilt(parameters: Any, _: Any, sparse: Any) -> tuple[list[list[int]], list[int]]:
        buckets, sizes = assign(parameters[::-1], limits, sparse[::-1])
        last = len(parameters) - 1
        return [[last - place for place in bucket] for bucket in reversed(buckets)], sizes[::-1]

    with patch.object(dist, "_compute_bucket_assignment_by_size", rebuilt):
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


def is_of_process(thing: Any) -> bool:
    """Whether an object stands for the ranks of this process, which copies share."""
    return dist.is_available() and type(thing).__name__ in ("DeviceMesh", "ProcessGroup", "_FSDPDeviceHandle")


def keep_state(module: nn.Module, made: nn.Module, copied: Callable[[Any], Any]) -> None:
    """Give a sharded module's copy the copy of what ``fully_shard`` knows of it."""
    from torch.distributed._composable_state import _get_module_state, _insert_module_state

    _insert_module_state(made, copied(_get_module_state(module)))


def _groups(module: nn.Module) -> list[Any]:
    """The groups of parameters below a module that are gathered together."""
    from torch.distributed._composable_state import _get_module_state

    states: dict[int, Any] = {id(s): s for m in module.modules() if is_sharded(m) and (s := _get_module_state(m))}
    # torch 2.11 has one group a state
    return [g for s in states.values() for g in getattr(s, "_fsdp_param_groups", [s._fsdp_param_group]) if g]


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
        info, axis = parameter._module_info, parameter.fsdp_placement.dim
        own = parameter.sharded_param = getattr(info.module, info.param_name)
        parameter._sharding_spec, local = own._spec, own._local_tensor
        if local.is_meta:
            padded = torch.empty(parameter.padded_sharded_param_size, dtype=local.dtype, device="meta")
            parameter._sharded_param_data = padded.view(-1)
            own._local_tensor = padded.narrow(axis, 0, local.size(axis) if local.numel() else 0)


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
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

    ops: Any = torch.ops.fsdp
    copies: Any = {
        "all_gather_copy_in": collectives.all_gather_copy_in_cuda,
        "split_with_sizes_copy": collectives.split_with_sizes_copy,
        "chunk_cat": collectives.chunk_cat,
    }
    with (
        patch.multiple(ops, **copies),
        patch.object(collectives, "_get_device_handle", lambda kind: torch.cuda),
        patch.object(type(_groups(module)[0]), "_validate_no_meta_params", lambda group: None),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # of what forward returns, whatever it is used for
        yield
