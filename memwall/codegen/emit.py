"""Plan → a folder of kernels: one file for each distinct group, with its ops and costs in a comment at its head.

A file holds the Triton source of the kernel: under ``inductor`` the compiler's, under ``memwall`` the generated one
(:mod:`memwall.codegen`). Library kernels, and groups without a generated kernel, are written as single ops in a
function that can be run (:mod:`memwall.fusion.reference`). ``index.json`` says which file each launch of a step
runs and on which values of the graph; ``README.md`` lists the files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memwall.codegen import NotGenerated, generate
from memwall.core.errors import Unsupported, UsageError
from memwall.core.files import read_json
from memwall.core.flow import Flow
from memwall.core.graph import Graph
from memwall.core.structure import printable, write
from memwall.core.units import duration, flops, size
from memwall.core.version import __version__
from memwall.fusion import Group, Plan
from memwall.fusion.rules import MATRIX_CLASSES
from memwall.hardware.lookup import Gpu
from memwall.perfmodel.roofline import Estimate
from memwall.record.kernels import NO_MODULE, collapse, short_name
from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule

if TYPE_CHECKING:
    from memwall.ops.evaluate import Operators

SCHEMA = "memwall.emit/1"
INDEX, README = "index.json", "README.md"

#: Policies whose groups are launchable kernels.
EMITTED = ("inductor", "memwall")
#: The most op names in a file's name.
NAMED_OPS = 4
#: The most places that the head of a file lists.
LISTED_MODULES = 8

_ARGUMENTS = (
    "run() takes and returns tensors of the shapes and strides given; tensors that are views of one storage must be"
    " such views, and what the kernel writes over is written in place."
)
_SEED = "It draws random numbers: give every launch a seed of its own, or all of them draw the same."


@dataclass(frozen=True)
class _Written:
    """The text of a file below its head, its origin, and the values that ``run()`` takes and returns."""

    body: str
    how: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EmittedKernel:
    """A distinct kernel: bytes, FLOPs and bound of one launch, the modeled time of all."""

    file: str
    source: str
    repeats: int
    launches: int
    read_bytes: int
    write_bytes: int
    flops: int
    time_s: float
    bound_s: float


@dataclass(frozen=True, slots=True)
class EmittedLaunch:
    """A launch of a step: which of the kernels, the ops that it runs, the values that it reads and writes."""

    kernel: int
    op_ids: tuple[int, ...]
    recomputes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EmittedSet:
    """The kernels of a policy on a GPU, and the order of their launches."""

    gpu: str
    policy: str
    kernels: tuple[EmittedKernel, ...]
    order: tuple[EmittedLaunch, ...]


@dataclass(frozen=True, slots=True)
class EmitIndex:
    """``memwall.emit/1``: what ``index.json`` says of a folder."""

    workload: str
    mode: str
    sets: tuple[EmittedSet, ...]
    files: tuple[str, ...]


#: the launches of one distinct kernel
_Launches = list[tuple[Group, Estimate, _Written]]


def kernel_files(profile: Profile, simulated: Sequence[tuple[Plan, Schedule]]) -> dict[str, str]:
    """The files of a folder, path → text. Several plans get a folder each, named after their GPU and policy.

    Raises:
        UsageError: a policy has no kernels to write.
    """
    files: dict[str, str] = {}
    sets = []
    for plan, schedule in simulated:
        if plan.policy not in EMITTED:
            raise UsageError(f"--emit writes the kernels of {' and '.join(EMITTED)}; {plan.policy} has none of its own")
        folder = f"{schedule.gpu.name}-{plan.policy}/" if len(simulated) > 1 else ""
        graph = profile.graphs[schedule.graph]
        kernels = _distinct(graph, plan, schedule)
        names = [f"{folder}{i:03d}_{_file_name(graph, launches[0][0])}.py" for i, launches in enumerate(kernels)]
        for number, (name, launches) in enumerate(zip(names, kernels, strict=True)):
            head = _head(profile, schedule, launches, f"{number:03d} of {len(kernels)}")
            files[name] = f"{head}\n{launches[0][2].body}"
        sets.append(_set(schedule, kernels, names))
    files[README] = _readme(profile, sets)
    index = EmitIndex(profile.workload.name, profile.workload.mode, tuple(sets), tuple(sorted([*files, INDEX])))
    record = {"schema": SCHEMA, "memwall_version": __version__, **write(index)}
    files[INDEX] = json.dumps(record, indent=1) + "\n"
    return files


def _distinct(graph: Graph, plan: Plan, schedule: Schedule) -> list[_Launches]:
    """The kernels in order of their first launch, each with all launches."""
    from memwall.ops.evaluate import Operators  # torch: for its operators' schemas

    flow, operators = Flow.of(graph), Operators()
    found: dict[tuple, _Launches] = {}
    for group, kernel in zip(plan.groups, schedule.kernels, strict=True):
        written = _written(graph, flow, group, schedule.gpu if plan.policy == "memwall" else None, operators)
        work = (kernel.read_bytes, kernel.write_bytes, kernel.flops, kernel.launches)
        names = tuple([graph.ops[i].name for i in group.op_ids])
        found.setdefault((written.body, names, work), []).append((group, kernel, written))
    return list(found.values())


def _written(graph: Graph, flow: Flow, group: Group, gpu: Gpu | None, operators: Operators) -> _Written:
    from memwall.fusion.reference import reference

    if group.source:
        return _Written(f"{group.source.rstrip()}\n", "Inductor's Triton kernel", group.reads, group.writes)
    how = "calls of torch's operators"
    ops = [graph.ops[i] for i in (*group.op_ids, *group.recomputes)]
    if gpu is not None and (len(ops) > 1 or ops[0].op_class not in MATRIX_CLASSES):
        try:
            kernel = generate(graph, flow, group, gpu)
            return _Written(kernel.source, f"Triton kernel, {kernel.schedule}", kernel.inputs, kernel.outputs)
        except NotGenerated as error:
            how += f", as no kernel is generated: {error}"
    try:
        text = reference(graph, flow, group, operators)
    except Unsupported as error:
        return _Written(f"# Not written out: {error}.\n", "not written out", group.reads, group.writes)
    return _Written(text.source, how, text.inputs, text.outputs)


def _file_name(graph: Graph, group: Group) -> str:
    name = group.name
    if not name:
        ops = dict.fromkeys(short_name(graph.ops[i].name) for i in group.op_ids)
        name = "_".join([*ops][:NAMED_OPS]) + (f"_and_{len(ops) - NAMED_OPS}_more" if len(ops) > NAMED_OPS else "")
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")[:80] or "kernel"


# -- the head of a file ------------------------------------------------------------------------------------------------


def _head(profile: Profile, schedule: Schedule, launches: _Launches, number: str) -> str:
    graph = profile.graphs[schedule.graph]
    group, estimate, written = launches[0]
    count = len(launches)
    total_s = sum(e.time_s for _, e, _ in launches)
    walls = Counter(e.limited_by for _, e, _ in launches)
    times = f" (mean of {count}, {duration(total_s)} together)" if count > 1 else ""
    facts = [
        ("kernel", f"{number}, launched by policy {schedule.policy} on {schedule.gpu.name}"),
        ("source", written.how),
        ("workload", f"{profile.workload.name}, {profile.workload.mode}, {graph.ops[group.op_ids[0]].phase}"),
        ("module", _modules(graph, launches)),
        ("repeats", f"{count} a step, {estimate.launches} launch{'es' * (estimate.launches > 1)} each"),
        ("DRAM", f"{size(estimate.read_bytes)} read, {size(estimate.write_bytes)} written"),
        ("FLOPs", flops(estimate.flops)),
        ("time", f"{duration(total_s / count)} modeled{times}, limited by {walls.most_common(1)[0][0]}"),
        ("bound", duration(estimate.bound_s)),
    ]
    lines = [f"{label:9}{text}" for label, text in facts]
    lines += ["", "ops, by their number in the graph at the first launch:"]
    for op_id in sorted((*group.op_ids, *group.recomputes)):
        op = graph.ops[op_id]
        again = "" if op_id in group.op_ids else "  (computed again)"
        lines.append(f"{op_id:>7}  {op.name}  {op.module or NO_MODULE}{again}")
    if not group.source:
        draws = f" {_SEED}" if "draw(" in written.body else ""
        lines += ["", *textwrap.wrap(_ARGUMENTS + draws, 100)]
    # names come from models and must not end a comment
    return "\n".join(f"# {printable(line)}".rstrip() for line in lines) + "\n"


def _modules(graph: Graph, launches: _Launches) -> str:
    """The modules of the launches, repeated blocks as one."""
    found = Counter(
        ", ".join(dict.fromkeys(collapse(graph.ops[i].module) or NO_MODULE for i in group.op_ids))
        for group, _, _ in launches
    )
    texts = [f"{place} x{count}" if count > 1 else place for place, count in found.items()]
    more = len(texts) - LISTED_MODULES
    return "; ".join(texts[:LISTED_MODULES]) + (f"; and {more} more" if more > 0 else "")


# -- the index ---------------------------------------------------------------------------------------------------------


def _set(schedule: Schedule, kernels: Sequence[_Launches], names: Sequence[str]) -> EmittedSet:
    rows, order = [], {}
    for number, (name, launches) in enumerate(zip(names, kernels, strict=True)):
        _, first, written = launches[0]
        rows.append(
            EmittedKernel(
                name,
                written.how,
                len(launches),
                first.launches,
                first.read_bytes,
                first.write_bytes,
                first.flops,
                sum(e.time_s for _, e, _ in launches),
                first.bound_s,
            )
        )
        for group, estimate, own in launches:
            order[estimate.id] = EmittedLaunch(number, group.op_ids, group.recomputes, own.inputs, own.outputs)
    return EmittedSet(schedule.gpu.name, schedule.policy, tuple(rows), tuple(order[launch] for launch in sorted(order)))


def _readme(profile: Profile, sets: Sequence[EmittedSet]) -> str:
    lines = [
        f"# Kernels of {_cell(profile.workload.name)}, {profile.workload.mode}",
        "",
        "One file for each distinct kernel, in launch order. `index.json` has every launch of a step: its file, its ops"
        " and the values that it reads and writes. Bytes and times are of one launch; times are modeled.",
        "",
    ]
    for entry in sets:
        lines += [
            f"## {entry.policy} on {entry.gpu}",
            "",
            f"{len(entry.order):,} groups, {len(entry.kernels):,} distinct.",
            "",
            "| file | repeats | launches | read | written | time |",
            "|:---|---:|---:|---:|---:|---:|",
        ]
        for row in entry.kernels:
            lines.append(
                f"| [{row.file}]({row.file}) | {row.repeats} | {row.launches} | {size(row.read_bytes)}"
                f" | {size(row.write_bytes)} | {duration(row.time_s / row.repeats)} |"
            )
        lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return re.sub(r"([\\`*_\[\]|<>#])", r"\\\1", printable(text))


# -- the folder --------------------------------------------------------------------------------------------------------


def check_folder(path: Path) -> None:
    """Check that a folder of kernels may be written: it is missing, empty, or holds only files that memwall wrote.

    Raises:
        UsageError: it may not; says why and how to fix it.
    """
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"cannot write {path}: permission denied")
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise UsageError(f"cannot write kernels into {path}: it is no folder")
    try:
        foreign = _foreign(path) if path.exists() else None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    if foreign:
        raise UsageError(f"{path} holds {foreign}, which memwall did not write; name another folder")


def _foreign(path: Path) -> str | None:
    """Something in a folder that no index of memwall names."""
    known: set[str] = set()
    if (path / INDEX).is_file():
        try:
            index = read_json(path / INDEX)
            known = set(index["files"]) if index["schema"] == SCHEMA else set()
        except (UsageError, KeyError, TypeError):
            known = set()
    for folder, folders, names in os.walk(path):
        folders.sort()  # in this order
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in sorted((*names, *links)):
            relative = (Path(folder) / name).relative_to(path).as_posix()
            if relative not in known:
                return relative
    return None


def write_folder(path: Path, files: Mapping[str, str]) -> None:
    """Write a folder of files atomically; a folder that memwall wrote before is replaced.

    Raises:
        UsageError: it cannot be written.
    """
    check_folder(path)
    scratch = None
    try:
        scratch = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        fresh = scratch / "new"
        for name, text in files.items():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            (fresh / name).write_text(text, encoding="utf-8")
        if path.exists():
            path.rename(scratch / "old")
        fresh.rename(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}; nothing was written") from None
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
