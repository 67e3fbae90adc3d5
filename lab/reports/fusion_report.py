"""reports/fusion.md: what fusion wins on the reference workloads, beside what others measured and claim.

``lab/reports/render.py`` writes and checks it. All figures follow from traces, plans and the model; nothing is timed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

import memwall
import memwall.report.columns as col
from memwall.analysis.savings import PolicyRow, policy_sets
from memwall.core.graph import Graph, Op
from memwall.core.units import duration, size
from memwall.fusion import Group, Plan, eager_plan, plan_graph
from memwall.fusion.plan import in_order
from memwall.fusion.pricing import Pricer
from memwall.record.kernels import short_name
from memwall.report.document import Column, Document, Section, Sentence, Table
from memwall.report.figures.picture import picture
from memwall.report.figures.profile import waterfall_chart
from memwall.report.markdown import to_markdown
from memwall.simulate.schedule import simulate

ROOT = Path(__file__).parents[2]
WORKLOADS = (
    "bert_layer", "bert_large", "gpt2_xl", "llama3_8b", "mixtral_8x7b", "resnet50", "vit_l16", "unet", "dlrm",
)  # fmt: skip
MODES = ("inference", "training")
GPUS = ("a100-80gb-sxm", "h100-sxm")
POLICIES = ("eager", "memwall", "ideal")


def fusion() -> str | None:
    """The report as Markdown; None without transformers, whose models are part of it."""
    if find_spec("transformers") is None:
        return None
    sections = [side_by_side(gpu) for gpu in GPUS]
    sections += [hand_fused_layer(), compiled_inference(), compiler_claims()]
    text = to_markdown(Document("What fusion wins", (introduction(), *sections)))
    return text + "\n![what each group of a BERT-large training step saves](bert_large_fusion.png)\n"


def pictures() -> dict[str, bytes]:
    """The picture beside the report."""
    record = memwall.profile(
        ROOT / "profiles" / "bert_large" / "model.py", mode="training", gpu=GPUS[0], policy=POLICIES
    )
    (policies,) = policy_sets(record)
    chart = waterfall_chart(policies, policies.schedules[POLICIES.index("memwall")])
    return {"bert_large_fusion.png": picture("png", chart)}


def introduction() -> Section:
    return Section("", (Sentence(
        "Eager launches every op alone; memwall is our own planner (no compiler, no GPU); ideal moves only what no fusion"
        " can avoid between matrix products, a floor that no kernel reaches. Time is modeled, bytes are compulsory DRAM"
        " bytes, kernels are launches; training is forward, loss, backward and the optimizer's step (AdamW, foreach)."
    ),))  # fmt: skip


# -- all workloads -----------------------------------------------------------------------------------------------------


@cache
def policies(workload: str, mode: str) -> dict[str, dict[str, PolicyRow]]:
    """GPU -> policy -> totals."""
    record = memwall.profile(ROOT / "profiles" / workload / "model.py", mode=mode, gpu=GPUS, policy=POLICIES)
    return {found.gpu.name: {row.policy: row for row in found.rows()} for found in policy_sets(record)}


def side_by_side(gpu: str) -> Section:
    """One row for each workload and mode."""
    cases = [(workload, mode) for workload in WORKLOADS for mode in MODES]
    eager, ours, ideal = ([policies(*case)[gpu][policy] for case in cases] for policy in POLICIES)
    columns = [
        col.text("workload", [workload for workload, _ in cases]),
        col.text("mode", [mode for _, mode in cases]),
        _cells("time, eager", [duration(r.time_s) for r in eager]),
        _cells("memwall", [duration(r.time_s) for r in ours]),
        col.ratio("speed-up", [r.speedup for r in ours]),
        col.ratio("ideal's", [r.speedup for r in ideal]),
        col.percent("time saved, of ideal", [r.time_score for r in ours], 0),
        _cells("DRAM bytes, eager", [size(r.dram_bytes) for r in eager]),
        _cells("memwall", [size(r.dram_bytes) for r in ours]),
        col.percent("bytes saved, of ideal", [r.byte_score for r in ours], 0),
        col.plain("kernels, eager", [r.kernels for r in eager]),
        col.plain("memwall", [r.kernels for r in ours]),
        _cells("peak, eager", [size(r.peak_memory_bytes) for r in eager]),
        _cells("memwall", [size(r.peak_memory_bytes) for r in ours]),
    ]
    mean = geometric_mean([r.speedup for r in ours])
    return Section(
        f"All workloads on {gpu}",
        (col.table("", columns), Sentence(f"Geometric mean of the speed-ups: {col.times(mean)}.")),
    )


def _cells(heading: str, cells: list[str]) -> col.CellColumn:
    """Numbers with units of their own: workloads differ by a thousand times."""
    return Column(heading), cells


def geometric_mean(values: Sequence[float]) -> float:
    """exp of the mean logarithm."""
    return math.exp(sum(map(math.log, values)) / len(values))


# -- the layer that was fused by hand ----------------------------------------------------------------------------------


class HandFused(NamedTuple):
    """A kernel of the paper's: its name, what it does, and the ops of our graph: module, phase, a part of the name."""

    name: str
    what: str
    ops: tuple[tuple[str, str, str], ...]


