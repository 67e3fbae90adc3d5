"""The driver of ``make gpu``: the files that it writes, and that it writes none without a GPU. Times are made up."""

import csv
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from memwall.analysis.validation import COLUMNS
from memwall.bench.accuracy import score_files
from memwall.bench.kernels import Interrupted
from memwall.core.errors import MissingError
from memwall.hardware.lookup import load_gpu
from reports import measured_report
from reports.measured_report import Report, main, measure_all
from tests.unit.measured_fixture import make_measured

GPU = load_gpu("h100-sxm")


@pytest.fixture
def profile():
    return make_measured()


def test_what_is_written_is_read_back(profile, tmp_path):
    report = Report(GPU, tmp_path, ["a note"], [profile])
    report.write()
    place = tmp_path / "profiles" / "measured" / "h100-sxm"
    record = json.loads((place / "measured.json").read_text())
    assert (record["schema"], record["gpu"], record["notes"]) == ("memwall.measured/1", "h100-sxm", ["a note"])
    assert record["workloads"][0]["measurements"] == list(profile.measurements)
    with (place / "rows.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == sum(len(m["kernels"]) for m in profile.measurements)
    assert score_files([place / "rows.csv"]).rows
    text = (tmp_path / "reports" / "measured_h100-sxm.md").read_text()
    assert "- a note" in text
    for measurement in profile.measurements:
        assert f"| {profile.workload.name} | {profile.workload.mode} | {measurement['executor']} |" in text


def test_the_layer_stands_beside_the_paper(profile, tmp_path):
    steps = {"eager": 3.0, "generated": 2.0}
    timing = {"low_s": 1.0, "high_s": 9.0, "samples": 3, "min_s": 1.0, "max_s": 9.0}
    wholes = {"eager": {"timing": {"median_s": 4.2}}, "torch.compile": {"timing": {"median_s": 3.0}}}
    found = [
        {**m, "step": {**timing, "median_s": steps[m["executor"]]}, "environment": {"module_step": wholes}}
        for m in profile.measurements
        if m["executor"] in steps
    ]
    layer = replace(
        profile, workload=replace(profile.workload, name="bert_layer", mode="training"), measurements=tuple(found)
    )
    Report(GPU, tmp_path, [], [layer]).write()
    text = (tmp_path / "reports" / "measured_h100-sxm.md").read_text()
    assert {m["executor"] for m in found} == set(steps)
    assert "against eager in one: 1.50x" in text  # 3 / 2
    assert "torch.compile(model) against the eager model, launched from Python: 1.40x" in text  # 4.2 / 3
    assert "on a V100: 1.30x" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_nothing_is_written(tmp_path, capsys):
    assert main(["--folder", str(tmp_path)]) == 3
    assert list(tmp_path.iterdir()) == []
    said = capsys.readouterr().err
    assert "no CUDA device" in said and said.count("\n") == 1


def test_records_of_several_runs_make_one_report(profile, tmp_path):
    """The later of two records of a workload counts."""
    first, second = tmp_path / "first", tmp_path / "second"
    old = replace(profile, measurements=())
    layer = replace(profile, workload=replace(profile.workload, name="bert_layer", mode="inference"))
    for folder, record in ((first, old), (first, layer), (second, profile)):
        Report(GPU, folder).save(record)
    folders = [str(folder / "build" / "measured") for folder in (first, second)]
    assert main(["--join", *folders, "--gpu", "h100-sxm", "--folder", str(tmp_path), "--note", "two runs"]) == 0
    record = json.loads((tmp_path / "profiles/measured/h100-sxm/measured.json").read_text())
    assert record["notes"] == ["two runs"]
    assert [w["workload"] for w in record["workloads"]] == ["bert_layer", profile.workload.name]
    assert all(w["measurements"] for w in record["workloads"])


def test_no_record_to_join_is_one_line(tmp_path, capsys):
    assert main(["--join", str(tmp_path), "--gpu", "h100-sxm", "--folder", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not list(tmp_path.iterdir())


class Now:
    """A pool that traces when it is asked to, and workers that do nothing."""

    def __init__(self, *args, **options):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    compile_ahead = __exit__

    def begin(self, names, setup):
        return dict.fromkeys(names, SimpleNamespace(ask=lambda *question: None))

    def submit(self, function, *args):
        from concurrent.futures import Future

        future = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture
def alone(monkeypatch, profile):
    """The driver with nothing behind it: tracing gives the fixture, measuring what the test says."""
    monkeypatch.setattr(measured_report, "ProcessPoolExecutor", Now)
    monkeypatch.setattr(measured_report, "WorkerPool", Now)
    monkeypatch.setattr(measured_report, "trace", lambda *args: profile)
    monkeypatch.setattr(measured_report, "calibrate", lambda *args: "calibration: none")
    clock = [0.0]
    monkeypatch.setattr(measured_report.time, "monotonic", lambda: clock[0])
    return clock


def test_the_time_is_shared_out_and_what_was_not_reached_is_named(alone, monkeypatch, profile, tmp_path):
    limits = []

    def measure(traced, *, time_limit_s, **options):
        limits.append(time_limit_s)
        alone[0] += 10.0 if len(limits) == 1 else 50.0  # the first is quick, the second overruns
        return profile

    monkeypatch.setattr(measured_report, "measure", measure)
    report = Report(GPU, tmp_path)
    wanted = [("bert_layer", "training"), ("resnet50", "inference"), ("dlrm", "training")]
    measure_all(report, wanted, 60.0, tests=False, calibration=True, records=None)
    # steps have three shares: 60 · 3 / 7, then 50 · 3 / 4; nothing is left for the third
    assert limits == pytest.approx([180 / 7, 37.5])
    assert report.notes[-1] == "not reached: dlrm training"
    assert len(json.loads((tmp_path / "profiles/measured/h100-sxm/measured.json").read_text())["workloads"]) == 2


def test_a_workload_that_fails_is_noted_and_an_interrupt_keeps_what_there_is(alone, monkeypatch, profile, tmp_path):
    answers = iter([MissingError("no room"), RuntimeError("odd\nmore"), profile, Interrupted(profile)])

    def measure(traced, **options):
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(measured_report, "measure", measure)
    report = Report(GPU, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        measure_all(
            report,
            [("unet", "training"), ("unet", "inference"), ("dlrm", "training"), ("vit_l16", "training")],
            60.0,
            tests=False,
            calibration=True,
            records=None,
        )
    record = json.loads((tmp_path / "profiles/measured/h100-sxm/measured.json").read_text())
    assert record["notes"][1:] == [
        "unet training: no room",
        "unet inference: RuntimeError: odd",
        "interrupted in vit_l16 training",
    ]
    assert len(record["workloads"]) == 2
