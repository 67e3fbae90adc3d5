"""Which module an op belongs to: while open, the recorder is notified of every ``nn.Module`` call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from memwall.frontend.torch.recorder import Recorder

#: (call the module for real, module, args, kwargs) -> its output
Caller = Callable[[Callable[..., Any], nn.Module, tuple, dict], Any]


class ModuleCalls:
    """Context manager: notifies the recorder of the running module, and lets ``around`` replace calls.

    Args:
        root: the module whose parts have names.
        around: called instead of a module's own call; None calls it plainly.
    """

    def __init__(self, root: nn.Module, recorder: Recorder, around: Caller | None = None) -> None:
        self.recorder = recorder
        self.around = around
        self.names = module_names(root)
        self._original: Callable[..., Any] | None = None

    def __enter__(self) -> ModuleCalls:
        original = self._original = nn.Module.__call__
        names, timeline, around = self.names, self.recorder.modules, self.around

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            path = names.get(id(module))
            if path is None:  # a part of a loss function or a module made on the fly
                return original(module, *args, **kwargs)
            previous = timeline.enter(path)
            try:
                if around is not None:
                    return around(original, module, args, kwargs)
                return original(module, *args, **kwargs)
            finally:
                timeline.leave(previous)

        nn.Module.__call__ = call  # type: ignore[method-assign]
        return self

    def __exit__(self, *exc: object) -> None:
        nn.Module.__call__ = self._original  # type: ignore[method-assign,assignment]


def module_names(root: nn.Module) -> dict[int, str]:
    """Module id → its first path under the root, as ``named_modules`` has it."""
    names: dict[int, str] = {}
    pending = [("", root)]
    while pending:
        path, module = pending.pop()
        if id(module) not in names:
            names[id(module)] = path
            prefix = f"{path}." if path else ""
            pending += [(prefix + key, part) for key, part in reversed(module._modules.items()) if part is not None]
    return names
