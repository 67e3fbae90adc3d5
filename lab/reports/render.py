"""Write reports/*.md and the pictures beside them from the reference workloads.

    python lab/reports/render.py           write
    python lab/reports/render.py --check   compare with what is there; exit 1 where a text differs

Nothing here is timed: every figure follows from the trace and the model and is equal on every machine. Measured speed is
in reports/speed.md, which ``python lab/benchmarks/speed_report.py`` writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

import torch  # noqa: E402
from torch import nn  # noqa: E402

import memwall  # noqa: E402
from memwall.core.errors import UsageError  # noqa: E402
from reports import fusion_report  # noqa: E402
from reports.liger_pairs import liger_pairs  # noqa: E402
from tests.handcounts import HAND_COUNTS  # noqa: E402
from tests.unit.one_call import Call, meta  # noqa: E402

HERE = ROOT / "reports"


def table(head: str, rows: Iterator[tuple] | list[tuple]) -> str:
    """A Markdown table; numbers to the right."""
    columns = head.split("|")
    lines = [
        "| " + " | ".join(c.strip() for c in columns) + " |",
        "|" + "|".join("---:" if i else "---" for i in range(len(columns))) + "|",
    ]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def model(name: str, **options: object) -> memwall.Profile:
    return memwall.profile(ROOT / "profiles" / name / "model.py", **options)


# -- FLOPs -------------------------------------------------------------------------------------------------------------

#: folder → name, batch and sequence
MODELS = {
    "resnet50": ("ResNet-50 v1.5", "32, 224x224"), "bert_large": ("BERT-large, masked-LM head", "8, 512"),
    "gpt2_xl": ("GPT-2 XL", "1, 1024"), "llama3_8b": ("Llama-3-8B", "1, 4096"),
    "llama3_70b": ("Llama-3-70B", "1, 4096"), "mixtral_8x7b": ("Mixtral-8x7B (top 2 of 8)", "1, 4096"),
}  # fmt: skip


def flops() -> str:
    rows = []
    for folder, (name, size) in MODELS.items():
        hand = HAND_COUNTS[folder]
        forward = model(folder)
        training = model(folder, mode="training", optimizer=None)
        attention = sum(c.dense_flops or 0 for c in forward.costs[0])
        causal = forward.model_flops
        equal = (forward.dense_model_flops, training.dense_model_flops, attention) == (
            hand.forward_flop, hand.training_flop, hand.attention_forward_flop,
        )  # fmt: skip
        rows.append((
            name, size, f"{forward.dense_model_flops:,}", f"{training.dense_model_flops:,}",
            f"{attention:,}" if attention else "-", f"{causal:,}", "yes" if equal else "NO",
        ))  # fmt: skip
    return f"""# FLOPs of six reference models, beside hand counts

Contractions, convolutions and attention; element-wise work comes on top. Attention is counted dense here, so that the
figures compare with other tools; the record counts a causal kernel as causal (`flops`, last column but one) and keeps
and the dense figure (`dense_flops`). The hand counts are written out term by term in `tests/handcounts.py`.

