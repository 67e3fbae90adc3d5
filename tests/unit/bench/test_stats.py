"""Medians, their intervals, and the ratio of two versions, against tables, hand arithmetic and drawn samples."""

import math
import random

import pytest

from memwall.bench.ab.run import CONFIDENCE
from memwall.bench.stats import Ratio, ratio, sign_test, tail_rank, timing


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # ranks of the 95 % interval of a median, from the usual tables (Conover 1999, table of binomial order statistics)
    [(1, 1, 1), (5, 1, 5), (6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (20, 6, 15), (30, 10, 21), (50, 18, 33)],
)
def test_the_ranks_of_the_interval_are_those_of_the_tables(count, low, high):
    assert tail_rank(count) + 1 == low
    assert count - tail_rank(count) == high


def test_median_and_interval_of_thirty_samples_in_any_order():
    samples = [float(n) for n in range(1, 31)]
    found = timing([*samples[::2], *samples[1::2]])
    assert (found.median_s, found.low_s, found.high_s) == (15.5, 10.0, 21.0)
    assert (found.min_s, found.max_s, found.samples) == (1.0, 30.0, 30)


def test_an_outlier_moves_the_maximum_alone():
    calm, wild = timing([1.0] * 29 + [2.0]), timing([1.0] * 29 + [1000.0])
    assert (calm.median_s, calm.high_s) == (wild.median_s, wild.high_s)
    assert wild.max_s == 1000.0


def test_no_samples_have_no_median():
    with pytest.raises(ValueError):
        timing([])


@pytest.mark.parametrize(("signs", "expected"), [
    ([1] * 5, 2 / 32),
    ([-1] * 10, 2 / 1024),
    ([1, 1, 1, 1, -1], 2 * (1 + 5) / 32),
    ([1, -1, 1, -1], 1.0),
    ([0, 0, 1, 1], 2 / 4),  # ties say nothing
    ([], 1.0),
])  # fmt: skip
def test_the_sign_test_counts_splits(signs, expected):
    assert sign_test(signs) == pytest.approx(expected)


def test_rounds_that_agree_leave_no_doubt():
    found = ratio([[math.log(1.1)] * 4] * 3, CONFIDENCE)
    assert (found.ratio, found.low, found.high) == pytest.approx((1.1, 1.1, 1.1))
    assert found.smallest_detectable == pytest.approx(0.0)
    assert found.p_value == pytest.approx(2 / 2**12)


def test_of_one_launch_it_is_the_interval_of_a_median():
    """Order statistics give the same interval without drawing anything."""
    generator = random.Random(1)
    logs = [generator.gauss(0.0, 0.02) for _ in range(200)]
    found, exact = ratio([logs], confidence=0.95), timing(logs)
    assert math.log(found.ratio) == pytest.approx(exact.median_s)
    assert math.log(found.low) == pytest.approx(exact.low_s, abs=0.0008)
    assert math.log(found.high) == pytest.approx(exact.high_s, abs=0.0008)


def test_launches_that_disagree_widen_it():
    """Eight rounds say almost the same in each launch; what they share must not count eight times."""
    wiggle = [i * 1e-5 for i in range(8)]
    found = ratio([[shift + w for w in wiggle] for shift in (-0.04, 0.0, 0.04)], CONFIDENCE)
    assert found.low == pytest.approx(math.exp(-0.04), abs=1e-3)
    assert found.high == pytest.approx(math.exp(0.04), abs=1e-3)


def test_it_holds_the_truth_as_often_as_it_says():
    """Seven launches that differ by 1 %, rounds by 2 %: at 90 %, 140 intervals of 150 and more would be luck, and so
    would fewer than 115."""
    generator = random.Random(7)
    held = 0
    for _ in range(150):
        shifts = [generator.gauss(0.03, 0.01) for _ in range(7)]
        found = ratio([[generator.gauss(s, 0.02) for _ in range(8)] for s in shifts], confidence=0.90)
        held += found.low <= math.exp(0.03) <= found.high
    assert 115 <= held <= 149


def test_the_same_samples_give_the_same_interval():
    logs = [[0.01, 0.03, -0.02], [0.0, 0.02, 0.05]]
    assert ratio(logs, 0.95) == ratio(logs, 0.95)


@pytest.mark.parametrize("launches", [[], [[]], [[0.1], [0.1, 0.2]]])
def test_samples_that_make_no_table_are_refused(launches):
    with pytest.raises(ValueError, match=r"rounds|inhomogeneous"):
        ratio(launches, 0.95)


def test_the_smallest_slow_down_that_shows_is_half_of_the_width():
    assert Ratio(1.0, 1 / 1.03, 1.03, 1.0).smallest_detectable == pytest.approx(0.03)
