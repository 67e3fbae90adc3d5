"""Where an op comes from: the module that ran, and the line of the user's code.

Every autograd node carries the sequence number at which forward made it; a backward op belongs to the module and the
line that were current at that number.
"""

from __future__ import annotations

import contextlib
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from memwall.core import compat
from memwall.frontend.targets.blame import is_machinery, portable

#: where the walk up the stack ends: what called the tracer is not the model
_ENTRANCE = str(Path(__file__).parents[1] / "run.py")

#: (call the module for real, module, args, kwargs) -> its output
Caller = Callable[[Callable[..., Any], nn.Module, tuple, dict], Any]


class _History:
    """A text over autograd's sequence numbers."""

    def __init__(self) -> None:
        self._numbers = [-1]
        self._texts = [""]

    def at(self, number: int) -> str:
        """The text when forward had made ``number`` nodes."""
        return self._texts[bisect_right(self._numbers, number) - 1]


class ModuleTimeline(_History):
    """Which module was running when; ``path`` is the path of the running one."""

    path = ""

    def enter(self, path: str) -> str:
        """Switch to a module; returns the path to give back to :meth:`leave`."""
        previous, self.path = self.path, path
        self._numbers.append(compat.next_sequence_number())
        self._texts.append(path)
        return previous

    def leave(self, previous: str) -> None:
        """Switch back."""
        self.enter(previous)


class SourceLines(_History):
    """``path:line`` of the call that is being recorded, the innermost frame outside torch and memwall, and of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self._files: dict[str, str] = {_ENTRANCE: ""}
        self._shown: dict[tuple[CodeType, int], str] = {}

    def here(self) -> str:
        """The user's line that the interpreter is in, or empty."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            name = code.co_filename
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = "-" if is_machinery(name) else portable(name)
            if not file:
                return ""
            if file != "-":
                key = code, frame.f_lineno
                if key not in self._shown:
                    self._shown[key] = f"{file}:{frame.f_lineno}"
                return self._shown[key]
            frame = frame.f_back
        return ""

    def mark(self, node: int, line: str) -> None:
        """Autograd node ``node`` was made by a line; the first op of a node counts."""
        if node > self._numbers[-1]:
            self._numbers.append(node)
            self._texts.append(line)


class Passes:
    """The backward passes that run, the innermost last: whether each makes a graph of its own."""

    def __init__(self) -> None:
        self._making: list[bool] = []
        self._patches: list[contextlib.AbstractContextManager[Any]] = []

    def computes_again(self) -> bool:
        """Whether what runs is a part of forward that backward runs again: gradients are on, which a pass turns off."""
        return bool(self._making) and not self._making[-1] and torch.is_grad_enabled()

    def __enter__(self) -> None:
        name = compat.name_of("engine_run_backward")
        original = vars(torch.autograd)[name]

        def run(tensors: Any, given: Any, retains: Any, makes: bool, *args: Any, **kwargs: Any) -> Any:
            self._making.append(makes)
            try:
                return original(tensors, given, retains, makes, *args, **kwargs)
            finally:
                self._making.pop()

        self._patches.append(patch.object(torch.autograd, name, run))
        self._patches[-1].__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._patches.pop().__exit__(*raised)


@contextlib.contextmanager
def module_calls(
    timeline: ModuleTimeline, path_of: Callable[[nn.Module], str | None], around: Caller | None = None
) -> Iterator[None]:
    """While open, the timeline is notified of the calls of modules that have a path; ``around`` replaces them."""
    original = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        path = path_of(module)
        if path is None:
            return original(module, *args, **kwargs)
        previous = timeline.enter(path)
        try:
            if around is not None:
                return around(original, module, args, kwargs)
            return original(module, *args, **kwargs)
        finally:
            timeline.leave(previous)

    with patch.object(nn.Module, "__call__", call):
        yield


def module_names(root: nn.Module) -> dict[int, str]:
    """Module id → its first path under the root, as ``named_modules`` has it."""
    names: dict[int, str] = {}
    pending = [("", root)]
    while pending:
        path, module = pending.pop()
        if id(module) not in names:
            names[id(module)] = path
            prefix = f"{path}." if path else ""
            pending += [
                (prefix + key, part) for key, part in reversed(compat.submodules(module).items()) if part is not None
            ]
    return names
