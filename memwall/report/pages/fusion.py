"""What fusion wins: the policies of one GPU side by side, then each policy's groups, modules and missed fusions."""

from __future__ import annotations

from collections.abc import Sequence

import memwall.report.columns as col
from memwall.analysis.savings import Missed, PolicyRow, PolicySet, Saving, group_savings, missed_fusions, module_savings
from memwall.analysis.table import OTHERS
from memwall.analysis.whatif import Outcome
from memwall.core.units import duration, percent, size
from memwall.record.profile import Profile
from memwall.report.document import Block, Section, Sentence, Table, clean
from memwall.simulate.schedule import Schedule

#: rows of the tables of groups, modules and missed fusions
MAX_GROUPS, MAX_MODULES, MAX_MISSED = 10, 10, 10
#: ops that a group's name lists
MAX_NAMES = 6

POLICY_NOTE = (
    "saved: DRAM bytes less than eager; of ideal: what the policy saves over what ideal saves, the most that any fusion"
    " could win, in bytes and in time; bytes are compulsory, time is modeled"
)
GROUP_NOTE = "xN: so many equal groups, their figures summed; →: from the eager kernels of the same ops to the group"
MODULE_NOTE = "a kernel stands under the module that all its ops share, and so do the eager kernels that it replaces"
MISSED_NOTE = "what each fusion alone would save; where two share a tensor, not both can save it"


def is_several(profile: Profile) -> bool:
    """Whether a profile holds several policies, so that what fusion saves is worth a report."""
    return len({schedule.policy for schedule in profile.simulations}) > 1


def policy_table(rows: Sequence[PolicyRow]) -> Table:
    """The totals of each policy and what it saves."""
    columns = [
        col.text("policy", [r.policy for r in rows]),
        col.seconds("time", [r.time_s for r in rows]),
        col.ratio("speed-up", [r.speedup for r in rows]),
        col.percent("of ideal", [r.time_score for r in rows]),
        col.plain("kernels", [r.kernels for r in rows]),
        col.si("DRAM bytes", "B", [r.dram_bytes for r in rows]),
        col.si("saved", "B", [r.saved_bytes for r in rows]),
        col.percent("of ideal", [r.byte_score for r in rows]),
        col.si("peak", "B", [r.peak_memory_bytes for r in rows]),
        col.percent("MFU", [r.mfu for r in rows]),
        col.text("fits", ["yes" if r.fits else "NO" for r in rows]),
    ]
    return col.table("Policies", columns, POLICY_NOTE)


def saving_sentence(policies: PolicySet, schedule: Schedule) -> str:
    """``memwall saves 9.06 ms of 54.60 ms (1.20x) and 14.05 GB ..., the most of it in the optimizer``."""
    row, eager = policies.row(schedule), policies.eager.totals
    saved_s = eager.time_s - row.time_s
    if saved_s <= 0:
        return f"{schedule.policy} saves no time on {policies.gpu.name}: {duration(-saved_s)} more than eager."
    is_ideal = schedule.policy == "ideal"
    score = "" if row.time_score is None or is_ideal else f", {percent(row.time_score, 0)} of what ideal would"
    text = (
        f"{schedule.policy} saves {duration(saved_s)} of {duration(eager.time_s)} ({col.times(row.speedup)}{score}),"
        f" {size(row.saved_bytes)} of DRAM traffic and {eager.kernels - row.kernels:,} of {eager.kernels:,} launches"
    )
    modules = [m for m in module_savings(policies, schedule) if m.saved_s > 0 and m.module != OTHERS]
    if modules and not is_ideal:
        text += f"; {percent(modules[0].saved_s / saved_s, 0)} of the time in {modules[0].module}"
    return clean(f"{text}.")


def cut_name(name: str) -> str:
    """A group's name with at most ``MAX_NAMES`` ops, the rest counted."""
    parts = name.split(" + ")
    rest = len(parts) - MAX_NAMES
    return " + ".join(parts[:MAX_NAMES]) + (f" + {rest} more" if rest > 0 else "")


def _saving_columns(rows: Sequence[Saving]) -> list[col.CellColumn]:
    return [
        *col.before_after("kernels", [r.eager_kernels for r in rows], [r.kernels for r in rows], col.plain),
        *col.before_after(
            "bytes", [r.eager_bytes for r in rows], [r.bytes for r in rows], lambda h, v: col.si(h, "B", v)
        ),
        *col.before_after("time", [r.eager_s for r in rows], [r.time_s for r in rows], col.seconds),
        col.seconds("saved", [r.saved_s for r in rows], like=[r.eager_s for r in rows]),
    ]


def group_table(rows: Sequence[Saving], more: Sequence[Saving] = ()) -> Table:
    """Groups by what they save; ``more`` are those that are not listed."""
    columns = [
        col.names("group", [cut_name(r.name) for r in rows]),
        col.repeats(r.count for r in rows),
        col.modules(r.module for r in rows),
        *_saving_columns(rows),
    ]
    note = GROUP_NOTE
    if more:
        note = f"and {col.rows_left(len(more))}, {_signed(sum(r.saved_s for r in more))} in sum; {note}"
    return col.table("Groups by what they save", columns, note)


