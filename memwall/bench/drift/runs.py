"""A folder of runs: a file for each measurement, named by when it ran, its commit and its workload."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from memwall.analysis.table import group_by
from memwall.analysis.validation import Pair, devices, measurements
from memwall.bench.device import in_doubt
from memwall.bench.origin import TIME
from memwall.core.errors import UsageError
from memwall.core.files import write_whole
from memwall.core.layers import collapse
from memwall.core.structure import BadRecord, read
from memwall.frontend.facts import WorkloadInfo
from memwall.record.measurement import Measurement, Timing
from memwall.record.profile import Profile

#: a time as a record has it
EXAMPLE = "2026-11-22T05:24:55Z"
#: hexadecimal digits of a commit, as git shortens it
SHORT = 9
#: characters of a workload's name that a file's name keeps as they are
_PLAIN = re.compile(r"[^A-Za-z0-9_.]+")

#: executor, phase, module, ops, shapes and dtype; and which of several that are equal in these
KernelKey = tuple[str, ...]


@dataclass(frozen=True)
class RecordedRun:
    """One executor on one device, as a file of the folder has it. ``time`` is UTC and sorts as text; ``commit`` is
    empty outside of a repository; ``changes``: files differed from it. ``fits``: a CPU was modeled as a CPU, or a GPU
    as a GPU, without which modeled times say nothing. ``kernels``: the kernels with a time."""

    file: str
    workload: WorkloadInfo
    measurement: Measurement
    fits: bool
    kernels: Mapping[KernelKey, Pair] = field(repr=False)

    @property
    def time(self) -> str:
        return str(self.measurement.environment["time"])

    @property
    def commit(self) -> str:
        return told(self.measurement, "commit")

    @property
    def changes(self) -> bool:
        return bool(self.measurement.environment.get("changes"))

    @property
    def what(self) -> tuple[str, ...]:
        """What ran: the workload by name and options, which no two runs that are compared differ in."""
        return workload_key(self.workload)

    @property
    def series(self) -> tuple[str, ...]:
        """The runs that it is compared with: what ran, on which device, modeled as which, by which executor."""
        m = self.measurement
        return (*self.what, m.device, m.kind, m.gpu, m.executor)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why its samples are in doubt: a device that was slowed down or shared."""
        flags = (flag for pair in self.kernels.values() for flag in pair.kernel.sensors.flags)
        return in_doubt(dict.fromkeys(flags))

    def step(self, policy: str, launch: str) -> Timing | None:
        """What the whole step took, as a policy's is modeled: an eager one as the model's user runs it, one whose
        kernels wait for no host (of a CUDA graph, or on a CPU) kernel by kernel; None where that was not timed."""
        m = self.measurement
        if (policy, launch) == ("eager", "eager"):
            return _whole_step(m.environment)
        waits = launch != "graph" and m.kind != "cpu"
        return None if waits or m.policy != policy else m.step

    @property
    def place(self) -> str:
        """``2026-11-22 05:24 at 1a2b3c4d5, torch 2.11.0``: which run it is, in words."""
        at = f" at {shown_commit(self)}" if self.commit else ""
        torch = told(self.measurement, "torch")
        return f"{self.time[:16].replace('T', ' ')}{at}{f', torch {torch}' if torch else ''}"


def _whole_step(environment: Mapping[str, Any]) -> Timing | None:
    """The time of the model itself, which a record keeps as it came; None where the record has no time to read."""
    try:
        return read(Timing, environment["module_step"]["eager"]["timing"], "")
    except (BadRecord, KeyError, TypeError):
        return None


def workload_key(workload: WorkloadInfo) -> tuple[str, ...]:
    """Name, mode, dtype, optimizer and inputs: equal for runs that time the same step."""
    inputs = ", ".join(f"{row['dtype']}{list(row['shape'])}" for row in workload.inputs)
    return workload.name, workload.configuration, workload.optimizer or "", inputs


def shown_commit(run: RecordedRun) -> str:
    """``1a2b3c4d5``, or ``1a2b3c4d5 with changes``; empty where the run has none."""
    return run.commit[:SHORT] + " with changes" * run.changes


# -- keeping -----------------------------------------------------------------------------------------------------------


