"""reports/inductor.md: our planner beside Inductor's own decisions, on every reference workload.

    python lab/reports/inductor_report.py
    python lab/reports/inductor_report.py --peak      (the section on memory alone, on standard output)
    python lab/reports/inductor_report.py --models    (the section on models of other libraries alone)
    python lab/reports/inductor_report.py --measured  (the section on kernels that a GPU measured alone)

Needs Triton; compiles for a GPU that is not there, which takes some minutes (the U-Net most of them), so the report is
written by this command and not again by every run of the tests, which compare a few workloads live instead.
"""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

import torch  # noqa: E402
from torch import nn  # noqa: E402

import memwall  # noqa: E402
from memwall.fusing.plan_diff import Difference, PlanDiff, plan_diff  # noqa: E402
from memwall.fusion import plan_graph  # noqa: E402
from memwall.inductor.compiled import inductor_plan  # noqa: E402
from memwall.record.kernels import NO_MODULE  # noqa: E402
from memwall.simulate.memory import memory_peak  # noqa: E402
from reports import inductor_measured  # noqa: E402

GPU = "a100-80gb-sxm"
WORKLOADS = (
    "bert_layer", "bert_large", "gpt2_xl", "llama3_8b", "mixtral_8x7b", "resnet50", "vit_l16", "unet", "dlrm",
)  # fmt: skip
MODES = ("inference", "training")
#: share of Inductor's bytes above which a difference is listed
LISTED = 0.01


class DenseBlock(nn.Module):
    """A block of densenet121: each layer reads the concatenation of the block's input and of all layers before it."""

    def __init__(self, layers: int = 16, width: int = 64, growth: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(before), nn.ReLU(), nn.Conv2d(before, 128, 1, bias=False),
                nn.BatchNorm2d(128), nn.ReLU(), nn.Conv2d(128, growth, 3, padding=1, bias=False),
            )
            for before in range(width, width + layers * growth, growth)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return torch.cat(found, 1)


def peaks() -> str:
    """The section on peak memory: the activations of a dense block in inference, under each policy."""
    gpu = memwall.load_gpu(GPU)
    record = memwall.profile(DenseBlock(), (torch.randn(8, 64, 28, 28),), gpu=gpu)
    graph, costs = record.graph, record.costs[0]
    plans = {name: plan_graph(name, graph, costs, gpu) for name in ("eager", "memwall", "inductor")}
    held = {name: memory_peak(graph, plan).activations / 1e6 for name, plan in plans.items()}
    names = [[graph.ops[i].name.split(".")[1] for i in group.op_ids] for group in plans["inductor"].groups]
    together = max(group.count("cat") for group in names)
    return f"""## Peak memory of concatenations

Inductor's plan can hold more than eager execution. A dense block as in densenet121 ({len(record.graph.ops)} ops: 16 layers, batch 8,
64 channels of 28 x 28, inference) shows it: activations of {held["eager"]:.1f} MB at the peak in eager execution, {held["memwall"]:.1f} MB in our
plan, {held["inductor"]:.1f} MB in Inductor's, {held["inductor"] / held["eager"]:.2f} times eager's. All layers concatenate the same block input. Inductor
copies an input of a concatenation straight to its place in the result, and fuses copies that read the same tensor: here
{together} concatenations begin in one kernel, long before the last of their other inputs is made, and all of them are in memory
from then on. Eager execution makes a concatenation where it is used and frees it after that.
"""


#: why Inductor's plan of a model moves fewer bytes than ours
REASONS = {
    "unet_3d": "a concatenation: Inductor writes each input where the concatenation has it, from the kernel that makes it"
    " (the skip's ReLU, the bias of the transposed convolution); ours copies them, as eager execution does",
    "mamba": "the scan in Python: exp(dt A) of all 512 steps is stored (403 MB a layer), since each kernel reads the slice"
    " of its steps, and our planner computes a value again whole or not at all; Inductor computes the slices again, in"
    " twice as many launches",
    "xlstm": "states of all chunks are written into slices of one buffer that is filled before; Inductor makes the buffer in"
    " one kernel, ours keeps the fill and each write in place",
    "whisper": "the sum of tokens and positions is stored for the first residual; Inductor computes it again, positions from"
    " a range included, which our planner does not make anew",
    "AutoencoderKL": "group norms of one image are 32 rows of up to 524,288 elements for 108 multiprocessors: fused with the residual sum before"
    " them, their second pass reads two tensors again instead of one, which is modeled slower, so the planner refuses it",
}


