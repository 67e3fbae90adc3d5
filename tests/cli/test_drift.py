"""``memwall drift``: its exit codes, its files, and its lines about what is no run. All times are made up."""

import json

import pytest

from tests.unit.recorded_fixture import B, record


@pytest.fixture
def runs(folder):
    """Two runs, in the second of which products take 30 us in place of 25."""
    record(folder / "runs", 1, 25)
    record(folder / "runs", 2, 30, commit=B)
    return folder / "runs"


def test_drift_is_an_exit_code_of_check_alone(run, runs):
    assert (run("drift", "runs").code, run("drift", "runs", "--check").code) == (0, 1)
    assert run("drift", "runs", "--check", "--since", "2026-01-03").code == 0
    assert run("drift", "runs", "--check", "--least", "0.5").code == 0


def test_the_sentence_and_the_table(run, runs):
    said = " ".join(run("drift", "runs").out.split())
    assert "1 of 6 kernels drifted; the longest, mm of tiny on Maker old 16GB, takes 1.20x its usual time" in said
    assert "Kernels that drift, longest first" in said and "scatter (slower)" in said


def test_standard_output_is_the_record_alone(run, runs):
    found = json.loads(run("drift", "runs", "--json", "--workload", "tiny").out)
    assert [kernel["kernel"] for kernel in found["kernels"] if kernel["left_scatter"]] == ["mm"]


def test_files(run, runs, folder):
    files = ("a.html", "a.md", "a.csv", "a.txt", "a.json")
    assert run("drift", "runs", *(word for name in files for word in ("-o", name))).code == 0
    texts = [(folder / name).read_text() for name in files]
    assert all("mm" in text for text in texts)


def test_what_is_no_run_is_a_warning_beside_runs(run, runs):
    (runs / "damaged.json").write_text('{"schema": "memwall.profile/1"}')
    result = run("drift", "runs")
    assert result.code == 0
    assert [line.startswith("memwall: warning: runs/damaged.json") for line in result.err.splitlines()] == [True]


@pytest.mark.parametrize(("words", "said"), [
    ("drift none", "no such folder: none"),
    ("drift saved.json", "saved.json is no run: it has no measurements"),
    ("drift runs --workload gpt", "no run of a workload named 'gpt'"),
    ("drift runs --since never", "--since never: neither a date nor a commit of a run"),
    ("drift runs --least 0", "--least"),
    ("drift runs --least 5", "--least 5 is no share of a time"),
    ("drift runs --least nan", "--least nan is no share of a time"),
    ("drift runs -o a.png", "cannot tell what to write"),
    ("drift", "Missing argument 'FOLDER'"),
    ("measure net.py --device cpu --record a/b", "cannot make a/b: there is no folder a"),
    ("measure net.py --device cpu --record saved.json", "cannot keep runs in saved.json: it is no folder"),
])  # fmt: skip
def test_bad_input_is_one_line(run, runs, record, words, said):
    result = run(*words.split())
    assert (result.code, len(result.err.splitlines())) == (2, 1), result.err
    assert said in result.err
