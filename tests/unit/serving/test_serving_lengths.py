"""How lengths of requests spread: in words, as a distribution, and as files have them."""

import random
import statistics

import pytest

from memwall.core.errors import UsageError
from memwall.serving.simulation.lengths import CountedLengths, Lengths, LognormalLengths, parse_lengths, read_lengths
from memwall.serving.simulation.workload import RequestLoad


def drawn(lengths, count=20_000):
    source = random.Random(0)
    return sorted(lengths.draw(source) for _ in range(count))


def test_a_range_is_of_prompts_and_answers():
    found = parse_lengths(1000, 100, "0.8-1.0")
    assert found[:2] == (Lengths(1000, 0.8, 1.0), Lengths(100, 0.8, 1.0))
    assert (found.prompt.mean, found.prompt.spread) == (900, "0.8 to 1 of that")


def test_a_lognormal_length_has_the_mean_and_the_spread():
    """Of sigma 0.6 the median is exp(-0.18) of the mean, and the 90th percentile exp(0.6 x 1.2816 - 0.18)."""
    tokens = drawn(LognormalLengths(1000, sigma=0.6))
    assert statistics.mean(tokens) == pytest.approx(1000, rel=0.01)
    assert tokens[10_000] == pytest.approx(835, rel=0.02)
    assert tokens[18_000] == pytest.approx(1802, rel=0.02)


def test_a_lognormal_length_ends_at_its_outermost_thousandths():
    """exp(-+3.0902 x 0.6 - 0.18) of the mean, over the 0.99896 of it that so short a tail leaves; more tokens, such as
    of images, are in front of each."""
    lengths = LognormalLengths(1000, sigma=0.6, fixed=50)
    assert (lengths.least, lengths.most) == (131 + 50, 5340 + 50)
    assert lengths.mean == 1050


def test_lengths_that_stand_for_all_have_their_mean():
    assert statistics.mean(LognormalLengths(1000, sigma=1.0).evenly(16)) == pytest.approx(1000, rel=0.01)
    assert statistics.mean(LognormalLengths(10**6, sigma=3.0).evenly(64)) == pytest.approx(10**6, rel=0.01)
    assert statistics.mean(CountedLengths.of({100: 3, 200: 1}).evenly(16)) == 125


def test_prompts_and_answers_may_have_sigmas_of_their_own():
    found = parse_lengths(1000, 100, "lognormal:0.9,0.5")
    assert (found.prompt, found.generate) == (LognormalLengths(1000, sigma=0.9), LognormalLengths(100, sigma=0.5))


def test_a_histogram_is_drawn_as_it_counts(tmp_path):
    """Prompts: 100 tokens three times of four; answers: 7 tokens always."""
    (path := tmp_path / "lengths.csv").write_text("tokens,prompts,answers\n200,1,0\n100,3,0\n7,0,5\n")
    found = read_lengths(path)
    assert (found.prompt.nominal, found.prompt.mean, found.prompt.least, found.prompt.most) == (125, 125, 100, 200)
    tokens = drawn(found.prompt)
    assert set(tokens) == {100, 200} and tokens.count(100) == pytest.approx(15_000, rel=0.02)
    assert set(drawn(found.generate, 50)) == {7}


def test_pairs_stay_together(tmp_path):
    (path := tmp_path / "pairs.csv").write_text("generated_tokens,prompt_tokens\n5,10\n9,1000\n")
    found = parse_lengths(1, 1, str(path))
    load = RequestLoad(prompt=found.prompt, generate=found.generate, pairs=found.pairs, concurrency=4)
    assert {asked[1:3] for asked in load.asked()} == {(10, 5), (1000, 9)}
    assert load.longest.tokens == 1009 and found.prompt.nominal == 505


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "prompt_tokens,generated_tokens\n5,\n",
            "pairs.csv:2: generated_tokens is '', not a whole number of 1 or more",
        ),
        ("prompt_tokens,generated_tokens\n5,-3\n", "generated_tokens is '-3', not a whole number"),
        ("prompt_tokens,generated_tokens\n", "has no request"),
        ("prompt_token,generated_tokens\n1,2\n", "no column prompt_tokens; did you mean prompt_token?"),
        ("tokens,prompts,answers\n5,0,3\n", "the column prompts counts nothing"),
        ("tokens,prompts\n5,1\n", "no column answers"),
        (f"prompt_tokens,generated_tokens\n{'9' * 5000},3\n", "not a whole number of 1 or more"),
        ("tokens,prompts,answers\n5,nan,1\n", "prompts is 'nan', not a whole number of 0 or more"),
    ],
)
def test_wrong_lengths_are_refused_in_one_line(tmp_path, text, message):
    (path := tmp_path / "pairs.csv").write_text(text)
    with pytest.raises(UsageError) as raised:
        read_lengths(path)
    assert message in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["lognormal:4", f"lognormal:{'9' * 400}", f"0.5-{'9' * 400}", "0"])
def test_a_spread_without_bounds_is_refused(text):
    with pytest.raises(UsageError, match="want"):
        parse_lengths(10, 10, text)


@pytest.mark.parametrize("text", ["a-b", "gauss:3", "lognormal:", "lognormal:0.5,", ""])
def test_no_spread_is_refused(text):
    with pytest.raises(UsageError, match="want one such as 0"):
        parse_lengths(10, 10, text)
