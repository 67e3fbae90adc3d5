"""The tools: each is a command, its options read from the command itself, so that an option added to a question is a
property of the tool's schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import click

from memwall.cli.options import numbers
from memwall.core.errors import UsageError, unknown
from memwall.core.structure import one_line
from memwall.wings import command_module, part

#: options of a terminal: where files are written, how the page looks, what is shown meanwhile
_OF_A_TERMINAL = "output json quiet no_progress style figure emit check all"


#: options of other answers of a command: of a profiler's trace, of a layout of GPUs, of a table
_OF_A_TRACE, _OF_A_LAYOUT, _OF_A_TABLE = "other_rank ncu hlo", "parallel state no_overlap scale", "top sort by depth"


#: characters of a text, and items of a list, that a client may send
LONGEST_TEXT, LONGEST_LIST = 20_000, 1_000


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A command that answers: its ``options``, or all ``but`` some and the options of a terminal, of which some are
    ``needed``; ``report`` is the page that it comes to, and the ``only`` one that it may. One that ``compiles`` runs
    where Inductor and TorchDynamo have been imported."""

    command: str
    about: str
    options: str = ""
    but: str = ""
    needed: str = ""
    report: str
    only: bool = False
    compiles: bool = False


#: name → tool
TOOLS: Mapping[str, Tool] = {
    "bound": Tool(
        command="bound",
        report="BoundReport",
        about="The speed of light of a kernel on any GPU, what libraries and compilers reach of it, and with "
        "'measured' how good a time is, or that it is impossible. TARGET: an expression of torch's ops on shapes, such "
        "as 'mm(bf16[4096,8192], bf16[8192,4096])', or as of profile.",
        compiles=True,
    ),
    "profile": Tool(
        command="profile",
        report="ProfileReport",
        about="Where the time of one step of a model goes on any GPU, without a GPU: modeled time with its interval, "
        "speed of light, walls, levers, top kernels. TARGET: model.py[:name], hf:FOLDER, .onnx, .mlir, .hlo, a saved "
        "record or a handle memwall://record/ID.",
        but=f"explain {_OF_A_TRACE}",
    ),
    "explain": Tool(
        command="profile",
        report="ProfileReport",
        about="Why a kernel takes its time, in sentences: arithmetic, traffic, latency, launches. 'explain' has names "
        "of kernels, their numbers or patterns of modules; TARGET is as of profile, and a handle spares the trace.",
        but=f"{_OF_A_TRACE} {_OF_A_LAYOUT} {_OF_A_TABLE}",
        needed="explain",
    ),
    "fuse": Tool(
        command="fuse",
        report="FusedReport",
        about="What fusion wins on a model, and what it misses and why: policies side by side, graph breaks with their "
        "price. 'no_capture' leaves TorchDynamo out, which takes most of the time.",
        compiles=True,
    ),
    "compare": Tool(
        command="compare",
        report="ComparisonReport",
        about="One model on several GPUs, or several models or records side by side: times, speed-ups with intervals, "
        "walls, cost. With 'machines' the GPUs themselves.",
    ),
    "serve": Tool(
        command="serve",
        report="ServingReport",
        about="What a server of a language model does under load: time to first token, time per token, throughput, "
        "memory and cost for each GPU and load. TARGET: hf:FOLDER, or the command that starts a server, such as 'vllm "
        "serve FOLDER --tensor-parallel-size 8', which may also stand in a file, 'launch'.",
    ),
    "gpus": Tool(
        command="gpus",
        report="GpusReport",
        about="The GPUs that memwall knows, or the numbers of some: peaks, bandwidth, memory.",
    ),
    "trace": Tool(
        command="profile",
        about="What a trace of PyTorch's or XLA's profiler measured, kernel by kernel, next to the speed of light of "
        "its GPU and the model.",
        options=f"gpu cluster top sort by {_OF_A_TRACE}",
        report="TraceReport",
        only=True,
    ),
}


@cache
def command_of(name: str) -> click.Command:
    """The command behind a tool."""
    command: click.Command = import_module(command_module(TOOLS[name].command)).command
    return command


def _word(param: click.Parameter) -> str:
    """The property that an option or an argument is: its flag with underscores."""
    return max(param.opts, key=len).lstrip("-").replace("-", "_")


