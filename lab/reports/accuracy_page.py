"""Put the committed scores on the page that says how far to trust the model.

    python lab/reports/accuracy_page.py

The tables of docs/accuracy.md between two marks are made from reports/scores.csv, which ``lab/reports/scores.py --write``
keeps. A section is a kind of things, a row of it the rows of one kind of one table, on all GPUs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

ROOT = Path(__file__).parents[2]
SCORES, PAGE = ROOT / "reports" / "scores.csv", ROOT / "docs" / "accuracy.md"
BEGIN, END = "<!-- scores: python lab/reports/accuracy_page.py -->", "<!-- end of scores -->"
#: fewest rows of a set whose intervals are judged
LEAST_ROWS = 50
_HEAD = ("what", "measured by", "GPUs", "rows", "median error %", "bias %", "inside %", "beaten")


class Measured(NamedTuple):
    """Who measured a table, the section of its rows, and what its kinds are called."""

    by: str
    section: str
    what: str


KERNELS, SERVED, WHOLE, MANY = "Kernels of PyTorch", "Kernels of servers", "Modules and networks", "Many GPUs"
DEPLOYED = "Deployments of language models"
#: table -> what it is
TABLES: Mapping[str, Measured] = {
    "neusight_ops_train_subsample": Measured("NeuSight", KERNELS, "{kind}, fp32"),
    "neusight_ops_amd": Measured("NeuSight, AMD", KERNELS, "{kind}, fp32"),
    "neusight_conv_subsample": Measured("NeuSight", KERNELS, "convolutions, fp32"),
    "deepbench_gemm": Measured("DeepBench", KERNELS, "matmuls"),
    "deepbench_conv": Measured("DeepBench", KERNELS, "{kind}"),
    "gemm_peak_measured": Measured("papers", KERNELS, "the largest matmuls"),
    "bandwidth_measured": Measured("papers", KERNELS, "the largest copies"),
    "cudnn_sdpa": Measured("cuDNN's frontend", KERNELS, "{kind} of cuDNN"),
    "cudnn_norms": Measured("cuDNN's frontend", KERNELS, "{kind} of PyTorch"),
    "aic_encoder_attention": Measured("NVIDIA", KERNELS, "encoders' {kind}"),
    "liger_pairs": Measured("Liger-Kernel", KERNELS, "Triton or eager: {kind}"),
    "liger_fused_vs_unfused": Measured("Liger-Kernel", KERNELS, "Triton or eager: {kind}"),
    "aiconfigurator_gemm": Measured("NVIDIA", SERVED, "matmuls, bf16 and fp8"),
    "aiconfigurator_quant_gemm": Measured("NVIDIA", SERVED, "quantised matmuls"),
    "aiconfigurator_attention": Measured("NVIDIA", SERVED, "attention, {kind}"),
    "aiconfigurator_mla": Measured("NVIDIA", SERVED, "{kind} attention"),
    "aiconfigurator_moe": Measured("NVIDIA", SERVED, "mixtures' {kind}"),
    "aic_gated_delta": Measured("NVIDIA", SERVED, "linear attention: {kind}"),
    "aic_mamba2": Measured("NVIDIA", SERVED, "Mamba-2: {kind}"),
    "aic_sparse_kernels": Measured("NVIDIA", SERVED, "sparse attention: {kind}"),
    "aic_dsa_modules": Measured("NVIDIA", SERVED, "a layer of DeepSeek's sparse attention: {kind}"),
    "aic_quantize": Measured("NVIDIA", SERVED, "quantising: {kind}"),
    "deepgemm_h800": Measured("DeepGEMM", SERVED, "{kind}"),
    "vidur_mlp_ops": Measured("Vidur", SERVED, "{kind}, fp16"),
    "ivanov_encoder_e2e": Measured("Ivanov et al.", WHOLE, "{kind} of BERT-large"),
    "kernelbench_v0_times": Measured("KernelBench", WHOLE, "modules, {kind}"),
    "fastertransformer": Measured("FasterTransformer", WHOLE, "{kind}"),
    "dle_pytorch": Measured("NVIDIA's examples", WHOLE, "{kind}"),
    "timm_benchmarks": Measured("timm", WHOLE, "networks, {kind}"),
    "torchvision_classic": Measured("torchvision", WHOLE, "networks, {kind}"),
    "diffusers_sd": Measured("diffusers", WHOLE, "Stable Diffusion, {kind}"),
    "nccl_collectives": Measured("NVIDIA", MANY, "{kind}"),
    "vidur_allreduce": Measured("Vidur", MANY, "{kind}"),
    "vtrain_training": Measured("vTrain", MANY, "training, {kind}"),
    "megatron_tables": Measured("Megatron-LM", MANY, "training, {kind}"),
    "calculon_validation": Measured("Korthikanti et al.", MANY, "training, {kind}"),
    "megatron_training": Measured("NVIDIA's recipes", MANY, "training, {kind}"),
    "llmfoundry_training": Measured("llm-foundry", MANY, "training, {kind}"),
    "serving_e2e": Measured("NVIDIA", DEPLOYED, "{kind}"),
    "trtllm_throughput": Measured("NVIDIA", DEPLOYED, "{kind}"),
}


def main() -> int:
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_scores(text, pd.read_csv(SCORES, keep_default_na=False)), encoding="utf-8")
    return 0


def with_scores(text: str, scores: pd.DataFrame) -> str:
    """The page with the tables of these scores between the marks. Raises ValueError: the page has no marks."""
    marks = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if not marks.search(text):
        raise ValueError(f"{PAGE.name} has no {BEGIN}")
    made = "\n\n".join([BEGIN, *sections(scores), intervals(scores), END])
    return marks.sub(lambda _: made, text)


def sections(scores: pd.DataFrame) -> Iterator[str]:
    """A heading and a table for each section."""
    cells = scores[scores["gpu"] == "all"]
    if unknown := sorted(set(cells["table"]) - set(TABLES)):
        raise ValueError(f"no title for {', '.join(unknown)}")
    boards = scores[scores["gpu"] != "all"].groupby(["table", "kind"])["gpu"].nunique()
    for section in dict.fromkeys(each.section for each in TABLES.values()):
        rows = dict.fromkeys(  # a table may have rows of another
            _row(TABLES[cell.table], cell, boards[cell.table, cell.kind])
            for table in TABLES
            for cell in cells[cells["table"] == table].itertuples()
            if TABLES[table].section == section
        )
        if rows:
            yield "\n".join(
                [f"### {section}", "", _line(_HEAD), _line(["---", "---", *["---:"] * 6]), *map(_line, rows)]
            )


def intervals(scores: pd.DataFrame) -> str:
    """A heading, a sentence and a table: how many sets of rows have intervals that hold what they should."""
    of_one = scores[(scores["gpu"] != "all") & (scores["rows"] >= LEAST_ROWS) & (scores["inside"] != "")]
    inside, places = of_one["inside"].astype(float), [TABLES[table].section for table in of_one["table"]]
    rows = [
        [section, *(str(int(own.between(low, high).sum())) for low, high in ((0, 1), (0.7, 0.9), (0.65, 0.95)))]
        for section, own in inside.groupby(places, sort=False)
    ]
    return "\n".join(
        [
            "### Intervals of sets", "",
            f"A set has {LEAST_ROWS} rows or more of one kind, dtype and GPU. Its interval should hold 70 to 90 % of them."
            " Chance alone puts about one set of seven outside, because no more rows tell an interval than test it.", "",
            _line(("sets", "all", "inside 70 to 90 %", "inside 65 to 95 %")), _line(["---", *["---:"] * 3]),
            *map(_line, rows),
        ]
    )  # fmt: skip


def _row(measured: Measured, cell: pd.Series, boards: int) -> tuple[str, ...]:
    inside = "" if cell.inside == "" else f"{100 * float(cell.inside):.0f}"
    return (
        measured.what.format(kind=cell.kind), measured.by, str(boards), f"{cell.rows:,}",
        f"{100 * cell.median_error:.1f}", f"{100 * cell.bias:+.0f}", inside, str(cell.beaten or ""),
    )  # fmt: skip


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
