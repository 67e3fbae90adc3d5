"""Drift of recorded runs: when a streak begins, what changed there, what is never compared. All times are made up."""

import csv
import gzip
import io
import json
import subprocess
from dataclasses import replace

import pytest

from memwall.bench.drift.finding import find_drift, left_scatter, outside_range
from memwall.bench.drift.page import DriftReport
from memwall.bench.drift.runs import checked_folder, keep, read_runs
from memwall.bench.origin import origin_of
from memwall.core.errors import UsageError
from memwall.report import render
from memwall.report.json_schema import schema_text
from tests.unit.measured_fixture import timing
from tests.unit.recorded_fixture import B, made, record


def drift_of(folder, **options):
    return find_drift(read_runs(folder)[0], **options)


def product(drift):
    (found,) = [kernel for kernel in drift.kernels if kernel.kernel == "mm"]
    return found


# -- streaks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("medians", "first"), [
    ([10, 10, 10, 12, 12, 12], 3),
    ([10, 12, 14], 1),  # it left at the second run, and did not come back
    ([12, 10, 10], 1),  # faster is drift too
    ([10, 12, 10], None),  # it came back
    ([10, 12, 10, 12, 12], None),  # 12 is within what the runs before span
    ([10, 12, 8], 2),  # below 9.8, the least that those before span
    ([10, 12, 8, 14], 3),  # the last streak is the one above
    ([10, 10.4], None),  # 9.8 to 10.2 meets 10.192 to 10.608
    ([10, 10.45], None),  # 10.241 is above 10.2, but 4.5 % are less than 5
    ([10, 10.6], 1),
    ([10], None),
])  # fmt: skip
def test_the_first_run_that_is_outside_of_all_before_and_stays_there(medians, first):
    assert left_scatter([timing(us) for us in medians], 1, 0.05) == first


def test_a_streak_that_began_before_is_not_looked_for():
    assert left_scatter([timing(us) for us in (10, 12, 12)], 2, 0.05) is None


def test_a_least_change_of_one_percent_finds_a_smaller_one():
    assert left_scatter([timing(us, spread=0.001) for us in (10, 10.2)], 1, 0.01) == 1


@pytest.mark.parametrize(("sides", "start", "first"), [
    ([0, 0, 1, 1], 0, 2), ([1, 1], 0, 0), ([1, 0], 0, None), ([1, -1], 0, 1), ([0, 1, 1], 2, None), ([], 0, None),
])  # fmt: skip
def test_the_last_runs_in_a_row_outside_of_the_modeled_range(sides, start, first):
    assert outside_range(sides, start) == first


# -- what is said ------------------------------------------------------------------------------------------------------


@pytest.fixture
def slower(tmp_path):
    """Four runs: from the third on a product takes 28 us in place of 25, since torch 2.12.0."""
    for day, us, torch in ((1, 25, "2.11.0"), (2, 25.2, "2.11.0"), (3, 28, "2.12.0"), (4, 28, "2.12.0")):
        record(tmp_path, day, us, torch=torch, commit=B if day > 2 else "a" * 40)
    return tmp_path


def test_a_kernel_that_got_slower_and_since_when(slower):
    drift = drift_of(slower)
    assert [kernel.kernel for kernel in drift.drifted] == ["mm"]
    found = product(drift)
    # the usual time is the median of 25 and 25.2; their intervals span 24.5 to 25.704
    assert found.usual_s == pytest.approx(25.1e-6)
    assert (found.usual_low_s, found.usual_high_s) == pytest.approx((24.5e-6, 25.704e-6))
    assert found.change == pytest.approx(0.1155, abs=1e-4)
    since = found.left_scatter
    assert (since.way, since.first, since.before) == ("slower", "2026-01-03T05:24:55Z", "2026-01-02T05:24:55Z")
    assert (since.commit, since.torch) == ("bbbbbbbbb", "2.12.0")
    assert since.changed == ("commit aaaaaaaaa -> bbbbbbbbb", "torch 2.11.0 -> 2.12.0")
    assert found.outside_range is None


