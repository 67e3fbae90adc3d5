"""``memwall sweep``: one question at thousands of points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from memwall.cli import options
from memwall.cli.output import Messages, Out
from memwall.cli.parsing import Command, SeveralOption
from memwall.core.errors import UsageError, unknown
from memwall.sweeping.question import SweepOptions

if TYPE_CHECKING:
    from memwall.points import PointKind
    from memwall.sweeping.axes import Space

#: keys of a file of a sweep, and of a workload in it
_KEYS = ("targets", "vary", "where", "best", "top", "pareto", "of", "price", "workloads")
#: keys whose values are no texts: whether a value is one, and what is wanted
_VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "best": (lambda value: isinstance(value, str), "the name of a quantity"),
    "of": (lambda value: isinstance(value, str), "the name of a kind of points"),
    "top": (lambda value: type(value) is int and value > 0, "a whole number above 0"),
    "price": (lambda value: isinstance(value, dict), "a table of GPUs, such as { h100 = 2.5 }"),
    "workloads": (lambda value: isinstance(value, dict), "tables such as [workloads.small]"),
}
_WORKLOAD_KEYS = ("target", "vary")


@dataclass
class _SweepAsked:
    """What the command line and a file ask for, before axes are read: ``workloads`` are targets with axes of their
    own."""

    workloads: list[tuple[str, list[str]]]
    vary: list[str]
    where: list[str]
    best: str | None
    top: int | None
    pareto: list[str]
    of: str | None
    prices: dict[str, float]


@click.command(
    "sweep",
    cls=Command,
    examples=(
        (
            "memwall sweep model.py --vary 'batch=1,2,4..64' gpu=a100,h100 --where fits",
            "Every batch that fits on each of two GPUs, the most samples per second first.",
        ),
        (
            "memwall sweep hf:FOLDER --vary concurrency=1,8,64 gpu=h100,b200 tp=1,2 --price h100=2.5 b200=4.5",
            "A server under three loads, with what it costs.",
        ),
    ),
)
@click.argument("targets", metavar="TARGET...", nargs=-1, shell_complete=options.completing("files"))
@click.option(
    "--vary",
    cls=SeveralOption,
    metavar="NAME=VALUES...",
    help="Axes: 'batch=1,2,4..256' 'gpu=a100,h100', all with all; 'zip: gpu=a100,h100 tp=4,8' step by step.",
)
@click.option("--top", type=click.IntRange(1), metavar="N", help="List the N best. [default: 20]")
@click.option(
    "--price",
    "prices",
    cls=SeveralOption,
    metavar="NAME=USD...",
    callback=options.priced,
    help="USD per hour of a GPU, by name.",
)
@options.question(SweepOptions, but=("price",))
@options.common("sweeping.page.SweepReport")
def command(
    out: Out, targets: tuple[str, ...], vary: tuple[str, ...], top: int | None, prices: dict[str, float], **said: Any
) -> None:
    """Evaluate TARGET, or several, at all points of some axes, and say which are best.

    TARGET is a model as for memwall profile, or a file sweep.toml with the keys targets, vary, where, best, top,
    pareto, of and price, and workloads with axes of their own. A point is one step of the model (every option of
    memwall profile is an axis), one decode step of a server, a server under a load (every option of memwall serve is
    one), or a training step on many GPUs (every key of a layout is one, as parallel.tp=1,2,4): the first of these that
    has all options and quantities named, unless --of says.

    In a list, a..b goes on as it began: 1,2,4..256 doubles, 8,16,24..64 goes by eights, 1..4 counts.
    """
    from memwall.sweeping.page import SweepReport
    from memwall.sweeping.run import question_of, run

    out.plan(SweepReport)
    if said["resume"] and not said["keep"]:
        raise UsageError("--resume goes with --keep FOLDER, which has the finished points")
    if said["engine"] != "dask":
        options.refuse_given("without --engine dask", "scheduler")
    asked = _SweepAsked([], [*vary], [*said["where"]], said["best"], top, [*said["pareto"]], said["of"], prices)
    for target in targets:
        if target.endswith(".toml"):
            _read(target, asked)
        else:
            asked.workloads.append((target, []))
    spaces, kind = _spaces(asked, out.messages)
    merged = {"where": asked.where, "best": asked.best, "pareto": asked.pareto, "price": asked.prices}
    cache = not said.pop("no_cache")
    question = question_of(kind, {**said, "cache": cache, **merged})  # type: ignore[typeddict-item]
    try:
        found = run(spaces, question)
    finally:
        out.messages.clear()
    if not (found.frame["error"] == "").any():
        raise UsageError(f"no point could be evaluated: {found.frame['error'].iloc[0]}")
    out.show(SweepReport(found, top=asked.top or 20))


def _spaces(asked: _SweepAsked, messages: Messages) -> tuple[list[Space], PointKind]:
    """The spaces of all workloads, and the kind that has all their options."""
    from memwall.cli.target import chosen_gpus
    from memwall.sweeping.axes import Axis, Space, split_axis
    from memwall.sweeping.conditions import mentioned
    from memwall.sweeping.vary import kind_of_axes, parse_axes

    if not asked.workloads:
        raise UsageError("no target given; name a model, or a file sweep.toml")
    texts = [text for _, own in asked.workloads for text in own] + asked.vary
    if not texts:
        raise UsageError("no axis given; name one or more, as in --vary batch=1,2,4..256 gpu=a100,h100")
    before: list[Axis] = []
    named = {name for text in texts for name in split_axis(text)}
    if not named & {"gpu", "cluster"}:
        before = [Axis.of("gpu", [gpu.name for gpu in chosen_gpus((), messages.say)])]
    kind = kind_of_axes(texts, asked.of, mentioned(asked.where, asked.best, asked.pareto))
    return [Space(target, parse_axes([*own, *asked.vary], kind, before)) for target, own in asked.workloads], kind


def _read(path: str, asked: _SweepAsked) -> None:
    """Add what a file asks for; what the command line says goes before it. Raises ``UsageError``: a key is unknown or
    has a value of another type."""
    from memwall.core.files import read_toml

    record = read_toml(path)
    _known(record, _KEYS, path)
    for key, (is_one, wanted) in _VALUES.items():
        if key in record and not is_one(record[key]):
            raise UsageError(f"{path}: {key} is {str(record[key])[:40]!r}; want {wanted}")
    asked.workloads += [(target, []) for target in _texts(record, "targets", path)]
    for name, row in record.get("workloads", {}).items():
        _known(row, _WORKLOAD_KEYS, f"{path}: {name}")
        (target,) = _texts(row, "target", f"{path}: {name}") or [name]
        asked.workloads.append((target, _texts(row, "vary", f"{path}: {name}")))
    for key in ("vary", "where", "pareto"):
        setattr(asked, key, getattr(asked, key) or _texts(record, key, path))
    asked.best, asked.of = asked.best or record.get("best"), asked.of or record.get("of")
    asked.top, asked.prices = asked.top or record.get("top"), asked.prices or _priced(record)


def _priced(record: Mapping[str, Any]) -> dict[str, float]:
    return options.parse_prices([f"{name}={price}" for name, price in record.get("price", {}).items()])


def _known(record: Any, keys: tuple[str, ...], where: str) -> None:
    if not isinstance(record, dict):
        raise UsageError(f"{where} is no table; want target and vary")
    for key in record:
        if key not in keys:
            raise unknown("setting", key, keys, 0.5, where)


def _texts(record: Mapping[str, Any], key: str, where: str) -> list[str]:
    """A text or a list of them."""
    value = record.get(key, [])
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or any(not isinstance(each, str) for each in found):
        raise UsageError(f"{where}: {key} is {value!r}; want a text or a list of texts")
    return found
