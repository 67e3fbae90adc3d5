"""Locations of MLIR → module, source line and phase of an op, as :mod:`memwall.frontend.jax.jaxprs` reads them of a
jaxpr."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from memwall.frontend.jax.jaxprs import scopes_of
from memwall.frontend.targets.blame import is_machinery, portable
from memwall.frontend.writing import GraphWriter

#: ``loc("jit(f)/layer/dot_general"(callsite("f"("model.py":10:8 to :40) at ...)))``
_NAMED = re.compile(r'"([^"]*)"(?!:\d)')
#: the function that was exported, around all of its own
_OUTERMOST = re.compile(r"^jit\([^()]*\)(/jit\(main\))?(/|$)")
_LINE = re.compile(r'"([^"]+)":(\d+)')


class Places:
    """What stands around an op: the scopes of the calls and loops that it is in."""

    def __init__(self) -> None:
        self._around: list[str] = []
        self._known: dict[str, tuple[list[str], set[str], str]] = {}

    def name(self, location: Any) -> str:
        """The name that a location has; empty without one."""
        match = _NAMED.search(str(location))
        return match[1] if match else ""

    @contextmanager
    def at(self, writer: GraphWriter, location: Any) -> Iterator[None]:
        """Ops within are of a location."""
        scopes, transforms, source = self._read(str(location))
        before = writer.module, writer.source, writer.phase, writer.again
        self._around += scopes
        writer.module = ".".join(self._around)
        writer.source = source or writer.source
        if "transpose" in transforms:
            writer.phase = "backward"
        writer.again = writer.again or "rematted_computation" in transforms
        try:
            yield
        finally:
            del self._around[len(self._around) - len(scopes) :]
            writer.module, writer.source, writer.phase, writer.again = before

    @contextmanager
    def trip(self, number: int) -> Iterator[None]:
        """Ops within are of a trip of a loop."""
        self._around.append(str(number))
        yield
        self._around.pop()

    def _read(self, text: str) -> tuple[list[str], set[str], str]:
        found = self._known.get(text)
        if found is None:
            match = _NAMED.search(text)
            stack, _, last = _OUTERMOST.sub("", match[1]).rpartition("/") if match else ("", "", "")
            names, transforms = scopes_of(f"{stack}/{last}" if last.endswith(")") else stack)  # the last is a primitive
            names = [name for name in names if name not in _STRUCTURE]
            lines = ((file, line) for file, line in _LINE.findall(text) if not is_machinery(file))
            source = next((f"{portable(file)}:{line}" for file, line in lines), "")
            found = self._known[text] = names, transforms, source
        return found


#: parts of a name stack that say how a loop or a call is written, not whose it is
_STRUCTURE = frozenset(("while", "body", "cond", "closed_call", "main", "core_call", "checkpoint"))
