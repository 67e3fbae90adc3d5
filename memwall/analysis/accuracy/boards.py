"""All constants of a board, fitted one table after another, and what its file is to say of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from memwall.analysis.accuracy.fit import INTERVAL, SEED, Fit, Target, by_launch, by_target, fit
from memwall.analysis.accuracy.samples import Sample
from memwall.analysis.accuracy.spec_text import Constant
from memwall.hardware.constants import CONSTANTS, names_of
from memwall.hardware.lookup import Gpu


def fit_board(
    samples: Sequence[Sample], *, search: bool = True, wanted: Callable[[Target], bool] = lambda target: True,
    seed: int = SEED,
) -> list[Fit]:  # fmt: skip
    """All tables that the samples of one board say something about, its ways of launching first; each fit knows the
    constants that those before it found.

    Raises:
        MissingError: scipy is not installed.
    """
    fits: list[Fit] = []
    board = samples[0].gpu
    for group in (by_launch, by_target):
        for target in sorted(group(samples)):
            if not wanted(target) or not names_of(CONSTANTS[target.family])[len(INTERVAL) :]:
                continue
            at_hand = [replace(sample, gpu=board) for sample in group(samples)[target]]
            if (found := fit(target, at_hand, search=search, seed=seed)) is not None:
                fits.append(found)
                board = fitted_gpu(board, [found])
    return fits


def fitted_gpu(gpu: Gpu, fits: Iterable[Fit]) -> Gpu:
    """The board with the constants that were found."""
    values, sources = dict(gpu.utilization), dict(gpu.fitted_on)
    for found in fits:
        table = f"{found.target.family}.{found.target.variant}"
        sources[table] = gpu.name
        values |= {f"{table}.{name}": value for name, value in found.values.items()}
    return replace(gpu, utilization=values, fitted_on=sources)


def tables_of(fits: Iterable[Fit], source: str) -> dict[str, list[Constant]]:
    """What a GPU's file is to say: a table of constants for each fit; ``source`` names the rows."""
    tables = {}
    for found in fits:
        rows = source or ", ".join(found.datasets)
        said = f"fitted to {found.fitted} of {found.fitted + found.held_out} rows of {rows}"
        tables[found.target.table] = [
            Constant(name, value, said if value != found.start.get(name) else "")
            for name, value in found.values.items()
        ]
    return tables
