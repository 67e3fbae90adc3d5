"""Constants of a family on one GPU, fitted to the samples whose time they decide.

The fit minimizes the mean of ``|log(modeled / measured)|`` over at most :data:`MOST` samples of the fit half, by
Nelder-Mead from the present values, within the range that each constant states. The rest of a sample's time (other
launches, floors) is fixed. The other half is used for the scores only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, fields, replace
from typing import Any, NamedTuple

from memwall.analysis.table import group_by
from memwall.bench.accuracy.samples import Sample, call_s, halves, held_out_gpu
from memwall.bench.accuracy.scores import next_percentile, percentile
from memwall.core.errors import need
from memwall.hardware.constants import CONSTANTS, Constants, LaunchConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.launches import Launch
from memwall.perfmodel.base import Interval, kept_share, power_at
from memwall.perfmodel.families import MODELS, as_run, constants
from memwall.perfmodel.roofline import bound_s, launch_floor_s

#: most samples of one fit, and most evaluations of them all for each constant
MOST, TRIES = 600, 40
#: fewest samples in a half for a fit
LEAST = 8
SEED = 20200701
#: a data set's shortest time is a floor if it is no more than so many launches back to back; a call takes up to 40
_LONGEST_FLOOR = 50
#: kept out of the search: they follow from the residuals
INTERVAL = ("interval_low", "interval_high", "interval_long")
#: a fit of fewer rows for each constant finds its interval from rows that it did not see, a part after another
FEW, FOLDS = 10, 4
#: fewest rows that tell how the interval changes with the time, and the powers that are tried
LEAST_OF_TIMES, POWERS = 40, (0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)


class Target(NamedTuple):
    """A table of constants on a GPU."""

    gpu: str
    family: str
    variant: str

    @property
    def table(self) -> str:
        return f"utilization.{self.family}.{self.variant}"


class Residual(NamedTuple):
    """Measured over modeled time of a kernel, and its modeled seconds."""

    ratio: float
    time_s: float


class Score(NamedTuple):
    """Mean and median of ``|modeled / measured - 1|``, and its mean with its sign."""

    mape: float
    median: float
    bias: float


@dataclass(frozen=True)
class Fit:
    """The result of a fit; scores are on the held-out half."""

    target: Target
    values: Mapping[str, float]
    #: what the constants were before
    start: Mapping[str, float]
    before: Score
    after: Score
    fitted: int
    held_out: int
    #: share of the held-out samples inside the interval
    coverage: float
    datasets: tuple[str, ...]


class _Part(NamedTuple):
    """One sample as a function of the constants: the launches that depend on them, and the rest."""

    sample: Sample
    launches: tuple[tuple[Launch, int], ...]
    rest_s: float
    bound_s: float


# -- which samples belong to which table -------------------------------------------------------------------------------


def by_target(samples: Iterable[Sample]) -> dict[Target, list[Sample]]:
    """Samples by the table that decides their time: their longest launch's."""
    found: dict[Target, list[Sample]] = {}
    for sample in samples:
        work = _longest(sample)
        if sample.shows in ("", work.FAMILY):
            found.setdefault(Target(sample.gpu.name, work.FAMILY, work.variant), []).append(sample)
    return found


def by_launch(samples: Iterable[Sample]) -> dict[Target, list[Sample]]:
    """Samples by the way of timing, only those at the floor: within three times the shortest of their data set, if that
    is short enough to be a floor."""
    given = list(samples)
    floored = []
    for own in group_by(given, [(sample.gpu.name, sample.dataset) for sample in given]).values():
        least_s = min(sample.measured_s for sample in own)
        if least_s <= _LONGEST_FLOOR * own[0].gpu.launch_overhead_s:
            floored += [sample for sample in own if sample.measured_s <= 3 * least_s]
    # of kernels back to back the file states the floor among its host's numbers
    timed = [sample for sample in floored if sample.launch in LaunchConstants.VARIANTS]
    return group_by(timed, [Target(sample.gpu.name, "launch", sample.launch) for sample in timed])


def _longest(sample: Sample) -> Launch:
    launches = [as_run(work, sample.gpu) for work in sample.cost.launches]
    if len(launches) == 1:
        return launches[0]
    return max(launches, key=lambda work: (work.FAMILY != "stream", _time_s(work, sample.gpu, 0)))


# -- the objective -----------------------------------------------------------------------------------------------------


def _time_s(work: Launch, gpu: Gpu, resident: int, known: Any = None) -> float:
    known = known or constants(CONSTANTS[work.FAMILY], gpu, work.variant)
    return MODELS[work.FAMILY].predict(work, gpu, known, resident).time_s


