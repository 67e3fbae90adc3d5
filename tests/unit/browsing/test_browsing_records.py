"""A folder of records: what its list says of each, what it leaves out, and what a page may read."""

import gzip
import json
import os
import re

import pytest

from memwall.analysis.verdict import verdict
from memwall.browsing.page import RecordsReport
from memwall.browsing.run import RecordFolder
from memwall.core.errors import UsageError
from memwall.core.progress import listening
from memwall.record.format import outline
from memwall.report import render
from memwall.report.html import escape
from tests.unit.measured_fixture import make_measured
from tests.unit.report_fixture import NEW, OLD, make_profile

HISTORY = {
    "schema": "memwall.history/1", "commit": "1a2b3c4d5e6f", "date": "2026-11-22T05:24:55Z", "memwall_version": "0.1.0",
    "workload": "bert", "mode": "training", "gpu": "h100-sxm", "policy": "eager", "figures": {"time_s": 2e-3},
}  # fmt: skip


@pytest.fixture
def place(tmp_path):
    """Two profiles, a history, a file of another program and a record that is cut off, saved in this order."""
    make_profile(name="tiny").save(tmp_path / "a.json")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.json.gz").write_bytes(gzip.compress(make_profile((OLD,), 1, "short").to_json().encode()))
    (tmp_path / "bert.jsonl").write_text(json.dumps(HISTORY) + "\n")
    (tmp_path / "package.json").write_text('{"name": "web"}')
    (tmp_path / "cut.json").write_text('{"schema": "memwall.profile/1", "graph": {')
    for second, name in enumerate(("a.json", "deep/b.json.gz", "bert.jsonl", "package.json", "cut.json")):
        os.utime(tmp_path / name, (second, second))
    return tmp_path


def by_place(folder: RecordFolder) -> dict:
    return {record.place: record for record in folder.listed().records}


def test_the_newest_record_comes_first_and_other_files_are_counted(place):
    listed = RecordFolder(place).listed()
    assert [record.place for record in listed.records] == ["cut.json", "bert.jsonl", "deep/b.json.gz", "a.json"]
    assert listed.left_out == {"other JSON file": 1} and listed.whole


def test_a_profiles_line_has_its_target_gpus_policies_and_times(place):
    head = by_place(RecordFolder(place))["a.json"].headline
    assert (head.kind, head.name, head.target) == ("profile", "tiny, training, float16, batch 8", "tiny.py")
    assert (head.gpus, head.policies) == (("old", "new"), ("eager",))
    assert head.times_s == tuple(s.totals.time_s for s in make_profile().simulations)


def test_a_packed_record_is_read(place):
    assert by_place(RecordFolder(place))["deep/b.json.gz"].headline.name == "short, training, float16, batch 8"


def test_a_historys_line_is_that_of_its_last_commit(place):
    head = by_place(RecordFolder(place))["bert.jsonl"].headline
    assert (head.kind, head.name) == ("history", "bert: 1 commit")
    assert (head.times_s, head.made, head.commit) == ((2e-3,), "2026-11-22 05:24", "1a2b3c4d5e6f")


def test_a_measured_profiles_line_has_the_time_and_the_commit_of_its_run(tmp_path):
    ran = {"time": "2026-11-22T05:24:55+00:00", "commit": "1a2b3c4d5e6f"}
    make_measured(("eager",), environment=ran).save(tmp_path / "m.json")
    head = by_place(RecordFolder(tmp_path))["m.json"].headline
    assert (head.kind, head.made, head.commit) == ("measured profile", "2026-11-22 05:24", "1a2b3c4d5e6f")


def test_a_record_that_cannot_be_read_is_listed_with_one_line(place):
    record = by_place(RecordFolder(place))["cut.json"]
    assert record.headline is None
    assert record.error.startswith("cut.json is not JSON: ") and "\n" not in record.error
    page = render(RecordsReport(RecordFolder(place)), "html")
    assert "Records that cannot be read" in page and "cut.json is not JSON" in page


