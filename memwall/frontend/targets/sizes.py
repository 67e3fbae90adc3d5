"""The sizes of a workload that a user may choose: handed to a model file's functions that take them, and to ``hf:``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from memwall.core.errors import UsageError
from memwall.core.graph import SERVING


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"--{name} must be a whole number above 0, not {value!r}")
    return value


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise UsageError(f"--{name} must be a number above 0, not {value!r}")
    return float(value)


def _image(name: str, value: Any) -> tuple[int, int]:
    """Height and width of ``1024x768``, ``1024`` or ``(1024, 768)``."""
    said = str(value) if isinstance(value, (str, int)) else "x".join(map(str, value))
    match = re.fullmatch(r"([1-9]\d{0,5})(?:x([1-9]\d{0,5}))?", said.strip().lower())
    if match is None:
        raise UsageError(f"--{name} must be HEIGHTxWIDTH in pixels, such as 1024x1024, not {value!r}")
    return int(match[1]), int(match[2] or match[1])


#: How a step is run: ``inference`` (``eval()``, no gradients), ``training`` (``train()``, loss, backward,
#: optimizer), ``forward``: the module as it stands, with gradients unless they are declined; or as servers of language
#: models do: ``prefill`` (a prompt, whose keys and values go into a cache) or ``decode`` (one more token with a cache)
MODES = ("inference", "training", "forward", *SERVING)

#: Size → (name, what the user gave) → what functions are given.
SIZES: Mapping[str, Callable[[str, Any], Any]] = {
    "batch": _whole, "seq": _whole, "image": _image, "images": _whole, "video": _whole, "seconds": _seconds,
    "prompt": _whole, "context": _whole,
}  # fmt: skip
#: sizes of :data:`memwall.core.graph.SERVING`: tokens of the prompt, and tokens that the cache holds before the step
SERVED = ("prompt", "context")


def split_sizes(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sizes among some options, and the others."""
    sizes = {name: value for name, value in options.items() if name in SIZES}
    return sizes, {name: value for name, value in options.items() if name not in SIZES}


def read_sizes(given: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes that are given, each as functions are given it; a UsageError where one is wrong."""
    return {name: read(name, given[name]) for name, read in SIZES.items() if given.get(name) is not None}


def read_dims(given: Mapping[str, Any] | Iterable[str] | None) -> dict[str, int]:
    """The sizes of symbolic dimensions: of texts such as ``batch=8`` or ``batch=8 seq=512``, or of a mapping; a
    UsageError where one is wrong."""
    words = [] if isinstance(given, Mapping) else [word for text in given or () for word in text.split()]
    pairs = list(given.items()) if isinstance(given, Mapping) else [word.partition("=")[::2] for word in words]
    found: dict[str, int] = {}
    for name, value in pairs:
        if not name or not str(value).isdecimal():
            raise UsageError(f"--dim wants NAME=N with a whole number, as in batch=8, not {name}={value}")
        found[name] = int(value)
    return found


def check_mode(mode: str, sizes: Mapping[str, Any]) -> None:
    """Refuse sizes that are of other modes, by a UsageError."""
    wrong = next((name for name in SERVED if name in sizes), None) if mode not in SERVING else None
    if wrong:
        raise UsageError(f"--{wrong} is of --mode prefill and --mode decode; --seq is the length in --mode {mode}")
    if mode in SERVING and "seq" in sizes:
        own = "--prompt, the tokens of a prompt" if mode == "prefill" else "--context, the tokens in the cache"
        raise UsageError(f"--seq has no meaning in --mode {mode}; give {own}")