def test_the_first_sentence_says_what_since_when_and_what_changed(slower):
    text = " ".join(render(DriftReport(drift_of(slower)), "text", width=200).split())
    assert (
        "1 of 6 kernels drifted; the longest, mm of tiny on Maker old 16GB, takes 1.12x its usual time since the run of"
        " 2026-01-03 05:24 at bbbbbbbbb with torch 2.12.0; changed there: commit aaaaaaaaa -> bbbbbbbbb, torch 2.11.0"
        " -> 2.12.0."
    ) in text


def test_those_that_take_longest_stand_first(tmp_path):
    # 4 products of 28 us and 1 optimizer's step of 120 us: 112 us are less than 120
    for day, mm, adamw in ((1, 25, 100), (2, 28, 120)):
        keep(_with("aten._fused_adamw_", adamw, made(day, mm)), tmp_path)
    assert [kernel.kernel for kernel in drift_of(tmp_path).drifted] == ["_fused_adamw_", "mm"]


def _with(name, us, profile):
    (measurement,) = profile.measurements
    end = {"median_s": us, "low_s": us * 0.98, "high_s": us * 1.02, "min_s": us * 0.9, "max_s": us * 1.5}
    took = {"samples": 30, **{key: value * 1e-6 for key, value in end.items()}}
    kernels = [{**k, "timing": took} if k["name"] == name else k for k in measurement["kernels"]]
    return replace(profile, measurements=({**measurement, "kernels": kernels},))


def test_a_kernel_that_left_its_modeled_range_within_its_scatter(tmp_path):
    record(tmp_path, 1, 25)
    record(tmp_path, 2, 25, range_us=(26, 30), memwall="0.2.0")  # 25.5 is below 26
    found = product(drift_of(tmp_path))
    assert found.left_scatter is None
    assert (found.drifted.way, found.drifted.first[:10]) == ("faster", "2026-01-02")
    assert found.drifted.changed == ("memwall none -> 0.2.0",)


def test_a_kernel_that_was_never_in_its_range_is_an_error_of_the_model(tmp_path):
    for day in (1, 2):
        record(tmp_path, day, 25, range_us=(10, 20))
    drift = drift_of(tmp_path)
    assert (drift.drifted, [kernel.kernel for kernel in drift.always_outside]) == ((), ["mm"])
    assert (
        "1 kernel lay outside of the modeled range in every run, an error of the model and no drift: mm."
        in " ".join(render(DriftReport(drift), "text").split())
    )


def test_a_record_without_a_range_is_outside_of_none(tmp_path):
    for day in (1, 2):
        profile = made(day, 25)
        (measurement,) = profile.measurements
        kernels = [{k: v for k, v in row.items() if not k.startswith("modeled_l")} for row in measurement["kernels"]]
        keep(replace(profile, measurements=({**measurement, "kernels": kernels},)), tmp_path)
    assert product(drift_of(tmp_path)).outside_range is None


def test_what_the_machine_did_is_among_what_changed(tmp_path):
    record(tmp_path, 1, 25, copy=0.8e12)
    record(tmp_path, 2, 32, copy=0.6e12, flags=("throttled: power cap",), changes=True)
    assert product(drift_of(tmp_path)).drifted.changed == (
        "commit aaaaaaaaa -> aaaaaaaaa with changes",
        "in doubt none -> throttled: power cap",
        "copy 800.00 GB/s -> 600.00 GB/s",
    )


def test_one_run_is_compared_with_nothing(tmp_path):
    record(tmp_path, 1, 25)
    text = " ".join(render(DriftReport(drift_of(tmp_path)), "text").split())
    assert "None of 6 kernels drifted; 6 of them have one run, which nothing is compared with." in text


def test_csv_has_all_kernels(slower):
    rows = list(csv.DictReader(io.StringIO(render(DriftReport(drift_of(slower)), "csv"))))
    assert len(rows) == 6
    assert [row["scatter_way"] for row in rows] == ["slower", "", "", "", "", ""]


