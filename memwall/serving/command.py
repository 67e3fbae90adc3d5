"""``memwall serve``: what a server of a language model does under load, on any GPU."""

from __future__ import annotations

import click
from click.core import ParameterSource

from memwall.cli import options
from memwall.cli.output import Out
from memwall.cli.parsing import Command, SeveralOption
from memwall.core.errors import UsageError


def _numbers(context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> tuple[int, ...]:
    for word in words:
        if not word.isdecimal() or not 0 < int(word) < 1 << 20:
            raise UsageError(f"{parameter.opts[0]} takes whole numbers above 0, not {word[:40]!r}")
    return tuple(dict.fromkeys(map(int, words)))


def _pair(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, colon, second = text.partition(":")
    if not (colon and first.isdecimal() and second.isdecimal() and int(first) and int(second)):
        raise UsageError(f"--disaggregate takes engines of prompts and of decodes, such as 1:2, not {text[:40]!r}")
    return int(first), int(second)


def _refuse(why: str, *names: str) -> None:
    """Raises UsageError: one of these options is given, which then has no effect."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            raise UsageError(f"--{name.replace('_', '-')} has no effect {why}")


@click.command("serve", cls=Command)
@click.argument("target", metavar="TARGET", shell_complete=options.completing("files"))
@click.option("--gpu", "gpus", cls=SeveralOption, metavar="NAME...", shell_complete=options.completing("gpus"),
              help="One GPU or several. [default: h100-sxm]")  # fmt: skip
@click.option("--tp", "counts", cls=SeveralOption, metavar="N...", callback=_numbers,
              help="GPUs that share each product: one number or several. [default: 1]")  # fmt: skip
@click.option("--ep", type=click.IntRange(1), default=1, show_default=True, metavar="N",
              help="Of these and those of --dp, GPUs with experts of their own.")  # fmt: skip
@click.option("--dp", type=click.IntRange(1), default=1, show_default=True, metavar="N",
              help="Groups of --tp GPUs that attend to sequences of their own.")  # fmt: skip
@click.option("--pp", type=click.IntRange(1), default=1, show_default=True, metavar="N",
              help="Stages of a pipeline, each of --tp times --dp GPUs.")  # fmt: skip
@click.option("--cluster", metavar="NAME", shell_complete=options.completing("clusters"),
              help="How the GPUs are joined. [default: the cluster that memwall knows with the GPU]")  # fmt: skip
@click.option("--prompt", type=click.IntRange(1),
              help="Tokens of a prompt. [default: 1024; of a decoder whose encoder reads sound 4]")  # fmt: skip
@click.option("--generate", type=click.IntRange(2), default=256, show_default=True, help="Tokens of an answer.")
@click.option("--lengths", default="1", metavar="RANGE", help="Shares of both, such as 0.8-1.0. [default: 1]")
@click.option("--concurrency", "clients", cls=SeveralOption, metavar="N...", callback=_numbers,
              help="Clients that wait for an answer before they ask again. [default: 1 4 16 64 256]")  # fmt: skip
@click.option("--rate", type=float, metavar="R", help="Requests per second at random times, instead of clients.")
@click.option("--weights", default="model", show_default=True, metavar="NAME",
              help="model: as its configuration says; fp8, fp8-block, int8, int4, nvfp4, mxfp4.")  # fmt: skip
@click.option("--dtype", metavar="NAME", help="Cast the model to this first, such as float16.")
@click.option("--kv", default="model", show_default=True, metavar="NAME", help="Dtype of the cache: model or fp8.")
@click.option("--price", "prices", cls=SeveralOption, metavar="NAME=USD...", callback=options.priced,
              help="USD per hour of a GPU, by name.")  # fmt: skip
@click.option("--slo", cls=SeveralOption, metavar="LIMIT...",
              help="'ttft_p99<500ms' 'tpot<30ms': for each load the cheapest point that keeps them.")  # fmt: skip
@click.option("--prefix-hit", type=float, default=0.0, metavar="SHARE", help="Share of a prompt in the cache already.")
@click.option("--utilization", type=float, default=0.9, show_default=True, help="Share of a GPU's memory to take.")
@click.option("--engine", default="vllm", show_default=True, metavar="NAME", help="vllm, sglang or trtllm.")
@click.option("--trace", metavar="FILE", help="CSV of requests: arrival_s, prompt_tokens, generated_tokens.")
@click.option("--draft", metavar="TARGET",
              help="A smaller model that guesses tokens for a step to verify; mtp: the model's own.")  # fmt: skip
@click.option("--draft-tokens", type=click.IntRange(1),
              help="Tokens that it guesses. [default: 4; of mtp what the configuration says]")  # fmt: skip
@click.option("--accept", type=float, default=0.7, show_default=True, help="Chance that a guess is right.")
@click.option("--disaggregate", metavar="P:D", callback=_pair,
              help="P engines run prompts, D decode; each has the GPUs of --tp.")  # fmt: skip
@click.option("--what-if", "what_ifs", multiple=True, metavar="SPEC",
              help="Every load again with 'dram_bytes_per_s*=2' (a number of the GPU), dispatch_s/=2 (of the engine's"
              " CPU) or 'link_bytes_per_s*=2'. May be repeated.")  # fmt: skip
@click.option("--closed-form", is_flag=True, help="Solve for the steady state, without simulation or percentiles.")
@options.common("serving.page.ServingReport")
def command(
    out: Out, target: str, gpus: tuple[str, ...], counts: tuple[int, ...], ep: int, dp: int, pp: int,
    cluster: str | None, prompt: int | None, generate: int, lengths: str, clients: tuple[int, ...],
    rate: float | None, weights: str, kv: str, prices: dict[str, float], slo: tuple[str, ...],
    prefix_hit: float, utilization: float, engine: str, closed_form: bool, trace: str | None,
    draft: str | None, draft_tokens: int | None, accept: float, disaggregate: tuple[int, int] | None, dtype: str | None,
    what_ifs: tuple[str, ...],
) -> None:  # fmt: skip
    """Model a server of a language model: latency, throughput, memory and cost under load.

    TARGET is a model with a decode step: hf:FOLDER, a file with decode_inputs(), or a saved profile of such a step.
    One step is traced; batching, chunked prompts and the cache are those of vLLM, SGLang and TensorRT-LLM. No GPU is
    needed.
    """
    from memwall.serving import serve
    from memwall.serving.page import ServingReport
    from memwall.serving.saved import saved

    out.plan(ServingReport)
    if draft is None:
        _refuse("without --draft, the model that guesses", "draft_tokens", "accept")
    if trace:
        _refuse("with --trace, which has the tokens of each request", "prompt", "generate", "lengths")
    ways = [name for name, given in (("--rate", rate), ("--concurrency", clients), ("--trace", trace)) if given]
    if len(ways) > 1:
        raise UsageError(f"{' and '.join(ways)} say how requests come: give one")
    found = serve(
        target, gpu=gpus or ("h100-sxm",), tp=counts or (1,), ep=ep, dp=dp, pp=pp,
        cluster=cluster, prompt=prompt, generate=generate, lengths=lengths,
        concurrency=clients or (1, 4, 16, 64, 256),
        rate=rate, weights=weights, kv=kv, price=prices, slo=slo, prefix_hit=prefix_hit,
        utilization=utilization, engine=engine, closed_form=closed_form,
        trace=trace, draft=draft, draft_tokens=draft_tokens, accept=accept, disaggregate=disaggregate,
        dtype=dtype,
    )  # fmt: skip
    out.show(ServingReport(saved(found, what_ifs, levers=True)))
