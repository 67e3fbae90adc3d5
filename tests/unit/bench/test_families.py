"""The campaign over small modules: what they are, the files that it writes, and that a cut run goes on."""

from __future__ import annotations

import csv
from typing import ClassVar

import pytest

import memwall
from benchmarks import families
from benchmarks.families import COLUMNS, Campaign, Timer, main, pack
from benchmarks.family_modules import FAMILIES, MOST_ELEMENTS, cases
from memwall.analysis.accuracy import score_files

FIRST = {case.family: case for case in reversed(cases())}


def test_there_are_five_hundred_modules_of_all_families():
    every = cases()
    assert len({case.name for case in every}) == len(every) >= 500
    assert {case.family for case in every} == set(FAMILIES)
    assert {case.family for case in every[:120]} == set(FAMILIES)  # a run that is cut has something of each
    assert {case.mode for case in every} == {"forward", "training"}
    for case in every:
        for shape in case.shapes:
            count = 1
            for size in shape:
                count *= size
            assert count <= MOST_ELEMENTS


@pytest.mark.parametrize("family", FAMILIES)
def test_a_module_of_each_family_is_traced(family):
    case = FIRST[family]
    profile = memwall.profile(case.workload(), gpu="h100-sxm", mode=case.mode)
    assert profile.workload.name == case.name
    assert not profile.coverage.unmodeled


def test_each_is_a_target_of_the_command_line():
    name = FIRST["pool"].name
    profile = memwall.profile(f"{families.ROOT}/benchmarks/family_modules.py:{name}", mode="training")
    assert profile.workload.name == name


class Scripted:
    """A worker that gives times, and fails where it is told."""

    asked: ClassVar[list[tuple[str, str]]] = []
    fails = ""

    def __init__(self, kind):
        pass

    def ask(self, name, way, otherwise=""):
        self.asked.append((name, way))
        return "took longer than its limit of 60 s" if name == self.fails else [0.001, 0.002, 0.003]

    def close(self):
        pass


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(families, "_Worker", Scripted)
    monkeypatch.setattr(Scripted, "asked", [])
    return Scripted


def rows_of(campaign):
    with campaign.table.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_rows_are_read_back_and_a_second_run_times_what_is_missing(scripted, tmp_path, monkeypatch):
    wanted = [FIRST["pool"], FIRST["loss"]]
    monkeypatch.setattr(scripted, "fails", wanted[1].name)
    campaign = Campaign("cuda", "h100-sxm", tmp_path, wanted)
    campaign.run(60.0)
    rows = rows_of(campaign)
    assert tuple(rows[0]) == COLUMNS
    assert [row["way"] for row in rows] == list(families.WAYS)
    assert {row["module"] for row in rows} == {wanted[0].name}
    assert (rows[0]["mean_ms"], rows[0]["std_ms"], rows[0]["trials"]) == ("2", "1", "3")
    assert campaign.failed.read_text().splitlines()[0].startswith(f"{wanted[1].name} eager took longer")
    scored = score_files([campaign.table])
    assert [row.measured_s for row in scored.rows] == [0.002] * 3  # eager, in a queue, in a graph

    with campaign.table.open("a") as lines:
        lines.write("h100-sxm,eager,half of a r")  # it was cut within a row
    scripted.asked.clear()
    Campaign("cuda", "h100-sxm", tmp_path, [*wanted, FIRST["scan"]]).run(60.0)
    assert {name for name, _ in scripted.asked} == {FIRST["scan"].name}
    assert len(rows_of(campaign)) == 2 * len(families.WAYS)


def test_a_module_is_timed_on_this_cpu():
    name = next(case.name for case in cases() if case.expression == "nn.AvgPool2d(2, stride=2)")
    assert len(Timer()("cpu", name, "eager")) >= 3


def test_the_archive_holds_a_profile_of_each(tmp_path):
    pack(tmp_path / "some_records.tar.xz", [FIRST["pool"]], "h100-sxm")
    name = FIRST["pool"].name
    (tmp_path / "some_times.csv").write_text(f"{','.join(COLUMNS)}\nh100-sxm,eager,{name},1,0,1,1,3\n")
    (scored,) = score_files([tmp_path / "some_times.csv"]).rows
    assert scored.measured_s == 0.001


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [(["--only", "nothing"], 2, "no module named nothing"), (["--device", "cuda"], 3, "no CUDA device here")],
)
def test_bad_input_is_one_line_and_writes_nothing(arguments, code, said, capsys, tmp_path):
    assert main([*arguments, "--folder", str(tmp_path)]) == code
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
