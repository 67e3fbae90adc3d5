"""Why a kernel takes its time, in words; and how the constants behind it are known."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import memwall
from memwall.analysis.explanation import explanations, kernels_named, provenance
from memwall.core.errors import UsageError
from memwall.core.graph import Pipe
from memwall.fusion import eager_plan
from memwall.ops import Cost
from memwall.ops.product_launches import Gemm
from memwall.perfmodel.roofline import predict_cost
from memwall.record.profile import Profile
from memwall.report import render
from memwall.simulate.schedule import simulate
from tests.unit.report_fixture import NEW, OLD, make_profile


@pytest.fixture(scope="module")
def profile():
    return make_profile()


def test_a_kernel_by_its_number_with_its_numbers(profile):
    (told,) = explanations(profile, profile.simulations[0], "0")
    assert (told.kernel.id, told.count, told.module) == (0, 1, "blocks.0.proj")
    # 2 x 1024^3 FLOP, three tensors of 2 MiB: 21.47 us of arithmetic, 6.29 us of traffic, 1 us of launch
    assert "2.15 GFLOP at 100 % of 100.00 TFLOP/s; 6.29 MB at 100 % of 1.00 TB/s" in told.launches[0]
    assert "21.47 us of arithmetic, 6.29 us of traffic and 0 s of latency overlap" in told.around
    assert "1 launch at 1.00 us" in told.around
    assert "limited by compute; no run is faster than 21.47 us" in told.around


def test_equal_kernels_are_told_once(profile):
    told = explanations(profile, profile.simulations[0], "mm")
    assert [(t.kernel.name, t.count) for t in told] == [("aten.mm", 4)]
    assert [t.count for t in explanations(profile, profile.simulations[0], "blocks.1.*")] == [2, 1, 1]


def test_every_simulation_is_told(profile):
    assert [(s.gpu.name, t.kernel.id) for s, t in kernels_named(profile, ["7", "0"])] == [
        ("old", 7), ("old", 0), ("new", 7), ("new", 0)
    ]  # fmt: skip


@pytest.mark.parametrize(("wanted", "says"), [("12", "there are 0 to 11"), ("nativ_layer_nom", "native_layer_norm")])
def test_an_unknown_kernel_is_named_with_what_there_is(profile, wanted, says):
    with pytest.raises(UsageError, match=says):
        explanations(profile, profile.simulations[0], wanted)


def test_nothing_runs_that_could_be_named(profile):
    idle = replace(profile.simulations[0], kernels=())
    with pytest.raises(UsageError, match="no kernel runs on"):
        explanations(profile, idle, "0")


def test_a_saved_record_tells_the_same(profile):
    saved = Profile.from_dict(json.loads(profile.to_json()))
    assert explanations(saved, saved.simulations[0], "mm") == explanations(profile, profile.simulations[0], "mm")


def test_what_a_compiler_launched_is_not_in_a_record(profile):
    schedule = replace(profile.simulations[0], policy="inductor", plan=None)
    with pytest.raises(UsageError, match="profile the model again"):
        explanations(profile, schedule, "mm")


def test_the_record_and_the_text_say_it(profile):
    told = kernels_named(profile, ["0"])
    record = json.loads(render(profile, "json", explained=told))
    assert [(row["gpu"], row["kernel"]) for row in record["explanations"]] == [("old", 0), ("new", 0)]
    text = render(profile, "text", explained=told)
    assert text.count("kernel 0, mm in blocks.0.proj") == 2
    assert "Top kernels" not in text
    assert "kernel 0, mm in blocks.0.proj" in render(profile, "md", explained=told)


def test_the_interval_encloses_the_time_and_stays_above_the_bound(profile):
    for schedule in profile.simulations:
        for kernel in schedule.kernels:
            assert kernel.bound_s <= kernel.low_s <= kernel.time_s <= kernel.high_s
        totals = schedule.totals
        assert totals.bound_s <= totals.low_s < totals.time_s < totals.high_s


def test_the_interval_of_a_total_by_hand(profile):
    """Kernels of a class err alike, classes independently: a root of the sum of squares of the classes' sums."""
    schedule = profile.simulations[0]
    above: dict[str, float] = {}
    for kernel in schedule.kernels:
        above[kernel.op_class] = above.get(kernel.op_class, 0.0) + kernel.high_s - kernel.time_s
    by_hand = sum(value**2 for value in above.values()) ** 0.5
    assert schedule.totals.high_s - schedule.totals.time_s == pytest.approx(by_hand)


GEMM = Gemm(pipe=Pipe("tensor", "float16"), batch=1, m=1024, n=1024, k=1024, itemsize=2, read_bytes=2 * 2 * 1024**2,
            write_bytes=2 * 1024**2)  # fmt: skip


