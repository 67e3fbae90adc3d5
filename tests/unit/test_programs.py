"""Programs of many GPUs: the ranks of a pipeline that differ, throughput of all ranks, what backward computes again."""

import contextlib
import os
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

import memwall
from memwall.analysis.communication import traced_ranks
from memwall.analysis.pipelines import pipeline_step, rank_rows
from memwall.frontend.torch.ranks.outlines import Outline, alike
from memwall.programs import profile_ranks, ranks_alike
from memwall.record.job import replicas
from memwall.record.kernels import rates
from memwall.report import render
from memwall.report.pages.profile import ProfileReport

B, S, H = 2, 16, 64
MICRO_BATCHES = 8


class Recomputed(nn.Module):
    """Two layers whose activations backward computes again, and one that keeps its own."""

    def __init__(self, reentrant: bool):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(H, 4 * H, bias=False), nn.ReLU(), nn.Linear(4 * H, H, bias=False))
        self.outer, self.reentrant = nn.Linear(H, H, bias=False), reentrant

    def forward(self, x):
        return self.outer(checkpoint(self.inner, x.requires_grad_(), use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_backward_computes_again_is_in_hfu_and_not_in_mfu(reentrant):
    """The inner products are 2*32*64*256 FLOPs each: forward, again, and twice backward; torch's checkpoint stops at
    the last tensor that backward needs, which is the second product's input unless it is reentrant."""
    inner, outer = 2 * B * S * H * 4 * H, 2 * B * S * H * H
    made = memwall.profile(Recomputed(reentrant), (torch.zeros(B, S, H),), mode="training", optimizer=None)
    again = [op for op in made.graph.ops if op.again and op.op_class == "contraction"]
    assert len(again) == (2 if reentrant else 1) and {op.phase for op in again} == {"backward"}
    assert made.flops_again == len(again) * inner
    assert made.model_flops == 6 * inner + 3 * outer + made.flops_again
    totals = made.simulations[0].totals
    assert totals.mfu / totals.hfu == pytest.approx((made.model_flops - made.flops_again) / made.model_flops)
    assert memwall.Profile.from_dict(made.to_dict()).graph.ops == made.graph.ops


@pytest.mark.defect("13")
@pytest.mark.parametrize("attention", ["flash", "efficient", "cudnn"])
def test_a_fused_backward_of_attention_computes_the_scores_again(attention):
    """The backward of a fused attention kernel was counted in HFU with four products, and it does five."""
    asked = {"cudnn": nn.attention.SDPBackend.CUDNN_ATTENTION}.get(attention)  # which no option names
    only = partial(nn.attention.sdpa_kernel, asked) if asked else contextlib.nullcontext

    class Net(nn.Module):
        def forward(self, q, k, v):
            with only():
                return nn.functional.scaled_dot_product_attention(q, k, v)

    tensors = tuple(torch.zeros(2, 4, 256, 64, dtype=torch.float16, requires_grad=True) for _ in range(3))
    option = "auto" if asked else attention
    made = memwall.profile(Net(), tensors, mode="training", optimizer=None, attention=option, gpu="h100")
    assert any(f"{attention}_attention_backward" in op.name for op in made.graph.ops)
    said = " ".join(render(ProfileReport(made), "text").split())
    assert "FLOPs are the model's and bytes compulsory, also of kernels that compute more (scores again)" in said
    product = 2 * 2 * 4 * 256 * 256 * 64  # a multiply-add for each query, key and column of each head
    assert made.model_flops == (2 + 4) * product
    totals = made.simulations[0].totals
    assert totals.mfu * totals.time_s * 989.4e12 == pytest.approx((2 + 4) * product)
    assert totals.hfu * totals.time_s * 989.4e12 == pytest.approx((2 + 5) * product)


def test_a_pass_that_makes_a_graph_computes_nothing_again():
    """A penalty on gradients: the first pass runs with gradients on."""

    def penalty(y):
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return gradient.pow(2).sum()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(H, H), nn.Linear(H, 1)

        def forward(self, given):
            nonlocal x
            x = given.requires_grad_()
            return self.down(torch.tanh(self.up(x)))

    x = torch.zeros(B, H)
    made = memwall.profile(memwall.Workload(Net, (torch.zeros(B, H),), loss=penalty), mode="training", optimizer=None)
    assert not any(op.again for op in made.graph.ops)
    assert made.simulations[0].totals.mfu == made.simulations[0].totals.hfu > 0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(512, H)
        self.up, self.down = nn.Linear(H, 4 * H), nn.Linear(4 * H, H)

    def forward(self, ids):
        return self.down(torch.relu(self.up(self.embedding(ids))))


def two_dimensional():
    """Shards of the same width over replicas, and products in shards over half of a node."""
    mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]) // 4, 4), mesh_dim_names=("dp", "tp"))
    net = parallelize_module(Net(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return fully_shard(net, mesh=mesh["dp"])


def test_ranks_that_share_products_share_their_tokens():
    """16 GPUs in four replicas of four: 4 * B * S tokens a step."""
    ids = torch.zeros(B, S, dtype=torch.long)
    made = memwall.profile(memwall.Workload(two_dimensional, (ids,)), mode="training", cluster="dgx-h100", world=16)
    assert replicas(made) == 4
    speed = rates(made, made.simulations[0])
    assert speed.tokens_per_s == pytest.approx(4 * B * S / made.simulations[0].totals.time_s)
    assert speed.tokens_per_s_per_gpu == pytest.approx(speed.tokens_per_s / 16)
    page = " ".join(render(ProfileReport(made), "text").split())
    assert "of all 16 ranks, which take 4 batches like this one's" in page


class Block(nn.Module):
    def __init__(self, number: int):
        super().__init__()
        self.number, self.up, self.down = number, nn.Linear(H, 4 * H), nn.Linear(4 * H, H)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Rank(nn.Module):
    """A stage with so many blocks."""

    def __init__(self, blocks):
        super().__init__()
        rank, before = dist.get_rank(), sum(blocks[: dist.get_rank()])
        self.part = nn.Sequential(*[Block(before + i) for i in range(blocks[rank])])
        hidden = torch.empty(1, S, H, device="cuda", requires_grad=True)
        stage = PipelineStage(self.part, rank, len(blocks), torch.device("cuda"), input_args=(hidden,),
                              output_args=(hidden,))  # fmt: skip
        self.first, self.last = stage.is_first, stage.is_last
        self.schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=lambda y, target: (y - target).pow(2).mean())

    def forward(self, x):
        self.schedule.step(*([x] if self.first else []), **({"target": x} if self.last else {}))
        return x


def staged(*blocks: int) -> dict[int, memwall.Profile]:
    def model():
        dist.init_process_group("nccl")
        return Rank(blocks)

    workload = memwall.Workload(model, (torch.zeros(MICRO_BATCHES, S, H),))
    options = {"mode": "training", "cluster": "dgx-h100", "world": len(blocks)}
    made = memwall.profile(workload, rank=0, **options)
    asked = []

    def trace(rank):
        asked.append(rank)
        return memwall.profile(workload, rank=rank, **options)

    found = profile_ranks(made, workload, options, trace)
    assert asked == [rank for rank in traced_ranks(found) if rank]
    return found


def test_a_stage_in_the_middle_that_differs_is_traced():
    """Stages of the same blocks, which know their numbers, and one with three times as many."""
    found = staged(1, 1, 1, 3, 1, 1, 1, 1)
    step = pipeline_step(found)
    rows = rank_rows(found, step)
    assert [(row.rank, row.alike) for row in rows] == [(0, ""), (1, "2,4-6"), (3, ""), (7, "")]
    assert step.slowest == 3
    assert step.stages[3].forward_s > 2 * step.stages[1].forward_s == 2 * step.stages[4].forward_s
    page = " ".join(render(ProfileReport(found[0], ranks=found, pipeline=step), "text").split())
    assert "traced: 0, 1, 3, 7; 2,4-6 build modules like rank 1's" in page
    # one pipeline, so one replica: its eight samples in the step of all ranks
    assert f"{MICRO_BATCHES / step.time_s:,.0f} samples/s in all" in page
    assert rates(found[0], found[0].simulations[0]).samples_per_s is None


def outline(*numbers: float, parameters: int = 1) -> Outline:
    return Outline((), tuple(("part.*", number) for number in numbers), parameters)


def test_numbers_that_count_stages_make_no_difference():
    even = {rank: outline(8.0 * rank, 4096.0) for rank in range(0, 48, 8)}
    assert alike(even) == {0: 0, 8: 8, 16: 8, 24: 8, 32: 8, 40: 40}
    windows = {rank: outline(float(rank), 512.0 if rank % 2 else 4096.0) for rank in range(6)}
    assert alike(windows) == {0: 0, 1: 1, 2: 2, 3: 1, 4: 2, 5: 5}
    assert alike({rank: outline(parameters=0) for rank in range(4)}) == {rank: rank for rank in range(4)}


def test_a_program_without_a_pipeline_has_one_rank_that_counts():
    made = memwall.profile(memwall.Workload(two_dimensional, (torch.zeros(B, S, dtype=torch.long),)), mode="training",
                           cluster="dgx-h100", world=16)  # fmt: skip
    assert ranks_alike(made, None, {}) == {} == profile_ranks(made, None, {}, lambda rank: made)
