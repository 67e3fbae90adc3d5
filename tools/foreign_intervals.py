"""Print the intervals of GPUs without rows: ``FOREIGN`` and ``UNKNOWN`` of memwall/hardware.

    python tools/foreign_intervals.py --truth ../shared/truth

Every GPU with rows is treated as if it had none, once with the most similar GPU's constants and once with the defaults.
The output is the 10th and the 90th percentile of measured over modeled time of its kernels on the fit half, each GPU
and table of equal weight, and the share of the other half between them.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent)]

from memwall.analysis.accuracy import Sample, read_measured  # noqa: E402
from memwall.analysis.accuracy.fit import LEAST, by_target, parts_of, residuals  # noqa: E402
from memwall.analysis.accuracy.samples import halves, held_out_gpu  # noqa: E402
from memwall.analysis.accuracy.scores import percentile  # noqa: E402
from memwall.hardware.constants import CONSTANTS  # noqa: E402
from memwall.hardware.lookup import Gpu  # noqa: E402
from memwall.perfmodel.families import constants  # noqa: E402

TABLES = ("aiconfigurator_gemm", "aiconfigurator_attention", "neusight_ops_train_subsample", "neusight_ops_amd",
          "neusight_conv_subsample", "vidur_mlp_ops", "deepbench_gemm", "deepbench_conv", "aiconfigurator_moe",
          "aiconfigurator_mla")  # fmt: skip
#: residuals drawn from each GPU and table, and the seed
DRAWN, SEED = 400, 1


def bare(gpu: Gpu) -> Gpu:
    """The GPU with the defaults of every family, but its own host overhead of a launch."""
    host = {key: n for key, n in gpu.utilization.items() if key.startswith("launch.")}
    return replace(gpu, utilization=host, fitted_on={})


def pools(samples: Sequence[Sample], known_as: Callable[[Gpu], Gpu]) -> Iterator[tuple[str, list[float], list[float]]]:
    """(family, residuals of the fit half, of the other) with every GPU as ``known_as`` has it."""
    drawn = random.Random(SEED)
    found: dict[str, tuple[list[float], list[float]]] = {}
    for target, own in by_target([replace(s, gpu=known_as(s.gpu)) for s in samples]).items():
        gpu = own[0].gpu
        known = constants(CONSTANTS[target.family], gpu, target.variant)
        parts = [residuals(gpu, parts_of(target, half), known) for half in halves(own)]
        if min(map(len, parts)) >= LEAST:
            pool = found.setdefault(target.family, ([], []))
            for side, values in zip(pool, parts, strict=True):
                side += drawn.choices(values, k=DRAWN)
    yield from ((family, *pool) for family, pool in sorted(found.items()))


def main() -> int:
    """Print one line for each family and way of knowing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--truth", type=Path, default=Path("../shared/truth"), help="folder of measured tables")
    folder = parser.parse_args().truth
    samples = [s for name in TABLES for s in read_measured(folder / f"{name}.csv").samples]
    for name, known_as in (("FOREIGN", held_out_gpu), ("UNKNOWN", bare)):
        for family, fitted, others in pools(samples, known_as):
            low, high = percentile(fitted, 0.1), percentile(fitted, 0.9)
            inside = sum(low <= value <= high for value in others) / len(others)
            line = f"{name:8} {family:12} {low:.2f} {high:.2f}, holds {inside:.0%} of the other half"
            sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