@pytest.mark.parametrize(("change", "said"), [
    ({"simulations": [{"gpu": 3}]}, "simulations[0].gpu"),
    ({"workload": []}, "workload"),
    ({"schema": "memwall.profile/7"}, "was written by a newer memwall"),
])  # fmt: skip
def test_what_is_wrong_with_a_line_is_named(place, change, said):
    record = json.loads((place / "a.json").read_text()) | change
    (place / "wrong.json").write_text(json.dumps(record))
    assert said in by_place(RecordFolder(place))["wrong.json"].error


def test_a_list_reads_no_kernel(place):
    """What is wrong inside of a graph is found by the page of the record, not by the list."""
    text = (place / "a.json").read_text()
    damaged = text.replace('"aten.mm"', "7", 1)
    assert damaged != text
    (place / "a.json").write_text(damaged)
    folder = RecordFolder(place)
    record = by_place(folder)["a.json"]
    assert record.error == "" and record.headline.name.startswith("tiny")
    with pytest.raises(UsageError, match=r"a\.json: record\.graph\.ops\[0\]"):
        folder.page(record.number)


def test_an_outline_keeps_what_stands_around_the_long_lists():
    profile = make_profile((NEW,))
    whole, kept = json.loads(profile.to_json()), json.loads(outline(profile.to_json()))
    assert kept["graph"]["ops"] == kept["graph"]["storages"] == [] and kept["graph"]["values"] == {}
    assert kept["simulations"][0]["kernels"] == []
    assert kept["simulations"][0]["totals"] == whole["simulations"][0]["totals"]
    assert {key: kept[key] for key in ("workload", "gpus", "capture")} == {
        key: whole[key] for key in ("workload", "gpus", "capture")
    }


def test_a_file_keeps_its_number_when_another_comes(place):
    folder = RecordFolder(place)
    before = {name: record.number for name, record in by_place(folder).items()}
    make_profile().save(place / "c.json")
    after = {name: record.number for name, record in by_place(folder).items()}
    assert {name: after[name] for name in before} == before and len({*after.values()}) == 5


def test_a_changed_file_is_read_again(place):
    folder = RecordFolder(place)
    folder.listed()
    make_profile(name="other").save(place / "a.json")
    assert by_place(folder)["a.json"].headline.name.startswith("other")


