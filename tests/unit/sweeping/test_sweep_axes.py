"""Axes, conditions and fronts, by hand."""

import itertools

import pandas as pd
import pytest

from memwall.core.errors import UsageError
from memwall.sweeping.axes import Axis, Space, axes_of, expand, split_axis
from memwall.sweeping.choice import kept, pareto, ranked
from memwall.sweeping.conditions import parse_condition
from memwall.sweeping.growth import growth
from memwall.sweeping.kinds import KINDS
from memwall.sweeping.page import _stop
from memwall.sweeping.vary import command_of


@pytest.mark.parametrize(("text", "values"), [
    ("1,2,4..16", "1 2 4 8 16"), ("1,2,4..20", "1 2 4 8 16"), ("8,16,24..48", "8 16 24 32 40 48"), ("1..4", "1 2 3 4"),
    ("3..3", "3"), ("a100, h100", "a100 h100"), ("f32[8,3,224,224],f32[1,3]", "f32[8,3,224,224] f32[1,3]"),
    ("1,1,2", "1 2"), ("5,7..11", "5 7 9 11"), ("0.5,0.7", "0.5 0.7"),
])  # fmt: skip
def test_a_list(text, values):
    assert expand(text) == values.split()


@pytest.mark.parametrize(("text", "said"), [
    ("8..2", "ends before it begins"), ("1,,2", "empty value"), ("9,3..8", "below the number before it, 9"),
    ("1..100000000", "100,000,000 values"),
])  # fmt: skip
def test_a_list_that_is_none(text, said):
    with pytest.raises(UsageError, match=said):
        expand(text)


def test_options_that_go_step_by_step():
    assert split_axis("zip: gpu=a100,h100 tp=4,8") == {"gpu": ["a100", "h100"], "tp": ["4", "8"]}
    with pytest.raises(UsageError, match="gpu has 2, tp has 1"):
        split_axis("zip:gpu=a100,h100 tp=4")


def test_points_are_the_product_with_the_last_axis_fastest():
    axes = axes_of({("gpu", "tp"): [("a", 1), ("b", 2)], "batch": [1, 2, 4]})
    space = Space("m.py", axes)
    points = list(space.points())
    assert len(space) == len(points) == 6
    assert points[:2] == [{"gpu": "a", "tp": 1, "batch": 1}, {"gpu": "a", "tp": 1, "batch": 2}]
    assert [space.point(i) for i in range(6)] == points


def test_an_option_is_on_one_axis():
    with pytest.raises(UsageError, match="tp is on two axes"):
        axes_of({"tp": [1], ("gpu", "tp"): [("a", 1)]})
    assert Axis.of("tp", [1, 1, 2]).values == ((1,), (2,))


FRAME = pd.DataFrame({
    "target": ["a", "a", "b", "b"], "batch": [1, 2, 1, 2], "time_s": [0.1, 0.15, 0.3, float("nan")],
    "fits": [True, False, True, None], "tokens_per_s": [10.0, 13.3, 3.3, float("nan")],
    "limited_by": ["compute", "bandwidth", "compute", None], "error": ["", "", "", "broken"],
})  # fmt: skip


@pytest.mark.parametrize(("text", "left"), [
    ("fits", [0, 2]), ("not fits", [1]), ("time_s<200ms", [0, 1]), ("time <= 0.1", [0]), ("target==b", [2]),
    ("target != b", [0, 1]), ("batch>=2", [1]), ("limited_by=compute", [0, 2]),
])  # fmt: skip
def test_a_condition(text, left):
    found, pruned = kept(FRAME, [parse_condition(text, list(FRAME.columns))])
    assert found.index.tolist() == left
    assert pruned[0].further == pruned[0].alone == 3 - len(left)


@pytest.mark.parametrize(("text", "said"), [
    ("tmie_s<1", "did you mean time_s"), ("time_s", "compare time_s with a value"), ("time_s<3GB", "no unit 'GB'"),
    ("time_s<", "cannot read the condition"), ("not time_s<1", "goes with a quantity that is true or false"),
])  # fmt: skip
def test_a_condition_that_is_none(text, said):
    with pytest.raises(UsageError, match=said):
        parse_condition(text, list(FRAME.columns))


def test_what_nothing_satisfies_is_said():
    with pytest.raises(UsageError, match=r"time_s<1ms: time_s goes from 0.1 to 0.3"):
        kept(FRAME, [parse_condition("time_s<1ms", list(FRAME.columns))])
    both = [parse_condition(text, list(FRAME.columns)) for text in ("not fits", "target==b")]
    with pytest.raises(UsageError, match="of 3 points: 1 not fits, 1 target==b"):
        kept(FRAME, both)


def test_the_best_is_first_and_equal_ones_keep_their_order():
    frame = pd.DataFrame({"tokens_per_s": [1.0, 3.0, 3.0, float("nan")]})
    assert ranked(frame, "tokens_per_s").index.tolist() == [1, 2, 0]


