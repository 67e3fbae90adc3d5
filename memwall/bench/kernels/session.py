"""The process of a worker: its device, the kernels that it has built, their tensors between two questions."""

from __future__ import annotations

import contextlib
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from memwall.bench.clock import open_device
from memwall.bench.device import Ready
from memwall.bench.kernels.evaluate import CpuForms
from memwall.bench.kernels.executors import BUILDERS, BuiltKernel, Choices, KernelBuilder, choose
from memwall.bench.kernels.oracle import Oracle, OracleVerdict, check_numerics
from memwall.bench.kernels.steps import StepRunner, module_step
from memwall.bench.kernels.workers import Copied, KernelRun, Ran, Setup
from memwall.core.errors import MemwallError, Unsupported
from memwall.core.graph import Graph
from memwall.fusion import Group
from memwall.ops.registry import find_row
from memwall.record.measurement import Sensors

#: of made-up inputs
SEED = 0
#: bytes copied by kind of device, and the most of the free memory
SIZES = {"cuda": 2 << 30, "cpu": 512 << 20}
MOST_SHARE = 0.25
COPY_BUDGET_S = 10.0
#: share of the free memory that built kernels may keep between their turns
KEPT_SHARE = 0.3
#: a kernel needs about this many times the bytes of its tensors: inputs, copies to put back, outputs, checks
NEEDED = 3

#: words of an error after which a CUDA context is unusable
FATAL = ("CUDA error", "illegal memory access", "device-side assert", "unspecified launch failure",
         "misaligned address", "illegal instruction", "EXECUTION_FAILED", "cudaError")  # fmt: skip
#: words of an error that mean out of memory, and class names that do
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "Cannot allocate memory")
#: class of an error -> the status of the kernel
STATUS_OF = {"NotGenerated": "not generated", "Unsupported": "skipped", "OutOfMemoryError": "out of memory",
             "MemoryError": "out of memory", "OutOfResources": "failed"}  # fmt: skip


def failure(error: BaseException) -> Ran:
    """The error of a kernel as its result."""
    text = next((line for line in str(error).splitlines() if line.strip()), "") or type(error).__name__
    status = STATUS_OF.get(type(error).__name__, "failed")
    if any(words in str(error) for words in OUT_OF_MEMORY):
        status = "out of memory"
    fatal = status == "failed" and any(words in str(error) for words in FATAL)
    named = text if status in ("not generated", "skipped") else f"{type(error).__name__}: {text}"
    return Ran(status, named[:300], fatal=fatal)


class Questions:
    """Hands questions to the :class:`Session` of the last setup; an error is an answer."""

    def __init__(self, session: Any = None) -> None:
        self.session = session

    def __call__(self, question: str, *arguments: Any) -> Any:
        if question == "begin":
            self.session = None  # lets go of what the one before holds
            try:
                self.session = Session(*arguments)
                return self.session.device.describe()
            except MemwallError:
                raise
            except Exception as error:
                text = f"the measuring process cannot start: {type(error).__name__}: {error}"
                raise MemwallError(text[:300]) from error
        try:
            return getattr(self.session, question)(*arguments)
        except (Exception, SystemExit) as error:  # whatever a kernel or a compiler does
            result = failure(error)
        if result.status == "failed" and question in ("run", "step"):
            with contextlib.suppress(Exception):  # nothing more to say than the error
                groups = (arguments[0].group,) if question == "run" else arguments[1]
                reason = self.session.lacking(groups)
                result = Ran("skipped", reason[:300]) if reason else result
        try:
            self.session.recover()  # the traceback is gone, and with it what it held
        except Exception:  # a broken CUDA context fails whatever is asked of it
            return replace(result, fatal=True)
        return result


@dataclass
class Prepared:
    """A kernel at hand. ``ready`` is None where it failed its check."""

    verdict: OracleVerdict
    built: BuiltKernel
    config: Mapping[str, int]
    ready: Ready | None
    nbytes: int


