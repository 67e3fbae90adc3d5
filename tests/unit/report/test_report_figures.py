"""Pictures: valid, the same bytes each time, labels that keep off each other. Looked at by eye besides."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import combinations

import pytest

from memwall.analysis.modules import module_tree
from memwall.analysis.table import KernelRow, rows_and_kernels
from memwall.core.errors import UsageError
from memwall.core.graph import Graph
from memwall.fusion import eager_plan
from memwall.record.kernels import kernel_phase
from memwall.report import render
from memwall.report.figures.colors import SIGN_COLORS
from memwall.report.figures.labels import Box, LabelLine, Placer
from memwall.report.figures.modules import difference_chart
from memwall.report.figures.profile import compute_roofs, earlier_rows, memory_roofs, roofline_since
from memwall.report.figures.scene import drawn
from memwall.report.figures.svg import to_svg
from memwall.report.figures.timeline import LaneMark, _merged, timeline_chart
from memwall.report.pages.profile_tables import peak_tensors
from memwall.report.trace_events import memory_line
from memwall.simulate.schedule import simulate
from memwall.sweeping.compare import compare_gpus, compare_profile
from tests.unit.report_fixture import NEW, OLD, TENSOR, Builder, make_profile

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def profile():
    return make_profile()


def test_a_profile_as_png_svg_and_pdf(profile):
    png = render(profile, "png")
    assert png.startswith(PNG)
    assert png == render(profile, "png")
    svg = render(profile, "svg")
    ET.fromstring(svg)
    assert svg == render(profile, "svg")
    assert render(profile, "pdf").startswith(b"%PDF")


def test_comparisons_as_pictures(profile):
    for comparison in (compare_profile(profile, [OLD, NEW]), compare_gpus([OLD, NEW])):
        assert render(comparison, "png").startswith(PNG)
        ET.fromstring(render(comparison, "svg"))


def test_what_cannot_be_drawn_is_said(profile):
    with pytest.raises(UsageError, match="no simulation to draw"):
        render(make_profile(gpus=()), "png")


def test_a_picture_leaves_no_global_state(profile):
    import matplotlib

    before = dict(matplotlib.rcParams)
    render(profile, "png")
    assert dict(matplotlib.rcParams) == before


def test_roofs_are_those_used_and_the_context(profile):
    schedule = profile.simulation("old")
    assert [(roof.name, roof.rate, roof.used) for roof in compute_roofs(profile, schedule)] == [
        ("tensor.float16", 100e12, True),
        ("vector.float32", 10e12, True),
    ]
    assert [(roof.name, roof.rate) for roof in memory_roofs(schedule)] == [("DRAM", 1e12)]  # no L2 on this one


def test_labels_keep_off_each_other_points_lines_and_the_frame():
    frame = Box(0, 0, 400, 300)
    points = [(50 + 9 * i, 150.0, 6.0) for i in range(30)]
    line = LabelLine(0, 180, 400, 180)
    placer = Placer(frame, [Box(x - r, y - r, x + r, y + r) for x, y, r in points], [line])
    placed = [placer.place(x, y, r, 50, 10) for x, y, r in points]
    boxes = [box for box, _ in filter(None, placed)]
    assert len(boxes) >= 8
    for one, other in combinations(boxes, 2):
        assert not one.overlaps(other)
    for box in boxes:
        assert box.inside(frame)
        assert not line.crosses(box)
        assert not any(box.overlaps(point) for point in placer.boxes)
    leaders = [leader for _, leader in filter(None, placed) if leader]
    assert leaders
    assert not any(leader.crosses(box) for leader in leaders for box in boxes)


def test_no_room_means_no_label():
    assert Placer(Box(0, 0, 30, 30)).place(15, 15, 5, 100, 10) is None


def test_narrow_marks_of_the_timeline_share_one_of_the_longest():
    """Marks of 0.5, 1.2 and 0.4 pixels within two pixels are one, the second; one of 30 pixels stays as it is."""
    marks = [(0.0, 0.5, "a"), (0.5, 1.7, "b"), (1.7, 2.1, "c"), (3.0, 33.0, "d")]
    made = [LaneMark(0, 1, "other", name, "") for *_, name in marks]
    found = list(_merged((left, right, mark) for (left, right, _), mark in zip(marks, made, strict=True)))
    assert [(left, mark.title) for left, _, mark in found] == [(0.0, "b"), (3.0, "d")]


def test_the_timeline_has_a_mark_for_each_launch_and_run(profile):
    """Eight distinct kernels, each wider than two pixels of the lane, which the CPU issues and the GPU runs."""
    schedule = profile.simulation("old")
    text = to_svg(drawn(timeline_chart(profile, schedule, "tiny"), width=1000.0))
    launched = sum(1 for kernel in schedule.kernels if kernel.launches)
    assert text.count("launch of ") <= launched
    ran = text.count("<title>") - text.count("launch of ")
    assert 0 < ran <= launched + len({kernel_phase(profile, schedule, k) for k in schedule.kernels})


def test_the_tensors_of_the_peak_add_up_to_it(profile):
    """All of them are listed: their bytes are the peak."""
    schedule = profile.simulation("old")
    (table,) = peak_tensors(profile, schedule)
    shares = [float(row[-1]) for row in table.rows]
    assert "more row" in table.note or sum(shares) == pytest.approx(100, abs=0.1 * len(shares))
    assert shares == sorted(shares, reverse=True)


def test_a_kernel_has_an_arrow_from_where_it_was(profile):
    """The GPU that is twice as fast: each kernel's arrow begins at the other's FLOP/s."""
    old, new = profile.simulation("old"), profile.simulation("new")
    svg = to_svg(drawn(roofline_since(profile, old, profile, new), width=1000.0))
    assert "baseline, " in svg and "→ now" in svg
    same = to_svg(drawn(roofline_since(profile, new, profile, new), width=1000.0))
    assert same.count("<polyline") < svg.count("<polyline")


def _backward(rows: int) -> list[KernelRow]:
    """The gradients of a product of ``rows`` x 1024 by 1024 x 1024: two products of one name in one module."""
    b, n = Builder(), 1024
    grad, weight, x = b.value((rows, n)), b.value((n, n), "parameter"), b.value((n, rows))
    for left, right, shape in ((grad, weight, (rows, n)), (x, grad, (n, n))):
        b.op("aten.mm", "contraction", "backward", "proj", (left, right), (b.value(shape),), {TENSOR: 2 * rows * n * n})
    graph, costs = Graph(tuple(b.values), tuple(b.storages), tuple(b.ops), (grad,), (weight,), ()), tuple(b.costs)
    schedule = simulate(graph, eager_plan(graph, costs), OLD)
    profile = replace(make_profile((OLD,)), graphs=(graph,), costs=(costs,), simulations=(schedule,))
    return [row for row, _ in rows_and_kernels(profile, schedule)]


def test_each_gradient_of_a_product_was_the_same_gradient_earlier():
    """A baseline of another batch: both rows are ``aten.mm`` of ``proj`` in backward."""
    assert [row.shapes for row in earlier_rows(_backward(64), _backward(512))] == [
        "f16[64,1024] f16[1024,1024]", "f16[1024,64] f16[64,1024]",
    ]  # fmt: skip


def test_nothing_is_said_of_earlier_where_one_of_two_is_gone():
    both = _backward(64)
    assert earlier_rows(both, both[:1]) == [None]


def test_a_differential_flame_graph_says_what_costs_more_and_less(profile):
    """From the old GPU to the new one everything takes less; the other way round, more."""
    trees = {name: module_tree(profile, profile.simulation(name)) for name in ("old", "new")}
    faster = to_svg(drawn(difference_chart("tiny", trees["old"], trees["new"], "time"), width=1000.0))
    slower = to_svg(drawn(difference_chart("tiny", trees["new"], trees["old"], "time"), width=1000.0))
    same = to_svg(drawn(difference_chart("tiny", trees["old"], trees["old"], "time"), width=1000.0))
    worse, better = SIGN_COLORS["worse"], SIGN_COLORS["better"]
    legend = 1  # each colour has one square there
    assert faster.count(worse) == slower.count(better) == same.count(worse) == same.count(better) == legend
    assert faster.count(better) == slower.count(worse) > 3
    assert same.count("as before") > 3


def test_the_memory_of_a_step_is_drawn_to_its_end(profile):
    """The CPU issues the first kernel in 30 us: the GPU, which takes 187.483 us, begins and ends as much later."""
    schedule = profile.simulations[0]
    first, *others = schedule.kernels
    late = replace(schedule, kernels=(replace(first, issue_s=30e-6), *others))
    line, end_ns = memory_line(profile, late)
    assert (line[1][0], end_ns) == (30_000, 217_483)
