"""Programs of several GPUs, one rank's view: what it holds, computes and sends, by hand."""

import sys
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import memwall
from memwall.analysis.table import class_rows
from memwall.core.errors import UsageError
from memwall.ops.collective import sent
from tests.unit.small_modules import Mlp

RANKS = 8
#: elements of a layer: two weights and two biases; FLOPs of its forward: 8 rows, two products, a ReLU and an addition
LAYER = 2 * 64 * 256 + 256 + 64
LAYER_FLOPS = 2 * 2 * 8 * 64 * 256


def grouped(size: int = RANKS) -> None:
    dist.init_process_group("nccl", rank=1, world_size=size)


def profiled(model, **options) -> memwall.Profile:
    made = memwall.profile(memwall.Workload(model, (torch.zeros(8, 64),)), **options)
    assert not dist.is_initialized()
    return made


def plain() -> nn.Module:
    return nn.Sequential(*(Mlp() for _ in range(3)))


def collectives(made: memwall.Profile) -> Counter:
    return Counter(op.name for op in made.graph.ops if op.op_class == "communication")


def peak(made: memwall.Profile) -> int:
    return made.simulations[0].totals.peak_memory_bytes


def test_ddp_sends_its_gradients_in_buckets():
    """33,088 gradients in float32 are 132 kB: one bucket, into which each is copied and out again."""

    def model():
        grouped()
        return nn.parallel.DistributedDataParallel(Mlp().cuda(), device_ids=[0])

    made = profiled(model, mode="training", optimizer=None)
    alone = profiled(Mlp, mode="training", optimizer=None)
    more = Counter(op.name for op in made.graph.ops) - Counter(op.name for op in alone.graph.ops)
    assert more == {"c10d.allreduce_": 1, "aten.copy_": 8, "aten.div_.Tensor": 1}
    reduced = next(op for op in made.graph.ops if op.name == "c10d.allreduce_")
    assert made.graph.values[reduced.inputs[0]].spec.numel == LAYER
    assert made.capture["notes"][0].startswith("rank 1 of 8")
    assert sent(made.graph) == (1, 2 * 7 / 8 * 4 * LAYER)


