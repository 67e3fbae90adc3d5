"""Published steps of mixtures of experts next to the model's: how far off it is, and how far without all messages.

    python lab/benchmarks/expert_steps.py TRUTH/megatron_training.csv

What is left without messages says whether kernels or messages are the error: docs/accuracy.md draws on it.
"""

from __future__ import annotations

import sys

from memwall.bench.accuracy import read_measured
from memwall_lab.training import TrainingSample


def main() -> None:
    for sample in read_measured(sys.argv[1]).of(TrainingSample):
        if sample.op_class == "experts":
            step = sample.step()
            off, alone = (s / sample.measured_s - 1 for s in (step.time_s, step.time_s - step.tensor_s))
            print(f"{sample.label} {sample.sizes.width}x{sample.sizes.layers} {step.layout}: measured"
                  f" {sample.measured_s:.2f} s, modeled {off:+.0%}, without messages {alone:+.0%}, which are"
                  f" {step.tensor_s / step.time_s:.0%} of it")  # fmt: skip


if __name__ == "__main__":
    main()
