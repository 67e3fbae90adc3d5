"""What a tool answers of a report: its figures in base units, cut to a size."""

import json

import jsonschema
import pytest

from memwall.mcp_server.answer import MOST_BYTES, answer_of_report, compact, output_schema, size_of
from memwall.mcp_server.tools import TOOLS
from memwall.report.pages.profile import ProfileReport
from tests.unit.report_fixture import make_profile

HANDLE = "memwall://record/0123456789abcdef"


@pytest.fixture(scope="module")
def answer():
    return answer_of_report(ProfileReport(make_profile()), ["a note"], HANDLE, "memwall.profile/1")


def test_it_names_its_record(answer):
    assert (answer["record"], answer["record_schema"]) == (HANDLE, "memwall.profile/1")


def test_it_has_a_row_for_each_gpu(answer):
    made = make_profile()
    assert [row["gpu"] for row in answer["figures"]] == [each.gpu.name for each in made.simulations]


def test_a_figure_is_in_seconds_with_four_digits(answer):
    time_s = make_profile().simulations[0].totals.time_s
    assert answer["figures"][0]["time_s"] == float(f"{time_s:.3e}")


def test_the_longest_kernels_come_first(answer):
    times_s = [row["time_s"] for row in answer["details"]]
    assert times_s == sorted(times_s, reverse=True) and times_s


@pytest.mark.parametrize("count", [0, 1, 30, 1_000])
def test_it_is_cut_to_its_size_and_says_what_is_left_out(count):
    notes = [f"note {i} of what may not hold" for i in range(count)]
    cut = answer_of_report(ProfileReport(make_profile()), notes, HANDLE, "memwall.profile/1")
    assert size_of(cut) <= MOST_BYTES
    assert len(cut["notes"]) + cut["left_out"].get("notes", 0) == count


def test_a_text_that_alone_is_too_long_is_cut(monkeypatch):
    monkeypatch.setattr("memwall.mcp_server.answer._sentences", lambda page, is_whole: iter(["Wörter " * 1_000]))
    cut = answer_of_report(ProfileReport(make_profile()), [], HANDLE, "memwall.profile/1")
    assert size_of(cut) <= MOST_BYTES
    assert cut["answer"].endswith("...") and cut["left_out"]["answer"] > 5_000


def test_it_has_the_form_that_its_schema_says(answer):
    jsonschema.validate(answer, output_schema("ProfileReport"))


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_every_schema_of_an_answer_is_a_schema(tool):
    jsonschema.Draft202012Validator.check_schema(output_schema(tool.report))


def test_a_figure_of_a_schema_says_its_unit():
    figures = output_schema("ProfileReport")["properties"]["figures"]["items"]["properties"]
    assert figures["time_s"] == {"type": "number", "description": "modeled time, s"}


def test_json_has_no_spaces():
    assert compact({"a": [1, "ü"]}) == '{"a":[1,"ü"]}' and json.loads(compact({"a": 1})) == {"a": 1}