@cache
def parameters(name: str) -> Mapping[str, click.Parameter]:
    """The options and arguments that a tool takes, by property."""
    tool = TOOLS[name]
    found = {_word(param): param for param in command_of(name).params if param.expose_value}
    left_out = f"{_OF_A_TERMINAL} {tool.but}".split()
    wanted = tool.options.split() or [word for word in found if word not in left_out]
    return {word: param for word, param in found.items() if isinstance(param, click.Argument) or word in wanted}


@cache
def input_schema(name: str) -> dict[str, Any]:
    """The JSON schema of what a tool takes."""
    taken = parameters(name)
    needed = [word for word, param in taken.items() if param.required or word in TOOLS[name].needed.split()]
    properties = {word: _property(param) for word, param in taken.items()}
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


def _property(param: click.Parameter) -> dict[str, Any]:
    one = {"type": "integer", "minimum": 1} if param.callback is numbers else _value(param.type)
    if getattr(param, "is_flag", False):
        one = {"type": "boolean"}
    elif param.multiple or param.nargs == -1:
        one = {"type": "array", "items": one, "maxItems": LONGEST_LIST}
    said = getattr(param, "help", None) or "Below the folder that the server was started in."
    return {**one, "description": said}


def _value(kind: click.ParamType) -> dict[str, Any]:
    """The schema of one value of a type of click's."""
    if isinstance(kind, click.Choice):
        return {"type": "string", "enum": [*kind.choices]}
    for types, name in (
        ((click.IntRange, type(click.INT)), "integer"),
        ((click.FloatRange, type(click.FLOAT)), "number"),
    ):
        if isinstance(kind, types):
            least = getattr(kind, "min", None)
            key = "exclusiveMinimum" if getattr(kind, "min_open", False) else "minimum"
            return {"type": name} if least is None else {"type": name, key: least}
    return {"type": "string", "maxLength": LONGEST_TEXT}


def check(name: str, given: Mapping[str, Any]) -> None:
    """Check what a client gave. Raises ``UsageError``: an option that there is not, with the nearest, or a value that
    the schema refuses."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    for word in given:
        if word not in parameters(name):
            raise unknown("option named", one_line(word, 60), parameters(name))
    wrong: Any = best_match(Draft202012Validator(input_schema(name)).iter_errors(given))
    if wrong is not None:
        place = ".".join(map(str, wrong.absolute_path))
        is_long = wrong.validator in ("maxLength", "maxItems")
        said = (
            f"{len(wrong.instance):,} are more than {wrong.validator_value:,}" if is_long else one_line(wrong.message)
        )
        raise UsageError(f"{place}: {said}" if place else said)


def words(name: str, given: Mapping[str, Any]) -> list[str]:
    """The command line of a call that was checked: a value is never read as an option, since it stands in one word with
    its flag, or behind ``--``."""
    taken = parameters(name)
    flags, targets = [], []
    for word, value in given.items():
        param = taken[word]
        if isinstance(param, click.Argument):
            targets += _texts(value)
        elif getattr(param, "is_flag", False):
            flags += [max(param.opts, key=len)] * value
        else:
            flags += [f"{max(param.opts, key=len)}={text}" for text in _texts(value) or [""] * _alone(param)]
    return [*flags, "--", *targets]


def _alone(param: click.Parameter) -> bool:
    """Whether the flag of an option may stand without a value."""
    return not getattr(param, "needs_value", True)


def _texts(value: Any) -> list[str]:
    """Each value as a word; a whole number may come as 8.0."""
    values: Sequence[Any] = value if isinstance(value, (list, tuple)) else [value]
    return [str(int(each)) if isinstance(each, float) and each.is_integer() else str(each) for each in values]


def texts_in(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every text in what a client gave, with the property that it is of."""
    for word, value in given.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                yield word, each


#: options that name another model, or a file alone
_FILES = ("draft", "launch")


def is_target(name: str, word: str) -> bool:
    """Whether a text of a property has to be a file or a folder: a target would else be a module to import."""
    param = parameters(name)[word]
    return (isinstance(param, click.Argument) and name != "gpus") or word in _FILES


def starts_server(name: str, word: str, text: str) -> bool:
    """Whether a target is the command of a server, whose words are flags and files."""
    found: bool = TOOLS[name].command == "serve" and word not in _FILES and part("serving.starts_engine")(text)
    return found
