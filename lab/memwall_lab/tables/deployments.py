"""Deployments of language models: latencies (ai-dynamo/aiconfigurator's ``silicon_sample.csv``: InferenceX and NVIDIA's
own sweeps), and the most tokens per second (TensorRT-LLM's ``perf-overview.md``).

Models are configurations in a folder ``configs`` next to the table or to its folder, ``OWNER--NAME`` for
``OWNER/NAME``. What the rows state is read so:

- ``tp_size`` and ``attention_dp_size`` that are equal name the same GPUs, each of which attends to its own sequences;
- ``tp_size`` that is the product of equal ``moe_tp_size`` and ``moe_ep_size`` names the GPUs twice;
- GPUs of one engine beyond a node of 8 attend to sequences of their own;
- a row of DeepSeek is one of the deployments that InferenceX lists for its load and GPUs, if it lists some
  (:mod:`~memwall_lab.tables.inferencex`), with their engines, experts and draft tokens;
- ``tp_size`` beyond a node that nothing else divides, or that is the same of prompts and decodes, is all GPUs of such a
  deployment (12, 36 and 72 do not divide DeepSeek's 128 heads, and 8192 prompts at 4096 clients leave TPOT as it is);
- a row that has the load and both times of InferenceX's own row, to six digits, is that row, which states its engines
  and does not speculate;
- a lone GPU, which cannot hold DeepSeek, is of the deployment that a row with its load is of which states all GPUs;
- a row that no list has is of the engines of InferenceX's own row with the same load on the same GPUs, and a lone GPU
  of the engines of the only row with its load; if it is faster by ``SPECULATES``, it speculates;
- without such a row there are 4 engines that decode, or one where each would have more than :data:`_MOST_SHARED`
  clients, whose GPUs then attend to sequences of their own, as the rows that state them do;
- lengths are 0.8 to 1.0 of nominal in InferenceX, and taken as 0.95 to 1.0 in NVIDIA's sweeps, which say nothing;
- mixtures of TensorRT-LLM's table divide experts and sequences over all GPUs of a stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from memwall.bench.accuracy.kinds import Record, Skip, TableKind, seconds
from memwall.core.files import read_csv
from memwall.serving.simulation.lengths import Lengths
from memwall.serving.simulation.workload import RequestLoad
from memwall.serving.steps import Layout
from memwall_lab.deployments import Deployment, Pool
from memwall_lab.tables.base import gpu_named, known, positive, size
from memwall_lab.tables.inferencex import SPECULATES, Deployed, in_order, listed, load_of

#: models whose configuration has another name
_CONFIGS: Mapping[str, str] = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "Llama 3.1 405B": "meta-llama/Meta-Llama-3.1-405B", "Llama 3.3 70B": "meta-llama/Meta-Llama-3.1-70B",
    "Llama 4 Maverick": "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
    "Llama 4 Scout": "meta-llama/Llama-4-Scout-17B-16E-Instruct", "Qwen3-235B-A22B": "Qwen/Qwen3-235B-A22B",
    "Qwen3-30B-A3B": "Qwen/Qwen3-30B-A3B",
}  # fmt: skip
#: models with 4-bit floating-point weights, which say what stays as it is
_NVFP4: Mapping[str, str] = {
    "moonshotai/Kimi-K2.5": "nvidia/Kimi-K2.5-NVFP4", "MiniMaxAI/MiniMax-M2.5": "nvidia/MiniMax-M2.5-NVFP4",
    "deepseek-ai/DeepSeek-R1": "nvidia/DeepSeek-V3.1-NVFP4", "deepseek-ai/DeepSeek-V3": "nvidia/DeepSeek-V3.1-NVFP4",
}  # fmt: skip
#: vLLM's deployments (model, weights, version) with a cache in fp8, which no row states: of each, rows have more
#: sequences under way, by Little's law of their own times, than memory holds in bfloat16 next to the weights
_FP8_CACHES = {("MiniMaxAI/MiniMax-M2.5", "fp8", "0.19.0"), ("meta-llama/Llama-3.1-70B", "fp8", "")}
#: versions of vLLM that rows state otherwise: without one they are of October 2025; the nightly build precedes 0.19
_VERSIONS = {"": "0.11", "nightly-5b8c30d62b754b57": "0.18"}
#: what names of mixtures hold
_MIXTURES = ("Llama 4", "-A")
_MOST_REQUESTS = 2000
#: ``cuda_graph_config`` of NVIDIA's sweeps (TensorRT-LLM, docs/source/performance/perf-overview.md); InferenceX's of
#: TensorRT-LLM have graphs of all batches of a GPU, too (srt-slurm, recipes/trtllm: ``max_batch_size`` of both alike)
_GRAPHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 2048, 4096, 8192)
#: GPUs of a node; clients of an engine beyond which its GPUs attend to sequences of their own
_NODE, _MOST_SHARED = 8, 128
_STATED = "InferenceX db-dump"
_ENGINES = ("tp_size", "attention_dp_size", "pp_size", "moe_tp_size", "moe_ep_size", "num_workers")


def _config(source: Path, model: str) -> Path:
    name = _CONFIGS.get(model, model).replace("/", "--")
    for folder in (source.parent, source.parent.parent):
        if (found := folder / "configs" / name / "config.json").is_file():
            return found.parent
    raise Skip(f"no configuration of {model[:60]}: its folder belongs into configs next to the table's folder")


def _count(record: Record, name: str) -> int:
    """A whole number; 0 where nothing is recorded."""
    text = str(record.get(name) or "")
    return size(record, name, 0) if text not in ("", "nan") else 0


def _clients(record: Record) -> int:
    return _count(record, "concurrency")


def _gpus(record: Record, prefix: str = "") -> int:
    """GPUs of the engines of a kind, as they are stated."""
    engines = max(_count(record, f"{prefix}num_workers"), 1)
    return engines * _count(record, f"{prefix}tp_size") * max(_count(record, f"{prefix}attention_dp_size"), 1)


@lru_cache(maxsize=4)
def _stated(source: Path) -> Mapping[tuple[str, ...], list[Record]]:
    """InferenceX's own rows, which state all engines and do not speculate, by their load."""
    found: dict[tuple[str, ...], list[Record]] = {}
    for _, record in read_csv(source):
        if record["origin"] == _STATED:
            found.setdefault(_load_of(record), []).append(record)
    return found


