"""Measured rows of a GPU → all its constants, fitted one table after another, and the GPU file that states them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from memwall.analysis.validation import devices
from memwall.bench.accuracy.fit import INTERVAL, Fit, Target, by_launch, by_target, fit
from memwall.bench.accuracy.reading import read_measured
from memwall.bench.accuracy.samples import Sample
from memwall.core.errors import UsageError
from memwall.core.structure import shown
from memwall.hardware.constants import CONSTANTS, names_of
from memwall.hardware.lookup import Gpu, gpu_names, spec_path
from memwall.ops import graph_costs
from memwall.record.profile import Profile
from memwall.simulate.schedule import as_launched

#: below any constant, in whatever unit
_NOTHING = 1e-12


class Refit(NamedTuple):
    """The fits of a GPU, and the file that states them."""

    fits: list[Fit]
    text: str


class Constant(NamedTuple):
    """``name = value  # source``; without a source the comment that the line has stays."""

    name: str
    value: float
    source: str = ""


def refit(path: str | Path) -> Refit:
    """Fit to the rows of one GPU: a known kind of table, or a saved profile with eager measurements. Raises UsageError:
    the file cannot be read, its rows are of several GPUs, or too few for any fit; MissingError: scipy is not
    installed."""
    source = Path(path)
    is_profile = source.suffix.lower() == ".json"
    samples = profile_samples(Profile.load(source)) if is_profile else table_samples(source)
    if not samples:
        raise UsageError(
            f"{path} has no rows that say what ran: give the saved profile of memwall measure (.json),"
            " or a table of shapes"
        )
    names = sorted({sample.gpu.name for sample in samples})
    if len(names) > 1:
        raise UsageError(f"{path} has rows of several GPUs: {', '.join(names)}; keep the rows of one")
    if names[0] not in gpu_names():
        raise UsageError(f"{path} has rows of the GPU {shown(names[0])}, of which memwall has no file to go by")
    fits = fit_gpu(samples)
    if not fits:
        raise UsageError(f"{path} has too few rows to fit anything: {len(samples)}")
    text = spec_path(names[0]).read_text(encoding="utf-8")
    return Refit(fits, with_tables(renamed(text, f"{names[0]}-fitted"), tables_of(fits, source.name)))


def table_samples(path: Path) -> list[Sample]:
    """The rows of a table that say what ran: kernels, and what else knows itself as launches of kernels."""
    found = read_measured(path)
    return [kernels for own in found.samples.values() for sample in own if (kernels := sample.kernels())]


def profile_samples(profile: Profile) -> list[Sample]:
    """The timed eager kernels of a profile that ran one op, on the GPUs that have specs. ``memwall measure`` replays a
    graph of the kernel with L2 cleared before it."""
    samples = []
    for device in devices(profile):
        gpu = next((s.gpu for s in profile.simulations if s.gpu.name == device.gpu), None)
        if gpu is None or gpu.cpu is not None:
            continue
        costs = graph_costs(device.graph)
        timed = [pair for run in device.runs if run.measurement.executor == "eager" for pair in run.measured]
        samples += [
            Sample(
                pair.dataset,
                gpu.name,
                gpu,
                pair.op_class,
                pair.dtype,
                f"{pair.kernel.name} {pair.shape}",
                costs[pair.kernel.op_ids[0]],
                "graph",
                0,
                pair.measured_s,
            )
            for pair in timed
            if len(pair.kernel.op_ids) == 1
        ]
    return samples


def fit_gpu(
    samples: Sequence[Sample],
    *,
    search: bool = True,
    wanted: Callable[[Target], bool] = lambda target: True,
    others: Sequence[Gpu] = (),
) -> list[Fit]:
    """All tables that the samples of one GPU can fit, its ways of launching first; each fit uses the constants that
    earlier ones found, and begins from the constants of ``others`` too. Raises MissingError: scipy is not installed."""
    fits: list[Fit] = []
    gpu = samples[0].gpu
    for group in (by_launch, by_target):
        for target, own in sorted(group(samples).items()):
            if not wanted(target) or not names_of(CONSTANTS[target.family])[len(INTERVAL) :]:
                continue
            run = {launch: as_launched(gpu, launch) for launch in {sample.launch for sample in own}}
            at_hand = [replace(sample, gpu=run[sample.launch]) for sample in own]
            if (found := fit(target, at_hand, search=search, others=others)) is not None:
                fits.append(found)
                gpu = _fitted(gpu, found)
    return fits


def _fitted(gpu: Gpu, found: Fit) -> Gpu:
    """The GPU with the constants that were found."""
    table = f"{found.target.family}.{found.target.variant}"
    values = {f"{table}.{name}": value for name, value in found.values.items()}
    return replace(gpu, utilization={**gpu.utilization, **values}, fitted_on={**gpu.fitted_on, table: gpu.name})


def tables_of(fits: Iterable[Fit], source: str) -> dict[str, list[Constant]]:
    """The tables of constants for a GPU's file, one for each fit; ``source`` names the rows."""
    tables = {}
    for found in fits:
        rows = source or ", ".join(found.datasets)
        said = f"fitted to {found.fitted} of {found.fitted + found.held_out} rows of {rows}"
        tables[found.target.table] = [
            Constant(name, value, said if value != found.start.get(name) else f"unchanged when {said}")
            for name, value in found.values.items()
        ]
    return tables


def with_tables(text: str, tables: Mapping[str, Sequence[Constant]]) -> str:
    """``text`` with the constants of tables such as ``utilization.gemm.float16``; every other line stays."""
    for table, constants in tables.items():
        lines, header = text.rstrip("\n").split("\n"), f"[{table}]"
        if header not in map(str.strip, lines):
            lines += ["", header]
        start = [line.strip() for line in lines].index(header) + 1
        end = next((i for i in range(start, len(lines)) if lines[i].startswith("[")), len(lines))
        rows = [line.partition("#") for line in lines[start:end] if line.strip()]
        found = {row.partition("=")[0].strip(): (row.strip(), comment.strip()) for row, _, comment in rows}
        for name, value, source in constants:
            if not source and name not in found:
                continue  # taken from another GPU, or a default: a file states what was found on its own
            found[name] = f"{name} = {number(value)}", source or found.get(name, ("", ""))[1]
        width = max(len(assignment) for assignment, _ in found.values())
        lines[start:end] = [f"{row:{width}}  # {comment}" if comment else row for row, comment in found.values()]
        lines[start + len(found) : start + len(found)] = [""] * (start + len(found) < len(lines))
        text = "\n".join(lines) + "\n"
    return text


def number(value: float) -> str:
    """Four digits, formatted as a TOML float; what is next to nothing is nothing."""
    if abs(value) < _NOTHING:
        return "0.0"
    text = f"{value:.4g}"
    if "e" in text:
        return re.sub(r"e([+-])0?(\d)", lambda m: f"e{'-' if m[1] == '-' else ''}{m[2]}", text)
    return text if "." in text else f"{text}.0"


def renamed(text: str, name: str) -> str:
    """A file's text under another name, without the aliases that belong to the first."""
    text = re.sub(r'^name = ".*"$', f'name = "{name}"', text, count=1, flags=re.MULTILINE)
    return re.sub(r"^aliases = \[.*?\]\n", "", text, count=1, flags=re.MULTILINE | re.DOTALL)