def checked_folder(folder: Path) -> Path:
    """The folder, before any work. Raises ``UsageError``: it is a file, it cannot be written, or it is missing and so
    is the folder around it."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"cannot keep runs in {folder}: it is no folder")
    if not folder.exists() and not folder.parent.is_dir():
        raise UsageError(f"cannot make {folder}: there is no folder {folder.parent}")
    if not os.access(folder if folder.exists() else folder.parent, os.W_OK):
        raise UsageError(f"cannot keep runs in {folder}: permission denied")
    return folder


def keep(profile: Profile, folder: Path) -> Path:
    """Write a measured profile into a folder, which is made where it is missing, as a file of its own, and return its
    path. Raises ``UsageError``: nothing was measured, or it cannot be written."""
    latest = max(measurements(profile), key=_time, default=None)
    if latest is None:
        raise UsageError("nothing was measured, so no run is kept")
    data = gzip.compress(profile.to_json().encode(), mtime=0)
    try:
        folder.mkdir(exist_ok=True)
        path = _reserved(folder, _stem(profile.workload.name, latest))
    except OSError as error:
        raise UsageError(f"cannot keep a run in {folder}: {error.strerror or error}") from None
    try:
        write_whole(path, data)
    except UsageError:
        path.unlink(missing_ok=True)
        raise
    return path


def _stem(name: str, measurement: Measurement) -> str:
    commit = _PLAIN.sub("_", told(measurement, "commit"))[:SHORT] or "no-commit"
    return "-".join((_time(measurement).replace(":", "").replace("-", ""), commit, _PLAIN.sub("_", name)[:60]))


def _reserved(folder: Path, stem: str) -> Path:
    """A path that no other run has, made as an empty file so that none takes it. Raises ``OSError``."""
    for number in count(1):
        path = folder / f"{stem}{f'-{number}' if number > 1 else ''}.json.gz"
        try:
            path.open("xb").close()
        except FileExistsError:
            continue
        return path
    raise AssertionError("unreachable")


def told(measurement: Measurement, name: str) -> str:
    """A text of the environment of a measurement; empty where it has none, or something else."""
    found = measurement.environment.get(name)
    return found if isinstance(found, str) else ""


def _time(measurement: Measurement) -> str:
    return told(measurement, "time")


# -- reading -----------------------------------------------------------------------------------------------------------


def read_runs(place: Path) -> tuple[list[RecordedRun], list[str]]:
    """The runs of a folder, or of one file, oldest first; and a line that names each file without a run. Raises
    ``UsageError``: no such folder, nothing in it, or no file in it is a run."""
    if not place.exists():
        raise UsageError(f"no such folder: {place}; memwall measure TARGET --record {place} makes it")
    found: dict[tuple[str, ...], RecordedRun] = {}
    refused: list[str] = []
    for path in _files(place):
        try:
            for run in _runs_of(path):  # a record that was measured again holds older runs too
                found.setdefault((*run.series, run.time), run)
        except UsageError as error:
            refused.append(str(error))
    if not found:
        others = f": {refused[0]}" if len(refused) == 1 else f"; {len(refused)} files are none" if refused else ""
        raise UsageError(f"{place} has no run; memwall measure TARGET --record FOLDER keeps one{others}")
    return sorted(found.values(), key=lambda run: (run.time, run.file)), refused


def _files(place: Path) -> list[Path]:
    """The file itself, or all of a folder but hidden ones."""
    if not place.is_dir():
        return [place]
    try:
        return sorted(path for path in place.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise UsageError(f"cannot read {place}: {error.strerror or error}") from None


def _runs_of(path: Path) -> list[RecordedRun]:
    """The measurements of a file that say when they ran. Raises ``UsageError``: it is no profile, it is damaged, or it
    has none."""
    if not path.name.lower().endswith((".json", ".json.gz")):
        raise UsageError(f"{path} is no run: it does not end in .json or .json.gz")
    profile = Profile.load(path)
    if not profile.measurements:
        raise UsageError(f"{path} is no run: it has no measurements")
    runs = [(run.measurement, run.measured) for device in devices(profile) for run in device.runs]
    timed = [(measurement, pairs) for measurement, pairs in runs if _is_time(_time(measurement))]
    if not timed and any(_time(measurement) for measurement, _ in runs):
        raise UsageError(f"{path} is no run: it does not say when it was measured as {EXAMPLE}, in UTC")
    if not timed:
        raise UsageError(f"{path} is no run: it does not say when it was measured, as older memwalls wrote it")
    cpus = {schedule.gpu.name for schedule in profile.simulations if schedule.gpu.cpu is not None}
    return [
        RecordedRun(path.name, profile.workload, m, (m.kind == "cpu") == (m.gpu in cpus), _by_key(m.executor, pairs))
        for m, pairs in timed
    ]


def _is_time(text: str) -> bool:
    try:
        return datetime.strptime(text, TIME).strftime(TIME) == text
    except ValueError:
        return False


def _by_key(executor: str, pairs: tuple[Pair, ...]) -> dict[KernelKey, Pair]:
    """Kernels by what they do and where, whatever their number in the step; equal ones in the order of the step."""
    ordered = sorted(pairs, key=lambda pair: pair.kernel.id)
    groups = group_by(ordered, map(partial(_described, executor), ordered))
    return {(*key, str(i)): pair for key, equal in groups.items() for i, pair in enumerate(equal)}


def _described(executor: str, pair: Pair) -> KernelKey:
    module = collapse(pair.module) if pair.kernel.repeats > 1 else pair.module
    return executor, pair.phase, module, "+".join(pair.op_names or (pair.kernel.name,)), pair.shape, pair.dtype
