"""Pipeline schedules against what their papers say, and small cases counted by hand."""

import pytest

from memwall.core.errors import UsageError
from memwall.simulate.pipeline import Stage, StageTask, run_pipeline


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 5), (4, 8), (8, 16), (3, 30)])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_bubble_of_one_chunk(ranks, microbatches, schedule):
    """(p - 1) / m (Narayanan et al., 2021, section 2.2.1)."""
    run = run_pipeline([Stage(1, 2)] * ranks, ranks, microbatches, schedule)
    assert run.bubble == pytest.approx((ranks - 1) / microbatches)
    assert run.time_s == 3 * (microbatches + ranks - 1)
    held = (microbatches,) * ranks if schedule == "gpipe" else tuple(ranks - rank for rank in range(ranks))
    assert run.in_flight == held


@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), [(4, 2, 8), (4, 3, 16), (2, 2, 4), (8, 3, 64)])
def test_the_bubble_of_several_chunks(ranks, chunks, microbatches):
    """(p - 1) / (v m), and activations of p v + p - 1 chunks on the first rank: 1 + (p - 1) / (p v) of those without
    chunks (Korthikanti et al., 2022, section 4.2.3)."""
    run = run_pipeline([Stage(1, 2)] * ranks * chunks, ranks, microbatches, "interleaved")
    assert run.bubble == pytest.approx((ranks - 1) / (chunks * microbatches))
    assert run.in_flight[0] == ranks * chunks + ranks - 1


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 6), (4, 12), (8, 24)])
def test_the_bubble_of_zero_bubble(ranks, microbatches):
    """ZB-H1: (p - 1) (F + B - W), a third of 1F1B's where the three are equal, with p microbatches held (Qi et al.)."""
    run = run_pipeline([Stage(1, 1, 1)] * ranks, ranks, microbatches, "zb")
    assert run.time_s == pytest.approx(3 * microbatches + ranks - 1)
    assert set(run.in_flight) == {ranks}


def test_one_rank_has_no_bubble():
    for schedule in ("gpipe", "1f1b", "zb"):
        assert run_pipeline([Stage(1, 1, 1)], 1, 4, schedule).time_s == 12


def test_the_slowest_rank_sets_the_pace_and_is_named():
    """Two ranks of 3 s and 6 s: 1 s until the second starts, 4 * 6 s, 2 s of the first's last backward."""
    run = run_pipeline([Stage(1, 2), Stage(2, 4)], 2, 4, "1f1b")
    assert (run.time_s, run.slowest, run.busy_s) == (27, 1, (12, 24))


def test_sends_are_waited_for_but_overlap():
    """One microbatch passes forward and backward over one link: two sends. With many, the pipeline hides them."""
    one = run_pipeline([Stage(1, 2, 0, 0.5)] * 2, 2, 1, "1f1b")
    assert one.time_s == 2 * 3 + 2 * 0.5
    assert one.ends[StageTask("F", 1, 0)] == 2.5
    hidden = run_pipeline([Stage(1, 2, 0, 0.5)] * 2, 2, 20, "gpipe")
    assert hidden.time_s == 3 * 21 + 2 * 0.5


def test_a_deadlock_is_named():
    orders = [[StageTask("F", 0, 0), StageTask("B", 0, 0)], [StageTask("B", 1, 0), StageTask("F", 1, 0)]]
    with pytest.raises(UsageError, match="deadlock: rank 0 at the backward of microbatch 0 in stage 0, rank 1"):
        run_pipeline([Stage(1, 1)] * 2, 2, 1, "1f1b", orders)


def test_stages_that_do_not_divide_are_refused():
    with pytest.raises(UsageError, match="3 stages do not divide among 2 ranks"):
        run_pipeline([Stage(1, 1)] * 3, 2, 1, "1f1b")


def test_passes_that_run_next_to_each_other():
    """One rank, 4 microbatches of 3 + 5 s: three backward passes run next to the next forward one and spare 1 + 2 s. Of
    two ranks the first has two such pairs fewer at its ends."""
    run = run_pipeline([Stage(3, 5, hidden_forward_s=1, hidden_backward_s=2)], 1, 4, "1f1b")
    assert (run.time_s, run.busy_s, run.hidden_s) == (4 * 8 - 3 * 3, (23,), (9,))
    assert run.span_s(StageTask("F", 0, 0)) == (0, 3)
    assert run.span_s(StageTask("F", 0, 1)) == (6, 8)  # after 3 s forward and 3 of the backward pass next to it
    two = run_pipeline([Stage(3, 5, 0, 0, 1, 2)] * 2, 2, 4, "1f1b")
    assert two.hidden_s == (2 * 3, 3 * 3)
