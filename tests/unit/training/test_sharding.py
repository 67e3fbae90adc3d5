"""Tensor parallelism of modules: what is split, and what one rank computes, holds and sends, counted by hand."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memwall.core.errors import UsageError
from memwall.frontend.targets import Workload
from memwall.frontend.torch import TraceOptions, trace
from memwall.frontend.torch.ranks.distributed import end_group
from memwall.ops import graph_costs
from memwall.training.layout import Parallelism
from memwall.training.run import parallel
from memwall.training.sharding import Split, find_split, split_module
from tests.unit.small_modules import Experts, Routed

BATCH, SEQ, WIDTH, HEADS, LAYERS, VOCAB, TP = 2, 16, 32, 4, 2, 64, 4


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
    model = Workload(
        lambda: split_module(Model(), split_found, Parallelism(tp=tp, sp=sequence)), ids, lambda out: out.sum(), None
    )
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


@pytest.mark.parametrize("batch", [2, 4, 8])
def test_a_sequence_is_split_where_the_batch_is_as_long_as_a_part_of_it(batch):
    """Parts of 16 tokens for 4 ranks: with 4 samples or more the batch was gathered in their place, which fails."""

    def inputs():
        return (torch.randint(VOCAB, (batch, SEQ)),)

    found = split()
    model = Workload(lambda: split_module(Model(), found, Parallelism(tp=TP, sp=True)), inputs, torch.sum, None)
    graph = trace(model, TraceOptions(mode="training")).graph
    (query, *_) = graph.specs(next(op for op in graph.ops if op.op_class == "attention").inputs)
    assert query.shape == (batch, HEADS // TP, SEQ, WIDTH // HEADS)
    between = next(op for op in graph.ops if op.module == "blocks.0.norm2")
    assert graph.specs(between.inputs)[0].shape == (batch, SEQ // TP, WIDTH)


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
        split_module(plain, find_split(graph), Parallelism(tp=2))


class Tied(Model):
    def __init__(self):
        super().__init__()
        self.head.weight = self.word.weight


class Shaped(nn.Module):
    """Attention whose heads are counted by -1, and a configuration that says how many there are."""

    def __init__(self, heads: int = 10, width: int = 8):
        super().__init__()
        self.config, self.width = SimpleNamespace(num_attention_heads=heads), width
        self.layers = nn.ModuleList(nn.ModuleDict({name: nn.Linear(heads * width, heads * width, bias=False)
                                                   for name in "qkvo"}) for _ in range(2))  # fmt: skip

    def forward(self, x):
        for layer in self.layers:
            q, k, v = (layer[name](x).unflatten(-1, (-1, self.width)).transpose(1, 2) for name in "qkv")
            x = x + layer["o"](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x


@pytest.mark.defect("17")
def test_heads_that_the_ranks_do_not_divide_are_the_reason():
    """A rank whose share of a product is no whole heads was refused because heads "must be as many as the ranks or
    more", which they were: they are not a multiple of the ranks."""
    inputs = (torch.zeros(2, 16, 80),)
    with pytest.raises(UsageError, match=r"^tp=4 does not divide num_attention_heads=10 of the model$"):
        parallel(Shaped().to("meta"), inputs, layout="tp=4")
    assert parallel(Shaped().to("meta"), inputs, layout="tp=5").step.time_s > 0


def test_tied_weights_stay_tied():
    """The share of the vocabulary is one parameter, looked up and multiplied."""
    found = find_split(trace(Workload(Tied, ids, optimizer=None), TraceOptions(mode="inference")).graph)
    for tp, rows in ((4, 16), (2, 32)):
        module = split_module(Tied(), found, Parallelism(tp=tp))
        end_group()
        assert module.head.weight is module.word.weight
        assert module.word.weight.shape == (rows, WIDTH)


# -- sequences and experts that ranks share ----------------------------------------------------------------------------

CP, EP, EXPERTS, TOP_K, NARROW = 4, 2, 8, 2, 16


