"""The section of reports/inductor.md on measured kernels: what ``profiles/measured/GPU/rows.csv`` says of the models of
Inductor's and of our generated kernels (``python lab/reports/inductor_report.py --measured``).

A row of the executor ``inductor`` is one of our groups compiled by torch.compile alone, so Inductor is asked here for the
same group alone; a row of ``generated`` is our own kernel. Needs Triton; traces each workload that has rows.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

import memwall  # noqa: E402
from memwall.core.errors import UsageError  # noqa: E402
from memwall.core.graph import Graph  # noqa: E402
from memwall.fusion.plan import Group  # noqa: E402
from memwall.fusion.pricing import DRAW_INSTRUCTIONS  # noqa: E402
from memwall.hardware.lookup import Gpu, load_gpu  # noqa: E402
from memwall.inductor import compiled, lower  # noqa: E402
from memwall.ops import Cost  # noqa: E402
from memwall.ops.launches import Stream  # noqa: E402
from memwall.perfmodel.roofline import predict_cost  # noqa: E402
from reports.accuracy_report import markdown  # noqa: E402

#: the GPU whose rows are read
GPU = "h200"
EXECUTORS = ("inductor", "generated")
#: what is furthest off, and why
NOTES = """- Inductor converts a lone convolution to channels last and back: with these copies 9 of the 13 are within 10 %. The
  first of the net, 7 by 7 over three channels, takes 281 us there and is modeled at 128.
- The batch of 2,048 products of 27 by 128 by 27 in float32 takes 30 us by the library and is modeled at 178; this is the
  model of eager products, as are the gradients of convolutions.
- The Inductor that was timed (torch 2.11) uses one random number of four, in rows and elsewhere; torch 2.13's uses all in
  kernels without rows. Of the 80 instructions for an element of a softmax and its dropout 59 draw the number, and the
  model counts 54.
- `stack+sum` by our generator: one of its three operands lies transposed, and the kernel reads it along the other axis.
- Inductor leaves two of the optimizer's ops to the library, `_foreach_div` and `_foreach_addcdiv` by a list of numbers,
  and so goes over the tensors in five kernels. `torch.compile(model)` leaves the optimizer to eager execution, and so does
  the `inductor` policy: no plan prices this row.
"""
#: characters of a group's name
SHOWN = 60


class Found(NamedTuple):
    """A row, in seconds: as modeled when it was measured, as modeled now, and measured."""

    executor: str
    name: str
    before_s: float
    after_s: float
    measured_s: float


def as_timed(cost: Cost) -> Cost:
    """The cost of a kernel that used one of the four random numbers of a call, as all did that were timed."""
    one = DRAW_INSTRUCTIONS[1]
    launches = [
        replace(each, instructions=one * each.draws) if isinstance(each, Stream) and each.draws else each
        for each in cost.launches
    ]
    return replace(cost, launches=tuple(launches))


def alone(graph: Graph, group: Group) -> tuple[Graph, list[int]]:
    """A graph of the group's ops only, what it computes again among them, and their ids in the whole graph."""
    ids = sorted((*group.op_ids, *group.recomputes))
    ops = tuple(replace(graph.ops[op], id=i, phase="forward", waits=()) for i, op in enumerate(ids))
    return replace(graph, ops=ops, inputs=group.reads, outputs=group.writes), ids


def compiled_s(graph: Graph, costs: Sequence[Cost], group: Group, gpu: Gpu) -> float:
    """Seconds of the kernels that Inductor makes of the group alone."""
    part, ids = alone(graph, group)
    with patch.object(compiled, "_numbers", return_value=1):
        plan = compiled.plan_of(part, [costs[i] for i in ids], gpu, lower(part, gpu).kernels)
    return sum(predict_cost(each.cost, gpu, launch="alone").time_s for each in plan.groups)


