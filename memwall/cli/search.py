"""``memwall search``: the cheapest way to serve a load."""

from __future__ import annotations

from typing import Any

import click

from memwall.cli import options
from memwall.cli.output import Out
from memwall.cli.parsing import Command, SeveralOption
from memwall.cli.serve import parse_prices


@click.command("search", cls=Command)
@click.argument("target", metavar="TARGET", shell_complete=options.completing("files"))
@click.option(
    "--gpu", cls=SeveralOption, metavar="NAME...", shell_complete=options.completing("gpus"),
    help="One GPU or several, each searched alone. [default: h100-sxm]",
)  # fmt: skip
@click.option(
    "--gpus", type=click.IntRange(1, 64), default=8, show_default=True, help="The most GPUs of all engines together."
)
@click.option("--concurrency", type=click.IntRange(1), metavar="N", help="Clients in all, which the engines share.")
@click.option("--rate", type=float, metavar="R", help="Requests per second in all, instead of clients.")
@click.option("--prompt", type=click.IntRange(1), default=1024, show_default=True, help="Tokens of a prompt.")
@click.option("--generate", type=click.IntRange(2), default=256, show_default=True, help="Tokens of an answer.")
@click.option("--slo", cls=SeveralOption, metavar="LIMIT...", help="'ttft_p99<500ms' 'tpot<30ms': what has to be kept.")
@click.option("--weights", cls=SeveralOption, metavar="NAME...", help="Formats to try, as of memwall serve.")
@click.option("--kv", cls=SeveralOption, metavar="NAME...", help="Dtypes of the cache to try: model, fp8.")
@click.option(
    "--price", cls=SeveralOption, metavar="NAME=USD...", callback=parse_prices, help="USD per hour of a GPU, by name."
)
@click.option("--engine", default="vllm", show_default=True, metavar="NAME", help="vllm, sglang or trtllm.")
@click.option("--utilization", type=float, default=0.9, show_default=True, help="Share of a GPU's memory to take.")
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, metavar="N", help="List the N cheapest.")
@click.option("--no-cache", is_flag=True, help="Use no trace of the cache folder, and leave none there.")
@options.common("search.SearchReport")
def command(
    out: Out, target: str, gpu: tuple[str, ...], weights: tuple[str, ...], kv: tuple[str, ...], top: int,
    no_cache: bool, **more: Any,
) -> None:  # fmt: skip
    """Find the cheapest engines that serve a load of TARGET within all objectives: GPU, how many, and their layout.

    The search is exact: a candidate is left out only where a bound proves that it keeps no objective or costs more.
    """
    from memwall.report.pages.search import SearchReport
    from memwall.sweeping.search import search

    out.plan(SearchReport)
    try:
        found = search(
            target, gpu=gpu or ("h100-sxm",), weights=weights or ("model",), kv=kv or ("model",), cache=not no_cache,
            progress=out.messages.progress, **more,
        )  # fmt: skip
    finally:
        out.messages.clear()
    out.show(SearchReport(found, target, top))
