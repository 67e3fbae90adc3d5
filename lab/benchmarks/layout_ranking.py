"""Whether the model finds the fastest of the layouts that others timed: where it stands in the model's order.

    python lab/benchmarks/layout_ranking.py TRUTH/vtrain_training.csv

A question is a model, a global batch and a number of GPUs of which several layouts were timed.
"""

from __future__ import annotations

import sys

from memwall.bench.accuracy import read_measured
from memwall_lab.training import TrainingSample


def main() -> None:
    questions: dict[tuple[object, ...], list[TrainingSample]] = {}
    for sample in read_measured(sys.argv[1]).of(TrainingSample):
        layout = sample.layout
        batch = sample.microbatch * layout.microbatches * layout.dp
        questions.setdefault((sample.op_class, sample.sizes, batch, layout.world), []).append(sample)
    found = []
    for samples in questions.values():
        fastest = min(samples, key=lambda sample: sample.measured_s)
        seconds = sorted(sample.step().time_s for sample in samples)
        found.append((len(samples), 1 + seconds.index(fastest.step().time_s)))
    for least in (2, 3):
        places = [place for count, place in found if count >= least]
        shares = (f"{sum(place <= n for place in places) / len(places):.0%} among the first {n}" for n in (1, 2, 3))
        print(f"{least} layouts or more: the fastest of {len(places)} questions is {', '.join(shares)}")


if __name__ == "__main__":
    main()
