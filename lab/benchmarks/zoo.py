"""The zoo: memwall on every model of transformers, timm, diffusers, torchvision, torchaudio and torch_geometric.

    python lab/benchmarks/zoo.py [--suite transformers ...] [--name 'qwen*'] [--mode inference training] [--resume]
    python lab/benchmarks/zoo.py --report

Models are built from configurations at default shapes, with their layers cut; no weights, no network. It makes its own
environment in build/zoo (``--python`` takes one that exists). Each model is profiled in a process of its own, within a
limit, and its FLOPs are compared with torch's FlopCounterMode, where that counts the same ops. Rows go to
build/zoo/rows.jsonl as they come; ``--resume`` keeps the rows that are there. A whole run writes reports/zoo.md and
reports/zoo.csv, and says what has changed since the last one.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "zoo"
#: suite, name and mode
Case = tuple[str, str, str]
MODES = ("inference", "training")
LIMIT_S = 180.0
#: bytes that one model may take: a trace needs no weights
MEMORY_BYTES = 6 << 30
#: and on real tensors
REAL_MEMORY_BYTES = 18 << 30


@dataclass(frozen=True)
class Row:
    """What became of one model. ``status``: works, refused, crash, timeout, out of memory, not buildable (by its
    library), or not runnable (its library fails on real tensors too). ``assumed``: what the trace assumed where it
    follows from activations. ``flops`` are of the ops that the counter knows; ``counter_flops`` what it counts,
    None where it cannot run."""

    suite: str
    name: str
    mode: str
    status: str
    message: str = ""
    ops: int = 0
    parameters: int = 0
    flops: int = 0
    counter_flops: int | None = None
    seconds: float = 0.0
    assumed: str = ""

    @property
    def key(self) -> Case:
        return self.suite, self.name, self.mode


# -- in the environment of the zoo -------------------------------------------------------------------------------------


class Worker:
    """Answers with the row of a model; its libraries are imported once, and each model is run in a fork."""

    def __init__(self) -> None:
        import warnings

        warnings.simplefilter("ignore")
        from zoo_models.compiled_ops import import_compiled

        import_compiled()
        import transformers

        import memwall.frontend.hf
        import memwall.frontend.torch
        import memwall.pipeline  # noqa: F401

        transformers.logging.set_verbosity_error()

    def __call__(self, suite: str, name: str, mode: str) -> dict[str, Any]:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, REAL_MEMORY_BYTES))
        with tempfile.TemporaryDirectory() as folder:
            return asdict(self._row(suite, name, mode, Path(folder)))

    def _row(self, suite: str, name: str, mode: str, folder: Path) -> Row:
        from zoo_models.suites import SUITES, NotBuildable

        import memwall

        library = SUITES[suite]()
        try:
            target = library.workload(name, mode, folder)
        except NotBuildable as error:
            return Row(suite, name, mode, "not buildable", _line(error))
        assume = library.assumes(name, mode)
        start_s = time.process_time()
        try:
            profile = memwall.profile(target, gpu="h100", mode=mode, assume=assume)
        except memwall.MemwallError as error:
            said = _line(error).replace(str(folder), name)
            failure = _real_failure(target, mode, error) if library.gives_inputs(name, mode) else ""
            if said.startswith(_NO_LOSS) and not memwall.profile(target, gpu="h100").workload.parameters:
                failure = "the module has no parameters: there is nothing to train"
            return Row(suite, name, mode, "not runnable" if failure else "refused", failure or said)
        except MemoryError:
            return Row(suite, name, mode, "out of memory")
        except Exception as error:
            return Row(suite, name, mode, "crash", f"{type(error).__name__}: {_line(error)}")
        seconds = time.process_time() - start_s
        flops, counted = _counts(target, mode, assume)
        assumed = "; ".join(note for note in profile.notes if note.startswith("assumed"))
        return Row(
            suite, name, mode, "works", ", ".join(profile.coverage.unmodeled), len(profile.graph.ops),
            profile.workload.parameters, flops, counted, round(seconds, 2), assumed,
        )  # fmt: skip


#: how a trace in training ends where no parameter has a gradient
_NO_LOSS = "training needs a loss: no output"


def _real_failure(target: Any, mode: str, refused: BaseException) -> str:
    """What forward alone raises on real tensors, without memwall's trace: where the trace ended at the same exception
    at the same line, or memwall refused it by a look at its configuration; else nothing."""
    import resource

    import torch

    from memwall.frontend.targets import Workload, resolve
    from memwall.frontend.targets.blame import library_frame
    from memwall.frontend.torch.process.device import TracedDevice

    workload = target if isinstance(target, Workload) else resolve(target, mode=mode)
    resource.setrlimit(resource.RLIMIT_DATA, (REAL_MEMORY_BYTES, REAL_MEMORY_BYTES))
    traced = refused.__cause__
    try:
        with TracedDevice("cpu", building=True), torch.no_grad():  # what a model puts on a GPU is here
            with _unfilled():
                made = workload.model if isinstance(workload.model, torch.nn.Module) else workload.model()
            inputs = workload.inputs() if callable(workload.inputs) else workload.inputs
            module = made.train(mode == "training")
            module(**inputs) if isinstance(inputs, dict) else module(*inputs)
    except Exception as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return ""
        own = traced is None or (type(error) is type(traced) and library_frame(error) == library_frame(traced))
        return f"{type(error).__name__}: {_line(error)}" if own else ""
    return ""


def _unfilled() -> Any:
    """While open, parameters stay as their memory is: a forward that fails does so whatever they are."""
    from torch import nn
    from torch.overrides import TorchFunctionMode

    from memwall.frontend.torch.process.device import FILLERS

    class Unfilled(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            target = args[0] if args else (kwargs or {}).get("tensor")
            if func in FILLERS and isinstance(target, nn.Parameter):
                return target
            return func(*args, **(kwargs or {}))

    return Unfilled()


def _line(error: BaseException) -> str:
    return re.sub(r"[^\s(]*-packages/", "", " ".join(str(error).split()))[:300]


#: ops of a graph whose FLOPs torch's counter knows
_COUNTED = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.convolution", "aten.convolution_backward")


def _convolution_backward(grad: Any, x: Any, weight: Any, *others: Any, out_shape: Any = None) -> int:
    """FLOPs of the gradients of a convolution, each of them as many as forward's; torch's counter multiplies the FLOPs
    of a grouped one by more than its groups allow. The first arguments are shapes."""
    from torch.utils.flop_counter import conv_flop_count

    transposed, mask = others[4], others[7]
    return conv_flop_count(x, weight, grad, transposed) * sum(mask[:2])


def _corrected(count: Any) -> Any:
    """A count of torch's counter without calls on values that the trace carries along on the host; four real products
    for each of complex numbers."""

    def counted(*args: Any, out_val: Any, **kwargs: Any) -> int:
        first = out_val[0] if isinstance(out_val, (tuple, list)) else out_val
        if first is not None and not first.is_meta:
            return 0
        return count(*args, out_val=out_val, **kwargs) * (4 if first is not None and first.is_complex() else 1)

    counted._get_raw = True  # type: ignore[attr-defined]
    return counted


def _counts(target: Any, mode: str, assume: tuple[str, ...] = ()) -> tuple[int, int | None]:
    """FLOPs of one step by our formulas and by torch's counter: of the ops that the counter knows, attention as
    products. None where the step cannot run under the counter."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode, flop_registry, shape_wrapper

    from memwall.frontend.targets import Workload, resolve
    from memwall.frontend.torch import TraceOptions
    from memwall.frontend.torch.options import NEWEST_BACKENDS
    from memwall.frontend.torch.run import trace
    from memwall.ops import graph_costs

    workload = target if isinstance(target, Workload) else resolve(target, mode=mode)
    plain = NEWEST_BACKENDS._replace(preferred="math")
    counts = dict(flop_registry) | {torch.ops.aten.convolution_backward: shape_wrapper(_convolution_backward)}
    counter = FlopCounterMode(display=False, custom_mapping={op: _corrected(count) for op, count in counts.items()})

    def execute(step: Any, recorder: Any, args: Any, kwargs: Any) -> Any:
        counter.flop_counts.clear()  # some models run a part of themselves while they are built
        return step(*args, **kwargs)

    try:
        with counter:
            traced = trace(workload, TraceOptions(mode, attention=plain, assume=assume), execute=execute)
    except Exception:
        return 0, None
    costs = zip(traced.graph.ops, graph_costs(traced.graph), strict=True)
    ours = sum(cost.total_flops for op, cost in costs if ".".join(op.name.split(".")[:2]) in _COUNTED)
    return ours, int(counter.get_total_flops())


