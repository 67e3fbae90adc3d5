"""Modeled gains of fusion beside the gains that Liger-Kernel measured. The measured rows are not shipped."""

import math

import pytest
import torch

import memwall
from benchmarks.liger_layers import RmsNorm, Step
from benchmarks.liger_pairs import median_factor, read, score, signs
from tests.unit.places import is_whole, truth

#: the kernels that the rows are of, all GPUs and modes
KERNELS = {"rms_norm", "fused_add_rms_norm", "layer_norm", "softmax", "rope", "cross_entropy", "swiglu", "geglu",
           "embedding"}  # fmt: skip


@pytest.fixture(scope="module")
def rows(request):
    """All rows with --whole, else every third size of a kernel, which may miss that another size is off."""
    path = truth("liger_pairs.csv")
    if path is None:
        pytest.skip("truth/liger_pairs.csv is not here; set MEMWALL_SHARED to the folder that has it")
    every = list(read(path))
    assert len(every) >= 80
    if not is_whole(request):
        sizes = {kernel: {} for kernel in KERNELS}
        places = [sizes[row["kernel_name"]].setdefault(row["x_value"], len(sizes[row["kernel_name"]])) for row in every]
        every = [row for row, place in zip(every, places, strict=True) if place % 3 == 0]
    return score(every)


def test_every_kernel_is_scored(rows):
    assert {row.kernel for row in rows} == KERNELS


def test_half_of_the_gains_are_within_a_quarter(rows):
    assert median_factor(rows) <= 1.25


def test_clear_gains_and_losses_have_the_right_sign(rows):
    right, clear = signs(rows)
    assert clear >= 0.6 * len(rows)
    assert right >= 0.95 * clear, [
        (r.kernel, r.mode, r.size, r.measured_gain, r.modeled_gain)
        for r in rows
        if (r.modeled_gain > 1) != (r.measured_gain > 1)
    ]


def test_steps_that_draw_their_gradient_take_what_was_measured(rows):
    """A quarter of an embedding's step on an A100 draws 67 million normal numbers, on both sides of the pair."""
    steps = [row for row in rows if (row.kernel, row.mode) == ("embedding", "full")]
    assert len(steps) in (4, 9)
    for row in steps:
        assert row.modeled == pytest.approx(row.measured, rel=0.11)


def test_no_gain_is_claimed_for_a_whole_mlp(rows):
    gains = [row.modeled_gain for row in rows if row.kernel in ("swiglu", "geglu")]
    assert gains
    assert all(1.0 <= gain < 1.05 for gain in gains), gains


def test_unfused_times_are_right_by_themselves(rows):
    """Gains that come out right because both sides are wrong would not do."""
    errors = sorted(abs(math.log(row.modeled[0] / row.measured[0])) for row in rows)
    assert errors[len(errors) // 2] <= math.log(1.10)
    fused = sorted(abs(math.log(row.modeled[1] / row.measured[1])) for row in rows)
    assert fused[len(fused) // 2] <= math.log(1.20)


def test_a_step_is_the_layer_and_nothing_else():
    """Hugging Face's RMS norm: 8 ops forward; backward casts the bfloat16 gradient, and adds the gradient of the
    weight."""
    with torch.device("meta"):
        x, dy = torch.empty(64, 32, dtype=torch.bfloat16), torch.empty(64, 32, dtype=torch.bfloat16)
        step = Step(RmsNorm(32, torch.float32), (x,), 1, False, False)
    graph = memwall.profile(step, (dy,), mode="training", optimizer=None, loss=lambda loss: loss).graphs[0]
    forward = [op.name.split(".")[1] for op in graph.ops if op.phase == "forward"]
    assert forward == ["_to_copy", "pow", "mean", "add", "rsqrt", "mul", "_to_copy", "mul"]
    backward = [op for op in graph.ops if op.phase == "backward"]
    assert [op.name for op in backward[:2]] == ["aten.ones_like", "aten._to_copy"]
    gradient = graph.values[backward[1].inputs[0]]
    assert (gradient.spec.dtype, gradient.storage) == ("bfloat16", graph.values[graph.inputs[0]].storage)
    added = [op for op in backward if op.name == "aten.add_.Tensor"]
    assert [graph.values[op.outputs[0]].spec.shape for op in added] == [(32,)]
