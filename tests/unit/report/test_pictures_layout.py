"""The layout of the reference pictures, wide and narrow: no label over another or a line, nothing off the sheet."""

import math
import re
import xml.etree.ElementTree as ET
from itertools import combinations

import pytest

from memwall.cli import options
from memwall.core.units import size
from memwall.report.figures.bars import Bar, Piece, bars_chart
from memwall.report.figures.canvas import to_figure
from memwall.report.figures.labels import Box
from memwall.report.figures.modules import flame_chart, squarified
from memwall.report.figures.picture import picture, sheet
from memwall.report.figures.profile import FIGURES, module_trees
from memwall.report.figures.roofline import Roof, Roofline, Spot, roofline_charts
from memwall.report.figures.scene import STYLES, Dot, Rect, Scene, Stroke, Style, Text, drawn, fit, text_width, wrapped
from memwall.report.figures.svg import to_svg
from tests.unit.fused_fixture import make_fused
from tests.unit.pictures_fixture import PICTURES, outside, overlapping, struck
from tests.unit.report_fixture import OLD, make_profile

WIDTHS = {"wide": Style(), "narrow": Style(width=380), "paper": STYLES["paper"]}
#: as the page embeds them: without a margin
PAGE = {"a wide page": 1000.0, "a phone": 380.0}


@pytest.fixture(scope="module", params=PICTURES)
def chart(request):
    return PICTURES[request.param]()


@pytest.mark.parametrize("style", WIDTHS.values(), ids=WIDTHS)
def test_no_label_lies_over_another_or_a_line_and_nothing_off_the_sheet(chart, style):
    scene = sheet(chart, style)
    assert outside(scene) == [] and overlapping(scene) == [] and struck(scene) == []


@pytest.mark.parametrize("width", PAGE.values(), ids=PAGE)
def test_the_pictures_of_a_page_lie_on_their_sheet(chart, width):
    scene = drawn(chart, width=width)
    assert outside(scene) == [] and overlapping(scene) == [] and struck(scene) == []


def test_matplotlib_draws_no_text_wider_than_the_layout_counts_on(chart):
    """The extents that matplotlib's renderer reports, against the boxes that labels were placed by."""
    import matplotlib
    from matplotlib.figure import Figure

    scene = sheet(chart)
    texts = [mark for mark in scene.marks if isinstance(mark, Text)]
    with matplotlib.rc_context():
        figure = to_figure(scene, Figure)
        extents = {(text.get_text(), text.get_rotation()): text.get_window_extent() for text in figure.axes[-1].texts}
    pixel = figure.dpi / 100
    for mark in texts:
        if mark.angle == 0 and mark.text:
            extent = extents[mark.text, 0.0]
            assert extent.width / pixel <= text_width(mark.text, mark.size, mark.bold) + 2, mark.text


@pytest.mark.defect("33")
@pytest.mark.parametrize("width", PAGE.values(), ids=PAGE)
def test_kernels_without_flops_stand_off_the_axes_of_flops(width):
    """Kernels without FLOPs were circles one above the other beside the axis of FLOP/s, the last of them at 100 T."""
    roofs = [Roof("peak", "peak  1 TFLOP/s", 1e12, True)], [Roof("DRAM", "DRAM  1 TB/s", 1e12, True)]
    bare = [Spot(0.0, 0.0, 0.05, "movement", "clone", "a copy") for _ in range(90)]
    roofline = Roofline("made", *roofs, [Spot(1.0, 1e11, 0.5, "contraction", "mm")], "modeled FLOP/s", bare=bare)
    scene = drawn(roofline_charts([roofline])[0], width=width)
    (frame,) = scene.frames
    drawn_bare = [mark for mark in scene.marks if isinstance(mark, Dot) and mark.title == "a copy"]
    assert drawn_bare
    assert all(mark.y + mark.r <= frame.box.upper for mark in drawn_bare)
    said = [mark.text for mark in scene.marks if isinstance(mark, Text)]
    assert any("FLOPs" in text for text in said)
    assert f"and {90 - len(drawn_bare)} more" in said
    assert outside(scene) == [] and overlapping(scene) == []


