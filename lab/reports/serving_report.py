"""Write reports/serving.md: modeled latency of real deployments next to what was measured, where the tables are at hand.

    python lab/reports/serving_report.py [--rows N]

Deployments are those of ``serving_e2e.csv`` and ``trtllm_throughput.csv``, as ``memwall accuracy`` reads them. Kernels and
messages have the constants of their own tables, the scheduler is vLLM's, requests are simulated one by one. Three seconds
of each engine's CPU are fitted to 70 rows of half of the deployments that are one engine, one of vLLM's to all 159 with
64 clients or fewer (``hardware_specs/engines``); the other half, by a hash of model, GPU and engine, no constant has seen. R1 is a roofline of the same bytes and FLOPs: 85 % of
the bandwidth, 75 % of the peak and 3 us for each kernel, a batch that is always full, and a prompt that waits for nobody.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

from memwall.bench.accuracy import TimedRow, read_measured  # noqa: E402
from memwall.bench.accuracy.reading import thinned  # noqa: E402
from memwall.bench.accuracy.scores import spearman  # noqa: E402
from memwall.serving.steps import EngineStep  # noqa: E402
from memwall_lab.deployments import Deployment, Engines, deployment_rows  # noqa: E402
from tests.unit.places import truth  # noqa: E402

HERE = ROOT / "reports"
#: how to read the page
READING = """How rows are read, which state the GPUs of an engine in several ways and not always how many engines there are, is said in
`lab/memwall_lab/tables/deployments.py`. Rows of DeepSeek have the engines, experts and draft tokens that InferenceX lists
for their load and GPUs (`lab/memwall_lab/tables/inferencex.csv`). The rules were chosen in sight of
all rows, from what they and the lists state and not from their times, but for three: a row that has both times of InferenceX's own
row is that row; a row of DeepSeek that no list has, and that makes tokens 1.3 times as fast as InferenceX's of the same
deployment, is taken to speculate, and left out; and where the lists have several deployments for one load and the GPUs that a row
states, rows are theirs in the order of their times, those that speculate first (tables by what tells the engines have them apart:
their errors are not those of a prediction alone). A guess of
DeepSeek-V3's own module is taken to be right in 70.7 % of cases, with which 7 of them make the 3.20 tokens a step that others
measured on three benchmarks (nebius/MTP-DeepSeek-V3-0324); what InferenceX's prompts are like no row says. Whether
kernels run next to each other, which caches are in fp8 and what an all-reduce does besides was chosen in sight of some rows of
both halves, as was how much lengths vary in NVIDIA's sweeps.

The engines' CPUs were fitted before rows of one engine of DeepSeek were read from the lists.

Of rows with prompts and decodes apart three kinds stay off:

- B300, TensorRT-LLM, fp8 in blocks, GPUs that share the columns of experts: tokens are 10 to 53 % too slow in the median, by
  layout and drafts: a GPU then has 256 columns of each expert, for which the model of the kernel pads tiles. Where GPUs
  have whole experts they are 18 to 41 % too fast (8 rows).
- GB200, SGLang, fp8, 4 GPUs that attend to sequences of their own: tokens are 36 to 52 % too slow. Of 15.4 ms with 4 clients
  an engine 8.1 are products of one row. SGLang's rows of DeepGEMM in the table of products take 13 us at the least, and
  TensorRT-LLM's of the same kernel 6: the former may not be of CUDA graphs.
- TTFT of TensorRT-LLM with 3 to 60 clients, which get a first token after 2 to 38 seconds: it is too short by up to 99 %. A
  prompt takes 0.2 to 1.3 s of the GPUs and the CPU, and nothing in a row says what the rest is.

Three models are off for reasons that their rows show:

- nvidia/Llama-3.1-8B-Instruct-FP8 (vLLM): at the measured rate its prompts alone would keep an H200 busier than any other
  model's (the table of FLOP/s below; 1,979 are the datasheet's, which no table's products reach). Where decodes take most
  of the time, 80 clients with 8,000 and 2,000 tokens, TPOT is right to 2 %. Prompts that are in the cache already would
  explain both; the rows do not say.
- meta-llama/Llama-3.1-8B-Instruct (SGLang): 27 to 39 ms a token on one GPU and 23 to 34 ms on eight, at any load: what
  takes the time is not on the GPUs.
- Qwen/Qwen3.5-397B-A17B (SGLang): no table has kernels of linear attention, which are taken as memory traffic here.

