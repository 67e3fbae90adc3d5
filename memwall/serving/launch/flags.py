"""What a flag of an engine is: its names, how many words follow, what of a server it sets, and how both are spelled.

A table of flags is the whole knowledge of an engine's command line. Names are without dashes in front, with dashes
inside; ``speculative-config.method`` is a key of a flag that takes JSON, or of a YAML file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from memwall.core.errors import UsageError
from memwall.hardware.engine import load_engine


class NotModeled(Exception):
    """A value that an engine knows, and that memwall does not model; says why."""


@dataclass(frozen=True)
class Kind:
    """How a value is read and written. ``words``: none or one follows a switch (``?``), one (``1``), or several
    (``*``); ``wanted`` is what a value has to be; ``read`` raises ValueError where it is not, and gives None where the
    engine's default holds."""

    words: str
    wanted: str
    read: Callable[[str], Any]
    write: Callable[[Any], str] = str


@dataclass(frozen=True)
class Flag:
    """A flag: ``names``, the first of which is written; ``sets`` is an option of a server, or a name that the engine's
    ``combine`` knows, and is empty where nothing is set, ``why`` then saying why; a ``quiet`` one changes nothing that
    is modeled. ``shown`` is the option that it sets in the end."""

    names: tuple[str, ...]
    kind: Kind
    sets: str = ""
    shown: str = ""
    why: str = ""
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class EngineLine:
    """The command line of an engine.

    Attributes:
        engine, title: its name in memwall, and its own.
        starts: words with which a command begins; the first is written.
        image: part of the name of its container images, and whether they start the server by themselves.
        flags: name → flag.
        combine: values of the flags → options of a server, and for each name that is not modeled why.
        apart: options of a server → values of the flags, and what they do not say.
        config: flags that name a YAML file, which wins over the flags where ``config_wins``.
        abbreviates: flags may be shortened.
        utilization_of: what its share of memory is a share of.
        prefixes: of its variables of the environment.
        dash, in_config: how flags are written: what is between words, and what stands in the YAML file alone.
    """

    engine: str
    title: str
    starts: tuple[tuple[str, ...], ...]
    image: tuple[str, bool]
    flags: Mapping[str, Flag]
    combine: Callable[[dict[str, Any]], tuple[dict[str, Any], dict[str, str]]]
    apart: Callable[[dict[str, Any]], tuple[dict[str, Any], list[str]]]
    prefixes: tuple[str, ...]
    config: tuple[str, ...] = ("config",)
    config_wins: bool = False
    abbreviates: bool = True
    utilization_of: str = "all"
    dash: str = "-"
    in_config: frozenset[str] = field(default=frozenset())

    @property
    def defaults(self) -> dict[str, Any]:
        """Options that no flag has to say."""
        return {"tp": 1, "pp": 1, "dp": 1, "ep": 1, "prefill": load_engine(self.engine).prefill}

    @property
    def modeled(self) -> list[str]:
        """Names of flags that set something."""
        return [name for name, flag in self.flags.items() if flag.sets]


# -- kinds of values ---------------------------------------------------------------------------------------------------

#: what stands for the engine's default
_UNSET = ("auto", "none", "null", "")
_SUFFIXES = {
    **{letter: 1000 ** (i + 1) for i, letter in enumerate("kmgt")},
    **{letter: 1024 ** (i + 1) for i, letter in enumerate("KMGT")},
}  # fmt: skip


def _whole(text: str) -> int | None:
    """``8192``, ``32k`` (32,000), ``32K`` (32,768); None where the engine chooses."""
    if text.lower() in (*_UNSET, "-1"):
        return None
    number = float(text[:-1]) * _SUFFIXES[text[-1]] if text[-1:] in _SUFFIXES else int(text)
    if number < 1 or number != int(number) or number >= 1 << 40:
        raise ValueError(text)
    return int(number)


def _count(text: str) -> int | None:
    """As :func:`_whole`, and 0."""
    return 0 if text == "0" else _whole(text)


def _share(text: str) -> float | None:
    if text.lower() in _UNSET:
        return None
    share = float(text)
    if not 0 < share <= 1:
        raise ValueError(text)
    return share


def _switch(text: str) -> bool:
    if text.lower() not in ("", "true", "false", "1", "0"):
        raise ValueError(text)
    return text.lower() not in ("false", "0")


def _wholes(text: str) -> tuple[int, ...] | None:
    numbers = tuple(map(_whole, re.split(r"[\s,]+", text.strip("[] "))))
    return tuple(sorted({n for n in numbers if n is not None})) or None


WHOLE = Kind("1", "a whole number above 0", _whole)
COUNT = Kind("1", "a whole number from 0", _count)
WHOLES = Kind("*", "whole numbers above 0", _wholes, lambda value: " ".join(map(str, value)))
SHARE = Kind("1", "a share above 0 and up to 1", _share, lambda value: f"{value:g}")
SWITCH = Kind("?", "true or false", _switch, lambda value: "")
WORD = Kind("1", "one word", lambda text: text)
WORDS = Kind("*", "words", lambda text: text)
#: an object that is null
NULL = Kind("1", "an object or null", lambda text: True if text.lower() in ("null", "none", "false") else None)


