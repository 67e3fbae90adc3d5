"""A saved record as its report, by what its head says it is: what ``memwall report`` and ``memwall open`` show."""

from __future__ import annotations

import contextlib
import gzip
import re
import zlib
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from memwall.report.kinds import report_of

#: families of records -> the class of what they hold, and the options of its page
RECORDS: Mapping[str, tuple[str, Set[str]]] = {
    "memwall.profile": ("Profile", {"by", "top", "sort", "depth", "picture"}),
    "memwall.fusion": ("SavedFusion", {"top"}),
    "memwall.serving": ("SavedServing", set()),
    "memwall.bound": ("KernelBounds", set()),
}
#: bytes in which a record says what it is
_HEAD_BYTES = 400
_SCHEMA = re.compile(rb'"schema"\s*:\s*"([\w./]{1,60})"')


def schema_at(path: str | Path) -> str:
    """What the head of a record says it is; empty where it says nothing, which its own reader explains."""
    packed = str(path).lower().endswith(".gz")
    found = None
    with (
        contextlib.suppress(OSError, EOFError, zlib.error),
        gzip.open(path) if packed else Path(path).open("rb") as handle,
    ):
        found = _SCHEMA.search(handle.read(_HEAD_BYTES))
    return found[1].decode() if found else ""


def page_at(path: str | Path) -> tuple[Any, Set[str]]:
    """The report of a record, a class with ``load(path, **options)``, and the options that it takes; of a file that
    does not say what it is, the report of a profile."""
    result, options = RECORDS.get(schema_at(path).partition("/")[0], RECORDS["memwall.profile"])
    return report_of(result), options
