"""The legend of the kernels explains what stands in their table, and nothing else."""

import pytest
import torch
from torch import nn

import memwall
from memwall.report import render
from memwall.report.figures.profile import schedule_roofline
from memwall.report.pages.profile_tables import class_table


def _legend(model, inputs, **options):
    text = render(memwall.profile(model, (inputs,), gpu="h100", **options), "text")
    return " ".join(text.partition("Top kernels")[2].partition("Peak memory")[0].split())


def test_a_copy_has_no_legend_of_products():
    with torch.device("meta"):
        model, inputs = nn.Embedding(1000, 64), torch.empty(8, dtype=torch.int64)
    legend = _legend(model, inputs)
    assert "MxNxK" not in legend
    assert "dX" not in legend
    assert "xN:" not in legend


def test_a_gradient_of_a_convolution_is_explained():
    with torch.device("meta"):
        model, inputs = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)), torch.empty(2, 8, 16, 16)
    legend = _legend(model, inputs, mode="training")
    assert "shape: dX or dW: gradient of the input or weight" in legend
    assert "MxNxK" not in legend


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_classes_have_the_shares_of_their_table(batch):
    """A class had 0.4 % in the legend of a roofline and 0.5 % in the table above it."""
    with torch.device("meta"):
        layer, x = nn.TransformerEncoderLayer(256, 4, batch_first=True), torch.empty(batch, 128, 256)
    profile = memwall.profile(layer, (x,), gpu="h100", mode="training", cuda_graph=True)
    legend = [text for text, _, mark in schedule_roofline(profile, profile.simulations[0]).legend if mark == "circle"]
    assert len(legend) == 7
    table = class_table(profile, profile.simulations[0])
    (place,) = (i for i, column in enumerate(table.columns) if column.label == "time, %")
    assert {text.removesuffix(" %") for text in legend} == {f"{row[0]} {row[place]}" for row in table.rows}
