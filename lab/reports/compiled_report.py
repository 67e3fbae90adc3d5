"""Write reports/compiled.md: KernelBench's modules under torch.compile, modeled and measured, where these are at hand.

    python lab/reports/compiled_report.py [GPU...]

Inductor's decisions need Triton and take minutes for each GPU. They are kept in build/compiled/, a file for each GPU and
module, so that a second run goes on where the first ended. With names of GPUs the command takes the decisions for these
and writes no page, so that several can run at once.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

import torch  # noqa: E402

from memwall.bench.accuracy import TimedRow, read_measured  # noqa: E402
from memwall.core.files import read_json, write_whole  # noqa: E402
from memwall.core.graph import Op  # noqa: E402
from memwall.core.structure import read, write  # noqa: E402
from memwall.hardware.lookup import load_gpu  # noqa: E402
from memwall.inductor import LoweredKernel  # noqa: E402
from memwall.inductor.autotuned import with_choices  # noqa: E402
from memwall.inductor.compiled import kernels_of, plan_of  # noqa: E402
from memwall.perfmodel.roofline import TEMPLATE_REACHED  # noqa: E402
from memwall_lab.modules import ModuleSample  # noqa: E402
from reports.accuracy_report import MODULES, markdown  # noqa: E402
from tests.unit.places import truth  # noqa: E402

EAGER = "eager"
#: way of the table → launch of the schedule; of the modes that keep the quickest of several kernels
WAYS = {"compile_inductor_default": "call", "compile_inductor_reduce-overhead": "replay"}
AUTOTUNED = {"compile_inductor_max-autotune-no-cudagraphs": "call", "compile_inductor_max-autotune": "replay"}
#: compiled code that takes longer or shorter by more than this is slower or faster
EQUAL = 0.02
#: median factor of the ratio's error, shares of right signs and of slower modules that are named
FACTOR_GOAL, SIGN_GOAL, NAMED_GOAL = 1.15, 0.80, 0.60
#: what torch 2.5 left to the library under torch.compile (make_fallback, torch/_inductor/lowering.py)
LIBRARY = (torch.ops.aten.max_pool3d_with_indices.default,)
#: rows of the table of the largest errors
LISTED = 15


class Pair(NamedTuple):
    """A module on one GPU, compiled and eager; of :data:`KINDS` the one that it is."""

    compiled: TimedRow
    eager: TimedRow
    kind: str = ""

    @property
    def modeled(self) -> float:
        """Compiled over eager time."""
        return self.compiled.modeled_s / self.eager.modeled_s

    @property
    def measured(self) -> float:
        return self.compiled.measured_s / self.eager.measured_s

    @property
    def factor(self) -> float:
        """How far the modeled ratio is from the measured one, 1 or more."""
        return max(self.modeled / self.measured, self.measured / self.modeled)


class Range(NamedTuple):
    """A module under max-autotune: with the kernels of the default mode, and with kernels that timing may choose."""

    default: TimedRow
    chosen: TimedRow
    #: kernels whose choice is open
    choices: int


def sign(ratio: float) -> str:
    """What compiling does to the time."""
    return "slower" if ratio > 1 + EQUAL else "faster" if ratio < 1 - EQUAL else "equal"


#: what a module is made of, told by its ops
KINDS: Mapping[str, Callable[[Sequence[Op]], bool]] = {
    "recurrent layers": lambda ops: any("rnn" in op.name for op in ops),
    "a product alone": lambda ops: [op.op_class for op in ops] == ["contraction"],
    "a linear layer and element-wise ops": lambda ops: len(ops) > 1 and _begins_with_a_layer(ops),
    "a depthwise convolution alone": lambda ops: len(ops) == 1 and _is_depthwise(ops[0]),
}


def kind_of(sample: ModuleSample) -> str:
    """The kind of a module; empty if it is of none."""
    profile = sample.ran()
    ops = profile.graphs[profile.graph_for(sample.gpu)].ops
    return next((kind for kind, fits in KINDS.items() if fits(ops)), "")


def _begins_with_a_layer(ops: Sequence[Op]) -> bool:
    return ops[0].name == "aten.addmm" and all(op.op_class == "elementwise" for op in ops[1:])


def _is_depthwise(op: Op) -> bool:
    return op.op_class == "convolution" and op.attributes.get("groups", 1) > 1


# -- Inductor's decisions ----------------------------------------------------------------------------------------------


def decisions_folder() -> Path:
    """Where decisions are kept: decisions of another torch, of other code or of other library ops are not these."""
    code = sorted((ROOT / "memwall" / "inductor").rglob("*.py"))
    digest = hashlib.sha256(
        b"".join([torch.__version__.encode(), str(LIBRARY).encode(), *(path.read_bytes() for path in code)])
    )
    return ROOT / "build" / "compiled" / digest.hexdigest()[:12]


@contextlib.contextmanager
def as_timed() -> Iterator[None]:
    """Inductor as of the torch that was timed, 2.5 (KernelBench's requirements.txt): it calls :data:`LIBRARY` and has no
    kernel for it. A run of the newest torch generates one."""
    from torch._inductor import decomposition, lowering

    calls = {op: lowering.fallback_handler(op) for op in LIBRARY}
    kept = {op: made for op, made in decomposition.decompositions.items() if op not in LIBRARY}
    with patch.dict(lowering.lowerings, calls), patch.dict(decomposition.decompositions, kept, clear=True):
        yield


def decided(folder: Path, eager: ModuleSample) -> list[LoweredKernel]:
    """Inductor's kernels of a module on a GPU. Raises UsageError: it refuses the module."""
    path = folder / eager.gpu.name / f"{eager.module}.json"
    if not path.exists():
        profile = eager.ran()
        with as_timed():
            kernels = kernels_of(profile.graphs[profile.graph_for(eager.gpu)], eager.gpu).kernels
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps([write(kernel) for kernel in kernels]))
    return [read(LoweredKernel, row, str(path)) for row in read_json(path)]


