"""Fit the constants of hardware_specs to measured rows; print what was found and how it does on other shapes.

    python lab/fits/fit_utilization.py --truth FOLDER [--family gemm ...] [--gpu h100-sxm ...] [--intervals] [--write]

FOLDER holds the tables that ``memwall accuracy`` reads; FILE names single ones. Without ``--write`` nothing is changed.
With it the tables ``[utilization.FAMILY.VARIANT]`` that were fitted are replaced in the GPU's file, each value with
its source; every other line is kept. A run with the same rows and files finds the same values (the search is seeded).
``--starts`` begins each search also from the constants of the other GPUs that have rows: objectives with a maximum of
terms have several minima. ``--intervals`` keeps the constants and fits only the 80 % interval.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

from memwall.bench.accuracy import Sample, read_measured  # noqa: E402
from memwall.bench.accuracy.fit import INTERVAL, Fit, Target  # noqa: E402
from memwall.bench.accuracy.page import fits_table, value_table  # noqa: E402
from memwall.bench.accuracy.refit import Constant, fit_gpu, tables_of, with_tables  # noqa: E402
from memwall.core.errors import MemwallError, UsageError  # noqa: E402
from memwall.core.files import write_whole  # noqa: E402
from memwall.hardware.lookup import Gpu, load_gpu, read_spec, spec_path  # noqa: E402
from memwall.report.document import Document, Section  # noqa: E402
from memwall.report.text import to_text  # noqa: E402


def main() -> int:
    options = _options()
    try:
        samples = read_all(options.files or sorted(Path(options.truth).glob("*.csv")))
        boards = by_board(samples)
        given = [load_gpu(name) for name in boards] if options.starts else []
        for gpu, of_gpu in boards.items():
            if not options.gpu or gpu in options.gpu:
                one_gpu(gpu, of_gpu, [other for other in given if other.name != gpu], options)
    except MemwallError as error:
        sys.stderr.write(f"fit_utilization: {error}\n")
        return error.exit_code
    return 0


def one_gpu(name: str, samples: list[Sample], others: list[Gpu], options: argparse.Namespace) -> None:
    """Fit the tables of a GPU, print what was found, and with ``--write`` state it in its file."""
    fits = fit_gpu(
        samples, search=not options.intervals, wanted=lambda target: wanted(target, options.family), others=others
    )
    blocks = (fits_table(fits), *(() if options.intervals else map(value_table, fits)))
    sys.stdout.write(to_text(Document(f"Constants of {name}", (Section("", blocks),)), width=140))
    sys.stdout.flush()
    if options.write and fits:
        write(name, fits, intervals=options.intervals)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--truth", default=str(ROOT.parent / "shared" / "truth"), help="folder of measured tables")
    parser.add_argument("--files", nargs="*", type=Path, help="single tables instead")
    parser.add_argument("--family", nargs="*", default=(), help="families or tables, as in gemm or gemm.float16")
    parser.add_argument("--gpu", nargs="*", default=(), help="GPUs by canonical name")
    parser.add_argument("--starts", action="store_true", help="begin from the constants of the other GPUs too")
    parser.add_argument("--intervals", action="store_true", help="keep the constants, fit their intervals")
    parser.add_argument("--write", action="store_true", help="change hardware_specs")
    return parser.parse_args()


def wanted(target: Target, families: tuple[str, ...]) -> bool:
    """Whether a table was asked for."""
    return not families or target.family in families or f"{target.family}.{target.variant}" in families


def read_all(paths: list[Path]) -> list[Sample]:
    """The samples of all tables that are known."""
    samples: list[Sample] = []
    for path in paths:
        try:
            samples += read_measured(path).of(Sample)
        except UsageError as error:
            sys.stderr.write(f"fit_utilization: {error}\n")
    if not samples:
        raise UsageError("there is nothing to fit to")
    return samples


def by_board(samples: list[Sample]) -> dict[str, list[Sample]]:
    """Samples by canonical name of their GPU."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.gpu.name, []).append(sample)
    return dict(sorted(found.items()))


def write(gpu: str, fits: list[Fit], *, intervals: bool) -> None:
    """Replace the fitted tables in a GPU's file."""
    stated = {f"utilization.{key.rpartition('.')[0]}" for key in read_spec(spec_path(gpu)).utilization}
    if intervals:  # inherited constants keep the interval of the other GPU
        fits = [found for found in fits if found.target.table in stated]
    tables = tables_of(fits, "")
    if intervals:
        tables = {name: _intervals(constants) for name, constants in tables.items()}
    path = spec_path(gpu)
    with _locked(path.parent):
        write_whole(path, with_tables(path.read_text(encoding="utf-8"), tables))
        read_spec(path)
    sys.stdout.write(f"wrote {path.name}: {', '.join(tables)}\n")


def _intervals(constants: list[Constant]) -> list[Constant]:
    return [
        Constant(c.name, c.value, c.source.replace("fitted to", "residuals of"))
        for c in constants
        if c.name in INTERVAL
    ]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Only one run at a time writes into a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


if __name__ == "__main__":
    sys.exit(main())
