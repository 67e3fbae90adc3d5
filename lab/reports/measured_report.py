"""Measure the reference workloads on this machine's GPU and write what was found: what ``make gpu`` runs.

    python lab/reports/measured_report.py [--seconds 480] [--folder DIR] [--only NAME[_MODE] ...] [--no-tests]
                                      [--no-calibration] [--records DIR] [--join DIR ... --gpu GPU]

Writes ``profiles/measured/GPU/measured.json`` (every kernel, with the environment) and ``rows.csv`` (the same as a
table that ``memwall accuracy`` reads), ``reports/measured_GPU.md``, and whole records under ``build/measured/``. All are
written again after each workload, so what was measured stays when the time is cut. Without a CUDA device: one line,
exit 3, nothing written. ``--records`` takes profiles that were traced elsewhere, ``NAME_MODE.json`` each (``memwall
profile profiles/NAME/model.py --gpu GPU --mode MODE -o ...``), so that no time of the GPU goes into tracing. ``--join`` writes the report of whole records of several runs
(``build/measured`` each), later ones in place of earlier ones, on any machine.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]
for _needed in ("torch", "rich"):
    if find_spec(_needed) is None:
        print(f"memwall: {sys.executable} has no {_needed}; nothing was written", file=sys.stderr)
        sys.exit(3)

from memwall import Profile  # noqa: E402
from memwall.analysis.validation import COLUMNS, devices, rows, summary  # noqa: E402
from memwall.bench.kernels import Interrupted, WorkerPool, measure  # noqa: E402
from memwall.bench.kernels.benchmark_run import plan_work  # noqa: E402
from memwall.bench.kernels.run import DEFAULT_EXECUTORS, device_spec  # noqa: E402
from memwall.bench.kernels.workers import KernelRun, Setup  # noqa: E402
from memwall.core.errors import MemwallError, MissingError  # noqa: E402
from memwall.core.files import write_whole  # noqa: E402
from memwall.core.version import __version__  # noqa: E402
from memwall.hardware.lookup import Gpu, load_gpu  # noqa: E402
from memwall.report import render  # noqa: E402
from memwall.report.pages.profile import MeasuredReport  # noqa: E402

SCHEMA = "memwall.measured/1"
SECONDS = 480.0

#: workload and mode, in the order in which the time is spent: what is first is measured most surely
WORKLOADS = (
    ("bert_layer", "training"), ("bert_large", "training"), ("resnet50", "inference"), ("llama3_8b", "inference"),
    ("bert_layer", "inference"), ("bert_large", "inference"), ("resnet50", "training"), ("gpt2_xl", "training"),
    ("vit_l16", "training"), ("dlrm", "training"), ("llama3_8b", "training"), ("unet", "training"),
    ("mixtral_8x7b", "inference"), ("gpt2_xl", "inference"), ("vit_l16", "inference"), ("unet", "inference"),
    ("dlrm", "inference"), ("mixtral_8x7b", "training"),
)  # fmt: skip
#: workloads small enough for whole steps in their share of the time
STEPS = ("bert_layer", "bert_large", "resnet50")
#: kernels of each executor, which take most of the step; of workloads whose steps are timed
TOP, TOP_OF_STEPS = 10, 40
#: the share of time of a workload whose steps are timed, in the steps of another
STEPS_SHARE = 3.0
#: share of the time for compilers
COMPILE_SHARE = 0.4
#: seconds that the tests, the calibration and one kernel's compilation may take at most
TESTS_S, CALIBRATE_S, BUILD_S = 120.0, 60.0, 25.0
#: cores that stay free of compilers
FREE_CORES, MOST_HELPERS = 2, 14
#: kernels listed for each workload
LISTED = 8

#: "training step of a BERT-large layer": what the paper that fuses it by hand measured (Ivanov et al. 2021, V100)
PAPER_SPEEDUP = 1.30


@dataclass
class Report:
    """What was measured so far, and where it is written."""

    gpu: Gpu
    folder: Path
    notes: list[str] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)

    def write(self) -> None:
        """Write all files again."""
        place = self.folder / "profiles" / "measured" / self.gpu.name
        for path in (place, self.folder / "reports"):
            path.mkdir(parents=True, exist_ok=True)
        write_whole(place / "measured.json", json.dumps(self._record(), indent=1) + "\n")
        write_whole(place / "rows.csv", self._csv())
        write_whole(self.folder / "reports" / f"measured_{self.gpu.name}.md", self._markdown())

    def save(self, profile: Profile) -> None:
        """Keep one workload's whole record, which every command reads, out of the repository."""
        place = self.folder / "build" / "measured"
        place.mkdir(parents=True, exist_ok=True)
        profile.save(place / f"{self.gpu.name}_{profile.workload.name}_{profile.workload.mode}.json")

    def _record(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "memwall_version": __version__,
            "gpu": self.gpu.name,
            "notes": self.notes,
            "workloads": [
                {
                    "workload": profile.workload.name, "mode": profile.workload.mode,
                    "dtype": profile.workload.dtype, "summary": summary(profile),
                    "measurements": list(profile.measurements),
                }
                for profile in self.profiles
            ],
        }  # fmt: skip

    def _csv(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for profile in self.profiles:
            writer.writerows(rows(profile))
        return text.getvalue()

    def _markdown(self) -> str:
        lines = [f"# Measured on {self.gpu.full_name}", ""]
        lines += [f"- {note}" for note in self.notes]
        lines += ["", "## All workloads", "", *_overview(self.profiles), ""]
        lines += _paper(self.profiles)
        for profile in self.profiles:
            lines += ["", str(render(MeasuredReport(profile, top=LISTED), "md")).replace("\n# ", "\n## ").strip(), ""]
        return "\n".join(lines)


# -- the summary -------------------------------------------------------------------------------------------------------


def _overview(profiles: Sequence[Profile]) -> list[str]:
    """A line for each workload and executor."""
    head = ("workload", "mode", "executor", "kernels", "wrong or lost", "modeled ms", "measured ms", "error %",
            "median error %", "streaming of copy %", "above the bound", "step ms", "against eager", "inductor")  # fmt: skip
    table = [f"| {' | '.join(head)} |", "|:--|:--|:--|" + "--:|" * (len(head) - 3)]
    table += [f"| {' | '.join(line)} |" for profile in profiles for line in _lines(profile)]
    return table


def _lines(profile: Profile) -> Iterator[tuple[str, ...]]:
    for device in devices(profile):
        against = {(c.executor, c.versus): c.geomean for c in device.same_groups}
        for run in device.runs:
            m, total = run.measurement, run.total
            lost = sum(k.status in ("wrong", "failed", "timeout", "out of memory") for k in m.kernels)
            yield (
                profile.workload.name, profile.workload.mode, m.executor, f"{total.distinct} of {len(m.kernels)}",
                str(lost), _number(total.modeled_s, 1e3), _number(total.measured_s, 1e3), _number(total.error, 100),
                _number(total.median_error, 100), _number(run.streaming_of_copy, 100), str(len(run.violations)),
                _number(m.step.median_s if m.step else None, 1e3),
                _ratio(against.get((m.executor, "eager"))), _ratio(against.get((m.executor, "inductor"))),
            )  # fmt: skip


def _number(value: float | None, scale: float) -> str:
    return "" if value is None else f"{value * scale:,.2f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _paper(profiles: Sequence[Profile]) -> list[str]:
    """The training step of a BERT-large layer: our kernels and torch.compile's next to the paper's."""
    profile = next((p for p in profiles if (p.workload.name, p.workload.mode) == ("bert_layer", "training")), None)
    if profile is None:
        return []
    steps = {m["executor"]: m["step"]["median_s"] for m in profile.measurements if m["step"]}
    wholes: dict[str, Any] = next(
        (m["environment"]["module_step"] for m in profile.measurements if "module_step" in m["environment"]), {}
    )
    own = {how: found["timing"]["median_s"] for how, found in wholes.items() if found["timing"]}
    lines = ["## Training step of a BERT-large layer", ""]
    for name in ("generated", "inductor"):
        if "eager" in steps and name in steps:
            speed = steps["eager"] / steps[name]
            lines.append(f"- {name}, our groups in one CUDA graph against eager in one: {speed:.2f}x")
    if {"eager", "torch.compile"} <= own.keys():
        speed = own["eager"] / own["torch.compile"]
        lines.append(f"- torch.compile(model) against the eager model, launched from Python: {speed:.2f}x")
    return [*lines, f"- the paper that fused it by hand, on a V100: {PAPER_SPEEDUP:.2f}x", ""]


# -- the work ----------------------------------------------------------------------------------------------------------


def trace(name: str, mode: str, gpu: str, records: Path | None) -> Profile:
    """The profile of a reference workload, read where it was traced before; runs in a process of its own, so that many
    are traced at once."""
    import memwall

    if records is not None:
        return Profile.load(records / f"{name}_{mode}.json")
    return memwall.profile(ROOT / "profiles" / name / "model.py", gpu=gpu, mode=mode)


def run_tests(limit_s: float) -> str:
    """Run the tests that need a GPU, and say in a line how they ended."""
    if find_spec("pytest") is None:
        return "GPU tests: not run, pytest is not installed"
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-m", "gpu", "-p", "no:cacheprovider", "tests/gpu"]
    try:
        done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"GPU tests: cut after {limit_s:.0f} s"
    print(done.stdout[-4000:], file=sys.stderr)
    last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "no output")
    return f"GPU tests: {last.strip('= ')}"


