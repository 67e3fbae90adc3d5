"""``memwall calibrate``: what it writes and how it fails. One test measures this machine for real, roughly."""

from unittest.mock import patch

import pytest

from memwall.bench.calibrate import run as calibration
from memwall.bench.calibrate.sampling import Busy
from memwall.core.graph import Pipe
from memwall.hardware.host import load_host
from memwall.hardware.lookup import load_gpu
from tests.unit.bench import test_calibrate_host as host
from tests.unit.bench.test_calibrate import ANSWER, quantities
from tests.unit.configs import SHORT_LLAMA, target_of
from tests.unit.places import ROOT
from tests.unit.serving.bench_results import VLLM, written


@pytest.fixture
def measured(monkeypatch):
    """The process that measures answers at once with a made-up machine's quantities; the jobs that it was given."""
    jobs = []

    def ask(job):
        jobs.append(job)
        if job["device"] == "host":
            return {**host.answer(), "quantities": list(host.quantities(host.ON_CPU).values())}
        return {**ANSWER, "quantities": list(quantities().values())}

    monkeypatch.setattr(calibration, "_ask", ask)
    return jobs


def test_it_writes_a_spec_that_gpu_takes(run, measured, tmp_path):
    path = tmp_path / "mine.toml"
    result = run("calibrate", "-o", str(path), "--rounds", "5")
    assert result.code == 0
    assert "20.00 GB/s" not in result.out  # the bandwidth is the fastest, the triad a fraction of it
    assert "40.00 GB/s" in result.out
    assert "50.0 %" in result.out
    assert f"--gpu {path}" in result.err
    assert "1 of 49 quantities vary by more than 5%, weights.dram most, by 20%" in result.err
    assert measured == [{"device": "cpu", "threads": 1, "rounds": 5, "accept_busy": False}]
    assert load_gpu(path).cpu is not None
    assert run("gpus", "--check", str(path)).code == 0


