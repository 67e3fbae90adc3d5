"""Write reports/serving.md and serving.json: modeled latency of real deployments next to what was measured, where the tables are at hand.

    python lab/reports/serving_report.py [--rows N N] [--kept FOLDER]

Deployments are the rows of ``serving_e2e.csv`` and ``trtllm_throughput.csv``, as ``memwall accuracy`` reads them. Kernels and
messages have the constants of their own tables, schedulers are as their engines have them, requests are simulated one by
one. The seconds of each engine's CPU, and how much experts differ in popularity, are fitted to half of the deployments that
are one engine (``hardware_specs/engines``, ``memwall/ops/routing.py``); the other half, by a hash of model, GPU and engine, no
constant has seen. R1 is a roofline of the same bytes and FLOPs: 85 % of the bandwidth, 75 % of the peak and 3 us for each
kernel, a batch that is always full, and a prompt that waits for nobody. The interval is the 80 % one of the engine.

``serving.json`` has the same as one record: ``scores`` (dataset, figure, ``by`` what rows are told apart and the ``group``; errors
and the share in the interval in percent, null where a figure has no interval), ``published`` errors of others, and rows
``left_out`` with why.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

from memwall.bench.accuracy import read_measured  # noqa: E402
from memwall.bench.accuracy.reading import thinned  # noqa: E402
from memwall.serving.steps import EngineStep  # noqa: E402
from memwall_lab.deployments import FEW, Deployment, Engines  # noqa: E402
from memwall_lab.served_rows import Score, ServedRow, by, rank, read_rows, rows_of, write_rows  # noqa: E402
from tests.unit.places import truth  # noqa: E402

HERE = ROOT / "reports"
SCHEMA = "memwall.serving-scores/1"
#: how to read the page
READING = """How rows are read, which state the GPUs of an engine in several ways and not always how many engines there are, is said in
`lab/memwall_lab/tables/deployments.py`. Rows of DeepSeek have the engines, experts and draft tokens that InferenceX lists
for their load and GPUs (`lab/memwall_lab/tables/inferencex.csv`). The rules were chosen in sight of
all rows, from what they and the lists state and not from their times, but for three: a row that has both times of InferenceX's own
row is that row; a row of DeepSeek that no list has, and that makes tokens 1.3 times as fast as InferenceX's of the same
deployment, is taken to speculate, and left out; and where the lists have several deployments for one load and the GPUs that a row
states, rows are theirs in the order of their times, the ones that speculate first (tables by what tells the engines have them apart:
their errors are not a prediction's alone). Clients that no list has are of the deployment whose clients are the nearest, if all its GPUs
are stated. A guess of
DeepSeek-V3's own module is taken to be right in 70.7 % of cases, with which 7 of them make the 3.20 tokens a step that others
measured on three benchmarks (nebius/MTP-DeepSeek-V3-0324); what InferenceX's prompts are like no row says. Whether
kernels run next to each other, which caches are in fp8 and what an all-reduce does besides was chosen in sight of some rows of
both halves, as was how much lengths vary in NVIDIA's sweeps. No row says which of vLLM's caches are in fp8: caches of
checkpoints that say so are, and caches of deployments of which more sequences are under way, by Little's law of their own
times, than memory holds in bfloat16.

A row has the engines of its list, and the largest batch, draft tokens and copies of experts of the recipe that the list names, where
one was found; TensorRT-LLM's have the largest batch in their names. The rest of a step is filled as its engine does by itself. The
largest batch tells why first tokens come after seconds that no GPU needs: 395 clients of five engines that take 64 each wait 3.2 s, and
3.3 are modeled. Experts that a load balancer places (EPLB) make tokens of five deployments on GB200 faster by 11 to 24 %.

Of rows with prompts and decodes apart five kinds stay off:

- B300, TensorRT-LLM, fp8 in blocks, GPUs that share the columns of experts: tokens are too slow. A GPU then has 256 columns
  of each expert, for which the model of the kernel pads tiles.
- GB200, SGLang, fp8, 4 GPUs that attend to sequences of their own: tokens are too slow. SGLang's rows of DeepGEMM in the table
  of products take 13 us at the least, and TensorRT-LLM's of the same kernel 6: the former may not be of CUDA graphs.
- H200, TensorRT-LLM, fp8 in blocks: a step lacks 3 to 7 ms, with a lone sequence too, and so does one engine's, so that tokens of few
  clients are too fast by a quarter. No table says what takes them; steps on GB200 lack nothing.
- H200, SGLang, 2 draft tokens: tokens are too fast by more than a third. Drafts make them 1.1 to 1.3 times as fast as without where few
  clients ask, so that fewer guesses are right than is assumed.
- TTFT of SGLang is too short by 44 % in the median, but for 4 clients or fewer. It grows as if the first prompts of all clients, which
  come at once, were computed one by one, up to twice as slowly as a lone one; no recipe says so.

Recipes of TensorRT-LLM run experts of prompts in nvfp4 by its backend TRTLLM, and most of its rows in the table of kernels are of
another, CUTLASS: the constants fitted to both make 1.4 times the backend's time in the median of rows with 128 or more tokens for each expert
(`moe_torch_flow_min_latency`, 23 rows of B200 and GB200), and of CUTLASS's 1.0 times. SGLang runs the backend's kernels, whose constants
engines of prompts take. With TensorRT-LLM's, the first token of 91 rows came 1.3 to 5 times as late as was measured; half of them are
now within a quarter.

Two models are off:

- nvidia/Llama-3.1-8B-Instruct-FP8 (vLLM): at the measured rate its prompts alone would keep an H200 busier than its products can be,
  by the table below. Three quarters of each prompt in the cache would explain both times: with them the median error of TPOT is 8.6 %,
  and of TTFT 28 % (11 rows). The rows do not say so, and nothing is made of it.
- Qwen/Qwen3.5-397B-A17B (SGLang): tokens are too fast at any load, by some 2 ms. Rows of DeepSeek-R1 of the same engine on the same GPU
  are right, so that what lacks is of this model: small kernels between the products of a delta rule, or more time of its experts.

| 64 clients of Llama-3.1-8B-FP8, prompts of 2,000 tokens, answers of 100, one H200 | |
|---|---:|
| measured time to the first token, and of each later one | 122 ms, 9.74 ms |
| an answer takes so long, with 99 later tokens | 1.09 s |
| requests per second | 59 |
| FLOP of a prompt, 14.0 GFLOP a token for weights and 0.5 for attention | 29 TFLOP |
| prompts alone | 1,700 TFLOP/s |
| the fastest fp8 product of an H200 in any table | 1,523 TFLOP/s |

meta-llama/Llama-3.1-8B-Instruct (SGLang) takes 23 to 40 ms a token on one GPU and on eight: with 512 clients on four GPUs, what takes a
third to half of the time is not on the GPUs.

NVIDIA's sweeps (trtllm_throughput) capture CUDA graphs of up to 8,192 decodes, and of the largest batch, as their page says.
Mixtures with experts on several GPUs stay too fast (`python lab/benchmarks/throughput_steps.py TABLE 'Llama 4 Scout'` shows the
steps): groups that attend to sequences of their own wait for the fullest and for the experts with the most tokens, which is
modeled, and for each other's schedulers, which is not.
"""


#: what others publish of their own predictions
PUBLISHED = {
    "source": "AISimulate (NVIDIA), its published errors on InferenceX, second-hand",
    "points": 728,
    "tpot_mean": 28.4,
    "ttft_mean": 76.7,
}
#: what rows are told apart by -> its value of a row
GROUPS: Mapping[str, Callable[[ServedRow], str]] = {
    "model": lambda row: row.model, "GPU": lambda row: row.gpu, "engine": lambda row: row.engine.split("@")[0],
    "load": lambda row: row.load,
}  # fmt: skip
DATASETS = ("serving_e2e", "trtllm_throughput")
#: tables, by what they hold, of groups with their scores
Tables = dict[tuple[str, str], list[tuple[str, Score]]]


class Scored(NamedTuple):
    """All rows, rows with their GPU left out, why others have none, and a table of what prompts need."""

    rows: list[ServedRow]
    left: list[ServedRow]
    refused: Counter[str]
    demands: str


def scored(name: str, asked: int, left_out: int) -> Scored:
    """A data set, simulated."""
    path = truth(f"{name}.csv")
    if path is None:
        sys.exit(f"{name}.csv is not at hand")
    measured, engines = read_measured(path), Engines()
    refused: Counter[str] = Counter(measured.skipped)
    samples = measured.of(Deployment)
    rows = rows_of(thinned(samples, asked), engines, refused)
    left = rows_of([sample.left_out() for sample in thinned(samples, left_out)], engines, Counter())
    return Scored(rows, left, refused, "" if name.startswith("trtllm") else demands(samples, engines))


def kept(folder: Path, name: str, asked: int, left_out: int) -> Scored:
    """The same, of the files of an earlier run if there are some."""
    files = {part: folder / f"{name}.{part}" for part in ("csv", "left.csv", "json")}
    if not files["json"].exists():
        found = scored(name, asked, left_out)
        folder.mkdir(parents=True, exist_ok=True)
        write_rows(files["csv"], found.rows)
        write_rows(files["left.csv"], found.left)
        files["json"].write_text(json.dumps([found.refused, found.demands]), encoding="utf-8")
    refused, needed = json.loads(files["json"].read_text(encoding="utf-8"))
    return Scored(read_rows(files["csv"]), read_rows(files["left.csv"]), Counter(refused), needed)


def halves(rows: Sequence[ServedRow], left: Sequence[ServedRow]) -> list[tuple[str, Sequence[ServedRow]]]:
    """All rows, rows of the half that no constant has seen, and all with their GPU left out."""
    return [("all", rows), ("other half", [row for row in rows if not row.in_fit_half]), ("GPU left out", left)]


def tables_of(found: Scored) -> Tables:
    """The scores of each figure: of all rows, and of groups."""
    tables: Tables = {}
    for title, own in by(found.rows, lambda row: f"{row.figure}, {row.kind}"):
        left = [row for row in found.left if f"{row.figure}, {row.kind}" == title]
        groups: dict[str, Iterable[tuple[str, Sequence[ServedRow]]]] = {"half": halves(own, left)}
        groups |= {name: by(own, key) for name, key in GROUPS.items()}
        if title.startswith("TTFT"):
            few = [row for row in own if row.clients <= FEW]
            groups[f"half, {FEW} clients or fewer"] = halves(few, [])
        groups["speculation"] = by(own, lambda row: f"{row.draft_tokens} draft tokens")
        groups["what tells the engines"] = by(own, lambda row: row.told_by)
        for name, parts in groups.items():
            scores = [(part, Score.of(rows)) for part, rows in parts if rows]
            if len(scores) > 1 or name == "half":
                tables[title, name] = scores
    return tables


def table(title: str, scores: Iterable[tuple[str, Score]]) -> str:
    """A Markdown table of scores."""
    lines = [f"\n{title}\n", "| rows | n | median | mean | bias | Spearman | in the interval | R1 median | R1 mean |",
             "|---|---:|---:|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for name, each in scores:
        order, covered = (
            "-" if value is None else f"{value:{form}}"
            for value, form in ((each.spearman, ".3f"), (each.covered, ".0f"))
        )
        lines.append(
            f"| {name} | {each.rows:,} | {each.median:.1f} | {each.mean:.1f} | {each.bias:+.1f} | {order} | {covered} |"
            f" {each.r1_median:.1f} | {each.r1_mean:.1f} |"
        )
    return "\n".join(lines)


def page(name: str, found: Scored) -> Iterator[str]:
    """The tables of a data set, and what has no answer."""
    for (title, group), scores in tables_of(found).items():
        yield table(f"{title}, by {group}, percent", scores)
    for title, own in by(found.rows, lambda row: f"{row.figure}, {row.kind}"):
        if title.startswith("TPOT"):
            yield orders(title, own)
    yield ranking(found.rows) if name.startswith("trtllm") else found.demands
    yield from (f"\n{count:,} rows have no answer: {why}" for why, count in found.refused.most_common())


def orders(title: str, rows: Sequence[ServedRow]) -> str:
    """Models whose rows are in the right order by less than 0.95, and of which part of them alone, or of all others,
    that is so."""
    lines = [f"\n{title}, what breaks the order of rows where Spearman is below 0.95\n",
             "| model | n | Spearman | rows of | n | these alone | all others |", "|---|---:|---:|---|---:|---:|---:|"]  # fmt: skip
    shown = lambda value: "-" if value is None else f"{value:.3f}"  # noqa: E731
    every = list(by(rows, lambda row: row.model))
    low = [(model, own) for model, own in every if (rank(own) or 0.0) < 0.95 and len(own) > 2]
    for model, own in low:
        for part, some in by(own, lambda row: f"{row.gpu} {GROUPS['engine'](row)}"):
            others = [row for row in own if row not in some]
            lines.append(
                f"| {model} | {len(own):,} | {shown(rank(own))} | {part} | {len(some):,} | {shown(rank(some))} |"
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
            steps, load = engines.of(sample, sample.decodes), sample.workload
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


def ranking(rows: Sequence[ServedRow]) -> str:
    """How often the GPU that makes more tokens per second and GPU is the right one: of each model and lengths the best
    configuration of each GPU."""
    best: dict[tuple[str, str], dict[str, list[ServedRow]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        best[row.model, row.lengths][row.gpu].append(row)
    pairs, right, firsts, groups = 0, 0, 0, 0
    for gpus in best.values():
        modeled = {gpu: min(row.modeled_s for row in own) for gpu, own in gpus.items()}
        measured = {gpu: min(row.measured_s for row in own) for gpu, own in gpus.items()}
        for one, other in combinations(gpus, 2):
            pairs += 1
            right += (modeled[one] < modeled[other]) == (measured[one] < measured[other])
        if len(gpus) > 1:
            groups += 1
            firsts += min(modeled, key=modeled.__getitem__) == min(measured, key=measured.__getitem__)
    return (f"\nOf {pairs} pairs of GPUs with the same model and lengths the better one is right in {right / pairs:.1%};"
            f" the best of all in {firsts} of {groups} cases.")  # fmt: skip


def against(tables: Tables) -> str:
    """The errors of one engine's deployments next to the errors that others publish of theirs."""
    own = {figure: dict(tables[f"{figure}, one engine", "half"])["all"] for figure in ("TPOT", "TTFT")}
    rows = [
        ("memwall, one engine of serving_e2e", own["TPOT"].rows, own["TPOT"].mean, own["TTFT"].mean),
        ("R1, the same rows", own["TPOT"].rows, own["TPOT"].r1_mean, own["TTFT"].r1_mean),
        (PUBLISHED["source"], PUBLISHED["points"], PUBLISHED["tpot_mean"], PUBLISHED["ttft_mean"]),
    ]
    lines = ["\nMean errors, percent\n", "| of | deployments | TPOT | TTFT |", "|---|---:|---:|---:|"]
    return "\n".join(
        [*lines, *(f"| {name} | {count:,} | {tpot:.1f} | {ttft:.1f} |" for name, count, tpot, ttft in rows)]
    )


def record(command: str, every: Mapping[str, Scored]) -> dict[str, Any]:
    """The scores of all data sets, as the module says."""
    scores = [
        {"dataset": name, "figure": title, "by": group, "group": part, **asdict(score)}
        for name, found in every.items()
        for (title, group), parts in tables_of(found).items()
        for part, score in parts
    ]
    left = [
        {"dataset": name, "rows": n, "why": why} for name, found in every.items() for why, n in found.refused.items()
    ]
    return {"schema": SCHEMA, "command": command, "published": [PUBLISHED], "scores": scores, "left_out": left}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs=2, default=(0, 0), help="evenly spaced rows of each table; 0: all")
    parser.add_argument("--left-out", type=int, default=200, help="the same of rows with their GPU left out")
    parser.add_argument(
        "--kept", type=Path, help="folder of rows that an earlier run simulated, or this one shall keep"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        every = {
            name: kept(arguments.kept or Path(folder), name, count, arguments.left_out)
            for name, count in zip(DATASETS, arguments.rows, strict=True)
        }
    rows = " ".join(map(str, arguments.rows))
    command = f"python lab/reports/serving_report.py --rows {rows} --left-out {arguments.left_out}"
    parts = [
        against(tables_of(every[DATASETS[0]])),
        *("\n".join([f"\n## {name}", *page(name, found)]) for name, found in every.items()),
    ]
    head = "\n".join((__doc__ or "").strip().splitlines()[4:])
    text = "\n".join(parts)
    (HERE / "serving.md").write_text(
        f"# Serving: modeled and measured\n\n`{command}` writes this page, and `serving.json`.\n\n{head}\n\n{READING}{text}\n",
        encoding="utf-8",
    )
    (HERE / "serving.json").write_text(json.dumps(record(command, every), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
