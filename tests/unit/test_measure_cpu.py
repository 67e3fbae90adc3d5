"""Kernels really run and timed on the CPU: good ones beside those that hang, crash, run out of memory or are wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import memwall
from memwall.closing import measurements
from memwall.errors import MissingError, UsageError
from memwall.measure import Crew, measure
from memwall.measure.campaign import Campaign, Limits
from memwall.measure.jobs import plan_work
from memwall.measure.run import device_spec

ROOT = Path(__file__).parents[2]
PLANTED = str(Path(__file__).with_name("planted.py"))
#: any spec will do where only the clock is tested
SPEC = "h100-sxm"
HANG_LIMIT_S = 3.0


@pytest.fixture(scope="module")
def planted():
    return measure(
        PLANTED,
        device="cpu",
        executors=["eager"],
        gpu=SPEC,
        samples=6,
        build_limit_s=HANG_LIMIT_S,
        steps=False,
    )


def by_name(profile):
    return {kernel.name: kernel for kernel in measurements(profile)[0].kernels}


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("planted.hang", "timeout", "longer than its limit"),
        ("planted.crash", "failed", "SIGSEGV"),
        ("planted.killed", "out of memory", "killed the process"),
        ("planted.too_large", "out of memory", ""),
        ("planted.raises", "failed", "planted"),
        ("planted.wrong", "wrong", "elements are off"),
    ],
)
def test_a_bad_kernel_is_lost_alone_and_says_how(planted, name, status, words):
    kernel = by_name(planted)[name]
    assert (kernel.status, kernel.timing) == (status, None)
    assert words in kernel.reason and "\n" not in kernel.reason


def test_the_good_kernels_among_bad_ones_are_timed_and_right(planted):
    kernels = by_name(planted)
    assert kernels["aten.tanh"].repeats == 6
    for name in ("aten.exp", "aten.tanh", "aten.sigmoid"):
        kernel = kernels[name]
        assert (kernel.status, kernel.timing.samples) == ("ok", 6)
        assert 0 <= kernel.error <= 1
        assert 1e-6 < kernel.timing.median_s < 1.0


def test_the_record_with_measurements_is_read_back_and_written_the_same(planted, tmp_path):
    planted.save(tmp_path / "a.json")
    again = memwall.Profile.load(tmp_path / "a.json")
    assert again.measurements == planted.measurements or measurements(again) == measurements(planted)
    again.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(kernels="none"), "kernels"),
        (lambda m: m["kernels"][0].update(op_ids=[10**6]), "op_ids"),
        (lambda m: m["kernels"][0].update(status="fine"), "status"),
        (lambda m: m.pop("device"), "device"),
    ],
)
def test_a_damaged_measurement_is_refused_by_name(planted, tmp_path, change, words):
    record = json.loads(planted.to_json())
    change(record["measurements"][0])
    (tmp_path / "bad.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match=rf"measurements\[0\].*{words}"):
        memwall.Profile.load(tmp_path / "bad.json")


class Chain(torch.nn.Module):
    """In place, views, an embedding, a loss: what a step is made of."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 64)
        self.norm = torch.nn.LayerNorm(64)
        self.out = torch.nn.Linear(64, 50)

    def forward(self, ids, target):
        x = self.norm(torch.nn.functional.dropout(self.table(ids), 0.1, self.training))
        logits = self.out(torch.relu_(x + 1.0).transpose(0, 1)).flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, target)


@pytest.fixture(scope="module")
def chain():
    inputs = (torch.zeros(32, 16, dtype=torch.int64), torch.zeros(512, dtype=torch.int64))
    return memwall.profile(Chain(), inputs, gpu=SPEC, mode="training", loss=lambda out: out)


@pytest.fixture(scope="module")
def trained(chain):
    return measure(chain, device="cpu", executors=["eager"], gpu=SPEC, samples=6)


def test_a_saved_training_step_is_measured_without_its_model(trained):
    found = measurements(trained)[0]
    bad = {k.name: (k.status, k.reason) for k in found.kernels if k.status != "ok"}
    assert bad == {}
    assert found.complete and found.copy_bytes_per_s > 1e8
    assert found.environment["threads"] == 1
    assert sum(k.repeats for k in found.kernels) == len(trained.graph.ops)


