"""The kernels of a plan as a section of the page of ``memwall fuse``: coverage, resources, and what is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import memwall.report.columns as col
from memwall.codegen.compiling import Resources
from memwall.codegen.planned import Compiled, CompiledPlan
from memwall.core.units import few, percent, size
from memwall.record.kernels import short_name
from memwall.report.document import Block, Facts, Section, Sentence, Table, known_facts

#: ops of a group without a kernel that are named
MAX_NAMED = 6
KERNEL_NOTE = (
    "registers and spills of a thread, shared memory of a block; occupancy: warps that fit a multiprocessor at once, of"
    " the warps that it holds; bytes: of all launches of a step"
)
LEFT_NOTE = "groups that no kernel is generated for; bytes: of all of them in a step"


def compiled_section(made: CompiledPlan, top: int) -> Section:
    """The kernels of one plan: coverage, a table for each architecture, and what is left."""
    blocks: list[Block] = [_facts(made)]
    for found, text in (
        ([compiled for compiled in made.kernels if compiled.spilled], "spilled registers at every block size tried"),
        ([compiled for compiled in made.kernels if compiled.failed], "could not be compiled"),
    ):
        if found:
            blocks.append(Sentence(f"{few(compiled.kernel.name for compiled in found)} {text}.", strong=True))
    kernels = sorted(made.kernels, key=lambda compiled: -compiled.dram_bytes)
    for name in made.architectures:
        if rows := [(compiled, r) for compiled in kernels for r in compiled.resources[name]]:
            blocks.append(_kernel_table(name, rows, top))
    if made.left:
        left = sorted(made.left, key=lambda left: -left.dram_bytes)[:top]
        table = [(_ops(row.ops), len(row.groups), row.dram_bytes, row.reason) for row in left]
        specs = "ops: 0 prose, : 1 repeats, bytes: 2 B, reason: 3 prose"
        blocks.append(col.listing("Without a kernel", table, specs, LEFT_NOTE, left=len(made.left) - top))
    return Section(f"{made.gpu}: kernels compiled for {', '.join(made.architectures)}", blocks)


def _facts(made: CompiledPlan) -> Facts:
    schedules = ", ".join(f"{name} {count:,}" for name, count in made.schedules().items())
    return known_facts(
        ("kernels", f"{len(made.kernels):,} distinct" + (f": {schedules}" if schedules else "")),
        ("coverage", f"{percent(made.coverage)} of {size(made.dram_bytes)} that kernels without a matmul move"),
        ("plans", f"{made.rounds}: the earlier ones held kernels that spill" if made.rounds > 1 else ""),
    )


def _kernel_table(architecture: str, rows: Sequence[tuple[Compiled, Resources]], top: int) -> Table:
    table: list[tuple[Any, ...]] = []
    last = None
    for compiled, r in rows[:top]:
        first, last = compiled is not last, compiled
        numbers = (r.registers, r.spilled_bytes, r.shared_bytes, r.occupancy) if r.registers else (None,) * 4
        table.append(
            (
                _label(compiled, r),
                _ops(compiled.ops) if first else "",
                len(compiled.groups) if first else 1,
                compiled.kernel.schedule,
                compiled.dram_bytes if first else None,
                r.num_warps,
                *numbers,
                r.limited_by,
                _remark(r),
            )
        )
    specs = (
        "kernel: 0 name, ops: 1 name?, : 2 repeats, path: 3?, bytes: 4 B, warps: 5 count, registers: 6 count,"
        "spilled@B: 7 count, shared@B: 8 count, occupancy: 9 %0, limited by: 10?"
    )
    if any(row[-1] for row in table):
        specs += ", remark: 11 prose"
    return col.listing(f"Kernels on {architecture}", table, specs, KERNEL_NOTE, left=len(rows) - top)


def _label(compiled: Compiled, resources: Resources) -> str:
    several = len(compiled.kernel.launches) > 1
    return f"{compiled.kernel.name}: {resources.function}" if several else compiled.kernel.name


def _remark(resources: Resources) -> str:
    if resources.status != "ok":
        return f"{resources.status}: {resources.reason}"
    return "SPILLS" if resources.spilled_bytes else ""


def _ops(names: Sequence[str]) -> str:
    return few(map(short_name, names), MAX_NAMED)
