"""Reports of what was measured: loud errors first, every kind of file, marks joined to where the model put a kernel."""

import copy
import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memwall.analysis.validation import COLUMNS
from memwall.core.errors import UsageError
from memwall.record.profile import Profile
from memwall.report import render
from memwall.report.figures.profile import schedule_roofline
from memwall.report.figures.roofline import roofline_charts
from memwall.report.figures.scene import drawn
from memwall.report.pages.profile import MeasuredReport
from tests.unit.fused_fixture import MIB
from tests.unit.measured_fixture import make_measured
from tests.unit.report_fixture import make_profile


@pytest.fixture(scope="module")
def profile():
    return make_measured()


def render_measured(profile, **options):
    return render(MeasuredReport(profile, **options), "text")


def changed(profile, **changes):
    """The profile with another first measurement."""
    first = {**copy.deepcopy(profile.measurements[0]), **changes}
    return replace(profile, measurements=(first, *profile.measurements[1:]))


def test_the_page_and_markdown(profile, golden):
    golden("measured.txt", render_measured(profile))
    golden("measured.md", render(MeasuredReport(profile), "md"))


def line_of(text, *starts):
    """Words of the first line that begins so."""
    return next(line.split() for line in text.splitlines() if line.split()[: len(starts)] == list(starts))


def test_figures_by_hand(profile):
    text = render_measured(profile)
    # 182.29 us modeled of 248 us measured is -26.5 %
    assert line_of(text, "eager", "11/12")[2:5] == ["182.29", "248.00", "-26.5"]
    # 22.47 us of 25 us: -10.1 %; 21.47 of 25: 85.9 %; 6.29 MB in 25 us are 251.7 GB/s: 31.5 % of 800 GB/s
    row = line_of(text, "mm", "x4", "blocks.*.proj", "float16")
    assert row[-7:] == ["22.47", "25.00", "2.0", "40.3", "-10.1", "85.9", "31.5"]
    assert line_of(text, "generated", "/", "inductor")[3:8] == ["2", "12.40", "15.00", "1.21x", "1.12x"]


def test_what_is_wrong_comes_first(profile):
    record = copy.deepcopy(profile.measurements[0])
    record["kernels"][0]["sensors"]["flags"] = ["thermal throttle"]
    text = render_measured(replace(profile, measurements=(record | {"complete": False},)))
    violation, doubt = (
        "1 kernel was measured faster than the roofline bound allows",
        "IN DOUBT, eager: thermal throttle (1 of 7",
    )
    said = (violation, doubt, "CUT SHORT, eager", "Executors")
    places = [text.index(words) for words in said]
    assert places == sorted(places)


def test_without_violations_nothing_is_said_of_them(profile):
    generated = replace(profile, measurements=profile.measurements[2:])
    assert "model error" not in render_measured(generated)
    assert "IN DOUBT" not in render_measured(generated)


def test_what_was_lost_is_listed_with_its_reason(profile):
    assert line_of(render_measured(profile), "failed")[1:] == ["1", "4.194", "no", "operator", "of", "that", "name"]


def test_a_step_that_was_not_timed_says_why(profile):
    text = render_measured(changed(profile, step=None, step_reason="does not fit in memory"))
    assert re.search(r"no eager step +does not fit in memory", text)


def test_nothing_measured_is_said():
    assert "Nothing was measured." in render_measured(make_profile())


def test_only_so_many_kernels_are_listed(profile):
    text = render_measured(profile, top=2)
    assert "and 4 more rows; xN" in text  # eager timed six


def test_hostile_names_are_inert(profile):
    text = render_measured(changed(profile, device="a\x1b[31m\nb|<script>"))
    assert "\x1b" not in text
    assert "a b|<script>" in text
    page = render(changed(profile, device="<script>alert(2)</script>"), "html")
    assert "<script>alert" not in page


def test_a_report_holds_it_before_the_totals(profile):
    text = render(profile, "text")
    assert text.index("Measured on") < text.index("Op classes")
    assert "Measured on" not in render(make_profile(), "text")
    assert "## Measured on Maker old 16GB, modeled as old" in render(profile, "md")


ODD = st.one_of(st.none(), st.booleans(), st.integers(-2, 3), st.floats(), st.text(max_size=4), st.just([]),
                st.just({}), st.just(10**30), st.just(1e-320), st.just([999]))  # fmt: skip


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), value=ODD)
def test_whatever_is_loaded_can_be_rendered(profile, data, value):
    record = copy.deepcopy(profile.to_dict())
    measurement = data.draw(st.sampled_from(record["measurements"]))
    kernel = data.draw(st.sampled_from(measurement["kernels"]))
    where = data.draw(st.sampled_from([measurement, kernel, kernel.get("timing", kernel), measurement["step"]]))
    where[data.draw(st.sampled_from(sorted(where)))] = value
    try:
        loaded = Profile.from_dict(record)
    except UsageError as error:
        assert "\n" not in str(error)
        return
    for kind in ("text", "csv", "html", "json"):
        assert render(loaded, kind)