def modeled_now(name: str, mode: str, rows: Sequence[Mapping[str, str]], gpu: Gpu) -> Iterator[Found]:
    """The rows of a workload, next to the model of today."""
    profile = memwall.profile(ROOT / "profiles" / name / "model.py", gpu=gpu, mode=mode)
    number = profile.graph_for(gpu)
    graph, costs = profile.graphs[number], profile.costs[number]
    schedule = profile.schedule(gpu, "memwall", launch="alone")
    assert schedule.plan is not None
    groups = {(k.name, k.bytes): group for group, k in zip(schedule.plan.groups, schedule.kernels, strict=True)}
    for row in rows:
        group = groups.get((row["name"], int(row["bytes"])))
        if group is None:
            print(f"{name} {mode}: no group {row['name']} of {row['bytes']} bytes today", file=sys.stderr)
            continue
        try:
            if row["executor"] == "inductor":
                after_s = compiled_s(graph, costs, group, gpu)
            else:
                after_s = predict_cost(as_timed(group.cost), gpu, launch="alone").time_s
        except UsageError as error:
            print(f"{name} {mode}: {row['name']}: {error}", file=sys.stderr)
            continue
        yield Found(row["executor"], row["name"], float(row["modeled_s"]), after_s, float(row["measured_s"]))


def section() -> str:
    """A line for each executor and kind of group, with all its rows."""
    gpu = load_gpu(GPU)
    path = ROOT / "profiles" / "measured" / gpu.name / "rows.csv"
    with path.open(encoding="utf-8", newline="") as file:
        timed = [row for row in csv.DictReader(file) if row["status"] == "ok" and row["executor"] in EXECUTORS]
    works: dict[tuple[str, str], list[Mapping[str, str]]] = defaultdict(list)
    for row in timed:
        works[row["workload"], row["mode"]].append(row)
    groups: dict[tuple[str, str], list[Found]] = defaultdict(list)
    for (name, mode), rows in works.items():
        for found in modeled_now(name, mode, rows, gpu):
            groups[found.executor, found.name].append(found)
    order = sorted(groups, key=lambda key: (EXECUTORS.index(key[0]), -sum(f.measured_s for f in groups[key])))
    medians = ", ".join(_medians(executor, groups) for executor in EXECUTORS)
    head = "executor | group | rows | measured, us | modeled before / measured | modeled now / measured"
    return f"""## Measured kernels of Inductor and of our generator

The {gpu.full_name} timed our groups, each alone: compiled by torch.compile (`inductor`) and as our own kernels
(`generated`). Before: the model when they were measured, which had one model of a group for both. Now: of `inductor` the
kernels that Inductor makes of the group alone (what the `inductor` policy prices), of `generated` our kernel; random
numbers at the instructions that they take, one of four used, as in all that was timed. Rows of one name are summed.
The median error of a row is {medians}.
Written by `python lab/reports/inductor_report.py --measured`.

{markdown(head, [_line(*key, groups[key]) for key in order])}

{NOTES}"""


def _medians(executor: str, groups: Mapping[tuple[str, str], Sequence[Found]]) -> str:
    rows = [found for key, some in groups.items() if key[0] == executor for found in some]
    before = median(abs(found.before_s / found.measured_s - 1) for found in rows)
    now = median(abs(found.after_s / found.measured_s - 1) for found in rows)
    return f"{100 * before:.1f} % before and {100 * now:.1f} % now of `{executor}` ({len(rows)} rows)"


def _line(executor: str, name: str, rows: Sequence[Found]) -> tuple[str, ...]:
    before_s, after_s, measured_s = (sum(column) for column in list(zip(*rows, strict=True))[2:])
    shown = name if len(name) <= SHOWN else f"{name[:SHOWN]}..."
    ratios = (f"{before_s / measured_s:.2f}", f"{after_s / measured_s:.2f}")
    return executor, shown.replace("_", "\\_"), str(len(rows)), f"{1e6 * measured_s:,.1f}", *ratios