def _load_of(record: Record) -> tuple[str, ...]:
    return *load_of(record, "precision"), str(record["concurrency"])


@lru_cache(maxsize=4)
def _times(source: Path) -> Mapping[tuple[object, ...], list[float]]:
    """TPOT of all rows of one engine, or more, with a load, and of rows that are one of the same deployments."""
    found: dict[tuple[object, ...], list[float]] = {}
    for _, record in read_csv(source):
        if "DeepSeek" in record["model_path"]:
            for key in ((*_load_of(record), _is_apart(record)), (*_load_of(record), _listed(record))):
                found.setdefault(key, []).append(seconds(record, "tpot_ms"))
    return found


@lru_cache(maxsize=4)
def _of_whole(source: Path) -> Mapping[tuple[str, ...], tuple[Deployed, ...]]:
    """The deployments that a row with all GPUs may be one of, by its load."""
    records = (record for _, record in read_csv(source))
    return {_load_of(record): _listed(record) for record in records if _is_apart(record) and _is_whole(record)}


def _is_lone(record: Record) -> bool:
    """Whether a row states a lone GPU of DeepSeek."""
    return _is_apart(record) and _gpus(record, "" if record["mode"] == "agg" else "decode_") == 1


def _listed(record: Record) -> tuple[Deployed, ...]:
    """The deployments that a row may be one of."""
    is_whole, is_apart = _is_whole(record), _is_apart(record)
    of_all = _gpus(record, "" if record["mode"] == "agg" else "decode_")
    gpus = of_all if is_apart else _pool(record, "").layout.gpus
    found = listed(load_of(record), _clients(record), gpus, is_whole, is_apart)
    if record["origin"] == _STATED and not is_apart:
        return tuple(each for each in found if not each.draft_tokens)
    if record["origin"] == _STATED:
        own = _count(record, "decode_num_workers"), _count(record, "prefill_num_workers")
        found = tuple(each for each in found if own == (each.decodes.engines, each.prompts.engines))
        found = tuple(each for each in found if gpus == each.decode_gpus and not each.draft_tokens)
    return found


def _is_apart(record: Record) -> bool:
    """Whether a row is of DeepSeek with prompts and decodes apart."""
    return "DeepSeek" in record["model_path"] and (record["mode"] == "disagg" or _is_whole(record))


