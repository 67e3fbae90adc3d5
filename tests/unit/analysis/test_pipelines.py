"""The step of a pipeline from its traced ranks, against hand arithmetic."""

import json
import os
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

import memwall
from memwall.analysis.pipelines import pipeline_step, rank_rows
from memwall.core.errors import UsageError
from memwall.report import render
from memwall.report.pages.profile import ProfileReport
from tests.unit.report.test_report_chrome import faults

RANKS, MICRO_BATCHES, S, H = 4, 8, 16, 64


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(H, 4 * H), nn.Linear(4 * H, H)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Rank(nn.Module):
    """A rank with a stage, or with two that lie one after the other or in a V."""

    def __init__(self, schedule):
        super().__init__()
        rank = dist.get_rank()
        places = (rank,) if schedule in (Schedule1F1B, ScheduleGPipe) else (rank, rank + RANKS)
        places = (rank, 2 * RANKS - 1 - rank) if schedule is ScheduleZBVZeroBubble else places
        self.parts = nn.ModuleList(Residual() for _ in places)
        hidden = torch.empty(1, S, H, device="cuda", requires_grad=True)
        stages = [
            PipelineStage(part, place, len(places) * RANKS, torch.device("cuda"), input_args=(hidden,),
                          output_args=(hidden,))
            for part, place in zip(self.parts, places, strict=True)
        ]  # fmt: skip
        self.first, self.last = (any(getattr(stage, name) for stage in stages) for name in ("is_first", "is_last"))
        self.schedule = schedule(stages if len(stages) > 1 else stages[0], MICRO_BATCHES,
                                 loss_fn=lambda y, target: (y - target).pow(2).mean())  # fmt: skip

    def forward(self, x):
        self.schedule.step(*([x] if self.first else []), **({"target": x} if self.last else {}))
        return x


@cache
def traced(schedule=Schedule1F1B) -> dict[int, memwall.Profile]:
    def model():
        dist.init_process_group("nccl")
        assert int(os.environ["WORLD_SIZE"]) == RANKS
        return Rank(schedule)

    workload = memwall.Workload(model, (torch.zeros(MICRO_BATCHES, S, H),))
    options = {"mode": "forward", "cluster": "dgx-h100", "world": RANKS}
    made = {rank: memwall.profile(workload, rank=rank, **options) for rank in (0, 1, RANKS - 1)}
    return {rank: made[rank if rank in made else 1] for rank in range(RANKS)}


def test_forward_and_backward_of_a_stage_are_its_kernels():
    """Four products of a micro-batch in a residual's backward (the first stage's input takes no gradient), two forward;
    what is left of a rank's time is what it hands on."""
    made, step = traced()[1], pipeline_step(traced())
    products = [op.phase for op in made.graph.ops if op.op_class == "contraction"]
    assert (products.count("forward"), products.count("backward")) == (2 * MICRO_BATCHES, 4 * MICRO_BATCHES)
    kernels = made.simulations[0].kernels
    handed_on_s = sum(kernel.time_s for kernel in kernels if kernel.op_class == "communication")
    own_s = MICRO_BATCHES * (step.stages[1].forward_s + step.stages[1].backward_s)
    scaled_s = sum(kernel.time_s for kernel in kernels if made.graph.ops[kernel.op_ids[0]].phase == "optimizer")
    assert own_s + handed_on_s + scaled_s == pytest.approx(made.simulations[0].totals.time_s)
    assert step.stages[2] == step.stages[1]
    assert step.rest_s >= scaled_s * (1 - 1e-9) > 0


def test_a_bubble_of_equal_stages_is_that_of_the_ranks_before_and_behind():
    """(p - 1) / m (Narayanan et al., 2021), and no more than two messages a task."""
    same = dict.fromkeys(range(RANKS), traced()[1])
    step = pipeline_step(same)
    task_s = step.stages[0].forward_s + step.stages[0].backward_s
    least_s = (MICRO_BATCHES + RANKS - 1) * task_s
    assert least_s <= step.run.time_s <= least_s + 2 * (MICRO_BATCHES + RANKS) * step.stages[0].send_s
    assert step.run.in_flight == (4, 3, 2, 1)
    rows = rank_rows(same, step)
    assert [(row.rank, row.alike, row.in_flight) for row in rows] == [(0, "1-3", 4)]
    assert rows[0].waits_s == pytest.approx(step.run.time_s - MICRO_BATCHES * task_s)