NVIDIA's sweeps (trtllm_throughput) capture CUDA graphs of up to 8,192 decodes, and of the largest batch, as their page says; until
that was read, steps of more than 512 decodes were bound by the engine's CPU, and those of B200 off by up to 118 %. Mixtures with experts
on several GPUs stay too fast, and neither batch nor lengths say why (`python lab/benchmarks/throughput_steps.py TABLE 'Llama 4 Scout'`): a
step of Llama 4 Scout lacks 12 to 21 ms on four H100, with 61 to 165 sequences a GPU, prompts of 128 or of 5,000 tokens, and at most 8 ms
on one B200; on RTX PRO 6000 it is 27 to 36 % too fast on four GPUs, and 37 to 52 % on eight. What grows with the GPUs is between
them: groups that attend to sequences of their own wait for the fullest, which is modeled, and for the experts with the most
tokens and each other's schedulers, which are not; the rows state neither.
"""


class Scored(NamedTuple):
    """A row with its deployment."""

    sample: Deployment
    row: TimedRow


def scored(samples: Iterable[Deployment], engines: Engines, refused: Counter[str]) -> list[Scored]:
    """The figures of all deployments; why others have none is counted."""
    return [Scored(sample, row) for sample in samples for row in deployment_rows([sample], engines, refused)]


def table(title: str, groups: Iterable[tuple[str, Sequence[Scored]]]) -> str:
    """A Markdown table of scores."""
    lines = [f"\n{title}\n", "| rows | n | median | mean | bias | Spearman | R1 median | R1 mean |",
             "|---|---:|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for name, own in groups:
        if own:
            errors = [each.row.error for each in own]
            others = [abs(each.row.r1_s / each.row.measured_s - 1) for each in own if each.row.r1_s]
            order = rank(own)
            lines.append(
                f"| {name} | {len(own):,} | {100 * median(map(abs, errors)):.1f} | {100 * fmean(map(abs, errors)):.1f} |"
                f" {100 * median(errors):+.1f} | {'-' if order is None else f'{order:.3f}'} |"
                f" {100 * median(others):.1f} | {100 * fmean(others):.1f} |"
            )
    return "\n".join(lines)


def by(found: Sequence[Scored], key: Callable[[Scored], str]) -> Iterator[tuple[str, list[Scored]]]:
    """The rows of each value, in order."""
    for value in sorted({key(each) for each in found}):
        yield value, [each for each in found if key(each) == value]


def halves(found: Sequence[Scored], left: Sequence[Scored]) -> Iterator[tuple[str, list[Scored]]]:
    """All rows, those of the half that no constant has seen, and all with their GPU left out."""
    yield "all", list(found)
    yield "other half", [each for each in found if not each.sample.in_fit_half]
    yield "GPU left out", list(left)


def pages(name: str, asked: int, left_out: int) -> Iterator[str]:
    """The tables of a data set, and what has no answer."""
    path = truth(f"{name}.csv")
    if path is None:
        sys.exit(f"{name}.csv is not at hand")
    measured, engines = read_measured(path), Engines()
    refused: Counter[str] = Counter(measured.skipped)
    found = scored(thinned(measured.of(Deployment), asked), engines, refused)
    others = [sample.left_out() for sample in thinned(measured.of(Deployment), left_out)]
    without = scored(others, engines, Counter())
    for kind, own in by(found, lambda each: each.row.op_class.removesuffix(", 8 clients or fewer")):
        left = [each for each in without if each.row.op_class.startswith(kind)]
        yield table(f"{kind}, percent", halves(own, left))
        few = [each for each in own if each.row.op_class != kind]
        if few:
            yield table(f"{kind}, 8 clients or fewer, percent", list(halves(few, []))[:2])
        groups = [lambda each: each.row.gpu, lambda each: each.row.shape.split()[0], lambda each: each.row.dtype]
        yield table(f"{kind}, by GPU, engine and model, percent", [group for key in groups for group in by(own, key)])
        if any(each.sample.draft_tokens for each in own):
            drafts = by(own, lambda each: f"{each.sample.draft_tokens} draft tokens")
            yield table(f"{kind}, by speculation, percent", drafts)
        if len({each.sample.told_by for each in own}) > 1:
            yield table(f"{kind}, by what tells the engines, percent", by(own, lambda each: each.sample.told_by))
        if kind.startswith("TPOT"):
            yield orders(kind, own)
    yield ranking(found) if name.startswith("trtllm") else demands(measured.of(Deployment), engines)
    yield from (f"\n{count:,} rows have no answer: {why}" for why, count in refused.most_common())


def rank(found: Sequence[Scored]) -> float | None:
    """Spearman's correlation of modeled and measured times."""
    return spearman([each.row.modeled_s for each in found], [each.row.measured_s for each in found])


