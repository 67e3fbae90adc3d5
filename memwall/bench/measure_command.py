"""``memwall measure``: run what was modeled on this machine, and show measured next to modeled time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memwall.bench.question import DeviceOptions, RecordOptions, TimingOptions
from memwall.cli import options
from memwall.cli.output import Messages, Out
from memwall.cli.parsing import Command
from memwall.cli.target import is_record, remember, running

if TYPE_CHECKING:
    from memwall.record.profile import Profile

#: seconds between two writings of what was measured so far
PARTIAL_EVERY_S = 5.0
INTERRUPTED = 130


@click.command(
    "measure",
    cls=Command,
    examples=(
        (
            "memwall measure model.py --device cpu",
            "Every kernel measured on this machine's CPU, next to its modeled time.",
        ),
        (
            "memwall measure model.py --mode training --record runs -o page.html",
            "A training step as a page; the run is kept for memwall drift.",
        ),
    ),
)
@click.argument("target", metavar="TARGET|PROFILE", shell_complete=options.completing("files"))
@options.question(DeviceOptions)
@options.workload
@options.question(TimingOptions, but=("build_limit_s",))
@options.question(RecordOptions)
@options.common("report.pages.profile.MeasuredReport")
def command(target: str, record: str | None, out: Out, **given: Any) -> int:
    """Time every kernel of TARGET on this machine, and the whole step, next to the modeled time.

    Each distinct kernel is built, checked against eager PyTorch in float64, and timed alone with cold caches, in a
    process of its own that it may take down without harm to the others. TARGET is as for memwall profile; a saved
    profile (.json) is measured without its model.

    -o FILE.json is written while the measurement runs; Ctrl-C keeps what was measured (exit 130). --record FOLDER
    keeps each run that ends as a file of its own, for memwall drift and memwall gate --runs.
    """
    from memwall.bench.drift.runs import checked_folder, keep
    from memwall.bench.kernels import Interrupted, measure
    from memwall.record.profile import Profile
    from memwall.report.pages.profile import MeasuredReport

    out.plan(MeasuredReport)
    folder = checked_folder(Path(record)) if record is not None else None
    timing = options.taken(DeviceOptions, given) | options.taken(TimingOptions, given)
    if "executors" in timing:  # each may name several
        timing["executors"] = [name.strip() for text in timing["executors"] for name in text.split(",") if name.strip()]
    source: str | Profile = target
    messages, code, saved = out.messages, 0, is_record(target)
    keywords = options.profile_options(given, "" if saved else "inference")
    if saved:
        options.refuse(keywords, f"{target} is already traced; measure the model itself")
        source = Profile.load(target)
    paths = [output.path for output in out.files if output.kind == "json" and "strict_device" not in timing]
    try:
        with running(target, messages):
            profile = measure(source, updated=_writer(paths), **timing, **keywords)
    except Interrupted as interrupted:
        profile, code = interrupted.profile, INTERRUPTED
    if folder is not None and not code:
        messages.say(f"kept as {keep(profile, folder)}")
    out.show(MeasuredReport(profile), before_print=partial(_doubts, profile, messages))
    if code:
        messages.warn("interrupted; what was measured until then is kept")
    if source is target:
        remember(profile, messages)
    return code


def _writer(paths: Sequence[Path]) -> Callable[[Profile], None]:
    """Writes the record now and then while it grows, so that nothing measured is lost."""
    next_s = 0.0

    def write(profile: Profile) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            for path in paths:
                profile.save(path)
            next_s = time.monotonic() + PARTIAL_EVERY_S

    return write


def _doubts(profile: Profile, messages: Messages) -> None:
    """What puts the result in doubt, loudly."""
    from memwall.analysis.validation import measurements
    from memwall.bench.device import in_doubt
    from memwall.bench.kernels.benchmark_run import flags

    counted = flags(measurements(profile))
    for flag in in_doubt(counted):
        messages.warn(f"{counted[flag]} kernels: {flag}")
