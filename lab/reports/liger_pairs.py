"""Write reports/liger_pairs.md: modeled gains of fusion beside measured ones, where the measured rows are at hand.

python lab/reports/liger_pairs.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

from benchmarks.liger_pairs import Row, median_factor, read, score, signs  # noqa: E402
from memwall.hardware.lookup import load_gpu  # noqa: E402
from tests.unit.places import truth  # noqa: E402

#: kernel -> what the unfused side runs, and what the fused side computes
DEFINITIONS = {
    "rms_norm": ("Llama's, input bfloat16 [2048, H], weight float32, so that the output is float32",
                 "the same with a bfloat16 weight and output, as Liger's kernel computes it"),
    "fused_add_rms_norm": ("residual added, then as above; float32 [2048, H]", "the same"),
    "layer_norm": ("nn.LayerNorm, float32 [4096, N]", "the same"),
    "softmax": ("nn.Softmax over rows of [2048, N]", "the same"),
    "rope": ("Llama's apply_rotary_pos_emb on queries and keys [1, heads, T, size], bfloat16, transposed views", "the same"),
    "cross_entropy": ("nn.CrossEntropyLoss, float32 [16384, V]; the gradient is added to the logits' `.grad`",
                      "the gradient made in forward, over the logits; its memory is that of `.grad`"),
    "swiglu": ("Llama's whole MLP, three products and SiLU, bfloat16", "the same"),
    "geglu": ("the same with tanh GELU", "the same"),
    "embedding": ("nn.Embedding, float32 [V, D], 16,384 ids", "rows fetched; backward adds atomically into zeros"),
}  # fmt: skip

#: why rows are off, from the absolute times of both sides
REASONS = """- **Liger's row backward** (`rms_norm`, `fused_add_rms_norm`, `layer_norm` backward, long rows): one program per
  multiprocessor walks over rows and keeps a row's column sums in registers; from 16,384 columns on these do not fit and
  it takes 2.7 to 4.5 times as long as its bytes (A100: 0.32 ms and 1.06 ms at 16,384 and 32,768 bfloat16 columns). Our
  plan is another kernel, with partial sums, and is modeled faster.
- **Host-bound rows** (fused, small): a Python `autograd.Function` around Triton launches keeps the host busy for longer
  than the kernels run: 0.36 to 0.46 ms for a step, on hosts that differ from GPU to GPU. One median stands for all.
- **`softmax`, full, 2048 columns**: host-bound too, and measured between 0.09 and 0.28 ms (20th and 80th percentile).
- **`swiglu`**: the fused MLP is measured 10 % slower at T=1024 and equal at T=4096; the products are the same, and we say
  1.02 throughout.
- **`layer_norm` of 1024 columns**: the kernel for the gradients of weight and bias has few blocks there, which the model
  does not know: unfused backward comes out a third too fast."""


def table(head: str, rows: Sequence[Sequence[object]], rest: str = "---:|") -> str:
    """A Markdown table; columns behind the first are aligned as ``rest`` says."""
    columns = [column.strip() for column in head.split("|")]
    lines = [f"| {' | '.join(columns)} |", "|---|" + rest * (len(columns) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def text(rows: Sequence[Row]) -> str:
    """The report of scored rows."""
    right, clear = signs(rows)
    within = sum(abs(row.error) <= 0.2231 for row in rows)  # log 1.25
    return f"""# Fused and unfused, modeled and measured

{len(rows)} measured pairs of [Liger-Kernel](https://github.com/linkedin/Liger-Kernel) (benchmark/data at ead96b6,
BSD-2-Clause, LinkedIn; the rows are not shipped, their ratios are shown here): the same layer in eager PyTorch and as
Liger's Triton kernels. Gain is unfused over fused time. Ours: op by op, and as our planner fuses it, each rebuilt as the
benchmark script runs it (`lab/benchmarks/liger_pairs.py`).