def parts_of(target: Target, samples: Sequence[Sample]) -> list[_Part]:
    """Samples as functions of the constants of one table."""
    parts = []
    for sample in samples:
        mine, rest_s, resident = [], 0.0, sample.resident_bytes
        for work in (as_run(work, sample.gpu) for work in sample.cost.launches):
            if (work.FAMILY, work.variant) == (target.family, target.variant):
                mine.append((work, resident))
            else:
                rest_s += _time_s(work, sample.gpu, resident)
            resident = int(work.bytes * kept_share(sample.gpu, work.bytes))
        parts.append(_Part(sample, tuple(mine), rest_s, bound_s(sample.cost, sample.gpu)))
    return parts


def _ratios(gpu: Gpu, parts: Sequence[_Part], known: Constants) -> list[float]:
    """Modeled over measured."""
    floor_s = {name: launch_floor_s(gpu, name) for name in ("graph", "kernel")}
    host = known if isinstance(known, LaunchConstants) else None
    if host and parts[0].sample.launch == "kernel":
        floor_s["kernel"] = host.floor_s
    ratios = []
    for sample, launches, rest_s, bound in parts:
        kernels_s = rest_s + sum(_time_s(work, gpu, resident, known) for work, resident in launches)
        if sample.launch == "call":
            kernels_s += (sample.cost.kernels - 1) * floor_s["graph"]
            time_s = call_s(gpu, kernels_s, sample.cost.launches[0], host)
        else:
            time_s = kernels_s + sample.cost.latencies * floor_s[sample.launch]
        ratios.append(max(time_s, bound) / sample.measured_s)
    return ratios


def residuals(gpu: Gpu, parts: Sequence[_Part], known: Constants) -> list[Residual]:
    """Of the kernels alone: without the host overhead of an eager call, and only if the kernels take at least half of
    the time. For a way of launching, of the host alone, if it takes more than half."""
    host_alone = known.FAMILY == "launch"
    found = []
    for part, ratio in zip(parts, _ratios(gpu, parts, known), strict=True):
        time_s = ratio * part.sample.measured_s
        own_s = part.rest_s + sum(_time_s(work, gpu, resident, known) for work, resident in part.launches)
        host_s = time_s - own_s if part.sample.launch == "call" else 0.0
        if host_alone and host_s > own_s:
            found.append(Residual((part.sample.measured_s - own_s) / host_s, host_s))
        elif not host_alone and host_s <= own_s:
            found.append(Residual((part.sample.measured_s - host_s) / (time_s - host_s), time_s - host_s))
    return found


def _loss(ratios: Sequence[float]) -> float:
    return sum(abs(math.log(max(ratio, 1e-9))) for ratio in ratios) / len(ratios)


def _score(ratios: Sequence[float]) -> Score:
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    return Score(sum(errors) / len(errors), percentile(errors, 0.5), sum(ratios) / len(ratios) - 1)


# -- the search --------------------------------------------------------------------------------------------------------


def fit(target: Target, samples: Sequence[Sample], *, search: bool = True, others: Iterable[Gpu] = ()) -> Fit | None:
    """The constants of one table from the samples of one GPU, None where there are too few. ``search`` False keeps the
    present values and finds the interval only. The search also begins from the constants of ``others``: its objective
    has more than one minimum. Raises MissingError: scipy is not installed."""
    to_fit, to_score = (parts_of(target, half) for half in halves(samples))
    if min(len(to_fit), len(to_score)) < LEAST:
        return None
    gpu, kind = samples[0].gpu, CONSTANTS[target.family]
    start = constants(kind, gpu, target.variant)
    if target.family == "launch" and f"launch.{target.variant}.floor_s" not in gpu.utilization:
        start = LaunchConstants(floor_s=gpu.launch_overhead_s)
    some = to_fit if len(to_fit) <= MOST else random.Random(SEED).sample(to_fit, MOST)
    found = start
    if search:
        starts = (start, *(constants(kind, other, target.variant) for other in others))
        searched = [_searched(kind, gpu, begin, some) for begin in dict.fromkeys(starts)]
        found = min(searched, key=lambda known: _loss(_ratios(gpu, some, known)))
    if _score(_ratios(gpu, to_fit, found)).mape >= _score(_ratios(gpu, to_fit, start)).mape:
        found = start
    before, after = (_score(_ratios(gpu, to_score, known)) for known in (start, found))
    own = residuals(gpu, to_fit, found)
    if not search and len(own) < LEAST:
        return None
    if len(to_fit) < FEW * len(_free(kind)):
        own = _unseen(target, gpu, to_fit)
    found = with_interval(found, own)
    ends = Interval(found.interval_low, found.interval_high, found.interval_long)
    inside = [ends.at(time_s)[0] <= ratio <= ends.at(time_s)[1] for ratio, time_s in residuals(gpu, to_score, found)]
    return Fit(
        target,
        asdict(found),
        asdict(start),
        before,
        after,
        len(to_fit),
        len(to_score),
        sum(inside) / max(len(inside), 1),
        tuple(sorted({sample.dataset for sample in samples})),
    )