def calibrate(gpu: Gpu, folder: Path, limit_s: float) -> str:
    """Measure the device's ceilings, and say in a line where they are."""
    place = folder / "profiles" / "measured" / gpu.name
    place.mkdir(parents=True, exist_ok=True)
    path = place / "calibrated.toml"
    command = [sys.executable, "-m", "memwall", "calibrate", "--device", "cuda", "-o", str(path)]
    try:
        done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"calibration: cut after {limit_s:.0f} s"
    if done.returncode:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no message")
        return f"calibration: failed ({last[:200]})"
    return f"calibration: {path.relative_to(folder)}"


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "lab")))}


def say(message: str) -> None:
    """A line of progress."""
    print(f"[{time.strftime('%H:%M:%S')}] {message}", file=sys.stderr, flush=True)


def measure_all(
    report: Report, wanted: Sequence[tuple[str, str]], deadline: float, *, tests: bool, calibration: bool,
    records: Path | None,
) -> None:  # fmt: skip
    """Trace everything side by side, test and calibrate, then measure one workload after another, sharing the time."""
    cores, spawn = os.cpu_count() or 1, get_context("spawn")
    with ProcessPoolExecutor(max(1, min(cores // 2, 8)), mp_context=spawn) as pool:
        traced = {pair: pool.submit(trace, *pair, report.gpu.name, records) for pair in wanted}
        if tests:
            report.notes.append(run_tests(min(TESTS_S, deadline - time.monotonic())))
            say(report.notes[-1])
        for future in traced.values():
            _settled(future)  # the calibration has the machine to itself
    if calibration:
        report.notes.append(calibrate(report.gpu, report.folder, min(CALIBRATE_S, deadline - time.monotonic())))
        say(report.notes[-1])
    kernels = _compilations(report.gpu, traced.values())
    _compile(kernels, deadline)
    with WorkerPool() as workers:
        _warm_up(workers, kernels)
        for position, pair in enumerate(wanted):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                report.notes.append(f"not reached: {', '.join(' '.join(p) for p in wanted[position:])}")
                break
            shares = [STEPS_SHARE if name in STEPS else 1.0 for name, _ in wanted[position:]]
            _measure_one(report, pair, traced[pair], left_s * shares[0] / sum(shares), workers)
    report.write()


def _compilations(gpu: Gpu, traced: Iterable[Future[Profile]]) -> list[tuple[Setup, KernelRun]]:
    """The kernels of all workloads that are to be compiled."""
    kernels = []
    for future in traced:
        with suppress(Exception):  # measuring it says why
            profile = future.result()
            work = plan_work(profile, gpu, DEFAULT_EXECUTORS["cuda"], _top(profile.workload.name))
            kernels += work.compilations("cuda", profile.workload.target)
    return kernels


def _top(workload: str) -> int:
    return TOP_OF_STEPS if workload in STEPS else TOP


def _warm_up(workers: WorkerPool, kernels: Sequence[tuple[Setup, KernelRun]]) -> None:
    """Start the workers and have each run a kernel: no workload's time goes into imports and loading of libraries."""
    if not kernels:
        return
    setup = kernels[0][0]
    names = DEFAULT_EXECUTORS["cuda"]
    with suppress(MemwallError), ThreadPoolExecutor(len(names)) as pool:
        begun = workers.begin(names, setup)
        wanted = {run.executor: replace(run, samples=1, budget_s=1.0) for each, run in kernels if each is setup}
        wanted["eager"] = replace(next(iter(wanted.values())), executor="eager")
        for name in names:
            pool.submit(begun[name].ask, BUILD_S, "run", wanted.get(name, wanted["eager"]))


def _compile(kernels: Sequence[tuple[Setup, KernelRun]], deadline: float) -> None:
    """Fill the compilers' caches, on nearly all cores, before anything is timed."""
    now = time.monotonic()
    until = now + (deadline - now) * COMPILE_SHARE
    helpers = max(0, min((os.cpu_count() or 1) - FREE_CORES, MOST_HELPERS))
    say(f"compiling {len(kernels)} kernels, {until - now:.0f} s at most")
    with WorkerPool(helpers) as pool:
        pool.compile_ahead(kernels, BUILD_S, until)


def _settled(future: Future[Profile]) -> None:
    future.exception()


def _measure_one(
    report: Report, pair: tuple[str, str], traced: Future[Profile], share_s: float, workers: WorkerPool
) -> None:
    say(f"{' '.join(pair)}: {share_s:.0f} s")
    known = list(report.profiles)
    try:
        target = str(ROOT / "profiles" / pair[0] / "model.py")
        profile = measure(
            traced.result(), device="cuda", gpu=report.gpu, top=_top(pair[0]), time_limit_s=share_s, build_limit_s=BUILD_S,
            steps=pair[0] in STEPS, pool=workers, model=(target, {"mode": pair[1]}),
        )  # fmt: skip
        report.profiles.append(profile)
        report.save(profile)
        report.write()
    except Interrupted as interrupted:
        report.profiles.append(interrupted.profile)
        report.notes.append(f"interrupted in {' '.join(pair)}")
        report.write()
        raise
    except Exception as error:  # whatever one workload does, the others get their turn
        name = "" if isinstance(error, MemwallError) else f"{type(error).__name__}: "
        first = next(iter(str(error).splitlines()), "no message")
        report.notes.append(f"{' '.join(pair)}: {name}{first}")
        say(report.notes[-1])
        report.profiles[:] = known


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for everything [%(default)s]")
    parser.add_argument("--folder", type=Path, default=ROOT, help="write below this folder [the repository]")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these workloads alone")
    parser.add_argument("--no-tests", action="store_true", help="do not run tests/gpu")
    parser.add_argument("--no-calibration", action="store_true", help="do not measure the device's ceilings")
    parser.add_argument("--records", type=Path, metavar="DIR", help="profiles traced before [trace them here]")
    parser.add_argument("--join", nargs="+", type=Path, metavar="DIR", help="report the whole records in these folders")
    parser.add_argument("--gpu", help="with --join: the GPU that they were measured on")
    parser.add_argument("--note", action="append", default=[], help="with --join: a line at the head of the report")
    options = parser.parse_args(arguments)
    if options.join:
        return join(options.join, options.gpu, options.folder.absolute(), options.note)
    deadline = time.monotonic() + options.seconds
    try:
        gpu = this_gpu()
    except MemwallError as error:
        print(f"memwall: {error}; nothing was written", file=sys.stderr)
        return error.exit_code
    wanted = [pair for pair in WORKLOADS if not options.only or {pair[0], "_".join(pair)} & {*options.only}]
    if not wanted:
        print(f"memwall: --only: no workload named {', '.join(options.only)}", file=sys.stderr)
        return 2
    report = Report(gpu, options.folder.absolute())
    try:
        measure_all(
            report, wanted, deadline, tests=not options.no_tests, calibration=not options.no_calibration,
            records=options.records,
        )  # fmt: skip
    except KeyboardInterrupt:
        return 130
    return 0


def join(folders: Sequence[Path], gpu: str | None, place: Path, notes: Sequence[str]) -> int:
    """Write the files of several runs as if they were one."""
    found = {path.name: path for folder in folders for path in sorted(folder.glob(f"{gpu}_*.json"))}
    if not found:
        print(f"memwall: no record of {gpu} in {', '.join(map(str, folders))}; nothing was written", file=sys.stderr)
        return 2
    try:
        report = Report(load_gpu(gpu), place, list(notes), [Profile.load(path) for path in found.values()])
    except MemwallError as error:
        print(f"memwall: {error}; nothing was written", file=sys.stderr)
        return error.exit_code
    order = {pair: number for number, pair in enumerate(WORKLOADS)}
    report.profiles.sort(key=lambda p: order.get((p.workload.name, p.workload.mode), len(order)))
    report.write()
    return 0


def this_gpu() -> Gpu:
    """The spec of this machine's GPU.

    Raises:
        MissingError: there is no CUDA device, or memwall has no spec of it.
    """
    import torch

    if not torch.cuda.is_available():
        raise MissingError("no CUDA device here: make gpu needs an NVIDIA GPU and a CUDA build of torch")
    return device_spec("cuda")


if __name__ == "__main__":
    sys.exit(main())
