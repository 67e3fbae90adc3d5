"""Results of serving benchmarks, as the tools write them.

``vllm bench serve --save-result`` writes one object, SGLang's ``bench_serving --output-file`` a line for each run, with
milliseconds and the tokens of all requests; InferenceX's aggregates are objects, or lists of them, with seconds and
nominal lengths.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memwall.core.errors import UsageError
from memwall.core.files import read_text
from memwall.core.structure import one_line, shown
from memwall.serving.simulation.lengths import Lengths
from memwall.serving.simulation.workload import RequestLoad

_WANTED = "want what vllm bench serve --save-result, SGLang's bench_serving --output-file or InferenceX write"
#: how a result begins to call an engine -> its name here
_ENGINES = {"vllm": "vllm", "sglang": "sglang", "trt": "trtllm", "tensorrt": "trtllm"}
#: requests to simulate, where two for each client are not more
_MOST_REQUESTS = 2000
#: InferenceX: the least share of nominal lengths, and requests of a client
_LEAST_SHARE, _PER_CLIENT = 0.8, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """A measured run: its ``load``, and the means of what clients saw. ``engine``, ``image`` and ``gpus`` of one engine
    are as the result says, empty and 0 where it does not; ``speculates`` where it says so."""

    source: str
    model: str
    load: RequestLoad
    ttft_s: float
    tpot_s: float
    engine: str = ""
    image: str = ""
    gpus: int = 0
    speculates: bool = False

    @property
    def decoding(self) -> float:
        """Mean sequences that decode, by Little's law."""
        answer_s = self.tpot_s * (self.load.generate.mean - 1)
        if self.load.rate_per_s is not None:
            return self.load.rate_per_s * answer_s
        return (self.load.concurrency or 1) * answer_s / (self.ttft_s + answer_s)


def read_results(paths: Sequence[str | Path]) -> list[BenchRun]:
    """The runs of some files. Raises UsageError: a file is no such result, a number is missing or cannot be, or the
    runs are of several models."""
    runs = [_run(record, where) for path in paths for record, where in _records(path)]
    if not runs:
        raise UsageError("no result was given: name the files that a benchmark wrote")
    named = list(dict.fromkeys(run.model for run in runs if run.model))
    if len({_short(name) for name in named}) > 1:
        raise UsageError(f"results are of {named[0]} and of {named[1]}: calibrate with the runs of one model")
    return runs


def is_alike(one: str, other: str) -> bool:
    """Whether two names are of one model, whoever keeps it."""
    return _short(one) == _short(other)


