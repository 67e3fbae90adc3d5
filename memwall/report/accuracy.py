"""``memwall accuracy`` as a page: scores of the model against measured data, violations of the bound first."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from memwall.accuracy import CLOSE, Cell, Row, score, score_all
from memwall.errors import UsageError
from memwall.report.closing import error_column
from memwall.report.columns import percent_column, plain_column
from memwall.report.document import Document, Section, Sentence, Table, table, text_column
from memwall.report.markdown import to_markdown
from memwall.report.tables import csv_text
from memwall.report.text import to_text

NOTE = (
    "n: distinct kernels; MAPE, median, p90: of |modeled - measured| / measured; bias: its mean with its sign, above 0:"
    f" modeled too slow; rank: Spearman's correlation; close: within {CLOSE:.0%}; faster than bound: our error"
)


def render_accuracy(rows: Sequence[Row], kind: str, *, width: int | None = None, color: bool = False) -> str:
    """The scores as text, Markdown, CSV or JSON, these two one cell for each data set, GPU, op class and dtype.

    Raises:
        UsageError: there is no such kind.
    """
    if kind not in _KINDS:
        raise UsageError(f"memwall accuracy writes no {kind!r}; there is {', '.join(_KINDS)}")
    if kind == "text":
        return to_text(accuracy_document(rows), width=width, color=color)
    return _KINDS[kind](rows)


def accuracy_document(rows: Sequence[Row]) -> Document:
    """Violations, then all classes together, then each."""
    whole, cells = score_all(rows), score(rows)
    blocks: list[Table | Sentence] = []
    if violations := sum(cell.violations for cell in whole):
        kernels = "1 kernel was" if violations == 1 else f"{violations:,} kernels were"
        blocks.append(Sentence(f"OUR ERROR: {kernels} measured faster than our speed of light.", strong=True))
    blocks += [cell_table("All op classes", whole), cell_table("By op class and dtype", cells)]
    return Document("The model against the clock", (Section("", tuple(blocks)),))


def cell_table(title: str, cells: Sequence[Cell]) -> Table:
    """Cells as rows."""
    columns = [
        text_column("data", [c.dataset for c in cells]),
        text_column("GPU", [c.gpu for c in cells], flexible=True),
        text_column("class", [c.op_class for c in cells]),
        text_column("dtype", [c.dtype for c in cells]),
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


def _json(rows: Sequence[Row]) -> str:
    return json.dumps([cell.to_dict() for cell in score(rows)], indent=1) + "\n"


def _csv(rows: Sequence[Row]) -> str:
    return csv_text(Cell.__slots__, (tuple(cell.to_dict().values()) for cell in score(rows)))


_KINDS: dict[str, Callable[[Sequence[Row]], str]] = {
    "text": lambda rows: to_text(accuracy_document(rows)),
    "md": lambda rows: to_markdown(accuracy_document(rows)),
    "csv": _csv,
    "json": _json,
}
KINDS = tuple(_KINDS)
