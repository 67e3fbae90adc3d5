"""Write reports/serving.md: modeled latency of real deployments next to what was measured, where the tables are at hand.

    python reports/serving_report.py [--rows N]

Deployments are those of ``serving_e2e.csv`` and ``trtllm_throughput.csv``, models their configurations. No constant of
the server is fitted to any of these rows: kernels and messages have the constants of their own tables, the scheduler is
vLLM's, requests are simulated one by one. R1 is a roofline of the same bytes and FLOPs: 85 % of the bandwidth, 75 % of the
peak and 3 us for each kernel, a batch that is always full, and a prompt that waits for nobody.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

from memwall.analysis.accuracy.scores import spearman  # noqa: E402
from memwall.core.errors import MemwallError  # noqa: E402
from memwall.fusion.server import Layout, Step  # noqa: E402
from memwall.hardware.cluster import cluster_of  # noqa: E402
from memwall.hardware.lookup import load_gpu  # noqa: E402
from memwall.serving import Model, read_model  # noqa: E402
from memwall.simulate.serving.engine import Policy  # noqa: E402
from memwall.simulate.serving.requests import Disaggregated, simulate_requests  # noqa: E402
from memwall.simulate.serving.timing import GpuSteps  # noqa: E402
from memwall.simulate.serving.workload import Lengths, Workload  # noqa: E402
from tests.unit.places import shared, truth  # noqa: E402

HERE = Path(__file__).parent
#: how to read the page
READING = """What is not held out: no constant is fitted to these rows, but ten requests for each client, the first ones counted, were
chosen after four for each had been scored on some of them, and rows are not split into halves.

