"""Fit what matrix products of TPUs hold in training to half of the steps of MaxText's table (maxtext_tpu.csv).

    python lab/fits/fit_tpu.py TABLE

For each TPU it prints the share of their rate alone (``[power] trained_products``) with which the median of modeled
over measured time of the rows that constants may see is 1, and the errors of both halves with it.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from scipy.optimize import brentq

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

from memwall_lab.tables.training import MAXTEXT  # noqa: E402
from memwall_lab.training import TrainingSample  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", type=Path, help="maxtext_tpu.csv")
    by_tpu = defaultdict[str, list[TrainingSample]](list)
    for sample in _samples(parser.parse_args().table):
        by_tpu[sample.label].append(sample)
    for label, samples in by_tpu.items():
        seen, held = ([each for each in samples if each.in_fit_half is half] for half in (True, False))
        share = brentq(lambda share, seen=seen: median(_ratios(seen, share)) - 1, 0.5, 1.0, xtol=1e-3)
        errors = [median(abs(ratio - 1) for ratio in _ratios(rows, share)) for rows in (seen, held)]
        own = median(abs(ratio - 1) for ratio in _ratios(held))
        print(
            f"{label}: trained_products = {share:.3f}: median errors {errors[0]:.1%} of {len(seen)} rows that it sees,"
        )
        print(f"    {errors[1]:.1%} of {len(held)} others, which are {own:.1%} with the file's own")


def _samples(table: Path) -> Iterator[TrainingSample]:
    rows = (row for row in table.read_text(encoding="utf-8").splitlines() if not row.startswith("#"))
    for record in csv.DictReader(rows):
        yield from MAXTEXT.read(record, table)  # type: ignore[misc]


def _ratios(samples: Sequence[TrainingSample], share: float | None = None) -> list[float]:
    """Modeled over measured time; with another share than the file's."""
    gpus = [each.gpu if share is None else replace(each.gpu, trained_products=share) for each in samples]
    changed = [replace(each, gpu=gpu) for each, gpu in zip(samples, gpus, strict=True)]
    return [each.step().time_s / each.measured_s for each in changed]


if __name__ == "__main__":
    main()