def _deployed(record: Record, source: Path) -> tuple[Record, Deployed | None, str]:
    """The row, with the engines that another states of the same deployment, or what InferenceX lists of it; and what
    tells that. Raises Skip: it speculates, or states too little."""
    is_deepseek, load = "DeepSeek" in record["model_path"], _load_of(record)
    others = _stated(source).get(load, ()) if is_deepseek else ()
    record = next((other for other in others if _is_same(record, other)), record)
    if is_deepseek and (found := _listed(record) or _of_whole(source).get(load, ()) * _is_lone(record)):
        times = _times(source)
        slowest_s = max(times[*load, _is_apart(record)])
        told = in_order(found, seconds(record, "tpot_ms"), times[*load, found], slowest_s)
        return record, told, "a list" if len(found) == 1 else "lists, by the order of times"
    if record["origin"] == _STATED:
        return record, None, "the row"
    if other := next((other for other in others if _has_gpus_of(record, other, len(others))), None):
        if SPECULATES * seconds(record, "tpot_ms") < seconds(other, "tpot_ms"):
            raise Skip(f"faster by {SPECULATES} than the same deployment without speculation: it speculates")
        engines = {name: cell for name, cell in other.items() if name.startswith(("decode_", "prefill_"))}
        return ({**record, **engines, "mode": "disagg"} if _is_apart(record) else record), None, "another row"
    if _is_whole(record):
        raise Skip("it states the GPUs of prompts and decodes together, and no list has such a deployment")
    return record, None, "the row"


def _has_gpus_of(record: Record, other: Record, others: int) -> bool:
    """Whether a row states as many GPUs as another, which is one of so many with its load."""
    if not _is_apart(record):
        return _gpus(record) == _gpus(other)
    gpus = _gpus(record, "" if record["mode"] == "agg" else "decode_")
    decodes, prompts = _gpus(other, "decode_"), _gpus(other, "prefill_")
    of_one = decodes // max(_count(other, "decode_num_workers"), 1)
    return gpus in (of_one, decodes, decodes + prompts) or (gpus == others == 1)


def _is_same(record: Record, other: Record) -> bool:
    """Whether a row has the times of another."""
    return all(abs(seconds(record, name) / seconds(other, name) - 1) < 1e-6 for name in ("tpot_ms", "ttft_ms"))


def _is_whole(record: Record) -> bool:
    """Whether a row states all GPUs of a deployment of prompts and decodes apart as the GPUs of one engine."""
    if record["mode"] == "agg":
        return _gpus(record) > _NODE and _count(record, "moe_ep_size") == 1
    gpus = _count(record, "decode_tp_size")
    return gpus > _NODE and gpus == _count(record, "prefill_tp_size") and not _count(record, "decode_num_workers")


def _pool(record: Record, prefix: str) -> Pool:
    """The engines of a kind: ``prefill_``, ``decode_``, or the engines of both."""
    tp, dp, pp, moe_tp, ep, engines = (max(_count(record, f"{prefix}{name}"), 1) for name in _ENGINES)
    if not prefix and moe_tp == ep > 1 and tp * dp == moe_tp * ep:
        tp, dp = (1, ep) if dp > 1 else (ep, 1)
    elif not prefix and tp == dp:
        tp = 1
    if prefix == "decode_" and not _count(record, "decode_num_workers") and dp == 1:
        engines = 4 if tp <= _NODE and _clients(record) <= 4 * _MOST_SHARED else 1
        # the batch of the engines of prompts is recorded; 24 GPUs do not divide 256 experts
        ep = tp if ep > 1 and not tp & (tp - 1) else ep
    if tp > _NODE or (engines == 1 and prefix == "decode_" and _clients(record) > _MOST_SHARED):
        tp, dp = 1, tp * dp
    ep = ep if tp * dp % ep == 0 else 1
    return Pool(
        layout=Layout(tp=tp, dp=dp, ep=ep, pp=pp, engine=str(record["backend"]), **_schemes(record)), engines=engines
    )


def _schemes(record: Record) -> dict[str, str]:
    """How products and experts are stored, as a layout names it."""
    products, experts = (str(record[name] or "").replace("nan", "") for name in ("gemm_quant_mode", "moe_quant_mode"))
    if products == "int4_wo":
        products = ""  # Kimi-K2.5: its experts alone
    is_modelopt = record["backend"] == "trtllm" or str(record["model_path"]).startswith("nvidia/")
    is_modelopt &= products in ("fp8", "nvfp4")  # whose checkpoints state a cache in fp8
    has_fp8_cache = is_modelopt or (record["model_path"], products, _version(record)) in _FP8_CACHES
    if is_modelopt and products == "fp8":
        products = "fp8_static"
    return {"weights": products, "experts": experts, "kv": "float8_e4m3fn" if has_fp8_cache else ""}


def _of_prompts(pool: Pool, tokens: int | None) -> Pool:
    """Engines of prompts. Recipes of TensorRT-LLM run experts in nvfp4 by its backend TRTLLM there, whose kernels
    SGLang runs too (``sglang_flashinfer_trtllm_moe``). SGLang's constants are off by 18 % in the median of the
    backend's rows with 4 to 128 tokens for each expert; TensorRT-LLM's, most of whose rows are CUTLASS's, by 28 or
    more."""
    is_other = pool.layout.engine == "trtllm" and pool.layout.weights == "nvfp4"
    return replace(pool, layout=replace(pool.layout, experts_engine="sglang" if is_other else ""), tokens=tokens)


