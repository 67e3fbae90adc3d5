"""What the experts of a mixture must do on one GPU: how tokens spread over experts, formats of weights, the cost.

Tokens are those of all GPUs that share the experts; the GPU counted is the one with the most rows. Routing is one of:

- by chance, all experts alike: of E experts ``E (1 - (1 - k/E)^T)`` are expected to get one of T tokens. GPUs that do
  not divide them hold copies of some, so that all have as many (DeepSeek's EPLB);
- in turn (``even``), as benchmarks do: as many as there are rows, up to all;
- by a power law (``skew`` its exponent): loads of 1 to 0.8 T tokens, or of 0.01 to 2 where there are fewer rows than
  experts, scaled to the rows that there are (aiconfigurator's ``power_law_logits_v3``).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from memwall.core.errors import UsageError, unknown
from memwall.core.graph import Pipe
from memwall.ops.base import Cost
from memwall.ops.quantised import MXFP8, Scheme, StoredMatrix
from memwall.ops.quantised import SCHEMES as QUANTISED
from memwall.ops.serving import ExpertsLaunch

#: (rows, experts that have so many)
Loads = tuple[tuple[int, int], ...]

#: launches of a layer: sort the rows, the first product, the activation, the second product, the sum
KERNELS = 5
#: times that the experts of a power law are dealt to GPUs; the one of median load counts
_DEALS = 5
#: bytes of a number that enters or leaves the layer
_ROW_ITEMSIZE = 2


_MXFP4, _INT4 = QUANTISED["mxfp4"], QUANTISED["int4_wo"]
#: name -> format of weights and activations; the name of a dtype, or as aiconfigurator's ``moe_dtype``
SCHEMES: Mapping[str, Scheme] = {
    **{name: Scheme(weights=StoredMatrix(bits=16), pipe=name) for name in ("bfloat16", "float16")},
    **{name: QUANTISED[name] for name in ("fp8", "fp8_block", "int8_wo", "sq", "int4_wo", "nvfp4", "w4a16_nvfp4")},
    "w4afp8": replace(_INT4, activations=QUANTISED["fp8"].activations, pipe="fp8"),
    "w4a16_mxfp4": _MXFP4,
    "w4a8_mxfp4_mxfp8": replace(_MXFP4, activations=MXFP8, pipe="fp8"),
}


def expected_active(tokens: int, experts: int, top_k: int) -> float:
    """Experts that at least one of ``tokens`` is expected to choose, if each chooses ``top_k`` of them by chance."""
    return experts * (1 - (1 - top_k / experts) ** tokens)


def expected_groups(experts: int, top_k: int, groups: int) -> float:
    """Of ``groups``, each of which has as many of the experts, those expected to have one or more of the ``top_k``
    different ones that a token chooses by chance."""
    others = experts - experts // groups
    return groups * (1 - math.comb(others, top_k) / math.comb(experts, top_k))


@lru_cache(maxsize=1 << 14)
def loads_of(tokens: int, experts: int, top_k: int, ep: int = 1, *, skew: float = 0.0, even: bool = False) -> Loads:
    """Rows of the experts on the GPU that has most, of ``ep`` that share them, the fullest expert first.

    Raises:
        UsageError: a token cannot choose so many experts, or GPUs do not share so many.
    """
    if not 0 < top_k <= experts or ((skew or even) and experts % ep):
        raise UsageError(f"{top_k} of {experts} experts on {ep} GPUs: choose 1 to {experts}, and a divisor of them")
    if skew:
        return _counted(_power_law(tokens, experts, top_k, ep, skew))
    if even:
        return _counted(_in_turn(tokens, experts, top_k, experts // ep))
    active = max(round(expected_active(tokens, experts, top_k) / ep), 1)
    each, more = divmod(max(round(tokens * top_k / ep), active), active)
    return _counted([each + 1] * more + [each] * (active - more))


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


def _power_law(tokens: int, experts: int, top_k: int, ep: int, skew: float) -> list[int]:
    """The quantiles of the law, dealt to the GPUs by chance: the rows of the GPU that has most."""
    low, high = (1.0, max(0.8 * tokens, 1.0)) if tokens * top_k > experts else (0.01, 2.0)
    power = 1 - skew or 1e-9
    first, last = low**power, high**power
    law = [(first + (last - first) * (i + 0.5) / experts) ** (1 / power) for i in range(experts)]
    rows = [min(round(share * tokens * top_k / sum(law)), tokens) for share in law]
    draw, found = random.Random(0), []
    for _ in range(_DEALS):
        draw.shuffle(rows)
        here = experts // ep
        gpus = [rows[i : i + here] for i in range(0, experts, here)]
        _settle(gpus, tokens * top_k - sum(rows), tokens)
        found.append(max(gpus, key=sum))
    return sorted(found, key=sum)[_DEALS // 2]


def _settle(gpus: list[list[int]], missing: int, most: int) -> None:
    """Rows that rounding lost go to the emptiest expert of each GPU in turn, those too many from the fullest."""
    step = 1 if missing > 0 else -1
    while missing:
        for rows in gpus:
            expert = min(range(len(rows)), key=lambda i: step * rows[i])
            if missing and 0 <= rows[expert] + step <= most:
                rows[expert] += step
                missing -= step


@lru_cache(maxsize=1 << 16)
def cost_of_experts(
    tokens: int, hidden: int, inter: int, loads: Loads, scheme: str, engine: str, *, gates: int = 2, moved_rows: int = 0
) -> Cost:
    """The experts of one GPU with their ``loads``; ``inter`` are its columns of each, ``moved_rows`` the rows around
    the products if they are more. Raises UsageError: the format is not known."""
    if scheme not in SCHEMES:
        raise unknown("format of experts", scheme, SCHEMES)
    stored, acts = SCHEMES[scheme].weights, SCHEMES[scheme].activations
    work = ExpertsLaunch(
        pipe=Pipe("tensor", SCHEMES[scheme].pipe),
        engine=engine,
        scheme=scheme,
        tokens=tokens,
        hidden=hidden,
        inter=inter,
        gates=gates,
        loads=loads,
        itemsize=acts.itemsize,
        count=KERNELS,
        expert_bytes=stored.nbytes(gates * inter, hidden) + stored.nbytes(hidden, inter),
        moved_rows=max(moved_rows, sum(rows * experts for rows, experts in loads)),
    )
    moved = _ROW_ITEMSIZE * min(tokens, work.rows) * hidden
    work = replace(work, read_bytes=work.active * work.expert_bytes + moved, write_bytes=moved)
    return Cost(work.pipe_flops, work.read_bytes, work.write_bytes, launches=(work,))
