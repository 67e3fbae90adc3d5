"""``memwall gate``: budgets and regressions, for CI."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memwall.cli import options
from memwall.cli.output import GATE_SUFFIXES, Messages, Out
from memwall.cli.parsing import Command
from memwall.cli.target import this_machine
from memwall.core.errors import UsageError
from memwall.core.units import counted
from memwall.gate.question import GateOptions

#: options that the command which shows a result again has otherwise, or not
_SAID = ("baseline", "baseline_ref", "measured", "update", "history", "github", "debug")

if TYPE_CHECKING:
    from memwall.gate.config import GateConfig, GatedWorkload
    from memwall.gate.page import GateReport
    from memwall.gate.run import GateRun


@click.command(
    "gate",
    cls=Command,
    examples=(
        ("memwall gate model.py --baseline-ref main", "What this branch changes."),
        ("memwall gate model.py --gpu h100 --limit 'time_s=3.2 ms' 'peak_memory=70 GB'", "Two budgets."),
    ),
)
@click.argument("targets", nargs=-1, metavar="[TARGET...]", shell_complete=options.completing("files"))
@options.question(GateOptions)
@options.gpus_of("the GPUs of the configuration, else h100-sxm; a saved profile's own")
@options.policies_of("eager and memwall; a saved profile's own")
@options.workload
@options.common("gate.page.GateReport", GATE_SUFFIXES)
def command(targets: tuple[str, ...], gpus: tuple[str, ...], policies: tuple[str, ...], out: Out, **more: Any) -> int:
    """Compare workloads with budgets and a baseline; say what moved and why.

    TARGET is as for memwall profile, a saved profile, or the name of a workload in [tool.memwall.gate] of
    pyproject.toml or memwall.toml; without one, all workloads there. Every figure is modeled: no GPU is needed, and
    unchanged code gives equal figures. Both eager and memwall are gated, so that a lost fusion shows.

    Limits without a sign are budgets; '+2%' is against the baseline. With a baseline and no limits, no kernel and no
    graph break may be added, and bytes (of convolutions in NCHW too), FLOPs, time and peak memory may grow by
    0.5 %.

    Exit code: 0 pass, 1 fail, 2 misuse, 3 a device or a dependency is missing, 4 inconclusive.
    """
    from memwall.gate.page import GateReport
    from memwall.gate.reading import configuration, selected
    from memwall.hardware.lookup import load_gpus

    asked = GateOptions(**{item.name: more.pop(item.name) for item in fields(GateOptions)})
    if asked.init:
        options.refuse_given("with --init, which writes a configuration", but=("init", "gpus", "policies"))
        return _init(targets, gpus, policies, out)
    out.plan(GateReport, GATE_SUFFIXES)
    if not asked.measured:
        options.refuse_given("without --measured", "device")
    whole = configuration(asked.config, asked.limits)
    chosen = _with_options(options.given(**more), selected(whole, targets, load_gpus(gpus), policies))
    return _gated(whole, chosen, asked, out, is_narrowed=bool(targets), has_gpus=bool(gpus))


def _gated(
    whole: GateConfig, chosen: list[GatedWorkload], asked: GateOptions, out: Out, *, is_narrowed: bool, has_gpus: bool
) -> int:
    """Judge some workloads, print and write what was asked, and return the exit code."""
    from memwall.gate.checkout import place_in_repository
    from memwall.gate.page import GateReport
    from memwall.gate.reading import base_of, on_gpus_of
    from memwall.gate.run import run_gate

    messages, update = out.messages, asked.update
    base = base_of(whole, asked)
    if base is None:
        options.refuse_given("without a baseline", "allow_new")
    if is_narrowed and isinstance(base, Path) and base.is_file() and not (update or has_gpus or whole.gpus):
        chosen = on_gpus_of(base, chosen)
    kept = asked.history if asked.history is not None else whole.history and str(whole.root / whole.history)
    if kept:
        from memwall.gate.history import append, committed, entry_of

        committed(whole.root, kept)  # refuses what no commit has, before the work
    run = run_gate(whole, chosen, base, _on_this_machine(asked))
    messages.clear()
    if update:
        assert isinstance(base, Path)
        run = _update(whole, chosen, run, base, messages)
    if kept:
        append(Path(kept), entry_of(run.heads, *committed(whole.root, kept), run.result.served))
        messages.say(f"added to {kept}")
    report = GateReport(
        run.result,
        folder=place_in_repository(whole.root),
        config=whole.source,
        given=options.words_given(but=_SAID),
        place=place_in_repository(Path.cwd() if asked.config else whole.root),
        heads=run.heads,
        bases=run.bases,
    )
    annotate = partial(_annotate, report, err=out.as_json) if asked.github else lambda: None
    # what was compared with what it has just been written as says nothing, unless a budget does not hold
    out.show(report, before_print=annotate, text=not update or run.result.verdict != "pass")
    return run.result.exit_code


def _on_this_machine(asked: GateOptions) -> GateOptions:
    """The question with the device that ``--measured`` times on."""
    if not asked.measured or asked.device != "auto":
        return asked
    return replace(asked, device="cpu" if this_machine() is None else "cuda")


def _init(targets: Sequence[str], gpus: Sequence[str], policies: Sequence[str], out: Out) -> int:
    """Write the first configuration."""
    from memwall.core.files import write_whole
    from memwall.gate.first import first_config, model_files
    from memwall.gate.reading import OWN_FILE

    path = Path(OWN_FILE)
    if path.exists():
        raise UsageError(f"{path} is there already: edit it, or remove it first")
    found = list(targets) or model_files(Path.cwd())
    write_whole(path, first_config(found, gpus, policies))
    out.messages.say(
        f"wrote {path} with {counted(len(found), 'workload')}: {', '.join(found)}; memwall gate --update writes the"
        " baseline, memwall gate compares with it"
    )
    return 0


def _with_options(given: dict[str, Any], workloads: Sequence[GatedWorkload]) -> list[GatedWorkload]:
    """The workloads with what the command line says of how to trace them."""
    from memwall.frontend.targets.target import is_saved
    from memwall.hardware.host import host_names, load_host

    training = [workload for workload in workloads if workload.options.get("mode") == "training"]
    named = options.profile_options(given, "training" if training else "inference")
    if "host" in named:  # refused here, and found from another tree
        load_host(named["host"])
        named["host"] = named["host"] if named["host"] in host_names() else str(Path(named["host"]).resolve())
    for several in ("input_specs", "dims"):
        if several in named:
            named[several] = tuple(named[several])
    for workload in workloads:
        if is_saved(workload.target):
            tracing = {name: value for name, value in given.items() if name != "host"}
            options.refuse(tracing, f"{workload.target} is already traced")
    others = {name: value for name, value in named.items() if name != "optimizer" or "mode" in named}
    return [
        replace(workload, options={**workload.options, **(named if workload in training else others)})
        for workload in workloads
    ]


def _update(
    config: GateConfig, workloads: Sequence[GatedWorkload], run: GateRun, place: Path, messages: Messages
) -> GateRun:
    """Write the heads as the baseline, print what changed, and judge again by it; nothing where a head failed."""
    from memwall.gate.baseline import baseline_path, write_baselines
    from memwall.gate.page import GateReport
    from memwall.gate.run import judge_again
    from memwall.report import render

    if run.failed or not run.heads:
        messages.warn("the baseline is not updated: " + (", ".join(sorted(run.failed)) or "there is no workload"))
        return run
    files = {baseline_path(place, name, several=len(workloads) > 1): profile for name, profile in run.heads.items()}
    write_baselines(files)
    if not messages.quiet:
        click.echo("Against the baseline before:\n" + str(render(GateReport(run.result), "text")), err=True)
    messages.say(f"wrote {counted(len(files), 'baseline')} to {place}")
    return judge_again(config, workloads, run, place)


def _annotate(report: GateReport, *, err: bool) -> None:
    """Add to the summary of GitHub's step, then print its annotations."""
    from memwall.report import render

    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        try:
            with Path(summary).open("a", encoding="utf-8") as handle:
                handle.write(str(render(report, "summary")))
        except OSError as error:
            raise UsageError(f"cannot write the step's summary {summary}: {error.strerror or error}") from None
    click.echo(render(report, "github"), err=err)
