"""What a rank's collectives take, and what of that nothing hides: a table of a profile's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import memwall.report.columns as col
from memwall.analysis.communication import MessageRow, message_rows
from memwall.analysis.pipelines import PipelineStep, RankRow, rank_rows
from memwall.core.units import counted, duration, few, percent, size
from memwall.ops.collective import receives
from memwall.record.kernels import Rates, short_name
from memwall.record.profile import Profile
from memwall.report.document import Block, Section, Sentence
from memwall.simulate.schedule import Schedule

_NOTE = (
    "message: as nccl-tests define its size; time: of one; exposed: seconds of all in which the device computes"
    " nothing, and seconds that kernels next to them take longer, the only seconds that are part of the step"
)
_TAKEN = "taken: NCCL's algorithm and protocol"
_NO_CLUSTER = "without --cluster a collective takes as long as its bytes on the device's own link"
_RANKS_NOTE = (
    "time: of the rank's own work, none of it waiting for others; exposed: of its collectives; waits: for other stages;"
    " state: parameters, gradients and optimizer state; in flight: micro-batches whose activations it holds"
)


def communication_blocks(profile: Profile, schedule: Schedule) -> list[Block]:
    """The collectives of a simulation by what they send; nothing where there are none."""
    rows = message_rows(profile, schedule)
    if not rows:
        return []
    columns = [
        col.text("collective", [short_name(row.name) for row in rows]),
        col.text("ranks", [row.group for row in rows]),
        col.text("link", [row.link for row in rows]),
        col.plain("count", [row.count for row in rows]),
        *col.of(rows, "message: nbytes B"),
        col.seconds("time", [row.whole_s / row.count for row in rows]),
        *col.of(rows, "exposed: exposed_s s"),
        col.text("taken", [row.taken for row in rows]),
    ]
    is_taken = any(row.taken for row in rows)
    notes = (_NOTE, _TAKEN if is_taken else "", "" if schedule.gpu.cluster else _NO_CLUSTER)
    shown = columns if is_taken else columns[:-1]
    return [
        col.table("Collectives", shown, "; ".join(filter(None, notes))),
        Sentence(communication_text(schedule, rows)),
    ]


def rank_section(traced: Mapping[int, Profile], step: PipelineStep | None) -> Section:
    """The ranks whose steps differ, and the step of the pipeline that they are of."""
    rows = rank_rows(traced, step)
    columns = [
        col.text("rank", [str(row.rank) for row in rows]),
        *col.of(
            rows, "time: time_s s, exposed: exposed_s s, waits: waits_s s, state: state_bytes B, peak: peak_bytes B"
        ),
        *col.of(rows, "in flight: in_flight count"),
    ]
    table = col.table("Ranks", columns if step else columns[:3] + columns[4:-1], f"{_RANKS_NOTE}; {_alike(rows)}")
    return Section("", (table, Sentence(pipeline_text(step))) if step else (table,))


def _alike(rows: Sequence[RankRow]) -> str:
    """``traced: 0, 1 and 7; 2-6 build modules like rank 1's and are taken to do the same``."""
    traced = f"traced: {few([str(row.rank) for row in rows], len(rows))}"
    others = [f"{row.alike} build modules like rank {row.rank}'s" for row in rows if row.alike]
    taken = " and are taken to do the same, with no more micro-batches in flight" if others else ""
    return f"{'; '.join([traced, *others])}{taken}"


def pipeline_text(step: PipelineStep) -> str:
    """``The step of all 8 ranks takes 520.50 ms under Schedule1F1B ...``: the bubble, and the slowest rank."""
    pipeline, run = step.pipeline, step.run
    return (
        f"The step of all {counted(len(pipeline.ranks), 'rank')} takes {duration(step.time_s)} under"
        f" {pipeline.schedule} with {counted(pipeline.microbatches, 'micro-batch')} in"
        f" {counted(len(step.stages), 'stage')}: rank {step.slowest}, the slowest, computes them for"
        f" {duration(run.busy_s[run.slowest])} and waits {percent(run.bubble)} as long (the bubble). MFU of all ranks"
        f" {percent(step.mfu)}{f', HFU {percent(step.hfu)}' if step.hfu > step.mfu else ''}.{rates_text(step.rates)}"
    )


def rates_text(found: Rates) -> str:
    """`` 31,000 tokens/s in all, 3,875 on each GPU.``; empty where the inputs have neither tokens nor samples."""
    words = {
        "tokens": (found.tokens_per_s, found.tokens_per_s_per_gpu),
        "samples": (found.samples_per_s, found.samples_per_s_per_gpu),
    }
    known = ((word, of_all, each) for word, (of_all, each) in words.items() if of_all is not None and each is not None)
    return next((f" {_rate(of_all)} {word}/s in all, {_rate(each)} on each GPU." for word, of_all, each in known), "")


def _rate(each: float) -> str:
    return f"{each:,.0f}" if each >= 100 else f"{each:.3g}"


def communication_text(schedule: Schedule, rows: list[MessageRow]) -> str:
    """``12 collectives take 1.20 ms, of which 0.10 ms (2.0 % of the step) are exposed; bytes that leave ...``."""
    whole_s, exposed_s = sum(row.whole_s for row in rows), sum(row.exposed_s for row in rows)
    sent: dict[str, float] = {}
    for row in (row for row in rows if not receives(row.name)):
        for link, nbytes in row.sent_bytes.items():
            sent[link] = sent.get(link, 0.0) + row.count * nbytes
    leaving = ", ".join(f"{size(nbytes)} on {link}" for link, nbytes in sent.items())
    share = percent(exposed_s / schedule.totals.time_s if schedule.totals.time_s else 0.0)
    count = sum(row.count for row in rows)
    return (
        f"{counted(count, 'collective')} {'takes' if count == 1 else 'take'} {duration(whole_s)}, of which"
        f" {duration(exposed_s)} ({share} of the step) are exposed"
        f"{f'; bytes that leave this GPU: {leaving}' if leaving else ''}."
    )