def orders(kind: str, found: Sequence[Scored]) -> str:
    """Models whose rows are in the right order by less than 0.95, and of which part of them alone, or of all others,
    that is so."""
    lines = [f"\n{kind}, what breaks the order of rows where Spearman is below 0.95\n",
             "| model | n | Spearman | rows of | n | these alone | all others |", "|---|---:|---:|---|---:|---:|---:|"]  # fmt: skip
    shown = lambda value: "-" if value is None else f"{value:.3f}"  # noqa: E731
    every = list(by(found, lambda each: each.row.dtype))
    low = [(model, own) for model, own in every if (rank(own) or 0.0) < 0.95 and len(own) > 2]
    for model, own in low:
        for part, rows in by(own, lambda each: f"{each.row.gpu} {each.row.shape.split()[0]}"):
            others = [each for each in own if each not in rows]
            lines.append(
                f"| {model} | {len(own):,} | {shown(rank(own))} | {part} | {len(rows):,} | {shown(rank(rows))} |"
                f" {shown(rank(others)) if len(others) > 2 else '-'} |"
            )
    right = len(every) - len(low)
    lines.append(f"\n{right} of {len(every)} models are in the right order by 0.95 or more, or have two rows or fewer.")
    return "\n".join(lines)


def demands(samples: Sequence[Deployment], engines: Engines) -> str:
    """By model, the FLOP/s of a GPU that prompts of one engine need alone, at the rate that the clients' times give."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for sample in samples:
        if sample.prompts is None and sample.measured.keys() >= {"TPOT", "TTFT"}:
            steps, load = engines.steps(sample.config, sample.gpu, sample.decodes.layout, False), sample.workload
            flops = sum(n * kernel.cost(own, steps.layout).total_flops
                        for kernel, n, own in steps.each(EngineStep(0, 0, ((load.prompt.nominal, 0),))))  # fmt: skip
            round_s = sample.measured["TTFT"] + load.generate.nominal * sample.measured["TPOT"]
            found[sample.name, sample.label].append((load.concurrency or 1) / round_s * flops / 1e12)
    lines = ["\nPrompts alone, TFLOP/s of a GPU at the measured rate, one engine\n", "| model | GPU | n | median | most |",
             "|---|---|---:|---:|---:|"]  # fmt: skip
    rows = sorted(found.items(), key=lambda row: -max(row[1]))[:8]
    lines += [
        f"| {model} | {gpu} | {len(own):,} | {median(own):,.0f} | {max(own):,.0f} |" for (model, gpu), own in rows
    ]
    return "\n".join(lines)


def ranking(found: Sequence[Scored]) -> str:
    """How often the GPU that makes more tokens per second and GPU is the right one: of each model and lengths the best
    configuration of each GPU."""
    best: dict[tuple[str, str], dict[str, list[TimedRow]]] = defaultdict(lambda: defaultdict(list))
    for each in found:
        best[each.row.dtype, each.row.shape.split()[1]][each.row.gpu].append(each.row)
    pairs, right, firsts, groups = 0, 0, 0, 0
    for gpus in best.values():
        modeled = {gpu: min(row.modeled_s for row in rows) for gpu, rows in gpus.items()}
        measured = {gpu: min(row.measured_s for row in rows) for gpu, rows in gpus.items()}
        for one, other in combinations(gpus, 2):
            pairs += 1
            right += (modeled[one] < modeled[other]) == (measured[one] < measured[other])
        if len(gpus) > 1:
            groups += 1
            firsts += min(modeled, key=modeled.__getitem__) == min(measured, key=measured.__getitem__)
    return (f"\nOf {pairs} pairs of GPUs with the same model and lengths the better one is right in {right / pairs:.1%};"
            f" the best of all in {firsts} of {groups} cases.")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=0, help="of each table evenly spaced rows, about so many; 0: all")
    parser.add_argument("--left-out", type=int, default=200, help="the same of rows with their GPU left out")
    arguments = parser.parse_args()
    parts = [
        "\n".join([f"\n## {name}", *pages(name, arguments.rows, arguments.left_out)])
        for name in ("serving_e2e", "trtllm_throughput")
    ]
    head = "\n".join((__doc__ or "").strip().splitlines()[4:])
    rows = f" --rows {arguments.rows} --left-out {arguments.left_out}"
    command = f"`python lab/reports/serving_report.py{rows}` writes this page."
    text = "\n".join(parts)
    (HERE / "serving.md").write_text(
        f"# Serving: modeled and measured\n\n{command}\n\n{head}\n\n{READING}{text}\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
