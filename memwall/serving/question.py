"""The questions of ``memwall serve``: a server of a language model, and its load; one step of it; and a search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypedDict

from memwall.core.question import Option
from memwall.hardware.engine import PREFILLS
from memwall.hardware.links import Cluster
from memwall.serving.model import Model
from memwall.serving.simulation.timing import UTILIZATION

#: chance that a guess is right
ACCEPT = 0.7


class LoadOptions(TypedDict, total=False):
    """What is asked of a server: what requests are, and when they come."""

    prompt: Annotated[int | None, Option(
        None, "Tokens of a prompt. [default: 1024; of a decoder whose encoder reads sound 4]", least=1)]  # fmt: skip
    generate: Annotated[int, Option(256, "Tokens of an answer.", least=2, shown=True)]
    rate: Annotated[float | None, Option(None, "Requests per second at random times, instead of clients.", metavar="R")]
    lengths: Annotated[str, Option(
        "1", "How tokens of prompts and answers spread: 0.8-1.0 of them; lognormal:SIGMA around them; or a CSV file of"
        " pairs or of a histogram. [default: 1]", metavar="SPREAD")]  # fmt: skip
    images: Annotated[
        int | None, Option(None, "Images in front of each prompt, which the model's tower reads.", least=1, metavar="N")
    ]
    frames: Annotated[int | None, Option(None, "Frames of a clip in front of each prompt.", least=1, metavar="N")]
    audio: Annotated[float | None, Option(None, "Seconds of sound in front of each prompt.", metavar="SECONDS")]
    image: Annotated[
        str | int | tuple[int, int] | None,
        Option(None, "Height and width of an image or frame. [default: as the configuration states]", metavar="HxW"),
    ]
    prefix_hit: Annotated[float | None, Option(
        None, "Share of a prompt in the cache already. [default: 0; of sessions what the cache keeps]",
        metavar="SHARE")]  # fmt: skip
    trace: Annotated[str | Path | None, Option(
        None, "A file of requests with their times: CSV (arrival_s, prompt_tokens, generated_tokens; BurstGPT's;"
        " Azure's) or Mooncake's .jsonl.", metavar="FILE", internal=True)]  # fmt: skip
    trace_scale: Annotated[float | None, Option(
        None, "The trace so many times as fast. [default: 1]", metavar="X", internal=True)]  # fmt: skip
    burst: Annotated[float | None, Option(
        None, "Coefficient of variation of the seconds between requests of --rate: above 1 they come in bursts, 0"
        " evenly. [default: 1, Poisson]", metavar="CV")]  # fmt: skip
    turns: Annotated[int | None, Option(
        None, "Requests of a session, each with all before it in front. [default: 1]", least=1,
        metavar="N")]  # fmt: skip
    think: Annotated[float | None, Option(
        None, "Mean seconds between an answer and the next of --turns: a user who reads, or a tool that runs."
        " [default: 0]", metavar="SECONDS")]  # fmt: skip
    system_prompt: Annotated[int | None, Option(
        None, "Tokens that all sessions begin with. [default: 0]", least=1, metavar="N")]  # fmt: skip
    requests: Annotated[int | None, Option(
        None, "How many to simulate. [default: 10 for each client, 200 or more; all of a trace]", least=1,
        metavar="N")]  # fmt: skip
    client: Annotated[float | None, Option(
        None, "Milliseconds of the network and the tokenizer, in front of each request: TTFT has them. [default: 0]",
        metavar="MS")]  # fmt: skip


class ServedLoad(LoadOptions, total=False):
    """One load, or several of clients."""

    concurrency: Annotated[int | Iterable[int] | None, Option(
        (1, 4, 16, 64, 256), "Clients that wait for an answer before they ask again. [default: 1 4 16 64 256]",
        least=1, metavar="N...", several="words")]  # fmt: skip


class EngineOptions(TypedDict, total=False):
    """Whose kernels run, and in how much memory."""

    engine: Annotated[str, Option(
        "vllm", "vllm, sglang or trtllm, of a version as in vllm@0.11; or a TOML file.", metavar="NAME",
        shown=True)]  # fmt: skip
    utilization: Annotated[float, Option(UTILIZATION, "Share of a GPU's memory to take.", shown=True)]
    routing: Annotated[str, Option(
        "typical", "How tokens choose experts: typical, balanced, power-law:ALPHA, or a CSV: [layer,]expert,count.",
        metavar="WAY", shown=True, internal=True)]  # fmt: skip
    redundant: Annotated[int | None, Option(
        None, "Copies of the experts with most rows, placed as DeepSeek's EPLB does. [default: experts lie in order]",
        least=0, metavar="N", internal=True)]  # fmt: skip
    straggler: Annotated[float, Option(
        1.0, "One GPU of each engine runs at this share of its speed, and the others wait. [default: 1]",
        metavar="SHARE", internal=True)]  # fmt: skip


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


class CostOptions(TypedDict, total=False):
    """What hours and power cost, as of :class:`memwall.hardware.prices.CostRates`."""

    kwh: Annotated[float | None, Option(None, "USD of a kilowatt-hour, next to --price.", metavar="USD")]
    grams_per_kwh: Annotated[float | None, Option(None, "Grams of CO2 of a kilowatt-hour.", metavar="G")]
    pue: Annotated[float, Option(
        1.0, "Energy of the building and the rest of the server for each joule of the GPUs. [default: 1]",
        metavar="RATIO")]  # fmt: skip
    busy: Annotated[float, Option(
        1.0, "Share of the hours in which the GPUs are loaded; all are paid for. [default: 1]",
        metavar="SHARE")]  # fmt: skip
    spot: Annotated[
        float | None,
        Option(None, "What a GPU costs that is given back when it is idle, as a share of --price.", metavar="SHARE"),
    ]


class DecodeOptions(ModelOptions, CostOptions, total=False):
    """One decode step of an engine."""

    tp: Annotated[int, Option(1, "GPUs that share each matmul.", least=1, metavar="N")]
    batch: Annotated[int, Option(1, "Sequences.", least=1, metavar="N")]
    context: Annotated[int, Option(1024, "Tokens in the cache of each.", least=1, metavar="N")]


class RouteOptions(TypedDict, total=False):
    """How engines share a load."""

    route: Annotated[str, Option(
        "least-loaded", "Which replica takes a request: the one with the fewest, each in turn, or the one that has kept"
        " most of the prompt.", choices=("least-loaded", "round-robin", "prefix"), shown=True)]  # fmt: skip


class ServerOptions(ModelOptions, RouteOptions, total=False):
    """What serves."""

    tp: Annotated[int | Iterable[int], Option(
        1, "GPUs that share each matmul: one number or several. [default: 1]", least=1, metavar="N...",
        several="words")]  # fmt: skip
    max_batch: Annotated[int | None, Option(
        None, "The most sequences of a step. [default: the engine's on the GPU]", least=1, metavar="N")]  # fmt: skip
    token_budget: Annotated[int | None, Option(
        None, "The most tokens of a step. [default: the engine's on the GPU]", least=1, metavar="N")]  # fmt: skip
    max_context: Annotated[int | None, Option(
        None, "The most tokens of a sequence. [default: what the model takes]", least=1, metavar="N")]  # fmt: skip
    prefill: Annotated[str | None, Option(
        None, "How steps take prompts. chunked: next to decodes, cut where the tokens of a step end (vLLM); whole: next"
        " to decodes (TensorRT-LLM); apart: whole, in steps of their own (SGLang). [default: the engine's]",
        choices=PREFILLS)]  # fmt: skip
    eager: Annotated[bool, Option(False, "Without CUDA graphs: the CPU launches every kernel of a step.")]
    captured: Annotated[int | Iterable[int] | None, Option(
        None, "Batches of decodes that CUDA graphs hold. [default: the engine's]", least=1, metavar="N...",
        several="words")]  # fmt: skip
    utilization_of: Annotated[str, Option(
        "all", "What --utilization is a share of: all memory; static: what weights and cache take; free: what weights"
        " and buffers leave for the cache.", choices=("all", "static", "free"), shown=True)]  # fmt: skip
    closed_form: Annotated[bool, Option(False, "Solve for the steady state, without simulation or percentiles.")]
    draft: Annotated[str | Path | Model | None, Option(
        None, "A smaller model that guesses tokens for a step to verify; mtp: the model's own.", metavar="TARGET",
        internal=True)]  # fmt: skip
    draft_tokens: Annotated[int | None, Option(
        None, "Tokens that it guesses. [default: 4; of mtp what the configuration says]", least=1,
        internal=True)]  # fmt: skip
    accept: Annotated[float, Option(ACCEPT, "Chance that a guess is right.", shown=True, internal=True)]
    replicas: Annotated[int, Option(1, "Engines that share the load.", least=1, metavar="N", shown=True)]
    failed: Annotated[int, Option(
        0, "Replicas that are out, as one of their GPUs has failed: the others have all of the load. [default: 0]",
        least=0, metavar="N", internal=True)]  # fmt: skip
    autoscale: Annotated[tuple[int, int, int] | None, Option(
        None, "From LOW to HIGH replicas, as many as have REQUESTS each, running or waiting.",
        metavar="LOW:HIGH:REQUESTS", internal=True)]  # fmt: skip
    startup: Annotated[float | None, Option(
        None, "Seconds until a replica that --autoscale starts takes requests. [default: 60]",
        metavar="SECONDS", internal=True)]  # fmt: skip
    disaggregate: Annotated[tuple[int, int] | None, Option(
        None, "P engines run prompts, D decode; each has the GPUs of --tp.", metavar="P:D", internal=True)]  # fmt: skip


class ServeOptions(ServerOptions, ServedLoad, CostOptions, total=False):
    """A server under a load, as keywords of :func:`memwall.serve`.

    Attributes:
        tp: how many GPUs share each matmul, one number or several.
        ep: GPUs that hold different experts, out of ``tp * dp``; the other GPUs share columns of experts.
        dp: groups of ``tp`` GPUs that attend to sequences of their own (attention data parallelism).
        pp: stages of ``tp * dp`` GPUs that have the layers one after another (pipeline parallelism).
        cluster: how the GPUs are joined; None takes the one that memwall knows with the GPU.
        prompt, generate: tokens of a request; ``lengths`` says how both spread: over the range ``0.8-1.0`` of nominal;
            ``lognormal:0.9,0.6``, with these standard deviations of the logarithm of prompts and answers, of which they
            are the means; or as in a CSV file, of pairs or of a histogram, that takes their place. Of a model with an
            encoder of text the prompt is what that reads, always whole. None takes 1,024, or 4 of the decoder where
            an encoder reads something else.
        concurrency: clients that each wait for an answer before they ask again, one number or several.
        images: images of each request, in front of its text, of the height and width ``image``, as in ``"1024x1024"``;
            the prompt is the tokens of text behind them. ``frames`` of one clip of that size, and seconds of ``audio``,
            stand there likewise.
        rate: requests per second at random times, instead of clients. The seconds between two have the coefficient of
            variation ``burst``, with which they are gamma-distributed; 1 is Poisson, 0 even.
        turns: requests of a session: a client asks the next one on average ``think`` seconds after an answer, with all
            of the session in front of its prompt. All sessions begin with the same ``system_prompt`` tokens.
        requests: how many are simulated.
        client: milliseconds of network and tokenizer in front of each request, which TTFT has in it.
        routing: how tokens choose experts: ``typical``, by chance, some being more popular; ``balanced``, all alike;
            ``power-law:ALPHA``; or a CSV of counts, ``expert,count`` or ``layer,expert,count``. ``redundant`` copies of
            the experts with most rows are made and placed as DeepSeek's EPLB does; None: experts lie in their order.
        straggler: the share of its speed at which one GPU of each engine runs.
        weights, kv: a key of :data:`WEIGHTS` and of :data:`CACHES`; ``model`` takes what its configuration says.
        prefix_hit: share of a prompt that is in the cache already. None: none, but of sessions and of traces that name
            blocks what an engine has kept; 0 keeps nothing of these either.
        utilization: share of a GPU's memory that the server takes: of ``all`` of it, or as ``utilization_of`` says, of
            what weights and cache take without buffers (``static``, as SGLang counts) or of what weights and buffers
            leave for the cache (``free``, as TensorRT-LLM counts).
        max_batch, token_budget: the most sequences and tokens of a step, of each group of ``tp`` GPUs; None: what the
            engine takes by itself on a GPU.
        max_context: the most tokens of a sequence, where it is less than the model takes.
        prefill: how steps take prompts, of :data:`memwall.hardware.engine.PREFILLS`; None: as the engine by itself.
        eager: no CUDA graph holds a step; ``captured`` are the batches of decodes that graphs hold.
        engine: one of :data:`ENGINES`, whose kernels run, of a version (``vllm@0.11``) or the newest; or a TOML file.
        closed_form: each load is solved for its steady state, not simulated request by request; no percentiles.
        trace: a file of requests with their times, instead of clients, in one of the formats of
            :data:`memwall.serving.simulation.trace_files.FORMATS`; ``trace_scale`` times as fast.
        replicas: engines that share the load; ``route`` says which takes a request: ``least-loaded``, ``round-robin``
            or ``prefix``.
        failed: replicas that are out, with all of their GPUs.
        autoscale: the least and the most replicas, and the requests that one has, running or waiting; one that is
            started takes requests ``startup`` seconds later.
        draft: a smaller model that guesses ``draft_tokens`` tokens, of which each is accepted with probability
            ``accept`` if the guesses before it are; one step of the model verifies them. :data:`OWN` is the model's own
            module (MTP), which guesses as many as the configuration says where no number is given; else 4.
        disaggregate: engines that run prompts alone, and engines that decode; caches go over the network between them.
        dtype: cast the models to this first.
        kwh, grams_per_kwh: USD and grams of CO2 of a kilowatt-hour; ``pue`` is energy of the building for each joule of
            the GPUs.
        busy: share of the hours in which the GPUs are loaded, while all hours are paid for; ``spot`` is what a GPU
            costs that is given back when it is idle, as a share of its price.
    """


class SearchOptions(LoadOptions, RouteOptions, EngineOptions, CostOptions, total=False):
    """A load that engines share, and the formats to try."""

    concurrency: Annotated[int | None, Option(
        None, "Clients in all, which the engines share.", least=1, metavar="N")]  # fmt: skip
    replicas: Annotated[
        int | None, Option(None, "Engines that share it. [default: as many as cost least]", least=1, metavar="N")
    ]
    weights: Annotated[Sequence[str], Option(
        ("model",), "Formats of weights to try, as of memwall serve.", metavar="NAME...", several="words")]  # fmt: skip
    kv: Annotated[Sequence[str], Option(
        ("model",), "Dtypes of the cache to try: model, fp8.", metavar="NAME...", several="words")]  # fmt: skip
    slo: Annotated[Sequence[str], Option(
        (), "'ttft_p99<500ms' 'tpot<30ms': what has to be kept.", metavar="LIMIT...", several="words")]  # fmt: skip
