"""Parts of a measurement that need no kernel: statistics, distinct kernels, sensors, choices, what is missing."""

import inspect
import json
import math
from types import SimpleNamespace

import pytest
import torch

import memwall
from memwall.bench.device import Ready, need_compiler
from memwall.bench.kernels.benchmark_run import ROUNDS, BenchmarkRun, Limits, Result, plan_work, share
from memwall.bench.kernels.executors import BuiltKernel, Choices, KernelBuilder, choose
from memwall.bench.kernels.session import Questions, _set_tf32, failure
from memwall.bench.kernels.workers import KernelRun, KernelWorker, Ran, WorkerFailed, WorkerPool
from memwall.codegen import NotGenerated
from memwall.core.cache import keep, kept
from memwall.core.errors import MissingError
from memwall.core.sources import source_hash
from memwall.hardware.constants import StreamConstants
from memwall.perfmodel.families import constants
from memwall.record.measurement import Sensors


@pytest.mark.parametrize(("total", "sizes"), [(30, [10, 10, 10]), (7, [2, 2, 3]), (1, [0, 0, 1]), (2, [0, 1, 1])])
def test_samples_are_shared_out_over_the_rounds(total, sizes):
    assert [share(total, part, ROUNDS) for part in range(ROUNDS)] == sizes


class Blocks(torch.nn.Module):
    """Three equal blocks, one of another width, and an op that stands alone."""

    def __init__(self):
        super().__init__()
        self.same = torch.nn.ModuleList(torch.nn.Linear(64, 64, bias=False) for _ in range(3))
        self.other = torch.nn.Linear(64, 32, bias=False)

    def forward(self, x):
        for layer in self.same:
            x = torch.relu(layer(x))
        return torch.sigmoid(self.other(x))


@pytest.fixture(scope="module")
def blocks():
    return memwall.profile(Blocks(), (torch.ones(16, 64),), gpu="a100-80gb-sxm")


def test_equal_kernels_are_one_job_that_counts_them(blocks):
    work = plan_work(blocks, blocks.simulations[0].gpu, ["eager"])
    assert sorted((job.estimate.name, job.repeats) for job in work.jobs) == [
        ("aten.mm", 1), ("aten.mm", 3), ("aten.relu", 3), ("aten.sigmoid", 1),
    ]  # fmt: skip
    assert sum(job.repeats for job in work.jobs) == len(blocks.graph.ops)


def test_a_job_is_modeled_alone_with_nothing_in_the_cache(blocks):
    gpu = blocks.simulations[0].gpu
    relu = next(job for job in plan_work(blocks, gpu, ["eager"]).jobs if job.estimate.name == "aten.relu")
    # 16 x 64 floats read and written, the latency of a stream, one launch; no wait for the CPU
    moved_s = 2 * 16 * 64 * 4 / gpu.dram_bytes_per_s
    latency_s = constants(StreamConstants, gpu, "elementwise").latency_s
    assert relu.estimate.overhead_s == pytest.approx(gpu.launch_overhead_s)
    assert relu.estimate.latency_s == pytest.approx(latency_s, rel=0.01)  # and few bytes in flight
    assert relu.estimate.memory_s >= moved_s


def test_numbers_of_jobs_are_unique_over_executors_and_top_keeps_the_weightiest(blocks):
    gpu = blocks.simulations[0].gpu
    work = plan_work(blocks, gpu, ["eager", "inductor"])
    assert len({job.number for job in work.jobs}) == len(work.jobs)
    few = plan_work(blocks, gpu, ["eager", "inductor"], top=2)
    assert [job.number for job in few.jobs] == [0, 1, 2, 3]
    kept = plan_work(blocks, gpu, ["eager"], top=2)
    assert len(kept.jobs) == 2
    assert {job.step_s for job in kept.jobs} == set(sorted((j.step_s for j in work.of("eager")), reverse=True)[:2])


def test_what_is_compiled_ahead_are_the_kernels_of_compilers(blocks):
    gpu = blocks.simulations[0].gpu
    work = plan_work(blocks, gpu, ["eager", "inductor"])
    pairs = work.compilations("cuda", "net.py")
    assert {run.number for _, run in pairs} == {job.number for job in work.of("inductor")}
    assert {(run.samples, setup.target) for setup, run in pairs} == {(0, "net.py")}


class Slow:
    """A helper whose kernels take a second each, by a clock that is made up."""

    def __init__(self, clock):
        self.clock, self.setup, self.failures, self.asked, self.stopped = clock, None, 0, [], False

    def begin(self, setup):
        self.setup = setup

    def ask(self, limit_s, question, run):
        self.asked.append((self.setup, run, limit_s))
        self.clock[0] += 1.0

    def stop(self):
        self.stopped = True


