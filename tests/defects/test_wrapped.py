"""State that a step is given or keeps, and models inside other things: compiled, scripted, sharded, quantised."""

import dataclasses

import torch
from torch import nn

import memwall

#: 2 sequences, 4 heads of 64 numbers, 1,024 cached tokens, float32
CACHE_BYTES = 2 * 4 * 1024 * 64 * 4


class Layer:
    """A cache as people write them: no dict, no list, no dataclass."""

    __slots__ = ("keys", "values")

    def __init__(self, tokens: int = 1024) -> None:
        self.keys, self.values = torch.zeros(2, 4, tokens, 64), torch.zeros(2, 4, tokens, 64)

    def update(self, new):
        self.keys, self.values = torch.cat([self.keys, new], 2), torch.cat([self.values, new], 2)


@dataclasses.dataclass
class Cache:
    layers: list[Layer]


class Decoder(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(64, 64) for _ in range(layers))

    def forward(self, x, cache):
        for projection, layer in zip(self.projections, cache.layers, strict=True):
            layer.update(x)
            x = nn.functional.scaled_dot_product_attention(projection(x), layer.keys, layer.values)
        return x


def peak(made: memwall.Profile) -> int:
    return made.simulations[0].totals.peak_memory_bytes


def test_f42_a_cache_in_any_object_is_in_the_peak():
    """Tensors inside objects that torch's pytrees do not know were left on the host and in no memory peak."""
    made = memwall.profile(Decoder(3), (torch.zeros(2, 4, 1, 64), Cache([Layer() for _ in range(3)])))
    weights = 3 * (64 * 64 + 64) * 4
    # each layer's grown keys and values stay referenced by the cache
    assert peak(made) >= weights + 3 * 2 * CACHE_BYTES
    roles = [storage.role for storage in made.graph.storages]
    # longer ones are in the cache after the step
    assert [roles.count(role) for role in ("input", "kv_cache", "kv_made")] == [1, 3 * 2, 3 * 2]


def test_f43_the_state_of_a_module_is_its_own_in_each_trace():
    """What a module keeps in plain attributes was not in memory before the step, and objects in them were shared."""

    class Stateful(Decoder):
        def __init__(self) -> None:
            super().__init__(1)
            self.cache = Cache([Layer()])

        def forward(self, x):
            return super().forward(x, self.cache)

    module = Stateful()
    for layer in module.cache.layers:
        layer.keys, layer.values = layer.keys.to("meta"), layer.values.to("meta")
    made = memwall.profile(module, (torch.zeros(2, 4, 1, 64),))
    assert module.cache.layers[0].keys.shape[2] == 1024
    held = sum(storage.nbytes for storage in made.graph.storages if storage.is_persistent)
    assert held == 2 * CACHE_BYTES + (64 * 64 + 64) * 4 + 2 * 4 * 64 * 4  # before the step: cache, projection, input
    # the values, the longer values and keys (the shorter keys are gone by then), the projection
    assert peak(made) >= CACHE_BYTES + 2 * CACHE_BYTES + (64 * 64 + 64) * 4


def test_f52_ddp_is_one_ranks_view():
    """The copy of a DistributedDataParallel could not be made: its reducer and logger cannot be pickled."""

    def model():
        torch.distributed.init_process_group("nccl", rank=0, world_size=4)
        return nn.parallel.DistributedDataParallel(nn.Linear(64, 64).cuda(), device_ids=[0])

    workload = memwall.Workload(model, (torch.zeros(4, 64),))
    made = memwall.profile(workload, mode="training", optimizer=None)
    assert [op.name for op in made.graph.ops if op.name.startswith("c10d")] == ["c10d.allreduce_"]
    assert "rank 0 of 4" in made.capture["notes"][0]


def test_c30_a_model_that_needs_data_may_make_its_process_group():
    """The model is built again on the host where building needs data, and its process group was there already."""

    def model():
        from torch.testing._internal.distributed.fake_pg import FakeStore

        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        net = nn.Linear(64, 64)
        net.scale = net.weight.sum().tolist()
        return net

    made = memwall.profile(memwall.Workload(model, (torch.zeros(4, 64),)))
    assert made.simulations[0].totals.flops == 2 * 4 * 64 * 64
