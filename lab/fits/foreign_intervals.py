"""Print intervals that no fit of a GPU's rows finds: intervals of GPUs without rows, ``FOREIGN`` and ``UNKNOWN`` of
memwall/hardware, and intervals that whole modules tell.

    python lab/fits/foreign_intervals.py --truth ../shared/truth

Every GPU with rows is treated as if it had none, once with the most similar GPU's constants and once with the defaults.
The output is the 10th and the 90th percentile of measured over modeled time of its kernels on the fit half, each GPU
and table of equal weight, and the share of the other half between them.

KernelBench's modules on A100, A10G, L40S and T4, and ours on an H200, tell the interval of kernels that loop
(``looped``, all GPUs of equal weight); with the rows of other T4s (of equal weight) they tell how far one T4 is from
another.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

from memwall.bench.accuracy import Sample, read_measured  # noqa: E402
from memwall.bench.accuracy.fit import LEAST, by_target, parts_of, residuals  # noqa: E402
from memwall.bench.accuracy.samples import halves, held_out_gpu  # noqa: E402
from memwall.bench.accuracy.scores import percentile  # noqa: E402
from memwall.hardware.constants import CONSTANTS  # noqa: E402
from memwall.hardware.lookup import Gpu  # noqa: E402
from memwall.perfmodel.families import as_run, constants  # noqa: E402
from memwall_lab.modules import ModuleSample  # noqa: E402

TABLES = ("aiconfigurator_gemm", "aiconfigurator_attention", "neusight_ops_train_subsample", "neusight_ops_amd",
          "neusight_conv_subsample", "vidur_mlp_ops", "deepbench_gemm", "deepbench_conv", "aiconfigurator_moe",
          "aiconfigurator_mla", "aic_gated_delta", "aic_mamba2", "aic_sparse_kernels", "aic_quantize")  # fmt: skip
#: residuals drawn from each GPU and table, and the seed
DRAWN, SEED = 400, 1
#: share of a module's kernel time that one table decides
MOST_OF = 0.6


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
        parts = [[found.ratio for found in residuals(gpu, parts_of(target, half), known)] for half in halves(own)]
        if min(map(len, parts)) >= LEAST:
            pool = found.setdefault(target.family, ([], []))
            for side, values in zip(pool, parts, strict=True):
                side += drawn.choices(values, k=DRAWN)
    yield from ((family, *pool) for family, pool in sorted(found.items()))


def module_residuals(modules: Iterable[ModuleSample]) -> Iterator[tuple[str, str, bool, float]]:
    """(GPU, table, in the fit half, measured over modeled) of the eager modules whose time is one table's kernels for
    the most part, and the host's for less than half; the host's share is taken off."""
    for sample in modules:
        if sample.policy != "eager" or sample.launch not in ("call", "graph"):
            continue
        schedule, of_table = sample.schedule(), dict[str, float]()
        assert schedule.plan is not None
        for kernel, group in zip(schedule.kernels, schedule.plan.groups, strict=True):
            launch = max((as_run(item, sample.gpu) for item in group.cost.launches), key=lambda item: item.bytes)
            table = f"{launch.FAMILY}.{launch.variant}"
            of_table[table] = of_table.get(table, 0.0) + kernel.time_s
        own_s, table = sum(of_table.values()), max(of_table, key=lambda name: of_table[name])
        host_s = max(schedule.totals.time_s - own_s, 0.0)
        if host_s <= own_s and of_table[table] >= MOST_OF * own_s:
            yield sample.gpu.name, table, sample.in_fit_half, (sample.measured_s - host_s) / own_s


def drawn_equally(groups: Iterable[Sequence[float]]) -> list[float]:
    """As many of each group, with repetition."""
    draw = random.Random(SEED)
    return [value for group in groups for value in draw.choices(group, k=DRAWN)]


def of_modules(
    modules: Sequence[ModuleSample], samples: Sequence[Sample]
) -> Iterator[tuple[str, list[float], list[float]]]:
    """(name, residuals of the fit half, of the other) of what modules tell."""
    found = list(module_residuals(modules))

    def half(gpu: str, table: str, fitted: bool) -> list[float]:
        return [ratio for name, of, fits, ratio in found if (name, of, fits) == (gpu, table, fitted)]

    loops = "stream.looped"
    gpus = sorted({gpu for gpu, table, _, _ in found if table == loops})
    yield loops, *(drawn_equally(half(gpu, loops, fitted) for gpu in gpus) for fitted in (True, False))
    for target, own in sorted(by_target(sample for sample in samples if sample.gpu.name == "t4").items()):
        table = f"{target.family}.{target.variant}"
        if min(len(half("t4", table, fitted)) for fitted in (True, False)) < LEAST:
            continue
        gpu = own[0].gpu
        known = constants(CONSTANTS[target.family], gpu, target.variant)
        rows = [[found.ratio for found in residuals(gpu, parts_of(target, side), known)] for side in halves(own)]
        pooled = (
            drawn_equally((side, half("t4", table, fitted))) for side, fitted in zip(rows, (True, False), strict=True)
        )
        yield f"T4s {table}", *pooled


def main() -> int:
    """Print one line for each family and way of knowing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--truth", type=Path, default=Path("../shared/truth"), help="folder of measured tables")
    folder = parser.parse_args().truth
    samples = [s for name in TABLES for s in read_measured(folder / f"{name}.csv").of(Sample)]
    ours = ROOT / "profiles" / "measured" / "h200" / "families_times.csv"
    modules = [
        m for table in (folder / "kernelbench_v0_times.csv", ours) for m in read_measured(table).of(ModuleSample)
    ]
    lines = [("MODULES", *found) for found in of_modules(modules, samples)]
    for name, known_as in (("FOREIGN", held_out_gpu), ("UNKNOWN", bare)):
        lines += [(name, *found) for found in pools(samples, known_as)]
    for name, family, fitted, others in lines:
        low, high = percentile(fitted, 0.1), percentile(fitted, 0.9)
        inside = sum(low <= value <= high for value in others) / len(others)
        sys.stdout.write(f"{name:8} {family:12} {low:.2f} {high:.2f}, holds {inside:.0%} of the other half\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
