"""What a fit of constants found, as text: before and after on the shapes that it did not see, then the values."""

from __future__ import annotations

from collections.abc import Sequence

from memwall.analysis.accuracy.fit import Fit
from memwall.report.columns import percent_column, plain_column
from memwall.report.document import Document, Facts, Section, Table, table, text_column
from memwall.report.text import to_text

NOTE = (
    "before, after: mean of |modeled - measured| / measured on the other half of the shapes; median, bias: after;"
    " held: rows of that half inside the interval that is to hold 8 of 10"
)


def fits_text(fits: Sequence[Fit]) -> str:
    """The tables of some fits."""
    blocks: list[Table | Facts] = [fits_table(fits)]
    blocks += [value_table(found) for found in fits]
    return to_text(Document("Constants fitted", (Section("", tuple(blocks)),)))


def fits_table(fits: Sequence[Fit]) -> Table:
    """A row for each fit."""
    return table(
        "On the shapes not fitted to",
        [
            text_column("GPU", [f.target.gpu for f in fits]),
            text_column("constants", [f"{f.target.family}.{f.target.variant}" for f in fits]),
            plain_column("n", [f.fitted for f in fits], unit="fitted"),
            plain_column("n", [f.held_out for f in fits], unit="other"),
            percent_column("before", [f.before.mape for f in fits]),
            percent_column("after", [f.after.mape for f in fits]),
            percent_column("median", [f.after.median for f in fits]),
            percent_column("bias", [f.after.bias for f in fits]),
            percent_column("held", [f.coverage for f in fits], 0),
        ],
        NOTE,
    )


def value_table(found: Fit) -> Table:
    """The constants of one fit."""
    names = list(found.values)
    return table(
        f"{found.target.gpu} {found.target.family}.{found.target.variant}",
        [text_column("constant", names), text_column("value", [f"{found.values[name]:.4g}" for name in names])],
    )
