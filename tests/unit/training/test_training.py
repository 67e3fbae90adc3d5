"""Training steps on many GPUs: activations against published formulas, and steps of made-up blocks counted by hand."""

from dataclasses import replace

import pytest
import torch

from memwall.core.errors import UsageError
from memwall.frontend.targets import Workload
from memwall.frontend.torch import TraceOptions
from memwall.hardware.cluster import all_at_once, hardware_of, load_cluster
from memwall.perfmodel.collectives import collective_s
from memwall.training.blocks import Block, Blocks, BlockWork
from memwall.training.layout import Parallelism
from memwall.training.rank import blocks_of, trace_rank
from memwall.training.step import training_step
from memwall_lab.language_model import LanguageModel, next_token_loss
from memwall_lab.sizes import Sizes

CLUSTER = load_cluster("dgx-a100-80gb")
TP, SEQ = 8, 2048
#: model → heads, width, microbatch of the four of Korthikanti et al., 2022, table 3
MODELS = {"22B": (64, 6144, 4), "175B": (96, 12288, 1), "530B": (128, 20480, 1), "1T": (160, 25600, 1)}


def blocks(heads, width, batch, sequence):
    sizes = Sizes(width, 3, heads, 51200, SEQ)
    workload = Workload(
        lambda: LanguageModel(sizes).half(), lambda: (torch.zeros(batch, SEQ, dtype=torch.long),), next_token_loss
    )
    return blocks_of(trace_rank(workload, Parallelism(tp=TP, sp=sequence), TraceOptions()), CLUSTER)


@pytest.mark.parametrize(("name", "sequence"), [(name, bool(number % 2)) for number, name in enumerate(MODELS)])
def test_the_activations_of_a_layer(name, sequence):
    """Equations 2 and 4 of arXiv 2205.05198, and its table 2: without recomputing, selective, full."""
    heads, width, batch = MODELS[name]
    unit = SEQ * batch * width
    core = 5 * heads * SEQ / width
    layer = blocks(heads, width, batch, sequence).layers[1]
    whole = 34 / TP if sequence else 10 + 24 / TP
    assert layer.activation_bytes == pytest.approx(unit * (whole + core / TP), rel=0.005)
    assert layer.activation_bytes - layer.core_bytes == pytest.approx(unit * whole, rel=0.005)
    assert layer.input_bytes == pytest.approx(2 * unit / (TP if sequence else 1), rel=0.005)
    assert layer.parameters == pytest.approx(12 * width**2 / TP, rel=0.002)


# -- made-up blocks: a layer takes 1 s forward and 2 s backward --------------------------------------------------------

LAYER = Block(
    BlockWork(1.0, flops=10),
    BlockWork(2.0, flops=20),
    BlockWork(1.0, flops=10),
    BlockWork(0.25, flops=2),
    parameters=1000,
    activation_bytes=100,
    core_bytes=60,
    input_bytes=8,
)


def step(text, layers=8, **options):
    return training_step(Blocks(Block(), (LAYER,) * layers, Block()), Parallelism.parse(text), CLUSTER, **options)


@pytest.mark.parametrize(
    ("text", "time_s"),
    [
        ("microbatches=4", 4 * 8 * 3),
        ("pp=4,microbatches=8", (8 + 3) * 2 * 3),
        ("pp=4,microbatches=8,recompute=full", (8 + 3) * 2 * 4),
        ("pp=4,microbatches=8,recompute=selective", (8 + 3) * 2 * 3.25),
        ("pp=4,microbatches=8,schedule=interleaved:2", (8 + 3 / 2) * 2 * 3),
        ("pp=4,microbatches=8,schedule=zb", 8 * 2 * 3 + 3 * 2 * (1 + 1 - 1)),
    ],
)
def test_the_time_of_a_step(text, time_s):
    assert step(text).time_s == pytest.approx(time_s, rel=1e-4)