def negated(kind: Kind = SWITCH) -> Kind:
    """A switch that turns off what it names the option after."""
    return Kind(kind.words, kind.wanted, lambda text: not kind.read(text), kind.write)


def either(on: str, off: str) -> Kind:
    """A switch between two values."""
    return Kind(SWITCH.words, SWITCH.wanted, lambda text: on if SWITCH.read(text) else off)


def one_of(known: Mapping[str, Any], unmodeled: Mapping[str, str] | None = None) -> Kind:
    """A name of some: what each means, and for values that are not modeled why."""

    def read(text: str) -> Any:
        name = text.lower()
        if name in (unmodeled or {}):
            raise NotModeled((unmodeled or {})[name])
        if name not in known:
            raise ValueError(text)
        return known[name]

    def write(value: Any) -> str:
        return next(name for name, meant in known.items() if meant == value)

    return Kind("1", f"one of {', '.join((*known, *(unmodeled or {})))}", read, write)


# -- tables ------------------------------------------------------------------------------------------------------------


def sets(names: str, option: str, kind: Kind, shown: str = "") -> Flag:
    """A flag that sets an option of a server."""
    return Flag(tuple(names.split()), kind, option, shown or option)


def quiet(names: str) -> Iterator[Flag]:
    """Flags that change nothing that is modeled; ``!`` behind the name of a switch, ``*`` of one with several words."""
    return (_named(each, "", True) for each in names.split())


def unmodeled(reasons: Mapping[str, str]) -> Iterator[Flag]:
    """Flags that change a server in a way that is not modeled: why → names, as of :func:`quiet`."""
    return (_named(each, why, False) for why, names in reasons.items() for each in names.split())


def _named(name: str, why: str, is_quiet: bool) -> Flag:
    kind = {"!": SWITCH, "*": WORDS}.get(name[-1], WORD)
    return Flag((name.rstrip("!*"),), kind, why=why, quiet=is_quiet)


def table(*flags: Flag) -> dict[str, Flag]:
    """The flags by each of their names. Raises ValueError: two have one name."""
    found: dict[str, Flag] = {}
    for flag in flags:
        for name in flag.names:
            if name in found:
                raise ValueError(f"two flags are named {name}")
            found[name] = flag
    return found


# -- what engines share ------------------------------------------------------------------------------------------------

DTYPES = one_of({
    "auto": None, "float16": "float16", "half": "float16", "bfloat16": "bfloat16", "float32": "float32",
    "float": "float32",
})  # fmt: skip
_FP4_CACHE = "the cache counts in the model's dtype or fp8, and not in 4 bits"
CACHE_DTYPES = one_of(
    {
        "auto": None, "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8_ds_mla": "fp8", "bfloat16": "model",
        "bf16": "model", "float16": "model",
    },
    dict.fromkeys(("nvfp4", "fp4_e2m1", "int8", "int8_per_token_head", "fp8_per_token_head"), _FP4_CACHE),
)  # fmt: skip
#: why guesses of a method count as none
HEADS = "guesses of a method of its own ({}) are not modeled: steps make one token"
#: the weights of a checkpoint that is quantised, as its configuration says
STORED = "checkpoint"


def quantization(online: Mapping[str, str], stored: str, unmodeled_: Mapping[str, str]) -> Kind:
    """``online``: methods that quantise weights as they are loaded, and the format; ``stored``: methods that read a
    checkpoint as its configuration says."""
    known = {"none": None, **online, **dict.fromkeys(stored.split(), STORED)}
    return one_of(known, unmodeled_)


def graphs(values: dict[str, Any], options: dict[str, Any], engine: str) -> None:
    """CUDA graphs: none, of some batches, or an engine's up to one. Raises UsageError: none, and some."""
    sizes, most = values.get("captured"), values.get("most_captured")
    if values.get("eager"):
        if sizes or most:
            raise UsageError("CUDA graphs are turned off, and batches of theirs are named: give one of these")
        options["eager"] = True
    elif sizes:
        options["captured"] = sizes
    elif most:
        options["captured"] = load_engine(engine).captured(most)


def balanced(values: Mapping[str, Any], options: dict[str, Any]) -> dict[str, str]:
    """Copies of the hottest experts that a load balancer makes (EPLB), and what is not modeled without one."""
    if values.get("balancer"):
        options["redundant"] = values.get("copies", 0)
    elif values.get("copies"):
        return {"copies": "copies are a load balancer's, --enable-eplb"}
    return {}


def balancer(options: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`balanced`."""
    if "redundant" not in options:
        return {}
    return {"balancer": True} | ({"copies": options["redundant"]} if options["redundant"] else {})


def direct(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The values that are options as they stand."""
    return {name: values[name] for name in names if name in values}