def models() -> str:
    """The section on the models of other libraries, from the rows of lab/benchmarks/inductor_models.py."""
    with (ROOT / "reports/inductor_models.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    ratios = {row["name"]: int(row["bytes"]) / int(row["inductor_bytes"]) for row in rows}
    above = sorted((name for name, ratio in ratios.items() if ratio > 1), key=lambda name: -ratios[name])
    if set(above) != set(REASONS):
        raise SystemExit(f"models without a reason, or with one for nothing: {sorted(set(above) ^ set(REASONS))}")
    lines = "\n".join(
        f"| {row['name']} | {row['suite']} | {int(row['kernels']):,} | {int(row['inductor_kernels']):,} |"
        f" {int(row['bytes']) / 1e9:.3f} | {int(row['inductor_bytes']) / 1e9:.3f} | {ratios[row['name']]:.4f} |"
        for row in sorted(rows, key=lambda row: -ratios[row["name"]])
    )
    reasons = "\n".join(f"- {name} ({ratios[name]:.4f}): {REASONS[name]}." for name in above)
    others = sum(row["suite"] != "own" for row in rows)
    return f"""## {others} models of other libraries and a 3-D U-Net

This section compares both plans in the same way, in inference: {others} models of timm, torchvision, transformers and
diffusers as lab/benchmarks/zoo.py builds them (transformers' keep two layers and take a batch of 8), and a 3-D U-Net
of our own. `python lab/benchmarks/inductor_models.py` writes the rows to reports/inductor_models.csv. Our plan moves no more
bytes on {len(rows) - len(above)} of the {len(rows)}.

| model | suite | kernels, ours | Inductor's | GB, ours | Inductor's | ratio of bytes |
|---|---|---:|---:|---:|---:|---:|
{lines}

Why Inductor's plan moves fewer bytes on the others:

{reasons}
"""


class Row(NamedTuple):
    workload: str
    mode: str
    compile_s: float
    found: PlanDiff


def measure(workload: str, mode: str) -> Row:
    gpu = memwall.load_gpu(GPU)
    record = memwall.profile(ROOT / "profiles" / workload / "model.py", gpu=gpu, mode=mode)
    graph, costs = record.graph, record.costs[0]
    start = time.process_time()
    theirs = inductor_plan(graph, costs, gpu)
    compile_s = time.process_time() - start
    return Row(workload, mode, compile_s, plan_diff(graph, plan_graph("memwall", graph, costs, gpu), theirs, gpu))


def explanation(row: Difference) -> str:
    """What the two do differently, told by the ops in their groups: the first of :data:`CLASSES` that fits."""
    ours, theirs = ([text.split(" (again")[0].split("+") for text in side] for side in (row.ours, row.theirs))
    again = [sum("(again" in text for text in side) for side in (row.ours, row.theirs)]
    if sorted(ours) == sorted(theirs):
        if again[0] == again[1]:
            return "the same kernels; what one of the plans stores here, other kernels of the other compute again"
        who = (
            "Inductor computes a value again that we store"
            if again[1] > again[0]
            else "we compute again what it stores"
        )
        return f"the same kernels; {who}"
    return next(text for fits, text in CLASSES if fits(ours, theirs))


def _together(groups: list[list[str]], *names: str) -> bool:
    return any(set(names) <= set(group) for group in groups)


#: (whether it is this class, given the ops of our groups and of Inductor's; what differs), most telling first
CLASSES = (
    (
        lambda ours, theirs: _together(ours, "mm", "add") and not _together(theirs, "mm", "add"),
        "the library's product adds the matrix or bias by itself; Inductor leaves the add to a kernel",
    ),
    (
        lambda ours, theirs: ["sum"] in theirs and ["sum"] not in ours,
        "the gradient of a bias: partial sums in the kernel that makes its input; Inductor has a kernel that reads it",
    ),
    (
        lambda ours, theirs: _together(ours, "sum", "pow", "div") and len(theirs) > len(ours),
        "gradients of a norm that is spelled out: we sum the weight's beside the rows, Inductor in a kernel before",
    ),
    (
        lambda ours, theirs: _together(ours, "native_batch_norm_backward") and len(theirs) > len(ours),
        "what a batch norm's gradient reads: we make it in both of its passes, Inductor stores it by another kernel",
    ),
    (
        lambda ours, theirs: _together(ours, "native_group_norm") and len(theirs) > len(ours),
        "a group norm over long rows: one kernel here; Inductor has one for its sums and applies them in the next",
    ),
    (
        lambda ours, theirs: (
            len(theirs) < len(ours) and any(sum("batch_norm" in name for name in group) > 1 for group in theirs)
        ),
        "two batch norms: Inductor makes them in one go; our rules keep the sums of two reductions apart",
    ),
    (
        lambda ours, theirs: any("index_add" in group or "index_put" in group for group in (*ours, *theirs)),
        "a scatter: we take along what makes its source and fill its target apart; Inductor calls a library for it, or"
        " takes the fill along",
    ),
    (lambda ours, theirs: True, "cut at another place: the groups stand beside this"),
)


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
for both. Written by `python lab/reports/inductor_report.py`; the seconds are CPU time of one run, cold caches, repeated layers
compiled once. Neither plan has been run on a GPU as a whole; a GPU's times of single kernels stand below.

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

{models()}
{inductor_measured.section()}
{peaks()}"""


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
                    f"| {row.workload} | {row.mode} | {_cell(d.module or NO_MODULE)} | {d.count} | {d.bytes / 1e9:+.3f} |"
                    f" {100 * d.bytes / theirs:+.1f} | {d.time_s * 1e6:+.0f} | {explanation(d)} | {_cell('; '.join(d.ours))} |"
                    f" {_cell('; '.join(d.theirs))} |"
                )
    return "\n".join(lines)


def _cell(text: str) -> str:
    text = text.replace("_", "\\_").replace("*", "\\*")
    return text if len(text) < 160 else text[:157] + "..."


if __name__ == "__main__":
    for option, section in (("--peak", peaks), ("--models", models), ("--measured", inductor_measured.section)):
        if sys.argv[1:] == [option]:
            sys.exit(print(section(), end=""))
    found = []
    for name in WORKLOADS:
        for mode in MODES:
            found.append(measure(name, mode))
            last = found[-1]
            print(f"{name} {mode}: {last.compile_s:.1f} s, {last.found.share:.3f}", flush=True)
    (Path(__file__).parent / "inductor.md").write_text(report(found), encoding="utf-8")