def test_parts_of_a_tensor_are_exchanged_next_to_products():
    """4 GPUs: 1 s of exchanges in each direction of 3 and 5 s, of which the first of four parts is waited for, and a
    quarter of what is left (three quarters are hidden): 1 - 3/4 * 3/4 s."""
    layer = Block(BlockWork(3.0, 1.0, tensor_s=1.0), BlockWork(5.0, 1.0, tensor_s=1.0))
    many = Blocks(Block(), (layer,) * 4, Block())
    waits, beside = (training_step(many, Parallelism.parse(f"tp=4{key}"), CLUSTER) for key in ("", ",async"))
    assert (waits.time_s, waits.tensor_s) == (pytest.approx(32), 8)
    assert (beside.time_s, beside.tensor_s) == (pytest.approx(32 - 8 * 9 / 16), 8 - 8 * 9 / 16)


def test_uneven_layers_pace_the_step():
    """Ten layers on four ranks: 2, 3, 2 and 3."""
    found = step("pp=4,microbatches=100", layers=10)
    assert found.pipeline.slowest == 1
    assert found.pipeline.busy_s == pytest.approx((600, 900, 600, 900), rel=1e-4)
    with pytest.raises(UsageError, match="16 stages of layers, and the model has 10 equal layers"):
        step("pp=16", layers=10)


def test_the_memory_of_each_rank():
    """1F1B holds 4, 3, 2, 1 microbatches of two layers; 18 bytes a parameter."""
    found = [memory.activations for memory in step("pp=4,microbatches=8").memory]
    assert found == [200 * held for held in (4, 3, 2, 1)]
    assert [m.activations for m in step("pp=4,microbatches=8,recompute=full").memory] == [64, 48, 32, 16]
    assert step("recompute=selective").memory[0].activations == 8 * 40
    assert step("recompute=selective").memory[0].recomputed == 60
    plain, grad, full = (step(f"dp=4,fsdp={kind}").memory[0] for kind in ("none", "grad", "full"))
    assert (plain.weights, plain.gradients, plain.optimizer) == (16_000, 32_000, 96_000)
    assert (grad.weights, grad.gradients, grad.optimizer) == (16_000, 8_000, 24_000)
    assert (full.weights, full.gradients, plain.gathered) == (4_000, 8_000, 0)
    # two of the eight layers of 1,000 numbers gathered, the gradients of one whole
    assert (full.gathered, grad.gathered) == (2 * 2_000 + 4_000, 4_000)


def test_the_peak_is_where_most_is_alive():
    """Four layers that keep 100 bytes each; the last but one makes 150 more that die in its backward, when the last one
    has freed its own, and what stands behind them 40."""
    layer = Block(BlockWork(1.0), BlockWork(2.0), activation_bytes=100, temporary_bytes=10)
    layers = (layer, layer, replace(layer, temporary_bytes=150), layer)
    (memory,) = training_step(Blocks(Block(), layers, Block(temporary_bytes=40)), Parallelism(), CLUSTER).memory
    assert (memory.activations, memory.temporaries, memory.block, memory.growing) == (300, 150, 3, 450)


def test_flops_count_every_gpu_and_what_is_computed_again():
    found = step("dp=2,microbatches=3,recompute=full")
    assert (found.model_flops, found.hardware_flops) == (2 * 3 * 8 * 30, 2 * 3 * 8 * 40)


def test_utilization_is_of_the_peaks_of_the_pipes_that_multiply():
    """A layer's 10 FLOP forward take 0.5 s at the peak and its 20 backward 0.25 s, as those are of another dtype."""
    layer = replace(
        LAYER, forward=BlockWork(1.0, flops=10, matrix_s=0.5), backward=BlockWork(2.0, flops=20, matrix_s=0.25)
    )
    layout = Parallelism.parse("dp=2,microbatches=3,recompute=full")
    found = training_step(Blocks(Block(), (layer,) * 8, Block()), layout, CLUSTER)
    assert found.mfu * found.time_s == pytest.approx(3 * 8 * 0.75)
    assert found.hfu * found.time_s == pytest.approx(3 * 8 * 1.25)