def test_utilization_of_all_ranks_counts_the_bubble():
    """A product has 2 * 16 * 64 * 256 FLOPs; two forward and four backward, but for the first rank's three, as its
    input takes no gradient; over what four GPUs could do at 66.9 TFLOP/s of float32 (NVIDIA's H100 datasheet)."""
    product, step = 2 * S * H * 4 * H, pipeline_step(traced())
    flops = MICRO_BATCHES * product * (5 + 6 + 6 + 6)
    assert step.mfu == pytest.approx(flops / (RANKS * 66.9e12 * step.time_s), rel=1e-3)


def test_gpipe_holds_all_micro_batches():
    assert pipeline_step(traced(ScheduleGPipe)).run.in_flight == (MICRO_BATCHES,) * RANKS


@pytest.mark.parametrize("schedule", [ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble])
def test_ranks_of_several_stages_run_their_schedule(schedule):
    """Each stage does each micro-batch forward and backward, the latter in two halves under zero bubble."""
    step = pipeline_step(traced(schedule))
    kinds = "FBW" if "Z" in schedule.__name__ else "FB"
    assert set(step.run.ends) == {(k, s, m) for k in kinds for s in range(2 * RANKS) for m in range(MICRO_BATCHES)}
    assert step.pipeline.schedule == schedule.__name__
    assert step.run.time_s >= max(step.run.busy_s) > 0
    if schedule is ScheduleZBVZeroBubble:  # the first rank has the last stage too
        assert {task.stage for task in step.orders[0]} == {0, 2 * RANKS - 1}


def test_zero_bubble_waits_less():
    plain, zero = (pipeline_step(traced(s)).run for s in (ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble))
    assert zero.bubble < plain.bubble


def test_a_deadlock_names_the_tasks():
    """Rank 1 wants to go backward before it has gone forward."""
    orders = ("0F0 0B0", "1B0 1F0", "2F0 2B0", "3F0 3B0")
    profiles = {
        rank: made.with_facts(pipeline=replace(made.traced.pipeline, microbatches=1, orders=orders))
        for rank, made in traced().items()
    }
    with pytest.raises(UsageError, match=r"deadlock: rank 0 at the backward of microbatch 0 in stage 0, rank 1 at the"):
        pipeline_step(profiles)


def test_the_page_names_the_bubble_and_the_slowest_rank():
    step = pipeline_step(traced())
    page = render(ProfileReport(traced()[0], ranks=traced(), pipeline=step), "text")
    assert "takes" in page and f"rank {step.slowest}, the slowest" in page
    assert "Schedule1F1B with 8 micro-batches in 4 stages" in " ".join(page.split())
    assert "the slowest" in render(ProfileReport(traced()[0], ranks=traced(), pipeline=step), "html")
    record = json.loads(render(ProfileReport(traced()[0], ranks=traced(), pipeline=step), "json"))
    assert record["pipeline"]["time_s"] == step.time_s and len(record["pipeline"]["stages"]) == RANKS
    assert [row["rank"] for row in record["ranks"]] == [0, 1, 3]
    assert len(memwall.Profile.from_dict(record).graph.ops) == len(traced()[0].graph.ops)


def test_the_timeline_has_a_row_for_each_stream_link_and_rank():
    step = pipeline_step(traced())
    text = render(ProfileReport(traced()[0], ranks=traced(), pipeline=step), "trace.json")
    assert faults(text) == []
    events = json.loads(text)["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [*processes.values()] == [
        *(f"rank {rank}, h100-sxm (modeled)" for rank in (0, 1, 3)), "pipeline of 4 ranks (modeled)"
    ]  # fmt: skip
    rows = [(processes[e["pid"]], e["args"]["name"]) for e in events if e["name"] == "thread_name"]
    # with each of two neighbours: calls alone, and of calls together those out and those in
    streams = [f"stream {number}" for number in range(1, 7)]
    assert [row for name, row in rows if "rank 1" in name] == [
        f"eager: {row}" for row in ("CPU launches", "GPU", "modules", *streams, "link nvlink")
    ]
    assert [row for name, row in rows if "pipeline" in name] == [f"rank {rank}" for rank in range(RANKS)]
    tasks = [e for e in events if e["ph"] == "X" and e["cat"] in ("F", "B")]
    assert len(tasks) == 2 * RANKS * MICRO_BATCHES
    assert max(e["ts"] + e["dur"] for e in tasks) == pytest.approx(step.run.time_s * 1e6, abs=0.01)


def test_a_saved_rank_has_the_same_timeline(tmp_path):
    made = traced()[1]
    made.save(tmp_path / "rank.json")
    again = memwall.Profile.load(tmp_path / "rank.json")
    assert render(ProfileReport(again), "trace.json") == render(ProfileReport(made), "trace.json")
    assert pipeline_step({**traced(), 1: again, 2: again}) == pipeline_step(traced())
