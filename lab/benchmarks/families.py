"""Time small modules of all families on this machine's device, eager and compiled: what ``make gpu`` runs last.

    python lab/benchmarks/families.py [--device cuda] [--seconds 600] [--gpu SPEC] [--folder DIR] [--only 'conv*' ...]
                                  [--part times|report]

It writes ``profiles/measured/GPU/families_times.csv`` row by row, so a run that is cut or repeated goes on where it
stopped, and at its end the profiles of the modules that were timed, ``families_records.tar.xz`` beside it. Then it fits
the GPU's constants to one half of the modules, ``families_fitted.toml``, and scores the other half with the shipped
constants and with these: ``reports/measured_families_GPU.md``. ``memwall accuracy families_times.csv --split`` and
``--fit families_times.csv`` give the same. A row is a module timed in one way:

- ``eager``: events around one call on an idle device; the host's way is in it
- ``eager_queue``: a call of many in a row: the longer of host and device
- ``eager_graph``: replayed as a CUDA graph (on a GPU), L2 cleared before: the kernels alone, to which is fitted
- ``compile_inductor_default``: as ``eager``, compiled by ``torch.compile``

One process alone times one module after another: all of them uncompiled first. Then compilers run side by side and
fill Inductor's cache, and the compiled ones follow. A module that fails is named in ``families_failed.txt``, with why.
``--part times`` stops there, and ``--part report --gpu GPU`` does the rest, on any machine.
"""

from __future__ import annotations

import argparse
import csv
import io
import lzma
import os
import signal
import statistics
import sys
import tarfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

import torch  # noqa: E402

from benchmarks.family_modules import Case, cases  # noqa: E402
from memwall import profile  # noqa: E402
from memwall.bench.accuracy import Scored, TimedRow, read_measured, score_files  # noqa: E402
from memwall.bench.accuracy.page import AccuracyReport, FitsReport  # noqa: E402
from memwall.bench.accuracy.refit import refit  # noqa: E402
from memwall.bench.accuracy.samples import halves  # noqa: E402
from memwall.bench.clock import open_device, timing_environment  # noqa: E402
from memwall.bench.device import Device  # noqa: E402
from memwall.bench.kernels.run import device_spec  # noqa: E402
from memwall.bench.kernels.steps import module_step  # noqa: E402
from memwall.core.errors import MemwallError  # noqa: E402
from memwall.core.files import write_whole  # noqa: E402
from memwall.core.process import Child, Lost  # noqa: E402
from memwall.hardware.host import Host, load_host  # noqa: E402
from memwall.hardware.lookup import load_gpu  # noqa: E402
from memwall.report.document import Column, Document, Section, Sentence, Table  # noqa: E402
from memwall.report.markdown import to_markdown  # noqa: E402
from memwall_lab.modules import ModuleSample  # noqa: E402

COLUMNS = ("gpu", "way", "module", "mean_ms", "std_ms", "min_ms", "max_ms", "trials")
WAYS = ("eager", "eager_queue", "eager_graph", "compile_inductor_default")
COMPILED = "compile_inductor_default"
SECONDS = 600.0
PARTS = ("times", "report")
#: timings of a module in one way, and seconds after which no new one begins
TRIALS, BUDGET_S = 20, 0.4
#: the calibrated host next to the table of times; how much longer than a replay a call takes that the host decides
HOST_FILE, HOST_DECIDES = "host.toml", 1.3
#: the launches of a host, and what they are called
_HOST_WAYS = {"call": "alone", "eager": "in a row"}
#: family -> how the kinds of its modules begin; the first that fits counts
FAMILIES = {
    "depthwise convolutions": ("convdepthwise",), "convolutions": ("conv",), "norms and rows": ("norm", "rows"),
    "pooling": ("pool",), "upsampling": ("upsample",), "reductions and scans": ("reduction", "scan"),
    "element-wise, losses, indices": ("elementwise", "loss", "index"), "products": ("product",),
    "recurrent layers": ("recurrent",), "sorts": ("sort",), "others": ("",),
}  # fmt: skip
#: a module that takes longer to build, compile or run is given up
LIMIT_S = 60.0
#: share of the time after the uncompiled modules that the compilers have, and how many run at most
COMPILE_SHARE, MOST_COMPILERS = 0.6, 12


# -- in the process that times -----------------------------------------------------------------------------------------


