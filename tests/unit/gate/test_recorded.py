"""Recorded runs as evidence of a gate: which decide over the model, which are shown only. All times are made up."""

import json
import subprocess
from dataclasses import replace

import pytest

from memwall.bench.drift.runs import keep, read_runs
from memwall.cli import main
from memwall.core.errors import UsageError
from memwall.gate.page import GateReport
from memwall.gate.recorded import RunEvidence
from memwall.gate.result import Check, GateResult
from memwall.report import render
from tests.unit.measured_fixture import make_measured
from tests.unit.recorded_fixture import A, B, record
from tests.unit.report_fixture import OLD, make_profile

#: a step of 2 ms, its interval 1.96 to 2.04 ms
STEP = {"median_s": 2e-3, "low_s": 1.96e-3, "high_s": 2.04e-3, "samples": 30, "min_s": 1.9e-3, "max_s": 3e-3}


def check(limit: str, allowed_s: float, modeled_s: float, **changes) -> Check:
    verdict = "pass" if modeled_s <= allowed_s else "fail"
    made = Check("net", "net.py", "old", "eager", "", "time_s", limit, modeled_s, None, allowed_s, verdict, "")
    return replace(made, **changes)


def judged(folder, found: Check, commit: str = A, profile=None):
    evidence = RunEvidence(read_runs(folder)[0], commit)
    (made_check,), notes = evidence.judged([found], profile or make_profile(gpus=(OLD,)))
    return made_check, notes


def test_a_run_of_this_commit_keeps_a_budget_that_the_model_breaks(tmp_path):
    record(tmp_path, 1, step=STEP)
    found, (note,) = judged(tmp_path, check("2.1 ms", 2.1e-3, modeled_s=2.5e-3))
    assert (found.verdict, found.value, found.recorded_s) == ("pass", 2.5e-3, 2e-3)
    assert note == (
        "eager on old was measured at 2.00 ms (1.96 ms to 2.04 ms) on 2026-01-01 05:24 at aaaaaaaaa, torch 2.11.0,"
        " modeled at 2.50 ms; the run keeps time_s 2.1 ms and decides, where the model breaks it"
    )


def test_a_run_of_this_commit_breaks_a_budget_that_the_model_keeps(tmp_path):
    record(tmp_path, 1, step=STEP)
    found, (note,) = judged(tmp_path, check("1.9 ms", 1.9e-3, modeled_s=1.5e-3))
    assert (found.verdict, found.message) == ("fail", note)
    assert note.endswith("the run breaks time_s 1.9 ms and decides, where the model keeps it")


def test_both_agree(tmp_path):
    record(tmp_path, 1, step=STEP)
    found, (note,) = judged(tmp_path, check("3 ms", 3e-3, modeled_s=2.5e-3))
    assert (found.verdict, note.endswith("the run keeps time_s 3 ms and decides, as the model does")) == ("pass", True)


@pytest.mark.parametrize(("facts", "commit", "why"), [
    ({"commit": B}, A, "the run is of another commit, or of files that differed from it"),
    ({"changes": True}, A, "the run is of another commit, or of files that differed from it"),
    ({}, "", "the gated files are of no commit"),
    ({"flags": ("throttled: power cap",)}, A, "the run is in doubt (throttled: power cap)"),
])  # fmt: skip
def test_other_runs_are_shown_and_decide_nothing(tmp_path, facts, commit, why):
    record(tmp_path, 1, step=STEP, **facts)
    found, (note,) = judged(tmp_path, check("2.1 ms", 2.1e-3, modeled_s=2.5e-3), commit)
    assert (found.verdict, found.recorded_s) == ("fail", 2e-3)
    assert note.endswith(f"the model decides time_s 2.1 ms: {why}")


def test_an_interval_around_the_budget_decides_nothing(tmp_path):
    record(tmp_path, 1, step=STEP)
    found, (note,) = judged(tmp_path, check("2.01 ms", 2.01e-3, modeled_s=2.5e-3))
    assert (found.verdict, note.endswith("the interval of the run has the limit within")) == ("fail", True)


def test_a_limit_relative_to_a_modeled_baseline_is_the_models(tmp_path):
    record(tmp_path, 1, step=STEP)
    found, (note,) = judged(tmp_path, check("+1%", 2.424e-3, modeled_s=2.5e-3, baseline=2.4e-3))
    assert (found.verdict, note.endswith("the limit is relative to a modeled baseline")) == ("fail", True)


