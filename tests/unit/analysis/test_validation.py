"""Modeled beside measured: each figure against arithmetic by hand. All times are made up."""

import copy
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwall.analysis.validation import COLUMNS, devices, measured_points, rows, summary
from memwall.analysis.validation.devices import ORDER, main_dtype
from memwall.analysis.validation.pairs import MeasuredRun, Pair, geomean
from memwall.core.structure import BadRecord
from memwall.record.measurement import EXECUTORS, MeasuredKernel, Measurement, Sensors
from memwall.report.figures.profile import MARKS
from tests.unit.fused_fixture import MIB
from tests.unit.measured_fixture import COPY_BYTES_PER_S, DEVICE, US, make_measured, timing


@pytest.fixture(scope="module")
def device():
    (found,) = devices(make_measured())
    return found


def run_of(device, executor):
    return device.executors[executor]


def pair_of(run, name):
    return next(pair for pair in run.pairs if pair.kernel.name == name)


def test_a_product(device):
    """2^31 FLOP at 100 TFLOP/s are 21.47483648 us, and 1 us of launch: 22.47483648; measured 25."""
    pair = pair_of(run_of(device, "eager"), "aten.mm")
    assert pair.error == pytest.approx(22.47483648 / 25 - 1)
    assert pair.of_bound == pytest.approx(21.47483648 / 25)
    assert pair.of_copy == pytest.approx(6 * MIB / 25e-6 / 0.8e12)
    assert pair.step_s == pytest.approx(4 * 25e-6)
    assert (pair.phase, pair.module, pair.dtype) == ("forward", "blocks.0.proj", "float16")
    assert pair.shape == "f16[1024,1024] f16[1024,1024]"


def test_faster_than_the_speed_of_light_is_a_violation(device):
    """The made-up attention takes 20 us where its FLOPs alone need 21.47."""
    run = run_of(device, "eager")
    assert [pair.kernel.name for pair in run.violations] == ["aten._scaled_dot_product_flash_attention"]
    assert run.violations[0].of_bound == pytest.approx(21.47483648 / 20)
    assert run_of(device, "generated").violations == ()


def test_a_time_with_a_wrong_result_is_no_time():
    profile = make_measured(("eager",))
    record = copy.deepcopy(profile.measurements)
    record[0]["kernels"][0]["status"] = "wrong"
    wrong = replace(profile, measurements=tuple(record))
    (run,) = devices(wrong)[0].runs
    pair = run.pairs[0]
    assert pair.kernel.timing is not None
    assert (pair.timing, pair.measured_s, pair.step_s, pair.is_violation) == (None, 0.0, 0.0, False)
    assert pair not in run.measured
    assert [rows(wrong)[0][name] for name in ("measured_s", "error", "of_bound", "of_copy")] == [None] * 4


def test_no_copy_bandwidth_no_share_of_it(device):
    assert replace(run_of(device, "eager").pairs[0], copy_bytes_per_s=0.0).of_copy is None


def test_the_dtype_is_that_of_most_bytes_floating_first():
    graph = make_measured().graph
    adamw = next(op for op in graph.ops if op.name == "aten._fused_adamw_")  # 16 MiB float32, 4 MiB float16
    assert main_dtype(graph, [adamw]) == "float32"
    assert main_dtype(graph, [graph.ops[0]]) == "float16"
    assert main_dtype(graph, []) == ""


def test_the_sums_of_a_run(device):
    """4 products of 25, 2 GELUs of 5, 2 norms of 8, attention 20, the odd op 2 and AdamW 100: 248 us."""
    total = run_of(device, "eager").total
    assert total.measured_s == pytest.approx(248e-6)
    assert (total.kernels, total.distinct) == (11, 6)
    modeled_us = 4 * 22.47483648 + 2 * 5.194304 + 2 * 7.291456 + 22.47483648 + 43.94304 + 1.000016
    assert total.modeled_s == pytest.approx(modeled_us * US)
    assert total.error == pytest.approx(modeled_us / 248 - 1)
    errors = sorted([
        1 - 22.47483648 / 25, 5.194304 / 5 - 1, 1 - 7.291456 / 8, 22.47483648 / 20 - 1, 1 - 43.94304 / 100,
        1 - 1.000016 / 2,
    ])  # fmt: skip
    assert total.median_error == pytest.approx((errors[2] + errors[3]) / 2)