def test_each_rooflines_axes_are_where_its_values_are_drawn():
    """The tensor roof of 100 TFLOP/s meets that of DRAM at 1 TB/s at 100 FLOP/B on the old one;
    on the new one 1000 TFLOP/s and 2 TB/s at 500."""
    import matplotlib
    from matplotlib.figure import Figure

    scene = sheet(PICTURES["rooflines of two GPUs"]())
    with matplotlib.rc_context():
        figure = to_figure(scene, Figure)
    *axes, whole = figure.axes
    corners = {(round(x), round(y)) for line in whole.lines for x, y in whole.transData.transform(line.get_xydata())}
    for own, corner in zip(axes, [(100, 100e12), (500, 1000e12)], strict=True):
        x, y = own.transData.transform(corner)
        assert (round(x), round(y)) in corners
        assert own.get_xlabel() == "arithmetic intensity, FLOP per DRAM byte" and own.get_ylabel() == "modeled FLOP/s"
    assert [own.get_label().split(":")[0] for own in axes] == ["old", "new"]


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_equal_pictures_are_equal_bytes(kind):
    chart = PICTURES["fused roofline"]()
    data = picture(kind, chart)
    assert data == picture(kind, chart)
    assert data.startswith({"svg": b"<svg", "png": b"\x89PNG", "pdf": b"%PDF"}[kind])


def test_the_page_and_the_file_show_the_same_marks():
    """But for the variables of colours and the size of the sheet they are one text."""
    chart = PICTURES["roofline"]()
    scene = drawn(chart, width=1000)
    file, page = to_svg(scene), to_svg(scene, themed=True)
    page = re.sub(r"var\(--[\w-]+,(#\w{6})\)", r"\1", page)
    assert page.splitlines()[1:] == file.splitlines()[2:]


def test_a_hostile_name_stays_text():
    scene = Scene(100)
    scene.height = 20
    scene.text(0, 10, "<script>alert(1)</script>")
    scene.rect(0, 0, 90, 20, "ink", title="</title><script>", key='"><x', label="&<b>")
    svg = to_svg(scene)
    assert [node.tag for node in ET.fromstring(svg).iter() if "script" in node.tag] == []
    assert "<script" not in svg and "<x" not in svg and "<b>" not in svg


def test_texts_are_cut_and_wrapped_to_their_room():
    assert fit("a long name of a kernel", 60).endswith("…")
    assert text_width(fit("a long name of a kernel", 60)) <= 60
    assert fit("abc", 5) == ""
    assert fit("native_layer_norm_backward", 120, end=9).endswith("…_backward")
    assert wrapped("one two three", text_width("one two") + 1) == ["one two", "three"]
    assert Rect(0, 0, 8, 20, "ink", label="name").text is None


def test_a_point_beyond_the_axes_is_an_arrowhead_and_the_legend_says_so():
    roofs = [Roof("tensor", "tensor", 1e14, True)], [Roof("DRAM", "DRAM", 1e12, True)]
    spots = [Spot(10.0, 1e12, 0.9, "#3088b8", "long"), Spot(10.0, 1.0, 1e-5, "#3088b8", "short")]
    (chart,) = roofline_charts([Roofline("title", *roofs, spots, "modeled FLOP/s")])
    scene = drawn(chart)
    shapes = [mark.shape for mark in scene.marks if isinstance(mark, Dot)]
    assert shapes == ["circle", "down", "down"]  # the two points, and the entry of the legend
    assert "below the axes" in [mark.text for mark in scene.marks if isinstance(mark, Text)]


def test_a_roofs_label_has_the_slope_of_its_roof():
    scene = sheet(PICTURES["roofline"]())
    label = next(mark for mark in scene.marks if isinstance(mark, Text) and mark.text.startswith("DRAM"))
    slopes = [math.degrees(math.atan2(a[1] - b[1], b[0] - a[0])) for mark in scene.marks if isinstance(mark, Stroke)
              for a, b in [mark.places[:2]] if a[0] != b[0] and a[1] != b[1]]  # fmt: skip
    assert any(abs(label.angle - slope) < 0.01 for slope in slopes)
    assert not 44.5 < label.angle < 45.5


