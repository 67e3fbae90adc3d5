"""Fit how NCCL and others use the links of a cluster to measured collectives; print the lines of its file.

    python lab/fits/fit_collectives.py dgx-h100 --truth FOLDER [--protocol simple nvls ...]

FOLDER holds ``nccl_collectives.csv`` and ``vidur_allreduce.csv``. The constants of each protocol are searched from
the ones of the file in ``hardware_specs/clusters``, one protocol after another, with the fastest way taken each time,
on the half of the shapes that ``memwall accuracy --split`` calls fit. The error of both halves is printed before and
after; the same rows find the same values.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from scipy.optimize import minimize

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

from memwall.bench.accuracy import read_measured  # noqa: E402
from memwall.hardware.cluster import load_cluster  # noqa: E402
from memwall.hardware.links import Cluster, Protocol  # noqa: E402
from memwall_lab.collectives import CollectiveSample  # noqa: E402

TABLES = ("nccl_collectives.csv", "vidur_allreduce.csv")
#: a constant is searched between this part and this multiple of what the file has
_WIDEST = 4.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cluster")
    parser.add_argument("--truth", default=str(ROOT.parent / "shared" / "truth"), help="folder of measured tables")
    parser.add_argument("--protocol", nargs="*", default=(), help="protocols of its links, such as simple; all if none")
    asked = parser.parse_args()
    cluster = load_cluster(asked.cluster)
    read = [each for name in TABLES for each in read_measured(Path(asked.truth) / name).of(CollectiveSample)]
    samples = [each for each in read if each.cluster.name == cluster.name]
    if not samples:
        sys.exit(f"fit_collectives: no table has rows of {cluster.name}")
    halves = [[each for each in samples if each.in_fit_half is fit] for fit in (True, False)]
    print(f"{cluster.name}: {_errors(halves, cluster)} of {len(halves[0])} and {len(halves[1])} rows")
    for link, found in cluster.link.items():
        for name in found.protocols:
            if f"{link}.{name}" not in cluster.taken_from and (not asked.protocol or name in asked.protocol):
                cluster = fitted(cluster, link, name, halves[0])
                constants = asdict(cluster.link[link].protocols[name]).items()
                print(f"[link.{link}.protocols] {name} = {{ {', '.join(f'{k} = {v:.3g}' for k, v in constants)} }}")
                print(f"  {_errors(halves, cluster)}")


def fitted(cluster: Cluster, link: str, name: str, samples: Sequence[CollectiveSample]) -> Cluster:
    """The cluster with the constants of one protocol searched; as it was where none are better."""
    start = asdict(cluster.link[link].protocols[name])
    free = [key for key, value in start.items() if value]

    def at(point: Sequence[float]) -> Cluster:
        values = {key: start[key] * math.exp(x) for key, x in zip(free, point, strict=True)}
        values["share"] = min(values["share"], 1.0)
        found = cluster.link[link]
        protocols = {**found.protocols, name: Protocol(**{**start, **values})}
        return replace(cluster, link={**cluster.link, link: replace(found, protocols=protocols)})

    def loss(point: Sequence[float]) -> float:
        return sum(abs(math.log(ratio)) for ratio in ratios(samples, at(point))) / len(samples)

    widest = math.log(_WIDEST)
    best = minimize(loss, [0.0] * len(free), method="Nelder-Mead", bounds=[(-widest, widest)] * len(free),
                    options={"maxfev": 40 * len(free), "initial_simplex": _simplex(len(free))})  # fmt: skip
    return at(best.x) if best.fun < loss([0.0] * len(free)) else cluster


def _simplex(count: int) -> list[list[float]]:
    return [[0.2 * (i == at) for i in range(count)] for at in range(-1, count)]


def ratios(samples: Sequence[CollectiveSample], cluster: Cluster) -> list[float]:
    """Modeled over measured, of each sample."""
    return [replace(each, cluster=cluster).modeled().time_s / each.measured_s for each in samples]


def _errors(halves: Sequence[Sequence[CollectiveSample]], cluster: Cluster) -> str:
    fit, other = (100 * sum(abs(ratio - 1) for ratio in ratios(half, cluster)) / max(len(half), 1) for half in halves)
    return f"mean error {fit:.1f} % of the shapes that are fitted to, {other:.1f} % of the others"


if __name__ == "__main__":
    main()
