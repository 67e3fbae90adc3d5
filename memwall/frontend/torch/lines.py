"""Which line of the user's code an op comes from: the innermost frame outside torch and memwall.

A backward op belongs to the line of its forward op, found by autograd sequence number. Paths are relative: to the
current folder, to the folder that a package is installed in, else the bare file name, so that a record reads the same
on every machine.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from pathlib import Path
from types import CodeType, FrameType

from memwall.frontend.workload.blame import is_machinery

#: where the walk up the stack ends: what called the tracer is not the model
_ENTRANCE = str(Path(__file__).with_name("run.py"))


class SourceLines:
    """Finds ``path:line`` of the call that is being recorded, and remembers those of autograd nodes."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {_ENTRANCE: ""}
        self._texts: dict[tuple[CodeType, int], str] = {}
        self._numbers = [-1]
        self._lines = [""]

    def here(self) -> str:
        """The user's line that the interpreter is in, or empty."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            name = code.co_filename
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = "-" if is_machinery(name) else _relative(Path(name))
            if not file:
                return ""
            if file != "-":
                key = code, frame.f_lineno
                if key not in self._texts:
                    self._texts[key] = f"{file}:{frame.f_lineno}"
                return self._texts[key]
            frame = frame.f_back
        return ""

    def mark(self, node: int, line: str) -> None:
        """Autograd node ``node`` was made by a line; the first op of a node counts."""
        if node > self._numbers[-1]:
            self._numbers.append(node)
            self._lines.append(line)

    def of_node(self, node: int) -> str:
        """The line that made an autograd node."""
        return self._lines[bisect_right(self._numbers, node) - 1]


def _relative(path: Path) -> str:
    for place, part in enumerate(path.parts):
        if part in ("site-packages", "dist-packages"):
            return Path(*path.parts[place + 1 :]).as_posix()
    folder = Path.cwd()
    return (path.relative_to(folder) if path.is_relative_to(folder) else Path(path.name)).as_posix()
