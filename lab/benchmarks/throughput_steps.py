"""Rows of the largest throughput next to the model's: how far off each is, and the decode step that it implies.

    python lab/benchmarks/throughput_steps.py TRUTH/trtllm_throughput.csv [MODEL]

The implied step is the modeled one times measured over modeled seconds per token: what is missing shows as a difference
that follows the batch, the lengths, or neither. reports/serving.md draws on it.
"""

from __future__ import annotations

import sys

from memwall.bench.accuracy import read_measured
from memwall.core.errors import UsageError
from memwall_lab.deployments import Deployment, Engines


def main() -> None:
    engines, wanted = Engines(), sys.argv[2] if len(sys.argv) > 2 else ""
    for deployment in read_measured(sys.argv[1]).of(Deployment):
        if wanted not in deployment.name:
            continue
        layout = deployment.decodes.layout
        try:
            steps = engines.of(deployment, deployment.decodes)
            load = deployment._load(steps)
            run = deployment._run(engines, steps, load)
        except UsageError as error:
            print(f"{deployment.name} {deployment.label} {deployment.shape}: {error}")
            continue
        prompt, made = load.prompt.nominal, load.generate.nominal
        ratio = steps.layout.gpus / run.tokens_per_s / deployment.measured["GPU seconds per token"]
        step_s = steps.step_s(round(run.batch), round(run.batch * (prompt + made / 2)))
        print(f"{deployment.name} {deployment.label} {deployment.shape}: {ratio - 1:+.0%}, {run.batch / layout.dp:.0f}"
              f" sequences a group, step {1e3 * step_s:.1f} ms, implied {1e3 * step_s / ratio:.1f} ms")  # fmt: skip


if __name__ == "__main__":
    main()
