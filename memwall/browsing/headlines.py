"""What a list says of a record, read from what stands around its graphs and kernels."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memwall.core.errors import UsageError
from memwall.core.files import read_json, read_text
from memwall.core.structure import BadRecord, check_schema, read
from memwall.core.units import counted
from memwall.frontend.facts import WorkloadInfo
from memwall.record.format import outline
from memwall.wings import part

#: what a history says it is
HISTORY = "memwall.history"


@dataclass(frozen=True, kw_only=True)
class Headline:
    """A record in a line. ``times_s`` are the steps of its simulations; ``made``: when it was measured or committed,
    ``2026-11-22 05:24`` in UTC, and ``commit`` at which commit; both are empty where the record does not say so."""

    kind: str
    name: str
    target: str = ""
    gpus: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    times_s: tuple[float, ...] = ()
    made: str = ""
    commit: str = ""


@dataclass(frozen=True, slots=True)
class _StepTime:
    time_s: float


@dataclass(frozen=True, slots=True)
class _SimulationHead:
    gpu: str
    policy: str
    totals: _StepTime


@dataclass(frozen=True, slots=True)
class _MeasurementHead:
    environment: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _ProfileHead:
    workload: WorkloadInfo
    simulations: tuple[_SimulationHead, ...]
    measurements: tuple[_MeasurementHead, ...] = ()

    def headline(self) -> Headline:
        sims, ran = self.simulations, [m.environment for m in self.measurements]
        return Headline(
            kind="measured profile" if ran else "profile",
            name=f"{self.workload.name}, {self.workload.configuration}",
            target=self.workload.target,
            gpus=_distinct(s.gpu for s in sims),
            policies=_distinct(s.policy for s in sims),
            times_s=tuple(s.totals.time_s for s in sims),
            made=next((str(each["time"])[:16].replace("T", " ") for each in ran if "time" in each), ""),
            commit=next((str(each["commit"]) for each in ran if each.get("commit")), ""),
        )


@dataclass(frozen=True, slots=True)
class _PolicyHead:
    policy: str
    time_s: float


@dataclass(frozen=True, slots=True)
class _FusedGpuHead:
    gpu: str
    policies: tuple[_PolicyHead, ...]


@dataclass(frozen=True, slots=True)
class _FusionHead:
    workload: Mapping[str, str]
    gpus: tuple[_FusedGpuHead, ...]

    def headline(self) -> Headline:
        rows = [row for gpu in self.gpus for row in gpu.policies]
        return Headline(
            kind="fusion",
            name=", ".join(text for key, text in self.workload.items() if key != "target"),
            target=self.workload.get("target", ""),
            gpus=_distinct(gpu.gpu for gpu in self.gpus),
            policies=_distinct(row.policy for row in rows),
            times_s=tuple(row.time_s for row in rows),
        )


@dataclass(frozen=True, slots=True)
class _EngineHead:
    gpu: str


@dataclass(frozen=True, slots=True)
class _ServingHead:
    model: str
    engines: tuple[_EngineHead, ...]

    def headline(self) -> Headline:
        return Headline(kind="servers", name=self.model, gpus=_distinct(each.gpu for each in self.engines))


@dataclass(frozen=True, slots=True)
class _BoundHead:
    name: str
    target: str
    answers: tuple[_BoundAnswerHead, ...]

    def headline(self) -> Headline:
        return Headline(
            kind="bound",
            name=self.name,
            target=self.target,
            gpus=_distinct(each.gpu for each in self.answers),
            policies=_distinct(run.policy for each in self.answers for run in each.runs),
            times_s=tuple(each.time_s for each in self.answers),
        )


@dataclass(frozen=True, slots=True)
class _BoundAnswerHead:
    gpu: str
    time_s: float
    runs: tuple[_PolicyHead, ...]


#: family of a record -> what is read of it, all of version 1
_HEADS: Mapping[str, Any] = {
    "memwall.profile": _ProfileHead,
    "memwall.fusion": _FusionHead,
    "memwall.serving": _ServingHead,
    "memwall.bound": _BoundHead,
}


def headline(path: Path, family: str) -> Headline:
    """What a record of a family says in a line. Raises ``UsageError``: it is damaged, or of a newer memwall."""
    if family == HISTORY:
        return _of_history(path)
    raw = _without_items(path)
    check_schema(raw, family, 1, str(path))
    try:
        found: Headline = read(_HEADS[family], raw).headline()
    except BadRecord as error:
        raise UsageError(f"{path}: {error}") from None
    return found


def _without_items(path: Path) -> Any:
    """A record, where it can be without the items of its long lists; else whole."""
    try:
        return json.loads(outline(read_text(path)))
    except (ValueError, RecursionError):
        return read_json(path)


def _of_history(path: Path) -> Headline:
    rows = part("gate.read")(path)
    if not rows:
        raise UsageError(f"{path} is empty: there is no commit in it yet")
    count = len(dict.fromkeys(row.commit for row in rows))
    return Headline(
        kind="history",
        name=f"{', '.join(_distinct(row.workload for row in rows))}: {counted(count, 'commit')}",
        gpus=_distinct(row.gpu for row in rows),
        policies=_distinct(row.policy for row in rows),
        times_s=tuple(row.figures["time_s"] for row in rows[-1:] if "time_s" in row.figures),
        made=rows[-1].date[:16].replace("T", " "),
        commit=rows[-1].commit,
    )


def minute_of(seconds: float) -> str:
    """``2026-11-22 05:24``, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _distinct(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