def test_classes_in_the_order_of_the_registry(device):
    classes = run_of(device, "eager").classes
    assert [c.key for c in classes] == [
        "contraction", "attention", "normalization", "elementwise", "optimizer",
    ]  # fmt: skip
    norms = classes[2]
    assert norms.measured_s == pytest.approx(16e-6)
    assert norms.bytes == 2 * 4 * MIB
    assert norms.of_copy == pytest.approx(8 * MIB / 16e-6 / 0.8e12)
    assert norms.of_bound == pytest.approx(2 * 4.194304 / 16)


def test_the_step(device):
    """All of the eager step, the op without a formula included, is modeled; made-up 300 us measured."""
    run = run_of(device, "eager")
    assert run.step_error == pytest.approx(run.measurement.step_modeled_s / 300e-6 - 1)
    assert run.step_error < 0
    assert replace(run, measurement=replace(run.measurement, step=None)).step_error is None


def test_what_has_no_time_is_counted_by_reason(device):
    assert run_of(device, "eager").lost == (("failed", "no operator of that name", 1, 4 * MIB),)
    ((status, reason, kernels, nbytes),) = run_of(device, "generated").lost
    assert (status, reason, kernels) == ("not generated", "left to the library", 7)
    assert nbytes == 4 * 6 * MIB + 8 * MIB + 4 * MIB + 40 * MIB


def test_flags_are_counted_by_kernels(device):
    run = run_of(device, "eager")
    flags = (("hot",), ("hot", "shared"), ("hot", "hot"))
    pairs = [
        replace(pair, kernel=replace(pair.kernel, sensors=Sensors(flags=f)))
        for pair, f in zip(run.pairs, flags, strict=False)
    ]
    assert MeasuredRun(run.measurement, tuple(pairs), None).flags == {"hot": 3, "shared": 1}


def large(name: str, op_class: str, nbytes: int, us: float) -> Pair:
    kernel = MeasuredKernel(0, name, (0,), op_class, 1, 0, nbytes, us * US, 0.0, "ok", timing=timing(us))
    return Pair(
        "memwall eager", "g", op_class, "float32", 0.0, us * US, kernel=kernel, op_names=(name,), phase="forward",
        module="", copy_bytes_per_s=2e12,
    )  # fmt: skip


def test_streaming_kernels_are_the_large_ones_without_matrix_work(device):
    """100 MB in 100 us are half of 2 TB/s, in 62.5 us 80 %: geometric mean 63.2 %."""
    pairs = (
        large("a", "elementwise", 100_000_000, 100), large("b", "normalization", 100_000_000, 62.5),
        large("c", "contraction", 100_000_000, 1000), large("d", "elementwise", 63_999_999, 1000),
    )  # fmt: skip
    run = MeasuredRun(run_of(device, "eager").measurement, pairs, None)
    assert [pair.kernel.name for pair in run.streaming] == ["a", "b"]
    assert run.streaming_of_copy == pytest.approx(math.sqrt(0.5 * 0.8))
    assert run_of(device, "eager").streaming_of_copy is None


def test_a_group_under_each_executor(device):
    """GELU 5 and norm 8 in eager; made-up 6.5 by Inductor and 5.2 by us."""
    group = next(g for g in device.groups if len(g.pair.kernel.op_ids) == 2)
    assert {name: t.median_s for name, t in group.times.items()} == pytest.approx(
        {"eager": 13e-6, "inductor": 6.5e-6, "generated": 5.2e-6}
    )
    assert group.ratio("generated", "eager") == pytest.approx(2.5)
    assert group.ratio("generated", "inductor") == pytest.approx(1.25)
    assert not group.is_slower("generated", "eager")
    assert group.is_slower("eager", "generated")


def test_slower_means_beyond_both_intervals(device):
    group = next(g for g in device.groups if len(g.pair.kernel.op_ids) == 2)
    near = replace(group, times={"generated": timing(10.0, 0.02), "inductor": timing(9.7, 0.02)})
    assert not near.is_slower("generated", "inductor")  # 9.8 is below 9.894
    far = replace(group, times={"generated": timing(10.0, 0.02), "inductor": timing(9.5, 0.02)})
    assert far.is_slower("generated", "inductor")  # 9.8 is above 9.69


