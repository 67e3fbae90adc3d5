"""The whole of a sweep: spaces → points with their hashes → tasks → rows → a frame, in the order of the points."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from memwall.analysis.quantities import QUANTITIES
from memwall.core.cache import cache_folder, refused
from memwall.core.errors import UsageError, unknown
from memwall.core.files import uncollected
from memwall.core.progress import CountedLine, heard, tell
from memwall.core.question import completed, signature_of
from memwall.core.scratch import scratch
from memwall.core.version import __version__
from memwall.hardware.lookup import DEFAULT_GPU, load_gpu
from memwall.hardware.prices import prices_of
from memwall.points import Options, PointKind, Row, Task
from memwall.sweeping.axes import Space, axes_of
from memwall.sweeping.choice import Pruned, kept, pareto, ranked
from memwall.sweeping.conditions import Condition, column_of, mentioned, parse_condition
from memwall.sweeping.dataset import Dataset
from memwall.sweeping.engines import Done, local, on_dask
from memwall.sweeping.kinds import checked, evaluate, kind_of
from memwall.sweeping.question import ENGINES, SweepOptions
from memwall.trace_cache import Traces, contents_of, file_digest, trace_folder

if TYPE_CHECKING:
    from pandas import DataFrame

#: points above which a sweep asks first, and seconds for which some are timed to say how long it would take
MOST_UNASKED, _TIMED_S = 200_000, 1.0


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of a sweep, apart from its spaces: see :func:`sweep`."""

    kind: PointKind
    where: tuple[str, ...] = ()
    best: str = ""
    pareto: tuple[str, ...] = ()
    prices: Mapping[str, float] = field(default_factory=dict)
    engine: str = "local"
    workers: int | None = None
    scheduler: str | None = None
    keep: Path | None = None
    resume: bool = False
    cache: bool = True
    large: bool = False


@dataclass(frozen=True, kw_only=True)
class Swept:
    """A finished sweep. ``frame`` has all points, ``left`` points that satisfy the conditions, the first by ``best`` at
    the top, ``front`` the points of the Pareto front of the quantities ``axes``; ``seconds`` is how long it took."""

    question: Question
    spaces: tuple[Space, ...]
    frame: DataFrame
    left: DataFrame
    best: str
    pruned: tuple[Pruned, ...]
    front: DataFrame
    axes: tuple[str, ...]
    seconds: float

    @property
    def varied(self) -> list[str]:
        """Columns of options that take several values, the target among them."""
        return [name for name in ("target", *self.options) if self.frame[name].nunique(dropna=False) > 1]

    @property
    def best_point(self) -> tuple[str, Options]:
        """The target and the options of the best point that is left."""
        place = int(self.left.index[0])
        for space in self.spaces:
            if place < len(space):
                break
            place -= len(space)
        return space.target, space.point(place)

    @property
    def options(self) -> list[str]:
        """Columns of options."""
        return list(dict.fromkeys(name for space in self.spaces for name in space.names))


@heard
@signature_of(SweepOptions)
def sweep(
    target: str | Path | Sequence[str | Path],
    vary: Mapping[str | tuple[str, ...], Any],
    *,
    progress: Callable[[str], None] | None = None,
    **asked: Unpack[SweepOptions],
) -> DataFrame:
    """Evaluate a model, or several, at all points of some axes.

    Args:
        target: as :func:`memwall.profile` takes it; one or a list.
        vary: option → its values, such as ``{"gpu": ["a100", "h100"], "batch": [1, 2, 4]}``; a tuple of options goes
            step by step through tuples of values. Every option of what is evaluated is an axis.
        progress: called with one-line messages.

    Returns:
        A row for each point: ``id``, a hash of its configuration; ``target``, its options; its quantities in base
        units; and ``error``, why there are none, which is empty for most.

    Raises:
        UsageError: an option, a condition or a quantity is wrong, or no point satisfies the conditions.
        MissingError: Dask is not installed.
    """
    targets = [target] if isinstance(target, (str, Path)) else list(target)
    axes, said = axes_of(vary), completed(SweepOptions, asked)
    names = [name for axis in axes for name in axis.names]
    kind = kind_of(names, said["of"], mentioned(said["where"], said["best"], said["pareto"]))
    found = run([Space(str(each), axes) for each in targets], question_of(kind, said))
    if said["pareto"]:
        return found.front
    if said["best"]:
        return found.left
    return found.left.sort_index() if said["where"] else found.frame


