"""The questions of ``memwall measure``: which device, and how long (the step is as in :class:`memwall.step.Step`);
and of ``memwall drift``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypedDict

from memwall.core.question import Option
from memwall.hardware.lookup import Gpu
from memwall.step import Step

#: seconds that a kernel may take to be built, checked and tuned, apart from its samples
BUILD_LIMIT_S = 180.0


class DeviceOptions(TypedDict, total=False):
    """What runs where, and the spec that models it."""

    device: Annotated[str | None, Option(None, "[default: cuda where there is one]", choices=("cuda", "cpu"))]
    executors: Annotated[
        Sequence[str],
        Option(
            (),
            "eager, generated (memwall's kernels, CUDA only), inductor (its groups by torch.compile). [default: all]",
            flag="executor",
            metavar="NAME,...",
            several="again",
        ),
    ]
    gpu: Annotated[
        str | Path | Gpu | None,
        Option(None, "The spec that models this device: a name or a TOML file. [default: looked up]", metavar="SPEC"),
    ]


class TimingOptions(TypedDict, total=False):
    """How much is timed, and what is checked."""

    samples: Annotated[int, Option(30, "Timings of each kernel. [default: 30]", least=1, metavar="N")]
    top: Annotated[int | None, Option(None, "Only the N kernels that take most of the step.", least=1, metavar="N")]
    time_limit_s: Annotated[
        float,
        Option(
            math.inf,
            "Begin nothing new after S seconds; what was not reached is skipped.",
            flag="time-limit",
            above=0,
            metavar="S",
        ),
    ]
    check: Annotated[bool, Option(True, "Do not compare results with eager and float64.")]
    steps: Annotated[bool, Option(True, "Time kernels alone, not the whole step.", flag="step")]
    strict_device: Annotated[bool, Option(False, "Fail (3) where the device is throttled or shared.")]
    build_limit_s: Annotated[float, Option(BUILD_LIMIT_S)]


class RecordOptions(TypedDict, total=False):
    """Where a measurement is kept beside what is printed."""

    record: Annotated[
        str | None,
        Option(None, "Also keep the measurement in FOLDER, a file for each run: memwall drift.", metavar="FOLDER"),
    ]


class DriftOptions(TypedDict, total=False):
    """Which recorded runs are looked at, and what counts as a change.

    Attributes:
        workload: only runs of the workload of this name.
        since: a commit of a run (its hash, or what git takes for it), or a date in UTC: only what drifted from then on.
        least: a median that differs by no more than this share from the medians before is no drift.
    """

    workload: Annotated[str | None, Option(None, "Only runs of this workload.", metavar="NAME")]
    since: Annotated[
        str | None, Option(None, "Only what drifted from this commit or date (UTC) on.", metavar="REF|DATE")
    ]
    least: Annotated[
        float, Option(0.05, "The least change that is drift, as a share. [default: 0.05]", above=0, metavar="SHARE")
    ]


class MeasureOptions(DeviceOptions, Step, TimingOptions, total=False):
    """A step of a model on this machine, as keywords of :func:`memwall.bench.kernels.measure`.

    Attributes:
        device: ``cuda`` or ``cpu``; None takes CUDA if there is a device.
        executors: ``eager`` (each op alone), ``generated`` (memwall's kernels, CUDA only), ``inductor`` (each of its
            groups compiled alone by torch.compile); none named means all that the device has.
        gpu: the spec that models this device; None as :func:`memwall.bench.kernels.run.device_spec` finds it.
        samples: timings of each kernel, in three blocks, and of each step.
        top: only this many kernels of each executor, which take most of the modeled step.
        time_limit_s: begin no new block after this many seconds; kernels not reached are ``skipped``.
        check, steps: compare what kernels compute with eager and float64 (a wrong one gets no time); time whole steps.
        strict_device: refuse a device that is throttled or shared, before the first kernel if it shows by then.
        build_limit_s: a kernel that takes longer to be built, checked and tuned is lost.
    """
