"""What fusion wins: the policies of one GPU side by side, then each policy's groups, modules and missed fusions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import memwall.report.columns as col
from memwall.analysis.explanation import choices_text
from memwall.analysis.pipes import mfu_base, mfu_note
from memwall.analysis.savings import Missed, PolicyRow, PolicySet, Saving, group_savings, missed_fusions, module_savings
from memwall.analysis.table import OTHERS
from memwall.analysis.whatif import Outcome
from memwall.core.units import counted, duration, listed, percent, size
from memwall.record.kernels import NO_MODULE
from memwall.record.profile import Profile
from memwall.report.document import Block, Section, Sentence, Table
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


def policy_table(policies: PolicySet) -> Table:
    bases = mfu_note((schedule.gpu.name, mfu_base(policies.profile, schedule)) for schedule in policies.schedules)
    return policies_table(policies.rows(), f"{POLICY_NOTE}; {bases}" if bases else POLICY_NOTE)


#: why a policy may save more than the best fusion does
BEYOND_NOTE = (
    "above 100: a compiler changes what no fusion does, too: the layouts of convolutions, the kernels of an op, how"
    " the CPU issues them"
)


def policies_table(rows: Sequence[PolicyRow], note: str = POLICY_NOTE) -> Table:
    """The policies of one GPU side by side."""
    if any((row.time_score or 0.0) > 1.0 + 1e-9 and row.policy != "ideal" for row in rows):
        note = f"{note}; {BEYOND_NOTE}"
    return col.listing(
        "Policies",
        rows,
        "policy, time_s, speedup, time_score, kernels, DRAM bytes: dram_bytes, saved_bytes, byte_score,"
        "peak_memory_bytes, mfu, fits fits",
        note,
    )


def cut_name(name: str) -> str:
    """A group's name with at most ``MAX_NAMES`` ops, the rest counted."""
    parts = name.split(" + ")
    rest = len(parts) - MAX_NAMES
    return " + ".join(parts[:MAX_NAMES]) + (f" + {rest} more" if rest > 0 else "")


_SAVING = "eager_kernels>kernels?, eager_bytes>bytes?, eager_s>time_s, saved_s like eager_s"


def group_table(rows: Sequence[Saving], top: int) -> Table:
    """The first groups, of groups that are sorted by what they save."""
    shown, more = rows[:top], rows[top:]
    columns = [
        col.names("group", [cut_name(r.name) for r in shown]),
        *col.of(shown, f": count repeats, module module, {_SAVING}"),
    ]
    note = GROUP_NOTE
    if more:
        rest_s = sum(r.saved_s for r in more)
        text = f"which add {duration(-rest_s)}" if rest_s < 0 else f"{duration(rest_s)} in sum"
        note = f"and {col.rows_left(len(more))}, {text}; {note}"
    return col.table("Groups by what they save", columns, note)


def module_table(rows: Sequence[Saving]) -> Table:
    return col.listing("Modules by what they save", rows, f"module name, {_SAVING}", MODULE_NOTE)


def missed_table(rows: Sequence[Missed]) -> Table:
    return col.listing(
        "Missed fusions by what they would win",
        rows,
        "producer name, consumer name, : count repeats, module module, bytes: saved_bytes B, time: saved_s s, rule,"
        "reason prose?",
        MISSED_NOTE,
    )


def explained(policies: PolicySet) -> tuple[Schedule, ...]:
    """The schedules whose groups are kernels of their own, of ops that eager runs too: neither eager nor the floor that
    ``ideal`` is."""
    others = (schedule for schedule in policies.schedules if schedule.policy not in ("eager", "ideal"))
    return tuple(schedule for schedule in others if policies.shares_ops(schedule))


def fusion_tables(policies: PolicySet, schedule: Schedule) -> tuple[Table, ...]:
    groups = group_savings(policies, schedule)
    missed = missed_fusions(policies.profile, schedule, top=MAX_MISSED)
    tables = [group_table(groups, MAX_GROUPS)] if groups else []
    tables.append(module_table(module_savings(policies, schedule, top=MAX_MODULES)))
    return (*tables, missed_table(missed)) if missed else tuple(tables)


def policy_blocks(
    policies: PolicySet, *, told: Schedule | None = None, only: Schedule | None = None
) -> tuple[Block, ...]:
    """The policies of a GPU side by side, and a sentence for each but eager and the policy that was ``told``
    already, or for one ``only``."""
    shown = [schedule for schedule in policies.schedules if only is None or schedule is only]
    rows = [schedule for schedule in shown if schedule.policy != "eager" and schedule is not told]
    said = (Sentence(saving_sentence(policies, s), strong=s.policy != "ideal") for s in rows)
    return (policy_table(policies), *said, *_ranges(policies.profile, shown))


def best_of(sets: Sequence[PolicySet]) -> tuple[PolicySet, Schedule] | None:
    """The policy that makes its GPU's step the shortest over eager's, of all GPUs; None where eager alone is there."""
    found = [(each, s) for each in sets for s in each.schedules if s.policy not in ("eager", "ideal")]
    return max(found, key=lambda pair: pair[0].row(pair[1]).speedup, default=None)


