"""State that a step is given or keeps, and models inside other things: compiled, scripted, sharded, quantised."""

from __future__ import annotations

import dataclasses

import pytest
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


def test_f42_llama_8b_with_8k_cached_tokens_fits_no_l4():
    """transformers' caches are such objects: Llama-3-8B at batch 64 seemed to need 19 GB."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256, dtype=torch.bfloat16,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
        layer = torch.zeros(64, 8, 8192, 128, dtype=torch.bfloat16)
        cache = transformers.DynamicCache()
        for number in range(32):
            cache.update(layer.clone(), layer.clone(), number)
        inputs = {"input_ids": torch.zeros(64, 1, dtype=torch.int64), "past_key_values": cache}
    made = memwall.profile(model, inputs, gpu="l4")
    by_hand = 8_030_261_248 * 2 + 2 * 32 * 64 * 8 * 8192 * 128 * 2  # 84.78 GB: weights, keys and values
    assert by_hand == pytest.approx(84.78e9, rel=1e-4)
    assert peak(made) >= by_hand


def test_f43_a_step_leaves_its_inputs_as_they_were():
    """The caller's own cache was updated by the trace, so that the next one saw another workload."""
    cache = Cache([Layer(), Layer()])
    inputs = (torch.zeros(2, 4, 1, 64, device="meta"), cache)
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys.to("meta"), layer.values.to("meta")
    first = memwall.profile(Decoder(2), inputs)
    second = memwall.profile(Decoder(2), inputs)
    assert [layer.keys.shape[2] for layer in cache.layers] == [1024, 1024]
    assert peak(first) == peak(second)


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


def test_f52_an_int8_weight_is_int8():
    """A tensor subclass that holds a quantised weight was traced as the dense tensor that it stands for."""

    class Int8(torch.Tensor):
        @staticmethod
        def __new__(cls, numbers, scale):
            return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=torch.float32, device=numbers.device)

        def __init__(self, numbers, scale) -> None:
            self.numbers, self.scale = numbers, scale

        def __tensor_flatten__(self):
            return ["numbers", "scale"], None

        @classmethod
        def __tensor_unflatten__(cls, parts, context, size, stride):
            return cls(parts["numbers"], parts["scale"])

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.detach.default:
                return cls(args[0].numbers, args[0].scale)
            whole = [arg.numbers.float() * arg.scale if isinstance(arg, cls) else arg for arg in args]
            return func(*whole, **(kwargs or {}))

    net = nn.Linear(1024, 1024, bias=False)
    net.weight = nn.Parameter(Int8(torch.zeros(1024, 1024, dtype=torch.int8), torch.ones(1024, 1)), requires_grad=False)
    made = memwall.profile(net, (torch.zeros(1, 1024),))
    assert made.graph.role_bytes["parameter"] == 1024 * 1024 + 1024 * 4


def test_c24_a_tensor_says_that_it_is_on_cuda():
    """A traced tensor said that its device is meta, which models that ask for a GPU refuse."""

    class Net(nn.Linear):
        def forward(self, x):
            if x.device.type != "cuda" or self.weight.device != torch.device("cuda:0"):
                raise RuntimeError(f"this model needs a GPU, not {x.device}")
            return super().forward(x)

    made = memwall.profile(Net(64, 64), (torch.zeros(4, 64),))
    assert [op.name for op in made.graph.ops] == ["aten.addmm"]
