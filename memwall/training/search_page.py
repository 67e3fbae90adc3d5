"""Search of layouts → its page: the fastest layouts of a training step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import memwall.report.columns as col
from memwall.core.units import counted, duration, percent, size
from memwall.report.document import Table
from memwall.report.pages.search import SearchReport
from memwall.training.page import PEAK

if TYPE_CHECKING:
    from memwall.training.search import LayoutChoice, Layouts

SCHEMA = "memwall.layouts/1"
_COLUMNS = ("layout", "batch", "time_s", "tokens_per_s_per_gpu", "mfu", "hfu", "bubble_s", "exposed_s", "tensor_s",
            "peak_bytes", "usd_per_million_tokens")  # fmt: skip


def layouts_page(found: Layouts) -> SearchReport:
    """The page of a search of layouts."""
    best = found.order[0]
    return SearchReport(
        title=f"{found.name}: layouts on {found.cluster.full_name or found.cluster.name}",
        best=f"The fastest: {best.layout}, microbatches of {counted(best.batch, 'sample')};"
        f" {duration(best.step.time_s)} a step, {percent(best.step.mfu)} MFU.",
        counted=f"{counted(found.count, 'layout')} of {counted(found.gpus, 'GPU')} and a global batch of"
        f" {found.global_batch:,}, {found.simulated:,} of which were simulated; {counted(found.ranks, 'rank')} traced.",
        pruned=found.pruned,
        heading="The fastest that fit",
        table=lambda: _table(found.order),
        head={
            "schema": SCHEMA,
            "model": found.name,
            "cluster": found.cluster.name,
            "gpus": found.gpus,
            "global_batch": found.global_batch,
            "candidates": found.count,
        },
        listed="layouts",
        columns=_COLUMNS,
        values=[
            (
                str(each.layout),
                each.batch,
                each.step.time_s,
                each.tokens_per_s_per_gpu,
                each.step.mfu,
                each.step.hfu,
                each.step.bubble_s,
                each.step.exposed_s,
                each.step.tensor_s,
                each.peak_bytes,
                each.usd_per_million,
            )
            for each in found.order
        ],
    )


def _table(order: tuple[LayoutChoice, ...]) -> Table:
    priced = order[0].usd_per_million is not None
    rows = [
        (
            str(each.layout),
            each.batch,
            duration(each.step.time_s),
            each.step.mfu,
            each.step.hfu,
            each.step.bubble_s / each.step.time_s,
            (each.step.exposed_s + each.step.tensor_s) / each.step.time_s,
            size(each.peak_bytes),
            f"{each.usd_per_million:.3f}" if priced else "",
        )
        for each in order
    ]
    specs = (
        "layout: 0, batch: 1, a step: 2 right, MFU: 3 %, HFU: 4 %, bubble: 5 %, messages: 6 %,"
        " peak memory: 7 right" + ", USD for 1 M tokens: 8 right" * priced
    )
    return col.listing("", rows, specs, f"batch: samples of a microbatch; peak memory: {PEAK}")
