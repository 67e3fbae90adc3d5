"""Dynamo as in a fresh process, silent, and restored afterwards: caches, counters, configuration, log handlers."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch

from memwall.core import compat
from memwall.frontend.torch.dispatch.recorder import Recorder
from memwall.frontend.torch.process.device import TracedDevice
from memwall.inductor.dynamo.text import limit_reached


@contextlib.contextmanager
def alone(notes: list[str]) -> Iterator[None]:
    """Dynamo as in a fresh process, silent, and restored afterwards; ``notes`` gets the limits that it hit."""
    dynamo, counters = compat.dynamo, compat.dynamo_counters
    counted = copy.deepcopy(dict(counters))
    _reset()
    with (
        dynamo.config.patch(suppress_errors=False, disable=False, error_on_recompile=False),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),  # the model's own prints: the plain trace has shown them
        _quiet_logs(notes),
    ):
        warnings.simplefilter("ignore")
        try:
            with _own_code_skipped():
                yield
        finally:
            _reset()
            counters.clear()
            counters.update(counted)


def _reset() -> None:
    """Dynamo's own reset imports Inductor, all of it, where a GPU is said to be there, to forget its CUDA graphs."""
    there = torch.cuda.is_available if compat.name_of("cudagraph_trees") in sys.modules else bool
    with patch.object(torch.cuda, "is_available", there):
        compat.dynamo.reset()


@contextlib.contextmanager
def no_function_modes() -> Iterator[None]:
    """Close the open function modes, the traced device's among them, which Dynamo would trace as user code."""
    modes = [compat.pop_function_mode() for _ in range(compat.function_mode_count())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            compat.push_function_mode(mode)


def pause_while_compiling(recorder: Recorder) -> None:
    """Ops that record themselves run with Dynamo's fake tensors too; the next reset forgets these callbacks."""
    before: list[bool] = []

    def start(_: Any) -> None:
        before.append(recorder.paused)
        recorder.paused = True

    def end(_: Any) -> None:
        recorder.paused = before.pop()

    compat.dynamo_callback_handler.register_start_callback(start)
    compat.dynamo_callback_handler.register_end_callback(end)


@contextlib.contextmanager
def _own_code_skipped() -> Iterator[None]:
    """Dynamo skips what the tracer itself runs between two graphs, and all that it calls; around the user's
    functions, it skips only the wrappers, not what they call."""
    frames, skip = compat.dynamo_frames, compat.FrameAction.SKIP
    deep = compat.FrameExecStrategy(skip, skip)
    shallow = compat.FrameExecStrategy(skip, compat.FrameAction.DEFAULT)
    around = {TracedDevice.__torch_function__.__code__, *_code_of("memwall.frontend.targets")}
    strategies = {**dict.fromkeys(_code_of("memwall.frontend"), deep), **dict.fromkeys(around, shallow)}
    for code, strategy in strategies.items():
        frames.set_code_exec_strategy(code, strategy)
    try:
        yield
    finally:
        for code in strategies:
            frames.reset_code(code)


def _code_of(package: str) -> Iterator[types.CodeType]:
    """The code of all functions of a package's modules, except the one that holds the step."""
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{package}.") and name != "memwall.frontend.torch.losses":
            held = [v for v in vars(module).values() if getattr(v, "__module__", None) == name]
            for item in held:
                for function in vars(item).values() if isinstance(item, type) else (item,):
                    function = getattr(function, "__func__", function)
                    if isinstance(function, types.FunctionType):
                        yield from _nested(function.__code__)


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


@contextlib.contextmanager
def _quiet_logs(notes: list[str]) -> Iterator[None]:
    """Torch's loggers write nowhere; ``notes`` gets the warnings that a function was captured too often."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "torch"]
    loggers = [logging.getLogger(name) for name in dict.fromkeys(["torch", *names])]
    saved = [(logger, logger.handlers, logger.propagate) for logger in loggers]

    def keep(record: logging.LogRecord) -> None:
        note = limit_reached(record.getMessage())
        if note is not None and note not in notes:
            notes.append(note)

    keeper = logging.Handler(logging.WARNING)
    keeper.emit = keep  # type: ignore[method-assign]
    for logger in loggers:
        logger.handlers = [keeper] if logger.name == "torch" else []
        logger.propagate = logger.name != "torch"
    try:
        yield
    finally:
        for logger, handlers, propagate in saved:
            logger.handlers, logger.propagate = handlers, propagate
