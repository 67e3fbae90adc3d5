"""``memwall compare``: one workload on several GPUs, several profiles side by side, or the machines themselves."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memwall.cli import options
from memwall.cli.defaults import CommandWithDefaults, said
from memwall.cli.output import Messages, Out
from memwall.cli.parsing import SeveralOption
from memwall.cli.target import is_record, make_profile, remember, running, warn_of_doubts
from memwall.core.errors import UsageError
from memwall.hardware.lookup import DEFAULT_GPU, Gpu, load_gpu, load_gpus
from memwall.hardware.prices import prices_of
from memwall.hardware.torch_versions import NEWEST, torch_version
from memwall.step import Step
from memwall.wings import part

if TYPE_CHECKING:
    from memwall.record.profile import Profile
    from memwall.sweeping.comparison import Comparison

#: columns of a comparison: A to Z
_MOST_COLUMNS = 26


def _check_versions(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Versions of torch that there are, each once; refused before any work."""
    return tuple(dict.fromkeys(torch_version(name).name for name in names))


@click.command(
    "compare",
    cls=CommandWithDefaults,
    examples=(
        ("memwall compare model.py --gpu a100 h100 b200", "One model on three GPUs."),
        ("memwall compare before.json after.json", "What changed between two saved profiles."),
    ),
)
@click.argument("targets", nargs=-1, metavar="[TARGET|PROFILE]...", shell_complete=options.completing("files"))
@options.gpus_of("a saved profile's own; without a target, all that memwall knows")
@click.option("--machines", is_flag=True, help="Compare the GPUs themselves, whatever was profiled here.")
@click.option(
    "--price", "prices", multiple=True, metavar="NAME=USD", help="Price of a GPU per hour, for cost. May be repeated."
)
@options.question(Step, but=("host", "cluster", "world", "rank", "torch"))
@click.option(
    "--torch",
    cls=SeveralOption,
    metavar="VERSION...",
    callback=_check_versions,
    shell_complete=options.completing("torch_versions"),
    help=f"One version of torch or several, side by side: what an upgrade wins. [default: {NEWEST}]",
)
@options.policies
@options.common("sweeping.comparison_page.ComparisonReport")
def command(
    targets: tuple[str, ...], gpus: tuple[str, ...], machines: bool, prices: tuple[str, ...], out: Out, **workload: Any
) -> None:
    """Compare GPUs, profiles, or traces of a profiler.

    With one TARGET (a model, or a saved profile) it is put on each --gpu, a model with each --torch. Several stand
    side by side. With none, the last profile made in this folder is taken, and without one, or with --machines, the
    GPUs themselves are compared: peaks, bandwidth, capacity, and how they grew.

    Traces of PyTorch's or XLA's profiler are compared with each other: what got slower, what is new. One trace is
    compared with the model's time for its ops on each --gpu, else on its own.

    After --gpu, --policy and --torch any number of names may follow; put TARGET first, or see that it ends in .py or
    .json.
    """
    from memwall.record.profile import default_record_path
    from memwall.sweeping.comparison_page import ComparisonReport

    if any(map(part("traces.is_trace"), targets)):
        _compare_traces(targets, load_gpus(gpus), out, workload, priced=bool(prices))
        return
    out.plan(ComparisonReport)
    if taken := said():
        out.messages.say(taken)
    found = load_gpus(gpus)
    price = prices_of(options.parse_prices(prices))
    last, about = default_record_path(), ""
    if machines and targets:
        raise UsageError(f"--machines compares GPUs alone: leave {targets[0]} out")
    if not targets and not machines and last.is_file():
        about = _about(last)
        targets = (str(last),)
    comparison, made = _compare(targets, found, price, workload, out.messages)
    keep = partial(remember, made, out.messages) if made is not None else lambda: None
    out.show(ComparisonReport(comparison, about), before_print=keep)