def _free(kind: type[Constants]) -> list[Field[Any]]:
    return [f for f in fields(kind) if f.name not in INTERVAL and "low" in f.metadata]


def _unseen(target: Target, gpu: Gpu, parts: Sequence[_Part]) -> list[Residual]:
    """Residuals of each part of the samples with the constants that the other parts tell, beginning from what is known
    without any."""
    kind, found = CONSTANTS[target.family], []
    start = constants(kind, held_out_gpu(gpu), target.variant)
    given = random.Random(SEED).sample(parts, len(parts))
    for fold in range(FOLDS):
        rest = [part for i, part in enumerate(given) if i % FOLDS != fold]
        found += residuals(gpu, given[fold::FOLDS], _searched(kind, gpu, start, rest, steps=(0.2,)))
    return found


def _searched(
    kind: type[Constants], gpu: Gpu, start: Constants, parts: Sequence[_Part], steps: Sequence[float] = (0.2, -0.1)
) -> Constants:
    optimize: Any = need("scipy.optimize", "fit")
    if not (free := _free(kind)):
        return start
    # Each constant is searched in units of its present value; one that is next to nothing in twentieths of its range.
    twentieths = [(f.metadata["high"] - f.metadata["fit_low"]) / 20 for f in free]
    units = [
        value if (value := getattr(start, f.name)) > least / 50 else least
        for f, least in zip(free, twentieths, strict=True)
    ]
    first = [getattr(start, f.name) / unit for f, unit in zip(free, units, strict=True)]
    bounds = [(f.metadata["fit_low"] / unit, f.metadata["high"] / unit) for f, unit in zip(free, units, strict=True)]

    def at(point: Sequence[float]) -> Constants:
        values = zip(free, point, units, bounds, strict=True)
        return replace(start, **{f.name: float(min(max(x, low), high) * unit) for f, x, unit, (low, high) in values})

    def loss(point: Sequence[float]) -> float:
        return _loss(_ratios(gpu, parts, at(point)))

    best = list(first)
    for step in steps:  # restart from where it ended, with a simplex to the other side
        best = _descend(optimize, loss, best, bounds, step)
    # A constant on which no sample depends keeps its value.
    least = loss(best)
    for i, x in enumerate(first):
        kept = [*best[:i], x, *best[i + 1 :]]
        if loss(kept) <= least:
            best = kept
    return at(best) if least < loss(first) else start


def _descend(
    optimize: Any,
    loss: Callable[[Sequence[float]], float],
    first: Sequence[float],
    bounds: Sequence[tuple[float, float]],
    step: float,
) -> list[float]:
    simplex = [list(first)]
    for i, x in enumerate(first):
        moved = x * (1 + step) if x else abs(step)
        low, high = bounds[i]
        corner = [*first[:i], min(max(moved, low), high), *first[i + 1 :]]
        if corner[i] == x:
            corner[i] = x * (1 - step)
        simplex.append(corner)
    found = optimize.minimize(
        loss,
        first,
        method="Nelder-Mead",
        bounds=bounds,
        options={"initial_simplex": simplex, "maxfev": TRIES * len(first), "xatol": 1e-3, "fatol": 1e-5},
    )
    return [float(x) for x in found.x]


def with_interval(known: Constants, residuals: Sequence[Residual]) -> Constants:
    """The constants with the 80 % interval of the residuals, in which the next one lies with that chance, however few
    they are; it contains 1, the prediction. Too few leave it as is. Of the powers of long kernels that is taken with
    which the quantiles of both ends have the least loss (Koenker, Bassett: Regression Quantiles, 1978)."""
    if len(residuals) < LEAST:
        return known
    powers = POWERS if len(residuals) >= LEAST_OF_TIMES else (1.0,)
    low, high, long = min((_ends(residuals, long) for long in powers), key=lambda ends: _quantile_loss(residuals, ends))
    return replace(known, interval_low=low, interval_high=high, interval_long=long)


def _ends(residuals: Sequence[Residual], long: float) -> Interval:
    """The interval of residuals whose power for long kernels is given."""
    logs = [math.log(max(ratio, 1e-9)) / power_at(time_s, long) for ratio, time_s in residuals]
    low, high = (f.metadata for f in fields(Constants) if f.name in INTERVAL[:2])
    return Interval(
        min(max(math.exp(next_percentile(logs, 0.1)), low["low"]), low["high"]),
        min(max(math.exp(next_percentile(logs, 0.9)), high["low"]), high["high"]),
        long,
    )


def _quantile_loss(residuals: Sequence[Residual], ends: Interval) -> float:
    loss = 0.0
    for ratio, time_s in residuals:
        for quantile, end in zip((0.1, 0.9), ends.at(time_s), strict=True):
            off = math.log(max(ratio, 1e-9) / end)
            loss += max(quantile * off, (quantile - 1) * off)
    return loss
