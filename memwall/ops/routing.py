"""How tokens choose experts of a mixture, and how these lie on GPUs: the rows of the experts of the slowest GPU.

Tokens are of all GPUs that share the experts. They choose

- by chance, all experts alike: of E experts ``E (1 - (1 - k/E)^T)`` are expected to get one of T tokens. GPUs that do
  not divide them hold copies of some, so that all have as many (DeepSeek's EPLB);
- by chance, some experts being more popular (``spread``, the standard deviation of normal logarithms): the sum over
  experts of ``1 - (1 - k p)^T`` get one; of the GPUs, to which they are dealt by chance, the fullest counts;
- in turn (``even``), as benchmarks do: as many as there are rows, up to all;
- by a power law (``skew`` its exponent): loads of 1 to 0.8 T tokens, or of 0.01 to 2 where there are fewer rows than
  experts, scaled to the rows that there are (aiconfigurator's ``power_law_logits_v3``);
- by ``shares`` that were counted: each token chooses expert i with the chance ``k x share``, whatever others do; of
  some draws the one whose slowest GPU is the median counts.

Experts lie on GPUs in their order, under a power law dealt by chance. Where ``redundant`` copies are made, and be it
none, they lie as DeepSeek's EPLB has them without groups (github.com/deepseek-ai/EPLB: ``replicate_experts`` and
``balanced_packing``): the next copy is of the expert with the most rows a copy, and copies, the copies of most rows
first, go to the GPU with the fewest rows that has a place.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

from memwall.core.errors import UsageError

#: (rows, experts that have so many)
Loads = tuple[tuple[int, int], ...]

#: times that the experts of a power law are dealt to GPUs, and that tokens are drawn; the median counts
_DEALS, _DRAWS = 5, 33
#: rows of the least block that tensor cores multiply: by its blocks a GPU is the slowest
_BLOCK_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRouting:
    """How tokens choose experts, and copies of them, as the module says; ``shares`` of all choices, by expert. Without
    ``redundant`` (None) experts lie in their order."""

    spread: float = 0.0
    skew: float = 0.0
    even: bool = False
    shares: tuple[float, ...] = ()
    redundant: int | None = None

    @property
    def copies(self) -> int:
        """Copies of experts, beyond one of each."""
        return self.redundant or 0

    @property
    def is_known(self) -> bool:
        """Whether no chance decides which experts have rows."""
        return self.even or self.skew > 0


BY_CHANCE, IN_TURN = ExpertRouting(), ExpertRouting(even=True)
#: the routing of served models: of 0, 0.5, 0.75, 1, 1.25 and 1.5 the spread with which times per token of mixtures are
#: off least, of half of serving_e2e.csv's (one engine, no speculation): 6 % in the median, and 10 % without a spread
TYPICAL = ExpertRouting(spread=1.0)


def expected_active(tokens: int, experts: int, top_k: int) -> float:
    """Experts that at least one of ``tokens`` is expected to choose, if each chooses ``top_k`` of them by chance."""
    return experts * (1 - (1 - top_k / experts) ** tokens)


def expected_groups(experts: int, top_k: int, groups: int) -> float:
    """Of ``groups``, each of which has as many of the experts, how many are expected to have one or more of the
    ``top_k`` different ones that a token chooses by chance."""
    others = experts - experts // groups
    return groups * (1 - math.comb(others, top_k) / math.comb(experts, top_k))


@lru_cache(maxsize=1 << 14)
def loads_of(tokens: int, experts: int, top_k: int, ep: int = 1, routing: ExpertRouting = BY_CHANCE) -> Loads:
    """Rows of the experts on the GPU that has most, of ``ep`` that share them, the fullest expert first.

    Raises:
        UsageError: a token cannot choose so many experts, or GPUs do not share so many.
    """
    if not 0 < top_k <= experts or (routing not in (BY_CHANCE, TYPICAL) and (experts + routing.copies) % ep):
        shared = experts + routing.copies
        raise UsageError(f"{top_k} of {experts} experts on {ep} GPUs: choose 1 to {experts}, and a divisor of {shared}")
    if routing.shares:
        return _counted(_drawn(tokens, top_k, ep, routing)) or ((1, 1),)
    if routing.skew:
        return _counted(_power_law(tokens, experts, top_k, ep, routing))
    if routing.even:
        return _counted(_in_turn(tokens, experts, top_k, experts // ep))
    chosen, rows = expected_active(tokens, experts, top_k) / ep, tokens * top_k / ep
    if routing.spread:
        chances = _chances(experts, top_k, ep, routing)
        chosen, rows = sum(1 - (1 - chance) ** tokens for chance in chances), tokens * sum(chances)
    active = max(round(chosen), 1)
    each, more = divmod(max(round(rows), active), active)
    return _counted([each + 1] * more + [each] * (active - more))


@lru_cache(maxsize=1 << 10)
def _chances(experts: int, top_k: int, ep: int, routing: ExpertRouting) -> list[float]:
    """The chances that a token chooses each expert, or copy, of the fullest GPU: quantiles of a lognormal law, dealt
    out, or placed with copies."""
    normal = NormalDist(sigma=routing.spread)
    popular = [math.exp(normal.inv_cdf((i + 0.5) / experts)) for i in range(experts)]
    chances, draw, found = [min(top_k * each / sum(popular), 1.0) for each in popular], random.Random(0), []
    if routing.redundant is not None:
        copies, gpus = placement(tuple(chances), routing.redundant, ep)
        return max(([chances[i] / copies[i] for i in gpu] for gpu in gpus), key=sum)
    for _ in range(_DEALS if ep > 1 else 1):
        draw.shuffle(chances)
        found.append(max((chances[gpu::ep] for gpu in range(ep)), key=sum))
    return sorted(found, key=sum)[len(found) // 2]


def _counted(rows: Iterable[int]) -> Loads:
    return tuple(sorted(((n, experts) for n, experts in Counter(rows).items() if n), reverse=True))


def _in_turn(tokens: int, experts: int, top_k: int, here: int) -> list[int]:
    """Token i chooses the experts i, i + stride, i + 2 stride, ...; fewer tokens than the stride are spread over it."""
    stride = math.ceil(experts / top_k)
    whole, rest = divmod(tokens, experts) if tokens >= stride else (0, tokens)
    step = 1 if tokens >= stride else stride / tokens
    rows = [whole * top_k] * here
    for token in range(rest):
        for choice in range(top_k):
            expert = int(token * step + choice * stride) % experts
            if expert < here:
                rows[expert] += 1
    return rows


def _power_law(tokens: int, experts: int, top_k: int, ep: int, routing: ExpertRouting) -> list[int]:
    """The quantiles of the law, dealt to the GPUs by chance or with copies: the rows of the GPU that has most."""
    low, high = (1.0, max(0.8 * tokens, 1.0)) if tokens * top_k > experts else (0.01, 2.0)
    power = 1 - routing.skew or 1e-9
    first, last = low**power, high**power
    law = [(first + (last - first) * (i + 0.5) / experts) ** (1 / power) for i in range(experts)]
    rows = [min(round(share * tokens * top_k / sum(law)), tokens) for share in law]
    if routing.redundant is not None:
        _settle([rows], tokens * top_k - sum(rows), tokens)
        copies, gpus = placement(tuple(rows), routing.redundant, ep)
        return max(([round(rows[i] / copies[i]) for i in gpu] for gpu in gpus), key=sum)
    draw, found = random.Random(0), []
    for _ in range(_DEALS):
        draw.shuffle(rows)
        here = experts // ep
        dealt = [rows[i : i + here] for i in range(0, experts, here)]
        _settle(dealt, tokens * top_k - sum(rows), tokens)
        found.append(max(dealt, key=sum))
    return sorted(found, key=sum)[_DEALS // 2]


def _settle(gpus: list[list[int]], missing: int, most: int) -> None:
    """Rows that rounding lost go to the emptiest expert of each GPU in turn, rows too many come from the fullest."""
    step = 1 if missing > 0 else -1
    while missing:
        for rows in gpus:
            expert = min(range(len(rows)), key=lambda i: step * rows[i])
            if missing and 0 <= rows[expert] + step <= most:
                rows[expert] += step
                missing -= step


def _drawn(tokens: int, top_k: int, ep: int, routing: ExpertRouting) -> list[int]:
    """Rows of each expert, or copy, of the slowest GPU in the draw in which that one is the median."""
    import numpy as np

    chances = _placed(top_k, ep, routing)
    # draws of one chance follow one another: numpy prepares each chance once
    rows = np.random.default_rng(0).binomial(tokens, chances[..., None], size=(*chances.shape, _DRAWS))
    on_gpus = rows.sum(axis=1)
    blocks = (-(-rows // _BLOCK_ROWS)).sum(axis=1) + on_gpus / (on_gpus.sum() + 1)
    draw = int(np.argsort(blocks.max(axis=0), kind="stable")[_DRAWS // 2])
    found: list[int] = rows[int(blocks[:, draw].argmax()), :, draw].tolist()
    return found


@lru_cache(maxsize=1 << 10)
def _placed(top_k: int, ep: int, routing: ExpertRouting) -> Any:
    """An array of the chances that a token chooses each expert, or copy, of each GPU."""
    import numpy as np

    copies, gpus = placement(routing.shares, routing.redundant, ep)
    return np.array([[min(top_k * routing.shares[i], 1.0) / copies[i] for i in gpu] for gpu in gpus])


@lru_cache(maxsize=1 << 10)
def placement(
    loads: tuple[float, ...], redundant: int | None, ep: int
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Copies of each expert, and the experts that each of ``ep`` GPUs has; ``loads`` are rows of the experts, or
    anything that they are in proportion to."""
    copies, here = [1] * len(loads), (len(loads) + (redundant or 0)) // ep
    if redundant is None:
        return tuple(copies), tuple(tuple(range(i, i + here)) for i in range(0, len(loads), here))
    for _ in range(redundant):
        copies[max(range(len(loads)), key=lambda i: loads[i] / copies[i])] += 1
    each = [loads[i] / copies[i] for i in range(len(loads))]
    gpus: list[list[int]] = [[] for _ in range(ep)]
    held = [0.0] * ep
    for i in sorted((i for i, n in enumerate(copies) for _ in range(n)), key=lambda i: -each[i]):
        gpu = min((gpu for gpu in range(ep) if len(gpus[gpu]) < here), key=held.__getitem__)
        gpus[gpu].append(i)
        held[gpu] += each[i]
    return tuple(copies), tuple(map(tuple, gpus))


def shares_of(counts: Sequence[float]) -> tuple[float, ...]:
    """Shares of all choices. Raises UsageError: nothing was counted."""
    if not (total := sum(counts)):
        raise UsageError("no choice was counted")
    return tuple(count / total for count in counts)
