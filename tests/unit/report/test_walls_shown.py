"""Shares of walls on every page: alike wherever they stand, and a link between GPUs is a wall among them."""

from dataclasses import replace

import pytest
import torch

import memwall
from memwall.record.kernels import wall_shares
from memwall.report import render
from tests.unit.report_fixture import OLD, make_profile


@pytest.mark.defect("15")
def test_a_share_is_printed_alike_wherever_it_stands():
    """Shares were rounded so that those of a row add up: 39.3 % was 40 in the totals and the verdict, and 39.3 in
    the bar beside them."""
    module = torch.nn.TransformerEncoderLayer(d_model=1024, nhead=16, batch_first=True)
    inputs = (torch.empty(8, 512, 1024),)
    made = memwall.profile(module.to("meta"), inputs, gpu="h100-sxm", mode="training", dtype="bf16")
    (schedule,) = made.simulations
    under_s = sum(kernel.time_s for kernel in schedule.kernels if kernel.limited_by == "compute")
    printed = f"{100 * under_s / schedule.totals.time_s:.1f}"  # this share alone
    text = " ".join(render(made, "text").split())
    heading, _, row = text.partition("fits ─")
    columns = heading.rpartition(" GPU ")[0].split()
    totals = row.lstrip("─ ").split()
    assert "compute" in columns
    assert printed in totals[:20]
    assert f"{printed} % of the time goes to kernels that are busy multiplying" in text
    assert f"<title>compute {printed} %</title>" in render(made, "html")


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
    assert "link" in render(profile, "text", width=160).partition("80 % range  ")[2].partition("\n")[0]
    assert '"link"' in render(profile, "html")