def test_by_itself_it_goes_where_measure_looks(run, measured, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMWALL_CACHE", str(tmp_path / "new" / "folder"))
    assert run("calibrate", "-q").code == 0
    assert load_gpu(tmp_path / "new" / "folder" / "cpu.toml").name == "cpu"


def test_a_host_is_written_shown_and_taken_by_profile(run, measured, tmp_path):
    path = tmp_path / "host.toml"
    result = run("calibrate", "--device", "host", "-o", str(path))
    assert result.code == 0
    assert result.out == path.read_text()
    assert f"use it as --host {path}" in result.err
    assert [job["device"] for job in measured] == ["host"]
    assert load_host(path).op_s == pytest.approx(2e-6)
    profiled = run("profile", "net.py", "--gpu", "a100-40gb-sxm", "--host", str(path), "-q")
    assert profiled.code == 0, profiled.err
    assert "this-machine: " in profiled.out and "times as long in the 80 % range" in profiled.out


def test_a_hosts_default_place_and_a_wrong_one(run, measured, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMWALL_CACHE", str(tmp_path))
    assert run("calibrate", "--device", "host", "-q").code == 0
    assert load_host(tmp_path / "host.toml").name == "this-machine"
    wrong = run("calibrate", "--device", "host", "-o", "nowhere/host.toml")
    assert wrong.code == 2 and "there is no folder nowhere" in wrong.err
    assert "[cpu|cuda|host]" in run("calibrate", "--help").out


@pytest.mark.parametrize(
    ("path", "message"), [("spec.json", "ends in .toml"), ("nowhere/spec.toml", "there is no folder nowhere")]
)
def test_a_wrong_file_name_costs_no_measurement(run, measured, path, message):
    result = run("calibrate", "-o", path)
    assert result.code == 2
    assert message in result.err
    assert measured == []


def test_a_busy_machine_is_refused_and_nothing_is_written(run, monkeypatch, tmp_path):
    def ask(job):
        raise Busy("this machine is too busy to be measured: ...; stop what else runs, or use --accept-busy")

    monkeypatch.setattr(calibration, "_ask", ask)
    result = run("calibrate", "-o", str(tmp_path / "cpu.toml"))
    assert result.code == 3
    assert "too busy" in result.err
    assert "--accept-busy" in result.err
    assert list(tmp_path.glob("*.toml")) == []


def test_without_a_gpu_cuda_says_so(run, tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    result = run("calibrate", "--device", "cuda", "-o", str(tmp_path / "cuda.toml"))
    assert result.code == 3
    assert "no CUDA device" in result.err


def measured_small(job):
    """What the child calls: caches of 8 MiB at most, as arrays in DRAM are eight times as large as the last one."""
    small = {name: min(size, 8 << 20) for name, size in calibration.cache_bytes().items()}
    with patch.object(calibration, "cache_bytes", lambda: small):
        return calibration.measure_here(job)


@pytest.mark.versions
def test_this_machine_for_real(run, tmp_path, monkeypatch):
    """Wide limits: any x86 or ARM core of this century, however busy."""
    pytest.importorskip("torch")
    monkeypatch.setattr(calibration, "measure_here", measured_small)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    path = tmp_path / "cpu.toml"
    result = run("calibrate", "-o", str(path), "--rounds", "3", "--accept-busy")
    assert result.code == 0, result.err
    gpu = load_gpu(path)
    assert 0.5e9 < gpu.dram_bytes_per_s < 1e12
    assert 0.1e-6 < gpu.launch_overhead_s < 100e-6
    assert gpu.peak(Pipe("tensor", "float64")) < gpu.peak(Pipe("tensor", "float32"))
    assert gpu.cpu.elements_per_s["tanh"] < gpu.peak(Pipe("vector", "float32"))
    assert "--accept-busy" in path.read_text()


# -- an engine ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path):
    """A model, and the result of a server of it that is slower than modeled."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("scipy", reason="scipy is not installed")
    return target_of(tmp_path / "llama", SHORT_LLAMA), written(tmp_path / "r.json", VLLM)


def test_an_engine_is_fitted_shown_and_taken_by_serve(run, server, tmp_path):
    target, result = server
    path = tmp_path / "engine.toml"
    found = run("calibrate", target, "--engine", result, result, "--base", "vllm@0.12", "-o", str(path))
    assert found.code == 0, found.err
    assert "vLLM 0.12 as measured: org/model on h100-sxm" in found.out and "held: 2 runs of different" in found.out
    assert f"use it as --engine {path}" in found.err
    served = run("serve", target, "--engine", str(path), "--concurrency", "8", "--json")
    assert served.code == 0 and f'"engine": "{path}"' in served.out


def test_the_server_may_be_said_by_its_command(run, server, tmp_path):
    target, result = server
    folder = target.removeprefix("hf:")
    found = run("calibrate", "--engine", result, "-o", str(tmp_path / "e.toml"), "--", "vllm", "serve", folder)
    assert found.code == 0, found.err


def test_by_itself_an_engine_goes_to_the_cache(run, server, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMWALL_CACHE", str(tmp_path / "cache"))
    target, result = server
    assert run("calibrate", target, "--engine", result, "-q").code == 0
    assert (tmp_path / "cache" / "engine.toml").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--engine", "r.json"), "name a TARGET, or the command of a server"),
        (("hf:x", "--engine", "r.json", "--device", "host"), "--device has no effect with --engine"),
        (("--tp", "2"), "--tp has no effect without --engine"),
        (("hf:x",), "hf:x: what a server is calibrated with goes with --engine RESULT"),
        (("hf:x", "hf:y", "--engine", "r.json"), "hf:x and hf:y: one server is calibrated"),
        (("hf:x", "--engine", "nowhere.json"), "no such file: nowhere.json"),
        (("hf:x", "--engine", "r.json", "-o", "mine.json"), "the name of a spec ends in .toml"),
        (("hf:x", "--engine", "r.json", "-o", "nowhere/mine.toml"), "there is no folder nowhere"),
    ],
)
def test_what_an_engine_is_not_calibrated_with_is_one_line(run, words, said):
    result = run("calibrate", *words)
    assert result.code == 2 and said in result.err and len(result.err.splitlines()) == 1


def test_nothing_is_written_where_no_run_is_left(run, server, tmp_path):
    target, _ = server
    wrong = written(tmp_path / "wrong.json", {**VLLM, "mean_tpot_ms": 1e-3})
    result = run("calibrate", target, "--engine", wrong, "-o", str(tmp_path / "engine.toml"))
    assert result.code == 2 and "no run is left" in result.err and not (tmp_path / "engine.toml").exists()