def _with_launches(gpu):
    profile = make_profile(gpus=(gpu,))
    costs = tuple(
        replace(cost, launches=(GEMM,)) if op.name == "aten.mm" else cost
        for op, cost in zip(profile.graph.ops, profile.costs[0], strict=True)
    )
    profile = replace(profile, costs=(costs,), simulations=())
    return profile.with_simulations((simulate(profile.graph, eager_plan(profile.graph, costs), gpu),))


@pytest.mark.parametrize(("utilization", "fitted_on", "expected"), [
    ({}, {}, {"datasheet only"}),
    ({"gemm.float16.interval_high": 1.2}, {"gemm.float16": "old"}, {"yes", "datasheet only"}),
    ({"gemm.float16.interval_high": 1.2}, {"gemm.float16": "new"}, {"by architecture", "datasheet only"}),
    ({"gemm.bfloat16.interval_high": 1.2}, {"gemm.bfloat16": "old"}, {"by architecture", "datasheet only"}),
])  # fmt: skip
def test_the_time_says_on_what_its_constants_rest(utilization, fitted_on, expected):
    gpu = replace(OLD, utilization=utilization, fitted_on=fitted_on)
    profile = _with_launches(gpu)
    rows = provenance(profile, profile.simulations[0])
    assert {row.calibrated for row in rows} == expected
    assert sum(row.time_s for row in rows) == pytest.approx(profile.simulations[0].totals.time_s)


def test_the_text_and_the_page_say_it_by_family():
    """Products are fitted to this GPU's rows, the rest of the kernels to none."""
    fitted = {"gemm.float16.interval_high": 1.2}
    profile = _with_launches(replace(OLD, utilization=fitted, fitted_on={"gemm.float16": "old"}))
    assert {row.calibrated: row.families for row in provenance(profile, profile.simulations[0])} == {
        "yes": ("gemm.float16",), "datasheet only": ("plain",)
    }  # fmt: skip
    for kind in ("text", "html"):
        said = " ".join(render(profile, kind).split())
        assert "datasheet only for " in said and "% (plain)" in said


def test_a_tables_own_interval_is_taken():
    gpu = replace(OLD, utilization={"gemm.float16.interval_high": 1.25, "gemm.float16.interval_low": 0.9},
                  fitted_on={"gemm.float16": "old"})  # fmt: skip
    found = predict_cost(Cost({GEMM.pipe: 2**31}, GEMM.read_bytes, GEMM.write_bytes, launches=(GEMM,)), gpu)
    assert found.high_s == pytest.approx(1.25 * found.time_s)
    assert found.low_s == pytest.approx(max(0.9 * found.time_s, found.bound_s))


def test_a_faster_gpu_is_faster(profile):
    assert profile.simulation(NEW.name).totals.time_s < profile.simulation(OLD.name).totals.time_s


def test_a_convolutions_gradients_and_its_bias_are_named():
    made = memwall.profile(nn.Conv2d(64, 128, 3, groups=4), (torch.ones(8, 64, 32, 32, requires_grad=True),),
                           gpu="h100-sxm", mode="training", optimizer=None)  # fmt: skip
    (ahead,) = explanations(made, made.simulations[0], "0")
    assert ahead.launches[1].startswith("A kernel of its own adds the bias: ")
    (back,) = explanations(made, made.simulations[0], "convolution_backward")
    assert [text.partition(":")[0] for text in back.launches[-3:-1]] == ["Data gradient", "Weight gradient"]


def test_a_transposed_convolutions_passes_are_named_in_their_own_roles():
    """Its forward pass is the data gradient of a convolution, and its data gradient a convolution."""
    made = memwall.profile(nn.ConvTranspose2d(64, 32, 4, 2, 1, bias=False),
                           (torch.ones(8, 64, 32, 32, requires_grad=True),), gpu="h100-sxm", mode="training",
                           optimizer=None)  # fmt: skip
    (ahead,) = explanations(made, made.simulations[0], "0")
    (back,) = explanations(made, made.simulations[0], "convolution_backward")
    said = [text.partition(":")[0].partition(",")[0] for text in (*ahead.launches, *back.launches)]
    assert [text for text in said if "ransposed" in text] == [
        "Transposed convolution", "Data gradient of a transposed convolution",
        "Weight gradient of a transposed convolution",
    ]  # fmt: skip


def test_the_launches_of_a_recurrent_layer_are_not_one():
    made = memwall.profile(nn.LSTM(32, 256, 2), (torch.ones(16, 4, 32),), gpu="h100-sxm")
    (found,) = explanations(made, made.simulations[0], "_cudnn_rnn")
    assert f"launches of the other {found.kernel.launches - 1} kernels are within the terms before" in found.around