def _signed(seconds: float) -> str:
    return duration(seconds) if seconds >= 0 else f"-{duration(-seconds)}"


def module_table(rows: Sequence[Saving]) -> Table:
    """Modules by what they save."""
    columns = [col.names("module", [r.module for r in rows]), *_saving_columns(rows)]
    return col.table("Modules by what they save", columns, MODULE_NOTE)


def missed_table(rows: Sequence[Missed]) -> Table:
    """Fusions that were refused, by what they would win."""
    columns = [
        col.names("producer", [r.producer for r in rows]),
        col.names("consumer", [r.consumer for r in rows]),
        col.repeats(r.count for r in rows),
        col.modules(r.module for r in rows),
        col.si("bytes", "B", [r.saved_bytes for r in rows]),
        col.seconds("time", [r.saved_s for r in rows]),
        col.text("rule", [r.rule for r in rows]),
        col.optional(col.text("reason", [r.reason for r in rows], wraps=True)),
    ]
    return col.table("Missed fusions by what they would win", columns, MISSED_NOTE)


def explained(policies: PolicySet) -> tuple[Schedule, ...]:
    """The schedules whose groups are kernels of their own: neither eager nor the floor that ``ideal`` is."""
    return tuple(schedule for schedule in policies.schedules if schedule.policy not in ("eager", "ideal"))


def fusion_tables(policies: PolicySet, schedule: Schedule) -> tuple[Table, ...]:
    """Groups and modules by what they save, and the missed fusions where the plan is at hand."""
    groups = group_savings(policies, schedule)
    missed = missed_fusions(policies.profile, schedule, top=MAX_MISSED)
    tables = [group_table(groups[:MAX_GROUPS], groups[MAX_GROUPS:])] if groups else []
    tables.append(module_table(module_savings(policies, schedule, top=MAX_MODULES)))
    return (*tables, missed_table(missed)) if missed else tuple(tables)


def fusion_section(policies: PolicySet, schedule: Schedule) -> Section:
    """What one policy saves on one GPU, under a heading of its own."""
    heading = f"{policies.gpu.name}, {schedule.policy}: what fusion saves"
    return Section(heading, fusion_tables(policies, schedule))


def sentences(policies: PolicySet) -> tuple[Sentence, ...]:
    """One for each policy but eager."""
    return tuple(
        Sentence(saving_sentence(policies, schedule), strong=schedule.policy != "ideal")
        for schedule in policies.schedules
        if schedule.policy != "eager"
    )


# -- what if -----------------------------------------------------------------------------------------------------------

WHAT_IF_NOTE = (
    "change, ±: after less before; fuse: a module as one kernel that keeps all that lies between its ops on chip"
)
#: Notes that are listed before the rest is counted.
MAX_NOTES = 8


def what_if_section(outcomes: Sequence[Outcome]) -> Section:
    """Totals before and after each what-if, GPU by GPU and policy by policy."""
    before, after = [o.before for o in outcomes], [o.after for o in outcomes]
    several = len({o.gpu for o in outcomes}) > 1
    change_s = [a.time_s - b.time_s for a, b in zip(after, before, strict=True)]
    change_bytes = [a.dram_bytes - b.dram_bytes for a, b in zip(after, before, strict=True)]
    columns = [
        col.text("what if", _once([o.label for o in outcomes]), wraps=True),
        *([col.text("GPU", [o.gpu for o in outcomes])] if several else []),
        col.text("policy", [o.policy for o in outcomes]),
        col.seconds("before", [t.time_s for t in before]),
        col.seconds("after", [t.time_s for t in after], like=[t.time_s for t in before]),
        col.seconds("change", change_s, like=[t.time_s for t in before], signed=True),
        col.ratio("speed-up", [o.speedup for o in outcomes]),
        col.si("bytes", "B", [t.dram_bytes for t in before]),
        col.si("± bytes", "B", change_bytes),
        col.optional(col.plain("kernels", [t.kernels for t in before])),
        col.plain("± kernels", [a.kernels - b.kernels for a, b in zip(after, before, strict=True)]),
    ]
    notes = dict.fromkeys(note for o in outcomes for note in o.notes)
    blocks: list[Block] = [col.table("", columns, WHAT_IF_NOTE)]
    if notes:
        more = f", and {len(notes) - MAX_NOTES} more" if len(notes) > MAX_NOTES else ""
        blocks.append(Sentence(clean(f"Not changed: {'; '.join([*notes][:MAX_NOTES])}{more}.")))
    return Section("What if", tuple(blocks))


def _once(texts: Sequence[str]) -> list[str]:
    """Repeats of the line above left empty."""
    return [text if i == 0 or texts[i - 1] != text else "" for i, text in enumerate(texts)]
