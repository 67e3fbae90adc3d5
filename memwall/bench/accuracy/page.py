"""``memwall accuracy`` as a page: scores of the model against measured data, violations of the bound first."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

import memwall.report.columns as col
from memwall.bench.accuracy import CLOSE, Cell, Scored, ScoreSplit, score, score_all
from memwall.bench.accuracy.figure import scatter_chart
from memwall.bench.accuracy.fit import Fit
from memwall.bench.accuracy.refit import Refit
from memwall.core.units import percent
from memwall.report.document import Block, Document, Facts, Picture, Section, Sentence, Table, clean, known_facts
from memwall.report.figures.scene import Chart
from memwall.report.kinds import Report

NOTE = (
    "n: distinct kernels; MAPE, median, p90: of |modeled - measured| / measured; bias: its mean with its sign, above 0:"
    f" modeled too slow; rank: Spearman's correlation; close: within {percent(CLOSE, 0)}; faster than bound: model"
    " error"
)
BESIDE_NOTE = (
    "R0: the datasheet's roofline; R1: 75 % of the peak, 85 % of the bandwidth and 3 us; kappa: Cohen's, of what the"
    " model says limits a kernel and what the data say (overhead where the shortest row of its class takes more than"
    " half as long); held: rows inside the 80 % interval; constants: whether fitted to this GPU"
)
SPLIT_NOTE = (
    "fit, other: shapes that the constants may be fitted to, and the others, by a hash of the shape; left out: all"
    " rows, with the constants of the most similar other GPU; held: rows inside the 80 % interval"
)
FIT_NOTE = (
    "before, after: mean of |modeled - measured| / measured on the other half of the shapes; median, bias: after;"
    " held: rows of that half inside the 80 % interval"
)
#: reasons for skipped rows that are printed
_MAX_REASONS = 12


@dataclass(frozen=True, slots=True)
class SavedCell(Cell):
    """A cell of the record, which is a list of them. Each also says of how many rows the scores are."""

    #: of all data sets together: rows of the files, rows that were scored, and the others by reason
    read_rows: int = 0
    scored_rows: int = 0
    left_out_rows: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AccuracyReport(Report):
    """The scores; CSV and JSON have one cell for each data set, GPU, op class and dtype, pictures draw every row."""

    noun = "an accuracy report"
    kinds = ("text", "md", "html", "csv", "json", "png", "svg", "pdf")
    scored: Scored

    def document(self, kind: str) -> Document:
        scored = self.scored
        whole, cells = score_all(scored.rows), score(scored.rows)
        answer: list[Block] = [Sentence(_told(whole), strong=True)] if whole else []
        blocks: list[Block] = [_counted(scored)]
        if violations := sum(cell.violations for cell in whole):
            kernels = "1 kernel was" if violations == 1 else f"{violations:,} kernels were"
            text = f"{kernels} measured faster than the roofline bound allows: model error."
            answer.append(Sentence(text, strong=True))
        if kind == "html" and whole:
            answer.append(Picture(self.figure(), "modeled over measured time of every row"))
        blocks += [_cell_table("All op classes", whole), _cell_table("By op class and dtype", cells, NOTE)]
        if modeled := [cell for cell in cells if cell.r1_mape is not None]:
            blocks.append(beside_table("Compared with the rooflines", modeled))
        if scored.split and scored.split.left_out:
            blocks.append(split_table("On held-out shapes and GPUs", scored.split))
        return Document("Modeled vs. measured time of kernels", (Section("", blocks),), answer)

    def record(self) -> str:
        scored = self.scored
        counts: dict[str, Any] = {
            "read_rows": _read(scored),
            "scored_rows": len(scored.rows),
            "left_out_rows": dict(sorted(scored.skipped.items())),
        }
        cells = [SavedCell(**cell.to_dict(), **counts) for cell in score(scored.rows)]
        return json.dumps([asdict(cell) for cell in cells], indent=1) + "\n"

    def rows(self) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        return tuple(Cell.__slots__), (tuple(cell.to_dict().values()) for cell in score(self.scored.rows))

    def figure(self) -> Chart:
        return scatter_chart(self.scored.rows)


@dataclass(frozen=True, slots=True)
class FitsReport(Report):
    """Constants fitted to the rows of one GPU, and the text of its file with them."""

    noun = "a fit"
    kinds = ("text", "toml")
    own = MappingProxyType({"toml": lambda report: report.found.text})
    found: Refit

    def document(self, kind: str) -> Document:
        fits = self.found.fits
        return Document("Constants fitted", (Section("", (fits_table(fits), *map(value_table, fits))),))


def _told(whole: Sequence[Cell]) -> str:
    """How far off the times are, of the best and the worst data set."""
    ranked = sorted(whole, key=lambda cell: cell.median_ape)
    rows = sum(cell.n for cell in ranked)
    first, last = (f"{clean(cell.dataset)} on {clean(cell.gpu)}" for cell in (ranked[0], ranked[-1]))
    best, worst = (percent(cell.median_ape) for cell in (ranked[0], ranked[-1]))
    if len(ranked) == 1:
        return f"Half of the {rows:,} modeled times are within {best} of the measured ones: {first}."
    return f"Modeled times are off by a median of {best} ({first}) to {worst} ({last}), over {rows:,} rows."


def _read(scored: Scored) -> int:
    return len(scored.rows) + sum(scored.skipped.values())


def _counted(scored: Scored) -> Facts:
    """Rows that were read, scored and left out, the last by reason."""
    most = sorted(scored.skipped.items(), key=lambda item: (-item[1], item[0]))
    said = "; ".join(f"{count:,} {clean(reason)}" for reason, count in most[:_MAX_REASONS])
    more = f"; {len(most) - _MAX_REASONS} more reasons" if len(most) > _MAX_REASONS else ""
    return known_facts(
        ("rows read", f"{_read(scored):,}"),
        ("rows scored", f"{len(scored.rows):,}"),
        ("rows left out", f"{sum(scored.skipped.values()):,}: {said}{more}" if most else "none"),
    )


_NAMES = "data: dataset, GPU: gpu name, class: op_class, dtype"


def _cell_table(title: str, cells: Sequence[Cell], note: str = "") -> Table:
    specs = (
        f"{_NAMES}, n count, MAPE: mape %, median: median_ape %, bias error, p90 %, rank: spearman count2,"
        "close: within_20 %0, faster@than bound: violations count"
    )
    return col.listing(title, cells, specs, note)


def beside_table(title: str, cells: Sequence[Cell]) -> Table:
    """The same cells next to two rooflines, with how often labels and intervals hold."""
    constants = col.text("constants", [c.calibrated or "-" for c in cells])
    specs = f"{_NAMES}, MAPE: mape %, R1: r1_mape %, R0: r0_mape %, kappa count2, held: coverage %0"
    return col.table(title, [*col.of(cells, specs), constants], BESIDE_NOTE)


def split_table(title: str, split: ScoreSplit) -> Table:
    """The cells of the halves and of held-out GPUs, side by side."""
    scores = [score(rows) for rows in (split.fit, split.held_out, split.left_out)]
    fit, other, left = ({(c.dataset, c.gpu, c.op_class, c.dtype): c for c in cells} for cells in scores)
    figures = (
        (other, "n"),
        (fit, "mape"),
        (other, "mape"),
        (other, "median_ape"),
        (other, "r1_mape"),
        (left, "mape"),
        (other, "coverage"),
        (left, "coverage"),
    )
    rows = [
        (*name, *(getattr(part.get(name), figure, None) for part, figure in figures))
        for name in sorted({*fit, *other, *left})
    ]
    specs = (
        "data: 0, GPU: 1 name, class: 2, dtype: 3, n@other: 4 count, MAPE fit: 5 %, MAPE other: 6 %, median other: 7 %,"
        "R1 other: 8 %, MAPE left out: 9 %, held other: 10 %0, held left out: 11 %0"
    )
    return col.listing(title, rows, specs, SPLIT_NOTE)


def fits_table(fits: Sequence[Fit]) -> Table:
    columns = [
        *col.of(fits, "GPU: target.gpu"),
        col.text("constants", [f"{f.target.family}.{f.target.variant}" for f in fits]),
        *col.of(fits, "n@fitted: fitted count, n@other: held_out count, before: before.mape %, after: after.mape %"),
        *col.of(fits, "median: after.median %, bias: after.bias %, held: coverage %0"),
    ]
    return col.table("On the shapes not fitted to", columns, FIT_NOTE)


def value_table(found: Fit) -> Table:
    title = f"{found.target.gpu} {found.target.family}.{found.target.variant}"
    values = [f"{value:.4g}" for value in found.values.values()]
    return col.table(title, [col.text("constant", found.values), col.text("value", values)])
