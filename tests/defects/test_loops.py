"""Loops over time steps in Python: planned from some of their steps."""

from __future__ import annotations

import time


def test_f54_a_loop_over_time_is_planned_from_some_of_its_steps():
    """The planner walked every step of a loop over time, as if no step were like the one before it.

    A GRU cell over 1000 steps, 12,000 ops, traced beforehand, so that only the planning is timed. The yardstick is the
    eager profile of an equal trace, which has nothing to plan: planning took more than 20 times as long, and takes 4
    times.
    """
    import torch
    from torch import nn

    import memwall

    cell = nn.GRUCell(64, 64, device="meta")

    def seconds(policy: str) -> float:
        with memwall.trace() as trace, torch.no_grad():
            state, x = torch.empty(8, 64, device="meta"), torch.empty(8, 1000, 64, device="meta")
            for step in range(1000):
                state = cell(x[:, step], state)
        start = time.process_time()
        record = trace.profile("h100", policy)
        assert len(record.graph.ops) == 12_000
        return time.process_time() - start

    assert seconds("memwall") < 9 * seconds("eager")
