"""The same groups of ops under several executors, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memwall.analysis.savings import group_name
from memwall.analysis.validation import Contest, GroupTimes, Pair
from memwall.record.kernels import collapse
from memwall.report.columns import CellColumn, plain_column, seconds_column, si_column, times_column
from memwall.report.document import Table, optional, table, text_column
from memwall.report.pages.fusion import cut_name, rows_left

CONTEST_NOTE = (
    "ratio of the sums over all repeats, geomean and worst of the distinct groups, above 1: faster; slower: groups"
    " whose intervals do not meet; eager: the measured eager kernels of the group's ops, summed"
)
GROUP_NOTE = "medians of one launch; xN: so many equal groups in a step; the last columns: how many times faster"


def contest_table(rows: Sequence[Contest]) -> Table:
    """Executors against each other over the groups that both ran."""
    like = [*(r.seconds for r in rows), *(r.versus_seconds for r in rows)]
    columns = [
        text_column("", [f"{r.executor} / {r.versus}" for r in rows]),
        plain_column("groups", [r.groups for r in rows]),
        seconds_column("first", [r.seconds for r in rows], like=like),
        seconds_column("second", [r.versus_seconds for r in rows], like=like),
        times_column("ratio", [r.ratio for r in rows]),
        times_column("geomean", [r.geomean for r in rows]),
        times_column("worst", [r.worst for r in rows]),
        plain_column("slower", [r.slower for r in rows]),
    ]
    return table("The same groups of ops", columns, CONTEST_NOTE)


def group_table(groups: Sequence[GroupTimes], more: Sequence[GroupTimes] = ()) -> Table:
    """Groups under each executor."""
    pairs = [group.pair for group in groups]
    executors = [name for name in ("eager", "inductor", "generated") if any(name in g.times for g in groups)]
    medians = {n: [g.times[n].median_s if n in g.times else None for g in groups] for n in executors}
    like = [value for values in medians.values() for value in values]
    columns = [
        *name_columns(pairs),
        si_column("bytes", "B", [pair.kernel.bytes for pair in pairs]),
        seconds_column("modeled", [pair.kernel.modeled_s for pair in pairs], like=like),
        *(seconds_column(name, medians[name], like=like) for name in executors),
        *(
            times_column(f"/{versus}", [g.ratio(name, versus) for g in groups], name)
            for name, versus in (("inductor", "eager"), ("generated", "eager"), ("generated", "inductor"))
            if any(g.ratio(name, versus) for g in groups)
        ),
    ]
    note = f"and {rows_left(len(more))}; {GROUP_NOTE}" if more else GROUP_NOTE
    return table("Groups that take longest", columns, note)


def name_columns(pairs: Iterable[Pair]) -> list[CellColumn]:
    """Which kernels: name, repeats, module."""
    found = list(pairs)
    return [
        text_column("kernel", [cut_name(group_name(p.op_names or [p.kernel.name])) for p in found], flexible=True),
        text_column("", [f"x{p.kernel.repeats}" if p.kernel.repeats > 1 else "" for p in found]),
        optional(text_column("module", [_module(p) for p in found], flexible=True)),
    ]


def _module(pair: Pair) -> str:
    """The module of a kernel; that of equal ones with its numbers as stars."""
    return (collapse(pair.module) if pair.kernel.repeats > 1 else pair.module) or "(top)"