def test_executors_against_each_other(device):
    """Two groups are ours: GELU and norm, twice in the step, and the odd op, 2 us everywhere."""
    ours = {(c.executor, c.versus): c for c in device.same_groups}
    assert list(ours) == [("generated", "eager"), ("generated", "inductor"), ("inductor", "eager")]
    first = ours["generated", "eager"]
    assert (first.groups, first.slower) == (2, 0)
    assert first.ratio == pytest.approx((2 * 13 + 2) / (2 * 5.2 + 2))
    assert first.geomean == pytest.approx(math.sqrt(2.5))
    assert first.worst == pytest.approx(1.0)
    assert ours["generated", "inductor"].ratio == pytest.approx((2 * 6.5 + 2) / (2 * 5.2 + 2))


def test_eager_kernels_are_found_by_what_they_do():
    """Eager timed the ops of the first block; the group at hand is that of the second."""
    profile = make_measured()
    record = copy.deepcopy(profile.measurements)
    for measurement in record[1:]:
        for kernel in measurement["kernels"]:
            if kernel["op_ids"] == [1, 2]:
                kernel["op_ids"] = [4, 5]
    (device,) = devices(replace(profile, measurements=tuple(record)))
    group = next(g for g in device.groups if g.pair.kernel.op_ids == (4, 5))
    assert group.times["eager"].median_s == pytest.approx(13e-6)


def test_a_group_with_an_op_that_eager_lost_has_no_eager_time():
    profile = make_measured()
    record = copy.deepcopy(profile.measurements)
    next(k for k in record[0]["kernels"] if k["name"] == "aten.gelu")["status"] = "timeout"
    (device,) = devices(replace(profile, measurements=tuple(record)))
    group = next(g for g in device.groups if len(g.pair.kernel.op_ids) == 2)
    assert set(group.times) == {"inductor", "generated"}
    assert group.ratio("generated", "eager") is None


def test_without_eager_there_is_nothing_to_hold_it_against():
    (device,) = devices(make_measured(("generated",)))
    assert device.same_groups == ()


def test_devices_are_kept_apart():
    profile = make_measured(("eager",))
    other = {**profile.measurements[0], "device": "another"}
    found = devices(replace(profile, measurements=(*profile.measurements, other)))
    assert [d.name for d in found] == [DEVICE, "another"]


def test_every_executor_has_its_place_and_mark():
    assert set(ORDER) == set(EXECUTORS) == set(MARKS)


def test_a_geometric_mean():
    assert geomean([2.0, 8.0]) == pytest.approx(4.0)


def test_points_of_a_roofline():
    profile = make_measured()
    points = measured_points(profile, profile.simulation("old", "eager"))
    point = next(p for p in points if p.name == "aten.mm")
    assert point.arithmetic_intensity == pytest.approx(2**31 / (6 * MIB))
    assert point.measured_flop_per_s == pytest.approx(2**31 / 25e-6)
    assert point.modeled_flop_per_s == pytest.approx(2**31 / 22.47483648e-6)
    assert point.share == pytest.approx(100 / 248)
    assert {p.executor for p in measured_points(profile, profile.simulation("old", "memwall"))} == {
        "inductor", "generated",
    }  # fmt: skip


def test_rows_for_other_tools():
    found = rows(make_measured())
    assert len(found) == 7 + 6 + 6
    assert all(tuple(row) == COLUMNS for row in found)
    first = found[0]
    assert (first["executor"], first["name"], first["repeats"], first["ops"]) == ("eager", "aten.mm", 4, 1)
    assert (first["measured_s"], first["samples"]) == (pytest.approx(25e-6), 30)
    failed = next(row for row in found if row["status"] == "failed")
    assert (failed["measured_s"], failed["error"], failed["samples"]) == (None, None, None)
    assert failed["reason"] == "no operator of that name"


def test_rows_make_a_data_frame():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rows(make_measured()))
    timed = frame[frame.status == "ok"]
    assert (timed.measured_s * timed.repeats)[timed.executor == "eager"].sum() == pytest.approx(248e-6)


