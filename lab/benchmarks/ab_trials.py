"""How often the measured gate is right, on this machine's CPU: trials with a known right outcome.

    python lab/benchmarks/ab_trials.py                   20 equal, 20 with 10 % more work, 10 next to a stress process
    python lab/benchmarks/ab_trials.py --trials 3        fewer of each
    python lab/benchmarks/ab_trials.py --only slower     one kind
    python lab/benchmarks/ab_trials.py -o trials.json    every result with its samples as well

The model is ten equal layers. Equal: both sides have the same file, in two folders. Slower: the head has eleven layers,
1.1 times the FLOPs, which memwall counts first. Stress: equal sides next to two busy processes; right is
``inconclusive``. A verdict needs a quiet machine: the load before the trials is printed first, and ``inconclusive`` is
counted separately from right and wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

from memwall import profile  # noqa: E402
from memwall.bench.ab import ABResult, Rules, Side, run_ab  # noqa: E402
from memwall.bench.ab.run import TIME_LIMIT_S  # noqa: E402
from memwall.bench.machine import read_counters  # noqa: E402

MODEL = """\
import torch
from torch import nn

def model():
    return nn.Sequential(*(m for _ in range({layers}) for m in (nn.Linear(512, 512), nn.ReLU())))

def inputs(batch=64):
    return (torch.randn(batch, 512),)
"""
LAYERS, LAYERS_SLOWER = 10, 11
TARGET = "models/net.py"
ALLOWED = 0.05
BUSY = "while True: pass"
BUSY_PROCESSES = 2


@dataclass(frozen=True)
class Kind:
    """Trials of one kind: how many layers the head has, what else runs, how many trials, the outcome that is right
    and the one that is wrong."""

    layers: int
    busy: int
    trials: int
    #: seconds of a trial at most; if the machine is never quiet, more would only wait longer
    seconds: float
    right: str
    wrong: str


KINDS = {
    "equal": Kind(LAYERS, 0, 20, TIME_LIMIT_S, "pass", "fail"),
    "slower": Kind(LAYERS_SLOWER, 0, 20, TIME_LIMIT_S, "fail", "pass"),
    "stress": Kind(LAYERS, BUSY_PROCESSES, 10, 20.0, "inconclusive", "fail"),
}


def checkout(folder: Path, layers: int) -> Side:
    """A folder with the model in it."""
    path = folder / TARGET
    path.parent.mkdir(parents=True)
    path.write_text(MODEL.format(layers=layers), encoding="utf-8")
    return Side(folder, TARGET)


def flops(side: Side) -> int:
    """FLOPs of a forward pass, as memwall counts them."""
    return profile(side.folder / side.target, gpu="h100").flops


@contextlib.contextmanager
def stressed(count: int) -> Iterator[None]:
    """Keep some processes busy."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def others_now(seconds: float = 2.0) -> float:
    """Share of the machine's time that other processes take right now."""
    before = read_counters()
    time.sleep(seconds)
    usage = before.usage(read_counters())
    return usage.others_s / usage.capacity_s


def trial(number: int, kind: Kind) -> tuple[ABResult, float]:
    """One benchmark and the seconds that it took."""
    with TemporaryDirectory() as folder, stressed(kind.busy):
        base, head = (checkout(Path(folder, name), n) for name, n in (("base", LAYERS), ("head", kind.layers)))
        began = time.monotonic()
        return run_ab(base, head, Rules(ALLOWED, seconds=kind.seconds, seed=number)), time.monotonic() - began


def show(number: int, name: str, result: ABResult, took_s: float) -> None:
    """A row of the table."""
    figures = "        -        -        -     -"
    if result.ratio is not None:
        figures = f"{result.ratio:9.3f}{result.low:9.3f}{result.high:9.3f}{result.smallest_detectable:6.1%}"
    print(
        f"{name:8}{number:4}  {result.verdict:13}{figures}{result.blocks:7}{result.dropped:8}{took_s:6.1f}"
        f"  {'; '.join(result.reasons)}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, help="of each kind; as above where not said")
    parser.add_argument("--only", choices=KINDS, help="one kind of trials")
    parser.add_argument("-o", "--output", type=Path, help="JSON with every result")
    arguments = parser.parse_args()
    kinds = {name: kind for name, kind in KINDS.items() if arguments.only in (None, name)}

    with TemporaryDirectory() as folder:
        counts = [flops(checkout(Path(folder, str(n)), n)) for n in (LAYERS, LAYERS_SLOWER)]
    print(f"FLOPs of base and slower head: {counts[0]:,} and {counts[1]:,}: {counts[1] / counts[0]:.4f} times")
    print(f"other processes take {others_now():.0%} of this machine's time before the first trial")
    print("\nkind    trial  verdict           ratio      low     high shows rounds dropped     s  why")

    found: dict[str, list[ABResult]] = {name: [] for name in kinds}
    for name, kind in kinds.items():
        for number in range(arguments.trials or kind.trials):
            result, took_s = trial(number, kind)
            found[name].append(result)
            show(number, name, result, took_s)

    print(f"\nat {ALLOWED:.0%} allowed:")
    for name, results in found.items():
        kind, verdicts = kinds[name], Counter(c.verdict for c in results)
        others = ", ".join(f"{verdict} {count}" for verdict, count in sorted(verdicts.items()))
        print(
            f"{name:8}{verdicts[kind.right]} of {len(results)} {kind.right} (right),"
            f" {verdicts[kind.wrong]} {kind.wrong} (wrong); {others}"
        )
    if arguments.output:
        record = {name: [c.to_dict() for c in results] for name, results in found.items()}
        arguments.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
