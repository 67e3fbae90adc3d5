"""The generated kernels as they were compiled: what each takes, what is covered, and what has no kernel and why."""

from __future__ import annotations

from collections.abc import Sequence

import memwall.report.columns as col
from memwall.codegen.compiling import Resources
from memwall.codegen.planned import Compiled, CompiledPlan, Left
from memwall.core.units import percent, size
from memwall.record.kernels import short_name
from memwall.report.document import Block, Facts, Section, Sentence, Table, clean

#: Ops of a group without a kernel that are named.
MAX_NAMED = 6

KERNEL_NOTE = (
    "registers and spills of a thread, shared memory of a block; occupancy: warps that fit a multiprocessor at once, of"
    " those that it holds; bytes: of all launches of a step"
)
LEFT_NOTE = "groups that no kernel is generated for; bytes: of all of them in a step"


def compiled_section(made: CompiledPlan, top: int) -> Section:
    """The kernels of one plan: coverage, a table for each architecture, and what is left."""
    blocks: list[Block] = [Facts(_facts(made)), *_warnings(made)]
    kernels = sorted(made.kernels, key=lambda compiled: -compiled.dram_bytes)
    for name in made.architectures:
        rows = [(compiled, r) for compiled in kernels for r in compiled.resources[name]]
        if rows:
            blocks.append(_kernel_table(name, rows, top))
    if made.left:
        blocks.append(_left_table(sorted(made.left, key=lambda left: -left.dram_bytes), top))
    heading = f"{made.gpu}: kernels compiled for {', '.join(made.architectures)}"
    return Section(clean(heading), tuple(blocks))


def _facts(made: CompiledPlan) -> tuple[tuple[str, str], ...]:
    schedules = ", ".join(f"{name} {count:,}" for name, count in made.schedules().items())
    facts = [
        ("kernels", f"{len(made.kernels):,} distinct" + (f": {schedules}" if schedules else "")),
        ("coverage", f"{percent(made.coverage)} of {size(made.dram_bytes)} that kernels without a product move"),
    ]
    if made.rounds > 1:
        facts.append(("plans", f"{made.rounds}: the earlier ones held kernels that spill"))
    return tuple(facts)


def _warnings(made: CompiledPlan) -> list[Sentence]:
    spilled = [compiled for compiled in made.kernels if compiled.spilled]
    failed = [compiled for compiled in made.kernels if compiled.failed]
    found = []
    if spilled:
        found.append(f"{_names(spilled)} spilled registers at every block size tried")
    if failed:
        found.append(f"{_names(failed)} could not be compiled")
    return [Sentence(clean(f"{text}."), strong=True) for text in found]


def _names(kernels: Sequence[Compiled]) -> str:
    more = f" and {len(kernels) - 3:,} more" if len(kernels) > 3 else ""
    return ", ".join(compiled.kernel.name for compiled in kernels[:3]) + more


def _kernel_table(architecture: str, rows: Sequence[tuple[Compiled, Resources]], top: int) -> Table:
    shown = rows[:top]
    firsts = [(c, n == 0 or shown[n - 1][0] is not c) for n, (c, _) in enumerate(shown)]
    columns = [
        col.names("kernel", [_label(compiled, r) for compiled, r in shown]),
        col.optional(col.names("ops", [_ops(c.ops) if first else "" for c, first in firsts])),
        col.text("", [f"x{len(c.groups)}" if first and len(c.groups) > 1 else "" for c, first in firsts]),
        col.optional(col.text("path", [compiled.kernel.schedule for compiled, _ in shown])),
        col.si("bytes", "B", [c.dram_bytes if first else None for c, first in firsts]),
        col.plain("warps", [r.num_warps for _, r in shown]),
        col.plain("registers", _numbers(shown, "registers")),
        col.plain("spilled", _numbers(shown, "spilled_bytes"), unit="B"),
        col.plain("shared", _numbers(shown, "shared_bytes"), unit="B"),
        col.percent("occupancy", _numbers(shown, "occupancy"), digits=0),
        col.optional(col.text("limited by", [r.limited_by for _, r in shown])),
    ]
    if any(_remark(r) for _, r in shown):
        columns.append(col.text("remark", [_remark(r) for _, r in shown], wraps=True))
    return col.table(f"Kernels on {architecture}", columns, KERNEL_NOTE, left=len(rows) - top)


def _numbers(rows: Sequence[tuple[Compiled, Resources]], name: str) -> list[float | None]:
    return [getattr(r, name) if r.registers else None for _, r in rows]


def _label(compiled: Compiled, resources: Resources) -> str:
    several = len(compiled.kernel.launches) > 1
    return f"{compiled.kernel.name}: {resources.function}" if several else compiled.kernel.name


def _remark(resources: Resources) -> str:
    if resources.status != "ok":
        return f"{resources.status}: {resources.reason}"
    return "SPILLS" if resources.spilled_bytes else ""


def _left_table(left: Sequence[Left], top: int) -> Table:
    shown = left[:top]
    columns = [
        col.text("ops", [_ops(row.ops) for row in shown], wraps=True),
        col.repeats(len(row.groups) for row in shown),
        col.si("bytes", "B", [row.dram_bytes for row in shown]),
        col.text("reason", [row.reason for row in shown], wraps=True),
    ]
    return col.table("Without a kernel", columns, LEFT_NOTE, left=len(left) - top)


def _ops(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(short_name(name) for name in names[:MAX_NAMED]) + more
