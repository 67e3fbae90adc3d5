"""Shares of walls on every page: they add up, and a link between GPUs is a wall among them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memwall.core.units import apportioned
from memwall.record.kernels import wall_shares
from memwall.report import render
from tests.unit.report_fixture import OLD, make_profile


@pytest.mark.parametrize(
    ("shares", "digits", "printed"),
    [
        ([1 / 3, 1 / 3, 1 / 3], 1, [33.4, 33.3, 33.3]),  # the first of equal remainders
        ([0.295, 0.295, 0.41], 0, [30, 29, 41]),  # 29.5 twice is 60 if each is rounded alone
        ([0.0049, 0.5, 0.4951], 0, [0, 50, 50]),  # 0.49, 50 and 49.51
        ([0.2, 0.2], 1, [20.0, 20.0]),  # a part of a whole adds up to that part
    ],
)
def test_shares_add_up(shares, digits, printed):
    found = [round(100 * share, digits) for share in apportioned(shares, digits)]
    assert found == printed


def test_a_small_share_is_no_zero():
    assert apportioned([0.0003, 0.9997], 1)[0] == 0.0003


def test_a_link_is_a_wall():
    """Two thirds of the time go to a kernel that takes 2 x the others' time on the link."""
    made = make_profile(gpus=(OLD,))
    (before,) = made.simulations
    others_s = sum(kernel.time_s for kernel in before.kernels[1:])
    kernels = (replace(before.kernels[0], link_s=2 * others_s), *before.kernels[1:])
    schedule = replace(before, kernels=kernels, plan=None)
    profile = made.with_simulations((schedule,))
    shares = wall_shares(schedule)
    assert shares["link"] == pytest.approx(2 / 3)
    assert sum(shares.values()) == pytest.approx(1)
    assert "link" in render(profile, "text", width=160).partition("80 % range")[2].partition("\n")[0]
    assert '"link"' in render(profile, "html")
