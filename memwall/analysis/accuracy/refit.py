"""Measured rows of a GPU → all its constants, fitted one table after another, and the GPU file that states them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from memwall.analysis.accuracy.fit import INTERVAL, SEED, Fit, Target, by_launch, by_target, fit
from memwall.analysis.accuracy.reading import read_measured
from memwall.analysis.accuracy.samples import Sample
from memwall.analysis.accuracy.spec_text import Constant, renamed, with_tables
from memwall.analysis.accuracy.tables.own import profile_samples
from memwall.core.errors import UsageError
from memwall.hardware.constants import CONSTANTS, names_of
from memwall.hardware.gpu import shown
from memwall.hardware.lookup import Gpu, gpu_names, spec_path
from memwall.record.profile import Profile


class Refit(NamedTuple):
    """The fits of a GPU, and the file that states them."""

    fits: list[Fit]
    text: str


def refit(path: str | Path) -> Refit:
    """Fit to the rows of one GPU: a known kind of table, or a saved profile with eager measurements.

    Raises:
        UsageError: the file cannot be read, its rows are of several GPUs, or too few for any fit.
        MissingError: scipy is not installed.
    """
    samples = _samples(Path(path))
    names = sorted({sample.gpu.name for sample in samples})
    if len(names) > 1:
        raise UsageError(f"{path} has rows of several GPUs: {', '.join(names)}; keep those of one")
    if names[0] not in gpu_names():
        raise UsageError(f"{path} has rows of the GPU {shown(names[0])}, of which memwall has no file to go by")
    fits = fit_gpu(samples)
    if not fits:
        raise UsageError(f"{path} has too few rows to fit anything: {len(samples)}")
    text = spec_path(names[0]).read_text(encoding="utf-8")
    return Refit(fits, with_tables(renamed(text, f"{names[0]}-fitted"), tables_of(fits, Path(path).name)))


def _samples(path: Path) -> list[Sample]:
    if path.suffix.lower() == ".json":
        samples = profile_samples(Profile.load(path))
    else:
        samples = read_measured(path).samples
    if not samples:
        raise UsageError(
            f"{path} has no rows that say what ran: give the saved profile of memwall measure (.json),"
            " or a table of shapes"
        )
    return samples


# -- all tables of one GPU ---------------------------------------------------------------------------------------------


def fit_gpu(
    samples: Sequence[Sample], *, search: bool = True, wanted: Callable[[Target], bool] = lambda target: True,
    seed: int = SEED,
) -> list[Fit]:  # fmt: skip
    """All tables that the samples of one GPU can fit, its ways of launching first; each fit uses the constants that
    earlier ones found.

    Raises:
        MissingError: scipy is not installed.
    """
    fits: list[Fit] = []
    gpu = samples[0].gpu
    for group in (by_launch, by_target):
        for target in sorted(group(samples)):
            if not wanted(target) or not names_of(CONSTANTS[target.family])[len(INTERVAL) :]:
                continue
            at_hand = [replace(sample, gpu=gpu) for sample in group(samples)[target]]
            if (found := fit(target, at_hand, search=search, seed=seed)) is not None:
                fits.append(found)
                gpu = fitted_gpu(gpu, [found])
    return fits


def fitted_gpu(gpu: Gpu, fits: Iterable[Fit]) -> Gpu:
    """The GPU with the constants that were found."""
    values, sources = dict(gpu.utilization), dict(gpu.fitted_on)
    for found in fits:
        table = f"{found.target.family}.{found.target.variant}"
        sources[table] = gpu.name
        values |= {f"{table}.{name}": value for name, value in found.values.items()}
    return replace(gpu, utilization=values, fitted_on=sources)


def tables_of(fits: Iterable[Fit], source: str) -> dict[str, list[Constant]]:
    """The tables of constants for a GPU's file, one for each fit; ``source`` names the rows."""
    tables = {}
    for found in fits:
        rows = source or ", ".join(found.datasets)
        said = f"fitted to {found.fitted} of {found.fitted + found.held_out} rows of {rows}"
        tables[found.target.table] = [
            Constant(name, value, said if value != found.start.get(name) else "")
            for name, value in found.values.items()
        ]
    return tables
