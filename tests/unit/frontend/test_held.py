"""Memory at the peak with state that a step changes: bytes by hand, float32 throughout."""

import types

import torch
from torch import nn
from torch.nn import functional as F

import memwall

_LAYER = 4 * (256 * 256 + 256)
_ROWS = 4 * 4096 * 256


def profiled(module, inputs, **options):
    made = memwall.profile(module, inputs, **options)
    return made, made.simulations[0].memory


class Keeps(nn.Module):
    """A layer that remembers what it computed last, as for a picture of attention."""

    def __init__(self):
        super().__init__()
        self.linear, self.last = nn.Linear(256, 256), None

    def forward(self, x):
        self.last = self.linear(x)
        return self.last.relu()


def test_what_modules_remember_stays_in_memory():
    for replay in (True, False):
        _, peak = profiled(nn.Sequential(*(Keeps() for _ in range(8))), torch.zeros(4096, 256), replay=replay)
        # 8 layers, the input, what each layer keeps, the last ReLU's result
        assert peak.total == 8 * _LAYER + _ROWS + 8 * _ROWS + _ROWS


class Fills(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(8))

    def forward(self, x, found):
        found.rows = []
        for layer in self.layers:
            x = layer(x)
            found.rows.append(x)
        return x.sum()


def test_what_is_put_into_an_object_stays_in_memory():
    found = types.SimpleNamespace()
    _, peak = profiled(Fills(), (torch.zeros(4096, 256), found))
    assert peak.total == 8 * _LAYER + _ROWS + 8 * _ROWS + 4
    assert not vars(found)


class Grows(nn.Module):
    """Attention of one token over a cache that is concatenated with it."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(512, 512)

    def forward(self, x, cache):
        q = self.query(x).view(4, 8, 1, 64)
        cache.k = torch.cat([cache.k, q], 2)
        cache.v = torch.cat([cache.v, q], 2)
        return F.scaled_dot_product_attention(q, cache.k, cache.v)


def test_a_cache_that_grows_is_in_memory_once():
    old, new, token = (4 * 4 * 8 * rows * 64 for rows in (1024, 1025, 1))
    cache = types.SimpleNamespace(k=torch.zeros(4, 8, 1024, 64), v=torch.zeros(4, 8, 1024, 64))
    made, peak = profiled(Grows(), (torch.zeros(4, 1, 512), cache), gpu=["v100", "h100"])
    # while the values are concatenated the old keys are gone: the weights, the token, its query, old values, both new
    assert peak.total == 4 * (512 * 512 + 512) + 2 * token + old + 2 * new
    assert cache.k.shape[2] == 1024
    kept = {made.graph.storages[made.graph.values[i].storage].nbytes for i in made.graph.outputs}
    assert kept == {token, new}, "no policy may leave the new cache unwritten"


def test_tensors_that_are_given_alone_stay():
    class Adds(nn.Module):
        def forward(self, k):
            k = k + 1
            return (k + 1).sum()

    _, peak = profiled(Adds(), torch.zeros(1024))
    assert peak.total == 3 * 4096  # the caller has its tensor still


def test_a_shared_list_that_is_empty_stays_shared():
    class Puts(nn.Module):
        def __init__(self, bag):
            super().__init__()
            self.linear, self.bag = nn.Linear(64, 64), bag

        def forward(self, x):
            self.bag.append(self.linear(x))
            return self.bag[-1]

    class Joins(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = []
            self.parts = nn.ModuleList(Puts(self.bag) for _ in range(4))

        def forward(self, x):
            self.bag.clear()
            for part in self.parts:
                x = part(x)
            return torch.cat(self.bag)

    for replay in (True, False):
        made, _ = profiled(Joins(), torch.zeros(128, 64), replay=replay)
        assert made.graph.specs(made.graph.ops[-1].inputs) == 4 * made.graph.specs(made.graph.ops[0].outputs)


def test_layers_that_count_in_a_shared_dict_are_not_replayed():
    class Counts(nn.Module):
        def __init__(self, count):
            super().__init__()
            self.inner, self.count = nn.Sequential(nn.Linear(64, 64)), count

        def forward(self, x):
            self.count["calls"] += 1
            return self.inner(x) if self.count["calls"] % 2 else self.inner(self.inner(x))

    count = {"calls": 0}
    made, _ = profiled(nn.Sequential(*(Counts(count) for _ in range(6))), torch.zeros(128, 64))
    assert made.model_flops == 9 * 2 * 128 * 64 * 64  # three layers take one product, three take two
    assert count == {"calls": 0}


def test_different_tensors_have_different_addresses():
    class Compares(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, q, k):
            return self.linear(q) if q.data_ptr() == k.data_ptr() else q

    x = torch.zeros(128, 64)
    assert profiled(Compares(), (x, x))[0].model_flops == 2 * 128 * 64 * 64
    assert profiled(Compares(), (x, torch.zeros(128, 64)))[0].model_flops == 0
