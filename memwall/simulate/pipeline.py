"""Pipeline schedules, simulated: stages of layers that hand microbatches on, forward and backward.

Stage k of p ranks with v chunks each runs on rank ``k % p``. Every rank has a fixed order of tasks and runs each as
soon as what it needs has arrived; sends overlap with computing. The orders:

- ``gpipe``: all forward, then all backward (Huang et al., 2019).
- ``1f1b``: as few microbatches in flight as keep the last rank busy (PipeDream-Flush, Narayanan et al., 2021).
- ``interleaved``: the same with several chunks of layers per rank (Narayanan et al., 2021, Megatron-LM).
- ``zb``: backward in two, gradients of weights later, where a rank would wait (ZB-H1, Qi et al., 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

from memwall.core.errors import UsageError


class Stage(NamedTuple):
    """Seconds of one microbatch in a stage: forward, backward without and with what ``weight_s`` can do later, and
    ``send_s`` until its result is on the next stage. Of a pass that runs next to another microbatch's in the other
    direction ``hidden_forward_s`` or ``hidden_backward_s`` are hidden."""

    forward_s: float
    backward_s: float
    weight_s: float = 0.0
    send_s: float = 0.0
    hidden_forward_s: float = 0.0
    hidden_backward_s: float = 0.0

    def hidden_s(self, kind: str) -> float:
        return {"F": self.hidden_forward_s, "B": self.hidden_backward_s}.get(kind, 0.0)


class StageTask(NamedTuple):
    """``F``, ``B`` or ``W`` (gradients of weights) of a microbatch in a stage."""

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        words = {"F": "forward", "B": "backward", "W": "weight gradients"}
        return f"{words[self.kind]} of microbatch {self.microbatch} in stage {self.stage}"


@dataclass(frozen=True)
class PipelineRun:
    """A simulated step. By rank: seconds that it computes, the most microbatches (of one stage each) whose activations
    it holds, when its last task was done, its tasks in order, and seconds that ran next to other passes. ``done``:
    kind, stage and microbatch → when a task was done; ``splits``: whether gradients of weights are tasks; ``paired``:
    tasks that run next to another."""

    time_s: float
    busy_s: tuple[float, ...]
    in_flight: tuple[int, ...]
    done_s: tuple[float, ...]
    orders: Sequence[Sequence[StageTask]]
    done: _Done
    stages: tuple[Stage, ...]
    splits: bool
    hidden_s: tuple[float, ...] = ()
    paired: frozenset[StageTask] = frozenset()

    @cached_property
    def ends(self) -> Mapping[StageTask, float]:
        """When each task was done."""
        done = self.done
        return {task: done[task.kind][task.stage][task.microbatch] or 0.0 for order in self.orders for task in order}

    def span_s(self, task: StageTask) -> tuple[float, float]:
        """When a task begins and ends."""
        stage = self.stages[task.stage]
        hidden_s = stage.hidden_s(task.kind) if task in self.paired else 0.0
        return self.ends[task] - (_time_s(task.kind, stage, self.splits) - hidden_s), self.ends[task]

    def sent_s(self, task: StageTask) -> float:
        """Seconds until what a task hands on is on the next stage; 0 where it hands on nothing."""
        link = {"F": task.stage, "B": task.stage - 1}.get(task.kind, -1)
        return self.stages[link].send_s if 0 <= link < len(self.stages) - 1 else 0.0

    @property
    def slowest(self) -> int:
        """The rank that computes longest, the first of equal ones (but for rounding)."""
        return next(rank for rank, busy_s in enumerate(self.busy_s) if busy_s >= max(self.busy_s) * (1 - 1e-9))

    @property
    def bubble(self) -> float:
        """Time that the slowest rank waits, as a share of that in which it computes."""
        busy_s = self.busy_s[self.slowest]
        return self.time_s / busy_s - 1 if busy_s else 0.0


def run_pipeline(
    stages: Sequence[Stage],
    ranks: int,
    microbatches: int,
    schedule: str,
    orders: Sequence[Sequence[StageTask]] | None = None,
) -> PipelineRun:
    """One step.

    Args:
        stages: in the order of the layers; ``ranks`` divides their number.
        schedule: a key of :data:`ORDERS`.
        orders: the tasks of each rank, in place of the schedule's.

    Raises:
        UsageError: stages that do not divide, or orders in which ranks wait for each other (names the tasks).
    """
    if not stages or len(stages) % ranks:
        raise UsageError(f"{len(stages)} stages do not divide among {ranks} ranks")
    chunks, splits = len(stages) // ranks, schedule == "zb"
    tasks = orders or [ORDERS[schedule](rank, ranks, chunks, microbatches) for rank in range(ranks)]
    hides = any(stage.hidden_forward_s or stage.hidden_backward_s for stage in stages)
    paired = frozenset(task for each in tasks for task in _paired(each)) if hides else frozenset[StageTask]()
    times = {(kind, k): _time_s(kind, stage, splits) for kind in "FBW" for k, stage in enumerate(stages)}
    done, done_s = _ends(tasks, stages, times, paired)
    hidden = tuple(
        sum(stages[task.stage].hidden_s(task.kind) for task in each if task in paired) if hides else 0.0
        for each in tasks
    )
    busy = (sum(times[kind, stage] for kind, stage, _ in each) for each in tasks)
    computed = tuple(busy_s - hidden_s for busy_s, hidden_s in zip(busy, hidden, strict=True))
    held = tuple(_most_held(each, schedule) for each in tasks)
    return PipelineRun(max(done_s), computed, held, tuple(done_s), tasks, done, tuple(stages), splits, hidden, paired)


def _paired(order: Sequence[StageTask]) -> Iterator[StageTask]:
    """The tasks of a rank that run next to another: a backward pass and the forward pass that follows it."""
    for first, second in pairwise(order):
        if (first.kind, second.kind) == ("B", "F"):
            yield from (first, second)


@lru_cache(maxsize=4096)
def in_flight(ranks: int, chunks: int, microbatches: int, schedule: str) -> tuple[int, ...]:
    """By rank the most microbatches (of one stage each) whose activations it holds, whatever the stages take. But for
    ``gpipe``, a full pipeline holds no more of further ones."""
    order = ORDERS[schedule]
    microbatches = microbatches if schedule == "gpipe" else min(microbatches, 2 * ranks)
    return tuple(_most_held(order(rank, ranks, chunks, microbatches), schedule) for rank in range(ranks))


def least_ends_s(stages: Sequence[Stage], ranks: int, microbatches: int, schedule: str) -> list[float]:
    """For each rank, seconds before which it is not done, without running the pipeline.

    No rank begins before the first microbatch has passed the stages before its first one, and none computes less than
    all its tasks. The last backward of a rank's first stage comes after the last backward of the rank behind it, and in
    every order of :data:`ORDERS` ends the rank's work, but for gradients of weights that ``zb`` puts off.
    """
    stages = [
        Stage(forward_s - more_s, backward_s - again_s, weight_s, send_s)
        for forward_s, backward_s, weight_s, send_s, more_s, again_s in stages
    ]
    splits, filled_s = schedule == "zb", 0.0
    ends, backwards = [0.0] * ranks, [0.0] * ranks
    for rank in range(ranks):
        own = stages[rank::ranks]
        passes_s = microbatches * sum(stage.forward_s + stage.backward_s for stage in own)
        busy_s = passes_s + microbatches * sum(stage.weight_s for stage in own)
        ends[rank], backwards[rank] = filled_s + busy_s, filled_s + (passes_s if splits else busy_s)
        filled_s += stages[rank].forward_s + stages[rank].send_s
    for rank in range(ranks - 1, -1, -1):
        stage = stages[rank]
        if rank + 1 < ranks:
            last_s = stage.backward_s if splits else stage.backward_s + stage.weight_s
            backwards[rank] = max(backwards[rank], backwards[rank + 1] + stage.send_s + last_s)
        ends[rank] = max(ends[rank], backwards[rank] + stage.weight_s * splits)
    return ends


def _ends(
    orders: Sequence[Sequence[StageTask]],
    stages: Sequence[Stage],
    times: Mapping[tuple[str, int], float],
    paired: frozenset[StageTask],
) -> tuple[_Done, list[float]]:
    """When each task is done, and each rank: ranks take turns, each running until it waits."""
    most = 1 + max((task.microbatch for order in orders for task in order), default=0)
    done: _Done = {kind: [[None] * most for _ in stages] for kind in "FBW"}
    free_s, place, moved = [0.0] * len(orders), [0] * len(orders), True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while place[rank] < len(order):
                kind, stage, microbatch = order[place[rank]]
                ready_s = _ready_s(kind, stage, microbatch, stages, done)
                if ready_s is None:
                    break
                hidden_s = stages[stage].hidden_s(kind) if paired and order[place[rank]] in paired else 0.0
                end_s = free_s[rank] = max(free_s[rank], ready_s) + times[kind, stage] - hidden_s
                done[kind][stage][microbatch] = end_s
                place[rank] += 1
                moved = True
    stuck = [
        f"rank {rank} at the {order[at]}"
        for rank, (order, at) in enumerate(zip(orders, place, strict=True))
        if at < len(order)
    ]
    if stuck:
        raise UsageError(f"deadlock: {', '.join(stuck[:3])} {'wait' if len(stuck) > 1 else 'waits'} for each other")
    return done, free_s


#: kind of task → stage → microbatch → when it is done, in seconds; None: not yet known
_Done = dict[str, list[list[float | None]]]


def _ready_s(kind: str, stage: int, microbatch: int, stages: Sequence[Stage], done: _Done) -> float | None:
    """When what a task needs has arrived; None: not yet known."""
    if kind == "W":
        return done["B"][stage][microbatch]
    if kind == "F":
        sent_s = done["F"][stage - 1][microbatch] if stage else 0.0
        return sent_s if sent_s is None or not stage else sent_s + stages[stage - 1].send_s
    own_s = done["F"][stage][microbatch]
    if own_s is None or stage + 1 == len(stages):
        return own_s
    sent_s = done["B"][stage + 1][microbatch]
    return None if sent_s is None else max(own_s, sent_s + stages[stage].send_s)


def _time_s(kind: str, stage: Stage, splits: bool) -> float:
    if kind == "B":
        return stage.backward_s if splits else stage.backward_s + stage.weight_s
    return stage.forward_s if kind == "F" else stage.weight_s


def _most_held(order: Iterable[StageTask], schedule: str) -> int:
    """The most microbatches between their forward and what releases their activations."""
    held = most = 0
    release = "W" if schedule == "zb" else "B"
    for task in order:
        held += (task.kind == "F") - (task.kind == release)
        most = max(most, held)
    return most


# -- the order of a rank's tasks ---------------------------------------------------------------------------------------


def _gpipe(rank: int, ranks: int, chunks: int, microbatches: int) -> list[StageTask]:
    return [StageTask(kind, rank, i) for kind in "FB" for i in range(microbatches)]


def _one_forward_one_backward(rank: int, ranks: int, chunks: int, microbatches: int) -> list[StageTask]:
    forward = [StageTask("F", rank, i) for i in range(microbatches)]
    backward = [StageTask("B", rank, i) for i in range(microbatches)]
    return _alternating(forward, backward, ranks - rank - 1)


def _interleaved(rank: int, ranks: int, chunks: int, microbatches: int) -> list[StageTask]:
    """Megatron-LM's: groups of as many microbatches as ranks pass through a chunk before the next one."""
    groups = range(0, microbatches, ranks)
    forward, backward = (
        [StageTask(kind, chunk * ranks + rank, first + i) for first in groups for chunk in order for i in range(ranks)]
        for kind, order in (("F", range(chunks)), ("B", range(chunks)[::-1]))
    )
    return _alternating(forward, backward, 2 * (ranks - rank - 1) + (chunks - 1) * ranks)