def test_gradients_hide_behind_backward_but_for_the_last_block():
    """Blocks of 1 GB: all but the last sum while other blocks run backward, from which NCCL's 24 blocks take 24 of the
    108 multiprocessors for so long; without overlap all are exposed."""
    big = Blocks(Block(), (Block(BlockWork(1.0), BlockWork(2.0), parameters=250_000_000),) * 4, Block())
    layout = Parallelism(dp=8)
    one_s = collective_s("all_reduce", 1e9, 8, CLUSTER).time_s
    assert training_step(big, layout, CLUSTER).exposed_s == pytest.approx(one_s + 3 * one_s * 24 / 108)
    alone_s = collective_s("all_reduce", 4e9, 8, CLUSTER).time_s
    assert training_step(big, layout, CLUSTER, overlap=False).exposed_s == pytest.approx(alone_s)


def test_sharded_weights_wait_for_the_first_gather_and_the_last_sum():
    """The gather of the first block of each pass, and the sum of the last, have nothing to hide behind; what the others
    hide behind lacks 24 of 108 multiprocessors meanwhile."""
    layer = Block(BlockWork(1.0), BlockWork(2.0), parameters=250_000_000)
    found = training_step(Blocks(Block(), (layer,) * 4, Block()), Parallelism(dp=8, fsdp="full"), CLUSTER)
    gather_s = collective_s("all_gather", 0.5e9, 8, CLUSTER).time_s
    reduce_s = collective_s("reduce_scatter", 1e9, 8, CLUSTER).time_s
    slower_s = (2 * 3 * gather_s + 3 * reduce_s) * 24 / 108
    assert found.pipeline.time_s == pytest.approx(12 + 2 * gather_s + reduce_s + slower_s)
    waits = training_step(
        Blocks(Block(), (layer,) * 4, Block()), Parallelism(dp=8, fsdp="full"), CLUSTER, overlap=False
    )
    assert waits.pipeline.time_s == pytest.approx(12 + 8 * gather_s + 4 * reduce_s)


def test_copies_of_a_share_are_summed_between_nodes():
    """HSDP on two nodes of eight: weights are gathered inside a node; a share of a layer's gradients, an eighth of
    1 GB, is summed between the two GPUs that hold it."""
    layer = Block(BlockWork(1.0), BlockWork(2.0), parameters=250_000_000)
    layout, joined = Parallelism(dp=16, fsdp="full", shards=8), all_at_once(CLUSTER)
    found = training_step(Blocks(Block(), (layer,) * 4, Block()), layout, CLUSTER, overlap=False)
    gather_s = collective_s("all_gather", 0.5e9, 8, joined).time_s
    reduce_s = collective_s("reduce_scatter", 1e9, 8, joined).time_s
    between_s = collective_s("all_reduce", 1e9 / 8, 2, joined, per_node=1).time_s
    assert found.pipeline.time_s == pytest.approx(12 + 8 * gather_s + 4 * (reduce_s + between_s))
    assert found.memory[0].weights == 2e9 / 8


def test_exchanges_that_run_next_to_matmuls_hide_from_sharded_weights_too():
    """Of 0.4 s of exchanges in a layer's forward three quarters of a half hide, with tp=2: it takes 0.85 s of 1. The
    passes of four layers, and the gather before each and the sum after backward, that nothing hides."""
    layer = Block(BlockWork(1.0, tensor_s=0.4), BlockWork(2.0, tensor_s=0.8), parameters=1)
    layout = Parallelism(tp=2, dp=4, fsdp="full", async_tp=True)
    found = training_step(Blocks(Block(), (layer,) * 4, Block()), layout, CLUSTER)
    assert found.pipeline.time_s == pytest.approx(4 * (0.85 + 1.7), abs=1e-3)


@pytest.mark.parametrize(("cluster", "factor"), [("tpu-v5e-16x16", 1.04), ("dgx-a100-80gb", 1.0)])
def test_slices_wait_for_the_slowest(cluster, factor):
    """2 % for each doubling of slices: four of 256 chips; nodes of GPUs have no such rows."""
    joined = load_cluster(cluster)
    layer = Block(BlockWork(1.0), BlockWork(2.0))
    layout = Parallelism(dp=4 * joined.gpus_per_node)
    found = training_step(Blocks(Block(), (layer,) * 4, Block()), layout, joined)
    assert found.time_s == pytest.approx(12 * factor)


