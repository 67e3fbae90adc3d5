"""The bound of a whole step: traffic that L2 cannot save, by hand."""

import functools
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn

import memwall
from tests.unit.places import ROOT

#: bytes and bytes per second of the H100's file
L2, DRAM, L2_RATE = 52_428_800, 3350e9, 10.1e12
WEIGHT = 4096 * 4096 * 2


def bounds(model, rows=8, gpu="h100", mode="inference", width=4096):
    record = memwall.profile(
        model, (torch.zeros(rows, width, dtype=torch.bfloat16, device="meta"),), gpu=gpu, mode=mode
    )
    (schedule,) = record.simulations
    return record.step_bound_s(schedule), schedule.totals


def chain(length, width=4096):
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(length))).to("meta", torch.bfloat16)


@pytest.mark.defect("F 44")
def test_weights_that_do_not_fit_together_come_from_dram():
    """Each kernel was bounded at L2's speed where what it touches fits in L2, although other kernels pass between two
    uses of it: no bound was that of the whole step.

    Forty weights of 33.5 MB: each fits in L2, all of them do not. The first of them may be there."""
    step_s, totals = bounds(chain(40))
    activation = 8 * 4096 * 2
    assert step_s == pytest.approx((40 * WEIGHT + activation - L2) / DRAM, rel=1e-9)
    assert totals.bound_s == pytest.approx(40 * (WEIGHT + 2 * activation) / L2_RATE, rel=1e-9)
    assert totals.bound_s < step_s < totals.time_s


def test_one_weight_used_again_and_again_may_stay_in_l2():
    """Forty times the same weight: nothing but L2's speed bounds it."""
    shared = nn.Linear(4096, 4096, bias=False).to("meta", torch.bfloat16)
    step_s, totals = bounds(nn.Sequential(*[shared] * 40))
    assert step_s == pytest.approx(40 * (WEIGHT + 2 * 8 * 4096 * 2) / L2_RATE, rel=1e-9)
    assert step_s == pytest.approx(totals.bound_s, rel=1e-9)


