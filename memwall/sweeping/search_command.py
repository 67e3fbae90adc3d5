"""``memwall search``: the cheapest way to serve a load, or the fastest layout of a training step."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from memwall.cli import options
from memwall.cli.output import Out
from memwall.cli.parsing import Command, SeveralOption
from memwall.cli.target import running
from memwall.core.errors import UsageError
from memwall.wings import part


@click.command("search", cls=Command)
@click.argument("target", metavar="TARGET", shell_complete=options.completing("files"))
@click.option(
    "--gpu", cls=SeveralOption, metavar="NAME...", shell_complete=options.completing("gpus"),
    help="One GPU or several, each searched alone. [default: h100-sxm]",
)  # fmt: skip
@click.option(
    "--gpus", type=click.IntRange(1), default=8, show_default=True,
    help="The most GPUs of all engines together; of training all of the layout's.",
)  # fmt: skip
@click.option("--mode", type=click.Choice(("serving", "training")), default="serving", show_default=True,
              help="What is searched for: engines for a load, or layouts of a training step.")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(1), metavar="N", help="Clients in all, which the engines share.")
@click.option("--rate", type=float, metavar="R", help="Requests per second in all, instead of clients.")
@click.option("--prompt", type=click.IntRange(1), default=1024, show_default=True, help="Tokens of a prompt.")
@click.option("--generate", type=click.IntRange(2), default=256, show_default=True, help="Tokens of an answer.")
@click.option("--slo", cls=SeveralOption, metavar="LIMIT...", help="'ttft_p99<500ms' 'tpot<30ms': what has to be kept.")
@click.option("--weights", cls=SeveralOption, metavar="NAME...", help="Formats to try, as of memwall serve.")
@click.option("--kv", cls=SeveralOption, metavar="NAME...", help="Dtypes of the cache to try: model, fp8.")
@click.option(
    "--price", cls=SeveralOption, metavar="NAME=USD...", callback=options.priced, help="USD per hour of a GPU, by name."
)
@click.option("--engine", default="vllm", show_default=True, metavar="NAME", help="vllm, sglang or trtllm.")
@click.option("--utilization", type=float, default=0.9, show_default=True, help="Share of a GPU's memory to take.")
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, metavar="N", help="List the N cheapest.")
@click.option("--cluster", metavar="NAME", shell_complete=options.completing("clusters"),
              help="Of training: how the GPUs are joined. [default: dgx-h100]")  # fmt: skip
@click.option("--global-batch", type=click.IntRange(1), metavar="N", help="Of training: samples of a step.")
@click.option("--seq", type=click.IntRange(1), metavar="N", help="Of training: tokens of a sample.")
@click.option("--dtype", metavar="NAME", help="Of training: cast the model to this first, such as bfloat16.")
@click.option("--among", cls=SeveralOption, metavar="KEY=VALUES...",
              help="Of training: search these alone, such as tp=1,2..8 schedule=1f1b batch=1,2.")  # fmt: skip
@click.option("--no-cache", is_flag=True, help="Use no trace of the cache folder, and leave none there.")
@options.common("serving.search_page.SearchReport")
def command(out: Out, target: str, mode: str, **given: Any) -> None:
    """Find the cheapest engines that serve a load of TARGET within all objectives: GPU, how many, and their layout.
    With --mode training: the fastest layouts of a training step on --gpus of --cluster.

    The search is exact: a candidate is left out only where a bound proves that it keeps no objective, does not fit, or
    costs or takes more.
    """
    others = _TRAINING if mode == "serving" else _SERVING
    context = click.get_current_context()
    if wrong := [name for name in others if context.get_parameter_source(name) == ParameterSource.COMMANDLINE]:
        raise UsageError(f"--mode {mode} is searched without {', '.join('--' + n.replace('_', '-') for n in wrong)}")
    kept = {name: value for name, value in given.items() if name not in others}
    (_search_layouts if mode == "training" else _search_engines)(out, target, **kept)


#: of all engines together
_MOST_GPUS = 64
#: options of one mode alone
_SERVING = ("gpu", "concurrency", "rate", "prompt", "generate", "slo", "weights", "kv", "price", "engine",
            "utilization", "no_cache")  # fmt: skip
_TRAINING = ("cluster", "global_batch", "seq", "dtype", "among")


def _search_layouts(
    out: Out, target: str, gpus: int, top: int, cluster: str | None, global_batch: int | None,
    among: tuple[str, ...], **more: Any,
) -> None:  # fmt: skip
    from memwall.sweeping.axes import split_axis

    page = part("training.LayoutsReport")
    out.plan(page)
    if global_batch is None:
        raise UsageError("say how many samples a step has: --global-batch")
    values = {key: words for text in among for key, words in split_axis(text).items()}
    with running(target, out.messages):
        found = part("training.search_layouts")(
            target, gpus=gpus, global_batch=global_batch,
            cluster=cluster or part("training.DEFAULT_CLUSTER"), among=values, top=top,
            progress=out.messages.progress, **more,
        )  # fmt: skip
    out.show(page(found))


def _search_engines(
    out: Out, target: str, gpu: tuple[str, ...], weights: tuple[str, ...], kv: tuple[str, ...], top: int, gpus: int,
    no_cache: bool, **more: Any,
) -> None:  # fmt: skip
    page = part("serving.SearchReport")
    out.plan(page)
    if gpus > _MOST_GPUS:
        raise UsageError(f"--mode serving searches engines of at most {_MOST_GPUS} GPUs together")
    try:
        found = part("serving.search")(
            target, gpus=gpus, gpu=gpu or ("h100-sxm",), weights=weights or ("model",), kv=kv or ("model",),
            cache=not no_cache, progress=out.messages.progress, **more,
        )  # fmt: skip
    finally:
        out.messages.clear()
    out.show(page(found, target, top))
