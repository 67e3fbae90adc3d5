"""``memwall fuse``: what fuses and what does not, what breaks cost, the kernels' source, what-ifs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from memwall.cli import options
from memwall.cli.edited import refuse_misfit
from memwall.cli.output import Messages, Out
from memwall.cli.parsing import Command, SeveralOption
from memwall.cli.target import ModelTarget, assumption, chosen_gpus, is_record, make_profile, remember, running
from memwall.core.errors import UsageError
from memwall.fusing.question import FuseOptions
from memwall.wings import part

if TYPE_CHECKING:
    from memwall.analysis.whatif import Change
    from memwall.fusing.run import FusedProfile
    from memwall.hardware.lookup import Gpu
    from memwall.record.profile import Profile


@click.command(
    "fuse",
    cls=Command,
    examples=(
        (
            "memwall fuse model.py --gpu h100 --mode training",
            "What fusion wins on a training step, and what it refuses and why.",
        ),
        (
            "memwall fuse model.py --gpu a100 --policy memwall --emit kernels",
            "The fused kernels as Triton source, in a folder.",
        ),
    ),
)
@click.argument("target", metavar="TARGET|PROFILE", shell_complete=options.completing("files"))
@options.gpus
@options.policies_of("eager, memwall, ideal; inductor with Triton", "What is set side by side")
@options.workload
@options.asked(FuseOptions, "emit")
@click.option(
    "--compile", "targets", cls=SeveralOption, needs_value=False, metavar="[NAME...]",
    help="Compile the generated kernels, no GPU needed, for GPUs or architectures (sm_70, gfx942)."
    " [default: the GPUs of --gpu]",
)  # fmt: skip
@options.what_ifs
@options.question(FuseOptions, but=("emit",))
@options.common("fusing.page.FusedReport")
def command(
    target: str,
    gpus: tuple[str, ...],
    policies: tuple[str, ...],
    targets: tuple[str, ...],
    what_ifs: tuple[str, ...],
    out: Out,
    **workload: Any,
) -> None:
    """Say what fusion wins on TARGET, and what it does not and why.

    For each GPU the policies side by side; for each policy its groups by what they save, what it computes again, what
    it refused and by which rule, and the fusions that would win most. Then what torch.compile would capture: graph
    breaks with reason, place and price, guards, and what another input recompiles. Then how many ops there are at each
    level of lowering.

    TARGET is as for memwall profile; a saved profile (.json) is planned again, without its model.

    --compile says what each generated kernel takes: registers, spills, shared memory, occupancy. A kernel that spills
    is refused, and the plan changes.

    After --gpu, --policy and --compile any number of names may follow; put TARGET first, or see that it ends in .py or
    .json.
    """
    from memwall.analysis.whatif import parse_change
    from memwall.fusing.page import FusedReport
    from memwall.fusion import check_policies

    out.plan(FusedReport)
    asked = FuseOptions(**options.taken(FuseOptions, workload))
    changes = [parse_change(text) for text in what_ifs]
    _check_emit(asked, policies)
    gpus, wanted = _compile_targets(targets, gpus, policies)
    sizes = options.given(batch=asked.second_batch, seq=asked.second_seq)
    if sizes and not asked.capture:
        raise UsageError(f"--second-{next(iter(sizes))} captures again, and --no-capture captures nothing")
    if is_record(target):
        made = _read(target, gpus, workload, sizes, asked.capture, out.messages)
        if asked.emit is not None:  # what is emitted calls torch with these attributes
            refuse_misfit({"target": target})
    else:
        model = ModelTarget(target, workload, chosen_gpus(gpus, out.messages.say), out.messages)
        check_policies(policies, model.gpus, need=any)
        made = _traced(model, sizes, asked.capture)
        assumed = assumption(target, gpus)
        made = made._replace(notes=(*((assumed,) if assumed else ()), *made.notes))
    compiled_for = _architectures(made.profile.gpus, targets, wanted)
    found = _fused(made, policies, changes, compiled_for, asked, out.messages)
    report = FusedReport(found, brief=not asked.whole, **options.given(top=asked.top, by=asked.by))
    keep = partial(remember, found.profile, out.messages) if made.model else lambda: None
    out.show(report, before_files=partial(_emit, asked, found, out.messages), before_print=keep)


# -- what is fused -----------------------------------------------------------------------------------------------------


class FuseInputs(NamedTuple):
    """A profile, with what Dynamo made of it, notes on what is missing, and the model where it is at hand."""

    profile: Profile
    notes: tuple[str, ...] = ()
    model: ModelTarget | None = None


def _read(
    target: str, names: Sequence[str], given: dict[str, Any], sizes: dict[str, int], captured: bool, messages: Messages
) -> FuseInputs:
    """A saved profile, which has no model to capture."""
    options.refuse({f"second_{key}": value for key, value in sizes.items()}, f"{target} is already traced")
    profile = make_profile(target, names, given, messages)
    if not captured:
        return FuseInputs(profile.with_facts(dynamo=None))
    missing = (f"no capture: it needs the model, and {target} has none",) * (profile.traced.dynamo is None)
    return FuseInputs(profile, missing)


def _traced(model: ModelTarget, sizes: dict[str, int], captured: bool) -> FuseInputs:
    """A model, traced and captured."""
    from memwall.fusing.run import not_captured
    from memwall.fusion.repeats import MOST_UNASKED, distinct_ops

    with running(model.target, model.messages):
        workload = model.workload()
    profile = model.profile(workload)
    count = distinct_ops(profile.graph)
    if not captured or count > MOST_UNASKED:
        return FuseInputs(profile, (not_captured(count),) * captured, model)
    return FuseInputs(model.with_capture(profile, workload, sizes), (), model)


def _fused(
    made: FuseInputs,
    policies: Sequence[str],
    changes: Sequence[Change],
    architectures: dict[str, list[str]],
    asked: FuseOptions,
    messages: Messages,
) -> FusedProfile:
    """What fusion wins on it, and other forms of the model where asked for."""
    from memwall.fusing.rewrites import alternatives
    from memwall.fusing.run import fused, with_op_counts

    with running(made.profile.workload.target, messages):
        found = fused(
            made.profile, policies, changes=changes, source=asked.emit is not None, architectures=architectures
        )
        found = with_op_counts(found)
        if asked.alternatives:
            retrace = made.model.retrace if made.model else None
            found = replace(found, alternatives=alternatives(found.profile, made.profile.gpus, retrace))
    return replace(found, notes=(*found.notes, *made.notes))


# -- kernels -----------------------------------------------------------------------------------------------------------


def _compile_targets(
    targets: Sequence[str], gpus: tuple[str, ...], policies: Sequence[str]
) -> tuple[tuple[str, ...], list[tuple[str, Gpu | None]]]:
    """The GPUs to plan for, the GPUs of ``--compile`` among them, and its architectures with the GPUs that it names.
    Raises ``UsageError``: there is no such GPU or architecture, or no policy that was named has generated kernels;
    ``MissingError``: there is no Triton."""
    if not targets:
        return gpus, []
    if policies and "memwall" not in policies:
        raise UsageError("--compile compiles the kernels of memwall; name it with --policy")
    part("codegen.triton_version")()
    wanted = {name: part("codegen.find_target")(name) for name in targets if name}
    return (*gpus, *(name for name, (_, gpu) in wanted.items() if gpu is not None)), list(wanted.values())


def _architectures(
    gpus: Sequence[Gpu], targets: Sequence[str], wanted: Sequence[tuple[str, Gpu | None]]
) -> dict[str, list[str]]:
    """For each GPU what its kernels are compiled for: its own architecture where it is named or nothing is, and those
    that are named without a GPU."""
    if not targets:
        return {}
    architecture_of = part("codegen.architecture_of")
    own = {gpu.name for _, gpu in wanted if gpu is not None}
    others = [name for name, gpu in wanted if gpu is None]
    found = {gpu.name: [architecture_of(gpu)] * (gpu.name in own or not wanted) + others for gpu in gpus}
    return {name: list(dict.fromkeys(names)) for name, names in found.items() if names}


def _check_emit(asked: FuseOptions, policies: Sequence[str]) -> None:
    """Refuse before any work what ``--emit`` could not write."""
    if asked.emit is None:
        return
    emitted = part("codegen.EMITTED")
    if policies and not set(policies).intersection(emitted):
        raise UsageError(f"--emit writes kernels of {' or '.join(emitted)}; name one with --policy")
    part("codegen.check_folder")(Path(asked.emit))


def _emit(asked: FuseOptions, found: FusedProfile, messages: Messages) -> None:
    """Write the kernels where a folder for them is named."""
    if asked.emit is None:
        return
    folder = Path(asked.emit)
    files = part("codegen.kernel_files")(found.profile, found.simulated(part("codegen.EMITTED")))
    part("codegen.write_folder")(folder, files)
    count, index = sum(name.endswith(".py") for name in files), part("codegen.INDEX")
    messages.say(f"wrote {count:,} kernels to {folder}, listed in {folder / index}")