def test_a_lookup_counts_what_it_certainly_reads():
    """An embedding of 4 GB, of which a step reads 8 rows, does not cross DRAM."""

    class Lookup(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(500_000, 4096, device="meta", dtype=torch.bfloat16)

        def forward(self, rows):
            return self.table(rows) + 1

    record = memwall.profile(Lookup(), (torch.zeros(8, dtype=torch.int64, device="meta"),), gpu="h100")
    (schedule,) = record.simulations
    assert record.step_bound_s(schedule) <= schedule.totals.bound_s


def test_results_that_l2_cannot_hold_are_written_to_dram():
    """A result of 512 MB is read by the next kernel: all but L2's size of it goes out and comes in."""

    class Twice(nn.Module):
        def forward(self, x):
            return torch.exp(x).sum()

    step_s, _ = bounds(Twice(), rows=65536)
    size = 65536 * 4096 * 2
    # two windows (the first ends beyond eight times L2): reads x and writes exp(x); reads exp(x)
    assert step_s == pytest.approx(((size - L2) * 2 + (size - L2)) / DRAM, rel=1e-3)


def test_what_is_read_next_may_be_another_part_of_what_was_written():
    """One half of a cache is overwritten, the other is read: nothing of the new half has to leave L2."""

    class Half(nn.Module):
        def forward(self, new, cache):
            cache[:65536].copy_(new)
            return cache[65536:].sum()

    new, cache = (torch.zeros(rows, 4096, dtype=torch.bfloat16, device="meta") for rows in (65536, 131072))
    record = memwall.profile(Half(), (new, cache), gpu="h100")
    (schedule,) = record.simulations
    size = 65536 * 4096 * 2  # two windows: the first reads the new half, the second the other
    assert record.step_bound_s(schedule) == pytest.approx(2 * (size - L2) / DRAM, rel=1e-3)


def test_a_gpu_of_unknown_l2_has_the_bound_of_its_dram():
    """A file of a GPU need not name its L2: then all that is read and written crosses DRAM."""
    record = memwall.profile(chain(2), (torch.zeros(8, 4096, dtype=torch.bfloat16, device="meta"),), gpu="h100")
    (schedule,) = record.simulations
    step_s = record.step_bound_s(replace(schedule, gpu=replace(schedule.gpu, l2_bytes=0)))
    assert step_s == pytest.approx((2 * WEIGHT + 4 * 8 * 4096 * 2) / DRAM, rel=1e-9)


@pytest.mark.parametrize(
    ("workload", "mode"),
    [("bert_layer", "training"), ("resnet50", "inference")]
    + [
        pytest.param(*other, marks=pytest.mark.whole)
        for other in (("bert_layer", "inference"), ("resnet50", "training"), ("dlrm", "inference"),
                      ("dlrm", "training"), ("vit_l16", "inference"), ("vit_l16", "training"))
    ],
)  # fmt: skip
def test_no_prediction_is_below_the_bound_of_its_step(workload, mode):
    gpus, policies = ["p100", "v100", "t4", "a100", "h100", "b200"], ["eager", "memwall", "ideal"]
    record = memwall.profile(ROOT / "profiles" / workload / "model.py", gpu=gpus, mode=mode, policy=policies)
    for schedule in record.simulations:
        step_s = record.step_bound_s(schedule)
        assert 0 < step_s <= schedule.totals.time_s, (schedule.gpu.name, schedule.policy)
        boundless = replace(schedule.gpu, l2_bytes=1 << 60)  # a cache that keeps everything
        assert record.step_bound_s(replace(schedule, gpu=boundless)) <= step_s


REFERENCE = {  # programs of many ranks: what of each, its cluster, its ranks
    "llama3_8b_fsdp/model.py:eight_blocks": ("dgx-h100", 64), "moe_ep/model.py": ("dgx-h100", 16),
    "gpt_pipeline/model.py": ("dgx-a100-80gb", 8), "resnet50_ddp/model.py": ("dgx-h100", 8),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", REFERENCE)
def test_no_program_of_many_ranks_is_below_the_bound_of_its_step(target):
    cluster, world = REFERENCE[target]
    policy = ["eager", "memwall", "ideal"]
    below_the_bound(memwall.profile(ROOT / "profiles" / target, mode="training", cluster=cluster, world=world,
                                    policy=policy))  # fmt: skip


def below_the_bound(record):
    for schedule in record.simulations:
        times_s = record.step_bound_s(schedule), schedule.totals.bound_s, schedule.totals.time_s
        assert 0 < max(times_s[:2]) <= times_s[2], (schedule.policy, *times_s)
        assert max(schedule.totals.mfu, schedule.totals.hfu, schedule.mbu) <= 1


class Beside(nn.Module):
    """Messages of so many bytes, of which some are waited for at once, next to products of a width."""

    def __init__(self, width, megabytes, layers, waits):
        super().__init__()
        dist.init_process_group("nccl")
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.sent = [torch.zeros(megabytes << 19, dtype=torch.bfloat16, device="meta") for _ in range(layers)]
        self.waits = waits

    def forward(self, x):
        works = []
        for number, layer in enumerate(self.layers):
            works.append(dist.all_reduce(self.sent[number], async_op=True))
            x = layer(x)
            if self.waits and number % self.waits == 0:
                works.pop().wait()
        for work in works:
            work.wait()
        return x


@pytest.mark.defect("8")
@pytest.mark.parametrize(
    ("width", "megabytes", "waits"), [(1024, 256, 0), (4096, 256, 1), (8192, 16, 2), (8192, 700, 0), (8192, 700, 3)]
)
def test_messages_next_to_products_are_not_summed_in_the_bound(width, megabytes, waits):
    """The bound of a step took all kernels to run one after another, also messages that run next to products: a step
    came out faster than its bound."""
    model = functools.partial(Beside, width, megabytes, 8, waits)
    inputs = (torch.zeros(16384, width, dtype=torch.bfloat16),)
    below_the_bound(memwall.profile(memwall.Workload(model, inputs), dtype="bf16", cluster="dgx-h100", world=8))


@pytest.mark.defect("8")
def test_the_longer_of_messages_and_products_bounds_a_step():
    """Four messages of 1 GiB, half of whose 7/4 a switch that sums spares, at 450 GB/s; four products in 8.9 ms."""
    model = functools.partial(Beside, 8192, 1024, 4, 0)
    inputs = (torch.zeros(16384, 8192, dtype=torch.bfloat16),)
    record = memwall.profile(memwall.Workload(model, inputs), dtype="bf16", cluster="dgx-h100", world=8)
    sent_s, computed_s = 4 * 2**30 * (7 / 8) / 450e9, 4 * 2 * 16384 * 8192**2 / 989.4e12
    assert computed_s == pytest.approx(8.9e-3, rel=0.01)
    assert record.step_bound_s(record.simulations[0]) == pytest.approx(max(sent_s, computed_s), rel=0.02)


def test_a_program_without_kernels_takes_no_time():
    step_s, totals = bounds(nn.Identity())
    assert step_s == totals.bound_s == 0