def routed():
    return Routed(Experts(EXPERTS, WIDTH, NARROW), WIDTH, EXPERTS, TOP_K)


class Mixture(nn.Module):
    kind = staticmethod(routed)

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)
        self.blocks = nn.ModuleList(self.kind() for _ in range(LAYERS))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return x


def of_layout(kind, inputs, **layout):
    model = Workload(
        lambda: split_module(kind(), find, Parallelism(**layout)), inputs, lambda out: out.float().sum(), None
    )
    find = Split(())
    return trace(model, TraceOptions(mode="training")).graph


def rows():
    return (torch.randn(BATCH, SEQ, WIDTH, dtype=torch.bfloat16),)


def messages(graph, name):
    found = [op for op in graph.ops if op.op_class == "communication" and name in op.name]
    return [(op.phase, max(spec.nbytes for spec in graph.specs((*op.inputs, *op.outputs)))) for op in found]


def flops(graph, op_class):
    costs = zip(graph.ops, graph_costs(graph), strict=True)
    return sum(cost.total_flops for op, cost in costs if op.op_class == op_class)


def test_rows_go_to_the_ranks_of_their_experts_and_back():
    """Two all-to-alls a layer forward and two backward, each of b·s·k rows of h numbers of two bytes; a rank multiplies
    as many rows as without, by a share of the experts."""
    graph = of_layout(Mixture, rows, ep=EP)
    nbytes = BATCH * SEQ * TOP_K * WIDTH * 2
    assert Counter(messages(graph, "alltoall")) == {
        ("forward", nbytes): 2 * LAYERS, ("backward", nbytes): 2 * LAYERS,
    }  # fmt: skip
    specs = {graph.storages[graph.values[i].storage].name: graph.values[i].spec.shape for i in graph.parameters}
    assert specs["blocks.0.experts.up"] == (EXPERTS // EP, WIDTH, NARROW)
    assert specs["blocks.0.router.weight"] == (EXPERTS, WIDTH)
    assert flops(graph, "contraction") == flops(of_layout(Mixture, rows), "contraction")


class OfTokens(Experts):
    """As transformers calls experts."""

    def forward(self, x, chosen, weights):
        order = chosen.flatten().sort()[1]
        ends = torch.arange(1, len(self.up) + 1, dtype=torch.int32) * (len(order) // len(self.up))
        made = super().forward(x[order // chosen.shape[1]], ends)
        return (made[order].unflatten(0, (-1, chosen.shape[1])) * weights[..., None]).sum(1)


class Chosen(Routed):
    def __init__(self):
        super().__init__(OfTokens(EXPERTS, WIDTH, NARROW), WIDTH, EXPERTS, TOP_K)

    def forward(self, x):
        weights, chosen = self.router(x.flatten(0, 1)).topk(TOP_K)
        return x + self.experts(x.flatten(0, 1), chosen, weights).view_as(x)


class Choosing(Mixture):
    kind = Chosen


def test_experts_that_take_tokens_and_their_choices():
    graph, nbytes = of_layout(Choosing, rows, ep=4), BATCH * SEQ * TOP_K * WIDTH * 2
    assert Counter(messages(graph, "alltoall")) == dict.fromkeys(
        (("forward", nbytes), ("backward", nbytes)), 2 * LAYERS
    )
    assert flops(graph, "contraction") == flops(of_layout(Choosing, rows), "contraction")


class Uneven(Choosing):
    def __init__(self):
        super().__init__()
        for block in self.blocks:
            block.experts.up = nn.Parameter(torch.randn(12, WIDTH, NARROW, dtype=torch.bfloat16))
            block.experts.down = nn.Parameter(torch.randn(12, NARROW, WIDTH, dtype=torch.bfloat16))
            block.router = nn.Linear(WIDTH, 12, dtype=torch.bfloat16)


def test_experts_that_do_not_divide_the_rows_get_as_many_in_all():
    """64 rows for 12 experts on 4 ranks."""
    graph, nbytes = of_layout(Uneven, rows, ep=4), BATCH * SEQ * TOP_K * WIDTH * 2
    assert Counter(messages(graph, "alltoall")) == dict.fromkeys(
        (("forward", nbytes), ("backward", nbytes)), 2 * LAYERS
    )


def test_what_experts_do_not_divide_by_or_are_not_there_is_refused():
    for kind, ep, why in (
        (Mixture, 16, "ep=16 does not divide the 8 experts of blocks.0.experts"),
        (Model, 2, r"ep=2: no part of Model has the weights of its experts in tensors \[experts, ...\]"),
    ):
        with pytest.raises(UsageError, match=why):
            of_layout(kind, rows if kind is Mixture else ids, ep=ep)


def test_keys_and_values_go_around_the_ring():
    """Three times a layer forward, three times again in backward and three times their gradients; each message has the
    keys and values of a rank. A causal rank attends to half of the whole in each step: 1/cp of the model's FLOPs."""
    graph, nbytes = of_layout(Model, ids, cp=CP), 2 * BATCH * (SEQ // CP) * WIDTH * 4
    assert Counter(messages(graph, "recv")) == {
        ("forward", nbytes): (CP - 1) * LAYERS, ("backward", nbytes): 2 * (CP - 1) * LAYERS,
    }  # fmt: skip
    assert Counter(messages(graph, "send")) == Counter(messages(graph, "recv"))
    assert {op.attributes["group"] for op in graph.ops if "recv" in op.name} == {"0,3"}
    whole = of_layout(Model, ids)
    assert flops(graph, "contraction") == flops(whole, "contraction") / CP
    assert flops(graph, "attention") == pytest.approx(flops(whole, "attention") / CP, rel=0.07)  # the diagonal


def test_a_ring_next_to_tensor_parallelism_passes_heads_of_a_rank():
    layout = Parallelism(tp=2, sp=True, cp=2)
    model = Workload(lambda: split_module(Model(), found, layout), ids, lambda out: out.sum(), None)
    found = split()
    graph = trace(model, TraceOptions(mode="training")).graph
    assert set(messages(graph, "recv")) == {
        (phase, 2 * BATCH * 8 * WIDTH // 2 * 4) for phase in ("forward", "backward")
    }
    assert {op.attributes["group"] for op in graph.ops if op.op_class == "communication"} == {"0-1", "0,2"}


def test_a_ring_without_attention_or_of_sequences_that_do_not_divide_is_refused():
    with pytest.raises(UsageError, match="cp: the module never calls torch"):
        of_layout(Mixture, rows, cp=2)
    with pytest.raises(UsageError, match=r"cp=3: 6 chunks, two a rank, do not divide sequences \(axis 1\) of 16"):
        of_layout(Model, ids, cp=3)


@pytest.mark.parametrize("layout", ["tp=2", "tp=2,sp"])
def test_a_loss_of_the_models_own_is_split_with_its_head(tmp_path, layout):
    """Each rank has 4,001 of 8,001 classes, one of them padding; three numbers of each of 64 tokens are exchanged."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=4, vocab_size=8001)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    plain, shared = (
        parallel(f"hf:{tmp_path}", layout=each, cluster="dgx-h100", batch=1, seq=64) for each in ("dp=1", layout)
    )
    messages = shared.messages()
    assert messages[("all_reduce", 64 * 4, 2)] == 3
    padding = 6 * 64 * 64  # FLOPs of a class of the head, forward and backward
    assert shared.step.model_flops - plain.step.model_flops == padding


@pytest.mark.parametrize("name", ["Llama", "Bert"])
def test_heads_over_classes_of_sequences_are_whole(tmp_path, name):
    """As transformers' tp plans leave them. Two all-reduces a layer each way of b·s·h numbers and one of the embedding,
    and none for the head: each rank computes its 4 classes (Llama's of each token, Bert's of one of each sequence,
    behind a pooler [h, h]), in three products, all of two samples of 32 tokens."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = getattr(transformers, f"{name}Config")(**sizes, vocab_size=1000, num_labels=4, pad_token_id=0)
    config.architectures = [f"{name}ForSequenceClassification"]
    config.save_pretrained(tmp_path)
    plain, shared, sequence = (
        parallel(f"hf:{tmp_path}", layout=each, cluster="dgx-h100", batch=2, seq=32)
        for each in ("dp=1", "tp=2", "tp=2,sp")
    )
    assert shared.messages() == {("all_reduce", 2 * 32 * 64 * 4, 2): 9}
    head = {"Llama": 64 * 4 * 64, "Bert": 2 * 64 * (64 + 4)}[name]
    # backward computes the scores again: two samples, 4 heads of 16 numbers, Llama's causal half with its diagonal
    scores = 2 * 2 * 2 * 4 * 16 * {"Llama": 32 * 33 // 2, "Bert": 32 * 32}[name]
    for found in (shared, sequence):
        assert found.step.model_flops == plain.step.model_flops
        assert found.step.hardware_flops - found.step.model_flops == 3 * 2 * head + scores


# -- FLOPs that count for MFU ------------------------------------------------------------------------------------------


class Sparse(nn.Module):
    """Attention, which ranks share; a router and stacked experts, which are whole on each."""

    def __init__(self):
        super().__init__()
        self.norm, self.attention, self.routed = nn.LayerNorm(WIDTH), Attention(), routed()

    def forward(self, x):
        return self.routed((x + self.attention(self.norm(x))).bfloat16()).float()


class SparseModel(Model):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Sparse() for _ in range(LAYERS))


def test_what_is_whole_on_each_rank_counts_once_for_mfu():
    """2 FLOPs for each of T tokens and each number of a weight, three times in training: all GPUs compute the router
    [W, E] and both experts of a token [W, N] as often as there are ranks, and with sequence parallelism once, as each
    has tokens of its own. The model's FLOPs are those of one GPU."""
    tokens, attended = BATCH * SEQ, BATCH * HEADS * SEQ * (SEQ + 1) // 2 * (WIDTH // HEADS)
    whole = 6 * tokens * (WIDTH * EXPERTS + TOP_K * 2 * WIDTH * NARROW) * LAYERS
    shared = 6 * tokens * (4 * WIDTH * WIDTH * LAYERS + WIDTH * VOCAB)
    steps = {
        layout: parallel(SparseModel, ids, layout=layout, loss=lambda out: out.sum()).step
        for layout in ("dp=1", f"tp={TP}", f"tp={TP},sp", f"tp={TP},recompute=full", "tp=2,dp=3,sp,ep=2")
    }
    model = steps["dp=1"].model_flops
    # attention's core: two products forward, four backward, of the causal half with its diagonal
    assert model == whole + shared + 6 * 2 * attended * LAYERS
    assert [step.model_flops for step in steps.values()] == [model, model, model, model, 3 * model]
    scores = 2 * attended * LAYERS  # backward computes them again, a fifth product
    more = [step.hardware_flops - step.model_flops for step in steps.values()]
    assert more[:3] == [scores, (TP - 1) * whole + scores, scores]
    assert more[3] - more[1] > TP * whole // 3  # forward of all layers again
    assert more[4] == 3 * scores


class Adapted(Model):
    """Weights that stay as they are, but for those of the routers."""

    def __init__(self):
        super().__init__()
        for name, parameter in self.named_parameters():
            parameter.requires_grad_("router" in name)


def test_replicas_exchange_the_gradients_of_trained_weights_alone():
    """A router has 32 · 8 + 8 numbers of four bytes."""
    options = {"layout": "dp=2", "cluster": "dgx-h100", "loss": lambda out: out.sum()}
    found = parallel(Adapted, ids, **options)
    assert found.messages() == {("all_reduce", 4 * (WIDTH * 8 + 8), 2): LAYERS}
    memory = found.step.memory[0]
    trained = LAYERS * (WIDTH * 8 + 8)
    assert (memory.gradients, memory.optimizer) == (4 * trained, 8 * trained)
    assert memory.weights == parallel(Model, ids, **options).step.memory[0].weights