def test_on_a_tpu_exchanges_hide_but_for_the_first_part():
    """With tp=16 all of 1.6 s but a sixteenth: links move data without the cores."""
    layer = Block(BlockWork(2.0, tensor_s=1.6), BlockWork(2.0))
    found = training_step(
        Blocks(Block(), (layer,), Block()), Parallelism(tp=16, async_tp=True), load_cluster("tpu-v5e-16x16")
    )
    assert found.time_s == pytest.approx(4.0 - 1.5)


@pytest.mark.defect("7")
@pytest.mark.parametrize("microbatches", [1, 8])
def test_shared_gradients_are_summed_in_each_microbatch(microbatches):
    """Of shared gradients memory held a share, messages were those of whole ones, one a step, and time added up whole
    ones: three algorithms in one layout.

    Four layers of 250 million numbers on eight GPUs. A microbatch computes 12 s, waits for the last layer's sum, and
    adds its share; of what the other three hide behind, messages take 24 of 108 multiprocessors. The weights, 2 bytes
    each, are gathered while the next step's forward runs."""
    layer = Block(BlockWork(1.0), BlockWork(2.0), parameters=250_000_000)
    layout = Parallelism(dp=8, fsdp="grad", microbatches=microbatches)
    found = training_step(Blocks(Block(), (layer,) * 4, Block()), layout, CLUSTER)
    reduce_s = collective_s("reduce_scatter", 1e9, 8, CLUSTER).time_s
    gather_s = collective_s("all_gather", 2e9, 8, CLUSTER).time_s
    gpu = hardware_of(CLUSTER)
    added_s = 10 * 1e9 / 8 / (gpu.dram_bytes_per_s * gpu.achievable["dram"]) * (microbatches > 1)
    waited_s = microbatches * (12 + reduce_s + 3 * reduce_s * 24 / 108 + added_s)
    assert found.pipeline.time_s + found.exposed_s == pytest.approx(waited_s + gather_s * 24 / 108)
    assert (found.memory[0].gradients, found.memory[0].gathered) == (4e9 / 8, 1e9)


def test_a_shared_optimizer_keeps_whole_gradients():
    """ZeRO-1 holds the gradients of all microbatches and sums them once; the optimizer's 12 bytes are shared."""
    layer = Block(BlockWork(1.0), BlockWork(2.0), parameters=250_000_000)
    blocks = Blocks(Block(), (layer,) * 4, Block())
    found = training_step(blocks, Parallelism(dp=8, fsdp="optimizer", microbatches=8), CLUSTER)
    memory = found.memory[0]
    assert (memory.weights, memory.gradients, memory.optimizer, memory.gathered) == (2e9, 4e9, 12e9 / 8, 0)
    reduce_s = collective_s("reduce_scatter", 1e9, 8, CLUSTER).time_s
    gather_s = collective_s("all_gather", 2e9, 8, CLUSTER).time_s
    assert found.exposed_s == pytest.approx(reduce_s + 3 * reduce_s * 24 / 108 + gather_s * 24 / 108)


@pytest.mark.defect("9")
@pytest.mark.parametrize("stages", [(4, 4, 0), (4, 0, 4)])
@pytest.mark.parametrize("shared", ["none", "full"])
def test_a_stage_may_hold_no_layer(stages, shared):
    """Layouts of published recipes leave a chunk without layers, and the largest of none was asked for.

    Eight layers of 1,000 numbers, none in one of three stages: it computes nothing, holds nothing and passes on."""
    layout = Parallelism(pp=3, dp=2, microbatches=6, fsdp=shared)
    found = training_step(Blocks(Block(), (LAYER,) * 8, Block(), stages=stages), layout, CLUSTER, state="bf16")
    empty = stages.index(0)
    assert found.memory[empty].total == 0
    assert found.pipeline.busy_s[empty] == pytest.approx(0, abs=1e-3)
    assert found.time_s >= 6 * 12 + 12  # two stages of 12 s work on six microbatches, and fill once


