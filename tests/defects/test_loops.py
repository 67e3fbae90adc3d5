"""Loops over time steps in Python: planned from some of their steps."""

from __future__ import annotations

import sys
from types import FrameType


def test_f54_a_loop_over_time_is_planned_from_some_of_its_steps():
    """The planner walked every step of a loop over time, as if no step were like the one before it.

    A GRU cell over 100 steps, 1,200 ops, traced beforehand, so that only the planning is counted, in calls of Python's
    functions. The yardstick is the eager profile of an equal trace, which has nothing to plan: planning took 20 times
    as many calls, and takes twice as many.
    """
    import torch
    from torch import nn

    import memwall

    cell = nn.GRUCell(64, 64, device="meta")

    def calls(policy: str) -> int:
        with memwall.trace() as trace, torch.no_grad():
            state, x = torch.empty(8, 64, device="meta"), torch.empty(8, 100, 64, device="meta")
            for step in range(100):
                state = cell(x[:, step], state)
        seen = []

        def note(frame: FrameType, event: str, argument: object) -> None:
            if event == "call":
                seen.append(0)

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            record = trace.profile("h100", policy)
        finally:
            sys.setprofile(before)
        assert len(record.graph.ops) == 1_200
        return len(seen)

    calls("memwall")  # what the first of a process imports
    assert calls("memwall") < 4 * calls("eager")
