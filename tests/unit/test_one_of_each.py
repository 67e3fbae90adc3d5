"""One of each thing: the one module that has the code for it. A second place is a decision: it changes a row here."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import memwall

PACKAGE = Path(memwall.__file__).parent

#: thing, what only the code for it contains, where that stands
ROWS = [
    ("the launch queue", r"^def queue\(", "simulate/launch_queue.py"),
    ("the time of a kernel", r"^class (Prediction|Estimate)\b", "perfmodel/roofline.py"),
    ("what limits a kernel", r"def limited_by\(self", "perfmodel/roofline.py"),
    ("the cost of an op", r"^class Cost\b", "ops/base.py"),
    ("records read by type hints", r"^def _make_check\(", "core/structure.py"),
    ("JSON files", r"parse_constant", "core/files.py"),
    ("a plan simulated", r"(?<!def )\bsimulate\(", "record/schedules.py"),
    ("which way a quantity is better", r"lower: bool", "analysis/quantities.py"),
    ("rows grouped and summed", r"^def group_by\(", "analysis/table.py"),
    ("results rendered", r"^def render\(", "report/kinds.py"),
    ("ops of two profiles matched", r"^def match_ops|^class Matching", "analysis/matching.py"),
    ("modeled next to measured", r"^class Pair\b", "analysis/validation/pairs.py"),
    ("child processes", r"Popen\(", "core/process.py"),
    ("samples bootstrapped", r"bootstrap(?!-port)", "bench/stats.py"),
    ("the state of the machine", r"/proc/", "bench/machine.py"),
    ("a graph evaluated", r"^def evaluate\(\n", "ops/evaluate.py"),
    ("repeated layers found", r"^def find_runs\(", "core/layers.py"),
    ("compute capabilities", r'"sm_80":', "hardware/chips.py"),
    ("files of GPUs and clusters", r"^def packaged\(", "hardware/files.py"),
    ("stages of a rank", r"^class Ranks\b", "training/memory.py"),
    ("gradients between replicas", r'"all_reduce" if .*fsdp', "training/memory.py"),
    ("the half that constants see", r"sha256\(text\.encode", "bench/accuracy/halves.py"),
    ("links", r"^class Link\b", "hardware/links.py"),
    ("names suggested", r"get_close_matches", "core/errors.py"),
    ("what an option is", r"^class Option\b", "core/question.py"),
    ("what wings offer", r"^WINGS\b", "wings.py"),
    ("a step of a server", r"^def simulate_requests\(", "serving/simulation/requests.py"),
    ("the steady state of a server", r"^def steady_state\(", "serving/simulation/steady.py"),
    ("a step under a layout", r"^def training_step\(", "training/step.py"),
    ("what a point of a sweep is", r"^class PointKind\b", "points.py"),
    ("prices read", r"^def prices_of\(", "hardware/prices.py"),
    ("an op that is left out", r"^class Unsupported\b", "core/errors.py"),
]


@cache
def sources():
    return {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}


def test_no_two_classes_have_one_name():
    found = Counter(
        name for text in sources().values() for name in re.findall(r"^ *class (\w+)[:(]", text, re.MULTILINE)
    )
    assert [name for name, count in found.items() if count > 1] == []


@pytest.mark.parametrize(("pattern", "module"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_there_is_one(pattern, module):
    assert [name for name, text in sources().items() if re.search(pattern, text, re.MULTILINE)] == [module]