def test_weights_are_summed_between_those_that_have_the_same():
    """The ranks of a context have the same weights; of 16 GPUs that share experts among 8, two have the same."""
    layer = Block(BlockWork(1.0), BlockWork(2.0), parameters=1_250_000_000, experts=1_000_000_000)
    blocks = Blocks(Block(), (layer,) * 2, Block())
    with_ring = training_step(blocks, Parallelism(dp=2, cp=8), CLUSTER, overlap=False)
    sizes = (2 * 4 * 250_000_000, 2 * 4 * 1_000_000_000)
    alone_s = [collective_s("all_reduce", nbytes, 16, CLUSTER).time_s for nbytes in sizes]
    assert with_ring.exposed_s == pytest.approx(sum(alone_s))
    found = training_step(blocks, Parallelism(dp=16, ep=8), CLUSTER, overlap=False)
    apart_s = collective_s("all_reduce", sizes[1], 2, CLUSTER, per_node=1).time_s
    assert found.exposed_s == pytest.approx(alone_s[0] + apart_s)
    memory = training_step(blocks, Parallelism(dp=16, ep=8, fsdp="grad"), CLUSTER).memory[0]
    assert memory.gradients == 4 * (500_000_000 // 16 + 2_000_000_000 // 2)
    assert step("dp=2,cp=4").model_flops == 2 * 4 * 8 * 30


def test_groups_that_communicate_at_once_share_the_adapters_of_a_node():
    """Eight GPUs with four adapters: two groups of replicas on each node have two each; with one group it has all."""
    few = load_cluster("aws-p4d")
    layer = Block(BlockWork(1.0), BlockWork(2.0), parameters=250_000_000)
    blocks = Blocks(Block(), (layer,) * 2, Block())
    alone, shared = (
        training_step(blocks, Parallelism(tp=tp, dp=32 // tp), few, overlap=False).exposed_s for tp in (1, 2)
    )
    assert alone == pytest.approx(collective_s("all_reduce", 2e9, 32, few).time_s, rel=1e-6)
    assert shared > 1.8 * collective_s("all_reduce", 2e9, 16, few, per_node=4).time_s


def test_a_stage_that_waits_for_its_sends_begins_with_nothing_issued():
    """A layer's kernels take the CPU 1 s and the GPU 0.1, the head's the GPU 5: one after another where the CPU is not
    ahead, and next to one another where it is."""
    layer = Block(BlockWork(0.1, issue_s=1.0), input_bytes=8)
    blocks = Blocks(Block(), (layer,) * 2, Block(BlockWork(5.0, issue_s=0.1)))
    waits, ahead = (training_step(blocks, Parallelism(pp=2), CLUSTER, overlap=overlap) for overlap in (False, True))
    assert waits.pipeline.time_s == pytest.approx(1.0 + (1.0 + 5.0), rel=1e-4)
    assert ahead.pipeline.time_s == pytest.approx(1.0 + (0.1 + 5.0), rel=1e-4)


def test_stages_send_parts_that_are_gathered():
    """Ranks that share products have the same activations: each sends 1/8 to the next node."""
    big = Block(BlockWork(1.0), BlockWork(2.0), input_bytes=10**9)
    blocks = Blocks(Block(), (big,) * 2, Block())
    found = training_step(blocks, Parallelism(tp=8, pp=2), CLUSTER, overlap=False).pipeline
    apart_s = collective_s("send_recv", 10**9 / 8, 2, CLUSTER, per_node=1).time_s
    whole_s = collective_s("all_gather", 10**9, 8, CLUSTER).time_s
    assert found.time_s == pytest.approx(2 * (1 + 2) + 2 * (apart_s + whole_s))


def test_the_first_layer_of_a_model_is_sent_by_nobody():
    """With ``sp`` it reads the embedding's sum of 8 GB, of which each rank keeps the eighth that the next one reads."""
    first, layer = (Block(BlockWork(1.0), BlockWork(2.0), input_bytes=size) for size in (8 * 10**9, 10**9))
    blocks = Blocks(Block(), (first, layer), Block())
    found = training_step(blocks, Parallelism(tp=8, sp=True, pp=2), CLUSTER, overlap=False).pipeline
    apart_s = collective_s("send_recv", 10**9, 2, CLUSTER, per_node=1).time_s
    assert found.time_s == pytest.approx(2 * (1 + 2) + 2 * apart_s)


def test_frozen_weights_have_no_gradient_and_no_state():
    """Ninety of a hundred numbers of each layer are frozen, as with adapters: 2 bytes each of weights; 2 + 4 + 12 of
    the others. Between replicas only their gradients pass."""
    layer = replace(LAYER, parameters=100, frozen=90)

    def of(text):
        return training_step(Blocks(Block(), (layer,) * 4, Block()), Parallelism.parse(text), CLUSTER)

    memory = of("dp=2").memory[0]
    assert (memory.weights, memory.gradients, memory.optimizer) == (4 * 200, 4 * 40, 4 * 120)
    memory = of("dp=2,fsdp=full").memory[0]
    assert (memory.weights, memory.gradients, memory.optimizer) == (4 * 100, 4 * 20, 4 * 60)
    few = training_step(Blocks(Block(), (replace(LAYER, parameters=10),) * 4, Block()), Parallelism(dp=2), CLUSTER)
    assert of("dp=2").time_s == few.time_s
    assert of("dp=2").optimizer_s == few.optimizer_s > 0


def test_stages_have_as_many_layers_as_the_program_says():
    """Four, four and one of nine layers, and a head of 9 s: ranks are busy for 12, 12 and 3 + 9 s of a microbatch. As
    equally many, the head's would be busy for 18 s."""
    head = Block(BlockWork(3.0), BlockWork(6.0))
    model = Blocks(Block(), (LAYER,) * 9, head, stages=(4, 4, 1))
    layout = Parallelism(pp=3, microbatches=2)
    assert training_step(model, layout, CLUSTER).pipeline.busy_s == pytest.approx((24, 24, 24), rel=1e-4)
    even = training_step(replace(model, stages=()), layout, CLUSTER)
    assert even.pipeline.busy_s == pytest.approx((18, 18, 36), rel=1e-4)


@pytest.mark.parametrize(
    ("forward_s", "sent_s", "together_s"),
    # of 54 s of products 36 run next to 36 s of messages, which take 24 of 108 multiprocessors, at 7/9 of their rate
    [(18.0, 12.0, 36 + (54 - 36 * 7 / 9)), (1.0, 12.0, 36.0)],
)
def test_messages_to_experts_next_to_another_microbatch(forward_s, sent_s, together_s):
    """Forward and backward, twice as long, of two microbatches together: the longer of the products and the messages;
    the first forward pass and the last backward pass are alone."""
    forward, backward = (
        BlockWork(n * (forward_s + sent_s), n * sent_s, a2a_s=n * sent_s, hybrid_s=n * sent_s / 4) for n in (1, 2)
    )
    blocks = Blocks(Block(), (Block(forward, backward, activation_bytes=100),) * 2, Block())
    apart = training_step(blocks, Parallelism.parse("dp=8,ep=8,microbatches=3"), CLUSTER)
    assert apart.pipeline.time_s == 3 * 2 * 3 * (forward_s + sent_s)
    found = training_step(blocks, Parallelism.parse("dp=8,ep=8,microbatches=3,a2a_overlap"), CLUSTER)
    alone_s = 2 * 3 * (forward_s + sent_s)
    assert found.pipeline.time_s == pytest.approx(alone_s + 2 * 2 * together_s)
    assert found.tensor_s == pytest.approx(apart.tensor_s - (apart.time_s - found.time_s))
    assert found.memory[0].activations == 2 * apart.memory[0].activations
    assert found.pipeline.in_flight == (2,)
    hybrid = training_step(blocks, Parallelism.parse("dp=8,ep=8,microbatches=3,dispatcher=hybridep"), CLUSTER)
    assert hybrid.pipeline.time_s == 3 * 2 * 3 * (forward_s + sent_s / 4)