def _about(last: Path) -> str:
    """Which profile is taken where no target is named, and how to get the GPUs themselves."""
    from memwall.record.profile import Profile

    saved = Profile.load(last).workload
    made = datetime.fromtimestamp(last.stat().st_mtime).astimezone().isoformat(" ", "minutes")
    of = f" of {saved.target}" if saved.target else ""
    return (
        f"No target was named: this is {saved.name}{of}, {saved.mode}, profiled at {made} and kept in {last}. The GPUs"
        " themselves: memwall compare --machines."
    )


def _compare(
    targets: tuple[str, ...], gpus: list[Gpu], price: dict[str, float], workload: dict[str, Any], messages: Messages
) -> tuple[Comparison, Profile | None]:
    """The targets on the GPUs, or side by side, or the GPUs themselves; and the profile of a model that was traced for
    it alone."""
    from memwall.record.profile import Profile
    from memwall.sweeping.compare import compare

    policies, host = workload.pop("policies"), workload.pop("host")
    models = [target for target in targets if not is_record(target)]
    if not models:
        reason = f"{targets[0]} is already traced" if targets else "no target and no profile is compared"
        options.refuse(options.profile_options(workload, ""), reason)
    if not targets:
        for flag in ("--price",) * bool(price) + ("--policy",) * bool(policies) + ("--host",) * bool(host):
            raise UsageError(f"{flag} goes with a workload: name a target")
        return compare(None, gpu=gpus), None
    if models and not gpus:
        raise UsageError(f"name the GPUs to compare, as in memwall compare {models[0]} --gpu a100 h100")
    if len(targets) == 1 and not models:
        saved = Profile.load(targets[0])
        with running(targets[0], messages):  # a compiler may have something to say
            comparison = compare(saved, gpu=gpus, price=price, policy=policies, host=host)
        warn_of_doubts(saved, gpus, messages)
        return comparison, None
    how = {"policies": policies, "host": host}
    traced = [{**workload, **how, "torch": version} for version in workload.pop("torch") or (NEWEST,)]
    asked = [(target, options) for target in targets for options in (traced if target in models else [how])]
    several = len(models) > 1
    records = [make_profile(target, gpus, options, messages, beside=several) for target, options in asked]
    if len(records) > 1:
        return compare(records, price=price), None
    return compare(records[0], gpu=gpus, price=price, host=host), records[0]


def _compare_traces(
    paths: Sequence[str], gpus: Sequence[Gpu], out: Out, unused: dict[str, Any], *, priced: bool
) -> None:
    """Compare traces with each other, or one with the model on the GPUs given, write and print. Raises
    ``UsageError``: a target that is no trace is among them, or an option that says how to trace a model."""
    page = part("traces.TraceComparisonReport")

    out.plan(page)
    for path in paths:
        if not part("traces.is_trace")(path):
            raise UsageError(f"{path} is no profiler's trace; compare traces with traces, or with the model by --gpu")
    options.refuse(options.profile_options(unused, ""), f"{paths[0]} is a profiler's trace of one that ran")
    if priced:
        raise UsageError(f"--price goes with a model or a profile, and {paths[0]} is a profiler's trace")
    if len(paths) > _MOST_COLUMNS or len(gpus) >= _MOST_COLUMNS:
        raise UsageError(f"compare at most {_MOST_COLUMNS} columns at once")
    if len(paths) > 1:
        any_gpu = [load_gpu(DEFAULT_GPU)]  # measured times alone are compared: of a GPU that is not known too
        with running(paths[0], out.messages):
            analyses = [part("traces.analyse_file")(path, gpus, instead=any_gpu) for path in paths]
        out.show(page(part("traces.compare_traces")(analyses)))
        return
    with running(paths[0], out.messages):
        analysis = part("traces.analyse_file")(paths[0], (), instead=gpus)
    out.show(page(part("traces.compare_with_model")(analysis, gpus or [analysis.gpu])))