def test_links_are_left_out(place, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    make_profile(name="secret").save(outside / "secret.json")
    (place / "link.json").symlink_to(outside / "secret.json")
    (place / "folder").symlink_to(outside)
    listed = RecordFolder(place).listed()
    assert listed.left_out["link"] == 1
    assert not [record for record in listed.records if "secret" in f"{record.place} {record.headline}"]


def test_a_file_that_became_a_link_is_not_read(place, tmp_path_factory):
    folder = RecordFolder(place)
    number = by_place(folder)["a.json"].number
    outside = tmp_path_factory.mktemp("outside") / "secret.json"
    (place / "a.json").rename(outside)
    (place / "a.json").symlink_to(outside)
    with pytest.raises(UsageError, match=f"no record {number} "):
        folder.page(number)


def test_a_folder_of_a_file_that_became_a_link_is_not_read(place, tmp_path_factory):
    folder = RecordFolder(place)
    number = by_place(folder)["deep/b.json.gz"].number
    outside = tmp_path_factory.mktemp("outside") / "deep"
    (place / "deep").rename(outside)
    (place / "deep").symlink_to(outside)
    with pytest.raises(UsageError, match=f"no record {number} "):
        folder.page(number)


def test_older_records_than_a_list_has_are_counted(place, monkeypatch):
    monkeypatch.setattr("memwall.browsing.run.MOST_LISTED", 2)
    listed = RecordFolder(place).listed()
    assert [record.place for record in listed.records] == ["cut.json", "bert.jsonl"]
    assert listed.left_out == {"other JSON file": 1, "older file": 2}


def test_a_list_that_has_read_enough_names_the_others_and_the_next_one_reads_them(place, monkeypatch):
    size = (place / "a.json").stat().st_size
    monkeypatch.setattr("memwall.browsing.run.MOST_BYTES", size)
    folder = RecordFolder(place)
    first = by_place(folder)["a.json"]
    assert (first.headline, first.error) == (None, "")
    assert by_place(folder)["a.json"].headline is not None


def test_a_folder_with_too_many_files_is_searched_in_part(place, monkeypatch):
    monkeypatch.setattr("memwall.browsing.run.MOST_FILES", 3)
    assert not RecordFolder(place).listed().whole
    assert "not all were looked at" in render(RecordsReport(RecordFolder(place)), "html")


def test_hidden_folders_are_passed_but_for_the_one_with_the_last_profile(tmp_path):
    for name in (".memwall", ".git", "node_modules"):
        (tmp_path / name).mkdir()
        make_profile().save(tmp_path / name / "last.json")
    assert [*by_place(RecordFolder(tmp_path))] == [".memwall/last.json"]


def test_each_record_has_its_own_page(place):
    folder = RecordFolder(place)
    pages = {name: render(folder.page(r.number), "html") for name, r in by_place(folder).items() if not r.error}
    titles = {name: page.partition("<title>")[2].partition(" · ")[0] for name, page in pages.items()}
    assert titles == {"a.json": "tiny", "deep/b.json.gz": "short", "bert.jsonl": "History"}


def test_profiles_are_compared_in_the_order_asked_for(place):
    folder = RecordFolder(place)
    known = by_place(folder)
    asked = [known["deep/b.json.gz"].number, known["a.json"].number]
    assert folder.compared(asked).comparison.title == "short and tiny"
    with pytest.raises(UsageError, match="choose two to 5 profiles to compare, not 1"):
        folder.compared(asked[:1])


def test_what_is_no_profile_is_not_compared(place):
    folder = RecordFolder(place)
    known = by_place(folder)
    with pytest.raises(UsageError, match=r"bert\.jsonl is not a memwall\.profile record"):
        folder.compared([known["a.json"].number, known["bert.jsonl"].number])


def test_one_file_has_what_each_record_says_and_asks_no_server(place):
    page = render(RecordsReport(RecordFolder(place), whole=True), "html")
    (number,) = {record.number for record in RecordFolder(place).listed().records if record.place == "a.json"}
    assert f'href="#record-{number}"' in page and f'<h2>a.json</h2><a id="record-{number}"></a>' in page
    assert "record?n=" not in page and 'type="checkbox"' not in page
    profile = make_profile()
    told = re.sub('</?code>|<span class="kept">|</span>', "", page).replace("\N{NO-BREAK SPACE}", " ")
    assert escape(verdict(profile, profile.simulations[0]).text) in told


def test_the_contents_of_one_file_are_its_records(place):
    """Parts of records, which are called alike, are not among them."""
    page = render(RecordsReport(RecordFolder(place), whole=True), "html")
    contents = page.partition('<nav id="contents"')[2].partition("</nav>")[0]
    assert re.findall(r'">([^<]+)</a>', contents) == [
        "Records that cannot be read", "bert.jsonl", "deep/b.json.gz", "a.json",
    ]  # fmt: skip


def test_it_is_said_how_many_records_are_read(place):
    said: list[str] = []
    with listening(said.append):
        render(RecordsReport(RecordFolder(place), whole=True), "html")
    assert said[:2] == ["reading records, 0 of 3", "reading records, 1 of 3"]


def test_names_of_records_are_escaped(tmp_path):
    make_profile(name='<script>alert("x")</script>').save(tmp_path / "<b>.json")
    for whole in (False, True):
        page = render(RecordsReport(RecordFolder(tmp_path), whole=whole), "html")
        assert "<script>alert" not in page and "<b>" not in page and "&lt;b&gt;.json" in page


def test_an_empty_folder_says_what_writes_a_record(tmp_path):
    page = render(RecordsReport(RecordFolder(tmp_path)), "html")
    assert "0 records" in page and '<span class="kept"><code>-o</code> FILE.json' in page