def test_an_overlay_draws_a_gpus_roofs_once_and_a_paper_names_its_panels():
    """Two policies on one GPU of 1 TB/s have one DRAM roof; a paper leaves out the title of a single chart alone."""
    profile = make_fused()
    texts = [mark.text for mark in sheet(FIGURES["overlay"](profile)).marks if isinstance(mark, Text)]
    assert sum(text.startswith("DRAM") for text in texts) == len({s.gpu.name for s in profile.simulations})
    titles = {name: [m.text for m in sheet(FIGURES[name](profile), STYLES["paper"]).marks if getattr(m, "bold", False)]
              for name in ("shares", "memory")}  # fmt: skip
    assert not titles["shares"] and any("memory alive" in text for text in titles["memory"])


def test_every_bar_begins_at_zero():
    """The bars of the totals of a waterfall, whose ends alone an axis with a cut would compare wrongly."""
    scene = sheet(PICTURES["waterfall"]())
    bars = [mark for mark in scene.marks if isinstance(mark, Rect)]
    first, last = bars[0], bars[-1]
    assert first.x == last.x
    assert last.width / first.width == pytest.approx(172.90 / 187.48, abs=1e-3)  # by hand in test_report_fusion.py


def test_the_line_of_an_interval_stands_where_its_ends_do():
    """A bar of 20 ms with an 80 % range of 15 to 40 ms: the line begins at three quarters of the bar and ends at two
    bars' length. A label that it would cross gives way."""
    pieces = (Piece("compute", 12.0, "#523c81", "60 %"), Piece("latency", 8.0, "#528940", "40 %"))
    scene = drawn(bars_chart("", [Bar("h100", pieces, "20 ms", interval=(15.0, 40.0))], unit="ms"))
    rects = [mark for mark in scene.marks if isinstance(mark, Rect) and mark.height > 15]
    line = next(mark for mark in scene.marks if isinstance(mark, Stroke) and mark.color == "ink" and mark.width == 1.2)
    start, length = rects[0].x, sum(rect.width for rect in rects)
    assert [(x - start) / length for x, _ in line.places] == pytest.approx([0.75, 2.0])
    assert [rect.label for rect in rects] == ["60 %", "40 %"]
    pieces = (Piece("compute", 14.0, "#523c81", "70 %"), Piece("latency", 6.0, "#528940", "30 %"))
    scene = drawn(bars_chart("", [Bar("h100", pieces, "20 ms", interval=(15.0, 40.0))], unit="ms"))
    assert [mark.label for mark in scene.marks if isinstance(mark, Rect) and mark.height > 15] == ["70 %", ""]


def test_the_options_name_the_figures_and_styles():
    assert tuple(FIGURES) == options.FIGURES
    assert tuple(STYLES) == options.STYLES


def test_squares_fill_their_box_in_proportion():
    """Areas 6, 3 and 1 of a 20 x 10 box are 120, 60 and 20 square pixels."""
    box = Box(0, 0, 20, 10)
    places = squarified([6, 3, 1], box)
    areas = [(b.right - b.left) * (b.lower - b.upper) for b in places]
    assert areas == pytest.approx([120, 60, 20])
    assert all(place.inside(Box(-1e-9, -1e-9, 20 + 1e-9, 10 + 1e-9)) for place in places)
    for one, other in combinations(places, 2):
        assert min(one.right, other.right) - max(one.left, other.left) < 1e-9 or (
            min(one.lower, other.lower) - max(one.upper, other.upper) < 1e-9
        )


def test_a_flame_graph_is_as_wide_as_the_time_and_shares_its_scale():
    """Eager takes 187.48 us, inductor 172.90: the second graph is 0.922 as wide."""
    fused = make_fused()
    chart = flame_chart("tiny", module_trees(fused, fused.simulations[:2]), "time")
    roots = [mark for mark in drawn(chart).marks if isinstance(mark, Rect) and mark.label == "(whole step)"]
    assert roots[1].width / roots[0].width == pytest.approx(172.90 / 187.48, abs=2e-3)


def test_the_peak_of_memory_is_named():
    """The label stands for the moment of the record's peak, and says the phase."""
    (label,) = [mark.text for mark in drawn(PICTURES["memory"]()).marks
                if isinstance(mark, Text) and mark.text.startswith("peak")]  # fmt: skip
    peak_bytes = make_profile(gpus=(OLD,)).simulations[0].totals.peak_memory_bytes
    assert label.startswith(f"peak {size(peak_bytes)} in the ")
    assert ", at " in label