def _ranges(profile: Profile, schedules: Iterable[Schedule]) -> Iterator[Sentence]:
    """The range of each policy that leaves kernels open, and what is open."""
    for schedule in schedules:
        if open_ := choices_text(profile, schedule):
            low, time, high = map(duration, (schedule.totals.low_s, schedule.totals.time_s, schedule.totals.high_s))
            yield Sentence(f"{schedule.policy} is a range, {low} to {high} (80 %) around {time}: {open_}.")


def saving_sentence(policies: PolicySet, schedule: Schedule) -> str:
    """``memwall saves 9.06 ms of 54.60 ms (1.20x) and 14.05 GB ..., the most of it in the optimizer``."""
    row, eager = policies.row(schedule), policies.row(policies.eager)
    if len(schedule.outside) == len(policies.profile.graphs[schedule.graph].ops):
        return f"{schedule.policy} leaves every op alone on {policies.gpu.name}: it compiles no part of the step."
    text, saved_s = row_sentence(policies.gpu.name, row, eager).removesuffix("."), eager.time_s - row.time_s
    if saved_s <= 0:
        issued, unfused = (sum(kernel.issue_s for kernel in each.kernels) for each in (schedule, policies.eager))
        if saved_s and issued > unfused:
            text += f"; the CPU takes {duration(issued)} to issue its kernels, {duration(unfused)} to issue eager's"
        return f"{text}."
    modules = [m for m in module_savings(policies, schedule) if m.saved_s > 0 and m.module != OTHERS]
    if modules and schedule.policy != "ideal":
        most_s, module = modules[0].saved_s, modules[0].module
        outside = "outside of any module"
        where, who = (outside, f"what is {outside}") if module == NO_MODULE else (f"in {module}", module)
        text += (
            f"; {percent(min(most_s / saved_s, 1.0))} of the saved time {where}"
            if most_s < saved_s * (1 + 1e-9)
            else f"; {who} saves {duration(most_s)}, and the rest takes {duration(most_s - saved_s)} more"
        )
    return f"{text}."


def row_sentence(gpu: str, row: PolicyRow, eager: PolicyRow) -> str:
    """What a policy saves of the row of eager, in time, bytes and launches."""
    saved_s, launches = eager.time_s - row.time_s, eager.kernels - row.kernels
    amounts = (
        (row.saved_bytes, f"{size(abs(row.saved_bytes))} of DRAM traffic"),
        (launches, f"{abs(launches):,} {'of' if launches >= 0 else 'to'} {counted(eager.kernels, 'launch')}"),
    )
    saved, added = ([text for amount, text in amounts if (amount >= 0) is gain] for gain in (True, False))
    if saved_s <= 0:
        more = f": {duration(-saved_s)} more than eager" if saved_s else ""
        fewer = [text for amount, text in amounts if amount > 0]
        parts = listed((f"saves {listed(fewer)}" if fewer else "", f"adds {listed(added)}" if added else ""))
        return f"{row.policy} saves no time on {gpu}{more}{parts and f'; it {parts}'}."
    score = (
        "" if row.time_score is None or row.policy == "ideal" else f", {percent(row.time_score)} of what ideal would"
    )
    time = f"{duration(saved_s)} of {duration(eager.time_s)} ({col.times(row.speedup)}{score})"
    return f"{row.policy} saves {listed((time, *saved))}" + (f", and adds {listed(added)}." if added else ".")


WHAT_IF_NOTE = (
    "change, ±: after less before; fuse: a module as one kernel that keeps all that lies between its ops on chip"
)
#: Notes that are listed before the rest is counted.
MAX_NOTES = 8


def what_if_section(outcomes: Sequence[Outcome]) -> Section:
    """Totals before and after each what-if, GPU by GPU and policy by policy."""
    before, after = [o.before for o in outcomes], [o.after for o in outcomes]
    both = list(zip(before, after, strict=True))
    labels = [o.label for o in outcomes]
    once = [label if i == 0 or labels[i - 1] != label else "" for i, label in enumerate(labels)]
    gpu = "GPU: gpu, " if len({o.gpu for o in outcomes}) > 1 else ""
    like = [t.time_s for t in before]
    columns = [
        col.text("what if", once, wraps=True),
        *col.of(outcomes, f"{gpu}policy, before: before.time_s, after: after.time_s like before.time_s"),
        col.seconds("change", [a.time_s - b.time_s for b, a in both], like=like, signed=True),
        *col.of(outcomes, "speedup, before.dram_bytes"),
        col.si("± bytes", "B", [a.dram_bytes - b.dram_bytes for b, a in both]),
        *col.of(before, "kernels?"),
        col.plain("± kernels", [a.kernels - b.kernels for b, a in both]),
    ]
    notes = dict.fromkeys(note for o in outcomes for note in o.notes)
    blocks: list[Block] = [col.table("", columns, WHAT_IF_NOTE)]
    if notes:
        more = f", and {len(notes) - MAX_NOTES} more" if len(notes) > MAX_NOTES else ""
        blocks.append(Sentence(f"Not changed: {'; '.join([*notes][:MAX_NOTES])}{more}."))
    return Section("What if", blocks)
