"""Kernels really run and timed on the CPU: good ones beside those that hang, crash, run out of memory or are wrong."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import memwall
from memwall.analysis.validation import measurements
from memwall.bench.clock import CpuClock
from memwall.bench.kernels import WorkerPool, measure
from memwall.bench.kernels.benchmark_run import BenchmarkRun, Limits, plan_work
from memwall.bench.kernels.executors import BuiltKernel, KernelBuilder
from memwall.bench.kernels.oracle import Oracle, check_numerics
from memwall.bench.kernels.run import device_spec
from memwall.core.errors import MissingError, UsageError
from memwall.core.flow import Flow
from memwall.core.progress import listening
from memwall.fusion import Group, plan_graph
from memwall.record.measurement import Sensors
from tests.unit.places import ROOT
from tests.unit.processes import wait_for
from tests.unit.small_caches.fixture import small_caches  # noqa: F401

PLANTED = str(Path(__file__).parents[1] / "planted.py")
#: any spec will do where only the clock is tested
SPEC = "h100-sxm"
HANG_LIMIT_S = 3.0


@pytest.fixture(scope="module")
def planted():
    with pytest.MonkeyPatch.context() as patch:  # what a kernel may take beyond its limit
        patch.setattr("memwall.bench.kernels.benchmark_run.BLOCK_S", HANG_LIMIT_S)
        return measure(PLANTED, device="cpu", executors=["eager"], gpu=SPEC, samples=6, build_limit_s=HANG_LIMIT_S,
                       steps=False)  # fmt: skip


def test_what_is_no_module_is_said_before_the_spec_that_lacks(tmp_path, monkeypatch):
    monkeypatch.setattr("memwall.bench.calibrate.default_spec_path", lambda: tmp_path / "cpu.toml")
    with pytest.raises(UsageError, match="is an HLO file, and this needs a PyTorch module"):
        measure(str(ROOT / "tests" / "data" / "hlo" / "mlp_h100-sxm.hlo"), device="cpu")


def by_name(profile):
    return {kernel.name: kernel for kernel in measurements(profile)[0].kernels}


@pytest.mark.parametrize(("name", "status", "words"), [
    ("planted.hang", "timeout", "longer than its limit"),
    ("planted.crash", "failed", "SIGSEGV"),
    ("planted.too_large", "out of memory", ""),
    ("planted.raises", "failed", "planted"),
    ("planted.wrong", "wrong", "elements are off"),
])  # fmt: skip
def test_a_bad_kernel_is_lost_alone_and_says_how(planted, name, status, words):
    kernel = by_name(planted)[name]
    assert (kernel.status, kernel.timing) == (status, None)
    assert words in kernel.reason and "\n" not in kernel.reason


def test_the_good_kernels_among_bad_ones_are_timed_and_right(planted):
    kernels = by_name(planted)
    assert kernels["aten.tanh"].repeats == 5
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


@pytest.mark.parametrize(("change", "words"), [
    (lambda m: m.update(kernels="none"), "kernels"),
    (lambda m: m["kernels"][0].update(op_ids=[10**6]), "op_ids"),
    (lambda m: m["kernels"][0].update(status="fine"), "status"),
    (lambda m: m.pop("device"), "device"),
])  # fmt: skip
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
def pool():
    """The process of all measurements of sound kernels."""
    with WorkerPool() as workers:
        yield workers


@pytest.fixture(scope="module")
def trained(chain, pool):
    return measure(chain, device="cpu", executors=["eager"], gpu=SPEC, samples=6, pool=pool)


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


def test_measuring_again_replaces_what_was_measured_before(trained, pool):
    again = measure(trained, device="cpu", executors=["eager"], gpu=SPEC, samples=1, top=1, check=False, steps=False,
                    pool=pool)  # fmt: skip
    assert len(again.measurements) == 1
    assert [k.timing.samples for k in measurements(again)[0].kernels] == [1]
    assert {(s.gpu.name, s.policy) for s in again.simulations} == {(SPEC, "eager")}


def test_a_spent_time_limit_skips_what_is_left(chain, pool):
    found = measurements(measure(chain, device="cpu", executors=["eager"], gpu=SPEC, samples=1, time_limit_s=1e-6,
                                 pool=pool))[0]  # fmt: skip
    assert not found.complete
    assert {k.status for k in found.kernels} == {"skipped"}
    assert found.step is None


def test_progress_is_told_and_results_are_handed_on_while_it_runs(chain, pool):
    said, seen = [], []
    work = plan_work(chain, chain.simulations[0].gpu, ["eager"], top=2)
    benchmark = BenchmarkRun(work, "cpu", "", Limits(3, check=False, steps=False), pool)
    benchmark.start()
    with listening(said.append):
        benchmark.run(lambda: seen.append([len(r.samples_s) for r in benchmark.results.values()]))
    assert len(said) == 6 and all(line.startswith("measuring ") for line in said)
    # round by round, not kernel by kernel: each has its first sample before any has its second
    assert seen == [[1, 0], [1, 1], [2, 1], [2, 2], [3, 2], [3, 3]]


def test_what_cannot_be_is_said_before_anything_runs(chain):
    with pytest.raises(MissingError, match="need a CUDA device"):
        measure(chain, device="cpu", executors=["generated"], gpu=SPEC)
    with pytest.raises(UsageError, match="no executor named 'jit'"):
        measure(chain, device="cpu", executors=["jit"], gpu=SPEC)
    with pytest.raises(UsageError, match="no device 'tpu'"):
        measure(chain, device="tpu", gpu=SPEC)
    with pytest.raises(UsageError, match="batch: says how to trace"):
        measure(chain, device="cpu", executors=["eager"], gpu=SPEC, batch=3)


def test_a_cpu_without_a_spec_says_how_to_get_one(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMWALL_CACHE", str(tmp_path))
    with pytest.raises(MissingError, match="memwall calibrate"):
        device_spec("cpu")


def test_an_interrupt_keeps_what_was_measured_and_ends_the_workers(tmp_path, forks):
    """Ctrl-C goes to the whole foreground group; the worker has a session of its own and is ended by its parent."""
    path = tmp_path / "partial.json"
    words = ("measure", PLANTED, "--device", "cpu", "--executor", "eager", "--gpu", SPEC, "--samples", "3", "-o", path)
    process = forks.start(*words, folder=tmp_path, environment={**os.environ, "PLANTED": "hang"})
    wait_for(path.exists)
    before = json.loads(path.read_text())  # whole JSON while it runs
    assert before["measurements"][0]["complete"] is False
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert workers
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in err
    assert "aten.exp" in out or "exp" in out
    kept = measurements(memwall.Profile.load(path))[0]
    assert not kept.complete
    assert any(kernel.status == "ok" for kernel in kept.kernels)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


class Attention(torch.nn.Module):
    """Attention that drops out, which a CPU has no kernel for, between ops that it has."""

    def forward(self, x):
        q = torch.exp(x).unflatten(-1, (2, 8)).transpose(1, 2)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5 * self.training)
        return torch.nn.functional.dropout(torch.tanh(mixed), 0.5, self.training)


def test_what_a_cpu_has_no_kernel_for_is_skipped_with_the_reason(pool):
    inputs = (torch.zeros(2, 32, 16, requires_grad=True),)
    profile = memwall.profile(Attention(), inputs, gpu=SPEC, mode="training", optimizer="none", attention="flash")
    found = measurements(measure(profile, device="cpu", executors=["eager"], gpu=SPEC, samples=3, pool=pool))[0]
    skipped = {kernel.name: kernel for kernel in found.kernels if "attention" in kernel.name}
    assert len(skipped) == 2
    for name, kernel in skipped.items():
        assert kernel.status == "skipped"
        assert kernel.reason == f"the CPU has no such kernel; {name}: attention with dropout"
    assert {k.status for k in found.kernels if k.name not in skipped} == {"ok"}
    assert found.step is None and found.step_reason.startswith("the CPU has no such kernel; aten._scaled_dot")


def test_a_cpu_kernel_of_another_precision_is_timed_unchecked(pool):
    module = torch.nn.LayerNorm(64)
    profile = memwall.profile(module, (torch.zeros(8, 64),), gpu=SPEC, dtype="bf16")
    made = measure(profile, device="cpu", executors=["eager"], gpu=SPEC, samples=3, steps=False, pool=pool)
    found = measurements(made)[0]
    (kernel,) = found.kernels
    assert (kernel.status, kernel.error) == ("ok", None)
    assert kernel.reason == "not checked: gives bfloat16 where a GPU gives float32"


def test_a_device_in_doubt_is_refused_before_the_first_kernel(chain, pool, monkeypatch):
    monkeypatch.setattr(BenchmarkRun, "run", lambda *args: pytest.fail("a kernel was run"))
    flags = ("shared: others", "unknown clocks: no NVML")
    start = BenchmarkRun.start

    def shared(benchmark):
        start(benchmark)
        benchmark.copied = replace(benchmark.copied, sensors=Sensors(flags=flags))

    monkeypatch.setattr(BenchmarkRun, "start", shared)
    with pytest.raises(MissingError, match=r"--strict-device: shared: others$"):
        measure(chain, device="cpu", executors=["eager"], gpu=SPEC, samples=1, strict_device=True, pool=pool)


def test_a_spec_of_another_kind_of_device_is_told(chain, monkeypatch):
    monkeypatch.setattr(BenchmarkRun, "start", lambda benchmark: None)
    monkeypatch.setattr(BenchmarkRun, "run", lambda *args: None)
    said = []
    measure(chain, device="cpu", executors=["eager"], gpu=SPEC, progress=said.append)
    assert said == [f"modeled as {SPEC}, which is no CPU: the errors say nothing"]


def test_the_mask_of_a_dropout_is_no_number_that_eager_could_be_off_by():
    """Compiled kernels are held against eager too, and one of their results is a mask."""

    class Drop(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.dropout(torch.exp(x), 0.5, self.training)

    inputs = (torch.zeros(64, 33, requires_grad=True),)
    profile = memwall.profile(Drop(), inputs, gpu=SPEC, mode="training", optimizer="none")
    graph = profile.graph
    (drop,) = (op for op in graph.ops if op.name == "aten.native_dropout")
    group = Group((drop.id,), drop.inputs, drop.outputs, profile.costs[0][drop.id])
    oracle = Oracle(graph, Flow.of(graph), group)
    built = BuiltKernel(lambda x: torch.native_dropout(x, 0.5, True), tuple(drop.inputs), tuple(drop.outputs))
    verdict = check_numerics(oracle, built, 0, CpuClock(), with_eager=True)
    assert verdict.passed and verdict.error is not None and verdict.message == ""
    wrong = replace(built, run=lambda x: (x * 1.5, torch.ones_like(x, dtype=torch.bool)))
    assert not check_numerics(oracle, wrong, 0, CpuClock(), with_eager=True).passed


def test_every_group_is_compiled_however_many_are_alike(monkeypatch, tmp_path):
    """Dynamo leaves a function to eager after some recompilations; 12 shapes of one group are more than it allows."""

    class Alike(torch.nn.Module):
        def forward(self, *tensors):
            return [torch.tanh(t) for t in tensors]

    profile = memwall.profile(Alike(), tuple(torch.zeros(n, 3) for n in range(2, 14)), gpu=SPEC)
    graph, gpu = profile.graph, profile.simulations[0].gpu
    builder = KernelBuilder(graph, gpu, "cpu", tmp_path)
    compiled = []

    def backend(module, inputs):
        compiled.append(inputs[0].shape[0])
        return module.forward

    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: compile_with(f, backend=backend, **options))
    for group in plan_graph("eager", graph, profile.costs[0], gpu).groups:
        built = builder.inductor(group)
        (value_id,) = built.inputs
        built.run(torch.zeros(graph.values[value_id].spec.shape))
    assert compiled == list(range(2, 14))