def _version(record: Record) -> str:
    return str(record.get("backend_version") or "").replace("nan", "")


def _engine(record: Record) -> str:
    """The engine with its version, where memwall knows versions that differ."""
    if record["backend"] != "vllm":
        return str(record["backend"])
    stated = _version(record)
    return f"vllm@{_VERSIONS.get(stated, stated)}"


class Latencies(TableKind):
    """A table of latencies."""

    def read(self, record: Record, source: Path) -> Iterator[Deployment]:
        split = " ".join(str(record[name]) for name in ("model_path", "system", "backend", "tp_size", "decode_tp_size"))
        model, (record, deployed, told_by) = str(record["model_path"]), _deployed(record, source)
        prefixes = ("decode_", "prefill_") if record["mode"] == "disagg" else ("",)
        if deployed is None:
            decodes, *prompts = (_pool(record, prefix) for prefix in prefixes)
        else:
            lone = Layout(tp=1, ep=1, dp=1, pp=1, engine=str(record["backend"]), **_schemes(record))
            pools = (each for each in (deployed.decodes, deployed.prompts) if each.engines)
            decodes, *prompts = (Pool(layout=each.held(lone), engines=each.engines) for each in pools)
            decodes = replace(decodes, copies=deployed.copies, batch=deployed.batch)
            prompts = [_of_prompts(pool, deployed.prompt_tokens) for pool in prompts]
        drafts = deployed.draft_tokens if deployed else 0
        groups = decodes.layout.dp if prompts else max(_count(record, "attention_dp_size"), 1)
        batch = groups * decodes.engines * _count(record, f"{prefixes[0]}batch_size")
        clients = min((n for n in (_clients(record), batch) if n), default=0)
        if not clients:
            raise Skip("neither clients nor a batch are recorded")
        share = 0.95 if "nvidia" in str(record["origin"]) else 0.8
        load = RequestLoad(
            prompt=Lengths(size(record, "isl"), share), generate=Lengths(size(record, "osl"), share),
            concurrency=clients, requests=min(10 * clients, max(_MOST_REQUESTS, 2 * clients)),
        )  # fmt: skip
        yield Deployment(
            dataset=self.name, label=str(record["system"]), name=model,
            config=_config(source, _NVFP4.get(model, model) if record["gemm_quant_mode"] == "nvfp4" else model),
            gpu=gpu_named(str(record["system"])), engine=_engine(record),
            decodes=decodes, prompts=prompts[0] if prompts else None,
            workload=load, measured={"TPOT": seconds(record, "tpot_ms"), "TTFT": seconds(record, "ttft_ms")},
            shape=f"{record['backend']} {record['id']}", split=split, draft_tokens=drafts, told_by=told_by,
            states_batch=not _clients(record), graphs=_GRAPHS if deployed and record["backend"] == "trtllm" else (),
        )  # fmt: skip


class Throughput(TableKind):
    """A table of the most tokens per second."""

    def read(self, record: Record, source: Path) -> Iterator[Deployment]:
        model, tp, pp = str(record["model"]), size(record, "tp"), size(record, "pp")
        is_mixture = any(part in model for part in _MIXTURES)
        layout = Layout(
            tp=1 if is_mixture else tp, dp=tp if is_mixture else 1, ep=tp if is_mixture else 1, pp=pp, engine="trtllm",
            weights=known({"FP8": "fp8_static", "FP4": "nvfp4"}, str(record["dtype"]), "dtype"), kv="float8_e4m3fn",
        )  # fmt: skip
        load = RequestLoad(prompt=Lengths(size(record, "isl")), generate=Lengths(size(record, "osl")), concurrency=1)
        yield Deployment(
            dataset=self.name, label=str(record["gpu"]), name=model, config=_config(source, model), graphs=_GRAPHS,
            gpu=gpu_named(str(record["gpu"])), engine="trtllm", decodes=Pool(layout=layout), workload=load,
            measured={"GPU seconds per token": tp * pp / positive(record, "output_tok_s")},
            shape=f"trtllm {record['isl']}x{record['osl']} on {tp * pp}", split=f"{model} {record['gpu']} {tp} {pp}",
        )  # fmt: skip


LATENCIES = Latencies(
    "serving_e2e", "backend model_path system precision mode isl osl gemm_quant_mode moe_quant_mode batch_size tp_size"
    " attention_dp_size moe_tp_size moe_ep_size decode_tp_size decode_num_workers ttft_ms tpot_ms concurrency origin",
)  # fmt: skip
THROUGHPUT = Throughput("trtllm_throughput", "model gpu tp pp dtype isl osl output_tok_s")