class Timer:
    """Times modules, one after another: (name, way) -> seconds of each trial; ``compile`` only compiles."""

    def __init__(self) -> None:
        self._cases = {case.name: case for case in cases()}
        self._device: Device | None = None
        #: the last step, with its module and whether it is compiled: it is timed in several ways
        self._last: tuple[str, bool] = "", False
        self._step: Callable[[], Any] = lambda: None

    def __call__(self, kind: str, name: str, way: str) -> list[float]:
        case, device = self._cases[name], self._device or open_device(kind)
        self._device = device
        wanted = name, way in (COMPILED, "compile")
        if self._last != wanted:
            self._last, self._step = wanted, lambda: None
            torch.compiler.reset()
            device.clear()
            torch.manual_seed(0)
            self._step = module_step(case.workload(), _options(case), device.torch_device, wanted[1])
            for _ in range(1 if way == "compile" else 3):
                self._step()
            device.wait()
        return [] if way == "compile" else _TIMED[way](device, self._step)


def _options(case: Case) -> dict[str, Any]:
    """What is timed and what is modeled: a training step ends with its backward phase."""
    return {"mode": case.mode, "optimizer": None}


def _alone(device: Device, step: Callable[[], Any]) -> list[float]:
    return list(_repeated(lambda: device.alone_s(step)))


def _queued(device: Device, step: Callable[[], Any]) -> list[float]:
    """Seconds a call of calls in a row, as many as take 20 ms."""
    calls = max(2, min(int(0.02 / max(device.alone_s(step), 1e-6)), 500))

    def many() -> None:
        for _ in range(calls):
            step()

    return [seconds / calls for seconds in _repeated(lambda: device.alone_s(many), 5)]


def _replayed(device: Device, step: Callable[[], Any]) -> list[float]:
    ready = device.ready(step)
    if ready.refused:
        raise MemwallError(ready.note)
    return device.samples(ready, TRIALS, BUDGET_S)[0]


def _repeated(timed: Callable[[], float], trials: int = TRIALS) -> Iterator[float]:
    deadline = time.monotonic() + BUDGET_S
    for count in range(trials):
        if count >= 3 and time.monotonic() > deadline:
            return
        yield timed()


_TIMED: dict[str, Callable[[Device, Callable[[], Any]], list[float]]] = {
    "eager": _alone, "eager_queue": _queued, "eager_graph": _replayed, COMPILED: _alone,
}  # fmt: skip


# -- the campaign ------------------------------------------------------------------------------------------------------


class Campaign:
    """What is timed on a device, and the files that hold it."""

    def __init__(self, kind: str, gpu: str, folder: Path, wanted: Sequence[Case]) -> None:
        self.kind, self.gpu, self.wanted = kind, gpu, wanted
        self.place = folder / "profiles" / "measured" / gpu
        self.table, self.failed = self.place / "families_times.csv", self.place / "families_failed.txt"
        self.place.mkdir(parents=True, exist_ok=True)
        self._done = self._read_done()

    def run(self, seconds: float) -> None:
        """Time everything uncompiled, then compile it side by side and time that."""
        deadline = time.monotonic() + seconds
        self._time([way for way in WAYS if way != COMPILED and (self.kind, way) != ("cpu", "eager_graph")], deadline)
        left_s = deadline - time.monotonic()
        if left_s > 0:
            self._compile(time.monotonic() + left_s * COMPILE_SHARE)
            self._time([COMPILED], deadline)

    def pack(self) -> None:
        """Write the profiles of the modules that were timed, as saved records, into one archive."""
        pack(self.place / "families_records.tar.xz", self._timed_cases(), self.gpu)

    def _read_done(self) -> set[tuple[str, str]]:
        """(module, way) of what was timed, and of what failed; the last line of a file may have been cut."""
        header = ",".join(COLUMNS) + "\n"
        kept = _whole_lines(self.table)
        write_whole(self.table, kept if kept.startswith(header) else header)
        with self.table.open(encoding="utf-8", newline="") as lines:
            done = {(row["module"], row["way"]) for row in csv.DictReader(lines)}
        failed = _whole_lines(self.failed)
        if failed:
            write_whole(self.failed, failed)
        return done | {(name, way) for name, way, *_ in map(str.split, failed.splitlines())}

    def _timed_cases(self) -> list[Case]:
        names = {name for name, _ in self._done}
        return [case for case in cases() if case.name in names]

    def _compile(self, deadline: float) -> None:
        todo = [case.name for case in self.wanted if (case.name, COMPILED) not in self._done]
        count = max(1, min((os.cpu_count() or 1) - 2, MOST_COMPILERS))
        compilers, stopped = [_Worker(self.kind) for _ in range(count)], threading.Event()

        def compile_all(compiler: _Worker, names: Sequence[str]) -> list[tuple[str, str]]:
            """The modules that cannot be compiled, with why."""
            failed = []
            with closing(compiler):
                for name in names:
                    found = compiler.ask(name, "compile", deadline)
                    if stopped.is_set() or found is None:
                        break
                    if isinstance(found, str):
                        failed.append((name, found))
            return failed

        with ThreadPoolExecutor(count) as pool:
            try:
                parts = list(pool.map(compile_all, compilers, [todo[start::count] for start in range(count)]))
            except BaseException:  # an interrupt waits for no compiler
                stopped.set()
                for compiler in compilers:
                    compiler.kill()
                raise
        for name, why in (item for part in parts for item in part):
            self._keep(name, COMPILED, why)

    def _time(self, ways: Sequence[str], deadline: float) -> None:
        with closing(_Worker(self.kind)) as worker:
            for case in self.wanted:
                for way in ways:
                    if (case.name, way) in self._done:
                        continue
                    if (found := worker.ask(case.name, way, deadline)) is None:
                        return
                    self._keep(case.name, way, found)

    def _keep(self, name: str, way: str, found: list[float] | str) -> None:
        self._done.add((name, way))
        if isinstance(found, str):
            with self.failed.open("a", encoding="utf-8") as lines:
                lines.write(f"{name} {way} {found}\n")
            return
        times = [seconds * 1e3 for seconds in found]
        spread = statistics.stdev(times) if len(times) > 1 else 0.0
        numbers = (statistics.mean(times), spread, min(times), max(times))
        with self.table.open("a", encoding="utf-8", newline="") as lines:
            row = (self.gpu, way, name, *(f"{n:.6g}" for n in numbers), len(times))
            csv.writer(lines, lineterminator="\n").writerow(row)


