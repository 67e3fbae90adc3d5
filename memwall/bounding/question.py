"""The options of ``memwall bound`` beside the options of a step."""

from __future__ import annotations

import re
from typing import Annotated, TypedDict

from memwall.analysis.limits import parse_limit
from memwall.core.errors import UsageError
from memwall.core.question import Option
from memwall.hardware.lookup import Gpu
from memwall.step import Step

#: ``--baseline`` → the policy whose time it is
BASELINES = {"eager": "eager", "inductor": "inductor"}


class BoundOptions(TypedDict, total=False):
    """What is asked of a kernel, as keywords of :func:`memwall.bound`.

    Attributes:
        measured: a time that was measured on one of the GPUs, in seconds or as text such as ``"112us"``.
        kernel: of a saved profile, the number, the name or a part of the name of one of its kernels, in place of the
            whole step.
        clock: the clock that the GPU is locked to, in hertz or as text such as ``"1.5GHz"``; None: it boosts.
        baseline: whose time scores are relative to: ``eager`` or ``inductor``.
    """

    measured: Annotated[
        float | str | None, Option(None, "A measured time, such as 112us: how good is it?", metavar="TIME")
    ]
    kernel: Annotated[
        str | None, Option(None, "Of a saved profile: one kernel, by its number or name.", metavar="NAME")
    ]
    clock: Annotated[
        float | str | None, Option(None, "The clock that the GPU is locked to, such as 1.5GHz.", metavar="CLOCK")
    ]
    baseline: Annotated[
        str, Option("eager", "Whose time scores are relative to.", choices=tuple(BASELINES), shown=True)
    ]


class BoundStep(BoundOptions, Step, total=False):
    """All options of :func:`memwall.bound`."""


def seconds_of(measured: float | str | None) -> float | None:
    """A measured time in seconds. Raises UsageError: it is no time, or one that nothing takes."""
    if measured is None:
        return None
    limit = parse_limit("time_s", measured, "--measured")
    if limit.relative or not _TIMES[0] <= limit.amount <= _TIMES[1]:
        raise UsageError(f"--measured is a time from 1 ps to 11 days, such as 112us, not {str(measured)[:40]}")
    return limit.amount


#: from a thousandth of a clock to longer than any step, in seconds
_TIMES = (1e-12, 1e6)

_HERTZ = re.compile(r"(\d+(?:\.\d*)?)\s*(k|M|G)?(?:Hz)?")


def at_clock(gpu: Gpu, clock: float | str | None) -> Gpu:
    """The GPU locked to a clock. Raises UsageError: that is no clock, or one that no GPU has."""
    if clock is None:
        return gpu
    found = _HERTZ.fullmatch(str(clock).strip())
    hertz = float(found[1]) * {"k": 1e3, "M": 1e6, "G": 1e9}.get(found[2], 1.0) if found else 0.0
    if not _CLOCKS[0] <= hertz <= _CLOCKS[1]:
        raise UsageError(f"--clock is one of a GPU, such as 1.5GHz or 1500MHz, not {str(clock)[:40]!r}")
    return gpu.locked(hertz)


#: from the slowest to above the fastest clock of a GPU
_CLOCKS = (1e8, 1e10)
