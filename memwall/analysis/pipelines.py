"""The step of a pipeline of ``torch.distributed.pipelining`` from the steps of its ranks that were traced.

A rank's forward, or backward, of a micro-batch takes as long as its kernels of that phase do, over how many it runs.
Tasks then run in the order of the program's schedule
(:mod:`memwall.simulate.pipeline`), each message between neighbours as long as their link takes, while ranks compute.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from memwall.analysis.communication import exposed_s, traced_ranks
from memwall.core.ranks import ranks_text
from memwall.frontend.facts import Pipeline
from memwall.ops.launches import Message
from memwall.perfmodel.collectives import link_s, message_time
from memwall.record.kernels import Rates, kernel_phase, rates
from memwall.record.profile import Profile
from memwall.simulate.pipeline import ORDERS, PipelineRun, Stage, StageTask, run_pipeline
from memwall.simulate.schedule import Totals

#: schedule of torch's with one stage on each rank -> key of :data:`memwall.simulate.pipeline.ORDERS`
_SCHEDULES = {"ScheduleGPipe": "gpipe", "Schedule1F1B": "1f1b"}
_TASK = re.compile(r"(\d+)([FBIW])(\d+)")
_SHARES: Sequence[Callable[[Totals], float]] = (attrgetter("mfu"), attrgetter("hfu"))


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """A simulated step of all ranks. ``rest_s``: what the slowest of them does besides its micro-batches; ``peak_s``:
    by rank what the model's products would take at the datasheet's peak, and ``peak_again_s`` with products that
    backward computes again; ``rates``: of the whole job."""

    pipeline: Pipeline
    stages: tuple[Stage, ...]
    orders: tuple[tuple[StageTask, ...], ...]
    run: PipelineRun
    rest_s: float
    peak_s: tuple[float, ...]
    peak_again_s: tuple[float, ...]
    rates: Rates

    @property
    def time_s(self) -> float:
        """Seconds of the step."""
        return self.run.time_s + self.rest_s

    @property
    def mfu(self) -> float:
        """What the products of all ranks would take at the datasheet's peak, over the step."""
        return sum(self.peak_s) / len(self.peak_s) / self.time_s

    @property
    def hfu(self) -> float:
        """As :attr:`mfu`, with what backward computes again."""
        return sum(self.peak_again_s) / len(self.peak_again_s) / self.time_s

    def to_dict(self) -> dict[str, Any]:
        """For a JSON record: the step, its bubble and the seconds of each stage."""
        return {
            "schedule": self.pipeline.schedule,
            "microbatches": self.pipeline.microbatches,
            "ranks": list(self.pipeline.ranks),
            "time_s": self.time_s,
            "bubble": self.run.bubble,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "tokens_per_s": self.rates.tokens_per_s,
            "tokens_per_s_per_gpu": self.rates.tokens_per_s_per_gpu,
            "slowest_rank": self.slowest,
            "stages": [stage._asdict() for stage in self.stages],
        }

    @property
    def slowest(self) -> int:
        """The rank that computes longest."""
        return self.pipeline.ranks[self.run.slowest]


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank's step: seconds of its own work, of them seconds in which collectives run alone, and seconds
    in which it waits for other stages; bytes at its peak and of its parameters, gradients and optimizer state; the most
    micro-batches whose activations it holds. ``alike``: later ranks that are taken to do the same, which hold no more
    micro-batches."""

    rank: int
    alike: str
    time_s: float
    exposed_s: float
    waits_s: float
    state_bytes: int
    peak_bytes: int
    in_flight: int


def rank_rows(profiles: Mapping[int, Profile], step: PipelineStep | None) -> list[RankRow]:
    """A row of each rank that was traced, on one GPU; of a pipeline whose schedule is not known no rank waits."""
    found = []
    for rank, profile in traced_ranks(profiles).items():
        alike = ranks_text([other for other, each in profiles.items() if each is profile and other != rank])
        schedule, held = profile.simulations[0], profile.graph.role_bytes
        state = sum(held[role] for role in ("parameter", "gradient", "optimizer_state"))
        own_s, waits_s, in_flight = schedule.totals.time_s, 0.0, 0
        if step:
            place = step.pipeline.ranks.index(rank)
            waits_s, in_flight = step.run.time_s - step.run.busy_s[place], step.run.in_flight[place]
        found.append(
            RankRow(
                rank,
                alike,
                own_s,
                exposed_s(profile, schedule),
                waits_s,
                state,
                schedule.totals.peak_memory_bytes,
                in_flight,
            )
        )
    return found


def pipeline_step(profiles: Mapping[int, Profile]) -> PipelineStep | None:
    """The step of the pipeline whose ranks were profiled (:func:`memwall.programs.profile_ranks`), each on one GPU;
    None without one, or where its schedule is not known.

    Raises:
        UsageError: ranks wait for each other; names the tasks.
    """
    first = next(iter(profiles.values()))
    pipeline = first.traced.pipeline
    if pipeline is None or not (pipeline.orders or pipeline.schedule in _SCHEDULES):
        return None
    orders = _orders(pipeline)
    splits = any(task.kind == "W" for order in orders for task in order)
    traced = traced_ranks(profiles)
    taken = {id(each): _taken(each, orders[pipeline.ranks.index(rank)]) for rank, each in traced.items()}
    place_of = {task.stage: place for place, order in enumerate(orders) for task in order}
    stages = []
    for stage in range(len(place_of)):
        rank = pipeline.ranks[place_of[stage]]
        forward_s, backward_s, _ = taken[id(profiles[rank])]
        beyond = pipeline.ranks[place_of.get(stage + 1, place_of[stage])]
        send_s = _sent_s(first, rank, beyond)
        stages.append(Stage(forward_s, backward_s / (1 + splits), splits * backward_s / 2, send_s))
    run = run_pipeline(stages, len(pipeline.ranks), pipeline.microbatches, "zb" if splits else "1f1b", orders)
    rest_s = max(rest_s for _, _, rest_s in taken.values())
    totals = [profiles[rank].simulations[0].totals for rank in pipeline.ranks]
    peak_s, peak_again_s = (tuple(share(each) * each.time_s for each in totals) for share in _SHARES)
    all_s = rates(first, first.simulations[0], run.time_s + rest_s)
    return PipelineStep(pipeline, tuple(stages), tuple(map(tuple, orders)), run, rest_s, peak_s, peak_again_s, all_s)


def _orders(pipeline: Pipeline) -> list[list[StageTask]]:
    ranks = len(pipeline.ranks)
    if not pipeline.orders:
        order = ORDERS[_SCHEDULES[pipeline.schedule]]
        return [order(rank, ranks, 1, pipeline.microbatches) for rank in range(ranks)]
    found = [[(kind, int(stage), int(number)) for stage, kind, number in _TASK.findall(o)] for o in pipeline.orders]
    splits = any(kind == "W" for order in found for kind, _, _ in order)
    halves = {"I": "B", "B": "BW" if splits else "B"}
    return [[StageTask(half, *of) for kind, *of in order for half in halves.get(kind, kind)] for order in found]


def _taken(profile: Profile, order: Sequence[StageTask]) -> tuple[float, float, float]:
    """Seconds of a micro-batch in a stage of a rank, forward and backward, and of all that is neither; none of what it
    hands on, which the pipeline has."""
    schedule, seconds = profile.simulations[0], defaultdict[str, float](float)
    handed_on = {message for _, message in _transfers(profile)}
    for kernel in schedule.kernels:
        if kernel.id not in handed_on:
            seconds[kernel_phase(profile, schedule, kernel)] += kernel.time_s
    forward, backward = (sum(task.kind == kind for task in order) or 1 for kind in "FB")
    rest_s = sum(seconds.values()) - seconds["forward"] - seconds["backward"]
    return seconds["forward"] / forward, seconds["backward"] / backward, rest_s


def _transfers(profile: Profile) -> Iterator[tuple[Message, int]]:
    """The messages from one rank to another, and the numbers of their kernels."""
    schedule = profile.simulations[0]
    costs = profile.costs[schedule.graph]
    for kernel in schedule.kernels:
        for launch in costs[kernel.op_ids[0]].launches:
            if isinstance(launch, Message) and launch.op == "send_recv":
                yield launch, kernel.id


def _sent_s(first: Profile, rank: int, other: int) -> float:
    """Seconds of the largest message that the first rank sends, between two others."""
    gpu = first.simulations[0].gpu
    nbytes = max((message.nbytes for message, _ in _transfers(first)), default=0)
    if rank == other or not nbytes:
        return 0.0
    if gpu.cluster is None:
        return link_s(nbytes, gpu)
    return message_time(Message(op="send_recv", nbytes=nbytes, group=f"{rank},{other}"), gpu.cluster).time_s