{table("model | batch, seq | forward | forward + backward | of which attention | forward, causal | equals the hand count", rows)}
"""


# -- bytes -------------------------------------------------------------------------------------------------------------


HALF, BF16 = torch.float16, torch.bfloat16
#: what | hand count in bytes | function | inputs
BYTES = [
    ("bf16 add 8192x8192", 3 * 8192 * 8192 * 2, torch.add, (meta(8192, 8192, dtype=BF16), meta(8192, 8192, dtype=BF16))),
    ("fp32 mm 1024x1024x1024", 3 * 1024 * 1024 * 4, torch.mm, (meta(1024, 1024), meta(1024, 1024))),
    ("fp32 conv 8x64x56x56, 128 of 3x3, padding 1", (8 * 64 * 56 * 56 + 128 * 64 * 9 + 8 * 128 * 56 * 56) * 4,
     lambda x, w: nn.functional.conv2d(x, w, padding=1), (meta(8, 64, 56, 56), meta(128, 64, 3, 3))),
    ("a slice of 128 of a KV cache of 4096, plus 1", 2 * 8 * 32 * 128 * 128 * 2, lambda c: c[:, :, :128] + 1,
     (meta(8, 32, 4096, 128, dtype=HALF),)),
    ("embedding of 128 ids, fp16 table 50,000x1024", 2 * 128 * 1024 * 2 + 128 * 8,
     lambda t, i: nn.functional.embedding(i, t), (meta(50_000, 1024, dtype=HALF), meta(128, dtype=torch.long))),
    ("in-place fp32 add 1024x1024: reads 2, writes 1", 3 * 1024 * 1024 * 4, lambda a, b: a.add_(b),
     (meta(1024, 1024), meta(1024, 1024))),
    ("fp32 row [1, 1024] expanded to [4096, 1024], added", (1024 + 2 * 4096 * 1024) * 4,
     lambda r, x: r.expand(4096, 1024) + x, (meta(1, 1024), meta(4096, 1024))),
    ("`view`", 0, lambda x: x.view(-1), (meta(64, 64),)),
    ("`alias`", 0, torch.ops.aten.alias, (meta(64, 64),)),
    ("`_reshape_alias`", 0, lambda x: torch.ops.aten._reshape_alias(x, [4096], [1]), (meta(64, 64),)),
    ("`empty_like`", 0, torch.empty_like, (meta(64, 64),)),
    ("`prim.device`", 0, lambda x: (torch.ops.prim.device(x), x)[1], (meta(64, 64),)),
]  # fmt: skip

#: The same calls as a PyTorch profiler trace shows them: name, dims, types, concrete inputs.
EVENTS = {
    "bf16 add 8192x8192": ("aten::add", [[8192, 8192], [8192, 8192], []], ["c10::BFloat16", "c10::BFloat16", "Scalar"], []),
    "fp32 mm 1024x1024x1024": ("aten::mm", [[1024, 1024], [1024, 1024]], ["float", "float"], ["", ""]),
    "fp32 conv 8x64x56x56, 128 of 3x3, padding 1": (
        "aten::convolution", [[8, 64, 56, 56], [128, 64, 3, 3], [], [], [], []], ["float", "float", "", "", "", ""],
        ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]"]),
}  # fmt: skip


def torch_estimate_bytes(what: str) -> float | None:
    """What torch's own profile analysis makes of the call (torch._inductor.analysis, the in-tree estimator)."""
    from torch._inductor.analysis.profile_analysis import _estimate_gb

    if what not in EVENTS:
        return None
    name, dims, types, concrete = EVENTS[what]
    return 1e9 * _estimate_gb(
        {"name": name, "args": {"Input Dims": dims, "Input type": types, "Concrete Inputs": concrete}}
    )


def byte_cases() -> str:
    rows = []
    for what, hand, function, inputs in BYTES:
        ours = memwall.profile(Call(function), inputs).dram_bytes
        theirs = torch_estimate_bytes(what)
        ratio = f"{ours / hand:.3f}" if hand else ("1.000" if ours == 0 else "wrong")
        rows.append((what, f"{hand:,}", f"{ours:,}", ratio, f"({theirs / hand:.2f})" if theirs is not None else "-"))
    return f"""# DRAM bytes of single calls, beside hand counts

Compulsory bytes: each distinct byte read once and written once. In brackets the ratio of torch's in-tree estimator
(`torch._inductor.analysis.profile_analysis._estimate_gb`) on the same call as its profiler describes it.

{table("call | by hand (B) | memwall (B) | ratio | torch's", rows)}
"""


# -- the BERT layer ----------------------------------------------------------------------------------------------------