def test_the_summary_is_plain_json():
    found = summary(make_measured())
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    (only,) = found
    assert only["violations"] == 2
    assert [run["executor"] for run in only["runs"]] == ["eager", "inductor", "generated"]
    assert only["same_groups"][0]["geomean"] == pytest.approx(math.sqrt(2.5))


RECORD = make_measured(("generated",)).measurements[0]


def test_a_measurement_comes_back_as_it_was():
    full = Measurement.from_dict(RECORD)
    assert full.to_dict() == RECORD
    assert Measurement.from_dict(json.loads(json.dumps(RECORD))) == full
    assert full.copy_bytes_per_s == COPY_BYTES_PER_S
    assert full.kernels[1].config == {"ROWS": 4}
    assert full.kernels[1].sensors.power_w == 250.0


def test_what_is_default_is_left_out_and_read_again():
    kernel = MeasuredKernel(3, "k", (1,), "elementwise", 1, 0, 8, 1e-6, 1e-6, "skipped")
    bare = Measurement(
        device="d", kind="cpu", gpu="g", executor="eager", policy="eager", complete=True, kernels=(kernel,)
    )
    (written,) = bare.to_dict()["kernels"]
    assert set(written) == {
        "id", "name", "op_ids", "class", "repeats", "flops", "bytes", "modeled_s", "bound_s", "status",
    }  # fmt: skip
    assert Measurement.from_dict(bare.to_dict()) == bare


@pytest.mark.parametrize("error", [math.inf, math.nan])
def test_a_deviation_that_is_no_number_is_saved_as_a_huge_one(error):
    kernel = MeasuredKernel(3, "k", (1,), "elementwise", 1, 0, 8, 1e-6, 1e-6, "wrong", error=error)
    record = Measurement(
        device="d", kind="cpu", gpu="g", executor="eager", policy="eager", complete=True, kernels=(kernel,)
    ).to_dict()
    json.dumps(record, allow_nan=False)
    assert Measurement.from_dict(record).kernels[0].error == 1e20


@pytest.mark.parametrize(("change", "message"), [
    ({"executor": "magic"}, "m.executor is 'magic'; want one of eager"),
    ({"kernels": {}}, "m.kernels is not a list"),
    ({"complete": 1}, "m.complete is neither true nor false"),
    ({"copy_bytes_per_s": -1}, "m.copy_bytes_per_s must be a number"),
    ({"step": {"median_s": 1.0}}, "m.step has no 'low_s'"),
    ({"step": {**RECORD["step"], "low_s": 1.0}}, "not in this order"),
    ({"step": {**RECORD["step"], "min_s": 0}}, "m.step.min_s must be above 0"),
])  # fmt: skip
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(BadRecord, match=message):
        Measurement.from_dict({**RECORD, **change}, "m")


@pytest.mark.parametrize(("change", "message"), [
    ({"status": "great"}, r"m.kernels\[1\].status is 'great'"),
    ({"timing": None}, r"m.kernels\[1\] is ok and has no timing"),
    ({"repeats": 0}, "repeats must be at least 1"),
    ({"op_ids": [-1]}, r"op_ids\[0\] must be a whole number"),
    ({"config": {"ROWS": "many"}}, "config.ROWS must be a whole number"),
    ({"sensors": {"power_w": "hot"}}, "sensors.power_w must be a number"),
    ({"sensors": {"flags": "hot"}}, "sensors.flags is not a list"),
])  # fmt: skip
def test_what_is_wrong_in_a_kernel_is_named(change, message):
    record = copy.deepcopy(RECORD)
    record["kernels"][1] |= change
    with pytest.raises(BadRecord, match=message):
        Measurement.from_dict(record, "m")


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 3), st.floats(), st.text(max_size=4), st.just([]), st.just({})
)


@pytest.mark.slow
@given(data=st.data(), value=ODD)
def test_odd_values_are_read_or_refused(data, value):
    record = copy.deepcopy(RECORD)
    where = data.draw(st.sampled_from([record, record["kernels"][1], record["kernels"][1]["timing"], record["step"]]))
    where[data.draw(st.sampled_from(sorted(where)))] = value
    try:
        read = Measurement.from_dict(record)
    except BadRecord as error:
        assert "\n" not in str(error)
    else:
        assert Measurement.from_dict(read.to_dict()) == read
