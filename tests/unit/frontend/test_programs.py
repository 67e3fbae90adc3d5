"""The programs of many GPUs under profiles/: what a rank sends, by hand from published dimensions."""

import functools
import sys
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import memwall
from memwall.analysis.communication import exposed_s, sent_bytes
from memwall.core.errors import UsageError
from memwall.core.ranks import read_ranks
from memwall.record.kernels import peak_place
from tests.unit.places import ROOT
from tests.unit.small_modules import Experts, Routed

#: parameters of a block of Llama 3: query and out, key and value, the three of the MLP, two norms; of what is around
BLOCK_8B = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
AROUND_8B = 2 * 128256 * 4096 + 4096
#: of the 70B an eighth of the products' weights, and whole norms
BLOCK_70B = (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672) // 8 + 2 * 8192
AROUND_70B = 2 * 128256 * 8192 // 8 + 8192
#: its residual stream: four sequences of 4,096 tokens in bfloat16
STREAM_70B = 4 * 4096 * 8192 * 2
#: keys and values of 131,072 tokens, 32 heads of 128 after they are repeated, in bfloat16
KEYS_AND_VALUES = 2 * 131072 * 32 * 128 * 2
#: two rows for each of 4,096 tokens, and a matrix of an expert, in bfloat16
ROWS, EXPERT = 2 * 4096 * 4096 * 2, 4096 * 14336 * 2
#: a micro-batch of 2,048 tokens
HIDDEN = 2048 * 2560 * 2


@functools.cache
def profiled(name: str, cluster: str, world: int, mode: str = "training", **options) -> memwall.Profile:
    return memwall.profile(f"profiles/{name}", mode=mode, cluster=cluster, world=world, **options)


def sent(made: memwall.Profile) -> Counter:
    """Collective, ranks and bytes of its message → how often."""
    launches = ((op, cost.launches[-1]) for op, cost in zip(made.graph.ops, made.costs[0], strict=True))
    return Counter((last.op, last.group, last.nbytes) for op, last in launches if op.op_class == "communication")


def test_ddp_sums_each_gradient_once_and_sends_the_buffers_of_batch_norm():
    found = sent(profiled("resnet50_ddp/model.py", "dgx-a100-80gb", 64))
    sums = [nbytes for op, _, nbytes in found.elements() if op == "all_reduce"]
    assert sum(sums) == 4 * 25_557_032 and max(sums) < 2 * 25 * 2**20
    # running means and variances, and how many batches each of the 53 has seen
    assert found["broadcast", "0-63", 4 * 53_120] == found["broadcast", "0-63", 8 * 53] == 1


def test_fsdp_gathers_each_block_twice_in_bfloat16_and_sums_in_float32():
    found = sent(profiled("llama3_8b_fsdp/model.py:eight_blocks", "dgx-h100", 64))
    assert found == {
        ("all_gather", "0-63", 2 * BLOCK_8B): 16, ("reduce_scatter", "0-63", 4 * BLOCK_8B): 8,
        ("all_gather", "0-63", 2 * AROUND_8B): 1, ("reduce_scatter", "0-63", 4 * AROUND_8B): 1,
    }  # fmt: skip


def test_tensor_and_sequence_parallel_blocks_inside_a_node_are_sharded_over_nodes():
    """Of each block the stream is gathered before attention and the MLP: forward, computed again, backward. The sum
    after the MLP is not computed again, as nothing needs it."""
    found = sent(profiled("llama3_70b_fsdp_tp/model.py:eight_blocks", "dgx-h100", 256))
    assert found["all_gather", "0-248:8", 2 * BLOCK_70B] == 16 and found["all_gather", "0-248:8", 2 * AROUND_70B] == 1
    assert found["reduce_scatter", "0-248:8", 4 * BLOCK_70B] == 8
    assert found["all_gather", "0-7", STREAM_70B] == 8 * 6 + 2
    assert found["reduce_scatter", "0-7", STREAM_70B] == 8 * 5 + 2


def test_experts_get_their_rows_and_send_them_back_forward_and_backward():
    found = sent(profiled("moe_ep/model.py", "dgx-h100", 16))
    assert found["all_to_all", "0-7", ROWS] == 8 * 4
    assert found["all_reduce", "0,8", EXPERT] == 8 * 3