What stands out, with likely causes that are not verified: DeepSeek-R1 on more than 8 GPUs, most with prompts and decodes
apart, is modeled far too slow; such deployments may give each GPU sequences of its own, or speculate, which the table does
not mark. Kimi-K2.5 has experts of 4 bits, modeled as vLLM's kernels in their own table.
"""
GPUS = {
    "h100_sxm": "h100-sxm", "h200_sxm": "h200", "b200_sxm": "b200", "gb200": "gb200", "b300_sxm": "b300",
    "H100": "h100-sxm", "H200": "h200", "B200": "b200", "GB200": "gb200", "RTX6000P": "rtx-pro-6000-server",
}  # fmt: skip
#: models whose configuration has another name
CONFIGS = {
    "meta-llama/Llama-3.1-70B": "meta-llama--Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama--Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama--Meta-Llama-3.1-8B",
    "Llama 3.1 405B": "meta-llama--Meta-Llama-3.1-405B", "Llama 3.3 70B": "meta-llama--Meta-Llama-3.1-70B",
    "Llama 4 Maverick": "meta-llama--Llama-4-Maverick-17B-128E-Instruct",
    "Llama 4 Scout": "meta-llama--Llama-4-Scout-17B-16E-Instruct", "Qwen3-235B-A22B": "Qwen--Qwen3-235B-A22B",
    "Qwen3-30B-A3B": "Qwen--Qwen3-30B-A3B",
}  # fmt: skip
#: share of a GPU's memory; requests of a client, and in all at most
UTILIZATION, PER_CLIENT, MOST_REQUESTS = 0.92, 10, 2000
#: between the engines of prompts and of decodes: an adapter of 400 Gbit/s for each GPU
LINK_BYTES_PER_S = 50e9

Record = Mapping[str, str]


@dataclass(frozen=True)
class Scored:
    """One figure of one deployment: modeled, measured, R1, in seconds or tokens per second."""

    figure: str
    record: Record
    modeled: float
    measured: float
    r1: float | None = None

    @property
    def error(self) -> float:
        return self.modeled / self.measured - 1


# -- deployments -------------------------------------------------------------------------------------------------------


@cache
def model_of(name: str) -> Model:
    """The model of a configuration."""
    folder = shared(f"configs/{CONFIGS.get(name, name.replace('/', '--'))}")
    if folder is None:
        raise MemwallError(f"no configuration of {name}")
    return read_model(f"hf:{folder}")


def number(record: Record, name: str, default: float = 1) -> int:
    text = record.get(name) or ""
    return int(float(text)) if text not in ("", "nan") else int(default)


def schemes(record: Record, model: Model) -> tuple[str, str]:
    """How the weights of products and of experts are stored."""
    if model.scheme == "int4_wo":
        return "", "int4_wo"  # Kimi-K2.5: its experts alone
    found = []
    for column in ("gemm_quant_mode", "moe_quant_mode"):
        mode = record.get(column) or ""
        mode = "" if mode == "nan" else mode
        found.append("fp8_block" if mode == "fp8" and model.scheme == "fp8_block" else mode or model.scheme)
    return found[0], found[1]


@cache
def steps_of(name: str, gpu_name: str, layout: Layout) -> GpuSteps:
    """The engine of a model."""
    model, gpu = model_of(name), load_gpu(GPUS[gpu_name])
    cluster = cluster_of(gpu) if layout.gpus > 1 else None
    return GpuSteps(model.served, gpu, layout, cluster, UTILIZATION, max_context=model.max_context)


def engine_of(record: Record, prefix: str = "") -> GpuSteps:
    """The engine of a row, or one of its two kinds."""
    model = model_of(record["model_path"])
    weights, experts = schemes(record, model)
    tp, dp = number(record, f"{prefix}tp_size"), max(number(record, f"{prefix}attention_dp_size"), 1)
    layout = Layout(tp=tp, dp=dp, ep=min(max(number(record, f"{prefix}moe_ep_size"), 1), tp * dp), weights=weights,
                    experts=experts, engine=record["backend"])  # fmt: skip
    return steps_of(record["model_path"], record["system"], layout)


def deployment(record: Record) -> Iterator[Scored]:
    """TPOT and TTFT of a row of ``serving_e2e.csv``; groups with sequences of their own share the clients."""
    apart = record["mode"] == "disagg"
    decode = engine_of(record, "decode_" if apart else "")
    workers = max(number(record, "decode_num_workers"), 1) if apart else 1
    ranks = workers
    of_batch = number(record, "decode_batch_size" if apart else "batch_size", 0) * ranks * decode.layout.dp
    said = [number(record, "concurrency", 0), of_batch]
    clients = max(round(min(n for n in said if n) / ranks), 1)
    shares = 0.8 if "InferenceX" in record["origin"] else 1.0
    load = Workload(
        prompt=Lengths(number(record, "isl"), shares), generate=Lengths(number(record, "osl"), shares),
        concurrency=clients, requests=min(PER_CLIENT * clients, max(MOST_REQUESTS, clients)),
    )  # fmt: skip
    policy = Policy(max_batch=max(clients, 256), token_budget=max(8192 * decode.layout.dp, clients))
    steps: Any = decode
    if apart:
        prompts = engine_of(record, "prefill_")
        engines = max(round(number(record, "prefill_num_workers") / ranks), 1)
        steps = Disaggregated(prompt=prompts, decode=decode, prompt_engines=engines, link_bytes_per_s=LINK_BYTES_PER_S)
    run = simulate_requests(steps, load, policy)
    context = load.prompt.nominal + load.generate.nominal // 2
    assert run.tpot is not None
    yield Scored("TPOT", record, run.tpot.mean, float(record["tpot_ms"]) / 1e3,
                 roofline_s(decode, Step(clients, clients * context)))  # fmt: skip
    yield Scored("TTFT", record, run.ttft.mean, float(record["ttft_ms"]) / 1e3,
                 roofline_s(decode, Step(0, 0, ((load.prompt.nominal, 0),))))  # fmt: skip


def roofline_s(steps: GpuSteps, step: Step) -> float:
    """R1 of a step."""
    total_s = 0.0
    for kernel, n in steps.served.kernels:
        cost = kernel.cost(step, steps.layout)
        compute_s = sum(flops / steps.gpu.peak(pipe) for pipe, flops in cost.flops.items()) / 0.75
        total_s += n * (max(compute_s, cost.bytes / steps.gpu.dram_bytes_per_s / 0.85) + 3e-6 * bool(cost.launches))
    return total_s


def throughput(record: Record) -> Iterator[Scored]:
    """Most output tokens per second of a row of ``trtllm_throughput.csv``: as many clients as the cache holds."""
    model, gpus = model_of(record["model"]), int(record["tp"])
    has_experts = any(type(kernel).__name__ == "Experts" for kernel, _ in model.served.kernels)
    scheme = {"FP8": "fp8_static", "FP4": "nvfp4"}[record["dtype"]]
    tp, dp = (1, gpus) if has_experts else (gpus, 1)
    layout = Layout(tp=tp, dp=dp, ep=gpus if has_experts else 1, weights=scheme, kv="float8_e4m3fn", engine="trtllm")
    steps = steps_of(record["model"], record["gpu"], layout)
    prompt, generate = int(record["isl"]), int(record["osl"])
    free = steps.capacity_bytes - steps.weights_bytes - steps.reserved_bytes
    clients = max(min(int(free // max(steps.kv_bytes(prompt + generate), 1)), 2048 * dp), 1)
    load = Workload(prompt=Lengths(prompt), generate=Lengths(generate), concurrency=clients, requests=3 * clients)
    run = simulate_requests(steps, load, Policy(max_batch=clients, token_budget=max(8192 * dp, clients)))
    step = Step(clients, clients * (prompt + generate // 2))
    prompts_s = generate and roofline_s(steps, Step(0, 0, ((prompt, 0),))) * clients / generate
    yield Scored("output tokens/s", record, run.tokens_per_s, float(record["output_tok_s"]),
                 clients / (roofline_s(steps, step) + prompts_s))  # fmt: skip


# -- scores ------------------------------------------------------------------------------------------------------------


def answered(
    records: Iterable[Record], answer: Callable[[Record], Iterator[Scored]]
) -> tuple[list[Scored], Counter[str]]:
    """The figures of all rows, and why others have none."""
    found: list[Scored] = []
    refused: Counter[str] = Counter()
    for record in records:
        try:
            found += answer(record)
        except MemwallError as error:
            refused[str(error)] += 1
    return found, refused


def table(title: str, rows: Sequence[tuple[str, Sequence[Scored]]]) -> str:
    """A Markdown table of scores."""
    lines = [f"\n{title}\n", "| rows | n | median | mean | bias | Spearman | R1 median | R1 mean |",
             "|---|---:|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for name, own in rows:
        if own:
            sizes = [abs(row.error) for row in own]
            others = [abs(row.r1 / row.measured - 1) for row in own if row.r1]
            rank = spearman([row.modeled for row in own], [row.measured for row in own])
            lines.append(
                f"| {name} | {len(own):,} | {100 * median(sizes):.1f} | {100 * fmean(sizes):.1f} |"
                f" {100 * median(row.error for row in own):+.1f} | {'-' if rank is None else f'{rank:.3f}'} |"
                f" {100 * median(others):.1f} | {100 * fmean(others):.1f} |"
            )
    return "\n".join(lines)


def groups(found: Sequence[Scored], *columns: str) -> Iterator[tuple[str, list[Scored]]]:
    """All rows, then those of each value of some columns."""
    yield "all", list(found)
    for column in columns:
        for value in sorted({row.record[column] for row in found}):
            yield value, [row for row in found if row.record[column] == value]


def records_of(name: str) -> list[Record]:
    """The rows of a table."""
    path = truth(f"{name}.csv")
    if path is None:
        sys.exit(f"{name}.csv is not at hand")
    with path.open(encoding="utf-8") as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", type=int, help="of each table evenly spaced rows, about so many; all take some 20 minutes"
    )
    arguments = parser.parse_args()
    parts = []
    for name, answer, columns in (
        ("serving_e2e", deployment, ("mode", "system", "backend", "model_path")),
        ("trtllm_throughput", throughput, ("gpu", "model")),
    ):
        records = records_of(name)
        asked = records if arguments.rows is None else records[:: max(len(records) // arguments.rows, 1)]
        found, refused = answered(asked, answer)
        for figure in dict.fromkeys(row.figure for row in found):
            own = [row for row in found if row.figure == figure]
            parts.append(table(f"{figure} of {name}, percent", list(groups(own, *columns))))
            if figure == "TTFT":
                few = [row for row in own if number(row.record, "concurrency", 99) <= 8]
                parts.append(table("TTFT of at most 8 clients, percent", [("all", few)]))
        parts += [f"\n{count} rows have no answer: {why}" for why, count in refused.most_common()]
    text = "\n".join(parts)
    head = "\n".join(__doc__.strip().splitlines()[4:])
    rows = f" --rows {arguments.rows}" if arguments.rows else ""
    command = f"`python reports/serving_report.py{rows}` writes this page."
    (HERE / "serving.md").write_text(
        f"# Serving: modeled and measured\n\n{command}\n\n{head}\n\n{READING}{text}\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
