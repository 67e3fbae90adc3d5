"""``memwall accuracy`` as a page: scores of the model against measured data, violations of the bound first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from memwall.analysis.accuracy import CLOSE, Cell, Scored, Split, score, score_all
from memwall.core.errors import UsageError
from memwall.report.columns import CellColumn, percent_column, plain_column
from memwall.report.document import Document, Facts, Section, Sentence, Table, clean, table, text_column
from memwall.report.markdown import to_markdown
from memwall.report.pages.validation import error_column
from memwall.report.tables import csv_text
from memwall.report.text import to_text

NOTE = (
    "n: distinct kernels; MAPE, median, p90: of |modeled - measured| / measured; bias: its mean with its sign, above 0:"
    f" modeled too slow; rank: Spearman's correlation; close: within {CLOSE:.0%}; faster than bound: our error"
)
BESIDE_NOTE = (
    "R0: the datasheet's roofline; R1: 75 % of the peak, 85 % of the bandwidth and 3 us; kappa: Cohen's, of what the"
    " model says limits a kernel and what the data say (overhead where the shortest row of its class takes more than"
    " half as long); held: rows inside the interval that is to hold 8 of 10; constants: whether fitted to this board"
)
SPLIT_NOTE = (
    "fit, other: shapes that the constants may be fitted to, and the others, by a hash of the shape; left out: all"
    " rows, with the constants of the most similar other board; held: rows inside the interval that is to hold 8 of 10"
)
#: reasons for skipped rows that are printed
_MAX_REASONS = 12


def render_accuracy(scored: Scored, kind: str, *, width: int | None = None, color: bool = False) -> str | bytes:
    """The scores as text, Markdown, CSV or JSON, these two one cell for each data set, GPU, op class and dtype; PNG and
    SVG draw every row.

    Raises:
        UsageError: there is no such kind.
    """
    if kind not in _KINDS:
        raise UsageError(f"memwall accuracy writes no {kind!r}; there is {', '.join(_KINDS)}")
    if kind == "text":
        return to_text(accuracy_document(scored), width=width, color=color)
    return _KINDS[kind](scored)


def accuracy_document(scored: Scored) -> Document:
    """Violations, then all classes together, then each."""
    whole, cells = score_all(scored.rows), score(scored.rows)
    blocks: list[Table | Facts | Sentence] = []
    if violations := sum(cell.violations for cell in whole):
        kernels = "1 kernel was" if violations == 1 else f"{violations:,} kernels were"
        blocks.append(Sentence(f"OUR ERROR: {kernels} measured faster than our speed of light.", strong=True))
    blocks += [cell_table("All op classes", whole), cell_table("By op class and dtype", cells)]
    if modeled := [cell for cell in cells if cell.r1_mape is not None]:
        blocks.append(beside_table("Beside the rooflines", modeled))
    if scored.split and scored.split.left_out:
        blocks.append(split_table("On shapes and boards not fitted to", scored.split))
    if scored.skipped:
        blocks.append(_skipped(scored.skipped))
    return Document("The model against the clock", (Section("", tuple(blocks)),))


def _skipped(reasons: Mapping[str, int]) -> Sentence:
    most = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    said = "; ".join(f"{count:,}: {clean(reason)}" for reason, count in most[:_MAX_REASONS])
    more = f"; {len(most) - _MAX_REASONS} more reasons" if len(most) > _MAX_REASONS else ""
    return Sentence(f"Rows left out: {said}{more}.")


def _names(cells: Sequence[Cell]) -> list[CellColumn]:
    return [
        text_column("data", [c.dataset for c in cells]),
        text_column("GPU", [c.gpu for c in cells], flexible=True),
        text_column("class", [c.op_class for c in cells]),
        text_column("dtype", [c.dtype for c in cells]),
    ]


def cell_table(title: str, cells: Sequence[Cell]) -> Table:
    """Cells as rows."""
    columns = [
        *_names(cells),
        plain_column("n", [c.n for c in cells]),
        percent_column("MAPE", [c.mape for c in cells]),
        percent_column("median", [c.median_ape for c in cells]),
        error_column("bias", [c.bias for c in cells]),
        percent_column("p90", [c.p90 for c in cells]),
        plain_column("rank", [c.spearman for c in cells], 2),
        percent_column("close", [c.within_20 for c in cells], 0),
        plain_column("faster", [c.violations for c in cells], unit="than bound"),
    ]
    return table(title, columns, NOTE if title.startswith("By") else "")


def beside_table(title: str, cells: Sequence[Cell]) -> Table:
    """The same cells beside two rooflines, with how far labels and intervals hold."""
    columns = [
        *_names(cells),
        percent_column("MAPE", [c.mape for c in cells]),
        percent_column("R1", [c.r1_mape for c in cells]),
        percent_column("R0", [c.r0_mape for c in cells]),
        plain_column("kappa", [c.kappa for c in cells], 2),
        percent_column("held", [c.coverage for c in cells], 0),
        text_column("constants", [c.calibrated or "-" for c in cells]),
    ]
    return table(title, columns, BESIDE_NOTE)


def split_table(title: str, split: Split) -> Table:
    """The cells of the halves and of boards left out, side by side."""
    parts = [_by_name(score(rows)) for rows in (split.fit, split.held_out, split.left_out)]
    names = sorted({name for part in parts for name in part})
    fit, other, left = ([part.get(name) for name in names] for part in parts)
    named = [next(part[name] for part in parts if name in part) for name in names]

    def of(cells: Iterable[Cell | None], field: str) -> list[float | None]:
        return [None if cell is None else getattr(cell, field) for cell in cells]

    columns = [
        *_names(named),
        plain_column("n", of(other, "n"), unit="other"),
        percent_column("MAPE fit", of(fit, "mape")),
        percent_column("MAPE other", of(other, "mape")),
        percent_column("median other", of(other, "median_ape")),
        percent_column("R1 other", of(other, "r1_mape")),
        percent_column("MAPE left out", of(left, "mape")),
        percent_column("held other", of(other, "coverage"), 0),
        percent_column("held left out", of(left, "coverage"), 0),
    ]
    return table(title, columns, SPLIT_NOTE)


def _by_name(cells: Iterable[Cell]) -> dict[tuple[str, str, str, str], Cell]:
    return {(c.dataset, c.gpu, c.op_class, c.dtype): c for c in cells}


def _json(scored: Scored) -> str:
    return json.dumps([cell.to_dict() for cell in score(scored.rows)], indent=1) + "\n"


def _csv(scored: Scored) -> str:
    return csv_text(Cell.__slots__, (tuple(cell.to_dict().values()) for cell in score(scored.rows)))


def _picture(fmt: str) -> Callable[[Scored], bytes]:
    def draw(scored: Scored) -> bytes:
        from memwall.report.figures.scatter import scatter

        return scatter(scored.rows, fmt)

    return draw


_KINDS: dict[str, Callable[[Scored], str | bytes]] = {
    "text": lambda scored: to_text(accuracy_document(scored)),
    "md": lambda scored: to_markdown(accuracy_document(scored)),
    "csv": _csv,
    "json": _json,
    "png": _picture("png"),
    "svg": _picture("svg"),
}
