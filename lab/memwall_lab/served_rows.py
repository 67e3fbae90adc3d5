"""Times of deployments, modeled and measured: rows that are kept as CSV, and what groups of them score."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean, median
from typing import Any

from memwall.bench.accuracy.scores import spearman
from memwall.core.files import read_csv
from memwall.hardware.engine import load_engine
from memwall_lab.deployments import FEW, Deployment, Engines, deployment_rows

#: clients up to which a load is of a band
_BANDS = ((FEW, f"1 to {FEW} clients"), (64, f"{FEW + 1} to 64 clients"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRow:
    """One figure of a deployment, seconds. ``figure`` is TPOT, TTFT or GPU seconds per token, ``kind`` whether prompts
    have engines of their own, ``engine`` as :func:`memwall.hardware.engine.load_engine` reads it, ``lengths`` tokens of
    prompts and answers; ``is_left_out``: as if nothing had been measured on the GPU."""

    dataset: str
    figure: str
    kind: str
    gpu: str
    engine: str
    model: str
    clients: int
    lengths: str
    draft_tokens: int
    told_by: str
    in_fit_half: bool
    is_left_out: bool
    modeled_s: float
    measured_s: float
    r1_s: float

    @property
    def error(self) -> float:
        return self.modeled_s / self.measured_s - 1

    @property
    def load(self) -> str:
        """The band of clients."""
        return next((name for most, name in _BANDS if self.clients <= most), "more clients")

    @property
    def is_covered(self) -> bool | None:
        """Whether the measured time is in the 80 % interval of its engine; None: the figure has none."""
        host = load_engine(self.engine).host
        host = host.apart if self.kind == "disaggregated" else host
        ends = {"TPOT": (host.tpot_low, host.tpot_high), "TTFT": (host.ttft_low, host.ttft_high)}.get(self.figure)
        return ends and ends[0] <= self.measured_s / self.modeled_s <= ends[1]


def rows_of(samples: Iterable[Deployment], engines: Engines, refused: Counter[str]) -> list[ServedRow]:
    """The figures of all deployments; why others have none is counted."""
    return [
        ServedRow(
            dataset=sample.dataset,
            figure=row.op_class.split(", ")[0],
            kind=row.op_class.split(", ")[1],
            gpu=row.gpu,
            engine=sample.engine,
            model=row.dtype,
            clients=sample.workload.concurrency or 0,
            lengths=f"{sample.workload.prompt.nominal}x{sample.workload.generate.nominal}",
            draft_tokens=sample.draft_tokens,
            told_by=sample.told_by,
            in_fit_half=sample.in_fit_half,
            is_left_out=sample.is_left_out,
            modeled_s=row.modeled_s,
            measured_s=row.measured_s,
            r1_s=row.r1_s or 0.0,
        )
        for sample in samples
        for row in deployment_rows([sample], engines, refused)
    ]


def write_rows(path: Path, rows: Sequence[ServedRow]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [item.name for item in fields(ServedRow)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, rows))


def read_rows(path: Path) -> list[ServedRow]:
    """What :func:`write_rows` wrote."""
    made: Mapping[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float, "bool": "True".__eq__}
    kinds = {item.name: made[str(item.type)] for item in fields(ServedRow)}
    return [ServedRow(**{name: kinds[name](cell) for name, cell in row.items()}) for _, row in read_csv(path)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a group of rows scores, percent: errors of the model and of R1, and the share in the 80 % interval (None:
    the figure has none); ``spearman`` is the rank correlation (None: of one row)."""

    rows: int
    median: float
    mean: float
    bias: float
    spearman: float | None
    covered: float | None
    r1_median: float
    r1_mean: float

    @classmethod
    def of(cls, rows: Sequence[ServedRow]) -> Score:
        """Of one row or more."""
        errors, others = [row.error for row in rows], [abs(row.r1_s / row.measured_s - 1) for row in rows]
        covered = [row.is_covered for row in rows if row.is_covered is not None]
        return cls(
            rows=len(rows),
            median=100 * median(map(abs, errors)),
            mean=100 * fmean(map(abs, errors)),
            bias=100 * median(errors),
            spearman=rank(rows),
            covered=100 * fmean(covered) if covered else None,
            r1_median=100 * median(others),
            r1_mean=100 * fmean(others),
        )


def rank(rows: Sequence[ServedRow]) -> float | None:
    """Spearman's correlation of modeled and measured times."""
    return spearman([row.modeled_s for row in rows], [row.measured_s for row in rows])


def by(rows: Sequence[ServedRow], key: Callable[[ServedRow], str]) -> Iterator[tuple[str, list[ServedRow]]]:
    """The rows of each value, in order."""
    for value in sorted({key(row) for row in rows}):
        yield value, [row for row in rows if key(row) == value]
