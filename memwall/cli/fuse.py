"""``memwall fuse``: what fuses and what does not, what breaks cost, the kernels written out, what-ifs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memwall.cli import options
from memwall.cli.machine import chosen_gpus
from memwall.cli.output import Messages, plan_outputs, show
from memwall.cli.parsing import Command, SeveralOption
from memwall.cli.profile import is_record, make_profile, remember, user_output_to_stderr
from memwall.core.errors import UsageError

if TYPE_CHECKING:
    from memwall.analysis.fused import Fused
    from memwall.frontend.dynamo.capture import Capture
    from memwall.frontend.workload import Workload
    from memwall.hardware.lookup import Gpu
    from memwall.record.profile import Profile

#: Kinds of files that there are none of.
WITHOUT = ("html", "csv", "parquet", "trace.json")


@click.command("fuse", cls=Command)
@click.argument("target", metavar="TARGET|PROFILE")
@options.gpus
@click.option(
    "--policy",
    "policies",
    cls=SeveralOption,
    metavar="NAME...",
    callback=options.check_policies,
    help="eager, inductor, memwall or ideal. [default: all; inductor where torch and Triton allow it]",
)
@options.workload
@click.option("--emit", "folder", metavar="DIR", help="Write the kernels, one file for each distinct group.")
@click.option(
    "--compile",
    "targets",
    cls=SeveralOption,
    needs_value=False,
    metavar="[NAME...]",
    help="Compile our kernels, no GPU needed, for GPUs or architectures (sm_70, gfx942). [default: those of --gpu]",
)
@options.what_ifs
@click.option("--top", type=click.IntRange(1), metavar="N", help="List the N groups that save most. [default: 15]")
@click.option(
    "--by", type=click.Choice(("group", "module")), help="List what groups save, or modules. [default: group]"
)
@click.option("--alternatives", is_flag=True, help="Price other forms of attention, optimizer, norms and loss.")
@click.option("--no-capture", is_flag=True, help="Do not run the model through TorchDynamo.")
@click.option(
    "--second-batch", type=click.IntRange(1), metavar="N", help="Capture again with this --batch: what recaptures."
)
@click.option("--second-seq", type=click.IntRange(1), metavar="N", help="The same with this --seq.")
@options.common
def command(
    target: str,
    gpus: tuple[str, ...],
    policies: tuple[str, ...],
    folder: str | None,
    targets: tuple[str, ...],
    what_ifs: tuple[str, ...],
    top: int | None,
    by: str | None,
    alternatives: bool,
    no_capture: bool,
    second_batch: int | None,
    second_seq: int | None,
    outputs: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    no_progress: bool,
    **workload: Any,
) -> None:
    """Say what fusion wins on TARGET, and what it does not and why.

    For each GPU the policies side by side; for each policy its groups by what they save, what it computes again, what
    it refused and by which rule, and the fusions that would win most. Then what torch.compile would capture: graph
    breaks with reason, place and price, guards, and what another input recaptures. Then how many ops there are at each
    level of lowering.

    TARGET is as for memwall profile; a saved profile (.json) is planned again, without its model.

    --compile says what each of our kernels takes: registers, spills, shared memory, occupancy. One that spills is not
    made: the plan is another one then.

    After --gpu, --policy and --compile any number of names may follow; put TARGET first, or see that it ends in .py or
    .json.
    """  # fmt: skip
    from memwall.analysis.whatif import parse_change
    from memwall.report.pages.fused import FusedReport

    planned = plan_outputs(outputs, without=WITHOUT)
    changes = [parse_change(text) for text in what_ifs]
    if folder is not None:
        _check_emit(Path(folder), policies)
    gpus, wanted = _compile_targets(targets, gpus, policies)
    messages = Messages(quiet=quiet, no_progress=no_progress)
    seconds = options.given(batch=second_batch, seq=second_seq)
    if seconds and no_capture:
        raise UsageError(f"--second-{next(iter(seconds))} captures again, and --no-capture captures nothing")
    profile, capture, boards, notes = _traced(target, gpus, workload, seconds, not no_capture, messages)
    from memwall.analysis.fused import fuse

    with user_output_to_stderr():
        found = fuse(
            profile, boards, policies, changes=changes, capture=capture, source=folder is not None,
            architectures=_architectures(boards, targets, wanted), say=messages.progress,
        )  # fmt: skip
        if alternatives:
            from memwall.analysis.rewrites import alternatives as price

            families = price(found.profile, boards, _retrace(target, boards, workload, messages))
            found = replace(found, alternatives=families)
    messages.clear()
    found = replace(found, notes=(*found.notes, *notes))

    def keep() -> None:
        if not is_record(target):
            remember(found.profile, messages)

    show(
        FusedReport(found, **options.given(top=top, by=by)),
        planned,
        as_json=as_json,
        messages=messages,
        before_files=lambda: _emit(folder, found, messages),
        before_print=keep,
    )


# -- tracing and capturing ---------------------------------------------------------------------------------------------


def _traced(
    target: str, names: Sequence[str], given: dict[str, Any], seconds: dict[str, int], captured: bool,
    messages: Messages,
) -> tuple[Profile, Capture | None, list[Gpu], list[str]]:  # fmt: skip
    """The profile, what Dynamo made of it, the GPUs, and notes on what is missing."""
    from memwall.analysis.fused import CAPTURE_KEY, MOST_UNASKED, capture_of, distinct_ops

    if is_record(target):
        if seconds:
            options.refuse({f"second_{key}": value for key, value in seconds.items()}, f"{target} is already traced")
        profile = make_profile(target, names, given, messages)
        boards = list({s.gpu.name: s.gpu for s in profile.simulations}.values())
        capture = capture_of(profile.capture) if captured else None
        missing = captured and capture is None
        return profile, capture, boards, [f"no capture: it needs the model, and {target} has none"] * missing
    gpus = chosen_gpus(names, messages.say)
    with user_output_to_stderr():
        workload, keywords = _workload(target, given)
        profile = _profile(workload, gpus, keywords, messages)
        if not captured:
            return profile, None, gpus, []
        count = distinct_ops(profile.graph)
        if count > MOST_UNASKED:
            return profile, None, gpus, [f"no capture: TorchDynamo would take {count:,} ops one by one"]
        messages.progress(f"tracing {workload.name} under TorchDynamo")
        capture = _capture(profile, workload, given, _second(target, given, seconds), messages)
        messages.clear()
    return replace(profile, capture={**profile.capture, CAPTURE_KEY: capture.to_dict()}), capture, gpus, []


def _profile(workload: Workload, gpus: list[Gpu], keywords: dict[str, Any], messages: Messages) -> Profile:
    from memwall.pipeline import profile

    try:
        return profile(workload, gpu=gpus, progress=messages.progress, **options.profile_options(keywords))
    except (SystemExit, GeneratorExit) as error:  # a model that leaves is no result, whatever its code
        from memwall.frontend.workload.blame import blame

        raise blame(error, f"running {workload.target}") from error
    finally:
        messages.clear()


def _retrace(target: str, gpus: list[Gpu], given: dict[str, Any], messages: Messages) -> Callable[..., Profile] | None:
    """Traces the target again with another attention or optimizer; a saved profile has no model to trace."""
    if is_record(target):
        return None

    def retrace(**changes: Any) -> Profile:
        workload, keywords = _workload(target, given)
        if "optimizer" in changes:
            workload = replace(workload, optimizer=changes.pop("optimizer"))
        return _profile(workload, gpus, {**keywords, **changes}, messages)

    return retrace


def _workload(target: str, given: dict[str, Any]) -> tuple[Workload, dict[str, Any]]:
    """The workload that a target names, and the options that say how to trace it."""
    from memwall.frontend.workload import resolve

    sizes = {key: given[key] for key in ("batch", "seq", "input_specs")}
    workload = resolve(target, **sizes, mode=given["mode"] or "inference")
    return workload, {key: value for key, value in given.items() if key not in sizes}


def _second(target: str, given: dict[str, Any], seconds: dict[str, int]) -> list[Any]:
    """The inputs of a further call."""
    if not seconds:
        return []
    return [_workload(target, {**given, **seconds})[0].inputs]


def _capture(
    profile: Profile, workload: Workload, given: dict[str, Any], others: list[Any], messages: Messages
) -> Capture:
    from memwall.frontend.dynamo.capture import capture
    from memwall.frontend.torch import TraceOptions
    from memwall.ops import classify

    traced = TraceOptions(
        mode=given["mode"] or "inference", dtype=given["dtype"], autocast=given["autocast"],
        attention=profile.graph.attention, real=given["real"],
        **options.given(max_ops=given["max_ops"]),
    )  # fmt: skip
    return capture(workload, traced, classify, profile.graph, others=others)


# -- kernels -----------------------------------------------------------------------------------------------------------


def _compile_targets(
    targets: Sequence[str], gpus: tuple[str, ...], policies: Sequence[str]
) -> tuple[tuple[str, ...], list[tuple[str, Gpu | None]]]:
    """The GPUs to plan for, those of ``--compile`` among them, and its architectures with the boards that it names.

    Raises:
        UsageError: there is no such GPU or architecture, or no policy that was named has kernels of ours.
        MissingError: there is no Triton.
    """
    if not targets:
        return gpus, []
    from memwall.codegen.compiling import triton_version
    from memwall.codegen.occupancy import find_target

    if policies and "memwall" not in policies:
        raise UsageError("--compile compiles the kernels of memwall; name it with --policy")
    triton_version()
    named = [name for name in targets if name]
    wanted = [find_target(name) for name in named]
    boards = [name for name, (_, gpu) in zip(named, wanted, strict=True) if gpu is not None]
    return (*gpus, *boards), wanted


def _architectures(
    boards: Sequence[Gpu], targets: Sequence[str], wanted: Sequence[tuple[str, Gpu | None]]
) -> dict[str, list[str]]:
    """For each GPU what its kernels are compiled for: its own architecture where it is named or nothing is, and those
    that are named without a board."""
    if not targets:
        return {}
    from memwall.codegen.occupancy import architecture_of

    own = {gpu.name for _, gpu in wanted if gpu is not None}
    others = [name for name, gpu in wanted if gpu is None]
    found = {gpu.name: [architecture_of(gpu)] * (gpu.name in own or not wanted) + others for gpu in boards}
    return {name: list(dict.fromkeys(names)) for name, names in found.items() if names}


def _check_emit(folder: Path, policies: Sequence[str]) -> None:
    """Refuse before any work what ``--emit`` could not write.

    Raises:
        UsageError: the folder may not be written, or no policy that was named has kernels.
    """
    from memwall.codegen.emit import EMITTED, check_folder

    if policies and not set(policies).intersection(EMITTED):
        raise UsageError(f"--emit writes kernels of {' or '.join(EMITTED)}; name one with --policy")
    check_folder(folder)


def _emit(name: str | None, found: Fused, messages: Messages) -> None:
    """Write the kernels where a folder for them is named."""
    from memwall.codegen.emit import EMITTED, INDEX, kernel_files, write_folder

    if name is None:
        return
    folder = Path(name)
    files = kernel_files(found.profile, found.simulated(EMITTED))
    write_folder(folder, files)
    messages.say(
        f"wrote {sum(name.endswith('.py') for name in files):,} kernels to {folder}, listed in {folder / INDEX}"
    )
