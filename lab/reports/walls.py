"""reports/walls.md: the share of a step's time in kernels that each wall limits, before and after latency was a wall.

    python lab/reports/walls.py             write it
    python lab/reports/walls.py --shares    print the shares alone, as CSV

``reports/walls_before.csv`` is what ``--shares`` printed with the package of commit 1f20135 (``PYTHONPATH`` set to its
checkout), where instructions, dependent steps and clocks of row kernels counted as memory. Nothing is timed.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import memwall

ROOT = Path(__file__).parents[2]
HERE = ROOT / "reports"
BEFORE = HERE / "walls_before.csv"
GPUS = ("a100-80gb-sxm", "h100-sxm")
WALLS = ("compute", "bandwidth", "latency", "overhead")
#: name -> config of transformers (None: profiles/bert_large) and the size of a step
WORKLOADS: dict[str, tuple[dict[str, Any] | None, dict[str, int]]] = {
    "BERT-large": (None, {}),
    "GPT-2-small": ({"model_type": "gpt2"}, {"batch": 8, "seq": 1024}),
    "Gemma-2-2B": (
        {"model_type": "gemma2", "num_hidden_layers": 26, "hidden_size": 2304, "intermediate_size": 9216,
         "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000},
        {"batch": 1, "seq": 1024},
    ),
    "Mamba-130M": (
        {"model_type": "mamba", "num_hidden_layers": 24, "hidden_size": 768, "state_size": 16, "vocab_size": 50280},
        {"batch": 1, "seq": 128},
    ),
}  # fmt: skip
MODES = ("inference", "training")

#: workload, mode, GPU -> seconds of the step, and the share of each wall
Shares = dict[tuple[str, str, str], tuple[float, dict[str, float]]]


def shares() -> Iterator[tuple[str, str, str, float, dict[str, float]]]:
    """One row for each workload, mode and GPU; with public names alone, so that an older package can run it."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (config, size) in WORKLOADS.items():
            target: str | Path = HERE.parent / "profiles" / "bert_large" / "model.py"
            if config:
                path = Path(folder) / f"{name}.json"
                path.write_text(json.dumps(config), encoding="utf-8")
                target = f"hf:{path}"
            for mode in MODES:
                print(f"{name}, {mode}", file=sys.stderr)
                profile = memwall.profile(target, gpu=list(GPUS), mode=mode, dtype="bf16", **size)
                for schedule in profile.simulations:
                    total_s = sum(kernel.time_s for kernel in schedule.kernels)
                    found = dict.fromkeys(WALLS, 0.0)
                    for kernel in schedule.kernels:
                        found[kernel.limited_by] += kernel.time_s / total_s
                    yield name, mode, schedule.gpu.name, schedule.totals.time_s, found


def saved() -> Shares:
    """What the earlier package printed."""
    with BEFORE.open(encoding="utf-8", newline="") as lines:
        return {
            (row["workload"], row["mode"], row["gpu"]): (
                float(row["time_s"]), {wall: float(row[wall]) for wall in WALLS},
            )
            for row in csv.DictReader(lines)
        }  # fmt: skip


def report() -> str:
    """The report as Markdown."""
    before = saved()
    lines = [
        "# Which wall limits a step: before and after latency was one", "",
        "Shares of the modeled time of an eager step in bf16, by the wall that limits each kernel. Before (commit",
        "1f20135), instructions, dependent steps and clocks of row kernels counted as memory or overhead. Times also hold",
        "what else has changed: an eager op took the CPU 5 us then, and takes it what the host `bare-metal` states now.",
        "`python lab/reports/walls.py` writes this; its first lines say how the older figures, `reports/walls_before.csv`, were made.",
        "",
        "| workload | step | GPU | time, ms | compute, % | bandwidth, % | latency, % | overhead, % |",
        "|:---|:---|:---|:---|:---|:---|:---|:---|",
    ]  # fmt: skip
    for name, mode, gpu, time_s, found in shares():
        old_s, old = before[name, mode, gpu]
        cells = [f"{1e3 * old_s:.2f} → {1e3 * time_s:.2f}"]
        cells += [f"{100 * old[wall]:.1f} → {100 * found[wall]:.1f}" for wall in WALLS]
        lines.append(f"| {name} | {mode} | {gpu} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    if "--shares" not in sys.argv[1:]:
        (HERE / "walls.md").write_text(report(), encoding="utf-8")
        return
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(("workload", "mode", "gpu", "time_s", *WALLS))
    for name, mode, gpu, time_s, found in shares():
        out.writerow((name, mode, gpu, f"{time_s:.6g}", *(f"{found[wall]:.4f}" for wall in WALLS)))


if __name__ == "__main__":
    main()