def question_of(kind: PointKind, said: SweepOptions) -> Question:
    """The options of a sweep, all of them said, of a kind of points."""
    return Question(
        kind=kind,
        where=tuple(said["where"]),
        best=said["best"] or "",
        pareto=tuple(said["pareto"]),
        prices=prices_of(said["price"] or {}),
        engine=said["engine"],
        workers=said["workers"],
        scheduler=said["scheduler"],
        keep=Path(said["keep"]) if said["keep"] else None,
        resume=said["resume"],
        cache=said["cache"],
        large=said["large"],
    )


def _check_prices(spaces: Sequence[Space], question: Question) -> None:
    """Raises ``UsageError``: there is a price of a GPU that is not among the points."""
    axes = [axis for space in spaces for axis in space.axes]
    if any("cluster" in axis.names for axis in axes):  # which says what the GPUs are
        return
    asked = {point[axis.names.index("gpu")] for axis in axes if "gpu" in axis.names for point in axis.values}
    swept = {load_gpu(gpu).name for gpu in asked or {DEFAULT_GPU}}
    for name in question.prices:
        if name not in swept:
            raise UsageError(f"a price of {name}, which is not among the GPUs: {', '.join(sorted(swept))}")


@uncollected()
def run(spaces: Sequence[Space], question: Question) -> Swept:
    """Evaluate all points and choose; errors as of :func:`sweep`."""
    start_s, kind = time.monotonic(), question.kind
    if question.engine not in ENGINES:
        raise unknown("engine of sweeps", question.engine, ENGINES)
    names = list(dict.fromkeys(name for space in spaces for name in space.names))
    columns = ["id", "target", *names, *(row.name for row in kind.quantities), "error"]
    conditions = [parse_condition(text, columns) for text in question.where]
    best, front = _quantity(question.best or kind.best[0], kind), [_quantity(name, kind) for name in question.pareto]
    front = front or list(kind.front)
    if len(set(front)) not in (2, 3) or len(set(front)) < len(front):
        raise UsageError("a Pareto front is of two or three quantities")
    spaces = [replace(space, axes=checked(space.axes)) for space in spaces]
    _check_prices(spaces, question)
    _ask_if_large(spaces, question)
    points = [(space.target, point) for space in spaces for point in space.points()]
    ids = _ids(points, question)
    rows = _evaluated(points, ids, question, names, _SweepProgress(best, conditions))
    frame = _frame(points, ids, rows, names, kind)
    ran, pruned = kept(frame, conditions)
    if not question.best:
        best = next((name for name in kind.best if ran[name].notna().any()), best)
    return Swept(
        question=question,
        spaces=tuple(spaces),
        frame=frame,
        left=ranked(ran, best),
        best=best,
        pruned=tuple(pruned),
        front=pareto(ran, front),
        axes=tuple(front),
        seconds=time.monotonic() - start_s,
    )


def _quantity(name: str, kind: PointKind) -> str:
    """A quantity of a kind that has an order."""
    return column_of(name, [row.name for row in kind.quantities if row.unit not in ("word", "interval", "flag")])


def _ask_if_large(spaces: Sequence[Space], question: Question) -> None:
    """Refuse a sweep of very many points that nobody has confirmed; some are timed, to say how long it takes."""
    count = sum(map(len, spaces))
    if question.large or count <= MOST_UNASKED:
        return
    each_s = _seconds_each(spaces[0], question)
    raise UsageError(
        f"{count:,} points would take about {_duration(each_s * count / 60)} in one process, by some of"
        " them; add --yes (large=True) to go on"
    )


