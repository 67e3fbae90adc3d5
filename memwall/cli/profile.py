"""``memwall profile``: the main job."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from memwall.cli import options
from memwall.cli.defaults import CommandWithDefaults, said
from memwall.cli.output import Out
from memwall.cli.target import assumption, is_record, make_profile, remember, running
from memwall.wings import part

if TYPE_CHECKING:
    from memwall.analysis.whatif import Outcome
    from memwall.record.profile import Profile


def _print_rules(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from memwall.report.pages.ops import RulesReport

        Out().show(RulesReport())
        context.exit()


def _ranks(made: Profile, target: str, gpus: tuple[str, ...], workload: dict[str, Any], out: Out) -> dict[int, Profile]:
    """The ranks of a pipeline, of which one of each kind of step is traced, where no rank was asked for."""
    from memwall.programs import profile_ranks

    if not workload["world"] or workload["rank"] is not None or is_record(target):
        return {}

    def trace(rank: int) -> Profile:
        return make_profile(target, gpus, {**workload, "rank": rank}, out.messages)

    with running(target, out.messages):
        return profile_ranks(made, target, options.profile_options(workload), trace)


@click.command(
    "profile",
    cls=CommandWithDefaults,
    examples=(
        ("memwall profile model.py --gpu a100 h100", "Where the time of a step goes on two GPUs."),
        (
            "memwall profile model.py --mode training --policy memwall --what-if 'dram_bytes_per_s*=2' -o page.html",
            "A training step with fused kernels, as a page; and the same with memory twice as fast.",
        ),
    ),
)
@click.argument("target", shell_complete=options.completing("files"))
@options.gpus
@options.workload
@options.ranks
@options.policies
@options.what_ifs
@options.shape
@options.common("report.pages.profile.ProfileReport")
@click.option(
    "--explain", multiple=True, metavar="KERNEL",
    help="Say in a sentence why a kernel takes its time: its number, its name or a part of it, a pattern of modules"
    " ('layers.0.mlp*'). May be repeated.",
)  # fmt: skip
@click.option(
    "--parallel", "layout", metavar="LAYOUT",
    help="Put a training step on many GPUs of --cluster: 'tp=8,sp,pp=4,dp=16,microbatches=32'; also"
    " schedule=interleaved:2, recompute=selective and fsdp. Replicas share nothing, or by fsdp=optimizer the"
    " optimizer's state (ZeRO-1), by fsdp=grad gradients too (ZeRO-2: each microbatch reduce-scatters its own), by"
    " fsdp=full weights too (ZeRO-3).",
)  # fmt: skip
@options.question(part("training.StateOptions"), of="With --parallel: ")
@click.option(
    "--scale", type=click.IntRange(min=1), metavar="GPUS",
    help="With --parallel: also on twice as many GPUs, and so on up to GPUS, with as much work for each, or in all.",
)  # fmt: skip
@click.option(
    "--other-rank", "others", multiple=True, metavar="FILE",
    help="With a profiler's trace: that of another rank in the same step, to say who waits for whom. May be repeated.",
)  # fmt: skip
@click.option("--ncu", metavar="FILE.csv", help="Nsight Compute's report of the same run, with a profiler's trace.")
@click.option(
    "--hlo", metavar="PATH",
    help="With a trace of XLA's profiler: its optimized programs, a file or the folder of --xla_dump_to.",
)  # fmt: skip
@click.option(
    "--rules", is_flag=True, is_eager=True, expose_value=False, callback=_print_rules, help="Print the counting rules."
)
def command(target: str, out: Out, **given: Any) -> None:
    """Say where each microsecond of TARGET would go, or went.

    TARGET is model.py, model.py:name, package.module:name, hf:FOLDER_OR_CONFIG_JSON, an ONNX (.onnx), StableHLO
    (.mlir, .jax) or HLO file (.hlo, .txt), or a saved profile (.json), which is simulated again on the GPUs given. Or
    it is a trace of PyTorch's profiler (.json, .json.gz) or of XLA's (.xplane.pb, .trace.json.gz, or the folder that
    jax.profiler wrote): then each kernel's measured time is shown next to its FLOPs, bytes, wall and modeled time on
    the GPU that it ran on.

    A model file has model() and inputs(); or workload(); or a class Model and get_inputs(). loss(output) and
    optimizer(parameters) are used if defined. Nothing is run: no GPU, no weights.

    After --gpu and --policy any number of names may follow; put TARGET first, or see that it ends in .py or .json.
    """
    if part("traces.is_trace")(target):
        options.refuse_given(f"on {target}, a profiler's trace of a model that ran", but=_OF_TRACE)
        _trace(target, out, given)
    elif given["layout"] is not None:
        part("training.profile_parallel")(target, given, out)
    else:
        options.refuse_given("without --parallel LAYOUT", "scale", "state", "no_overlap")
        options.refuse_given(f"on {target}, which is no profiler's trace", "others", "ncu", "hlo")
        for name in _OF_LAYOUT:
            del given[name]
        _profile(target, out, **given)


def _trace(target: str, out: Out, given: dict[str, Any]) -> None:
    """A step that a profiler recorded, compared with its GPU."""
    page = part("traces.TraceReport")
    out.plan(page)
    of = {name: given[name] for name in ("ncu", "hlo", "cluster", "others")}
    with running(target, out.messages):
        analysis = part("traces.analyse_file")(target, given["gpus"], **of)
    if analysis.other_vendor:
        out.messages.warn(analysis.other_vendor)
    out.show(page(analysis, **options.given(top=given["top"], sort=given["sort"], by=given["by"])))


#: keywords that a profiler's trace has an answer to, and keywords of a layout or a trace alone
_OF_TRACE = ("gpus", "cluster", "ncu", "hlo", "others", "top", "sort", "by")
_OF_LAYOUT = ("layout", "scale", "state", "no_overlap", "others", "ncu", "hlo")


def _profile(
    target: str, out: Out, gpus: tuple[str, ...], what_ifs: tuple[str, ...], explain: tuple[str, ...], **given: Any
) -> None:
    """One step of a model, or of its saved profile."""
    from memwall.analysis.communication import with_figures
    from memwall.analysis.explanation import kernels_named
    from memwall.analysis.pipelines import pipeline_step
    from memwall.analysis.whatif import parse_change, what_if
    from memwall.report.pages.profile import ProfileReport

    shape = options.shape_options(**{name: given.pop(name) for name in ("top", "sort", "by", "depth", "picture")})
    out.plan(ProfileReport)
    changes = [parse_change(text) for text in what_ifs]
    made = make_profile(target, gpus, given, out.messages)
    explained = kernels_named(made, explain) if explain else ()
    totals: Sequence[Outcome] = ()
    if changes:
        with running("", out.messages):
            totals = what_if(made, changes, made.gpus, made.policies)
    assumed = "; ".join(filter(None, (said(), "" if given["cluster"] else assumption(target, gpus))))
    if assumed and out.as_json:  # a record has no page to say it on
        out.messages.say(assumed)
    ranks = _ranks(made, target, gpus, given, out)
    made = with_figures(made, ranks)
    report = ProfileReport(
        made,
        ranks=ranks,
        pipeline=pipeline_step(ranks) if ranks else None,
        what_ifs=tuple(totals),
        explained=explained,
        assumed=assumed,
        **shape,
    )
    out.show(report, before_print=partial(remember, made, out.messages))
