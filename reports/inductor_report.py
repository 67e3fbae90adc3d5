"""reports/inductor.md: our planner beside Inductor's own decisions, on every reference workload.

    python reports/inductor_report.py

Needs Triton; compiles for a GPU that is not there, which takes some minutes (the U-Net most of them), so the report is
written by this command and not again by every run of the tests, which compare a few workloads live instead.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402

import memwall  # noqa: E402
from memwall.agreement import Agreement, Difference, agreement  # noqa: E402
from memwall.fusion import plan_graph  # noqa: E402
from memwall.fusion.compiled import inductor_plan  # noqa: E402

GPU = "a100-80gb-sxm"
WORKLOADS = (
    "bert_layer", "bert_large", "gpt2_xl", "llama3_8b", "mixtral_8x7b", "resnet50", "vit_l16", "unet", "dlrm",
)  # fmt: skip
MODES = ("inference", "training")
#: share of Inductor's bytes above which a difference is listed
LISTED = 0.01


class Row(NamedTuple):
    workload: str
    mode: str
    compile_s: float
    found: Agreement


def measure(workload: str, mode: str) -> Row:
    gpu = memwall.load_gpu(GPU)
    record = memwall.profile(ROOT / "profiles" / workload / "model.py", gpu=gpu, mode=mode)
    graph, costs = record.graph, record.costs[0]
    start = time.perf_counter()
    theirs = inductor_plan(graph, costs, gpu)
    compile_s = time.perf_counter() - start
    return Row(
        workload, mode, compile_s, agreement(graph, plan_graph("memwall", graph, costs, gpu), theirs, gpu)
    )


def explanation(row: Difference) -> str:
    """Why the two differ, told by what is in the groups."""
    ours, theirs = [set(group.split(" (again")[0].split("+")) for group in row.ours], row.theirs
    heads = [text.split(" (again")[0] for text in theirs]
    apart = [head for head in heads if "+" not in head]
    again_there = sum("(again" in text for text in theirs)
    again_here = sum("(again" in text for text in row.ours)
    if any({"mm", "add"} <= group for group in ours):
        return "the library's product adds the matrix or bias in its own epilogue; Inductor leaves the add to a kernel"
    if any(heads.count(h) and "mm+add" in h for h in heads):
        return "Inductor lets the product add the matrix; here it is fused with other ops"
    if "sum" in apart and len(theirs) > len(row.ours):
        return "the gradient of a bias: partial sums in the kernel that makes its input; Inductor reads that again"
    if any("norm_backward" in head for head in heads) and len(theirs) > len(row.ours):
        return "a norm's gradients for input and weight: one kernel with partial sums; Inductor makes two or three"
    if len(theirs) > len(row.ours):
        return "Inductor makes more kernels of it: its loops differ, or it found no shared data"
    if len(theirs) < len(row.ours):
        return "Inductor makes fewer kernels of it"
    if again_there and not again_here:
        return "Inductor computes a value again that we store"
    if again_here and not again_there:
        return "we compute a value again that Inductor stores"
    return "the same kernels, with other values stored: a neighbour computes one again"


def report(rows: list[Row]) -> str:
    table = "\n".join(
        f"| {r.workload} | {r.mode} | {r.found.kernels[0]:,} | {r.found.kernels[1]:,} | {r.found.kernels[0] / r.found.kernels[1]:.2f}"
        f" | {r.found.dram_bytes[0] / 1e9:.3f} | {r.found.dram_bytes[1] / 1e9:.3f} | {r.found.dram_bytes[0] / r.found.dram_bytes[1]:.2f}"
        f" | {100 * r.found.all_share:.1f} | {100 * r.found.share:.1f} | {r.found.only_first} | {r.found.only_second} | {r.compile_s:.1f} |"
        for r in rows
    )
    return f"""# Our planner beside Inductor

What `torch.compile` {torch.__version__.partition("+")[0]} would launch on {GPU}, read from its own scheduler with no GPU at hand (`--policy
inductor`), beside what our planner would (`--policy memwall`). Forward and backward; the optimizer, which
`torch.compile(model)` leaves alone, is left out. Kernels are launches, bytes compulsory DRAM bytes by our counting rules
for both. Written by `python reports/inductor_report.py`; the seconds are of one run on one core, cold caches, repeated layers
compiled once. Neither plan has been run on a GPU here.

| workload | mode | kernels, ours | Inductor's | ratio | GB, ours | Inductor's | ratio | pairs of ops agreed, % | neighbours agreed, % | together in ours alone | in Inductor's alone | compile, s |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
{table}

Two ops are together when one kernel computes both. Pairs: all pairs of ops of one phase, matrix kernels aside, by the
kernel that owns each. Neighbours: only pairs of which one reads what the other wrote, or that read the same tensor, and
what a kernel computes again counts as computed there; this is the stricter figure. Where Inductor computes the residual
stream again instead of reading it (the same bytes: one tensor less written, one more read) its pairs are together and
ours apart; that is most of what separates the two in inference.

## Differences above {100 * LISTED:.0f} % of Inductor's bytes

Bytes and time: Inductor's less ours, modeled.

{_differences(rows)}
"""


def _differences(rows: list[Row]) -> str:
    lines = [
        "| workload | mode | module | times | GB | % | us | why | ours | Inductor's |",
        "|---|---|---|---:|---:|---:|---:|---|---|---|",
    ]
    for row in rows:
        theirs = row.found.dram_bytes[1]
        for d in row.found.differences:
            if abs(d.bytes) > LISTED * theirs:
                lines.append(
                    f"| {row.workload} | {row.mode} | {_cell(d.module or '(top)')} | {d.count} | {d.bytes / 1e9:+.3f} |"
                    f" {100 * d.bytes / theirs:+.1f} | {d.time_s * 1e6:+.0f} | {explanation(d)} | {_cell('; '.join(d.ours))} |"
                    f" {_cell('; '.join(d.theirs))} |"
                )
    return "\n".join(lines)


def _cell(text: str) -> str:
    text = text.replace("_", "\\_").replace("*", "\\*")
    return text if len(text) < 160 else text[:157] + "..."


if __name__ == "__main__":
    found = []
    for name in WORKLOADS:
        for mode in MODES:
            found.append(measure(name, mode))
            last = found[-1]
            print(f"{name} {mode}: {last.compile_s:.1f} s, {last.found.share:.3f}", flush=True)
    (Path(__file__).parent / "inductor.md").write_text(report(found), encoding="utf-8")