TOKENS, WIDTH, FFN, SCORES = 8 * 512, 1024, 4096, 8 * 16 * 512 * 512
_D, _F = TOKENS * WIDTH, TOKENS * FFN
_QKV, _OUT, _FFN, _ATT = (
    2 * TOKENS * 3 * WIDTH * WIDTH,
    2 * TOKENS * WIDTH * WIDTH,
    2 * TOKENS * WIDTH * FFN,
    2 * SCORES * 64,
)
#: module | rows of the paper's operator table | class | FLOPs forward | FLOPs backward
LAYER = [
    ("qkv", "Q, K, V; residual 1 backward", "contraction", _QKV, 2 * _QKV + _D),
    ("qkv_bias", "input bias", "element-wise", 3 * _D, 3 * _D),
    ("scores", "QK^T", "contraction", _ATT, 2 * _ATT),
    ("softmax", "scaled softmax", "normalisation", 5 * SCORES, 4 * SCORES),
    ("attn_dropout", "its dropout", "normalisation", SCORES, SCORES),
    ("context", "gamma", "contraction", _ATT, 2 * _ATT),
    ("out", "out", "contraction", _OUT, 2 * _OUT),
    ("out_bias", "output bias", "element-wise", _D, _D),
    ("dropout1", "dropout 1", "element-wise", _D, _D),
    ("residual1", "residual 1", "element-wise", _D, 0),
    ("norm1", "layer norm 1 (dX and dW)", "normalisation", 7 * _D, 13 * _D),
    ("linear1", "linear 1; residual 2 backward", "contraction", _FFN, 2 * _FFN + _D),
    ("bias1", "bias 1", "element-wise", _F, _F),
    ("relu", "ReLU", "element-wise", 0, 0),
    ("dropout2", "dropout 2", "element-wise", _F, _F),
    ("linear2", "linear 2", "contraction", _FFN, 2 * _FFN),
    ("bias2", "bias 2", "element-wise", _D, _D),
    ("dropout3", "dropout 3", "element-wise", _D, _D),
    ("residual2", "residual 2", "element-wise", _D, 0),
    ("norm2", "layer norm 2 (dX and dW)", "normalisation", 7 * _D, 13 * _D),
]
#: The paper's shares of FLOPs and of runtime, %.
PAPER = {"contraction": (99.80, 61.0), "normalisation": (0.17, 25.5), "element-wise": (0.03, 13.5)}


def layer_class(module: str, op_class: str) -> str:
    """The paper's class of one of our ops: bias gradients are reductions and stand under normalisation there."""
    if module == "attn_dropout":
        return "normalisation"
    names = {"contraction": "contraction", "normalization": "normalisation", "reduction": "normalisation"}
    return names.get(op_class, "element-wise")


def bert_layer() -> str:
    record = model("bert_layer", gpu="v100", mode="training", optimizer=None)
    schedule, graph = record.simulations[0], record.graph
    counted: dict[tuple[str, str], int] = {}
    flop, time = dict.fromkeys(PAPER, 0), dict.fromkeys(PAPER, 0.0)
    for kernel in schedule.kernels:
        op = graph.ops[kernel.op_ids[0]]
        counted[op.module, op.phase] = counted.get((op.module, op.phase), 0) + kernel.flops
        kind = layer_class(op.module, op.op_class)
        time[kind] += kernel.time_s
        flop[kind] += kernel.flops if op.module else 0  # the loss that we need and the paper has not
    rows = [
        (module, names, kind, f"{forward:,}", f"{counted.get((module, 'forward'), 0):,}", f"{backward:,}",
         f"{counted.get((module, 'backward'), 0):,}",
         "yes" if (counted.get((module, "forward"), 0), counted.get((module, "backward"), 0)) == (forward, backward) else "NO")
        for module, names, kind, forward, backward in LAYER
    ]  # fmt: skip
    rate = {kind: flop[kind] / time[kind] for kind in PAPER}
    shares = [
        (kind, f"{PAPER[kind][0]:.2f}", f"{100 * flop[kind] / sum(flop.values()):.2f}", f"{PAPER[kind][1]:.1f}",
         f"{100 * time[kind] / sum(time.values()):.1f}", f"{100 * time[kind] / sum(time.values()) - PAPER[kind][1]:+.1f}",
         f"{rate[kind] / 1e12:.3f}", "-" if kind == "contraction" else f"{rate['contraction'] / rate[kind]:,.0f}x")
        for kind in PAPER
    ]  # fmt: skip
    return f"""# The BERT-large encoder layer: where the FLOPs are and where the time goes

Batch 8, sequence 512, fp16, forward and backward, unfused, on a V100: the layer of Ivanov et al., "Data Movement Is All
You Need" (MLSys 2021). `profiles/bert_layer/model.py` writes it op by op as their operator table does. Their classes:
gradients of biases and the attention's dropout stand under normalisation.

{table("class | FLOP %, paper | FLOP %, memwall | time %, paper | time %, modeled | points off | TFLOP/s, modeled | fewer FLOP/s than contractions", shares)}

The paper's own shares make that 245 and 736 times fewer. Modeled time of the layer:
{schedule.totals.time_s * 1e3:.2f} ms; the paper's repository (spcl/substation) gives 9.14 ms for PyTorch: the model is
{100 * (1 - schedule.totals.time_s / 9.14e-3):.0f} % under it. No constant was fitted to this layer. By the paper's shares its products took 5.58 ms and all
else 3.56; modeled are {time["contraction"] * 1e3:.2f} and {(sum(time.values()) - time["contraction"]) * 1e3:.2f} ms. A V100 in a loop holds products by its power, which other kernels of the
step leave to them. Norms of that PyTorch took two kernels each, so that all else took longer there than today. 61 % of
9.14 ms would be 60 TFLOP/s for the products; of DeepBench's fp16 products, timed alone on the same GPU, the 33 whose
sides are all 1000 or more run at 89 to 109 TFLOP/s.

FLOPs row by row; two rows of the table are one op of PyTorch's where the name says so:

{table("module | row of the paper | class | forward, table | forward, memwall | backward, table | backward, memwall | equal", rows)}
"""


