"""Pictures: valid, the same bytes each time, labels that keep off each other. Looked at by eye besides."""

import xml.etree.ElementTree as ET
from itertools import combinations

import pytest

from memwall.core.errors import UsageError
from memwall.report import render
from memwall.report.figures.labels import Box, LabelLine, Placer
from memwall.report.figures.profile import compute_roofs, memory_roofs
from memwall.sweeping.compare import compare_gpus, compare_profile
from tests.unit.report_fixture import NEW, OLD, make_profile

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