def _short(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def _records(path: str | Path) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The objects of a file, whole or one on each line, and where each stands."""
    text = read_text(path, kind="benchmark result")
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        lines = [(line, f"{path}:{i}") for i, line in enumerate(text.splitlines(), 1) if line.strip()]
        if not lines:
            raise UsageError(f"{path} is empty; {_WANTED}") from None
        for line, where in lines:
            try:
                yield _object(json.loads(line), where), where
            except (ValueError, RecursionError) as error:
                raise UsageError(f"{where} is not JSON: {one_line(error, 80)}") from None
        return
    listed = whole if isinstance(whole, list) else [whole]
    for i, record in enumerate(listed):
        where = f"{path}[{i}]" if isinstance(whole, list) else str(path)
        yield _object(record, where), where


def _object(record: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(record, dict):
        raise UsageError(f"{where} is {shown(record)}; {_WANTED}")
    return record


def _run(record: Mapping[str, Any], where: str) -> BenchRun:
    if "conc" in record:
        return _of_inferencex(record, where)
    if "mean_ttft_ms" in record or "mean_tpot_ms" in record:
        return _of_client(record, where)
    raise UsageError(f"{where} has neither mean_ttft_ms nor conc; {_WANTED}")


# -- vLLM's and SGLang's clients ---------------------------------------------------------------------------------------


def _of_client(record: Mapping[str, Any], where: str) -> BenchRun:
    completed = _whole(record, "completed", where)
    prompt, generate = (_mean_tokens(record, f"total_{what}_tokens", completed, where) for what in ("input", "output"))
    if record.get("dataset_name") in ("random", "random-ids") and "random_range_ratio" in record:
        prompt, generate = (_spread(record, f"random_{what}_len", where) for what in ("input", "output"))
    if generate.nominal < 2:
        raise UsageError(f"{where}: answers of one token have no time per output token")
    return BenchRun(
        source=where,
        model=str(record.get("model_id") or ""),
        engine=_engine(record.get("backend") or record.get("endpoint_type")),
        load=_load(record, prompt, generate, completed, where),
        ttft_s=_positive(record, "mean_ttft_ms", where) / 1e3,
        tpot_s=_positive(record, "mean_tpot_ms", where) / 1e3,
    )


def _load(record: Mapping[str, Any], prompt: Lengths, generate: Lengths, completed: int, where: str) -> RequestLoad:
    """Clients, a rate, or all requests at once."""
    rate = record.get("request_rate")
    has_rate = rate not in (None, "inf", math.inf)
    has_clients = record.get("max_concurrency") is not None
    if has_rate and has_clients:
        raise UsageError(
            f"{where}: it has a request_rate and a max_concurrency; give runs with one of them (--request-rate inf)"
        )
    if has_rate:
        per_s = _positive(record, "request_rate", where)
        burst = (
            _positive({"burstiness": 1.0, **record}, "burstiness", where) ** -0.5
        )  # the shape of a gamma distribution
        requests = min(completed, _MOST_REQUESTS)
        return RequestLoad(prompt=prompt, generate=generate, rate_per_s=per_s, burst=burst, requests=requests)
    clients = min(_whole(record, "max_concurrency", where) if has_clients else completed, completed)
    requests = min(completed, max(_MOST_REQUESTS, 2 * clients))
    return RequestLoad(prompt=prompt, generate=generate, concurrency=clients, requests=requests)


def _mean_tokens(record: Mapping[str, Any], name: str, completed: int, where: str) -> Lengths:
    return Lengths(max(round(_positive(record, name, where) / completed), 1))


def _spread(record: Mapping[str, Any], name: str, where: str) -> Lengths:
    """Evenly from a share of nominal, and one token at least, to nominal."""
    nominal, share = _whole(record, name, where), record["random_range_ratio"]
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise UsageError(f"{where}: random_range_ratio is {shown(share)}; want a share from 0 to 1")
    return Lengths(nominal, max(share, 1 / nominal))


# -- InferenceX --------------------------------------------------------------------------------------------------------


def _of_inferencex(record: Mapping[str, Any], where: str) -> BenchRun:
    if _flag(record, "disagg") or _flag(record, "is_multinode"):
        raise UsageError(f"{where}: prompts and decodes apart, or several nodes: calibrate with runs of one engine")
    prompt, generate = (Lengths(_whole(record, name, where), _LEAST_SHARE) for name in ("isl", "osl"))
    clients = _whole(record, "conc", where)
    return BenchRun(
        source=where,
        model=str(record.get("model") or ""),
        engine=_engine(record.get("framework")),
        image=str(record.get("image") or ""),
        load=RequestLoad(
            prompt=prompt,
            generate=generate,
            concurrency=clients,
            requests=min(_PER_CLIENT * clients, max(_MOST_REQUESTS, 2 * clients)),
        ),
        ttft_s=_positive(record, "mean_ttft", where),
        tpot_s=_positive(record, "mean_tpot", where),
        gpus=_whole(record, "tp", where),
        speculates=str(record.get("spec_decoding") or "none").lower() not in ("none", "false"),
    )


def _flag(record: Mapping[str, Any], name: str) -> bool:
    return str(record.get(name, False)).lower() == "true"


# -- cells -------------------------------------------------------------------------------------------------------------


def _engine(said: Any) -> str:
    """``sglang-oai`` is SGLang; ``openai`` may be any engine."""
    name = str(said or "").lower()
    return next((engine for begin, engine in _ENGINES.items() if name.startswith(begin)), "")


def _positive(record: Mapping[str, Any], name: str, where: str) -> float:
    if name not in record:
        raise UsageError(f"{where} lacks {name}; {_WANTED}")
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e15:
        raise UsageError(f"{where}: {name} is {shown(value)}; want a number above 0")
    return float(value)


def _whole(record: Mapping[str, Any], name: str, where: str) -> int:
    value = _positive(record, name, where)
    if value != int(value) or value >= 1 << 40:
        raise UsageError(f"{where}: {name} is {shown(record[name])}; want a whole number above 0")
    return int(value)
