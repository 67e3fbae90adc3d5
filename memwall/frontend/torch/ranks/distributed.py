"""Programs of several GPUs seen from one rank, without the others: process groups, and what is sent in them. Modules
that are wrapped for several are in :mod:`memwall.frontend.torch.ranks.data_parallel`.

A process group that the model makes is a fake one of torch's own, in which collectives return at once; they are
recorded.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from memwall.core import compat
from memwall.core.errors import UsageError
from memwall.core.graph import Graph
from memwall.core.ranks import ranks_text
from memwall.core.units import counted, size
from memwall.frontend.facts import RankJob
from memwall.frontend.targets.blame import is_machinery
from memwall.frontend.torch.dispatch.streams import Streams
from memwall.frontend.torch.ranks.dtensors import forget_meshes
from memwall.frontend.torch.ranks.flat_shards import constructing
from memwall.ops.collective import receives, sent
from memwall.ops.signatures import Signature

_BATCHED = dist.batch_isend_irecv if dist.is_available() else None


def _together(operations: Any) -> Any:
    """``torch.distributed.batch_isend_irecv``, whose messages NCCL sends in one kernel over full-duplex links."""
    with Streams.active.together():
        return _BATCHED(operations)  # type: ignore[misc]


@contextlib.contextmanager
def fake_groups() -> Iterator[None]:
    """While open, a process group that is made is a fake one, and what a wrapper checks over it is left out."""
    if not dist.is_available():
        yield
        return
    import torch.distributed.device_mesh as meshes
    import torch.nn.parallel.distributed as parallel

    set_up_name = compat.name_of("setup_world_group")
    set_up = getattr(meshes.DeviceMesh, set_up_name)

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

        for home in (dist, dist.distributed_c10d):
            stack.enter_context(patch.object(home, "batch_isend_irecv", _together))
        stack.enter_context(patch.dict(dist.Backend.backend_capability, _DEVICES))
        if "torch.distributed.fsdp" in sys.modules:
            stack.enter_context(constructing())
        for home in (dist, dist.distributed_c10d, meshes):
            stack.enter_context(patch.object(home, "init_process_group", init))
        for home in (dist, dist.distributed_c10d):
            stack.enter_context(patch.object(home, "new_group", _new_group))
        stack.enter_context(patch.object(dist, "get_backend", _backend_asked_for))
        library = stack.enter_context(compat.scoped_library("c10d", "IMPL"))
        for name in _COALESCED:
            library.impl(name, lambda *args: compat.c10d.FakeWork().boxed(), "Meta")
        stack.enter_context(patch.object(meshes.DeviceMesh, set_up_name, large_enough))
        for name in ("verify_param_shapes", "sync_module_states"):
            stack.enter_context(patch.object(parallel, compat.name_of(name), lambda *args, **kwargs: None))
        original = parallel.DistributedDataParallel.__init__

        def make(self: Any, module: nn.Module, device_ids: Any = None, output_device: Any = None, **rest: Any) -> None:
            original(self, module, **rest)

        stack.enter_context(patch.object(parallel.DistributedDataParallel, "__init__", make))
        yield


@contextlib.contextmanager
def as_rank(rank: int, world: int, per_node: int) -> Iterator[None]:
    """While open, a program finds what ``torchrun`` tells this rank of so many, ``per_node`` on each node, and JAX as
    many devices; its process group ends with it."""
    told = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": rank % per_node,
        "LOCAL_WORLD_SIZE": min(per_node, world),
        "GROUP_RANK": rank // per_node,
        "GROUP_WORLD_SIZE": -(-world // per_node),
        "MASTER_PORT": 29500,
        "JAX_NUM_CPU_DEVICES": world,
    }
    environment = {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in told.items()}}
    with patch.dict(os.environ, environment), own_group(), fake_groups():
        yield


def has_other_ranks() -> bool:
    """Whether the process group that the model made has other ranks, which a trace does not run."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _init(
    backend: Any = None,
    init_method: Any = None,
    timeout: Any = None,
    world_size: int = -1,
    rank: int = -1,
    *args: Any,
    **kwargs: Any,
) -> None:
    """A group of torch's fake backend, of the size asked for or that the environment states."""
    store = compat.FakeStore()
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
    _ORIGINAL("fake", store=store, rank=rank, world_size=world_size)


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
    """A process group that is made in the body ends with it: the model may be built again, and makes it again. So does
    torch's way of printing errors, which puts a rank before each line, once more for each group."""
    before, hook = dist.is_available() and dist.is_initialized(), sys.excepthook
    try:
        yield
    finally:
        if not before:
            end_group()
            sys.excepthook = hook


def end_group() -> None:
    """End the process group, if there is one."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        _ASKED.clear()
        forget_meshes()


def this_rank() -> RankJob | None:
    """The job of this rank among several; None of one alone."""
    return RankJob(dist.get_rank(), dist.get_world_size()) if has_other_ranks() else None


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


def unexchanged(graph: Graph) -> str:
    """What to say of a training step in a process group of several whose ranks never hear of each other's gradients;
    else empty."""
    trained = any(storage.role == "gradient" for storage in graph.storages)
    sends = any(op.op_class == "communication" and op.phase != "forward" for op in graph.ops)
    if not has_other_ranks() or not trained or sends:
        return ""
    return (
        f"the program has {dist.get_world_size()} ranks and exchanges its trained weights nowhere: nothing is sent"
        " after forward; DistributedDataParallel and fully_shard exchange gradients, and what the training loop itself"
        " sends is not seen"
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
    way = receives(signature.name) if streams.in_batch else None
    with contextlib.nullcontext() if waits else streams.issuing_to((said["group"], way)):
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
    recorder.free_calls[name] += not recorder.paused and recorder.rebinding is None
    if name == _WRAP:
        return compat.AsyncCollectiveTensor(tensor)
    recorder.streams.wait_for_storage(recorder.storage(tensor))
    return tensor


def ranks_of(group: Any) -> list[int]:
    """The ranks in a process group, which operators are given boxed or by name."""
    if isinstance(group, str):
        group = compat.resolve_process_group(group)
    elif isinstance(group, torch.ScriptObject):
        group = dist.ProcessGroup.unbox(group)
    return dist.get_process_group_ranks(group)


_OF_PROCESS = ("DeviceMesh", "ProcessGroup", compat.name_of("FSDPDeviceHandle"))


def is_of_process(thing: Any) -> bool:
    """Whether an object stands for the ranks of this process, which copies share."""
    return dist.is_available() and type(thing).__name__ in _OF_PROCESS
