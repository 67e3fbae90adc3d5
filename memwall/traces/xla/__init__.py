"""Traces of XLA's profiler (``jax.profiler``, TensorFlow, PyTorch/XLA): ``.xplane.pb`` and ``.trace.json(.gz)``.

``wire`` and ``space`` read an XSpace, of which the JSON is a part. ``lanes`` hands on what ran on GPUs, TPUs and the
host in the words of Kineto's events, so that all behind it is that of any trace. ``programs`` finds the optimized HLO
(in the XSpace, or in a dump), ``linking`` makes each run of an instruction an op, and ``costs`` has its cost. Begin
with ``reading``.
"""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path

from memwall.core.errors import UsageError

#: how the name of an XSpace ends
XSPACE = ".xplane.pb"
#: how much of a file is looked at, and what the JSON of XLA's profiler has there
_SNIFFED = 1 << 16
_PLANE = re.compile(rb'"name"\s*:\s*"/(?:host:CPU|device:[A-Z]+:)')


def recorded_in(path: str | os.PathLike[str]) -> Path | None:
    """The last recording in a folder that ``jax.profiler`` wrote to; None for another path. Raises ``UsageError``: it
    is of several hosts."""
    folders = sorted(Path(path).glob("plugins/profile/*"))
    found = next((files for folder in reversed(folders) if (files := sorted(folder.glob(f"*{XSPACE}")))), [])
    if len(found) > 1:
        raise UsageError(f"{found[0].parent} has recordings of {len(found)} hosts: name one, as {found[0]}")
    return found[0] if found else None


def is_xla(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one of XLA's profiler, by its name or its begin."""
    if str(path).lower().endswith(XSPACE):
        return True
    try:
        with Path(path).open("rb") as file:
            head = file.read(_SNIFFED)
        if head[:2] == b"\x1f\x8b":
            head = zlib.decompressobj(wbits=31).decompress(head, _SNIFFED)
    except (OSError, zlib.error):
        return False
    return _PLANE.search(head) is not None