def test_keys_and_values_are_gathered_and_their_gradients_go_around():
    """Forward, computed again, backward; gradients in float32, an eighth at a time."""
    found = sent(profiled("llama3_8b_cp/model.py:eight_blocks", "dgx-h100", 16))
    assert found["all_gather", "0-7", KEYS_AND_VALUES] == 8 * 3
    assert found["all_to_all", "0-7", 2 * KEYS_AND_VALUES // 8] == 8 * 8


def test_a_stage_hands_on_each_micro_batch_and_its_gradient():
    found = sent(profiled("gpt_pipeline/model.py", "dgx-a100-80gb", 8, rank=3))
    assert found == {("send_recv", group, HIDDEN): 2 * 16 for group in ("2-3", "3-4")}


def test_what_a_gate_limits_is_what_is_sent_and_what_nothing_hides():
    made = profiled("resnet50_ddp/model.py", "dgx-a100-80gb", 64)
    (schedule,) = made.simulations
    # a ring sends twice 63/64 of each sum; a broadcast its whole message
    assert sent_bytes(made, schedule) == pytest.approx(2 * 63 / 64 * 4 * 25_557_032 + 4 * 53_120 + 8 * 53)
    sums = [kernel for kernel in schedule.kernels if kernel.op_class == "communication"]
    assert exposed_s(made, schedule) == pytest.approx(sum(k.time_s - k.wait_s for k in sums))
    alone = memwall.profile("profiles/resnet50/model.py", batch=1)
    assert sent_bytes(alone, alone.simulations[0]) == exposed_s(alone, alone.simulations[0]) == 0


def test_a_program_of_torchrun_without_a_world_says_how_it_is_started():
    with pytest.raises(UsageError, match=r"KeyError: 'LOCAL_RANK'.*with --cluster NAME --world N"):
        memwall.profile("profiles/resnet50_ddp/model.py")


# -- both ways in: a layout, and a program that shards the same model --------------------------------------------------

B, S, WIDTH = 2, 128, 256
WHOLE = Replicate()
COLUMNS = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
#: Megatron's cut of a block, by PyTorch's own styles
TENSOR = {
    "attention": PrepareModuleInput(input_layouts=(WHOLE, None, None), desired_input_layouts=(WHOLE, None, None)),
    "mlp": PrepareModuleInput(input_layouts=(WHOLE,), desired_input_layouts=(WHOLE,)),
    **dict.fromkeys(COLUMNS, ColwiseParallel()), "attention.out": RowwiseParallel(), "mlp.down": RowwiseParallel(),
}  # fmt: skip
SEQUENCE = {
    "norm1": SequenceParallel(use_local_output=True), "norm2": SequenceParallel(use_local_output=True),
    "attention": PrepareModuleInput(input_layouts=(Shard(1), None, None), desired_input_layouts=(WHOLE, None, None)),
    "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(WHOLE,)),
    **dict.fromkeys(COLUMNS, ColwiseParallel()),
    **dict.fromkeys(("attention.out", "mlp.down"), RowwiseParallel(output_layouts=Shard(1))),
}  # fmt: skip
#: and of what stands around the blocks
AROUND = {"embedding": RowwiseParallel(input_layouts=WHOLE), "head": ColwiseParallel()}
AROUND_SEQUENCE = {
    "embedding": RowwiseParallel(input_layouts=WHOLE, output_layouts=Shard(1)),
    "norm": SequenceParallel(use_local_output=True), "head": ColwiseParallel(input_layouts=Shard(1)),
}  # fmt: skip


@pytest.fixture(scope="module")
def llama():
    spec = spec_from_file_location("llama_of_a_layout", ROOT / "profiles/llama3_8b/model.py")
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def config(llama, layers=2):
    return llama.Config(width=WIDTH, layers=layers, heads=8, kv_heads=4, ffn=512)


def two_ways(llama, program, layout, inputs=None, **options):
    """A program on two GPUs, and the whole model under a layout."""
    inputs = llama.inputs(B, S) if inputs is None else inputs
    workload = memwall.Workload(program, inputs, loss=None if "pp" in layout else llama.loss)
    made = memwall.profile(workload, **{"mode": "training", "optimizer": None, "gpu": "h100", "cluster": "dgx-h100",
                                        "world": 2, **options})  # fmt: skip
    given = llama.inputs(1 if "pp" in layout else B, S)
    return made, memwall.parallel(llama.Llama(config(llama)), given, layout=layout, cluster="dgx-h100", loss=llama.loss)


@pytest.mark.parametrize(("layout", "plan", "around", "program_only", "layout_only"), [
    ("tp=2", TENSOR, AROUND, {}, {}),
    ("tp=2,sp", SEQUENCE, AROUND_SEQUENCE, {"reduce_scatter": 1}, {"all_reduce": 1}),
])  # fmt: skip
def test_products_in_shards_are_the_same_both_ways(llama, layout, plan, around, program_only, layout_only):
    """FLOPs, bytes and messages of the whole model, and of a block: two sums forward and two backward, of 2 x 128 rows
    of 256 in float32; along the sequence as many that gather and scatter. What the ranks' shares of the embedding find
    is summed, and PyTorch scatters the sum along the sequence, where a layout cuts it."""

    def program():
        mesh, net = init_device_mesh("cuda", (2,)), llama.Llama(config(llama))
        parallelize_module(net, mesh, around)
        for block in net.blocks:
            parallelize_module(block, mesh, plan)
        return net

    traced, laid_out = two_ways(llama, program, layout)
    done, same = (of_blocks(made, within="blocks.1.") for made in (traced, laid_out.profile))
    assert done == same
    kinds = ("all_gather", "reduce_scatter") if "sp" in layout else ("all_reduce",)
    assert {done[phase, kind, B * S * WIDTH * 4] for phase in ("forward", "backward") for kind in kinds} == {2}
    done, same = (of_blocks(made, within="") for made in (traced, laid_out.profile))
    size = B * S * WIDTH * 4
    assert done - same == Counter({("forward", kind, size): n for kind, n in program_only.items()})
    assert same - done == Counter({("forward", kind, size): n for kind, n in layout_only.items()})


def test_shards_of_all_replicas_are_the_same_both_ways(llama):
    """Two blocks gathered twice and scattered once, what is around them gathered once."""

    def program():
        mesh, net = init_device_mesh("cuda", (2,)), llama.Llama(config(llama))
        for block in net.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(net, mesh=mesh)

    traced, laid_out = two_ways(llama, program, "dp=2,fsdp=full")
    assert of_blocks(traced, sends=False) == of_blocks(laid_out.profile, sends=False)
    assert groups(traced) == laid_out.messages()
    block = 2 * WIDTH * WIDTH + 2 * WIDTH * WIDTH // 2 + 3 * WIDTH * 512 + 2 * WIDTH
    assert laid_out.messages()["all_gather", 4 * block, 2] == 4
    held, laid = traced.simulations[0].memory, laid_out.step.memory[0]
    around = 2 * 4 * WIDTH * 128256  # the weights of the embedding, which backward does not read, and of the head
    assert laid.temporaries + around == pytest.approx(held.temporaries, rel=1e-3)
    assert laid.gathered == pytest.approx(around + 4 * block, rel=1e-3)  # and of the block that is gathered ahead
    assert laid.activations == pytest.approx(held.activations, rel=1e-3)
    assert "_log_softmax_backward_data" in laid_out.peak_op
    assert "_log_softmax_backward_data" in peak_place(traced, traced.simulations[0])


def test_replicas_are_the_same_both_ways(llama):
    """DistributedDataParallel sends a bucket that is full at 1 MiB, then such of 25 MiB, from the last parameter on; a
    layout one message for each block: as many bytes. Before backward it holds its buckets, a layout the gradients."""

    def program():
        dist.init_process_group("nccl")
        return DistributedDataParallel(llama.Llama(config(llama)))

    traced, laid_out = two_ways(llama, program, "dp=2")
    assert of_blocks(traced, sends=False, within="module.blocks.") == of_blocks(laid_out.profile, sends=False)
    sums = [sum(n * nbytes for (_, nbytes, _), n in sent.items()) for sent in (groups(traced), laid_out.messages())]
    sizes = [4 * parameter.numel() for parameter in llama.Llama(config(llama)).parameters()]
    buckets, limit, held_bytes = Counter[int](), 1 << 20, 0
    for nbytes in reversed(sizes):
        held_bytes += nbytes
        if held_bytes >= limit:
            buckets[held_bytes] += 1
            limit, held_bytes = 25 << 20, 0
    buckets += Counter([held_bytes] * (held_bytes > 0))
    assert groups(traced) == {("all_reduce", nbytes, 2): times for nbytes, times in buckets.items()}
    numbers = sum(sizes) // 4
    assert sums == [4 * numbers, 4 * numbers]
    assert {(op, ranks) for op, _, ranks in groups(traced)} == {("all_reduce", 2)} == {
        (op, ranks) for op, _, ranks in laid_out.messages()}  # fmt: skip
    held, laid = traced.simulations[0].memory, laid_out.step.memory[0]
    assert held.buffers == laid.gradients == 4 * numbers
    assert laid.total - laid.optimizer == pytest.approx(held.total, rel=1e-3)  # the program has none


class Stage(nn.Module):
    """A block of a Llama, with what stands before or after it."""

    def __init__(self, llama):
        super().__init__()
        net, self.last, self.tables = llama.Llama(config(llama)), dist.get_rank() == 1, llama.rotary_tables
        self.embedding = None if self.last else net.embedding
        self.block = net.blocks[dist.get_rank()]
        self.norm, self.head = (net.norm, net.head) if self.last else (None, None)

    def forward(self, x):
        x = x if self.last else self.embedding(x)
        x = self.block(x, *self.tables(S, WIDTH // 8, x))
        return self.head(self.norm(x)) if self.last else x


class Staged(nn.Module):
    def __init__(self, llama, microbatches):
        super().__init__()
        self.part = Stage(llama)
        hidden, logits = (torch.empty(1, S, n, device="cuda", requires_grad=True) for n in (WIDTH, 128256))
        ids = torch.zeros(1, S, dtype=torch.long, device="cuda")
        stage = PipelineStage(self.part, dist.get_rank(), 2, torch.device("cuda"),
                              input_args=(hidden if self.part.last else ids,),
                              output_args=(logits if self.part.last else hidden,))  # fmt: skip
        self.schedule = Schedule1F1B(stage, microbatches, loss_fn=lambda logits, labels: llama.loss(logits))

    def forward(self, ids):
        return self.schedule.step(*([] if self.part.last else [ids]), **({"target": ids} if self.part.last else {}))


def test_stages_are_the_same_both_ways(llama):
    """Four microbatches in two stages; the layout's trace is of one microbatch of the whole model."""

    def program():
        dist.init_process_group("nccl")
        return Staged(llama, 4)

    found: Counter = Counter()
    for rank in range(2):
        traced, laid_out = two_ways(llama, program, "pp=2,microbatches=4", llama.inputs(4, S), rank=rank)
        assert groups(traced) == laid_out.messages(rank) == {("send_recv", S * WIDTH * 4, 2): 2 * 4}
        found += of_blocks(traced, sends=False, within="part.block")
    whole = of_blocks(laid_out.profile, sends=False)
    assert found == Counter({call: 4 * count for call, count in whole.items()})


EXPERT_COUNT, CHOICES, NARROW = 8, 2, 64


class Exchange(torch.autograd.Function):
    """Rows to the ranks of their experts, or back."""

    @staticmethod
    def forward(ctx, rows):
        received = torch.empty_like(rows)
        dist.all_to_all_single(received, rows.contiguous())
        return received

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.forward(ctx, gradient)


class Half(Experts):
    """One of two ranks' half of all experts."""

    def forward(self, x, ends):
        return Exchange.apply(super().forward(Exchange.apply(x), ends))


class Mixture(nn.Module):
    def __init__(self, ranks=1):
        super().__init__()
        experts = [(Half if ranks > 1 else Experts)(EXPERT_COUNT // ranks, WIDTH, NARROW) for _ in range(2)]
        self.blocks = nn.ModuleList(Routed(own, WIDTH, EXPERT_COUNT, CHOICES) for own in experts)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_experts_on_several_gpus_are_the_same_both_ways():
    """Two all-to-alls a layer forward and two backward (the first block's input takes no gradient, and its rows none),
    of two rows of 256 for each token in bfloat16; a rank multiplies as many rows by half of the experts."""

    def program():
        dist.init_process_group("nccl")
        return Mixture(ranks=2)

    inputs = (torch.zeros(B, S, WIDTH, dtype=torch.bfloat16, requires_grad=True),)
    options = {"mode": "training", "optimizer": None, "gpu": "h100", "cluster": "dgx-h100", "world": 2}
    traced = memwall.profile(memwall.Workload(program, inputs), **options)
    laid_out = memwall.parallel(Mixture(), inputs, layout="dp=2,ep=2", cluster="dgx-h100")
    done, same = of_blocks(traced), of_blocks(laid_out.profile)
    assert done == same
    assert (
        done["forward", "all_to_all", 2 * B * S * WIDTH * 2]
        == done["backward", "all_to_all", 2 * B * S * WIDTH * 2]
        == 4
    )


def groups(made: memwall.Profile) -> Counter:
    """Collective, bytes of its message and how many ranks → how often."""
    return Counter({(op, nbytes, len(read_ranks(group))): n for (op, group, nbytes), n in sent(made).items()})


def of_blocks(made: memwall.Profile, sends: bool = True, within: str = "blocks.") -> Counter:
    """Phase, kind, FLOPs and bytes of each product, attention and message of the blocks → how often."""
    found: Counter = Counter()
    for op, cost in zip(made.graph.ops, made.costs[0], strict=True):
        if op.module.startswith(within) and op.op_class == "communication":
            found[op.phase, cost.launches[-1].op, cost.launches[-1].nbytes] += sends
        elif op.module.startswith(within) and op.op_class in ("contraction", "attention"):
            found[op.phase, op.op_class, cost.total_flops, cost.read_bytes, cost.write_bytes] += 1
    return +found
