"""The kinds of points: ``profile``, one step of a model as ``memwall profile`` has it, and what wings bring."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memwall.analysis.quantities import ALIASES, SERVED_ALIASES, answer_of
from memwall.core.errors import MemwallError, UsageError, message_of, suggest, unknown
from memwall.core.files import uncollected
from memwall.frontend.targets.sizes import MODES
from memwall.fusion import POLICIES
from memwall.hardware.cluster import gpu_of, joined, load_cluster
from memwall.hardware.engine import load_engine
from memwall.hardware.host import load_host
from memwall.hardware.lookup import load_gpu
from memwall.hardware.torch_versions import TORCH
from memwall.pipeline import profile, resimulate
from memwall.points import Options, PointKind, Row, Task, line, options_of, tried
from memwall.step import ATTENTION
from memwall.sweeping.axes import Axis
from memwall.trace_cache import Traces
from memwall.wings import kinds_of_points

#: options of :func:`memwall.profile` that change no op: points that differ in them alone share a trace
_NUMBERS = ("gpu", "policy", "host", "cuda_graph")


@uncollected()
def evaluate(task: Task, traces: Traces) -> list[Row]:
    """The rows of a task, in the order of its points. Whatever goes wrong with a point is its row."""
    try:
        return KINDS[task.kind].rows(task, traces)
    except MemwallError as error:
        return [line(str(error))] * len(task.points)
    except Exception as error:  # of the user's model, or a bug of memwall
        return [line(f"{type(error).__name__}: {message_of(error)}")] * len(task.points)


def _profiles(task: Task, traces: Traces) -> list[Row]:
    """The quantities of each schedule; one graph serves all GPUs and policies."""
    rows: list[Row] = []
    for point in task.points:
        options = {name: value for name, value in point.items() if name not in _NUMBERS}
        rows.append(tried(lambda: _profiled(task, point, options, traces)))  # noqa: B023  called here
    return rows


def _profiled(task: Task, point: Options, options: Options, traces: Traces) -> Row:
    cluster = point.get("cluster")
    asked = point.get("gpu") or gpu_of(cluster)
    gpu, made = load_gpu(asked), traces.profile(task.target, asked, options)
    said = {name: point[name] for name in ("policy", "cuda_graph", "host") if point.get(name) is not None}
    found = resimulate(made, joined([gpu], cluster, point.get("world")), **said)
    return tuple(answer_of(found, found.simulations[0], task.prices.get(gpu.name)).values())


def _alone(point: Options, price: Sequence[str]) -> tuple[str, Options]:
    """``memwall profile`` of a point; of one that has a price ``memwall compare``, which says what it costs, but not of
    ranks."""
    priced = price and not point.get("cluster")
    return ("compare", {**point, "price": price}) if priced else ("profile", point)


PROFILE = PointKind(
    name="profile", title="one step of the model, as memwall profile has it", rows=_profiles,
    alone=_alone,
    options=options_of(profile, "progress", "strict", "loss"), numbers=_NUMBERS, inner=_NUMBERS, most=64,
    needs={"context": "mode", "prompt": "mode"},
    best=("samples_per_s", "time_s"),
    front=("time_s", "samples_per_s"), across=("batch", "seq", "context", "prompt"),
    listed={"policy": ("policy named", POLICIES), "mode": ("mode", MODES), "attention": ("attention", ATTENTION),
            "torch": ("torch", TORCH)},
)  # fmt: skip

KINDS: Mapping[str, PointKind] = {kind.name: kind for kind in (PROFILE, *kinds_of_points())}


#: what may vary, where a name is like none of it
_AXES = "an axis for every option of memwall profile and of memwall serve, and for keys of a layout, as in parallel.tp"


def kind_of(names: Sequence[str], asked: str | None = None, mentioned: Iterable[str] = ()) -> PointKind:
    """The kind that is asked for, else the first that has all of some options, and all quantities and options that are
    ``mentioned`` if any has. Raises ``UsageError``: none has the options; names the first wrong one, and the
    nearest."""
    if asked is not None and asked not in KINDS:
        raise unknown("kind of sweep", asked, KINDS)
    kinds = [KINDS[asked]] if asked is not None else [*KINDS.values()]
    able = [kind for kind in kinds if set(names) <= set(kind.options)]
    whole = [kind for kind in able if all(kind.needs.get(name, name) in names for name in names)]
    able = whole or able
    words = set(mentioned)
    for kind in able:
        if words <= {*kind.options, *ALIASES, *SERVED_ALIASES, *(row.name for row in kind.quantities)}:
            return kind
    if able:
        return able[0]
    every = list(dict.fromkeys(name for kind in kinds for name in kind.options))
    for name in names:
        if name not in every:
            raise UsageError(f"no option {name!r}; {suggest(name, every, listed=[_AXES])}")
    lacking = (f"{kind.name} has no {next(name for name in names if name not in kind.options)}" for kind in kinds)
    raise UsageError(f"no kind of sweep has all of {', '.join(names)}: {', '.join(lacking)}")


#: option → what finds a name, and refuses one that there is not
NAMED: Mapping[str, Callable[[Any], Any]] = {
    "gpu": load_gpu, "cluster": load_cluster, "host": load_host, "engine": load_engine,
}  # fmt: skip


def named(name: str, value: Any) -> Any:
    """A value of an option, a GPU, a cluster and a host by the name under which memwall knows it; a file as it is.
    Raises ``UsageError``: it names nothing."""
    if name not in NAMED or value is None:
        return value
    found = NAMED[name](value)
    return found.name if isinstance(value, str) and not re.search(r"[/\\]|\.toml$", value, re.IGNORECASE) else value


def checked(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """The axes with the names that memwall has for their values. Raises ``UsageError``, before any work: a value names
    nothing; the message has the nearest."""
    listed = {name: row for kind in KINDS.values() for name, row in kind.listed.items()}

    def of(name: str, value: Any) -> Any:
        if value is not None and name in listed and value not in listed[name][1]:
            raise unknown(listed[name][0], value, listed[name][1])
        return named(name, value)

    return tuple(
        replace(axis, values=tuple(dict.fromkeys(tuple(map(of, axis.names, step)) for step in axis.values)))
        for axis in axes
    )
