"""``--routing`` → how the tokens of each layer choose experts, and the kernels of a model with it.

A file of counts is CSV: ``expert,count`` for all layers alike, or ``layer,expert,count``; each layer that has experts
has a row for each of them, whatever number it is given.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from memwall.core.errors import UsageError, suggest
from memwall.core.files import read_csv, whole
from memwall.core.units import counted
from memwall.ops.routing import BY_CHANCE, TYPICAL, ExpertRouting, shares_of
from memwall.serving.steps.kernels import Experts, StepKernel
from memwall.serving.steps.plan import ServedKernels

#: what the option's words are called; anything else is a file
_WORDS, _POWER_LAW = {"typical": TYPICAL, "balanced": BY_CHANCE}, "power-law"

#: the largest exponent: with more, nearly all experts have as few tokens as any, and so all are alike again
_MOST_SKEW = 2

#: counts of a file beyond which sums lose digits
_MOST_COUNT = 1e18


def read_routing(text: str, redundant: int | None = None) -> tuple[ExpertRouting, ...]:
    """The routing of all layers alike, or of each; ``redundant`` copies of experts as of :class:`ExpertRouting`.

    Raises:
        UsageError: no exponent above 0 and up to 2, or copies of experts that are all alike; no such file, or one with
            gaps or wrong numbers.
    """
    name, colon, exponent = text.partition(":")
    if text in _WORDS:
        if redundant is not None and not _WORDS[text].spread:
            raise UsageError(
                f"--redundant copies the experts with most rows, and no one says which of {text} ones these are: say"
                " --routing typical, power-law:ALPHA or a file of counts"
            )
        return (replace(_WORDS[text], redundant=redundant),)
    if name == _POWER_LAW:
        try:
            skew = float(exponent)
        except ValueError:
            skew = math.nan
        if not (colon and 0 < skew <= _MOST_SKEW):
            wanted = f"want an exponent above 0 and up to {_MOST_SKEW}, such as power-law:1.2"
            raise UsageError(f"--routing {text[:40]}: {wanted}")
        return (ExpertRouting(skew=skew, redundant=redundant),)
    return tuple(ExpertRouting(shares=shares_of(counts), redundant=redundant) for counts in _layers(text))


def _layers(path: str) -> list[list[float]]:
    """Counts of the experts of each layer, in the order of the layers' numbers."""
    found: dict[int, dict[int, float]] = {}
    for line, record in read_csv(path):
        for missing in (column for column in ("expert", "count") if column not in record):
            raise UsageError(f"{path}: no column {missing}; {suggest(missing, record)}")
        where = f"{path}:{line}"
        layer, expert = (_whole(record, name, where) for name in ("layer", "expert"))
        if expert in found.setdefault(layer, {}):
            raise UsageError(f"{where}: expert {expert} of layer {layer} has two rows")
        found[layer][expert] = _count(record, where)
    if not found:
        raise UsageError(f"{path} has no row; want expert,count or layer,expert,count")
    experts = max(max(layer) for layer in found.values()) + 1
    for number, counts in found.items():
        if gaps := [i for i in range(experts) if i not in counts]:
            raise UsageError(f"{path}: layer {number} has no row of expert {gaps[0]}; want one for each of {experts}")
        if not any(counts.values()):
            raise UsageError(f"{path}: layer {number} has no token")
    return [[counts[i] for i in range(experts)] for _, counts in sorted(found.items())]


def _whole(record: Mapping[str, str], name: str, where: str) -> int:
    text = record.get(name, "0")
    if (found := whole(text)) is None:
        raise UsageError(f"{where}: {name} is {text.strip()[:40]!r}, not a whole number from 0")
    return found


def _count(record: Mapping[str, str], where: str) -> float:
    try:
        found = float(record["count"])
    except ValueError:
        found = math.nan
    if not 0 <= found < _MOST_COUNT:
        raise UsageError(f"{where}: count is {record['count'][:40]!r}, not a number from 0")
    return found


def routed(served: ServedKernels, layers: tuple[ExpertRouting, ...]) -> ServedKernels:
    """The kernels of a model whose tokens choose experts so.

    Raises:
        UsageError: it has no experts, or other numbers of layers or of experts; or more tokens chose an expert than
            there were.
    """
    mixtures = sum(n for kernel, n in served.kernels if isinstance(kernel, Experts))
    if layers == (BY_CHANCE,) or (layers == (TYPICAL,) and not mixtures):
        return served
    if not mixtures:
        raise UsageError("--routing, --redundant: the model has no experts among which tokens choose")
    if len(layers) not in (1, mixtures):
        raise UsageError(
            f"--routing: the file has {counted(len(layers), 'layer')}, the model {mixtures} with experts; leave out"
            " the column layer where all are alike"
        )
    rest = iter(layers * (mixtures if len(layers) == 1 else 1))
    kernels: Counter[StepKernel] = Counter()
    for kernel, n in served.kernels:
        if isinstance(kernel, Experts):
            kernels.update(_with(kernel, next(rest)) for _ in range(n))
        else:
            kernels[kernel] += n
    return replace(served, kernels=tuple(kernels.items()), layer=tuple(_last(served.layer, layers[-1])))


def _last(kernels: Iterable[StepKernel], routing: ExpertRouting) -> Iterable[StepKernel]:
    return (_with(kernel, routing) if isinstance(kernel, Experts) else kernel for kernel in kernels)


def _with(kernel: Experts, routing: ExpertRouting) -> Experts:
    if routing.shares:
        if len(routing.shares) != kernel.count:
            raise UsageError(f"--routing: the file has {len(routing.shares)} experts, the model {kernel.count}")
        most = max(routing.shares)
        if kernel.top_k * most > 1 + 1e-9:
            raise UsageError(
                f"--routing: expert {routing.shares.index(most)} has {100 * most:.3g} % of the choices, and as each"
                f" token chooses {kernel.top_k} different ones, {100 / kernel.top_k:.3g} % is the most"
            )
    return replace(kernel, routing=routing, alike=kernel.alike and routing.spread > 0)
