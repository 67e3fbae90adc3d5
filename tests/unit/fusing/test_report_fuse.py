"""The page of ``memwall fuse``: a golden file of the made-up profile with a made-up capture."""

import json
from dataclasses import replace

import pytest

from memwall.analysis.whatif import parse_change
from memwall.core.errors import UsageError
from memwall.core.structure import read, write
from memwall.fusing.page import FusedReport
from memwall.fusing.run import fuse, fused, refused_by_rule
from memwall.fusion import Plan, Refusal
from memwall.record.capture import Break, Capture, Guard, PartialGraph, Recompile
from memwall.record.traced import Traced
from memwall.report import render
from tests.unit.report_fixture import NEW, OLD, make_profile

POLICIES = ("eager", "memwall", "ideal")
CHANGES = [parse_change("dram_bytes_per_s*=2"), parse_change("fuse:blocks.*")]


def made_up_capture(profile) -> Capture:
    """Broken after op 1, the GELU of the first block; the optimizer and the backward products in no graph."""
    count = len(profile.graph.ops)
    regions = (0, 0, *(1,) * 7, *(-1,) * (count - 9))
    stop = Break("print", "a call of print", "tiny.py", 7, "print(x)", "forward", 2, 1, (1,))
    return Capture(
        graphs=(PartialGraph(0, 2, 0), PartialGraph(1, 7, 0)),
        captures=2,
        breaks=(stop,),
        guard_kinds={"CONSTANT_MATCH": 3, "TENSOR_MATCH": 1},
        guards=(Guard("x", "TENSOR_MATCH", "float16[1024, 1024]"),),
        recompiles=(Recompile(("float16[8, 1024]",), 2, ("x: 1024 became 8",), ("dimension 0 of x",)),),
        regions=regions,
        notes=("a note",),
    )


@pytest.fixture(scope="module")
def found():
    profile = make_profile(gpus=(OLD,))
    return fused(profile.with_facts(dynamo=made_up_capture(profile)), POLICIES, changes=CHANGES)


def test_the_page(found, golden):
    golden("fuse.txt", render(FusedReport(found), "text", width=118))


def test_markdown_says_the_same(found):
    text = render(FusedReport(found), "md")
    assert "## old, memwall: groups and refusals" in text
    assert "### Graph breaks and their price on old" in text
    assert "| tiny.py:7 | x2 | 1 |" in text


def test_a_narrow_page_keeps_its_numbers(found):
    wide = render(FusedReport(found), "text", width=118)
    narrow = render(FusedReport(found), "text", width=80)
    assert max(map(len, narrow.splitlines())) <= 118
    saved = next(line.split()[1] for line in wide.splitlines() if line.startswith("  memwall "))
    assert any(line.split()[1:2] == [saved] for line in narrow.splitlines() if line.startswith("  memwall "))


def test_only_so_many_groups_are_listed(found):
    """The made-up step has more than one group that saves: with one listed, the others are counted."""
    assert " in sum; " in render(FusedReport(found, top=1), "text")
    assert " in sum; " not in render(FusedReport(found), "text")


@pytest.mark.defect("30")
def test_the_html_page_has_the_tables_and_a_picture_for_each_policy(found):
    """Fuse alone of all commands with a page had no HTML."""
    page = render(FusedReport(found), "html")
    text = render(FusedReport(found), "md")
    headings = [line.lstrip("# ") for line in text.splitlines() if line.startswith("## ")]
    assert headings and all(f"{heading}</h2>" in page for heading in headings)
    assert "tiny.py:7" in page
    assert "memwall on old: what each fused group saves" in page  # neither eager nor ideal has groups to draw


@pytest.mark.defect("30")
@pytest.mark.parametrize("top", [None, 1, 40])
def test_breaks_are_listed_beside_whatever_was_asked_for(found, top):
    """The lines of what was asked for counted against the brief text, so that --top N drove out the table of breaks,
    and a page without it listed one of two."""
    stop = found.capture.breaks[0]
    two = replace(found.capture, breaks=(stop, replace(stop, line=9, after_op=3, cuts=(3,))))
    again = fused(make_profile(gpus=(OLD, NEW)).with_facts(dynamo=two), POLICIES, changes=CHANGES)
    text = render(FusedReport(again, brief=True, top=top), "text", width=118)
    assert "tiny.py:7" in text and "tiny.py:9" in text
    assert text.count("All breaks together") == 2  # on each GPU
    heads = text[: text.index("tiny.py:7", text.index("Graph breaks"))].splitlines()[-5:]
    assert any("old" in head and "new" in head for head in heads)  # what each costs, too


def test_a_capture_comes_back_from_its_record():
    profile = make_profile()
    capture = made_up_capture(profile)
    record = json.loads(json.dumps(write(Traced(dynamo=capture))))
    assert read(Traced, record) == Traced(dynamo=capture)
    assert record["dynamo"]["guards_left_out"] == capture.guards_left_out


def test_refusals_are_summed_by_rule_with_their_counts():
    refusals = (
        Refusal("shape change", "a", 0, 1, 100, 1e-6),
        Refusal("phase", "b", 1, 2, 10, 1e-7, count=24),
        Refusal("shape change", "c", 2, 3, 50, 5e-7),
    )
    rows = refused_by_rule(Plan("memwall", (), refusals))
    assert [(r.rule, r.count, r.saved_bytes) for r in rows] == [("phase", 24, 240), ("shape change", 2, 150)]
    assert rows[0].saved_s == pytest.approx(2.4e-6)
    assert rows[1].saved_s == pytest.approx(1.5e-6)
    assert [r.reason for r in rows] == ["b", "a"]  # 24 x 0.1 us; 1 us is more than 0.5 us


def test_policies_of_several_gpus():
    found = fused(make_profile(gpus=(OLD, NEW)), ("eager", "memwall"))
    assert [(s.gpu.name, s.policy) for s in found.profile.simulations] == [
        ("old", "eager"), ("old", "memwall"), ("new", "eager"), ("new", "memwall"),
    ]  # fmt: skip
    record = found.to_dict()
    assert [gpu["gpu"] for gpu in record["gpus"]] == ["old", "new"]
    assert json.loads(json.dumps(record)) == record


def test_an_unknown_kind_is_refused(found):
    with pytest.raises(UsageError, match="a fusion report has no 'csv' form"):
        render(FusedReport(found), "csv")


def test_a_profile_takes_no_inputs():
    with pytest.raises(UsageError, match="inputs says how to trace, and tiny is traced already"):
        fuse(make_profile(), inputs=())