# -- the run -----------------------------------------------------------------------------------------------------------


def environment_python() -> Path:
    """The Python of the zoo's environment, which is made where it is missing."""
    folder = BUILD / "venv"
    python = folder / "bin" / "python"
    stamp = folder / ".installed"
    wanted = Path(__file__).parent / "zoo_models" / "requirements.txt"
    if not stamp.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", "-r", wanted]
        subprocess.run([*install, "-e", f"{ROOT}[hf,triton]"], check=True)
        stamp.touch()
    return python


def listed(suites: Sequence[str], patterns: Sequence[str], modes: Sequence[str]) -> list[Case]:
    """Suite, name and mode of what is to run."""
    from zoo_models.suites import SUITES

    names = [(suite, name) for suite in suites or SUITES for name in SUITES[suite]().names()]
    wanted = [(s, n) for s, n in names if not patterns or any(fnmatch.fnmatch(n, p) for p in patterns)]
    return [(suite, name, mode) for suite, name in wanted for mode in modes]


def run(cases: Sequence[Case], workers: int, rows: Path) -> None:
    """Run the cases, and add a row for each to the file as it comes."""
    from memwall.core.process import Child, environment

    variables = environment()
    variables["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parent), variables["PYTHONPATH"]))
    variables |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # a module is compiled once, not once per fork
    waiting = list(reversed(cases))
    busy: dict[Any, tuple[Case, float]] = {}
    idle: list[Any] = []
    done = 0
    with rows.open("a", encoding="utf-8") as file:
        while waiting or busy:
            while waiting and len(busy) < workers:
                child = idle.pop() if idle else Child("zoo:Worker", variables, apart=True)
                busy[child] = waiting.pop(), time.monotonic() + LIMIT_S
                child.send(*busy[child][0])
            ready = wait(list(busy), timeout=1.0)
            for child in [c for c, (_, until_s) in busy.items() if c in ready or time.monotonic() > until_s]:
                row = answer(child, busy.pop(child)[0])
                if row["status"] != "timeout" and child.alive:
                    idle.append(child)
                else:
                    child.stop()
                done += 1
                file.write(json.dumps(row) + "\n")
                file.flush()
                shown = (f"{done}/{len(cases)}", row["suite"], row["name"], row["mode"], row["status"], row["message"])
                print(" ".join(shown)[:200], flush=True)
    for child in idle:
        child.stop()


def answer(child: Any, case: Case) -> dict[str, Any]:
    """The row of a case that has ended, or is out of time."""
    from memwall.core.process import Lost

    try:
        row: dict[str, Any] = child.receive(0.0)
        return row
    except Lost as lost:
        if lost.status == "timeout":
            return asdict(Row(*case, "timeout", f"took longer than {LIMIT_S:.0f} s"))
        return asdict(Row(*case, "out of memory" if lost.status == "out of memory" else "crash", str(lost)))


def read(path: Path) -> list[Row]:
    """The rows of a file, the last of each case."""
    if not path.exists():
        return []
    rows = [Row(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return list({row.key: row for row in rows}.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", nargs="+", default=[])
    parser.add_argument("--name", nargs="+", default=[], help="patterns of names")
    parser.add_argument("--mode", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--python", type=Path, help="the Python of an environment with the libraries")
    parser.add_argument("--rows", type=Path, default=BUILD / "rows.jsonl")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the last run")
    parser.add_argument("--report", action="store_true", help="write the report of the rows that are there")
    options = parser.parse_args()
    if os.environ.get("MEMWALL_ZOO") != "1":
        BUILD.mkdir(parents=True, exist_ok=True)
        python = options.python or environment_python()
        path = os.pathsep.join((str(ROOT), str(Path(__file__).parent)))
        os.execve(python, [str(python), *sys.argv], {**os.environ, "MEMWALL_ZOO": "1", "PYTHONPATH": path})
    if not options.report:
        from zoo_models.compiled_ops import import_compiled

        import_compiled()
        known = {row.key for row in read(options.rows)} if options.resume else set()
        if not options.resume:
            options.rows.unlink(missing_ok=True)
        cases = [case for case in listed(options.suite, options.name, options.mode) if case not in known]
        run(cases, options.workers, options.rows)
    from zoo_models.report import read_csv, report, summary, write_csv

    rows = read(options.rows)
    print(summary(rows))
    if options.report or not (options.suite or options.name):
        known = ROOT / "reports" / "zoo.csv"
        text = report(rows, read_csv(known, Row))
        (ROOT / "reports" / "zoo.md").write_text(text, encoding="utf-8")
        write_csv(known, rows)


if __name__ == "__main__":
    main()