def _forward(*modules: str) -> tuple[tuple[str, str, str], ...]:
    return tuple((module, "forward", "") for module in modules)


def _backward(*pairs: tuple[str, str]) -> tuple[tuple[str, str, str], ...]:
    return tuple((module, "backward", part) for module, part in pairs)


_NORM, _DROPOUT, _SUM = "native_layer_norm_backward", "native_dropout_backward", "sum"
#: Fused kernels of Ivanov et al. 2021 as their repository (spcl/substation, config_selection/ops.py) groups operators.
HAND_FUSED = (
    HandFused("AIB", "attention input bias", _forward("qkv_bias")),
    HandFused("SM", "scaled softmax, dropout", _forward("softmax", "attn_dropout")),
    HandFused("DRLN", "bias, dropout, residual, layer norm", _forward("out_bias", "dropout1", "residual1", "norm1")),
    HandFused("BRD", "bias, ReLU, dropout", _forward("bias1", "relu", "dropout2")),
    HandFused("BDRLN", "bias, dropout, residual, layer norm", _forward("bias2", "dropout3", "residual2", "norm2")),
    HandFused("BSB", "layer norm 2, scale and bias backward", _backward(("norm2", _NORM))),
    HandFused("BLNRD", "layer norm 2 and dropout 3 backward", _backward(("norm2", _NORM), ("dropout3", _DROPOUT))),
    HandFused("BDRB", "bias 2, dropout 2, ReLU, bias 1 backward",
              _backward(("bias2", _SUM), ("dropout2", _DROPOUT), ("relu", "threshold"), ("bias1", _SUM))),
    HandFused("EBSB", "residual 2, layer norm 1 scale and bias backward",
              _backward(("linear1", "add"), ("norm1", _NORM))),
    HandFused("BLNRD", "layer norm 1 and dropout 1 backward", _backward(("norm1", _NORM), ("dropout1", _DROPOUT))),
    HandFused("BAOB", "attention output bias backward", _backward(("out_bias", _SUM))),
    HandFused("BS", "scaled softmax, dropout backward", _backward(("attn_dropout", _DROPOUT), ("softmax", "softmax"))),
    HandFused("BAIB", "attention input bias backward", _backward(("qkv_bias", _SUM))),
    HandFused("BEI", "residual 1 backward", _backward(("qkv", "add"))),
)  # fmt: skip
PAPER_REDUCTION, PAPER_SPEEDUP = 0.2291, 1.30


def hand_fused_layer() -> Section:
    """Which of the paper's kernels our planner finds, and what they win."""
    record = memwall.profile(ROOT / "profiles" / "bert_layer" / "model.py", mode="training", optimizer=None, gpu="v100")
    graph, costs, gpu = record.graph, record.costs[0], record.simulations[0].gpu
    ours = plan_graph("memwall", graph, costs, gpu)
    plans = {"eager": eager_plan(graph, costs), "the paper's groups": _paper_plan(graph, costs, gpu), "memwall": ours}
    rows = [_found(graph, ours, kernel) for kernel in HAND_FUSED]
    groups = col.table("", [
        col.text("kernel", [kernel.name for kernel in HAND_FUSED]),
        col.text("what it does", [kernel.what for kernel in HAND_FUSED]),
        col.text("found", [found for found, _ in rows]),
        col.text("our kernel", [ops for _, ops in rows]),
    ])  # fmt: skip
    return Section("The BERT-large layer that was fused by hand", (
        Sentence(
            "Ivanov et al., \"Data Movement Is All You Need\" (arXiv 2007.00072), fused the element-wise operators and"
            " normalisations of a BERT-large encoder layer by hand. Batch 8, sequence 512, fp16, forward and backward, on"
            " a V100; op (module). One PyTorch op makes all gradients of a layer norm, so BSB and EBSB's norm"
            " are parts of it."
        ),
        groups,
        _layer_totals(graph, plans, gpu),
        Sentence(
            f"The paper: up to {100 * PAPER_REDUCTION:.2f} % less data movement and {PAPER_SPEEDUP:.2f}x over the best"
            " framework; its repository gives 9.14 ms for PyTorch and 6.71 ms for its own kernels, with data layouts"
            " chosen besides, which is no fusion. What its baseline counts we could not read, so its groups are counted"
            " here by our rule too."
        ),
    ))  # fmt: skip