def test_the_front_is_what_no_other_beats():
    values = list(itertools.product([1.0, 2.0, 3.0], repeat=3))
    frame = pd.DataFrame(values, columns=["time_s", "tokens_per_s", "peak_memory"]).sample(frac=1.0, random_state=1)
    assert pareto(frame, ["time_s", "tokens_per_s", "peak_memory"])[["time_s", "tokens_per_s"]].values.tolist() == [
        [1.0, 3.0]
    ]
    two = pd.DataFrame({"time_s": [1.0, 2.0, 3.0, 2.5, 1.0], "tokens_per_s": [1.0, 2.0, 3.0, 1.5, 0.5]})
    assert pareto(two, ["time_s", "tokens_per_s"]).index.tolist() == [0, 1, 2]


def test_a_last_bit_is_no_lead_on_a_front():
    """Of three points of one time, which its order of summing moves, the one with the most tokens stands alone."""
    times = [0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1, 0.6]
    assert len(set(times)) == 2
    frame = pd.DataFrame({"time_s": [*times, 1.2], "tokens_per_s": [3.0, 2.0, 4.0, 5.0]})
    assert pareto(frame, ["time_s", "tokens_per_s"]).index.tolist() == [2, 3]


def test_the_command_of_a_point_can_be_copied():
    said = command_of(KINDS["profile"], "my net.py", {"gpu": "h100-sxm", "batch": 16, "replay": False, "no_grad": True,
                                                      "cuda_graph": False, "dims": ("a=1", "b=2")}, {})  # fmt: skip
    assert said == "memwall profile 'my net.py' --gpu h100-sxm --batch 16 --no-replay --no-grad --dim a=1 --dim b=2"
    served = command_of(KINDS["serve"], "hf:m", {"gpu": "h100-sxm", "tp": 2}, {})
    assert served == "memwall serve hf:m --gpu h100-sxm --tp 2 --concurrency 64 --generate 256"
    assert command_of(KINDS["decode"], "hf:m", {"gpu": "h100-sxm"}, {}) == ""


PRICES = {"h100-sxm": 2.5, "b200": 4.5}


def test_the_command_of_a_point_has_the_price_of_its_gpu():
    served = command_of(KINDS["serve"], "hf:m", {"gpu": "h100-sxm", "rate": 2.0}, PRICES)
    assert served == "memwall serve hf:m --gpu h100-sxm --rate 2.0 --generate 256 --price h100-sxm=2.5"
    stepped = command_of(KINDS["profile"], "net.py", {"gpu": "b200"}, PRICES)
    assert stepped == "memwall compare net.py --gpu b200 --price b200=4.5"
    unpriced = command_of(KINDS["profile"], "net.py", {"gpu": "a100-80gb-sxm"}, PRICES)
    assert unpriced == "memwall profile net.py --gpu a100-80gb-sxm"


def test_the_command_of_a_rank_says_no_cost_as_none_does():
    point = {"cluster": "dgx-h100", "world": 16}
    assert command_of(KINDS["profile"], "m.py", point, PRICES) == "memwall profile m.py --cluster dgx-h100 --world 16"


def test_the_command_of_a_layout_says_its_replicas():
    point = {"gpu": "h100-sxm", "batch": 2, "parallel.tp": 2, "parallel.sp": True, "world": 16}
    said = command_of(KINDS["training"], "m.py", point, PRICES)
    assert said == "memwall profile m.py --batch 2 --mode training --parallel tp=2,sp,dp=8 --cluster dgx-h100"
    assert command_of(KINDS["training"], "m.py", {**point, "gpu": "l4"}, {}) == ""  # no cluster of them


def test_where_to_stop():
    ys = [10.0, 20.0, 38.0, 40.0, 41.0]
    frame = pd.DataFrame({
        "target": "m", "gpu": ["a"] * 5 + ["b"] * 5, "batch": [1, 2, 4, 8, 16] * 2, "tokens_per_s": ys * 2,
        "fits": [True] * 5 + [True, True, False, False, False], "limited_by": ["latency", *["compute"] * 4] * 2,
        "error": "",
    })  # fmt: skip
    first, second = growth(frame, frame, ["gpu", "batch"], ("batch",), "tokens_per_s").series
    assert first.stop == (4, "a doubling brings less than 10 %") and first.last_fitting is None
    assert second.stop == (2, "the memory ends") and second.wall_changes == [(2.0, "compute")]
    grown = growth(frame, frame, ["gpu", "batch"], ("batch",), "tokens_per_s")
    assert _stop(grown, frame.iloc[4]) == ("From batch 4 on (38.0 tokens per second) a doubling brings less than 10 %.")
    assert _stop(grown, frame.iloc[2]) == ""


def test_more_gpus_are_worth_what_all_of_them_make():
    """Each of 1, 2, 4 and 8 GPUs makes 100, 90, 60 and 30 tokens, fewer from the first on: all make 100 to 240."""
    frame = pd.DataFrame({
        "target": "m", "gpu": "a", "tp": [1, 2, 4, 8], "gpus": [1, 2, 4, 8], "fits": True, "error": "",
        "tokens_per_s_per_gpu": [100.0, 90.0, 60.0, 30.0],
    })  # fmt: skip
    (series,) = growth(frame, frame, ["tp"], ("tp",), "tokens_per_s_per_gpu").series
    assert series.stop == (4, "a doubling brings all GPUs together less than 10 %")
    (alone,) = growth(frame.assign(gpus=8), frame, ["tp"], ("tp",), "tokens_per_s_per_gpu").series
    assert alone.stop == (1, "a doubling brings less than 10 %")
