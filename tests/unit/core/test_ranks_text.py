"""Ranks as text."""

import pytest

from memwall.core.ranks import ranks_text, read_ranks


@pytest.mark.parametrize(("ranks", "text"), [
    ([0], "0"), ([0, 1, 2, 3], "0-3"), ([3, 11, 19], "3-19:8"), ([0, 8], "0,8"), ([4, 5], "4-5"),
    ([0, 1, 8, 9], "0-1,8-9"), ([0, 3, 5], "0,3,5"), ([0, 2, 4, 7], "0-4:2,7"),
    (list(range(5, 4096, 8)), "5-4093:8"),
])  # fmt: skip
def test_runs_of_equal_steps(ranks, text):
    assert ranks_text(ranks) == text
    assert list(read_ranks(text)) == ranks


def test_every_small_group_is_read_as_it_was_written():
    for mask in range(1, 1 << 9):
        ranks = [rank for rank in range(9) if mask >> rank & 1]
        assert list(read_ranks(ranks_text(ranks))) == ranks
