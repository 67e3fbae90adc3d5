"""Seconds that a table of problems takes, and one question in a process that is warm.

    python lab/benchmarks/bound_speed.py [--problems 1000] [--gpu h100]

Each problem is traced, planned and priced on its own: products, attention, norms, losses and convolutions of different
sizes. Prints what it saw.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from pathlib import Path
from statistics import median

from memwall import bound
from memwall.bounding.problems import read_problems, solved
from memwall.hardware.lookup import load_gpus

KINDS = (
    "mm(bf16[{n},{m}], bf16[{m},{n}])",
    "x = f16[{n},{m}]; softmax(x + 1, -1)",
    "layer_norm(bf16[{n},{m}], ({m},))",
    "scaled_dot_product_attention(bf16[2,8,{n},64], bf16[2,8,{n},64], bf16[2,8,{n},64], is_causal=True)",
    "cross_entropy(f32[{n},{m}], i64[{n}])",
    "gelu(bf16[{n},{m}] @ bf16[{m},{n}]) * 2",
    "conv2d(f16[8,64,{k},{k}], f16[64,64,3,3], padding=1)",
    "relu(f32[{n},{m}]).sum(-1)",
)
WARM = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--gpu", default="h100")
    asked = parser.parse_args()
    texts = [
        KINDS[i % len(KINDS)].format(n=128 + 8 * i, m=256 + 16 * (i // 7), k=14 + i % 50) for i in range(asked.problems)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problems.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["problem"], *([text] for text in texts)])
        begin, cpu = time.perf_counter(), time.process_time()
        made = solved(read_problems(str(path), load_gpus([asked.gpu])), "eager")
        print(
            f"{len(made):,} problems on {asked.gpu}: {time.perf_counter() - begin:.1f} s,"
            f" {time.process_time() - cpu:.1f} s of CPU; {sum(bool(row.error) for row in made)} without an answer"
        )
    seconds = []
    for number in range(WARM):
        begin = time.perf_counter()
        bound(texts[number % len(KINDS)], gpu=asked.gpu, policy=["eager", "memwall"])
        seconds.append(time.perf_counter() - begin)
    print(f"one question, warm, libraries and memwall's kernels: median {median(seconds):.3f} s of {WARM}")


if __name__ == "__main__":
    main()
