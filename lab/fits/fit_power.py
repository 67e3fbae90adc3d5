"""Print the shares of its power limit that a GPU draws: constants of memwall/perfmodel/power.py, and their errors.

    python lab/fits/fit_power.py --truth ../shared/truth

Rows are the ones with a column ``power``, of NVIDIA's collectors on a B200. Their sensor averages over longer than the
loops of most rows last: equal kernels of 4 us draw from 260 to 730 W, and a module at the same shares 480 W where it
takes 0.7 ms and 960 W where it takes 78 ms. Fitted and scored are rows of one kernel from 0.1 ms on that keep
arithmetic or traffic busy for some of the time; idle is the 5th percentile of all rows. Half of them is fitted to,
by a hash of the shape.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

from memwall.bench.accuracy.kinds import Skip  # noqa: E402
from memwall.bench.accuracy.samples import Sample, predicted  # noqa: E402
from memwall.bench.accuracy.scores import percentile  # noqa: E402
from memwall.core.files import read_csv  # noqa: E402
from memwall.perfmodel.power import COMPUTE, IDLE, MEMORY  # noqa: E402
from memwall_lab.tables import TABLES  # noqa: E402

FILES = ("aic_encoder_attention", "aic_gated_delta", "aic_mamba2", "aic_quantize", "aic_dsa_modules")
#: whose rows are many kernels
MODULES = "aic_dsa_modules"
#: seconds and busy share of the rows that are fitted to
LEAST_S, LEAST_SHARE = 1e-4, 0.15


class PowerRow(NamedTuple):
    """Watts over the limit, and the shares of the modeled time in which arithmetic and traffic alone are busy."""

    table: str
    in_fit_half: bool
    time_s: float
    drawn: float
    compute: float
    memory: float

    @property
    def is_steady(self) -> bool:
        """Whether the sensor saw the row's own power."""
        is_long = self.time_s >= LEAST_S and self.table != MODULES
        return is_long and max(self.compute, self.memory) >= LEAST_SHARE

    def modeled(self, idle: float, compute: float, memory: float) -> float:
        """The share of the limit by constants."""
        return min(idle + compute * self.compute + memory * self.memory, 1.0)


def rows_of(folder: Path) -> Iterator[PowerRow]:
    """All rows with power, of files that are there."""
    for name in FILES:
        if not (path := folder / f"{name}.csv").is_file():
            continue
        for _, record in read_csv(path):
            if not (watts := float(record["power"] or 0)):
                continue
            kind = next(kind for kind in TABLES if kind.columns <= set(record))
            try:
                samples = list(kind.read(record, path))
            except Skip:
                continue
            for sample in samples:
                assert isinstance(sample, Sample)
                found = predicted(sample)
                shares = [min(part_s / found.time_s, 1.0) for part_s in (found.compute_s, found.memory_s)]
                drawn = watts / float(record["power_limit"])
                yield PowerRow(name, sample.in_fit_half, found.time_s, drawn, *shares)


def fitted(rows: list[PowerRow]) -> tuple[float, float, float]:
    """Idle, arithmetic and traffic, as shares of the limit."""
    idle, steady = percentile([row.drawn for row in rows], 0.05), [row for row in rows if row.is_steady]

    def errors(found: np.ndarray) -> list[float]:
        return [float(np.log(row.modeled(idle, *found) / row.drawn)) for row in steady]

    best = least_squares(errors, [0.5, 0.5], bounds=(0, np.inf), loss="soft_l1", f_scale=0.1).x
    return idle, float(best[0]), float(best[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", type=Path, default=Path("../shared/truth"))
    rows = list(rows_of(parser.parse_args().truth))
    idle, compute, memory = fitted([row for row in rows if row.in_fit_half])
    print(f"fitted: idle {idle:.3f}, compute {compute:.3f}, memory {memory:.3f} of the power limit")
    parts = {
        "fitted to": [row for row in rows if row.in_fit_half and row.is_steady],
        "the other half": [row for row in rows if not row.in_fit_half and row.is_steady],
        "all rows": rows,
    }
    for name, part in parts.items():
        errors = [abs(row.modeled(IDLE, COMPUTE, MEMORY) / row.drawn - 1) for row in part]
        median, mean = statistics.median(errors), statistics.fmean(errors)
        print(f"{name}: {len(part)} rows, off by {median:.1%} in the median and {mean:.1%} in the mean")


if __name__ == "__main__":
    main()
