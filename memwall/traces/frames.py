"""Which Python frame is the user's: the innermost that lies neither in torch nor in Python's own library."""

from __future__ import annotations

import re
from functools import lru_cache

#: "transformers/models/bert/modeling_bert.py(250): transpose_for_scores"
_FRAME = re.compile(r"^(?P<file>[^()<>]+\.pyx?)\((?P<line>\d+)\): (?P<function>.+)$")

#: what an installation puts in front of a package: dropped, so that a source names no machine
_PREFIX = re.compile(r"^.*/(?:site-packages|dist-packages|python3\.\d+)/")

#: packages whose frames stand between a user's line and the op
_LIBRARIES = frozenset(
    (
        "torch", "functorch", "torchgen", "triton", "abc", "ast", "asyncio", "collections", "concurrent", "contextlib",
        "copy", "dataclasses", "enum", "functools", "importlib", "inspect", "logging", "multiprocessing", "queue", "re",
        "runpy", "selectors", "threading", "traceback", "typing", "typing_extensions", "warnings", "weakref",
    )
)  # fmt: skip


@lru_cache(maxsize=1 << 16)
def user_frame(name: str) -> str:
    """``"file(line): function"`` of a recorded Python frame, "" when it is a library's or no frame."""
    found = _FRAME.match(name)
    if found is None:
        return ""
    file = _PREFIX.sub("", found["file"])
    package = file.partition("/")[0].removesuffix(".py")
    return "" if package in _LIBRARIES else f"{file}({found['line']}): {found['function']}"


@lru_cache(maxsize=1 << 12)
def user_frame_of_stack(stack: str) -> str:
    """The same of a ``Call stack`` argument: frames joined by ``;``, innermost first."""
    return next((frame for frame in map(user_frame, stack.split(";")) if frame), "")
