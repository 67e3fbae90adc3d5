"""``memwall drift``: which kernels of recorded runs have left their range, since when, and what changed then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memwall.bench.question import DriftOptions
from memwall.cli import options
from memwall.cli.output import Out
from memwall.cli.parsing import Command

#: the exit code of --check where something drifted
DRIFTED = 1


@click.command(
    "drift",
    cls=Command,
    examples=(
        ("memwall drift runs --since main", "What drifted since a branch."),
        ("memwall drift runs --least 0.1 --check", "Exit with 1 where a kernel changed by a tenth or more."),
    ),
)
@click.argument("folder", metavar="FOLDER", shell_complete=options.completing("files"))
@options.question(DriftOptions)
@click.option("--check", is_flag=True, help="Exit with 1 where a kernel drifted.")
@options.common("bench.drift.page.DriftReport")
def command(folder: str, check: bool, out: Out, **given: Any) -> int:
    """Say which kernels of the runs in FOLDER drifted, since which run, and what changed then.

    FOLDER is what memwall measure --record wrote to. A kernel drifts if from some run on its time lies outside of all
    runs before, or outside of its modeled range, in which it lay before. Runs of different GPUs, workloads and inputs
    are never compared.
    """
    from memwall.bench.drift.finding import find_drift
    from memwall.bench.drift.page import DriftReport
    from memwall.bench.drift.runs import read_runs

    out.plan(DriftReport)
    runs, refused = read_runs(Path(folder))
    for line in refused:
        out.messages.warn(line)
    drift = find_drift(runs, **options.taken(DriftOptions, given))
    out.show(DriftReport(drift))
    return DRIFTED if check and drift.drifted else 0