def test_the_whole_step_takes_about_what_its_ops_take_together(trained):
    found = measurements(trained)[0]
    assert found.step is not None, found.step_reason
    alone_s = sum(k.timing.median_s * k.repeats for k in found.kernels)
    assert 0.1 * alone_s < found.step.median_s < 5 * alone_s


def test_measuring_again_replaces_what_was_measured_before(trained):
    again = measure(
        trained, device="cpu", executors=["eager"], gpu=SPEC, samples=1, top=1, check=False, steps=False
    )
    assert len(again.measurements) == 1
    assert [k.timing.samples for k in measurements(again)[0].kernels] == [1]
    assert {(s.gpu.name, s.policy) for s in again.simulations} == {(SPEC, "eager")}


def test_a_spent_time_limit_skips_what_is_left(chain):
    found = measurements(measure(chain, device="cpu", executors=["eager"], gpu=SPEC, time_limit_s=1e-6))[0]
    assert not found.complete
    assert {k.status for k in found.kernels} == {"skipped"}
    assert found.step is None


def test_progress_is_told_and_results_are_handed_on_while_it_runs(chain):
    said, seen = [], []
    work = plan_work(chain, chain.simulations[0].gpu, ["eager"], top=2)
    with Crew() as crew:
        campaign = Campaign(work, ["eager"], "cpu", "", Limits(3, check=False, steps=False), crew)
        campaign.start()
        campaign.run(said.append, lambda: seen.append([len(r.samples_s) for r in campaign.results.values()]))
    assert len(said) == 6 and all(line.startswith("measuring ") for line in said)
    # round by round, not kernel by kernel: each has its first sample before any has its second
    assert seen == [[1, 0], [1, 1], [2, 1], [2, 2], [3, 2], [3, 3]]


def test_what_cannot_be_is_said_before_anything_runs(chain, monkeypatch, tmp_path):
    with pytest.raises(MissingError, match="need a CUDA device"):
        measure(chain, device="cpu", executors=["generated"], gpu=SPEC)
    with pytest.raises(UsageError, match="no executor named 'jit'"):
        measure(chain, device="cpu", executors=["jit"], gpu=SPEC)
    with pytest.raises(UsageError, match="no device 'tpu'"):
        measure(chain, device="tpu", gpu=SPEC)
    with pytest.raises(UsageError, match="batch: says how to trace"):
        measure(chain, device="cpu", executors=["eager"], gpu=SPEC, batch=3)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(MissingError, match=r"g\+\+"):
        measure(chain, device="cpu", executors=["inductor"], gpu=SPEC)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda_device(chain):
    with pytest.raises(MissingError, match="no CUDA device"):
        measure(chain, device="cuda", gpu=SPEC)


def test_a_cpu_without_a_spec_says_how_to_get_one(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMWALL_CACHE", str(tmp_path))
    with pytest.raises(MissingError, match="memwall calibrate"):
        device_spec("cpu")


def test_an_interrupt_keeps_what_was_measured_and_ends_the_workers(tmp_path):
    """Ctrl-C goes to the whole foreground group; the worker has a session of its own and is ended by its parent."""
    path = tmp_path / "partial.json"
    command = [
        sys.executable, "-m", "memwall", "measure", PLANTED, "--device", "cpu", "--executor", "eager", "--gpu", SPEC,
        "--samples", "3", "-o", str(path),
    ]  # fmt: skip
    environment = {**os.environ, "PLANTED": "hang", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _wait(path.exists)
    before = json.loads(path.read_text())  # whole JSON while it runs
    assert before["measurements"][0]["complete"] is False
    workers = _children(process.pid)
    assert workers
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in err
    assert "aten.exp" in out or "exp" in out
    kept = measurements(memwall.Profile.load(path))[0]
    assert not kept.complete
    assert any(kernel.status == "ok" for kernel in kept.kernels)
    _wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def _wait(condition, limit_s=60.0):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def _children(pid):
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