def _ops_of(graph: Graph, kernel: HandFused) -> list[int]:
    found = [
        op.id
        for module, phase, part in kernel.ops
        for op in graph.ops
        if (op.module, op.phase) == (module, phase) and part in op.name
    ]
    assert len(found) == len(kernel.ops), kernel
    return found


def _found(graph: Graph, plan: Plan, kernel: HandFused) -> tuple[str, str]:
    """Whether one group of the plan holds all its ops, and that group; else the largest, and what is elsewhere."""
    group_of = {op: group for group in plan.groups for op in group.op_ids}
    wanted = _ops_of(graph, kernel)
    best = max((group_of[op] for op in wanted), key=lambda group: len({*group.op_ids} & {*wanted}))
    outside = [op for op in wanted if op not in best.op_ids]
    listed = ", ".join(_op_text(graph.ops[i]) for i in best.op_ids)
    if not outside:
        return "yes", listed
    apart = "; ".join(
        f"{_op_text(graph.ops[i])} stands with {_op_text(graph.ops[group_of[i].op_ids[-2]])}" for i in outside
    )
    return f"{len(wanted) - len(outside)} of {len(wanted)}", f"{listed}; {apart}"


def _op_text(op: Op) -> str:
    return f"{short_name(op.name)} ({op.module or 'no module'})"


def _paper_plan(graph: Graph, costs: Sequence[memwall.Cost], gpu: memwall.Gpu) -> Plan:
    """The paper's kernels, each op in the first that names it; all others alone."""
    pricer, taken = Pricer(graph, costs, gpu), set()
    groups: list[Group] = []
    for kernel in sorted(HAND_FUSED, key=lambda kernel: -len(kernel.ops)):
        ops = [op for op in _ops_of(graph, kernel) if op not in taken]
        taken.update(ops)
        if len(ops) > 1:
            groups.append(pricer.group(sorted(ops)))
        else:
            groups += [pricer.alone(op) for op in ops]
    groups += [pricer.alone(op.id) for op in graph.ops if op.id not in taken]
    return Plan("paper", tuple(in_order(pricer.flow, groups)))


def _layer_totals(graph: Graph, plans: dict[str, Plan], gpu: memwall.Gpu) -> Table:
    totals = [simulate(graph, plan, gpu).totals for plan in plans.values()]
    words = [_words(graph, plan) for plan in plans.values()]
    columns = [
        col.text("plan", list(plans)),
        col.plain("kernels", [t.kernels for t in totals]),
        col.si("words", "", words),
        col.percent("fewer", [1 - w / words[0] for w in words], 2),
        col.si("DRAM bytes", "B", [t.dram_bytes for t in totals]),
        col.percent("fewer", [1 - t.dram_bytes / totals[0].dram_bytes for t in totals], 2),
        col.seconds("time", [t.time_s for t in totals]),
        col.ratio("speed-up", [totals[0].time_s / t.time_s for t in totals]),
    ]
    note = (
        "words: elements that each kernel reads and writes, a mask's as any other, products included, the optimizer not;"
        " bytes: the same with a mask's element as one byte; baseline: every PyTorch op alone"
    )
    return col.table("", columns, note)


def _words(graph: Graph, plan: Plan) -> int:
    values = (graph.values[v] for group in plan.groups for v in (*group.reads, *group.writes))
    return sum(value.spec.distinct_elements for value in values)


# -- whole models that others compiled ---------------------------------------------------------------------------------

#: GPU -> measured range of eager over torch.compile, BERT-large and GPT2-large inference, fp32
MEASURED = {"l4": (1.18, 1.44), "a100-40gb-pcie": (1.12, 1.18), "h100-sxm": (1.07, 1.23)}
BATCHES, SEQ = (1, 4, 8, 16), 512


