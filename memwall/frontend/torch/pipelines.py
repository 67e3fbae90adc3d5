"""``torch.distributed.pipelining`` from one stage, whose neighbours do not answer."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from memwall.core.errors import UsageError

#: Key of a record's ``capture``: the ranks of the traced rank's pipeline, by stage.
PIPELINE_KEY = "pipeline_ranks"
#: names of what torch asks the other stages before the first step: how shapes are known (from 2.13 on)
_VOTES = ("_warmup_forward_vote", "_warmup_backward_result")


@contextlib.contextmanager
def stated_shapes(found: dict[str, Any]) -> Iterator[None]:
    """While open, stages take the shapes that the program states, and ask no other stage; ``found`` gets the ranks of
    the pipeline under :data:`PIPELINE_KEY`."""
    stages = sys.modules.get("torch.distributed.pipelining.stage")
    kind: Any = getattr(stages, "PipelineStage", None)
    if not all(hasattr(kind, name) for name in _VOTES):
        yield
        return

    def vote(stage: Any, has_backward: bool, received_acc: Any = None) -> torch.Tensor:
        if stages and stages.InferenceMode.needs_dynamic(stage._user_meta, has_backward):
            raise UsageError(
                f"stage {stage.stage_index} of {stage.num_stages} takes its shapes from the stage before it, which a"
                " trace of one rank does not run: give PipelineStage input_args and output_args, tensors of one"
                " micro-batch"
            )
        found[PIPELINE_KEY] = dist.get_process_group_ranks(stage.group)
        return torch.ones(1, dtype=torch.int32, device="cpu")

    def result(stage: Any, received_result: Any = None) -> torch.Tensor:
        return torch.ones(1, dtype=torch.int32, device="cpu")

    with patch.object(kind, _VOTES[0], vote), patch.object(kind, _VOTES[1], result):
        yield
