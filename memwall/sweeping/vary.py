"""``--vary``: text → axes, whose values the options of ``memwall profile`` and ``memwall serve`` convert and check;
and back: a point → the command that asks the same of it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from memwall.cli import options
from memwall.core.errors import UsageError
from memwall.hardware.cluster import gpu_of
from memwall.hardware.lookup import load_gpu
from memwall.points import Options, PointKind
from memwall.sweeping.axes import Axis, check_apart, split_axis
from memwall.sweeping.kinds import kind_of
from memwall.wings import command_module

#: option of the command line → keyword of the function, where they differ
_KEYWORDS = {"input": "input_specs", "dim": "dims", "no_replay": "replay", "no_overlap": "overlap"}
#: keywords that take several values at once
_LISTS = ("input_specs", "dims", "assume", "price")


def kind_of_axes(texts: Sequence[str], asked: str | None, mentioned: Sequence[str]) -> PointKind:
    """The kind of a sweep that has all options named, and what is mentioned besides if any has. Raises ``UsageError``:
    none has the options; names the nearest."""
    return kind_of([_KEYWORDS.get(name, name) for text in texts for name in split_axis(text)], asked, mentioned)


def parse_axes(texts: Sequence[str], kind: PointKind, before: Sequence[Axis] = ()) -> tuple[Axis, ...]:
    """Axes from text, after the axes ``before``. Raises ``UsageError``: an option stands twice, or refuses a value."""
    axes = [*before, *(_axis(split_axis(text), kind) for text in texts)]
    check_apart(axes)
    return tuple(axes)


def _axis(named: Mapping[str, Sequence[str]], kind: PointKind) -> Axis:
    columns = [[_value(name, text, kind) for text in texts] for name, texts in named.items()]
    keywords = tuple(_KEYWORDS.get(name, name) for name in named)
    return Axis(keywords, tuple(dict.fromkeys(zip(*columns, strict=True))))


def _value(name: str, text: str, kind: PointKind) -> Any:
    """A value as the command of the kind converts it."""
    if name in kind.readers:
        return kind.readers[name](text)
    option, context = _option(name, kind)
    try:
        if option.is_flag:
            value = click.BOOL.convert(text, option, context)
            return not value if name.startswith("no_") and name in _KEYWORDS else value
        value = option.process_value(context, (text,) if option.multiple else text)
    except click.UsageError as error:
        raise UsageError(f"--vary {name}: {error.message}") from None
    if option.name == "optimizer":
        return options.profile_options({"optimizer": value}, "training")["optimizer"]
    return value[0] if option.multiple and _KEYWORDS.get(name, name) not in _LISTS else value


def _option(name: str, kind: PointKind) -> tuple[click.Option, click.Context]:
    """The option of a command of the kind that has this name."""
    flag = f"--{name.replace('_', '-')}"
    for command in (import_module(command_module(each)).command for each in kind.commands):
        for param in command.params:
            if isinstance(param, click.Option) and flag in param.opts:
                return param, click.Context(command)
    raise UsageError(f"the command line has no option {flag}")


#: keyword of the function → option of the command line, where they differ
_FLAGS = {keyword: name for name, keyword in _KEYWORDS.items()}


def command_of(kind: PointKind, target: str, point: Options, prices: Mapping[str, float]) -> str:
    """The command that asks the same of one point, with the price of its GPU among the ``prices``; empty where no
    command does."""
    gpu = load_gpu(point.get("gpu") or gpu_of(point.get("cluster"))).name
    found = kind.alone(point, [f"{gpu}={prices[gpu]!r}"] if gpu in prices else [])
    if found is None:
        return ""
    command, asked = found
    words = ["memwall", command, target]
    for name, value in asked.items():
        flag = f"--{_FLAGS.get(name, name).replace('_', '-')}"
        if isinstance(value, bool):  # of the ones with another name the option turns them off
            words += [flag] if value != (name in _FLAGS) else []
            continue
        for each in value if name in _LISTS else (value,):
            words += [flag, "none" if each is None else str(each)]
    return shlex.join(words)