def test_a_run_of_this_commit_goes_before_a_later_one(tmp_path):
    record(tmp_path, 1, step=STEP)
    record(tmp_path, 2, step={key: 2 * value for key, value in STEP.items()} | {"samples": 30}, commit=B)
    assert judged(tmp_path, check("3 ms", 3e-3, 2.5e-3))[0].recorded_s == 2e-3
    assert judged(tmp_path, check("3 ms", 3e-3, 2.5e-3), commit="")[0].recorded_s == 4e-3


@pytest.mark.parametrize("changes", [
    {"gpu": "new"}, {"policy": "memwall"}, {"quantity": "dram_bytes"}, {"module": "blocks.*"},
])  # fmt: skip
def test_checks_that_no_run_is_evidence_of(tmp_path, changes):
    record(tmp_path, 1, step=STEP)
    found = check("3 ms", 3e-3, 2.5e-3, **changes)
    assert judged(tmp_path, found) == (found, [])


def test_a_run_of_other_inputs_is_no_evidence(tmp_path):
    record(tmp_path, 1, step=STEP)
    profile = make_profile(gpus=(OLD,))
    workload = replace(profile.workload, inputs=({"shape": [2048, 1024], "dtype": "float16"},))
    found = check("3 ms", 3e-3, 2.5e-3)
    assert judged(tmp_path, found, profile=replace(profile, workload=workload)) == (found, [])


@pytest.mark.parametrize("step", [None, "fast", {"median_s": 1.0}])
def test_a_run_that_did_not_time_the_model_itself_is_no_evidence(tmp_path, step):
    record(tmp_path, 1, step=step)
    assert judged(tmp_path, check("3 ms", 3e-3, 2.5e-3))[1] == []


def test_kernels_of_a_graph_are_what_an_executor_took(tmp_path):
    # the step of the made-up executors takes 300 us, from 294 to 306
    facts = {"time": "2026-01-01T00:00:00Z", "commit": A, "changes": False}
    keep(make_measured(("generated",), environment=facts), tmp_path)
    profile = make_measured(("generated",))
    (schedule,) = profile.simulations
    waits = replace(profile, simulations=(replace(schedule, launch="eager"),))
    graph = replace(profile, simulations=(replace(schedule, launch="graph"),))
    found = check("400 us", 400e-6, 500e-6, policy="memwall")
    assert judged(tmp_path, found, profile=graph)[0].verdict == "pass"
    assert judged(tmp_path, found, profile=waits)[1] == []


def test_the_page_has_what_was_measured_beside_what_was_modeled():
    result = GateResult((check("3 ms", 3e-3, 2.5e-3, recorded_s=2e-3),))
    text = render(GateReport(result), "text", width=120)
    assert "measured" in text and "2.00 ms" in text


# -- by git ------------------------------------------------------------------------------------------------------------


def test_the_commit_of_the_gated_tree(tmp_path, monkeypatch):
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "net.py").write_text("one")
    own = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "net.py"], ["commit", "-qm", "one"]):
        subprocess.run([*own, *words], check=True)
    head = subprocess.run([*own, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    record(tmp_path / "runs", 1)
    assert RunEvidence.of(tmp_path / "runs", tmp_path).commit == head
    (tmp_path / "net.py").write_text("two")
    assert RunEvidence.of(tmp_path / "runs", tmp_path).commit == ""


def test_runs_that_are_named_must_be_there(tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        RunEvidence.of(tmp_path / "none", tmp_path)


def test_a_setting_of_the_configuration_and_damaged_files_in_notes(tmp_path, monkeypatch, capsys):
    """A saved profile is of no commit: its run is shown."""
    make_profile(gpus=(OLD,)).save(tmp_path / "saved.json")
    record(tmp_path / "runs", 1, step=STEP)
    (tmp_path / "runs" / "damaged.json").write_text("{")
    (tmp_path / "memwall.toml").write_text(
        '[gate]\ntarget = "saved.json"\nruns = "runs"\ntime_s = "1 s"\ncoverage = "0 %"'
    )
    monkeypatch.chdir(tmp_path)
    assert main(["gate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    damaged, shown = found["baseline"]["notes"]
    assert damaged.startswith("runs: ") and "damaged.json is not JSON" in damaged
    assert "was measured at 2.00 ms" in shown and shown.endswith("the gated files are of no commit")
    assert {c["quantity"]: c["recorded_s"] for c in found["checks"]} == {"time_s": 2e-3, "coverage": None}