- Half of the modeled gains are within a factor of **{median_factor(rows):.2f}** of the measured; {within} of {len(rows)} within 1.25.
- Where the measured gain or loss is above 10 %, **{right} of {clear}** fall on the right side of 1.
- Whole SwiGLU and GeGLU MLPs, measured at {_range(rows, lambda r: r.measured_gain, "glu")}: ours {_range(rows, lambda r: r.modeled_gain, "glu")}.
- Absolute times: half of the unfused within a factor of {_median(rows, 0):.2f}, half of the fused within {_median(rows, 1):.2f}.

## By kernel

{table("kernel, mode, GPU | rows | measured gain | modeled gain | median factor | unfused off by | fused off by", _by_kernel(rows))}

Off by: median of modeled over measured time.

## What is compared

{_definitions()}

`forward`, `backward` and `full` (both) are timed by `triton.testing.do_bench`: it clears 256 MiB before each run, and the
host issues meanwhile. A run takes as long as its kernels, or as long as the host where that is longer than clearing and
kernels together. Host times are medians of the host-bound rows (`EAGER_CALL_S`, `FUNCTION_S`); the device's times are the
model's own. `full` of the MLPs and of `embedding` draws the random gradient inside the timed region. Gradients of weights
are added to what is there.

## Why rows are off

{REASONS}

## All rows

{table("kernel, mode, GPU, size | measured gain | modeled gain | unfused off by | fused off by", _all(rows))}
"""


def _by_kernel(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    lines = []
    for key, group in groupby(sorted(rows, key=_key), key=_key):
        part = list(group)
        lines.append((
            ", ".join(key), str(len(part)), _span([r.measured_gain for r in part]),
            _span([r.modeled_gain for r in part]), f"{median_factor(part):.2f}", f"{_bias(part, 0):.2f}",
            f"{_bias(part, 1):.2f}",
        ))  # fmt: skip
    return lines


def _all(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    return [
        (f"{', '.join(_key(r))}, {_size(r)}", f"{r.measured_gain:.2f}", f"{r.modeled_gain:.2f}",
         f"{r.modeled[0] / r.measured[0]:.2f}", f"{r.modeled[1] / r.measured[1]:.2f}")
        for r in sorted(rows, key=lambda r: (_key(r), str(r.config), r.size))
    ]  # fmt: skip


def _key(row: Row) -> tuple[str, str, str]:
    return row.kernel, row.mode, load_gpu(row.gpu).name


def _size(row: Row) -> str:
    kind = row.config.get("dtype", "").removeprefix("torch.") if row.kernel == "softmax" else ""
    width = f" D={row.config['D']}" if "D" in row.config else ""
    return f"{row.axis}={row.size}{width} {kind}".strip()


def _definitions() -> str:
    return table("kernel | unfused | fused", [(name, *sides) for name, sides in DEFINITIONS.items()], "---|")


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _range(rows: Sequence[Row], value: Callable[[Row], float], suffix: str) -> str:
    return _span([value(row) for row in rows if row.kernel.endswith(suffix)])


def _ratios(rows: Sequence[Row], side: int) -> list[float]:
    return sorted(row.modeled[side] / row.measured[side] for row in rows)


def _bias(rows: Sequence[Row], side: int) -> float:
    ratios = _ratios(rows, side)
    return (ratios[(len(ratios) - 1) // 2] + ratios[len(ratios) // 2]) / 2


def _median(rows: Sequence[Row], side: int) -> float:
    factors = sorted(max(ratio, 1 / ratio) for ratio in _ratios(rows, side))
    return (factors[(len(factors) - 1) // 2] + factors[len(factors) // 2]) / 2


def liger_pairs() -> str | None:
    """The report, or None where the measured rows are not at hand."""
    path = truth("liger_pairs.csv")
    return None if path is None else text(score(read(path)))


if __name__ == "__main__":
    report = liger_pairs()
    if report is None:
        sys.exit("truth/liger_pairs.csv is not here; set MEMWALL_SHARED to the folder that has it")
    (Path(__file__).parent / "liger_pairs.md").write_text(report, encoding="utf-8")
