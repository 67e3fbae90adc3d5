"""The options of ``memwall gate``: limits, a baseline, and what the run writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from memwall.core.question import Option


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """How workloads are judged; what is not internal is a setting of the configuration too."""

    config: Annotated[
        str | None,
        Option(
            help="The TOML file with the limits. [default: memwall.toml or pyproject.toml]",
            metavar="FILE",
            internal=True,
        ),
    ] = None
    limits: Annotated[
        tuple[str, ...],
        Option(
            help="A limit on everything, such as 'time_s=3.2 ms', 'peak_memory=70 GB', 'dram_bytes=+2%', 'kernels=+0'.",
            flag="limit",
            metavar="NAME=LIMIT...",
            several="words",
            internal=True,
        ),
    ] = ()
    baseline: Annotated[
        str | None, Option(help="A saved profile, or a folder with one per workload.", metavar="PATH")
    ] = None
    baseline_ref: Annotated[
        str | None, Option(help="A commit, branch or tag: the base is where it and HEAD parted.", metavar="REF")
    ] = None
    init: Annotated[
        bool, Option(help="Write a small memwall.toml for the TARGETs, or the model files found here.", internal=True)
    ] = False
    update: Annotated[bool, Option(help="Write the baseline anew, and print what changed.", internal=True)] = False
    allow_new: Annotated[bool, Option(help="Let a workload pass that the baseline does not have.", internal=True)] = (
        False
    )
    measured: Annotated[
        bool, Option(help="Also time base and head against each other here; needs --baseline-ref.", internal=True)
    ] = False
    device: Annotated[
        str, Option(help="For --measured.", choices=("auto", "cpu", "cuda"), shown=True, internal=True)
    ] = "auto"
    runs: Annotated[
        str | None,
        Option(
            help="Runs that memwall measure --record kept: shown, and of this very commit they decide time_s.",
            metavar="PATH",
        ),
    ] = None
    history: Annotated[str | None, Option(help="Add this commit's figures to a history file.", metavar="FILE")] = None
    github: Annotated[bool, Option(help="Print GitHub's annotations; add to the step's summary.", internal=True)] = (
        False
    )