# -- Llama -------------------------------------------------------------------------------------------------------------


def llama() -> str:
    record = model("llama3_8b", gpu="a100-80gb-sxm")
    schedule = record.simulations[0]
    t, d, kv, f, v, layers, h = 4096, 4096, 1024, 14336, 128256, 32, 64
    norms = 2 * layers + 1
    half, full = 2, 4  # bytes of bf16 and fp32
    hand = [
        ("matrix products: weights, inputs, outputs", "aten.mm", layers * half * (
            2 * (d * d + 2 * t * d) + 2 * (d * kv + t * d + t * kv) + 3 * (d * f + t * d + t * f)) + half * (d * v + t * d + t * v)),
        ("attention: q, k, v, output, log-sum-exp", "aten._scaled_dot_product_flash_attention",
         layers * (half * (2 * t * d + 2 * t * kv) + full * t * 32)),
        ("embedding: 4,096 rows in and out, the ids", "aten.embedding", 2 * t * d * half + t * 8),
        ("SiLU", "aten.silu", layers * 2 * t * f * half),
        ("norms: square", "aten.pow.Tensor_Scalar", norms * 2 * t * d * full),
        ("norms: mean", "aten.mean.dim", norms * (t * d + t) * full),
        ("rotary: the halves of q and k swapped, `cat` (and one for the tables)", "aten.cat",
         layers * 2 * (t * d + t * kv) * half + 3 * t * h * full),
    ]  # fmt: skip
    ours: dict[str, int] = {}
    for op, cost in zip(record.graph.ops, record.costs[0], strict=True):
        ours[op.name] = ours.get(op.name, 0) + cost.bytes
    named = {name for _, name, _ in hand}
    rows = [(what, f"`{name}`", f"{n:,}", f"{ours[name]:,}") for what, name, n in hand]
    rest = sum(n for name, n in ours.items() if name not in named)
    rows.append(("the other element-wise ops (casts, products, sums)", "", "", f"{rest:,}"))
    gpu = schedule.gpu
    dense_s = sum(
        max((c.total_flops if c.dense_flops is None else c.dense_flops) / gpu.peak(next(iter(c.flops))) if c.flops else 0,
            c.bytes / gpu.dram_bytes_per_s)
        for c in record.costs[0]
    )  # fmt: skip
    return f"""# Llama-3-8B forward: DRAM bytes and the per-op roofline

Batch 1, sequence 4,096, bf16, unfused; RMS norm written op by op as the published model has it.

{table("what | op | by hand (B) | memwall (B)", rows)}

Total: {record.dram_bytes / 1e9:.2f} GB ({record.dram_bytes:,} B). Another hand count that we were given, without its items or its
source, is 119.45 GB, so the difference of {100 * (1 - record.dram_bytes / 119.45e9):.1f} % is not explained here.

Per-op roofline on an {gpu.full_name}, attention counted dense as other tools do: {dense_s * 1e3:.1f} ms (the same
source: 264 ms); the compute floor alone is {record.dense_model_flops / gpu.peak(memwall.Pipe("tensor", "bfloat16")) * 1e3:.1f} ms.
With the causal mask and the L2 rule, `bound_s` of the record is {schedule.totals.bound_s * 1e3:.1f} ms and `time_s` {schedule.totals.time_s * 1e3:.1f} ms.
"""