def compiled_inference() -> Section:
    """Our speed-ups beside the ranges that others measured with torch.compile."""
    rows = [(name, batch, *_speedups(name, batch)) for name in ("BERT-large", "GPT2-large") for batch in BATCHES]
    blocks: list[Table | Sentence] = [Sentence(
        "torch.compile against eager, measured by others in fp32 without TF32 on BERT-large and GPT2-large inference;"
        f" batches unknown, here {', '.join(map(str, BATCHES))} of {SEQ} tokens. transformers' models with attention"
        " written out, as they were then. Fusion alone is our planner on that graph. With the attention rewritten,"
        " scaled_dot_product_attention stands in its place: Inductor's pass fuse_attention does that for both models"
        " (patterns 14 and 18 or 19); torch 2.13 refuses it in fp32 unless TF32 is on, and which torch was measured we"
        " do not know."
    )]  # fmt: skip
    for gpu, (low, high) in MEASURED.items():
        alone = [fused[gpu] for _, _, fused, _ in rows]
        rewritten = [both[gpu] for *_, both in rows]
        columns = [
            col.text("model", [row[0] for row in rows]),
            col.plain("batch", [row[1] for row in rows]),
            col.ratio("fusion alone", alone),
            col.text("in range", [_place(value, low, high) for value in alone]),
            col.ratio("attention rewritten too", rewritten),
            col.text("in range", [_place(value, low, high) for value in rewritten]),
        ]
        blocks.append(col.table(f"{gpu}: measured {low:.2f}x to {high:.2f}x", columns))
    blocks.append(
        Sentence("Rows in range: " + "; ".join(_in_range(name, rows) for name in ("BERT-large", "GPT2-large")) + ".")
    )
    return Section("torch.compile against eager, whole models", tuple(blocks))


def _in_range(name: str, rows: Sequence[tuple[str, int, dict[str, float], dict[str, float]]]) -> str:
    """``BERT-large 0 of 12 by fusion alone, 10 of 12 with the attention rewritten too``."""
    counts = [
        sum(
            _place(row[part][gpu], *limits) == "yes"
            for row in rows
            if row[0] == name
            for gpu, limits in MEASURED.items()
        )
        for part in (2, 3)
    ]
    whole = len(BATCHES) * len(MEASURED)
    return f"{name} {counts[0]} of {whole} by fusion alone, {counts[1]} of {whole} with the attention rewritten too"


def _place(value: float, low: float, high: float) -> str:
    value = round(value, 2)
    if value < low:
        return f"{100 * (1 - value / low):.0f} % below"
    return "yes" if value <= high else f"{100 * (value / high - 1):.0f} % above"


def _speedups(name: str, batch: int) -> tuple[dict[str, float], dict[str, float]]:
    """GPU -> speed-up over eager with written-out attention: of fusion alone, and with the attention rewritten."""
    written = _times(name, batch, "eager")
    rewritten = _times(name, batch, "sdpa")
    return (
        {gpu: written[gpu, "eager"] / written[gpu, "memwall"] for gpu in MEASURED},
        {gpu: written[gpu, "eager"] / rewritten[gpu, "memwall"] for gpu in MEASURED},
    )


def _times(name: str, batch: int, attention: str) -> dict[tuple[str, str], float]:
    ids = torch.zeros(batch, SEQ, dtype=torch.long, device="meta")
    record = memwall.profile(
        _transformer(name, attention), {"input_ids": ids}, gpu=list(MEASURED), policy=("eager", "memwall")
    )
    return {(s.gpu.name, s.policy): s.totals.time_s for s in record.simulations}


def _transformer(name: str, attention: str) -> Any:
    """transformers' model, fp32, without weights; ``attention`` is ``eager`` (written out) or ``sdpa``."""
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

    bert = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    gpt2 = {"n_embd": 1280, "n_layer": 36, "n_head": 20, "use_cache": False}
    base, config = {
        "BERT-large": (BertForMaskedLM, BertConfig(**bert, attn_implementation=attention)),
        "GPT2-large": (GPT2LMHeadModel, GPT2Config(**gpt2, attn_implementation=attention)),
    }[name]
    with torch.device("meta"):
        return base(config).eval()


def compiler_claims() -> Section:
    """PyTorch 2's training claims beside our workloads."""
    training = list(_training_speedups())
    columns = [
        col.text("workload", [workload for workload, *_ in training]),
        col.ratio("memwall", [ours for _, ours, _ in training]),
        col.ratio("ideal", [ideal for *_, ideal in training]),
    ]
    ours, ideal = (geometric_mean([row[i] for row in training]) for i in (1, 2))
    return Section("PyTorch 2's claims for training on an A100", (
        Sentence(
            "Claimed: 1.41x over eager, geometric mean of 180+ models (Ansel et al., PyTorch 2, ASPLOS 2024), and 1.86x,"
            " of which we do not know the models. Both may include what fusion does not win: CUDA graphs,"
            " Triton's matrix products, small batches that wait for Python."
        ),
        col.table("", columns),
        Sentence(f"Geometric mean: {col.times(ours)} (memwall), {col.times(ideal)} (ideal, the most that fusion alone could win)."),
    ))  # fmt: skip


def _training_speedups() -> Iterator[tuple[str, float, float]]:
    for workload in WORKLOADS:
        rows = policies(workload, "training")["a100-80gb-sxm"]
        yield workload, rows["memwall"].speedup, rows["ideal"].speedup
