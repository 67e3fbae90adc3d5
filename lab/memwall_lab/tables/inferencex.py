"""InferenceX's lists of deployments: the engines, experts and draft tokens of rows that do not state them.

``inferencex.csv`` has each deployment with its load. A row is one of the deployments with its load that have as many
GPUs as it states: the GPUs of an engine that decodes, of all such engines, or of the deployment. Where these are
several, the rows with that load and those GPUs are theirs in the order of their times, of which rows that a run repeats
(within 5 %) count once: what speculates comes first, then what has fewer clients for each GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from memwall.core.files import read_csv
from memwall.serving.steps import Layout

#: times of runs of the same deployment
_REPEATED = 1.05
#: how much faster a deployment at least is that speculates
SPECULATES = 1.3
#: GPU, engine, weights, and tokens of prompts and answers
Load = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """Engines of a kind: how many, the GPUs of each, and what those share: ``tp`` heads and columns of experts, ``tep``
    heads, with whole experts; of ``dp`` and ``dep`` each attends to sequences of its own."""

    engines: int
    gpus: int
    split: str

    def held(self, layout: Layout) -> Layout:
        """A layout with the sizes of these engines."""
        tp, dp = (1, self.gpus) if self.split.startswith("d") else (self.gpus, 1)
        return replace(layout, tp=tp, dp=dp, ep=self.gpus if "e" in self.split else 1)


@dataclass(frozen=True, slots=True)
class Deployed:
    """A deployment; one engine has no others for prompts. ``draft_tokens``: 0 without speculation; ``copies`` and
    ``batch`` of the engines that decode, and ``prompt_tokens`` of the others, as of
    :class:`~memwall_lab.deployments.Pool`."""

    clients: tuple[int, ...]
    draft_tokens: int
    prompts: Listed
    decodes: Listed
    copies: int | None = None
    batch: int | None = None
    prompt_tokens: int | None = None

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.decode_gpus + self.prompts.engines * self.prompts.gpus

    @property
    def decode_gpus(self) -> int:
        return self.decodes.engines * self.decodes.gpus

    def distance(self, clients: int) -> float:
        """How far some clients are from those that are listed: the logarithm of the least ratio."""
        return min(abs(math.log(clients / listed)) for listed in self.clients)


@cache
def _lists() -> Mapping[Load, list[Deployed]]:
    found: dict[Load, list[Deployed]] = {}
    for _, row in read_csv(Path(__file__).with_suffix(".csv")):
        prompts, decodes = (
            Listed(int(row[f"{kind}_engines"]), int(row[f"{kind}_gpus"]), row[f"{kind}_split"])
            for kind in ("prompt", "decode")
        )
        clients = tuple(map(int, row["clients"].split()))
        copies, batch, tokens = (int(row[name]) if row[name] else None for name in ("copies", "batch", "prompt_tokens"))
        each = Deployed(clients, int(row["draft_tokens"]), prompts, decodes, copies, batch, tokens)
        found.setdefault(load_of(row, "quantisation"), []).append(each)
    return found


def load_of(record: Mapping[str, Any], weights: str = "gemm_quant_mode") -> Load:
    """What a list is of."""
    return tuple(str(record[name]).removesuffix(".0") for name in ("system", "backend", weights, "isl", "osl"))


def listed(load: Load, clients: int, gpus: int, is_whole: bool, is_apart: bool = True) -> tuple[Deployed, ...]:
    """The deployments that may be a row's. Clients that no list has are of the deployment with as many GPUs, if all are
    stated, whose clients are the nearest."""
    every = (each for each in _lists().get(load, ()) if is_apart == (each.prompts.engines > 0))
    alike = [each for each in every if gpus in (1, *_counts(each, is_whole))]
    found = [each for each in alike if clients in each.clients]
    if not found and is_whole:
        found = sorted(alike, key=lambda each: each.distance(clients))[:1]
    return tuple(sorted(found, key=lambda each: (each.draft_tokens == 0, clients / each.decode_gpus)))


def _counts(each: Deployed, is_whole: bool) -> tuple[int, ...]:
    return (each.gpus,) if is_whole else (each.decodes.gpus, each.decode_gpus)


def in_order(found: Sequence[Deployed], time_s: float, times_s: Sequence[float], slowest_s: float) -> Deployed:
    """The one of several deployments that a time belongs to, of all times that are theirs; a lone time is of one that
    speculates if the ``slowest_s`` of the load is another's."""
    firsts: list[float] = []
    for other_s in sorted(times_s):
        if not firsts or other_s > _REPEATED * firsts[-1]:
            firsts.append(other_s)
    if len(firsts) > 1:
        rank = sum(first_s <= time_s for first_s in firsts) - 1
        return found[round(rank * (len(found) - 1) / (len(firsts) - 1))]
    speculates = slowest_s > SPECULATES * time_s
    return next((each for each in found if (each.draft_tokens != 0) == speculates), found[0])