def _whole_lines(path: Path) -> str:
    """A file's text up to its last line break; nothing where there is no file."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return text[: text.rfind("\n") + 1]


class _Worker:
    """A child process that times; a new one after a failure, which may have broken the device's library."""

    def __init__(self, kind: str) -> None:
        self._kind, self._child = kind, None

    def ask(self, name: str, way: str, deadline: float) -> list[float] | str | None:
        """Seconds of each trial; or in a line why there are none; or None: the deadline came first."""
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return None
        if self._child is None:
            folders = os.pathsep.join((str(ROOT), str(ROOT / "lab"), os.environ.get("PYTHONPATH", ""))).rstrip(
                os.pathsep
            )
            environment = {**timing_environment(self._kind), "PYTHONPATH": folders}
            self._child: Child | None = Child("benchmarks.families:Timer", environment)
        try:
            return list(self._child.ask(min(LIMIT_S, left_s), self._kind, name, way))
        except (Lost, MemwallError) as error:
            self.close()
            if left_s < LIMIT_S and getattr(error, "status", "") == "timeout":
                return None
            return " ".join(str(error).split())[:300] or "failed"

    def kill(self) -> None:
        """End the process from another thread; the one that waits for an answer closes it."""
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.stop()
            self._child = None


def pack(path: Path, timed: Sequence[Case], gpu: str) -> None:
    """Write the profiles of the modules, as saved records, into one archive."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for case in timed:
            traced = profile(case.workload(), gpu=gpu, **_options(case))
            data = traced.to_json().encode()
            entry = tarfile.TarInfo(f"{case.name}.json")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    write_whole(path, lzma.compress(whole.getvalue()))


# -- the report --------------------------------------------------------------------------------------------------------


def report(table: Path, fitted: Path) -> Document:
    """The page of a table of times: all its rows with the shipped constants, what a fit to half of the modules finds,
    and the other half with that. The fit is written to ``fitted``."""
    shipped = AccuracyReport(score_files([table], split=True)).document("md").sections[0]
    title, sections = "Small modules of all families", [replace(shipped, heading="With the shipped constants")]
    sections.insert(0, _of_the_kernels(read_measured(table).of(ModuleSample)))
    if (place := table.parent / HOST_FILE).is_file():
        sections.append(_of_the_host(read_measured(table).of(ModuleSample), load_host(place)))
    heading = "Constants fitted to half of the modules"
    try:
        found = refit(table)
    except MemwallError as error:
        return Document(title, (*sections, Section(heading, (Sentence(f"Nothing was fitted: {error}."),))))
    write_whole(fitted, found.text)
    gpu, held_out = load_gpu(fitted), halves(read_measured(table).of(ModuleSample))[1]
    rows = [replace(sample, gpu=gpu).row() for sample in held_out]
    sections += [
        replace(page.document("md").sections[0], heading=name)
        for name, page in ((heading, FitsReport(found)), ("The other half with these", AccuracyReport(Scored(rows))))
    ]
    return Document(title, tuple(sections))


def _of_the_kernels(samples: Sequence[ModuleSample]) -> Section:
    """What replays of CUDA graphs take, which are kernels alone: by family of the half that no constant may see, and
    each module."""
    rows = [(sample, sample.row()) for sample in samples if sample.launch == "graph"]
    held_out = [(family_of(sample), row) for sample, row in rows if not sample.in_fit_half]
    lines = [_family_line(name, [row for at, row in held_out if name in ("all", at)]) for name in ("all", *FAMILIES)]
    columns = (Column("family", numeric=False), *map(Column, ("modules", "median, %", "median bias, %", "inside, %")))
    note = "median: of |modeled - measured| / measured; bias: with its sign; inside: of the 80 % interval"
    each = tuple(
        (sample.module, "fitted" if sample.in_fit_half else "held out", sample.profile.workload.mode, row.dtype,
         f"{row.measured_s * 1e6:.1f}", f"{row.modeled_s * 1e6:.1f}", f"{100 * row.error:+.0f}")
        for sample, row in sorted(rows, key=lambda pair: pair[0].module)
    )  # fmt: skip
    words = tuple(Column(name, numeric=False) for name in ("module", "half", "mode", "dtype"))
    numbers = tuple(map(Column, ("measured, us", "modeled, us", "error, %")))
    tables = (Table("Modules that no constant may see", columns, tuple(filter(None, lines)), note),
              Table("All modules", (*words, *numbers), each))  # fmt: skip
    return Section("Kernels alone", tables)


def family_of(sample: ModuleSample) -> str:
    """The family of a module: the one of :data:`FAMILIES` that its kind begins with."""
    return next(name for name, kinds in FAMILIES.items() if sample.op_class.startswith(kinds))


def _family_line(name: str, rows: Sequence[TimedRow]) -> tuple[str, ...]:
    if not rows:
        return ()
    errors = [100 * row.error for row in rows]
    inside = sum((row.low_s or 0.0) <= row.measured_s <= (row.high_s or 0.0) for row in rows)
    figures = statistics.median(map(abs, errors)), statistics.median(errors), 100 * inside / len(rows)
    return name, str(len(rows)), f"{figures[0]:.0f}", f"{figures[1]:+.0f}", f"{figures[2]:.0f}"


def _of_the_host(samples: Sequence[ModuleSample], host: Host) -> Section:
    """How long calls take that the host decides, over what is modeled with the host that was calibrated there."""
    measured_s: dict[str, dict[str, float]] = defaultdict(dict)
    for sample in samples:
        measured_s[sample.module][sample.launch] = sample.measured_s
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for sample in samples:
        times = measured_s[sample.module]
        decides = {"eager", "graph"} <= times.keys() and times["eager"] > HOST_DECIDES * times["graph"]
        if decides and sample.launch in _HOST_WAYS:
            on_host = replace(sample, gpu=replace(sample.gpu, host=host))
            mode = sample.profile.workload.mode
            ratios[mode, _HOST_WAYS[sample.launch]].append(sample.measured_s / on_host.schedule().totals.time_s)
    words = (Column("mode", numeric=False), Column("call", numeric=False))
    columns = (*words, *map(Column, ("n", "median", "least", "most")))
    rows = tuple(
        (*key, str(len(found)), *(f"{ratio:.2f}" for ratio in (statistics.median(found), min(found), max(found))))
        for key, found in sorted(ratios.items())
    )
    note = f"measured over modeled, of modules whose calls in a row take {HOST_DECIDES} times a replay of their graph"
    return Section("Where the host decides", (Table("With the host that was calibrated", columns, rows, note),))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--gpu", help="the spec that models the device [as memwall measure finds it]")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for the timing [%(default)s]")
    parser.add_argument("--folder", type=Path, default=ROOT, help="write below this folder [the repository]")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=["*"], help="patterns of modules")
    parser.add_argument("--part", choices=PARTS, help="time alone, or report what was timed [both]")
    options = parser.parse_args(arguments)
    wanted = [case for case in cases() if any(fnmatch(case.name, pattern) for pattern in options.only)]
    if not wanted:
        print(f"memwall: --only: no module named {', '.join(options.only)}", file=sys.stderr)
        return 2
    parts = (options.part,) if options.part else PARTS
    try:
        if "times" in parts:
            open_device(options.device)
        gpu = load_gpu(options.gpu) if options.gpu else device_spec(options.device)
    except MemwallError as error:
        print(f"memwall: {error}; nothing was written", file=sys.stderr)
        return error.exit_code
    campaign = Campaign(options.device, gpu.name, options.folder.absolute(), wanted)
    page = options.folder.absolute() / "reports" / f"measured_families_{gpu.name}.md"
    try:
        if "times" in parts:
            campaign.run(options.seconds)
        if "report" in parts:
            campaign.pack()
            page.parent.mkdir(exist_ok=True)
            write_whole(page, to_markdown(report(campaign.table, campaign.place / "families_fitted.toml")))
    except KeyboardInterrupt:
        return 130
    except MemwallError as error:
        print(f"memwall: {error}; there is no report", file=sys.stderr)
        return error.exit_code
    written = f"; the report is {page}" if "report" in parts else ""
    print(f"{len(campaign.table.read_text().splitlines()) - 1:,} rows in {campaign.table}{written}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
