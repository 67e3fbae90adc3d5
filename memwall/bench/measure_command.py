"""``memwall measure``: run what was modeled on this machine, and show measured next to modeled time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memwall.cli import options
from memwall.cli.output import Messages, Out
from memwall.cli.parsing import Command
from memwall.cli.target import is_record, remember, running
from memwall.record.measurement import EXECUTORS

if TYPE_CHECKING:
    from memwall.record.profile import Profile

#: seconds between two writings of what was measured so far
PARTIAL_EVERY_S = 5.0
INTERRUPTED = 130
#: options of the command that say what is timed, and how
_TIMING = ("device", "executors", "gpu", "samples", "top", "time_limit_s")


def _executors(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Executors from flags that may be repeated and may each name several, separated by commas."""
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    for name in names:
        if name not in EXECUTORS:
            raise click.BadParameter(f"no executor named {name!r}; there is {', '.join(EXECUTORS)}")
    return tuple(dict.fromkeys(names))


@click.command("measure", cls=Command)
@click.argument("target", metavar="TARGET|PROFILE", shell_complete=options.completing("files"))
@click.option("--device", type=click.Choice(("cuda", "cpu")), help="[default: cuda where there is one]")
@click.option(
    "--executor", "executors", multiple=True, metavar="NAME,...", callback=_executors,
    help="eager, generated (memwall's kernels, CUDA only), inductor (its groups by torch.compile). [default: all]",
)  # fmt: skip
@click.option(
    "--gpu", metavar="SPEC", help="The spec that models this device: a name or a TOML file. [default: looked up]"
)
@options.workload
@click.option("--samples", type=click.IntRange(1), metavar="N", help="Timings of each kernel. [default: 30]")
@click.option("--top", type=click.IntRange(1), metavar="N", help="Only the N kernels that take most of the step.")
@click.option("--time-limit", "time_limit_s", type=click.FloatRange(min=0, min_open=True), metavar="S",
              help="Begin nothing new after S seconds; what was not reached is skipped.")  # fmt: skip
@click.option("--no-check", is_flag=True, help="Do not compare results with eager and float64.")
@click.option("--no-step", is_flag=True, help="Time kernels alone, not the whole step.")
@click.option("--strict-device", is_flag=True, help="Fail (3) where the device is throttled or shared.")
@options.common("report.pages.profile.MeasuredReport")
def command(target: str, strict_device: bool, no_check: bool, no_step: bool, out: Out, **given: Any) -> int:
    """Time every kernel of TARGET on this machine, and the whole step, next to the modeled time.

    Each distinct kernel is built, checked against eager PyTorch in float64, and timed alone with cold caches, in a
    process of its own that it may take down without harm to the others. TARGET is as for memwall profile; a saved
    profile (.json) is measured without its model.

    -o FILE.json is written while the measurement runs; Ctrl-C keeps what was measured (exit 130).
    """
    from memwall.bench.kernels import Interrupted, measure
    from memwall.record.profile import Profile
    from memwall.report.pages.profile import MeasuredReport

    out.plan(MeasuredReport)
    timing = options.given(**{name: given.pop(name) for name in _TIMING}, strict_device=strict_device)
    source: str | Profile = target
    messages, code, saved = out.messages, 0, is_record(target)
    keywords = options.profile_options(given, "" if saved else "inference")
    if saved:
        options.refuse(keywords, f"{target} is already traced; measure the model itself")
        source = Profile.load(target)
    paths = [output.path for output in out.files if output.kind == "json" and not strict_device]  # refused: no file
    try:
        with running(target, messages):
            profile = measure(
                source,
                progress=messages.progress,
                updated=_writer(paths),
                check=not no_check,
                steps=not no_step,
                **timing,
                **keywords,
            )
    except Interrupted as interrupted:
        profile, code = interrupted.profile, INTERRUPTED
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
