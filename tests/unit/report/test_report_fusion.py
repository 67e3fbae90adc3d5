"""Reports of several policies: golden text, and what each kind shows."""

import csv
import io
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from memwall.analysis.savings import Missed, PolicyRow, Saving, Waterfall
from memwall.report import render
from memwall.report.figures.profile import waterfall_bars
from memwall.report.pages.fusion import BEYOND_NOTE, cut_name, missed_table, policies_table
from tests.unit.fused_fixture import MIB, make_fused
from tests.unit.report_fixture import NEW, OLD, make_profile


@pytest.fixture(scope="module")
def fused():
    return make_fused()


def test_text_of_several_policies(fused, golden):
    golden("policies.txt", render(fused, "text", width=110, top=3))


def test_markdown_of_several_policies(golden):
    golden("policies.md", render(make_fused(gpus=(OLD, NEW)), "md", top=3))


def test_each_gpu_has_one_block_and_details_of_the_first_policy_alone():
    text = render(make_fused(gpus=(OLD, NEW)), "text")
    assert text.count("Policies\n") == 2
    assert text.count("Op classes\n") == 2
    assert text.count("Groups by what they save\n") == 2
    assert "── old, eager" in text
    assert "── new, inductor: what fusion saves" in text
    assert "── Totals" not in text


@pytest.mark.parametrize("width", [100, 118])
def test_no_line_is_wider_than_the_page(fused, width):
    assert max(map(len, render(fused, "text", width=width).splitlines())) <= width


def test_the_sentence_says_what_is_won(fused):
    text = " ".join(render(fused, "text").split())
    # 2 x (4 MiB + 2 MiB of the norm's second pass) at 1 TB/s and two launches: 14.58 us of 187.48 us; 187.48 / 172.90
    assert "inductor saves 14.58 us of 187.48 us (1.08x, " in text
    assert "8.39 MB of DRAM traffic and 2 of 13 launches; 100.0 % of the saved time in blocks.*." in text


def test_a_policy_that_loses_is_said(fused):
    eager, worse, ideal = fused.simulations
    slow = replace(worse, totals=replace(worse.totals, time_s=eager.totals.time_s + 2e-6))
    text = " ".join(render(fused.with_simulations((eager, slow, ideal)), "text").split())
    assert "inductor saves no time on old: 2.00 us more than eager; it saves " in text


def test_one_policy_reports_as_before():
    profile = make_profile()
    for kind in ("text", "md", "html", "csv"):
        assert "what fusion saves" not in render(profile, kind), kind
        assert "saved_bytes" not in render(profile, kind), kind


def test_the_csv_says_what_each_kernel_replaces(fused):
    rows = list(csv.DictReader(io.StringIO(render(fused, "csv"))))
    assert len(rows) == 12 + 10 + 5  # the two pairs are one kernel each; four products and the attention
    (first, second) = [row for row in rows if row["policy"] == "inductor" and row["ops"] == "2"]
    assert (first["launches"], first["eager_launches"]) == ("1", "2")
    assert int(first["eager_bytes"]) == 8 * MIB
    assert int(second["saved_bytes"]) == 4 * MIB
    assert {row["saved_bytes"] for row in rows if row["policy"] == "eager"} == {"0"}


def test_the_page_shows_the_policies_and_the_waterfall(fused):
    page = render(fused, "html")
    assert "<h2>What fusion saves</h2>" in page
    fall = re.search(r'<svg class="chart wide"[^>]*aria-label="old, inductor: what each.*?</svg>', page, re.DOTALL)[0]
    titles = re.findall(r"<title>([^<]*)</title>", fall)
    assert titles == ["eager 187.48", "gelu + native_layer_norm x2 −14.58", "inductor 172.90"]
    assert "time per step, us" in fall
    assert page.count("<script") == 2


def test_a_hostile_name_is_inert_on_the_page():
    page = render(make_fused(gpus=(OLD, NEW)), "html")
    assert "<script>alert" not in page


def test_the_picture_of_several_policies(fused):
    assert render(fused, "png").startswith(b"\x89PNG")
    svg = render(fused, "svg")
    ET.fromstring(svg)
    assert svg == render(fused, "svg")
    # an arrow from where each block's GELU and layer norm run eagerly to their fused kernel
    assert "its ops run eagerly, → fused" in svg


FALL = Waterfall(
    100e-3,
    (
        Saving("a + b", "m.*", "forward", "elementwise", 3, 2, 6, 3, 0, 0, 40e-3, 10e-3),
        Saving("c", "", "forward", "reduction", 1, 1, 1, 1, 0, 0, 5e-3, 0.0),
    ),
    -2e-3, 67e-3, 50e-3,
)  # fmt: skip


def test_bars_begin_where_the_last_one_ended():
    rows = waterfall_bars(FALL, "memwall")
    pieces = [piece for row in rows for piece in row.pieces]
    assert [row.label for row in rows] == ["eager", "a + b x3", "c", "all others", "memwall"]
    assert [row.text for row in rows] == ["100.00", "−30.00", "−5.00", "+2.00", "67.00"]
    assert [piece.name for piece in pieces] == ["", "elementwise", "reduction", "slower", ""]
    assert [piece.start for piece in pieces] == pytest.approx([0, 100, 70, 65, 0])
    assert [piece.value for piece in pieces] == pytest.approx([100, -30, -5, 2, 67])


def test_a_long_name_is_cut():
    name = " + ".join("abcdefgh")
    assert cut_name(name) == "a + b + c + d + e + f + 2 more"
    assert cut_name("a + b") == "a + b"


def test_missed_fusions_name_their_rule():
    rows = [Missed("mm", "gelu", "layers.*", "forward", "contraction without epilogue", "no epilogue", 24, 10**9, 1e-3)]
    table = missed_table(rows)
    assert table.rows == (
        ("mm", "gelu", "x24", "layers.*", "1.000", "1.000", "contraction without epilogue", "no epilogue"),
    )


def test_more_than_ideal_saves_is_explained():
    def row(policy, score):
        return PolicyRow(policy, 1e-3, 1.0, 5, 10**6, 0, 1.0, score, 0.1, 10**6, True)

    assert BEYOND_NOTE not in policies_table([row("inductor", 0.9), row("ideal", 1.0)]).note
    assert BEYOND_NOTE in policies_table([row("inductor", 1.08), row("ideal", 1.0)]).note