class Session:
    """One graph on this process's device: its methods are what a worker is asked."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.device = open_device(setup.kind)
        self.device.clear()  # what the graph before this one has left is for all workers
        if setup.kind == "cpu":
            self._forms = CpuForms()
        _set_tf32(setup.graph)
        if setup.target:
            _register(setup.target)
        self._folder = Path(tempfile.mkdtemp(prefix="memwall-kernels-"))
        self._builder = KernelBuilder(setup.graph, setup.gpu, self.device.torch_device, self._folder)
        self._kept: OrderedDict[int, Prepared] = OrderedDict()
        self._verdicts: dict[int, OracleVerdict] = {}
        self._most_bytes = int(KEPT_SHARE * self.device.free_bytes())

    def recover(self) -> None:
        """Let go of everything. Raises ``RuntimeError``: the device is of no more use to this process."""
        self._kept.clear()
        self.device.clear()
        self.device.wait()

    # -- one kernel --------------------------------------------------------------------------------------------------

    def run(self, question: KernelRun) -> Ran:
        """Build, check and time a kernel."""
        if not question.samples:
            return self._compile(question)
        prepared = self._kept.pop(question.number, None) or self._prepare(question)
        self._kept[question.number] = prepared
        verdict, schedule = prepared.verdict, prepared.built.schedule
        facts: dict[str, Any] = {"error": verdict.error, "schedule": schedule, "config": dict(prepared.config)}
        if not verdict.passed or prepared.ready is None:
            return Ran("wrong", verdict.message, **facts)
        samples, sensors = self.device.samples(prepared.ready, question.samples, question.budget_s)
        self._make_room(0)
        answer = _timed(prepared.ready, verdict.message, samples, sensors, **facts)
        return replace(answer, graphed=answer.graphed and question.graphed)

    def _prepare(self, question: KernelRun) -> Prepared:
        nbytes, built, oracle = self._built(question)
        config = self._tuned(built, oracle, question)
        verdict = self._verdicts.get(question.number, OracleVerdict(True))
        if question.check and question.number not in self._verdicts:
            with_eager = question.executor != "eager"
            verdict = check_numerics(oracle, built, SEED, self.device, with_eager=with_eager)
            self._verdicts[question.number] = verdict
        ready = self._ready(built, oracle, question) if verdict.passed else None
        return Prepared(verdict, built, config, ready, nbytes)

    def _built(self, question: KernelRun) -> tuple[int, BuiltKernel, Oracle]:
        """The bytes of a kernel's tensors, the kernel, and what knows its inputs and results. Raises ``MemoryError``:
        it would not fit."""
        graph, group = self.setup.graph, question.group
        storages = {graph.values[i].storage for i in (*group.reads, *group.writes)}
        nbytes = sum(graph.storages[i].nbytes for i in storages)
        self._make_room(NEEDED * nbytes)
        free = self.device.free_bytes()
        if NEEDED * nbytes > free:
            raise MemoryError(f"needs about {NEEDED * nbytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")
        built = BUILDERS[question.executor](self._builder, group)
        return nbytes, built, Oracle(graph, self._builder.flow, group)

    def _compile(self, question: KernelRun) -> Ran:
        """Run a kernel once in each setting, so that its code is in the caches on disk."""
        _, built, oracle = self._built(question)
        values = oracle.inputs(SEED, self.device.torch_device)
        for config in built.configs or ({},):
            built.configure(config)
            built.run(*(values[i] for i in built.inputs))
            self.device.wait()
        self.device.clear()
        return Ran("ok")

    def _ready(self, built: BuiltKernel, oracle: Oracle, question: KernelRun) -> Ready:
        """The call on inputs of its own, with what it writes over put back before each sample."""
        values, graph = oracle.inputs(SEED, self.device.torch_device), self.setup.graph
        inputs = [values[i] for i in built.inputs]
        written = {graph.values[i].storage for i in (*question.group.writes, *built.outputs)}
        targets = [t for i, t in zip(built.inputs, inputs, strict=True) if graph.values[i].storage in written]
        saved = [t.clone() for t in targets]

        def restore() -> None:
            for target, old in zip(targets, saved, strict=True):
                target.copy_(old)

        return self.device.ready(lambda: built.run(*inputs), restore, graphed=question.graphed)

    def _tuned(self, built: BuiltKernel, oracle: Oracle, question: KernelRun) -> Mapping[str, int]:
        """The setting that is fastest here, set; the only one where there is no choice."""
        if not built.configs:
            return {}
        choices = Choices.here(self.device.describe())
        config = choices.get(built.source) if len(built.configs) > 1 else built.configs[0]
        if config is None:
            config = choose(built, lambda: self._ready(built, oracle, question), self.device)
            choices.put(built.source, config)
        built.configure(config)
        return config

    def _settle(self, built: BuiltKernel) -> None:
        """Give a kernel the setting that was chosen for it on this device; its own where none was."""
        if len(built.configs) > 1:
            built.configure(Choices.here(self.device.describe()).get(built.source) or built.configs[0])

    def lacking(self, groups: Iterable[Group]) -> str | None:
        """What a CPU has no kernel for, of some groups of a GPU's ops; None where the fault lies elsewhere."""
        if self.device.kind != "cpu":
            return None
        for group in groups:
            oracle = Oracle(self.setup.graph, self._builder.flow, group)
            try:
                oracle.eager(oracle.inputs(SEED))
            except Unsupported as error:
                if str(error).startswith("aten."):
                    return f"the CPU has no such kernel; {error}"
        return None

    def _make_room(self, nbytes: int) -> None:
        """Let go of the kernels that waited longest, until the others and ``nbytes`` fit."""
        before = len(self._kept)
        while self._kept and nbytes + sum(NEEDED * p.nbytes for p in self._kept.values()) > self._most_bytes:
            self._kept.popitem(last=False)
        if len(self._kept) < before:
            self.device.clear()

    # -- the step and the machine --------------------------------------------------------------------------------------

    def step(self, executor: str, groups: Sequence[Group], samples: int, budget_s: float) -> Ran:
        """Time the groups of a step one after another."""
        self.recover()
        runner = StepRunner(self.setup.graph, self._builder, executor, groups, self._settle)
        need, free = runner.peak_bytes, self.device.free_bytes()
        if need > free:
            return Ran("skipped", f"needs {need / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")
        runner.prepare(SEED, self.device.torch_device)
        ready = self.device.ready(runner.run)
        return _timed(ready, runner.note, *self.device.samples(ready, samples, budget_s))

    def whole(self, module: tuple[str, Mapping[str, Any]], compiled: bool, samples: int, budget_s: float) -> Ran:
        """Time the model itself, as its user would run it; its launches are what Python makes."""
        self.recover()
        ready = self.device.ready(module_step(*module, self.device.torch_device, compiled), graphed=False)
        return _timed(ready, "", *self.device.samples(ready, samples, budget_s))

    def copy(self, samples: int) -> Copied:
        """Time a kernel that copies a large array (a CUDA graph leaves a plain copy to engines, which are slower) and
        one addition to a single element: what the machine itself reaches."""
        self.recover()
        device = self.device
        wanted = min(SIZES[device.kind], int(MOST_SHARE * device.free_bytes()))
        source = torch.ones(wanted // 4, device=device.torch_device)
        target = torch.empty_like(source)
        copying = device.ready(lambda: torch.mul(source, 1.0, out=target))
        copied, sensors = device.samples(copying, samples, COPY_BUDGET_S)
        one = torch.ones(1, device=device.torch_device)
        floor, _ = device.samples(device.ready(lambda: one.add_(1.0)), samples, COPY_BUDGET_S)
        return Copied(2 * source.numel() * 4, tuple(copied), tuple(floor), sensors)


def _timed(ready: Ready, note: str, samples: Sequence[float], sensors: Sensors, **facts: Any) -> Ran:
    """The answer about a call that was timed. A capture that failed leaves torch's allocator and its random numbers in
    the middle of it: the next kernel gets another process."""
    reason = "; ".join(filter(None, (note, ready.note)))
    return Ran("ok", reason, tuple(samples), sensors=sensors, fatal=ready.refused, graphed=not ready.refused, **facts)


def _set_tf32(graph: Graph) -> None:
    """Let float32 products and convolutions use TF32 where the graph's did, as they are counted."""
    rows = [find_row(op.name) for op in graph.ops if op.attributes.get("allow_tf32")]
    switches = {row.tf32_switch for row in rows if row}
    torch.backends.cuda.matmul.allow_tf32 = "matmul" in switches
    torch.backends.cudnn.allow_tf32 = "cudnn" in switches


def _register(target: str) -> None:
    """Import what the workload was made from, as that registers custom ops; records and configurations hold no code."""
    from memwall.frontend.targets.loading import load_file, load_module
    from memwall.frontend.targets.target import split_target

    kind, place, _ = split_target(target)
    if kind == "file" and Path(place).is_file():
        load_file(Path(place))
    elif kind == "module" and not place.lower().endswith(".json"):
        load_module(place)