def compiled(eager: ModuleSample, way: str, measured_s: float, kernels: Sequence[LoweredKernel]) -> ModuleSample:
    """The sample of a module that ran in one of the ways; before a replay its inputs are copied."""
    op_class, launch = eager.op_class.replace(EAGER, way), {**WAYS, **AUTOTUNED}[way]
    sample = replace(eager, op_class=op_class, policy="inductor", launch=launch, measured_s=measured_s)
    ran = sample.ran()
    number = ran.graph_for(eager.gpu)
    graph = ran.graphs[number]
    copies = len(graph.inputs) if sample.launch == "replay" else 0
    moved = [
        replace(k, op_ids=tuple(i + copies for i in k.op_ids), recomputes=tuple(i + copies for i in k.recomputes))
        for k in kernels
    ]
    return replace(sample, plan=plan_of(graph, ran.costs[number], eager.gpu, moved))


def measured_times(path: Path) -> dict[tuple[str, str, str], float]:
    """(GPU, way, module) → seconds."""
    lines = (line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return {(row["gpu"], row["way"], row["module"]): float(row["mean_ms"]) / 1e3 for row in csv.DictReader(lines)}


def pairs_of(path: Path, samples: Sequence[ModuleSample]) -> Iterator[Pair]:
    """Each module in each of :data:`WAYS` that was timed, next to its eager time."""
    times, folder = measured_times(path), decisions_folder()
    for sample in samples:
        kernels, eager, kind = decided(folder, sample), sample.row(), kind_of(sample)
        for way in WAYS:
            if time_s := times.get((sample.label, way, sample.module)):
                yield Pair(compiled(sample, way, time_s, kernels).row(), eager, kind)


def ranges_of(path: Path, samples: Sequence[ModuleSample]) -> Iterator[Range]:
    """Each module in each way of :data:`AUTOTUNED` that was timed."""
    times, folder = measured_times(path), decisions_folder()
    for sample in samples:
        for way in AUTOTUNED:
            if time_s := times.get((sample.label, way, sample.module)):
                default = compiled(sample, way, time_s, decided(folder, sample))
                assert default.plan is not None
                ran = default.ran()
                plan = with_choices(ran.graphs[ran.graph_for(sample.gpu)], default.plan, sample.gpu)
                choices = sum(group.cost.template is not None for group in plan.groups)
                yield Range(default.row(), replace(default, plan=plan).row(), choices)


# -- the page ----------------------------------------------------------------------------------------------------------


def scores(pairs: Sequence[Pair]) -> Iterator[tuple[str, ...]]:
    """One line for each GPU and way, then its levels; goals are of all its modules."""
    for gpu, way in sorted({(p.compiled.gpu, way_of(p.compiled)) for p in pairs}):
        own = [p for p in pairs if (p.compiled.gpu, way_of(p.compiled)) == (gpu, way)]
        label = f"{gpu}, {way.removeprefix('compile_inductor_')}"
        factor, right, named = _signs(own)
        met = factor <= FACTOR_GOAL and right >= SIGN_GOAL and named >= NAMED_GOAL
        yield line(label, "all", own, "yes" if met else "NO")
        for level in sorted({p.compiled.op_class.removesuffix(f" {way}") for p in own}):
            yield line(label, level, [p for p in own if p.compiled.op_class.startswith(level)], "")


def way_of(row: TimedRow) -> str:
    return row.op_class.rsplit(" ", 1)[1]


def _signs(pairs: Sequence[Pair]) -> tuple[float, float, float]:
    """The figures that have a goal: median factor, share of right signs, share of the slower that are named."""
    slower = [p for p in pairs if sign(p.measured) == "slower"]
    named = sum(sign(p.modeled) == "slower" for p in slower) / len(slower) if slower else 1.0
    return median(p.factor for p in pairs), sum(sign(p.modeled) == sign(p.measured) for p in pairs) / len(pairs), named


def line(label: str, level: str, pairs: Sequence[Pair], met: str) -> tuple[str, ...]:
    errors = [p.compiled.error for p in pairs]
    measured, modeled = [sign(p.measured) for p in pairs], [sign(p.modeled) for p in pairs]
    factor, right, _ = _signs(pairs)
    slower, said = measured.count("slower"), modeled.count("slower")
    found = sum(a == b == "slower" for a, b in zip(measured, modeled, strict=True))
    inside = sum((p.compiled.low_s or 0.0) <= p.compiled.measured_s <= (p.compiled.high_s or 0.0) for p in pairs)
    percent = (
        median(map(abs, errors)),
        median(errors),
        inside / len(pairs),
        max(map(measured.count, measured)) / len(pairs),
    )
    return (
        label, level, str(len(pairs)), *(f"{100 * value:.0f}" for value in percent), f"{100 * right:.1f}", f"{factor:.3f}",
        f"{found} of {slower}", f"{said - found} of {said}", met,
    )  # fmt: skip


def largest(pairs: Sequence[Pair]) -> Iterator[tuple[str, ...]]:
    """The modules whose ratio is furthest off under torch.compile's default mode."""
    default = [p for p in pairs if way_of(p.compiled) == next(iter(WAYS))]
    for pair in sorted(default, key=lambda p: -p.factor)[:LISTED]:
        times = (pair.eager.measured_s, pair.eager.modeled_s, pair.compiled.measured_s, pair.compiled.modeled_s)
        yield (
            pair.compiled.shape, pair.compiled.gpu, *(f"{1e3 * time_s:.3g}" for time_s in times),
            f"{pair.measured:.2f}", f"{pair.modeled:.2f}",
        )  # fmt: skip


def range_lines(ranges: Sequence[Range]) -> Iterator[tuple[str, ...]]:
    """One line for each GPU and mode: all modules, then modules whose choice is open."""
    for gpu, way in sorted({(r.chosen.gpu, way_of(r.chosen)) for r in ranges}):
        own = [r for r in ranges if (r.chosen.gpu, way_of(r.chosen)) == (gpu, way)]
        label = f"{gpu}, {way.removeprefix('compile_inductor_')}"
        for name, some in (("all", own), ("with an open choice", [r for r in own if r.choices])):
            figures = (_spread([r.default for r in some]), _spread([r.chosen for r in some]))
            yield (label, name, str(len(some)), *(text for figure in figures for text in figure))


def _spread(rows: Sequence[TimedRow]) -> tuple[str, str, str]:
    """Percent inside the interval, median of its high over its low end, median APE."""
    ends = [(row.low_s or 0.0, row.high_s or 0.0) for row in rows]
    inside = sum(low <= row.measured_s <= high for row, (low, high) in zip(rows, ends, strict=True))
    width = median(high / low for low, high in ends)
    return f"{100 * inside / len(rows):.0f}", f"{width:.2f}", f"{100 * median(abs(row.error) for row in rows):.0f}"


#: what falls short and why; figures are from the tables
NOTES = """- **A10G**: a product alone calls the same library kernel either way, and yet some take far less time when compiled, as
  on no other machine ("Kinds of modules"). Eager and compiled times come from separate runs, so a clock may have changed
  between them; no model of the shape can tell.
- **The cloud machines' hosts**: alike modules (a linear layer, then element-wise kernels) differ from one another by more
  in the measurement than in the model.
- **Nets**: most wrong signs of level 3 say faster or equal where compiling loses; LSTM and GRU layers run the same
  library call either way, and the measured ratios are on both sides of 1.
- **Depthwise convolutions** in channels last, the layout that Inductor chooses: cuDNN's choice of a kernel there does not
  follow from the shape ("The largest errors").
- **Max pooling in three dimensions** was a call of the library in the torch that was timed (2.5), and is one here; the
  torch at hand generates a kernel for it.
- **The T4 and the A10G**: most wrong signs say slower or equal where compiling gains: on the T4 a linear layer with
  element-wise ops takes longer in eager execution than we say, and less compiled ("Kinds of modules").
"""
#: a measured ratio of compiled to eager time this close to 1 may change sides from run to run
NEAR = 0.10
#: modules whose modeled times differ by less run the same kernels on tensors of the same sizes, but for coincidences
ALIKE = 0.03


def near_one(pairs: Sequence[Pair]) -> str:
    """How many of the wrong signs in default mode are of ratios near 1."""
    default = [p for p in pairs if way_of(p.compiled) == "compile_inductor_default"]
    wrong = [p for p in default if sign(p.modeled) != sign(p.measured)]
    near = sum(abs(p.measured - 1) < NEAR for p in wrong)
    return (
        f"- **Signs near 1**: of {len(wrong)} wrong signs of {len(default)} in default mode, {near} are of modules whose measured"
        f" ratio is within {100 * NEAR:.0f} % of 1."
    )


def alike(pairs: Sequence[Pair]) -> Iterator[tuple[str, ...]]:
    """For each GPU, the modules of default mode that have others of their level alike, and how many have another sign
    than most of these: no model of the program tells them apart."""
    default = [p for p in pairs if way_of(p.compiled) == "compile_inductor_default"]
    for gpu in sorted({p.compiled.gpu for p in default}):
        groups: list[list[Pair]] = []
        own = [p for p in default if p.compiled.gpu == gpu]
        for pair in own:
            fitting = (group for group in groups if _is_alike(group[0], pair))
            if (group := next(fitting, None)) is None:
                groups.append(group := [])
            group.append(pair)
        signs = [[sign(p.measured) for p in group] for group in groups if len(group) > 1]
        count = sum(map(len, signs))
        apart = count - sum(max(map(of.count, of)) for of in signs)
        yield gpu, str(len(own)), str(count), str(apart), f"{100 - 100 * apart / count:.0f}"


def kinds(pairs: Sequence[Pair]) -> Iterator[tuple[str, ...]]:
    """For each kind and GPU the range of its times and ratios in default mode."""
    default = [p for p in pairs if way_of(p.compiled) == "compile_inductor_default"]
    for kind in KINDS:
        for gpu in sorted({p.compiled.gpu for p in default}):
            own = [p for p in default if (p.kind, p.compiled.gpu) == (kind, gpu)]
            if not own:
                continue
            sides = [p.eager for p in own], [p.compiled for p in own]
            times = [[1e3 * s for s in seconds] for rows in sides for seconds in _both(rows)]
            ratios = [p.measured for p in own], [p.modeled for p in own]
            yield kind, gpu, str(len(own)), *map(_ends, (*times, *ratios))


def _both(rows: Sequence[TimedRow]) -> tuple[list[float], list[float]]:
    """Measured and modeled seconds."""
    return [row.measured_s for row in rows], [row.modeled_s for row in rows]


def _ends(values: Iterable[float]) -> str:
    """The least, the median and the most."""
    found = sorted(values)
    return " / ".join(f"{value:.3g}" for value in (found[0], median(found), found[-1]))


def _is_alike(one: Pair, other: Pair) -> bool:
    """Of one level, and with both modeled times within :data:`ALIKE`."""
    times = ((one.eager.modeled_s, other.eager.modeled_s), (one.compiled.modeled_s, other.compiled.modeled_s))
    return one.compiled.op_class == other.compiled.op_class and all(abs(a / b - 1) < ALIKE for a, b in times)


def is_held_out(row: TimedRow) -> bool:
    return bool(zlib.crc32(row.shape.encode()) % 2)


def report(pairs: Sequence[Pair], ranges: Sequence[Range]) -> str:
    held_out = [p for p in pairs if is_held_out(p.compiled)]
    lines = list(scores(held_out))
    ranges_held_out = list(range_lines([r for r in ranges if is_held_out(r.chosen)]))
    faster = sum(p.compiled.is_violation for p in pairs)
    head = (
        "GPU, mode | level | modules | median APE | median bias | inside | commonest sign | sign right"
        " | ratio's factor | slower, named | named, not slower | met"
    )
    return f"""# Compiled code, modeled vs. measured

KernelBench's modules in float32 as they stand (forward, a lone call, under `torch.no_grad`), under torch.compile: Inductor's
own decisions for each GPU, priced like any plan, on the host that the eager times tell. Each line is of modules that no
constant is fitted to (an odd CRC-32 of the name). Written by `python lab/reports/compiled_report.py`.

- median APE, median bias: of the compiled module's time, in percent; inside: of the 80 % interval.
- sign right: percent of the modules that compiling makes faster, slower or leaves within {100 * EQUAL:.0f} % in the model as in the
  measurement (goal {100 * SIGN_GOAL:.0f}); commonest sign: the percent that a guess of the most common of the three gets right.
- ratio's factor: the median factor between modeled and measured ratio of compiled to eager time (goal {FACTOR_GOAL}).
- slower, named: modules that get slower and of which the model says so (goal {100 * NAMED_GOAL:.0f} %); named, not slower: modules of
  which the model says so and which do not.
- Rows faster than the roofline bound, of all modules: {faster}.

{markdown(head, lines)}

## max-autotune: a range

The modes max-autotune (a CUDA graph) and max-autotune-no-cudagraphs time the library's kernel and Triton templates for each
product and convolution and keep the quickest, which no model knows before. The policy `max-autotune` states the library's
time and an interval down to the templates: these reach {100 * TEMPLATE_REACHED:.0f} % of the roofline at best. Inside: percent of the rows
in the 80 % interval; width: its high over its low end, the median; APE: the median, in percent; each first with the default
mode's kernels, then with the open choices. Modules that no constant is fitted to.

{markdown("GPU, mode | modules | number | inside, default | width | APE | inside, range | width | APE", ranges_held_out)}

## What falls short, and why

{near_one(held_out)}
{NOTES}
## Signs of alike modules

Many modules run the same kernels on the same sizes with another function inside: ten activations of one tensor, a linear
layer and then two or three element-wise kernels. Their modeled times are within {100 * ALIKE:.0f} %, and yet compiling makes some of them
faster and others slower: hosts and clocks changed between the runs. Of all modules, in default mode: modules that have
others of their level alike, how many of them with another sign than most of their group, and the share of right signs that
a model of the program can reach among them.

{markdown("GPU | modules | with others alike | of another sign | most that can be right", list(alike(pairs)))}

## Kinds of modules

All modules of a kind under torch.compile's default mode: the least, the median and the most of their times, in ms, and of
the ratio of compiled to eager time.

{markdown("kind | GPU | modules | eager | modeled | compiled | modeled | ratio | modeled", list(kinds(pairs)))}

## The largest errors

The ratio of compiled to eager time under torch.compile's default mode, modules not fitted to; times in ms.

{markdown("module | GPU | eager | modeled | compiled | modeled | ratio | modeled", list(largest(held_out)))}
"""


def main(gpus: Sequence[str]) -> int:
    path = truth(f"{MODULES}.csv")
    if not path:
        print("the measured table is not here; nothing was written")
        return 1
    samples = [sample for sample in read_measured(path).of(ModuleSample) if sample.op_class.endswith(f" {EAGER}")]
    if gpus:
        wanted = {load_gpu(name).name for name in gpus}
        for sample in samples:
            if sample.gpu.name in wanted:
                decided(decisions_folder(), sample)
        return 0
    (ROOT / "reports" / "compiled.md").write_text(
        report(list(pairs_of(path, samples)), list(ranges_of(path, samples))), encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
