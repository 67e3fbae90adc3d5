"""``memwall profile``: the main job."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memwall.cli import options
from memwall.cli.machine import chosen_gpus
from memwall.cli.output import Messages, plan_outputs, show
from memwall.cli.parsing import Command
from memwall.core.errors import UsageError

if TYPE_CHECKING:
    from memwall.analysis.whatif import Change, Outcome
    from memwall.hardware.lookup import Gpu
    from memwall.record.profile import Profile


def _print_rules(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from memwall.report.pages.rules import RulesReport

        show(RulesReport())
        context.exit()


@click.command("profile", cls=Command)
@click.argument("target")
@options.gpus
@options.workload
@options.policies
@options.what_ifs
@options.shape
@options.common
@click.option(
    "--explain",
    "explain",
    multiple=True,
    metavar="KERNEL",
    help="Say in a sentence why a kernel takes its time: its number, its name or a part of it, a pattern of modules"
    " ('layers.0.mlp*'). May be repeated.",
)
@click.option("--ncu", metavar="FILE.csv", help="Nsight Compute's report of the same run, beside a profiler's trace.")
@click.option(
    "--rules", is_flag=True, is_eager=True, expose_value=False, callback=_print_rules, help="Print the counting rules."
)
def command(
    target: str,
    gpus: tuple[str, ...],
    what_ifs: tuple[str, ...],
    outputs: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    no_progress: bool,
    top: int | None,
    sort: str | None,
    by: str | None,
    explain: tuple[str, ...],
    ncu: str | None,
    **workload: Any,
) -> None:
    """Say where each microsecond of TARGET would go, or went.

    TARGET is model.py, model.py:name, package.module:name, hf:FOLDER_OR_CONFIG_JSON, or a saved profile (.json), which
    is simulated again on the GPUs given. Or it is a trace of PyTorch's profiler (.json, .json.gz): then each kernel's
    measured time stands beside its FLOPs, bytes, wall and modeled time on the board that it ran on.

    A model file has model() and inputs(); or workload(); or a class Model and get_inputs(). loss(output) and
    optimizer(parameters) are used where they stand beside them. Nothing is run: no GPU, no weights.

    After --gpu and --policy any number of names may follow; put TARGET first, or see that it ends in .py or .json.
    """
    from memwall.analysis.explanation import kernels_named
    from memwall.analysis.whatif import parse_change
    from memwall.cli.trace_input import is_trace, profile_trace

    messages = Messages(quiet=quiet, no_progress=no_progress)
    if is_trace(target):
        unused = options.profile_options(workload) | options.given(what_if=what_ifs, explain=explain)
        options.refuse(unused, f"{target} is a profiler's trace of one that ran")
        profile_trace(target, gpus, ncu=ncu, outputs=outputs, as_json=as_json, messages=messages,
                      top=top, sort=sort, by=by)  # fmt: skip
        return
    if ncu is not None:
        raise UsageError(f"--ncu goes with a profiler's trace, and {target} is none")
    from memwall.report.pages.profile import ProfileReport

    planned = plan_outputs(outputs)
    changes = [parse_change(text) for text in what_ifs]
    result = make_profile(target, gpus, workload, messages)
    report = ProfileReport(
        result,
        what_ifs=_what_ifs(result, changes, messages),
        explained=kernels_named(result, explain) if explain else (),
        **options.given(top=top, sort=sort, by=by),
    )
    keep = partial(remember, result, messages)
    show(report, planned, as_json=as_json, messages=messages, before_print=keep)


def _what_ifs(profile: Profile, changes: Sequence[Change], messages: Messages) -> tuple[Outcome, ...]:
    """The totals of all simulations again after each change."""
    if not changes:
        return ()
    from memwall.analysis.whatif import what_if

    gpus = {schedule.gpu.name: schedule.gpu for schedule in profile.simulations}
    policies = dict.fromkeys(schedule.policy for schedule in profile.simulations)
    with user_output_to_stderr():
        messages.progress(f"simulating {len(changes):,} what-ifs")
        outcomes = what_if(profile, changes, list(gpus.values()), list(policies))
    messages.clear()
    return tuple(outcomes)


def make_profile(target: str, names: Sequence[str | Gpu], workload: dict[str, Any], messages: Messages) -> Profile:
    """The profile of a target on the GPUs named, traced or simulated again from a saved record.

    Raises:
        UsageError: an option that does not go with a saved record, or as :func:`memwall.profile`.
    """
    keywords = options.profile_options(workload)
    if is_record(target):
        return _again(target, names, keywords, messages)
    gpus = chosen_gpus(names, messages.say)
    with user_output_to_stderr():
        from memwall.pipeline import profile

        try:
            return profile(target, gpu=gpus, progress=messages.progress, **keywords)
        except (SystemExit, GeneratorExit) as error:  # a model that leaves is no result, whatever its code
            from memwall.frontend.workload.blame import blame

            raise blame(error, f"running {target}") from error
        finally:
            messages.clear()


def is_record(target: str) -> bool:
    """Whether a target is a saved record: a file that ends in .json or .json.gz.

    Raises:
        UsageError: it is a profiler's trace.
    """
    from memwall.cli.trace_input import refuse_trace

    refuse_trace(target)
    return target.lower().endswith((".json", ".json.gz")) and not target.startswith("hf:")


def _again(target: str, names: Sequence[str | Gpu], keywords: dict[str, Any], messages: Messages) -> Profile:
    """A saved profile on the GPUs given, else as it was saved. Needs neither torch nor the model."""
    from memwall.hardware.lookup import load_gpus
    from memwall.pipeline import resimulate
    from memwall.record.profile import Profile

    policies = keywords.pop("policy", None)
    strict, cuda_graph = keywords.pop("strict", False), keywords.pop("cuda_graph", False)
    options.refuse(keywords, f"{target} is already traced; profile the model again")
    saved = Profile.load(target)
    if strict and saved.coverage.unmodeled:
        raise UsageError(f"--strict: no formula models {', '.join(saved.coverage.unmodeled)}")
    if not names and not policies and not cuda_graph:
        return saved
    gpus: list[Gpu] = load_gpus(names) or list({s.gpu.name: s.gpu for s in saved.simulations}.values())
    policies = policies or list(dict.fromkeys(s.policy for s in saved.simulations)) or ["eager"]
    messages.progress(f"simulating {saved.workload.name} on {', '.join(gpu.name for gpu in gpus)}")
    try:
        with user_output_to_stderr():  # a compiler may have something to say
            return resimulate(saved, gpus, policies, cuda_graph=cuda_graph)
    finally:
        messages.clear()


@contextlib.contextmanager
def user_output_to_stderr() -> Iterator[None]:
    """What the user's model prints goes to standard error: standard output carries the result alone.

    Also what a library or a child process writes to file descriptor 1 behind Python's back.
    """
    with contextlib.redirect_stdout(sys.stderr), _descriptor_to_stderr():
        yield


@contextlib.contextmanager
def _descriptor_to_stderr() -> Iterator[None]:
    try:
        kept = os.dup(1)
    except OSError:  # no standard output at all
        yield
        return
    try:
        with contextlib.suppress(OSError):  # no standard error
            os.dup2(2, 1)
        yield
    finally:
        if sys.__stdout__ is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.__stdout__.flush()
        os.dup2(kept, 1)
        os.close(kept)


def remember(profile: Profile, messages: Messages) -> None:
    """Keep the record for ``memwall compare`` without a target; a folder that refuses it is no failure."""
    from memwall.record.profile import default_record_path

    path = default_record_path()
    try:
        _make_folder(path.parent)
        profile.save(path)
    except (OSError, UsageError) as error:
        reason = getattr(error, "strerror", None) or str(error).removesuffix("; nothing was written")
        messages.warn(f"the record is not kept for memwall compare: {reason}")
    else:
        messages.say(f"record kept in {path}; memwall compare --gpu a100 h100 uses it")


def _make_folder(folder: Path) -> None:
    """Make the folder and have git ignore what is in it."""
    if not folder.is_dir():
        folder.mkdir()
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