def test_the_record_is_as_its_schema_says(slower):
    jsonschema = pytest.importorskip("jsonschema")
    found = json.loads(render(DriftReport(drift_of(slower)), "json"))
    jsonschema.validate(found, json.loads(schema_text("drift")))
    assert (found["schema"], found["runs"]) == ("memwall.drift/1", 4)


# -- what is compared --------------------------------------------------------------------------------------------------


def test_another_gpu_is_never_compared(tmp_path):
    record(tmp_path, 1, 25)
    record(tmp_path, 2, 50, device="Maker new 32GB")
    assert drift_of(tmp_path).drifted == ()


def test_other_inputs_are_never_compared(tmp_path):
    record(tmp_path, 1, 25)
    other = made(2, 50)
    workload = replace(other.workload, inputs=({"shape": [2048, 1024], "dtype": "float16"},))
    keep(replace(other, workload=workload), tmp_path)
    assert drift_of(tmp_path).drifted == ()


def test_only_the_workload_that_is_named(slower):
    other = made(5, 50)
    keep(replace(other, workload=replace(other.workload, name="large")), slower)
    assert {kernel.workload for kernel in drift_of(slower, workload="large").kernels} == {"large"}
    with pytest.raises(UsageError, match="no run of a workload named 'larg'; did you mean large"):
        drift_of(slower, workload="larg")


@pytest.mark.parametrize(("since", "drifts"), [
    ("2026-01-03", True), ("2026-01-04", False), ("bbbbbb", True), ("aaaa", True), ("2026-01-03T06:00:00+02:00", True),
])  # fmt: skip
def test_since_a_date_or_a_commit(slower, since, drifts):
    assert bool(drift_of(slower, since=since).drifted) is drifts


@pytest.mark.parametrize("since", ["yesterday", "--all", "cccccc", ""])
def test_since_what_is_neither(slower, since):
    with pytest.raises(UsageError, match="want one such as 2026-11-22, or the hash of a run's commit"):
        drift_of(slower, since=since)


def test_a_record_that_was_measured_again_is_no_second_run(slower):
    (first, *_) = sorted(slower.iterdir())
    (slower / "copy.json.gz").write_bytes(first.read_bytes())
    assert product(drift_of(slower)).runs == 4


def test_the_range_of_a_cpu_modeled_as_a_gpu_says_nothing(tmp_path):
    for day, us in ((1, 25), (2, 35)):
        profile = made(day, us)
        (measurement,) = profile.measurements
        keep(replace(profile, measurements=({**measurement, "kind": "cpu"},)), tmp_path)
    found = product(drift_of(tmp_path))
    assert (found.outside_range, found.left_scatter.way) == (None, "slower")


# -- the folder --------------------------------------------------------------------------------------------------------


def test_a_run_is_named_by_time_commit_and_workload(tmp_path):
    assert record(tmp_path / "runs", 1).name == "20260101T052455Z-aaaaaaaaa-tiny.json.gz"


def test_nothing_is_overwritten(tmp_path):
    names = {record(tmp_path, 1, us).name for us in (25, 26, 27)}
    stem = "20260101T052455Z-aaaaaaaaa-tiny"
    assert names == {f"{stem}.json.gz", f"{stem}-2.json.gz", f"{stem}-3.json.gz"}


def test_a_name_keeps_no_character_that_a_path_would_take(tmp_path):
    profile = made(1)
    path = keep(replace(profile, workload=replace(profile.workload, name="a/../b c")), tmp_path)
    assert path.parent == tmp_path and path.name.endswith("-a_.._b_c.json.gz")


def test_what_runs_cannot_be_kept_in_is_said_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="it is no folder"):
        checked_folder(tmp_path / "file")
    with pytest.raises(UsageError, match="there is no folder"):
        checked_folder(tmp_path / "a" / "b")


def test_a_line_names_each_file_that_is_no_run(slower):
    (slower / "a.json").write_text("{")
    (slower / "b.json.gz").write_bytes(gzip.compress(b'{"schema": "memwall.gate/1"}'))
    (slower / "notes.txt").write_text("mine")
    (slower / ".hidden").write_text("not looked at")
    found, refused = read_runs(slower)
    assert len(found) == 4
    assert ["a.json is not JSON" in refused[0], "b.json.gz is not a memwall.profile record" in refused[1]] == [True] * 2
    assert refused[2].endswith("notes.txt is no run: it does not end in .json or .json.gz")


