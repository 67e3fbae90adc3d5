"""The questions of ``memwall serve``: a server of a language model, and its load; one step of it; and a search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypedDict

from memwall.core.question import Option
from memwall.hardware.links import Cluster
from memwall.serving.model import Model
from memwall.serving.simulation.timing import UTILIZATION

#: chance that a guess is right
ACCEPT = 0.7


class RequestOptions(TypedDict, total=False):
    """What requests are."""

    prompt: Annotated[int | None, Option(
        None, "Tokens of a prompt. [default: 1024; of a decoder whose encoder reads sound 4]", least=1)]  # fmt: skip
    generate: Annotated[int, Option(256, "Tokens of an answer.", least=2, shown=True)]
    rate: Annotated[float | None, Option(None, "Requests per second at random times, instead of clients.", metavar="R")]


class LoadOptions(RequestOptions, total=False):
    """What is asked of a server."""

    lengths: Annotated[str, Option("1", "Shares of both, such as 0.8-1.0. [default: 1]", metavar="RANGE")]
    concurrency: Annotated[int | Iterable[int] | None, Option(
        (1, 4, 16, 64, 256), "Clients that wait for an answer before they ask again. [default: 1 4 16 64 256]",
        least=1, metavar="N...", several="words")]  # fmt: skip
    prefix_hit: Annotated[float, Option(0.0, "Share of a prompt in the cache already.", metavar="SHARE")]
    trace: Annotated[str | Path | None, Option(
        None, "CSV of requests: arrival_s, prompt_tokens, generated_tokens.", metavar="FILE",
        internal=True)]  # fmt: skip


class EngineOptions(TypedDict, total=False):
    """Whose kernels run, and in how much memory."""

    engine: Annotated[str, Option("vllm", "vllm, sglang or trtllm.", metavar="NAME", shown=True)]
    utilization: Annotated[float, Option(UTILIZATION, "Share of a GPU's memory to take.", shown=True)]


class EngineLayout(EngineOptions, total=False):
    """How GPUs share a model, apart from ``tp``, and its cache."""

    ep: Annotated[int, Option(
        1, "GPUs that hold different experts, out of --tp times --dp.", least=1, metavar="N", shown=True)]  # fmt: skip
    dp: Annotated[int, Option(
        1, "Groups of --tp GPUs, each of which attends to sequences of its own.", least=1, metavar="N",
        shown=True)]  # fmt: skip
    pp: Annotated[int, Option(
        1, "Stages of a pipeline, each of --tp times --dp GPUs.", least=1, metavar="N", shown=True)]  # fmt: skip
    cluster: Annotated[str | Path | Cluster | None, Option(
        None, "How the GPUs are joined. [default: the cluster that memwall knows with the GPU]", metavar="NAME",
        completes="clusters")]  # fmt: skip
    kv: Annotated[str, Option("model", "Dtype of the cache: model or fp8.", metavar="NAME", shown=True)]


class ModelOptions(EngineLayout, total=False):
    """The model that an engine runs."""

    weights: Annotated[str, Option(
        "model", "model: as its configuration says; fp8, fp8-block, int8, int4, nvfp4, mxfp4.", metavar="NAME",
        shown=True)]  # fmt: skip
    dtype: Annotated[str | None, Option(None, "Cast the model to this first, such as float16.", metavar="NAME")]


class DecodeOptions(ModelOptions, total=False):
    """One decode step of an engine."""

    tp: Annotated[int, Option(1, "GPUs that share each matmul.", least=1, metavar="N")]
    batch: Annotated[int, Option(1, "Sequences.", least=1, metavar="N")]
    context: Annotated[int, Option(1024, "Tokens in the cache of each.", least=1, metavar="N")]


class ServerOptions(ModelOptions, total=False):
    """What serves."""

    tp: Annotated[int | Iterable[int], Option(
        1, "GPUs that share each matmul: one number or several. [default: 1]", least=1, metavar="N...",
        several="words")]  # fmt: skip
    closed_form: Annotated[bool, Option(False, "Solve for the steady state, without simulation or percentiles.")]
    draft: Annotated[str | Path | Model | None, Option(
        None, "A smaller model that guesses tokens for a step to verify; mtp: the model's own.", metavar="TARGET",
        internal=True)]  # fmt: skip
    draft_tokens: Annotated[int | None, Option(
        None, "Tokens that it guesses. [default: 4; of mtp what the configuration says]", least=1,
        internal=True)]  # fmt: skip
    accept: Annotated[float, Option(ACCEPT, "Chance that a guess is right.", shown=True, internal=True)]
    disaggregate: Annotated[tuple[int, int] | None, Option(
        None, "P engines run prompts, D decode; each has the GPUs of --tp.", metavar="P:D", internal=True)]  # fmt: skip


class ServeOptions(ServerOptions, LoadOptions, total=False):
    """A server under a load."""


class SearchOptions(RequestOptions, EngineOptions, total=False):
    """A load that engines share, and the formats to try."""

    concurrency: Annotated[int | None, Option(
        None, "Clients in all, which the engines share.", least=1, metavar="N")]  # fmt: skip
    weights: Annotated[Sequence[str], Option(
        ("model",), "Formats of weights to try, as of memwall serve.", metavar="NAME...", several="words")]  # fmt: skip
    kv: Annotated[Sequence[str], Option(
        ("model",), "Dtypes of the cache to try: model, fp8.", metavar="NAME...", several="words")]  # fmt: skip
