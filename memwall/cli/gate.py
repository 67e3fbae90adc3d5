"""``memwall gate``: budgets and regressions, for CI."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memwall.cli import options
from memwall.cli.output import GATE_SUFFIXES, Messages, Output, plan_outputs, show
from memwall.cli.parsing import Command, SeveralOption
from memwall.core.errors import UsageError, suggest

if TYPE_CHECKING:
    from memwall.gate.config import GateConfig, GatedWorkload
    from memwall.gate.run import GateRun
    from memwall.report.pages.gate import GateReport


@click.command("gate", cls=Command)
@click.argument("targets", nargs=-1, metavar="[TARGET...]")
@click.option(
    "--config", metavar="FILE", help="The TOML file with the limits. [default: memwall.toml or pyproject.toml]"
)
@click.option(
    "--limit",
    "limits",
    cls=SeveralOption,
    metavar="NAME=LIMIT...",
    help="A limit on everything, such as 'time_s=3.2 ms', 'peak_memory=70 GB', 'dram_bytes=+2%', 'kernels=+0'.",
)
@click.option("--baseline", metavar="PATH", help="A saved profile, or a folder with one per workload.")
@click.option("--baseline-ref", metavar="REF", help="A commit, branch or tag: the base is where it and HEAD parted.")
@click.option("--update", is_flag=True, help="Write the baseline anew, and print what changed.")
@click.option("--allow-new", is_flag=True, help="Let a workload pass that the baseline does not have.")
@click.option("--measured", is_flag=True, help="Also time base and head against each other here; needs --baseline-ref.")
@click.option(
    "--device", type=click.Choice(("auto", "cpu", "cuda")), default="auto", show_default=True, help="For --measured."
)
@click.option("--history", metavar="FILE", help="Add this commit's figures to a history file.")
@click.option("--github", is_flag=True, help="Print GitHub's annotations; add to the step's summary.")
@options.gpus
@options.policies
@options.workload
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="FILE",
    help=f"Write a file too; its suffix says what: {' '.join(GATE_SUFFIXES)}. May be repeated.",
)
@options.as_json
@options.quiet
@options.debug
def command(
    targets: tuple[str, ...],
    config: str | None,
    limits: tuple[str, ...],
    baseline: str | None,
    baseline_ref: str | None,
    update: bool,
    allow_new: bool,
    measured: bool,
    device: str,
    history: str | None,
    github: bool,
    gpus: tuple[str, ...],
    policies: tuple[str, ...],
    outputs: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    no_progress: bool,
    **workload: Any,
) -> int:
    """Hold workloads against budgets and a baseline; say what moved and why.

    TARGET is as for memwall profile, a saved profile, or the name of a workload in [tool.memwall.gate] of
    pyproject.toml or memwall.toml; without one, all workloads there. Every figure is modeled: no GPU is needed, and
    unchanged code gives equal figures. Without --policy both eager and memwall are gated, so that a fusion that is lost
    shows.

    Limits without a sign are budgets; '+2%' is against the baseline. With a baseline and no limits, no kernel and no
    graph break may be added, and bytes, FLOPs, time and peak memory may grow by 0.5 %.

    Exit code: 0 pass, 1 fail, 3 inconclusive, 2 misuse.
    """
    from memwall.gate.run import run_gate

    _tidy_when_stopped()
    planned = plan_outputs(outputs, suffixes=GATE_SUFFIXES)
    messages = Messages(quiet=quiet, no_progress=no_progress)
    given = options.given(**workload)
    whole = _config(config, limits)
    chosen = _chosen(whole, targets, gpus, policies, given)
    place, ref = _base(whole, baseline, baseline_ref, update)
    if targets and place is not None and place.is_file() and not (update or gpus or whole.gpus):
        chosen = _on_boards_of(place, chosen)
    kept = history if history is not None else whole.history and str(whole.root / whole.history)
    if kept:
        from memwall.analysis.history import committed

        committed(whole.root, kept)  # refuses what no commit has, before the work
    run = run_gate(
        whole, chosen, baseline=place, baseline_ref=ref, allow_new=allow_new or update, first=update,
        measured_on=_device(device) if measured else None, say=messages.progress,
    )  # fmt: skip
    messages.clear()
    if update:
        assert place is not None
        run = _update(whole, chosen, run, place, quiet=quiet, messages=messages)
    if kept:
        _remember(kept, run, whole.root, messages)
    _show(run, whole, planned, as_json=as_json, github=github, messages=messages)
    return run.result.exit_code


def _config(path: str | None, limits: Sequence[str]) -> GateConfig:
    """The configuration named, or found, with the limits of the command line over it."""
    from memwall.gate.config import GateConfig, parse_scope
    from memwall.gate.reading import find_config, read_config

    if path is not None:
        found = read_config(Path(path))
    else:
        near = find_config(Path.cwd())
        found = read_config(near) if near else GateConfig(Path.cwd())
    return replace(found, over=parse_scope(limits))


def _chosen(
    config: GateConfig, targets: Sequence[str], gpus: Sequence[str], policies: tuple[str, ...], given: dict[str, Any]
) -> list[GatedWorkload]:
    """The workloads to gate: those named, else those configured, with what the command line says of them."""
    from memwall.frontend.workload.target import is_target
    from memwall.gate.reading import expand, workload_name
    from memwall.hardware.lookup import load_gpus

    boards = tuple(load_gpus(gpus))
    configured = {workload.name: workload for workload in config.workloads}
    by_target = {workload.target: workload for workload in config.workloads}
    found: list[GatedWorkload] = []
    for text in targets:
        known = configured.get(text) or by_target.get(_inside(text, config.root))
        if known is not None:
            found.append(known)
        elif configured and not is_target(text):
            raise UsageError(f"no workload {text!r} in {config.source}; {suggest(text, configured, cutoff=0.5)}")
        else:
            found += [
                config.workload(workload_name(target), target)
                for target in expand(_inside(text, config.root), config.root)
            ]
    if not targets:
        found = list(config.workloads)
    names = [workload.name for workload in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two workloads are named {name}; name them in [tool.memwall.gate.workloads.NAME]")
    return [
        replace(
            w,
            gpus=boards or w.gpus,
            policies=policies or w.policies,
            options={**w.options, **_profile_options(given, w)},
        )
        for w in found
    ]


def _on_boards_of(place: Path, workloads: list[GatedWorkload]) -> list[GatedWorkload]:
    """Where no board is named and the baseline is one profile: on the boards that it was made for."""
    from memwall.record.profile import Profile

    boards = tuple({s.gpu.name: s.gpu for s in Profile.load(place).simulations}.values())
    return [replace(w, gpus=boards or w.gpus) for w in workloads]


def _profile_options(given: dict[str, Any], workload: GatedWorkload) -> dict[str, Any]:
    from memwall.gate.config import is_saved

    if is_saved(workload.target):
        options.refuse(given, f"{workload.target} is already traced")
    renamed = options.profile_options(given)
    if "input_specs" in renamed:
        renamed["input_specs"] = tuple(renamed["input_specs"])
    return renamed


def _inside(target: str, root: Path) -> str:
    """A target of the command line relative to the root, where it is a path."""
    place, colon, name = target.rpartition(":")
    path = Path(place if colon and place.endswith(".py") else target)
    if not path.is_absolute() and root == Path.cwd():
        return target
    full = Path.cwd() / path
    if not full.exists() and not any(sign in target for sign in "*?["):
        return target
    if not full.resolve().is_relative_to(root):
        return str(full)
    relative = full.resolve().relative_to(root).as_posix()
    return f"{relative}:{name}" if colon and place.endswith(".py") else relative


def _base(config: GateConfig, baseline: str | None, ref: str | None, update: bool) -> tuple[Path | None, str | None]:
    """Where the baseline lies, or the ref; the command line goes before the configuration."""
    if baseline is not None and ref is not None:
        raise UsageError("--baseline and --baseline-ref are two baselines; give one")
    if baseline is None and ref is None:
        place = config.root / config.baseline if config.baseline is not None else None
        ref = config.baseline_ref
    else:
        place = Path(baseline) if baseline is not None else None
    if update and place is None:
        raise UsageError(
            "--update writes a baseline: say where with --baseline PATH, or baseline = in the configuration"
        )
    return place, ref


def _update(
    config: GateConfig,
    workloads: Sequence[GatedWorkload],
    run: GateRun,
    place: Path,
    *,
    quiet: bool,
    messages: Messages,
) -> GateRun:
    """Write the heads as the baseline, print what changed, and judge again by it; nothing where a head failed."""
    from memwall.gate.baseline import baseline_path, write_baselines
    from memwall.gate.run import judge_again
    from memwall.report import render
    from memwall.report.pages.gate import GateReport

    if run.failed or not run.heads:
        messages.warn("the baseline is not updated: " + (", ".join(sorted(run.failed)) or "there is no workload"))
        return run
    files = {baseline_path(place, name, several=len(workloads) > 1): profile for name, profile in run.heads.items()}
    write_baselines(files)
    if not quiet:
        click.echo("Against the baseline before:\n" + str(render(GateReport(run.result), "text")), err=True)
    messages.say(f"wrote {len(files)} baseline{'s' if len(files) != 1 else ''} to {place}")
    return judge_again(config, workloads, run, place)


def _tidy_when_stopped() -> None:
    """A runner that gives up sends SIGTERM: like Ctrl-C it takes the worktree and the children away."""
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def _device(named: str) -> str:
    """``cuda`` where a driver has a board, else ``cpu``."""
    from memwall.cli.machine import this_machine

    return named if named != "auto" else "cuda" if this_machine() is not None else "cpu"


def _remember(path: str, run: GateRun, folder: Path, messages: Messages) -> None:
    from memwall.analysis.history import append, entries_of

    append(Path(path), entries_of(run.heads, folder, path))
    messages.say(f"added to {path}")


def _show(
    run: GateRun, config: GateConfig, planned: Sequence[Output], *, as_json: bool, github: bool, messages: Messages
) -> None:
    """Write the files and the step's summary, then print."""
    from memwall.gate.baseline import place_in_repository
    from memwall.report.pages.gate import GateReport

    report = GateReport(run.result, folder=place_in_repository(config.root), config=config.source)
    annotate = partial(_annotate, report, err=as_json) if github else lambda: None
    show(report, planned, as_json=as_json, messages=messages, before_print=annotate)


def _annotate(report: GateReport, *, err: bool) -> None:
    """Add to the summary of GitHub's step, then print its annotations."""
    from memwall.report import render

    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        _append(Path(summary), str(render(report, "summary")))
    click.echo(render(report, "github"), err=err)


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as handle:
            handle.write(text)
    except OSError as error:
        raise UsageError(f"cannot write the step's summary {path}: {error.strerror or error}") from None