# -- odd models --------------------------------------------------------------------------------------------------------


def odd_models() -> str:
    rows = []
    for path in sorted((ROOT / "tests" / "models").glob("*.py")):
        for mode in ("inference", "training"):
            try:
                record = memwall.profile(path, mode=mode, gpu="h100-sxm", max_ops=20_000)
            except UsageError as error:
                rows.append((path.stem, mode, "-", "-", "-", str(error).split(" (at ")[0].split(": a Python")[0]))
                continue
            unmodeled = ", ".join(record.coverage.unmodeled)
            rows.append((path.stem, mode, f"{len(record.graph.ops):,}", f"{record.flops:,}", f"{record.dram_bytes:,}",
                         f"unmodeled: {unmodeled}" if unmodeled else "all modeled"))  # fmt: skip
    return f"""# Public-benchmark-style models, odd ones included

`tests/models/*.py`: a class `Model` and `get_inputs()`. In `boolean_mask` half of a mask is assumed to be true, in
`item_branch` the number that Python reads to be 1. `runaway_loop` is meant to be refused: it stops at `--max-ops`
(20,000 here).

{table("file | mode | ops | FLOPs | DRAM bytes | result", rows)}
"""


# -- the memory wall ---------------------------------------------------------------------------------------------------


def memory_wall() -> str:
    from memwall.report import render

    gpus = [memwall.load_gpu(n) for n in ("p100-sxm2-16gb", "v100-sxm2-32gb", "a100-80gb-sxm", "h100-sxm")]
    return render(memwall.compare(gpu=gpus), "md") + "\n![the memory wall](memory_wall.svg)\n"


def pictures() -> dict[str, bytes]:
    from memwall.report import render

    flagships = ["p100-sxm2-16gb", "v100-sxm2-32gb", "a100-80gb-sxm", "h100-sxm", "h200", "b200"]
    record = model("bert_large", gpu=["v100", "h100"], mode="training")
    return {
        "memory_wall.svg": _bytes(render(memwall.compare(gpu=flagships), "svg")),
        "bert_large_roofline.png": _bytes(render(record, "png")),
        **fusion_report.pictures(),
    }


def _bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


TEXTS = {
    "flops.md": flops, "bytes.md": byte_cases, "bert_layer.md": bert_layer, "llama3_8b.md": llama,
    "odd_models.md": odd_models, "memory_wall.md": memory_wall, "fusion.md": fusion_report.fusion,
    "liger_pairs.md": liger_pairs,
}  # fmt: skip


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__)
        return 2
    stale = []
    for name, make in TEXTS.items():
        text = make()
        if text is None:
            print(
                f"reports/{name} is left as it is: what it needs (measured rows, transformers) is not at hand",
                file=sys.stderr,
            )
            continue
        if arguments and (HERE / name).read_text(encoding="utf-8") != text:
            stale.append(name)
        elif not arguments:
            (HERE / name).write_text(text, encoding="utf-8")
    if not arguments:
        for name, data in pictures().items():
            (HERE / name).write_bytes(data)
    if stale:
        print(f"reports/{', reports/'.join(stale)} differ: run python lab/reports/render.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