def test_a_tensor_parallel_rank_holds_and_computes_its_share():
    def model():
        grouped()
        mesh = init_device_mesh("cuda", (RANKS,))
        return parallelize_module(Mlp(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    made = profiled(model)
    # x is added whole; of the second bias each rank adds 1/8
    assert made.simulations[0].totals.flops == LAYER_FLOPS // 8 + 8 * 64 + 64
    # columns of the first weight and its bias, rows of the second; the second bias is whole
    assert made.graph.role_bytes["parameter"] == 4 * ((64 * 256 + 256 + 256 * 64) // 8 + 64)
    assert sent(made.graph) == (1, 2 * 7 / 8 * 4 * 8 * 64)  # the rows of the result
    assert collectives(made) == {"_c10d_functional.all_reduce": 1}


# -- fully_shard ------------------------------------------------------------------------------------------------------


def sharded(grouping=grouped, mesh=lambda: init_device_mesh("cuda", (RANKS,)), **options):
    """Three layers and nothing else, each gathered by itself."""

    def model():
        grouping()
        net, over = plain(), mesh()
        for layer in net:
            fully_shard(layer, mesh=over, **options)
        return fully_shard(net, mesh=over, **options)

    return model


def test_a_layer_is_gathered_twice_and_its_gradients_are_scattered():
    """An eighth of every parameter lives in memory, with its gradient and optimizer state; 7/8 of a layer cross the
    link in forward, again in backward, and as gradients."""
    made, alone = profiled(sharded(), mode="training"), profiled(plain, mode="training")
    assert collectives(made) == {"c10d._allgather_base_": 6, "c10d._reduce_scatter_base_": 3}
    assert sent(made.graph) == (9, 3 * 3 * 7 / 8 * 4 * LAYER)
    held = made.graph.role_bytes
    assert held["parameter"] == held["gradient"] == 3 * 4 * LAYER // 8
    assert held["optimizer_state"] == 2 * held["parameter"]
    assert made.workload.parameters == 3 * LAYER
    work = [{op.name for op in m.graph.ops if op.op_class == "contraction"} for m in (made, alone)]
    assert work[0] == work[1]
    assert not made.coverage.unmodeled


def test_gathered_parameters_are_gone_after_the_layer():
    """Forward holds one layer at a time: what is gathered of it, and the parameters that are copied out of that."""
    made, alone = profiled(sharded()), profiled(plain)
    assert collectives(made) == {"c10d._allgather_base_": 3}
    kept = made.graph.role_bytes["parameter"] + 2 * 4 * 8 * 64  # the shards, the input, what the layer before made
    assert kept + 2 * 4 * LAYER <= peak(made) <= kept + 2 * 4 * LAYER + 4 * 8 * 64
    assert peak(made) < peak(alone)
    assert made.simulations[0].memory.activations <= 2 * 4 * 8 * 64


def test_parameters_that_stay_gathered_are_gathered_once():
    again = profiled(sharded(), mode="training", optimizer=None)
    kept = profiled(sharded(reshard_after_forward=False), mode="training", optimizer=None)
    assert collectives(kept) == {"c10d._allgather_base_": 3, "c10d._reduce_scatter_base_": 3}
    assert sent(kept.graph) == (6, 3 * 2 * 7 / 8 * 4 * LAYER)
    assert peak(kept) > peak(again)


def test_what_is_sent_is_as_wide_as_the_policy_says():
    """Parameters in bfloat16, gradients in float32."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    made = profiled(sharded(mp_policy=policy), mode="training", optimizer=None)
    assert sent(made.graph)[1] == 3 * 7 / 8 * (2 + 2 + 4) * LAYER


def test_a_cast_model_gathers_what_it_was_cast_to():
    made = profiled(sharded(), dtype="bfloat16")
    assert sent(made.graph) == (3, 3 * 7 / 8 * 2 * LAYER)
    assert made.graph.role_bytes["parameter"] == 3 * 2 * LAYER // 8


def test_replicas_of_shards_sum_their_gradients():
    """Two groups of four: a quarter is held; of 3/4 each way, then half of a quarter, there and back."""

    def mesh():
        return init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))

    made = profiled(sharded(mesh=mesh), mode="training", optimizer=None)
    assert made.graph.role_bytes["parameter"] == 3 * 4 * LAYER // 4
    assert sent(made.graph) == (12, 3 * 4 * LAYER * (3 * 3 / 4 + 2 * 1 / 2 * 1 / 4))


def test_shards_of_tensor_parallel_layers():
    """Four groups of two: each rank has a quarter of half a layer, and of the second bias, which is whole in both."""

    def model():
        grouped()
        mesh, net = init_device_mesh("cuda", (4, 2), mesh_dim_names=("dp", "tp")), plain()
        for layer in net:
            parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            fully_shard(layer, mesh=mesh["dp"])
        return fully_shard(net, mesh=mesh["dp"])

    made = profiled(model, mode="training")
    assert made.graph.role_bytes["parameter"] == 3 * 4 * ((LAYER - 64) // 2 + 64) // 4
    assert collectives(made)["c10d._allgather_base_"] == 6


def test_a_shard_that_does_not_divide_is_padded():
    """Of ten rows of 16 over eight ranks each gathers two, so that 16 are gathered; rank 1 holds its two."""

    def model():
        grouped()
        return fully_shard(nn.Linear(64, 10, bias=False), mesh=init_device_mesh("cuda", (RANKS,)))

    made = profiled(model)
    assert sent(made.graph) == (1, 7 / 8 * 16 * 64 * 4)
    assert made.graph.role_bytes["parameter"] == 2 * 64 * 4


@pytest.mark.parametrize("group", [lambda: None, lambda: dist.init_process_group("nccl")])
def test_a_mesh_says_how_many_ranks_there_are(group, monkeypatch):
    """Where neither the caller nor torchrun's environment does."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    made = profiled(sharded(group))
    assert made.capture["notes"][0].startswith("rank 0 of 8")
    assert sent(made.graph) == (3, 3 * 7 / 8 * 4 * LAYER)


def test_errors_of_the_caller_are_printed_as_before(monkeypatch):
    """torch puts the rank before each line of a traceback, once more for each process group."""
    monkeypatch.setattr(sys, "excepthook", hook := lambda *error: None)
    profiled(sharded(grouped))
    assert sys.excepthook is hook


def test_a_sharded_module_of_the_callers_own_group_stays_as_it_is():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    try:
        net = fully_shard(Mlp(), mesh=init_device_mesh("cpu", (RANKS,)))
        before = {name: (id(p), p.device.type, p.to_local().shape) for name, p in net.named_parameters()}
        made = memwall.profile(net, (torch.zeros(8, 64),), mode="training", optimizer=None)
        assert {name: (id(p), p.device.type, p.to_local().shape) for name, p in net.named_parameters()} == before
        assert dist.is_initialized()
        net(torch.zeros(8, 64)).sum().backward()  # it was not left gathered
    finally:
        dist.destroy_process_group()
    assert sent(made.graph) == (2, 2 * 7 / 8 * 4 * LAYER)


def test_parameters_on_the_host_are_refused():
    with pytest.raises(UsageError, match="CPUOffloadPolicy keeps parameters on the host"):
        profiled(sharded(offload_policy=CPUOffloadPolicy()))


# -- FullyShardedDataParallel -----------------------------------------------------------------------------------------


def flat(strategy: str = "FULL_SHARD", **options):
    """Three layers and nothing else, each a unit."""

    def model():
        grouped()
        options["sharding_strategy"] = ShardingStrategy[strategy]
        net = plain()
        for place, layer in enumerate(net):
            net[place] = FullyShardedDataParallel(layer, **options)
        return FullyShardedDataParallel(net, **options)

    return model


ALL_GATHER, REDUCE_SCATTER = "c10d._allgather_base_", "c10d._reduce_scatter_base_"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "options", [{}, {"use_orig_params": True, "device_id": 0}, {"device_id": torch.device("cuda")}]
)
@pytest.mark.filterwarnings("ignore:The `NO_SHARD` sharding strategy is deprecated")
@pytest.mark.parametrize(
    ("strategy", "held", "link", "calls"),
    [  # the part of the parameters that a rank holds; times that 7/8 of a layer cross the link
        ("FULL_SHARD", 1 / 8, 3, {ALL_GATHER: 6, REDUCE_SCATTER: 3}),  # forward, backward, gradients
        ("SHARD_GRAD_OP", 1 / 8, 2, {ALL_GATHER: 3, REDUCE_SCATTER: 3}),  # what forward gathers stays
        ("NO_SHARD", 1, 2, {"c10d.allreduce_": 3}),  # there and back
    ],
)
def test_flat_parameters_are_held_and_sent_as_their_strategy_says(strategy, held, link, calls, options):
    made, alone = profiled(flat(strategy, **options), mode="training"), profiled(plain, mode="training")
    assert collectives(made) == calls
    assert sent(made.graph) == (sum(calls.values()), 3 * link * 7 / 8 * 4 * LAYER)
    roles = made.graph.role_bytes
    assert roles["parameter"] == roles["gradient"] == 3 * 4 * LAYER * held
    assert roles["optimizer_state"] == 2 * roles["parameter"]
    assert made.workload.parameters == 3 * LAYER
    work = [Counter(op.name for op in m.graph.ops if op.op_class == "contraction") for m in (made, alone)]
    assert work[0] == work[1]
    assert not made.coverage.unmodeled
    assert made.capture["notes"][0].startswith("rank 1 of 8")


def test_units_of_a_wrapping_policy_are_gathered_one_by_one():
    def model():
        grouped()
        policy = ModuleWrapPolicy({Mlp})
        return FullyShardedDataParallel(plain(), auto_wrap_policy=policy, device_id=0, sync_module_states=True)

    made = profiled(model, mode="training", optimizer=None)
    assert sent(made.graph) == (9, 3 * 3 * 7 / 8 * 4 * LAYER)


def test_a_flat_parameter_is_gone_after_its_unit():
    """Forward holds one layer's gathered parameters at a time, in which the layer's own are views."""
    made = profiled(flat())
    kept = made.graph.role_bytes["parameter"] + 2 * 4 * 8 * 64
    assert kept + 4 * LAYER <= peak(made) <= kept + 4 * LAYER + 2 * 4 * 8 * 256
    assert peak(made) < peak(profiled(plain))


def test_flat_parameters_are_sent_as_wide_as_mixed_precision_says():
    policy = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    made = profiled(flat(mixed_precision=policy), mode="training", optimizer=None)
    assert sent(made.graph)[1] == 3 * 7 / 8 * (2 + 2 + 4) * LAYER
    cast = profiled(flat(use_orig_params=True), dtype="bfloat16")
    assert sent(cast.graph) == (3, 3 * 7 / 8 * 2 * LAYER)


def test_flat_replicas_of_shards_sum_their_gradients():
    def model():
        grouped()
        mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
        return FullyShardedDataParallel(Mlp(), device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD)

    made = profiled(model, mode="training", optimizer=None)
    assert made.graph.role_bytes["parameter"] == 4 * LAYER // 4
    # torch keeps the root gathered for backward, which begins with it
    assert sent(made.graph) == (3, 4 * LAYER * (2 * 3 / 4 + 2 * 1 / 2 * 1 / 4))


def test_a_flat_sharded_module_of_the_callers_own_group_stays_as_it_is():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    try:
        net = FullyShardedDataParallel(Mlp(), device_id=torch.device("cpu"))
        before = {name: (id(p), p.device.type, p.shape) for name, p in net.named_parameters()}
        made = memwall.profile(net, (torch.zeros(8, 64),), mode="training", optimizer=None)
        assert {name: (id(p), p.device.type, p.shape) for name, p in net.named_parameters()} == before
        assert net._is_root is None
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()
    assert sent(made.graph) == (2, 2 * 7 / 8 * 4 * LAYER)


@pytest.mark.filterwarnings("ignore:The passed-in `module` is on CPU")
def test_flat_parameters_on_the_host_are_refused():
    with pytest.raises(UsageError, match="CPUOffload keeps parameters on the host"):
        profiled(flat(cpu_offload=CPUOffload(offload_params=True)))
    with pytest.raises(UsageError, match="leave --real out"):
        profiled(flat(), real=True)


# -- time -------------------------------------------------------------------------------------------------------------


def test_a_collective_takes_the_time_of_its_bytes_on_the_link():
    """A layer of 4096 x 4096 in bfloat16: 7/8 of 33.6 MB at 450 GB/s each way of NVLink, 16 GB/s of PCIe 3."""

    def model():
        grouped()
        layer = nn.Linear(4096, 4096, bias=False, dtype=torch.bfloat16)
        return fully_shard(layer, mesh=init_device_mesh("cuda", (RANKS,)))

    workload = memwall.Workload(model, (torch.zeros(8, 4096, dtype=torch.bfloat16),))
    made = memwall.profile(workload, gpu=["h100-sxm", "t4"])
    for schedule, rate in zip(made.simulations, (450e9, 16e9), strict=True):
        kernel = next(k for k in schedule.kernels if "allgather" in k.name)
        assert kernel.time_s == kernel.bound_s == pytest.approx(7 / 8 * 2 * 4096**2 / rate)
        assert kernel.limited_by == "link"
        assert {row.key: row.limited_by for row in class_rows(made, schedule)}["communication"] == "link"
