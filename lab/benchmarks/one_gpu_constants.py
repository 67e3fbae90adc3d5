"""Published steps of llm-foundry with the one constant that is fitted to their GPUs, the share of their rate that
products hold for hours, taken from each GPU's own rows, and from the rows of one GPU alone.

    python lab/benchmarks/one_gpu_constants.py TRUTH/llmfoundry_training.csv

The mean error in percent by GPU, and of all: docs/accuracy.md draws on it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import replace

from memwall.bench.accuracy import read_measured
from memwall.hardware.lookup import load_gpu
from memwall_lab.training import TrainingSample


def main() -> None:
    samples = read_measured(sys.argv[1]).of(TrainingSample)
    of = {"their own": None, **{f"{name} alone": load_gpu(name).trained_products for name in ("a100-80gb", "h100-sxm")}}
    for words, share in of.items():
        errors: defaultdict[str, list[float]] = defaultdict(list)
        for each in samples:
            gpu = each.gpu if share is None else replace(each.gpu, trained_products=share)
            off = abs(replace(each, gpu=gpu).step().time_s / each.measured_s - 1)
            errors[each.label].append(off)
            errors["all"].append(off)
        means = (f"{label} {100 * sum(rows) / len(rows):.1f} ({len(rows)})" for label, rows in sorted(errors.items()))
        print(f"constant of {words}: {', '.join(means)}")


if __name__ == "__main__":
    main()
