"""Workload → Graph: run one step on tensors without data and record what a CUDA device would run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from memwall.core.errors import UsageError
from memwall.frontend.blocks.template import ReplayMismatch
from memwall.frontend.facts import AskedGpu
from memwall.frontend.program import TraceOptions, TraceResult
from memwall.frontend.targets import Workload
from memwall.frontend.targets.seeds import undrawn
from memwall.frontend.torch.dispatch.recorder import Recorder, UnexpectedCall
from memwall.frontend.torch.process.caches import empty_caches
from memwall.frontend.torch.process.cuda_answers import cuda_answers
from memwall.frontend.torch.process.failures import NeedsGradients
from memwall.frontend.torch.process.light_imports import light_imports
from memwall.frontend.torch.process.settings import deep_calls, inference_mode_as_no_grad, threads
from memwall.frontend.torch.ranks.distributed import fake_groups, own_group
from memwall.frontend.torch.recorded_step import Execute, RecordedStep
from memwall.hardware.lookup import DEFAULT_GPU, load_gpu


def trace(
    workload: Workload,
    options: TraceOptions,
    warn: Callable[[str], None] = lambda message: None,
    execute: Execute | None = None,
    recorder: type[Recorder] = Recorder,
) -> TraceResult:
    """Trace one step of a workload.

    Args:
        warn: called with one-line messages that the user should see.
        execute: runs the step in its own way; modules then go unnamed, and nothing is replayed.
        recorder: what records the step.

    Raises:
        UsageError: the model or its inputs are at fault; says where.
    """
    with (
        exclusive(),
        light_imports(),
        deep_calls(),
        torch.inference_mode(False),
        inference_mode_as_no_grad(),
        undrawn(),
        threads(0 if options.real else 1),
    ):
        if options.real:  # the same data in every trace, so that the same branches are taken
            torch.manual_seed(0)
        gpu = options.gpu or load_gpu(DEFAULT_GPU)
        with cuda_answers(gpu) as asked:
            found = _traced(workload, options, warn, execute, recorder)
        names = sorted({*asked, *workload.asked})
        if not names:
            return found
        return replace(found, facts=replace(found.facts, asked_gpu=AskedGpu(gpu.name, tuple(names))))


def _traced(
    workload: Workload,
    options: TraceOptions,
    warn: Callable[[str], None],
    execute: Execute | None,
    recorder: type[Recorder],
) -> TraceResult:
    """The trace; again without replay where a replay cannot represent it, with gradients where forward takes any."""
    while True:
        try:
            with empty_caches(), own_group(), fake_groups():
                return RecordedStep(workload, options, warn, execute, recorder).traced()
        except (ReplayMismatch, UnexpectedCall):
            if not options.replay:
                raise
            options = replace(options, replay=False)
        except NeedsGradients:
            options = replace(options, gradients=True)


_LOCK = threading.RLock()
_RUNNING: list[bool] = []


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """One trace at a time, as parts of torch are patched for the whole process; another thread waits its turn, and a
    trace inside a trace is a UsageError."""
    with _LOCK:
        if _RUNNING:
            raise UsageError("a trace runs already; traces cannot be nested: end the first, then begin the next")
        _RUNNING.append(True)
        try:
            yield
        finally:
            _RUNNING.clear()
