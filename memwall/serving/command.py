"""``memwall serve``: what a server of a language model does under load, on any GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from memwall.cli import options
from memwall.cli.output import Out
from memwall.cli.parsing import Command, SeveralOption
from memwall.core.errors import UsageError
from memwall.core.files import whole
from memwall.core.question import options_of
from memwall.hardware.prices import check_billed
from memwall.serving.question import ServeOptions

F = TypeVar("F", bound=Callable[..., Any])

#: option → what its numbers are, with an example of them
_COUNTS = {
    "disaggregate": ("engines of prompts and of decodes", "1:2"),
    "autoscale": ("the least and the most replicas and the requests of one", "1:8:32"),
}


def _counts(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """``1:2`` as numbers above 0. Raises UsageError: others, or not so many."""
    if text is None:
        return None
    what, example = _COUNTS[parameter.name or ""]
    counts = tuple(whole(part) or 0 for part in text.split(":"))
    if len(counts) != len(example.split(":")) or not all(counts):
        raise UsageError(f"{parameter.opts[0]} takes {what}, such as {example}, not {text[:40]!r}")
    return counts


def _counted(name: str) -> Callable[[F], F]:
    """The option of several counts."""
    said = options_of(ServeOptions)[name]
    return click.option(f"--{name}", metavar=said.metavar, callback=_counts, help=said.help)


#: where the words behind ``--`` are kept
_LAUNCH = "memwall.launch"


class ServeCommand(Command):
    """A command line behind ``--`` is a server's: several words, or a text that starts one; else it is TARGET."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from memwall.serving.launch.command import starts_engine

        if "--" in args:
            at = args.index("--")
            words = args[at + 1 :]
            if len(words) > 1 or (words and starts_engine(words[0])):
                ctx.meta[_LAUNCH] = words[0] if len(words) == 1 else words
                args = args[:at]
        return super().parse_args(ctx, args)


def launched(target: str | None, asked: dict[str, Any]) -> dict[str, Any]:
    """What is asked, with the command that starts the server, next to which only what the user said counts."""
    words, file = click.get_current_context().meta.get(_LAUNCH), asked.pop("launch")
    if words is not None and file is not None:
        raise UsageError("--launch and a command behind -- both start a server: give one")
    if words is not None or file is not None:
        said = options.on_command_line()
        return {"launch": words or Path(file), **{name: value for name, value in asked.items() if name in said}}
    if target is None:
        raise UsageError("name a TARGET, or the command of a server behind --")
    return asked


def check_requests(asked: dict[str, Any]) -> None:
    """Raises UsageError: requests come in two ways, or an option of their lengths has no effect."""
    if asked["trace"]:
        options.refuse_given("with --trace, which has the tokens of each request", "prompt", "generate", "lengths")
    if asked["lengths"] and ".csv" in asked["lengths"].lower():
        options.refuse_given("with --lengths FILE, which has the tokens of requests", "prompt", "generate")
    ways = [f"--{name}" for name in ("rate", "concurrency", "trace") if asked[name]]
    if len(ways) > 1:
        raise UsageError(f"{' and '.join(ways)} say how requests come: give one")


@click.command(
    "serve",
    cls=ServeCommand,
    examples=(
        (
            "memwall serve hf:FOLDER --gpu h100 --tp 1 2 --concurrency 1 16 64 --slo 'tpot<30ms'",
            "Latency and throughput by clients; for each load the cheapest layout that keeps a limit.",
        ),
        (
            "memwall serve hf:FOLDER --gpu h100 -- vllm serve FOLDER --tensor-parallel-size 2",
            "A server by the command that starts it.",
        ),
    ),
)
@click.argument(
    "target", metavar="[TARGET] [-- COMMAND...]", required=False, shell_complete=options.completing("files")
)
@click.option("--gpu", "gpus", cls=SeveralOption, metavar="NAME...", shell_complete=options.completing("gpus"),
              help="One GPU or several. [default: h100-sxm]")  # fmt: skip
@options.question(ServeOptions, but=tuple(_COUNTS))
@click.option("--price", "prices", cls=SeveralOption, metavar="NAME=USD...", callback=options.priced,
              help="USD per hour of a GPU, by name.")  # fmt: skip
@click.option("--slo", cls=SeveralOption, metavar="LIMIT...",
              help="'ttft_p99<500ms' 'tpot<30ms': for each load the cheapest point that keeps them.")  # fmt: skip
@_counted("disaggregate")
@_counted("autoscale")
@click.option("--what-if", "what_ifs", multiple=True, metavar="SPEC",
              help="Every load again with 'dram_bytes_per_s*=2' (a number of the GPU), dispatch_s/=2 (of the engine's"
              " CPU) or 'link_bytes_per_s*=2'. May be repeated.")  # fmt: skip
@click.option("--launch", metavar="FILE", shell_complete=options.completing("files"),
              help="A script, Dockerfile or manifest with the COMMAND that starts the server.")  # fmt: skip
@options.common("serving.page.ServingReport")
def command(
    out: Out,
    target: str | None,
    gpus: tuple[str, ...],
    prices: dict[str, float],
    slo: tuple[str, ...],
    what_ifs: tuple[str, ...],
    **asked: Any,
) -> None:
    """Model a server of a language model: latency, throughput, memory and cost under load.

    TARGET is a model with a decode step: hf:FOLDER, a file with decode_inputs(), or a saved profile of such a step.
    COMMAND is what starts a server: vllm serve, python -m sglang.launch_server or trtllm-serve with their flags.
    One step is traced; batching, chunked prompts and the cache follow vLLM, SGLang and TensorRT-LLM. No GPU is
    needed.
    """
    from memwall.serving import serve
    from memwall.serving.levers import read_changes
    from memwall.serving.page import ServingReport
    from memwall.serving.saved import saved

    out.plan(ServingReport)
    if asked["draft"] is None:
        options.refuse_given("without --draft, the model that guesses", "draft_tokens", "accept")
    check_billed(prices, asked)
    check_requests(asked)
    read_changes(what_ifs)  # a mistake costs no simulation
    found = serve(target, **options.given(gpu=gpus, price=prices, slo=slo, **launched(target, asked)))
    out.show(ServingReport(saved(found, what_ifs, levers=True)))