def _zero_bubble(rank: int, ranks: int, chunks: int, microbatches: int) -> list[StageTask]:
    """ZB-H1: the gradients of weights as many microbatches later as ranks come before, at the end all that are left."""
    found: list[StageTask] = []
    for task in _one_forward_one_backward(rank, ranks, chunks, microbatches):
        found.append(task)
        if task.kind == "B" and task.microbatch >= rank:
            found.append(StageTask("W", rank, task.microbatch - rank))
    return found + [StageTask("W", rank, i) for i in range(max(microbatches - rank, 0), microbatches)]


def _alternating(forward: Sequence[StageTask], backward: Sequence[StageTask], ahead: int) -> list[StageTask]:
    """``ahead`` tasks forward, then one forward and one backward in turn, then the rest backward."""
    ahead = min(ahead, len(forward))
    found = list(forward[:ahead])
    for pair in zip(forward[ahead:], backward, strict=False):
        found += pair
    return found + list(backward[len(forward) - ahead :])


#: schedule -> (rank, ranks, chunks, microbatches) -> the tasks of the rank
ORDERS: Mapping[str, Callable[[int, int, int, int], list[StageTask]]] = {
    "gpipe": _gpipe, "1f1b": _one_forward_one_backward, "interleaved": _interleaved, "zb": _zero_bubble,
}  # fmt: skip
