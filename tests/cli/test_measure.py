"""``memwall measure``: what it prints, writes and refuses. Kernels run on this machine's CPU."""

import json

import pytest
import torch

import memwall
from memwall.analysis.validation import measurements
from memwall.cli import main
from tests.unit.gating import run_here
from tests.unit.small_caches.fixture import small_caches  # noqa: F401

MODEL = """
import torch
def model(): return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
def inputs(batch=256): return (torch.ones(batch, 64),)
"""
CPU = ("--device", "cpu", "--executor", "eager", "--gpu", "h100-sxm")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measure")
    (folder / "net.py").write_text(MODEL)
    files = ("-o", "out.json", "-o", "out.md", "-o", "out.csv", "--record", "runs")
    code, out, err = run_here(folder, "measure", "net.py", *CPU, "--samples", "4", "--batch", "128", *files, "--json")
    assert code == 0, err
    return folder, out, err


def test_standard_output_is_the_record_alone(ran):
    folder, out, _ = ran
    assert json.loads(out) == json.loads((folder / "out.json").read_text())


def test_the_record_has_what_was_measured(ran):
    folder, *_ = ran
    profile = memwall.Profile.load(folder / "out.json")
    assert profile.workload.inputs[0]["shape"] == [128, 64]
    (found,) = measurements(profile)
    assert found.complete and found.step is not None
    assert {k.name: (k.status, k.timing.samples) for k in found.kernels} == {
        "aten.addmm": ("ok", 4), "aten.relu": ("ok", 4),
    }  # fmt: skip
    assert found.environment["module_step"]["eager"]["status"] == "ok"


def test_the_run_is_kept_with_its_modeled_ranges(ran):
    folder, out, _ = ran
    (path,) = (folder / "runs").iterdir()
    profile = memwall.Profile.load(path)
    assert list(profile.measurements) == json.loads(out)["measurements"]
    (found,) = measurements(profile)
    assert path.name == f"{found.environment['time'].translate({45: None, 58: None})}-no-commit-net.json.gz"
    assert all(0 < k.modeled_low_s <= k.modeled_s <= k.modeled_high_s for k in found.kernels)


def test_other_files_and_the_record_of_the_folder(ran):
    folder, _, err = ran
    assert "addmm" in (folder / "out.md").read_text()
    assert "wrote out.csv" in err
    assert (folder / ".memwall" / "last.json").exists()


def test_a_saved_record_is_measured_and_printed(ran, capsys, monkeypatch):
    folder, *_ = ran
    monkeypatch.chdir(folder)
    assert main(["measure", "out.json", *CPU, "--samples", "1", "--top", "1", "--no-check", "--no-step", "-q"]) == 0
    out, err = capsys.readouterr()
    assert "modeled next to measured" in out and "addmm" in out
    assert "record kept" not in err


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["none.py"], 2, "no such file"),
    (["net.py", "--executor", "jit"], 2, "no executor named 'jit'; there is eager, generated, inductor"),
    (["net.py", "--executor", "generated"], 3, "need a CUDA device"),
    (["net.py", "--gpu", "h1000"], 2, "no GPU named"),
    (["net.py", "--samples", "0"], 2, "--samples"),
    (["net.py", "--time-limit", "0"], 2, "--time-limit"),
    (["net.py", "-o", "x.jpg"], 2, "cannot tell what to write"),
    (["out.json", "--batch", "3"], 2, "--batch says how to trace"),
])  # fmt: skip
def test_what_is_refused_in_one_line(ran, arguments, code, words, capsys, monkeypatch):
    folder, *_ = ran
    monkeypatch.chdir(folder)
    own = [] if "--gpu" in arguments else ["--gpu", "h100-sxm"]
    assert main(["measure", *arguments, "--device", "cpu", *own]) == code
    out, err = capsys.readouterr()
    assert words in err and out == ""
    assert len(err.strip().splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_gpu_is_exit_3(ran, capsys, monkeypatch):
    folder, *_ = ran
    monkeypatch.chdir(folder)
    assert main(["measure", "net.py", "--device", "cuda"]) == 3
    assert "no CUDA device here; --device cpu" in capsys.readouterr().err
