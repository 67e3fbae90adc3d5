"""A workload under a layout: one microbatch of one rank is traced, and its blocks are timed on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from memwall.core.errors import UsageError
from memwall.hardware.cluster import all_at_once, hardware_of
from memwall.hardware.gpu import Gpu
from memwall.hardware.links import Cluster
from memwall.ops.launches import Message
from memwall.perfmodel.collectives import CollectiveTime, message_time
from memwall.pipeline import profile_of
from memwall.record.profile import Profile
from memwall.training.block_reader import light_blocks, read_blocks
from memwall.training.blocks import Blocks
from memwall.training.dispatch import Routing, hybrid_time
from memwall.training.layout import Parallelism

if TYPE_CHECKING:
    from memwall.frontend.targets import Workload
    from memwall.frontend.torch import TraceOptions
    from memwall.training.sharding import Split


def trace_rank(
    workload: Workload,
    layout: Parallelism,
    options: TraceOptions,
    split: Split | None = None,
    warn: Callable[[str], None] = lambda message: None,
) -> Profile:
    """The training step of one microbatch on one of the ranks that share matmuls, sequences and experts, without the
    optimizer.

    Args:
        workload: its inputs are a microbatch.
        options: of a trace in training.
        split: what tensor parallelism splits; None finds it in a trace of the forward pass.

    Raises:
        UsageError: as a trace; or the model has nothing to split.
    """
    from memwall.frontend.torch import trace

    shares, heads = dict[str, None](), dict[str, int]()
    if layout.traced != Parallelism():
        workload = _of_rank(workload, layout, options, split, shares, heads)
    try:
        traced = trace(replace(workload, optimizer=None), replace(options, mode="training"), warn)
    except UsageError as error:
        if layout.tp == 1 or str(error).startswith(("tp=", "sp", "cp", "ep")):
            raise
        if undivided := [f"{name}={count}" for name, count in heads.items() if count % layout.tp]:
            raise UsageError(f"tp={layout.tp} does not divide {' and '.join(undivided)} of the model") from None
        hint = (
            "its heads, of keys too, must be a multiple of the ranks, and counted by -1 or by an attribute such as"
            " n_heads, of which a rank has a share"
        )
        told = f"tp={layout.tp}" + ",sp" * layout.sp
        raise UsageError(
            f"{told}: the model of one rank fails; {hint}{'; try without sp' * layout.sp}: {error}"
        ) from None
    return profile_of(traced).with_facts(shares=tuple(shares))


def shortened(workload: Workload) -> Any:
    """The model of a workload, whose longest list of layers has the first two and the last alone, as
    :meth:`memwall.training.blocks.Blocks.stretched` takes it."""
    from torch import nn

    from memwall.frontend.torch.build import build_module

    source: Any = workload.model
    whole = build_module(source, "meta", lambda message: None).module
    lists = [item for item in whole.named_modules() if isinstance(item[1], (nn.ModuleList, nn.Sequential))]
    if lists:
        path, layers = max(lists, key=lambda item: len(item[1]))
        kept: Any = layers[:3]
        kept[-1] = layers[-1]
        whole.set_submodule(path, kept)
    return whole


def split_of(workload: Workload, options: TraceOptions) -> Split:
    """What tensor parallelism splits in a model, found in a trace of its forward pass."""
    from memwall.frontend.torch import trace
    from memwall.training.sharding import find_split

    alone = replace(workload, loss=None, optimizer=None)
    return find_split(trace(alone, replace(options, mode="inference")).graph)


def _of_rank(
    workload: Workload,
    layout: Parallelism,
    options: TraceOptions,
    split: Split | None,
    shares: dict[str, None],
    heads: dict[str, int],
) -> Workload:
    """The workload whose model is one rank's; ``shares`` gets the names of its shares of parameters, ``heads``
    what the whole model says of its heads."""
    from memwall.frontend.torch.build import build_module
    from memwall.training.sharding import Split, heads_of, shares_of, split_module

    if split is None:
        split = split_of(workload, options) if layout.tp > 1 else Split(())

    def model() -> Any:
        source = workload.model
        whole = source() if not hasattr(source, "parameters") else build_module(source, "meta", print).module
        heads.update(heads_of(whole))
        made = split_module(whole, split, layout)
        shares.update(dict.fromkeys(shares_of(made)))
        return made

    return replace(workload, model=model)


def blocks_of(
    profile: Profile,
    cluster: Cluster,
    policy: str = "eager",
    *,
    gpu: Gpu | None = None,
    within_modules: bool = False,
    slower: Mapping[str, float] = MappingProxyType({}),
) -> Blocks:
    """The blocks of a rank's step on a cluster.

    Args:
        gpu: in place of the cluster's own, such as on another host.
        slower: as for :func:`memwall.training.block_reader.read_blocks`.
        within_modules: the policy fuses what is in one part of the model only, as where fused kernels are written by
            hand.

    Raises:
        UsageError: the model has no list of layers.
    """
    gpu = gpu or hardware_of(cluster)
    gpu = replace(gpu, host=replace(gpu.host, low=1.0, high=1.0))  # no interval is asked for
    ranked = profile.on([gpu])
    graph = ranked.graphs[ranked.graph_for(gpu)]
    modules = {name: number for number, name in enumerate(dict.fromkeys(op.module for op in graph.ops))}
    regions = [modules[op.module] if op.module else -2 - op.id for op in graph.ops] if within_modules else None
    schedule = ranked.schedule(gpu, policy, regions=regions)
    held = {"contraction": 1 / gpu.trained_products, **slower}
    sent_s = partial(_message_s, all_at_once(cluster))
    return read_blocks(graph, schedule, sent_s, held, profile.traced.shares)


def light_blocks_of(profile: Profile, cluster: Cluster, policy: str = "eager", *, gpu: Gpu | None = None) -> Blocks:
    """As :func:`blocks_of`, by :func:`memwall.training.block_reader.light_blocks`."""
    gpu = gpu or hardware_of(cluster)
    ranked = profile.on([gpu])
    graph, joined = ranked.graphs[ranked.graph_for(gpu)], all_at_once(cluster)
    return light_blocks(graph, ranked.schedule(gpu, policy), lambda *message: _message(joined, *message).bound_s)


def _message_s(cluster: Cluster, *message: Any) -> float:
    return _message(cluster, *message).time_s


def _message(cluster: Cluster, op: str, nbytes: int, group: str, routing: Routing | None = None) -> CollectiveTime:
    """A collective of the ranks of a group, or what HybridEP sends in its place."""
    message = Message(op=op, nbytes=nbytes, group=group)
    return hybrid_time(message, cluster, routing) if routing else message_time(message, cluster)