def test_compilers_stop_at_their_deadline(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("memwall.bench.kernels.workers.time", SimpleNamespace(monotonic=lambda: clock[0]))
    pool, helper = WorkerPool(), Slow(clock)
    pool._helpers = [helper]
    pool.compile_ahead([("first", 0), ("first", 1), ("second", 2), ("second", 3)], 2.0, 2.5)
    assert helper.asked == [("first", 0, 2.0), ("first", 1, 1.5), ("second", 2, 0.5)]
    assert helper.stopped


@pytest.fixture
def switches():
    """Those of TF32, put back afterwards."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32
    yield
    cudnn.allow_tf32, matmul.allow_tf32 = before


@pytest.mark.usefixtures("switches")
def test_tf32_is_allowed_where_the_trace_counts_with_it():
    torch.backends.cudnn.allow_tf32 = True
    counted = memwall.profile(torch.nn.Conv2d(3, 8, 3), (torch.ones(1, 3, 8, 8),), gpu="h100-sxm").graph
    torch.backends.cudnn.allow_tf32 = False
    without = memwall.profile(torch.nn.Conv2d(3, 8, 3), (torch.ones(1, 3, 8, 8),), gpu="h100-sxm").graph
    for graph, allowed in ((counted, True), (without, False)):
        _set_tf32(graph)
        assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (allowed, False)


def test_a_reference_is_a_file_of_its_own(blocks, tmp_path):
    """Dynamo wraps code without a file in one function for all, and gives up after eight of them."""
    gpu = blocks.simulations[0].gpu
    work = plan_work(blocks, gpu, ["eager"])
    builder = KernelBuilder(work.graph, gpu, "cpu", tmp_path)
    files = {inspect.getsourcefile(builder.eager(job.group).run) for job in work.jobs}
    assert None not in files and len(files) == 4  # two products, a relu, a sigmoid


def test_a_product_alone_is_left_to_its_library(blocks, tmp_path):
    gpu = blocks.simulations[0].gpu
    builder = KernelBuilder(blocks.graph, gpu, "cpu", tmp_path)
    products = [job for job in plan_work(blocks, gpu, ["eager"]).jobs if job.estimate.name == "aten.mm"]
    assert len(products) == 2
    for job in products:
        with pytest.raises(NotGenerated, match="the library keeps it"):
            builder.generated(job.group)


class Stopwatch:
    """A device on which a call takes as long as it returns."""

    def samples(self, ready, count, budget_s):
        return [ready.call()] * count, Sensors()


def tunable(times):
    """A kernel whose time depends on BLOCK; None fails."""
    state = {}

    def run():
        if times[state["BLOCK"]] is None:
            raise RuntimeError("too many registers")
        return times[state["BLOCK"]]

    configs = tuple({"BLOCK": block} for block in times)
    return BuiltKernel(run, (), (), configs=configs, configure=state.update, source="text")


def ready_of(built):
    return lambda: Ready(built.run, lambda: None)


def test_the_fastest_setting_that_runs_is_chosen():
    built = tunable({64: 3.0, 128: None, 256: 1.0, 512: 2.0})
    assert choose(built, ready_of(built), Stopwatch()) == {"BLOCK": 256}


def test_where_no_setting_runs_the_first_reason_is_raised():
    built = tunable({64: None})
    with pytest.raises(RuntimeError, match="too many registers"):
        choose(built, ready_of(built), Stopwatch())


def test_choices_are_kept_by_source_gpu_and_driver(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMWALL_CACHE", str(tmp_path / "deep" / "cache"))
    here = Choices.here({"device": "H200", "driver": "570", "triton": "3.6.0"})
    here.put("source", {"BLOCK": 128})
    here.put("other", {"BLOCK": 64})
    assert here.get("source") == {"BLOCK": 128}
    for change in ({"device": "A100"}, {"driver": "580"}, {"triton": "3.7"}):
        elsewhere = Choices.here({"device": "H200", "driver": "570", "triton": "3.6.0", **change})
        assert elsewhere.get("source") is None
    assert here.get("another source") is None
    record = json.loads(kept(tmp_path / "deep" / "cache" / "autotune.kept"))
    assert f"{source_hash('source')} H200, 570, 3.6.0" in record["choices"]


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "other/1", "choices": {}}', '{"schema": "memwall.autotune/1"}'])
def test_a_damaged_file_of_choices_is_as_none(text, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMWALL_CACHE", str(tmp_path))
    keep(tmp_path / "autotune.kept", text)
    here = Choices.here({})
    assert here.get("source") is None
    here.put("source", {"BLOCK": 1})
    assert here.get("source") == {"BLOCK": 1}


def test_a_folder_that_refuses_choices_is_no_failure(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MEMWALL_CACHE", str(tmp_path / "file"))
    Choices.here({}).put("source", {"BLOCK": 1})
    assert Choices.here({}).get("source") is None


def test_the_missing_compiler_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(MissingError, match=r"C\+\+ compiler and found no g\+\+ or clang\+\+"):
        need_compiler("cpu")
    monkeypatch.setenv("CXX", "icpx")
    with pytest.raises(MissingError, match=r"icpx \(from CXX\)"):
        need_compiler("cpu")
    (tmp_path / "icpx").write_text("#!/bin/sh\n")
    (tmp_path / "icpx").chmod(0o755)
    need_compiler("cpu")


@pytest.mark.parametrize(("error", "status", "fatal"), [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "out of memory", False),
    (MemoryError(), "out of memory", False),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory", False),
    (RuntimeError("CUDA error: an illegal memory access was encountered\nmore"), "failed", True),
    (RuntimeError("Triton Error [CUDA]: misaligned address"), "failed", True),
    (ValueError("odd"), "failed", False),
    (NotGenerated("a scan"), "not generated", False),
])  # fmt: skip
def test_how_an_error_is_told(error, status, fatal):
    found = failure(error)
    assert (found.status, found.fatal) == (status, fatal)
    assert found.reason and "\n" not in found.reason


def test_a_later_failure_loses_the_kernel(blocks):
    job = plan_work(blocks, blocks.simulations[0].gpu, ["eager"]).jobs[0]
    result = Result(job)
    assert result.kernel().status == "skipped"
    result.add(Ran("ok", samples_s=(1.0, 2.0)))
    assert result.kernel().status == "ok" and result.kernel().timing.median_s == 1.5
    result.add(Ran("timeout", "hung"))
    assert result.is_lost
    assert (result.kernel().status, result.kernel().timing) == ("timeout", None)


def test_a_kernel_whose_capture_failed_is_launched_plainly_from_then_on(blocks):
    """The worker that tried is given up after its answer; later blocks do not try again."""
    job = plan_work(blocks, blocks.simulations[0].gpu, ["eager"]).jobs[0]
    work = SimpleNamespace(executors=("eager",), jobs=(job,), by_weight=[job], graph=None, gpu=None)
    benchmark = BenchmarkRun(work, "cuda", "", Limits(3, steps=False), SimpleNamespace())
    asked = []

    def ask(limit_s, name, question):
        assert name == "run"
        asked.append(question.graphed)
        return Ran("ok", samples_s=(1.0,), fatal=question.graphed, graphed=False)

    benchmark.workers = {"eager": SimpleNamespace(ask=ask)}
    benchmark.run(nothing)
    assert asked == [True, False, False]
    assert benchmark.results[job.number].kernel().timing.samples == 3


def nothing(*args):
    pass


class Broken:
    """A session whose kernel fails, and whose device does not answer afterwards."""

    def __init__(self, recovers):
        self.recovers = recovers

    def run(self, question):
        raise RuntimeError("Triton Error [CUDA]: something new")

    step = copy = rest = whole = run

    def lacking(self, groups):
        return None

    def recover(self):
        if not self.recovers:
            raise RuntimeError("CUDA error")


@pytest.mark.parametrize(("recovers", "fatal"), [(True, False), (False, True)])
def test_a_device_that_does_not_answer_after_a_failure_ends_its_worker(recovers, fatal):
    answer = Questions(Broken(recovers))("run", KernelRun(0, "generated", None, 3, 1.0))
    assert (answer.status, answer.fatal) == ("failed", fatal)
    assert "something new" in answer.reason


def test_a_block_has_its_share_of_the_time_that_is_left():
    assert Limits().block_s(10) == 20.0
    assert Limits(deadline=-math.inf).block_s(10) == 0.05
    assert Limits(deadline=-math.inf).is_over


class Dead(KernelWorker):
    """A worker whose process ends with the first kernel, and cannot be started again."""

    starts = 0

    def start(self):
        if self._process is None:
            self.starts += 1
            if self.starts > 1:
                raise WorkerFailed("no device any more")
            self._process = SimpleNamespace(stop=nothing)

    def _ask(self, limit_s, *question):
        if question[0] == "begin":
            return {}
        return Ran("failed", "crashed", fatal=True)


def test_a_worker_that_cannot_start_again_loses_kernels_and_no_results():
    worker = Dead()
    worker.begin("setup")
    answers = [worker.ask(1.0, "kernel") for _ in range(5)]
    assert [answer.status for answer in answers] == ["failed", *["skipped"] * 4]
    assert "no device any more" in answers[1].reason
    assert worker.starts == 3  # the first one, and two in vain
    worker.starts = 0
    worker.begin("another setup")
    assert worker.ask(1.0, "kernel").status == "failed"