def _seconds_each(space: Space, question: Question) -> float:
    """Seconds of a point, by some in a row from the middle, as many as take a second; their trace is made before."""
    traces, size, took_s = Traces(trace_folder() if question.cache else None), 1, 0.0
    while took_s < _TIMED_S and size < len(space) // 2:
        some = tuple(map(space.point, range(len(space) // 2, len(space) // 2 + size)))
        task = Task(kind=question.kind.name, target=space.target, points=some, prices=question.prices)
        evaluate(replace(task, points=some[:1]), traces)
        start_s = time.monotonic()
        evaluate(task, traces)
        took_s, size = time.monotonic() - start_s, 4 * size
    return took_s / (size / 4)


def _duration(minutes: float) -> str:
    return f"{max(minutes, 1):,.0f} minutes" if minutes < 120 else f"{minutes / 60:,.0f} hours"


def _ids(points: Sequence[tuple[str, Options]], question: Question) -> list[str]:
    """A hash of each configuration: what is asked, and the contents of the files that it names."""
    written = json.JSONEncoder(sort_keys=True, default=str).encode
    prices = sorted(question.prices.items())

    @cache
    def asked(target: str) -> str:
        return written([question.kind.name, __version__, target, contents_of(target), prices])[:-1]

    @cache
    def option(name: str, kind: str, value: Any) -> str:  # True is another value than 1
        labelled = f"{value} {file_digest(value)}" if kind == "str" and Path(value).is_file() else value
        return f"{written(name)}: {written(labelled)}"

    found = []
    for target, point in points:
        options = ", ".join([option(name, type(point[name]).__name__, point[name]) for name in sorted(point)])
        found.append(sha256(f"{asked(target)}, {{{options}}}]".encode()).hexdigest()[:16])
    return found


def _evaluated(
    points: Sequence[tuple[str, Options]],
    ids: Sequence[str],
    question: Question,
    names: Sequence[str],
    progress: _SweepProgress,
) -> list[Row]:
    """The row of each point, from the dataset where it is kept, else by the engine."""
    kept = Dataset(question.keep, question.kind, names) if question.keep else None
    known = kept.begin(question.resume) if kept else {}
    rows: list[Row] = [known.get(each, "") for each in ids]
    tasks, places = _tasks([i for i, row in enumerate(rows) if row == ""], points, question)
    progress.begin(sum(map(len, places)))
    new: list[int] = []
    with ExitStack() as stack:
        for number, made in _engine(tasks, question, stack):
            for place, row in zip(places[number], made, strict=True):
                rows[place] = row
            if kept:
                kept.write([(ids[i], *points[i], rows[i]) for i in places[number]])
            new += places[number]
            if progress.add(len(made)):
                some = [points[i] for i in new], [ids[i] for i in new], [rows[i] for i in new]
                progress.say_with(_frame(*some, names, question.kind), names)
                new = []
    return rows


@dataclass
class _SweepProgress:
    """Says each second how far a sweep is, and the best so far of the points that satisfy the conditions."""

    best: str
    conditions: Sequence[Condition]
    total: int = 0
    _finished: int = 0
    _start_s: float = field(default_factory=time.monotonic)
    _next_s: float = field(default_factory=time.monotonic)
    _leader: tuple[float, str] | None = None

    def begin(self, total: int) -> None:
        """Say how many points there are, before the first is traced."""
        self.total = total
        tell(CountedLine("sweeping", 0, total, text=f"sweeping 0 of {total:,} points"))

    def add(self, count: int) -> bool:
        """Count points that are finished; whether to say so."""
        self._finished += count
        return time.monotonic() >= self._next_s or self._finished == self.total

    def say_with(self, frame: DataFrame, names: Sequence[str]) -> None:
        """Say it, with the points finished since the last time."""
        ran, quantity = frame[(frame["error"] == "") & frame[self.best].notna()], QUANTITIES[self.best]
        for condition in self.conditions:
            ran = ran[condition.holds(ran)]
        if len(ran):
            row = ran.loc[ran[self.best].idxmin() if quantity.lower else ran[self.best].idxmax()]
            sign = 1 if quantity.lower else -1
            if self._leader is None or sign * row[self.best] < sign * self._leader[0]:
                at = ", ".join(f"{name}={row[name]}" for name in names if row[name] is not None)
                self._leader = row[self.best], f"{quantity.name} = {row[self.best]:,.4g} with {at}"
        seconds = time.monotonic() - self._start_s
        rate = self._finished / max(seconds, 1e-9)
        text = f"{self._finished:,} of {self.total:,} points, {rate:,.0f}/s"
        text += f", {(self.total - self._finished) / rate:,.0f} s left"
        best = f"; the best so far: {self._leader[1]}" if self._leader else ""
        tell(CountedLine(f"sweeping{best}", self._finished, self.total, text=f"sweeping {text}{best}"))
        self._next_s = time.monotonic() + 1.0


def _tasks(
    which: Iterable[int], points: Sequence[tuple[str, Options]], question: Question
) -> tuple[list[Task], list[list[int]]]:
    """Points that share a trace, all of one engine together, in tasks; and the places of each task's points."""
    kind = question.kind
    groups: dict[Any, dict[Any, list[int]]] = {}
    for i in which:
        target, point = points[i]
        outer = tuple(value for name, value in point.items() if name not in kind.inner)
        groups.setdefault((target, kind.trace_key(point)), {}).setdefault(outer, []).append(i)
    parts = []
    for (target, _), engines in groups.items():
        ordered = [i for own in engines.values() for i in own]
        parts += [(start, target, ordered[start : start + kind.most]) for start in range(0, len(ordered), kind.most)]
    parts.sort(key=lambda part: part[0] > 0)  # the first of each trace before others, which find it made
    made = (tuple(points[i][1] for i in own) for _, _, own in parts)
    tasks = [
        Task(kind=kind.name, target=target, points=some, prices=question.prices)
        for (_, target, _), some in zip(parts, made, strict=True)
    ]
    return tasks, [own for _, _, own in parts]


def _engine(tasks: Sequence[Task], question: Question, stack: ExitStack) -> Done:
    """What runs the tasks. Processes share traces by a folder, without a cache by one that goes in the end."""
    folder = trace_folder()
    if question.cache and (why := refused(cache_folder()) or refused(folder)):
        tell(f"traces are not kept in {folder}: {why}; memwall cache says what to do")
    if not question.cache:
        folder = stack.enter_context(scratch("sweep"))
    if question.engine == "dask":
        return on_dask(tasks, folder, question.workers, question.scheduler)
    return local(tasks, folder, question.workers)


def _frame(
    points: Sequence[tuple[str, Options]],
    ids: Sequence[str],
    rows: Sequence[Row],
    names: Sequence[str],
    kind: PointKind,
) -> DataFrame:
    """Everything as a table."""
    import numpy as np
    import pandas as pd

    columns: dict[str, Any] = {"id": list(ids), "target": [target for target, _ in points]}
    for name in names:
        columns[name] = [_cell(point.get(name)) for _, point in points]
    unknown_row = (None,) * len(kind.quantities)
    measured = zip(*(unknown_row if isinstance(row, str) else row for row in rows), strict=True)
    for quantity, values in zip(kind.quantities, measured, strict=True):
        is_number = quantity.unit not in ("word", "flag")
        columns[quantity.name] = np.array(values, dtype=float) if is_number else list(values)
    columns["error"] = [row if isinstance(row, str) else "" for row in rows]
    return pd.DataFrame(columns)


def _cell(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else value
