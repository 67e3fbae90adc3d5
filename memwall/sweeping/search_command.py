"""``memwall search``: the cheapest way to serve a load, or the fastest layout of a training step."""

from __future__ import annotations

from typing import Any

import click

from memwall.cli import options
from memwall.cli.output import Out
from memwall.cli.parsing import Command, SeveralOption
from memwall.cli.target import running
from memwall.core.errors import UsageError
from memwall.core.question import options_of
from memwall.wings import part


@click.command(
    "search",
    cls=Command,
    examples=(
        (
            "memwall search hf:FOLDER --gpu h100 b200 --concurrency 64 --slo 'tpot<12ms' --price h100=2.5 b200=4.5",
            "The cheapest engines that serve 64 clients within a limit.",
        ),
        (
            "memwall search model.py --mode training --cluster dgx-h100 --gpus 64 --global-batch 512",
            "The fastest layouts of a training step on 64 GPUs.",
        ),
    ),
)
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
@options.question(part("serving.SearchOptions"))
@click.option(
    "--price", cls=SeveralOption, metavar="NAME=USD...", callback=options.priced, help="USD per hour of a GPU, by name."
)
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, metavar="N", help="List the N cheapest.")
@click.option("--global-batch", type=click.IntRange(1), metavar="N", help="Of training: samples of a step.")
@options.question(part("training.LayoutSearch"), of="Of training: ")
@click.option("--among", cls=SeveralOption, metavar="KEY=VALUES...",
              help="Of training: search these alone, such as tp=1,2..8 schedule=1f1b batch=1,2.")  # fmt: skip
@click.option("--no-cache", is_flag=True, help="Use no trace of the cache folder, and leave none there.")
@options.common("report.pages.search.SearchReport")
def command(out: Out, target: str, mode: str, **given: Any) -> None:
    """Find the cheapest engines that serve a load of TARGET within all objectives: GPU, how many, and their layout.
    With --mode training: the fastest layouts of a training step on --gpus of --cluster.

    The search is exact: a candidate is left out only where a bound proves that it keeps no objective, does not fit, or
    costs or takes more.
    """
    from memwall.report.pages.search import SearchReport

    others = _TRAINING if mode == "serving" else _SERVING
    options.refuse_given(f"with --mode {mode}", *others)
    out.plan(SearchReport)
    kept = options.given(**{name: value for name, value in given.items() if name not in others})
    (_search_layouts if mode == "training" else _search_engines)(out, target, **kept)


#: of all engines together
_MOST_GPUS = 64
#: options of one mode alone
_SERVING = ("gpu", "no_cache", *options_of(part("serving.SearchOptions")))
_TRAINING = ("global_batch", "among", "no_overlap", *options_of(part("training.LayoutSearch")))


def _search_layouts(
    out: Out,
    target: str,
    global_batch: int | None = None,
    among: tuple[str, ...] = (),
    no_overlap: bool = False,
    **more: Any,
) -> None:
    from memwall.sweeping.axes import split_axis

    if global_batch is None:
        raise UsageError("say how many samples a step has: --global-batch")
    values = {key: words for text in among for key, words in split_axis(text).items()}
    with running(target, out.messages):
        found = part("training.search_layouts")(
            target, global_batch=global_batch, among=values, overlap=not no_overlap, **more
        )
    out.show(part("training.layouts_page")(found))


def _search_engines(out: Out, target: str, top: int, gpus: int, no_cache: bool = False, **more: Any) -> None:
    if gpus > _MOST_GPUS:
        raise UsageError(f"--mode serving searches engines of at most {_MOST_GPUS} GPUs together")
    part("serving.check_requests")({**dict.fromkeys(("trace", "lengths", "rate", "concurrency")), **more})
    try:
        found = part("serving.search")(target, gpus=gpus, cache=not no_cache, **more)
    finally:
        out.messages.clear()
    out.show(part("serving.engines_page")(found, top))
