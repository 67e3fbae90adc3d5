"""Tensor parallelism of modules: what is split, and what one rank computes, holds and sends, counted by hand."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memwall.core.errors import UsageError
from memwall.frontend.sharding import find_split, split_module
from memwall.frontend.torch import TraceOptions, trace
from memwall.frontend.torch.distributed import end_group
from memwall.frontend.workload import Workload

BATCH, SEQ, WIDTH, HEADS, LAYERS, VOCAB, TP = 2, 16, 32, 4, 3, 64, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.n_heads = HEADS
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        batch, seq, _ = x.shape
        q, k, v = (part(x).view(batch, seq, self.n_heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = Attention(), MLP()
        self.router = nn.Linear(WIDTH, 8)  # stays whole: a choice among its results reads whole rows

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x)) * self.router(x).softmax(-1).amax(-1, keepdim=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        x = self.word(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def ids():
    return (torch.randint(VOCAB, (BATCH, SEQ)),)


def split():
    return find_split(trace(Workload(Model, ids, optimizer=None), TraceOptions(mode="inference")).graph)


def rank(tp=TP, sequence=False):
    model = Workload(lambda: split_module(Model(), split_found, tp, sequence), ids, lambda out: out.sum(), None)
    split_found = split()
    return trace(model, TraceOptions(mode="training")).graph


def test_layers_by_columns_lead_to_one_by_rows():
    found = split()
    assert found.groups[:2] == (
        (("blocks.0.attention.k", "blocks.0.attention.q", "blocks.0.attention.v"), "blocks.0.attention.o"),
        (("blocks.0.mlp.gate", "blocks.0.mlp.up"), "blocks.0.mlp.down"),
    )
    assert len(found.groups) == 2 * LAYERS
    assert (found.heads, found.embeddings) == (("head",), ("word",))


def collectives(graph):
    return Counter(
        (op.name.partition(".")[2].strip("_"), op.phase) for op in graph.ops if op.op_class == "communication"
    )


def test_each_layer_sums_twice_forward_and_twice_backward():
    """Two all-reduces a layer each way (Shoeybi et al., 2019), and one of the embedding and of the head's input."""
    assert collectives(rank()) == {
        ("allreduce", "forward"): 2 * LAYERS + 1, ("allreduce", "backward"): 2 * LAYERS + 1,
    }  # fmt: skip


def test_with_sequence_parallelism_each_layer_gathers_and_scatters_twice():
    """Korthikanti et al., 2022, figure 5; the embedding's sum and its split are next to them."""
    found = collectives(rank(sequence=True))
    for phase in ("forward", "backward"):
        assert abs(found["allgather_base", phase] - 2 * LAYERS) <= 1
        assert abs(found["reduce_scatter_base", phase] - 2 * LAYERS) <= 1


@pytest.mark.parametrize("sequence", [False, True])
def test_a_rank_holds_and_multiplies_its_share(sequence):
    graph = rank(sequence=sequence)
    specs = {graph.storages[graph.values[i].storage].name: graph.values[i].spec.shape for i in graph.parameters}
    assert specs["blocks.0.attention.q.weight"] == (WIDTH // TP, WIDTH)
    assert specs["blocks.0.attention.q.bias"] == (WIDTH // TP,)
    assert specs["blocks.1.mlp.down.weight"] == (WIDTH, 4 * WIDTH // TP)
    assert specs["blocks.1.router.weight"] == (8, WIDTH)
    assert specs["word.weight"] == (VOCAB // TP, WIDTH)
    between = next(op for op in graph.ops if op.module == "blocks.0.norm2")
    assert graph.specs(between.inputs)[0].numel == BATCH * SEQ * WIDTH // (TP if sequence else 1)


def test_what_does_not_divide_or_has_nothing_to_split_is_refused():
    with pytest.raises(UsageError, match="tp=8 does not divide n_heads=4 of Attention"):
        rank(tp=8)
    plain = nn.Linear(8, 8)
    graph = trace(Workload(plain, (torch.ones(2, 8),), optimizer=None), TraceOptions(mode="inference")).graph
    with pytest.raises(UsageError, match="tp=2: no linear layer of Linear leads to another"):
        split_module(plain, find_split(graph), 2)


class Tied(Model):
    def __init__(self):
        super().__init__()
        self.head.weight = self.word.weight


def test_tied_weights_stay_tied():
    """The share of the vocabulary is one parameter, looked up and multiplied."""
    found = find_split(trace(Workload(Tied, ids, optimizer=None), TraceOptions(mode="inference")).graph)
    for tp, rows in ((4, 16), (2, 32)):
        module = split_module(Tied(), found, tp)
        end_group()
        assert module.head.weight is module.word.weight
        assert module.word.weight.shape == (rows, WIDTH)