@pytest.mark.parametrize("change", [{"time": None}, {"time": "yesterday"}])
def test_a_record_that_does_not_say_when_it_ran_is_no_run(tmp_path, change):
    made(1, **change).save(tmp_path / "old.json")
    with pytest.raises(UsageError, match=r"has no run; .*old.json is no run: it does not say when it was measured"):
        read_runs(tmp_path)


def test_folders_without_runs(tmp_path):
    with pytest.raises(UsageError, match="has no run; memwall measure TARGET --record FOLDER keeps one"):
        read_runs(tmp_path)
    with pytest.raises(UsageError, match="no such folder"):
        read_runs(tmp_path / "none")


# -- where a run comes from --------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path, monkeypatch):
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "net.py").write_text("one")
    own = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "net.py"], ["commit", "-qm", "one"]):
        subprocess.run([*own, *words], check=True)
    (tmp_path / "new.py").write_text("two")
    return tmp_path


def test_a_run_of_a_committed_file_has_its_commit(repository):
    head = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    found = origin_of(f"{repository}/net.py:model")
    assert (found["commit"], found["changes"]) == (head.stdout.strip(), False)


def test_a_changed_file_and_one_that_git_does_not_know_are_changes(repository):
    assert origin_of(f"{repository}/new.py")["changes"] is True
    (repository / "net.py").write_text("other")
    assert origin_of(f"{repository}/net.py")["changes"] is True


def test_outside_of_a_repository_and_of_a_saved_profile_there_is_no_commit(tmp_path, repository, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "commit" not in origin_of(made(1))
    assert "commit" not in origin_of(f"{repository}/saved.json")


# -- records as they may come ------------------------------------------------------------------------------------------


def edited(path, change):
    """A record with its kernels changed."""
    kept = json.loads(gzip.decompress(path.read_bytes()))
    change(kept["measurements"][0]["kernels"])
    path.write_bytes(gzip.compress(json.dumps(kept).encode()))


def test_a_kernel_that_the_latest_run_has_no_time_of_is_named(tmp_path):
    record(tmp_path, 1)
    edited(record(tmp_path, 2), lambda kernels: kernels.pop(0))
    drift = drift_of(tmp_path)
    assert drift.gone == ("mm of tiny",)
    text = render(DriftReport(drift), "text")
    assert "The latest run has no time of 1 kernel that the run before has: mm of tiny." in text


def test_a_kernel_that_comes_back_is_not_gone(tmp_path):
    edited(record(tmp_path, 1), lambda kernels: kernels.pop(0))
    record(tmp_path, 2)
    assert drift_of(tmp_path).gone == ()


def test_a_clock_of_zero_is_a_clock(tmp_path):
    edited(record(tmp_path, 1), lambda kernels: [kernel["sensors"].update(clock_hz=0.0) for kernel in kernels])
    record(tmp_path, 2, mm=50.0)
    assert "clock 0 Hz -> 1.40 GHz" in product(drift_of(tmp_path)).left_scatter.changed


def test_what_is_no_text_is_not_told(tmp_path):
    record(tmp_path, 1)
    record(tmp_path, 2, mm=50.0, torch=None, commit=7)
    left = product(drift_of(tmp_path)).left_scatter
    assert (left.torch, left.commit) == ("", "")


def test_a_long_condition_is_cut(tmp_path):
    record(tmp_path, 1)
    record(tmp_path, 2, mm=50.0, driver="x" * 10_000)
    assert max(map(len, product(drift_of(tmp_path)).left_scatter.changed)) < 100


def test_a_time_that_is_not_utc_is_refused_as_that(tmp_path):
    record(tmp_path, 1)
    record(tmp_path, 2, time="2026-01-02T05:24:55+02:00")
    _, (line,) = read_runs(tmp_path)
    assert line.endswith("is no run: it does not say when it was measured as 2026-11-22T05:24:55Z, in UTC")
