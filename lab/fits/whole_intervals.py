"""Print the 80 % intervals of what is more than a kernel: a server's times, and a training step on many GPUs.

    python lab/fits/whole_intervals.py --truth ../shared/truth [--rows 900] [--of served]

The output is the 10th and the 90th percentile of measured over modeled time on the fit half, and the share of the other
half between them. The numbers stand in hardware_specs/engines (rows of one engine, and TPOT of prompts and decodes
apart, where a run that several rows repeat counts once) and in memwall/training/step.py.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

from memwall.analysis.validation import TimedRow  # noqa: E402
from memwall.bench.accuracy import read_measured  # noqa: E402
from memwall.bench.accuracy.reading import thinned  # noqa: E402
from memwall.bench.accuracy.samples import halves  # noqa: E402
from memwall.bench.accuracy.scores import percentile  # noqa: E402

SERVED = ("serving_e2e",)
TRAINED = ("calculon_validation", "megatron_tables", "megatron_training", "vtrain_training", "llmfoundry_training")


def modeled(truth: Path, tables: tuple[str, ...], most: int) -> tuple[list[TimedRow], list[TimedRow]]:
    """The rows of the fit half and of the other half, of samples that are simulated about ``most``."""
    found: tuple[list[TimedRow], list[TimedRow]] = ([], [])
    for table in tables:
        for kind, samples in read_measured(truth / f"{table}.csv").samples.items():
            taken = thinned(samples, most) if kind.IS_SIMULATED else samples
            for rows, half in zip(found, halves(taken), strict=True):
                rows += kind.model(half, Counter())
    return found


def ratios(rows: list[TimedRow], op_class: str) -> list[float]:
    """Measured over modeled time of the rows of a class; of all where it is empty."""
    return [row.measured_s / row.modeled_s for row in rows if op_class in ("", row.op_class)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=900, help="deployments that are simulated")
    parser.add_argument("--of", choices=("served", "trained"), help="one of the two alone")
    options = parser.parse_args()
    print("| what | rows | 10th percentile | 90th | other rows | of them between |\n" + "|---" * 6 + "|")
    for tables in {"served": (SERVED,), "trained": (TRAINED,)}.get(options.of, (SERVED, TRAINED)):
        fit, others = modeled(options.truth, tables, options.rows)
        names = sorted({row.op_class for row in fit}) if tables is SERVED else ["a step"]
        for name in names:
            own, rest = (ratios(rows, name if tables is SERVED else "") for rows in (fit, others))
            low, high = percentile(own, 0.1), percentile(own, 0.9)
            inside = sum(low <= ratio <= high for ratio in rest) / len(rest)
            print(f"| {name} | {len(own)} | {low:.2f} | {high:.2f} | {len(rest)} | {100 * inside:.0f} % |", flush=True)


if __name__ == "__main__":
    main()