def test_csv_has_a_row_for_each_measured_kernel(profile):
    found = list(csv.DictReader(io.StringIO(render(profile, "csv"))))
    assert tuple(found[0]) == COLUMNS
    assert len(found) == 19
    assert float(found[0]["measured_s"]) == pytest.approx(25e-6)


def test_parquet_has_the_same_rows(profile):
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(io.BytesIO(render(profile, "parquet")))
    assert tuple(frame.columns) == COLUMNS
    assert frame.measured_s.notna().sum() == 6 + 5 + 2


def test_json_is_the_record_with_the_sums(profile):
    record = json.loads(render(profile, "json"))
    assert record["schema"] == "memwall.profile/1"
    assert len(record["measurements"]) == 3
    assert record["measured"][0]["runs"][0]["measured_s"] == pytest.approx(248e-6)
    assert "measured" not in json.loads(render(make_profile(), "json"))


def measured_spots(profile, policy):
    """The marks of measured kernels on a roofline."""
    spots = schedule_roofline(profile, profile.simulation("old", policy)).spots
    return [spot for spot in spots if spot.shape != "circle"]


def test_a_line_joins_a_measured_product_to_its_modeled_place(profile):
    """2^31 FLOP and 6 MiB: 341.3 FLOP/B; 25 us measured, 22.47483648 modeled."""
    spots = measured_spots(profile, "eager")
    assert len(spots) == 6  # every kernel that eager timed does FLOPs
    (mm,) = [spot for spot in spots if spot.x == pytest.approx(2**31 / (6 * MIB))]
    assert mm.tail == pytest.approx((mm.x, 2**31 / 22.47483648e-6))
    assert mm.y == pytest.approx(2**31 / 25e-6)
    assert not mm.hollow


def test_the_legend_names_the_executors(profile):
    def named(profile, policy):
        entries = schedule_roofline(profile, profile.simulation("old", policy)).legend
        return [text for text, _, _ in entries if text.startswith("measured")]

    assert named(profile, "eager") == ["measured, eager"]
    assert named(profile, "memwall") == ["measured, inductor", "measured, generated"]
    assert named(make_profile(), "eager") == []


def test_slow_kernels_stay_on_the_axes(profile):
    """A product that took a second stands at 2.1 GFLOP/s, far below what was modeled."""
    record = copy.deepcopy(profile.measurements[0])
    mm = record["kernels"][0]
    mm["timing"] |= {"median_s": 1.0, "low_s": 1.0, "high_s": 1.0, "min_s": 1.0, "max_s": 1.0}
    slow = replace(profile, measurements=(record,))
    roofline = schedule_roofline(slow, slow.simulation("old", "eager"))
    assert any(spot.y == pytest.approx(2**31) for spot in roofline.spots)
    (chart,) = roofline_charts([roofline])
    (slow_mark,) = [mark for mark in drawn(chart).marks if "measured 1.00 s" in getattr(mark, "title", "")]
    assert slow_mark.shape == "square"  # no arrowhead at the edge


def test_pictures_are_whole_and_the_same_each_time(profile):
    svg = render(profile, "svg")
    ET.fromstring(svg)
    assert svg == render(profile, "svg")
    assert svg != render(replace(profile, measurements=()), "svg")


def test_every_measured_policy_gets_its_roofline(profile):
    """Without measurements only the fused policy has one."""
    svg = render(profile, "svg")
    assert svg.count("modeled FLOP/s") == 2
    assert render(replace(profile, measurements=()), "svg").count("modeled FLOP/s") == 1


def test_html_shows_the_tables_and_holds_the_points(profile):
    page = render(profile, "html")
    assert "Measured on Maker old 16GB, modeled as old" in page
    assert "2 kernels were measured faster than the roofline bound allows" in page
    assert page == render(profile, "html")
    rooflines = re.findall(r'<svg class="chart wide"[^>]*roofline"[^>]*>.*?</svg>', page, re.DOTALL)
    assert len(rooflines) == 2
    assert rooflines[0].count(", eager: measured ") == 6
    assert "mm, eager: measured 25.00 us, modeled 22.47 us" in rooflines[0]
    assert "inductor: measured" in rooflines[1] and "generated: measured" in rooflines[1]
