"""Dynamo's messages, short and equal on every machine: no addresses, no absolute paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from traceback import FrameSummary

from memwall.frontend.targets.blame import is_user_file, portable

_CHARS = 240
_EXPLAINS = ("Explanation:", "Hint:")
_ADDRESS = re.compile(r"\b0x[0-9a-f]+\b|\b\d{9,}\b")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)")
_LOCAL = re.compile(r"\bL\['(\w+)'\]")
_PART = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")
_COMPILE_ID = re.compile(r"^\d+/\d+(_\d+)?: ")
_IDENTITY = re.compile(r"___check_(type|obj)_id\(.*?, …\), type=<(?:class )?(.+?)(?: from '.*)?(?:>|…)$")
#: What a loaded file's module is called.
_LOADED = re.compile(r"\bmemwall_target_\d+_")
_SKIPPED = re.compile(r"frame skipped: (\S+) \((.+) line (\d+)\)")
_LIMIT = re.compile(r"torch\._dynamo hit config\.(\w+) \((\d+)\)")
_FUNCTION = re.compile(r"function: '(.+)' \((.+):(\d+)\)")
#: Checks of Dynamo's own marks on a tensor.
_MARKS = re.compile(r"_dynamo_\w+_indices")


def explanation(message: str) -> str:
    """The explanation in a break's message, and the first hint behind it."""
    lines = [line.strip() for line in _chain(message)[-1].splitlines()]
    found = []
    for label in _EXPLAINS:
        text = next((line.removeprefix(label).strip() for line in lines if line.startswith(label)), "")
        if text:
            found.append(text)
    if skipped := next((m for m in map(_SKIPPED.search, lines) if m), None):
        found = [f"No graph holds any of {plain_function(skipped[1])} ({portable(skipped[2])}:{skipped[3]}).", *found]
    return clip(" ".join(found) or next(filter(None, lines), ""))


def gives_up_function(message: str) -> bool:
    """Whether Dynamo leaves the whole function to Python because of a break."""
    return _SKIPPED.search(message) is not None


def first_kind(message: str) -> str:
    """The kind of the break that led to the one the message is about; empty where it came alone."""
    first, *later = _chain(message)
    return next(filter(None, map(str.strip, first.splitlines())), "") if later else ""


def _chain(message: str) -> list[str]:
    return message.split("*** While handling this graph break, another graph break occurred: ***")


def limit_reached(message: str) -> str | None:
    """A warning that a function was captured too often, as one line; None for any other warning."""
    lines = [line.strip() for line in message.splitlines()]
    limit = _LIMIT.match(message)
    where = next((m for m in map(_FUNCTION.match, lines) if m), None)
    if limit is None or where is None:
        return None
    last = next((line.removeprefix("last reason: ") for line in lines if line.startswith("last reason: ")), "")
    place = f"{plain_function(where[1])} ({portable(where[2])}:{where[3]})"
    return f"{place} was captured {limit[2]} times ({limit[1]}) and runs without graphs now: {failed_check(last)}"


def clip(text: str) -> str:
    """The first line of a text, without addresses, cut to a readable length."""
    line = _ADDRESS.sub("…", text.strip().partition("\n")[0])
    return line if len(line) <= _CHARS else line[: _CHARS - 1] + "…"


def failed_check(reason: str) -> str:
    """The condition of a failed guard, without the number of the capture and the trailing source."""
    return plain_name(_COMPILE_ID.sub("", clip(reason)).partition("  #")[0].strip())


def plain_name(text: str) -> str:
    """``x.block`` for ``L['x']._modules['block']``."""
    return _PART.sub(r".\1", _LOCAL.sub(r"\1", text))


def checks(lines: Iterable[str]) -> str:
    """The checks of one guard as one text."""
    text = clip(plain_name(" and ".join(line for line in lines if not _MARKS.search(line))))
    return _LOADED.sub("", _IDENTITY.sub(_same, text))


def _same(match: re.Match[str]) -> str:
    """``type is dict`` for a check of a type's address, ``is module 'torch'`` for one of an object's."""
    return "type is " + match[2].strip("'") if match[1] == "type" else f"is {match[2]}"


def user_place(stack: Sequence[FrameSummary]) -> tuple[str, int, str]:
    """File, line and function of the last frame that is the user's own, else of the last."""
    if not stack:
        return "", 0, ""
    frame = next((f for f in reversed(stack) if is_user_file(f.filename)), stack[-1])
    return frame.filename, frame.lineno or 0, plain_function(frame.name)


def plain_function(name: str) -> str:
    """The function's own name, where Dynamo resumed it after a break."""
    while resumed := _RESUMED.fullmatch(name):
        name = resumed[1]
    return name


def resumed_at(name: str) -> tuple[str, int] | None:
    """Function and line behind which it goes on, where a name is a function's that Dynamo resumed."""
    resumed = _RESUMED.fullmatch(name)
    return (plain_function(resumed[1]), int(resumed[2])) if resumed else None
