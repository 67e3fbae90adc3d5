"""``torch.distributed.pipelining`` from one stage, whose neighbours do not answer."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from memwall.core import compat
from memwall.core.errors import UsageError
from memwall.frontend.blocks.template import ReplayMismatch
from memwall.frontend.facts import Pipeline

#: names of what torch asks the other stages before the first step: how shapes are known (from 2.13 on)
_VOTES = compat.name_of("warmup_forward_vote"), compat.name_of("warmup_backward_result")
#: method that a schedule calls for each micro-batch -> the phase of its ops; and after the last
_PHASES = {"forward_one_chunk": "forward", "backward_one_chunk": "backward", "backward_weight_one_chunk": "backward",
           "scale_grads": "optimizer"}  # fmt: skip
_SCHEDULES = ("PipelineScheduleSingle", "PipelineScheduleMulti", compat.name_of("PipelineScheduleRuntime"))


@contextlib.contextmanager
def pipelined(found: list[Pipeline], recorder: Any, replays: bool) -> Iterator[None]:
    """While open, stages take the shapes that the program states and ask no other stage, and what they run backward is
    recorded as that; ``found`` gets the pipeline. Where blocks are replayed, a schedule,
    which calls its stages for each micro-batch, raises a ReplayMismatch at once; torch's report of an error in a
    stage, all steps of its schedule, is left out."""
    stages = sys.modules.get("torch.distributed.pipelining.stage")
    schedules = sys.modules.get("torch.distributed.pipelining.schedules")
    if stages is None or schedules is None:
        yield
        return
    base, kind = compat.PipelineStageBase, vars(stages)["PipelineStage"]
    with contextlib.ExitStack() as stack:

        def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
            if name in vars(owner):
                stack.enter_context(patch.object(owner, name, make(vars(owner)[name])))

        for name, phase in _PHASES.items():
            replace(base, name, partial(_in_phase, recorder, phase))
        for name in _SCHEDULES:
            replace(vars(schedules)[name], "step", partial(_noting, found, replays))
        stack.enter_context(patch.object(vars(schedules)["logger"], "disabled", True))
        if all(hasattr(kind, name) for name in _VOTES):
            stack.enter_context(patch.object(kind, _VOTES[0], _vote))
            stack.enter_context(patch.object(kind, _VOTES[1], _result))
        yield


def _in_phase(recorder: Any, phase: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def chunk(*args: Any, **options: Any) -> Any:
        before, recorder.phase = recorder.phase, phase
        try:
            return original(*args, **options)
        finally:
            recorder.phase = before

    return chunk


def _noting(found: list[Pipeline], replays: bool, original: Callable[..., Any]) -> Callable[..., Any]:
    def step(schedule: Any, *args: Any, **options: Any) -> Any:
        if replays:
            raise ReplayMismatch("a schedule calls its stages for each micro-batch")
        several = getattr(
            schedule, compat.name_of("pipeline_stages"), ()
        )  # of one alone torch's 1F1B misnumbers the last rank's tasks
        orders = schedule.pipeline_order if several else {}
        group = (several[0] if several else compat.pipeline_stage(schedule)).group
        found[:] = [
            Pipeline(
                ranks=tuple(dist.get_process_group_ranks(group)),
                schedule=type(schedule).__name__,
                microbatches=compat.microbatches(schedule),
                orders=tuple(" ".join(_tasks(orders[rank])) for rank in sorted(orders)),
            )
        ]
        return original(schedule, *args, **options)

    return step


def _tasks(actions: Iterable[Any]) -> Iterator[str]:
    """What a rank computes, in its order."""
    for action in actions:
        if action is not None and action.is_compute_op:
            yield from _tasks(action.sub_actions) if action.sub_actions else (str(action),)


def _vote(stage: Any, has_backward: bool, received_acc: Any = None) -> torch.Tensor:
    modes = vars(sys.modules[type(stage).__module__])["InferenceMode"]
    if modes.needs_dynamic(compat.user_meta(stage), has_backward):
        raise UsageError(
            f"stage {stage.stage_index} of {stage.num_stages} takes its shapes from the stage before it, which a"
            " trace of one rank does not run: give PipelineStage input_args and output_args, tensors of one"
            " micro-batch"
        )
    return torch.ones(1, dtype=torch.int32, device="cpu")


def _result(stage: Any, received_result: Any = None) -> torch.Tensor:
    return torch.ones(1, dtype=torch.int32, device="cpu")
