"""Score every table of measured times, and compare with the scores that are committed.

    python lab/reports/scores.py [TABLE...] [--tables FOLDER] [--rows 200] [--write]

Scored are the rows that no constant is fitted to. A cell is a table, a GPU, a kind and a dtype; rows of a kind on all
GPUs are a cell too, which ``lab/reports/accuracy_page.py`` puts on a page. The exit code is 1
where the median error of a cell is larger than in reports/scores.csv by two points and a tenth, or where more rows are
faster than their bound. Where networks were timed compiled and not, it says for how many the model has the right sign.
``--write`` keeps the scores of the tables that were read.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pandas as pd

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

from memwall.bench.accuracy import ALL, TimedRow, held_out_rows, score  # noqa: E402
from memwall.core.errors import UsageError  # noqa: E402

COMMITTED = ROOT / "reports" / "scores.csv"
KEYS = ["table", "gpu", "kind", "dtype"]
#: how the kind of a compiled network ends
COMPILED = " compiled"
#: a cell is worse where its median error grows by both
WORSE_POINTS, WORSE_FACTOR = 0.02, 1.1
#: share of the rows inside their 80 % interval that is wanted of sets with as many rows
COVERAGE, LEAST_ROWS = (0.7, 0.9), 50


def main() -> int:
    options = _options()
    paths = {path.stem: path for path in sorted(Path(options.tables).glob("*.csv"))}
    if missing := [name for name in options.table if name not in paths]:
        print(f"scores: no table {missing[0]!r} in {options.tables}", file=sys.stderr)
        return 2
    found = pd.DataFrame([row for name in options.table or paths for row in cells(paths[name], options.rows)])
    if found.empty:
        print(f"scores: no table of measured times in {options.tables}", file=sys.stderr)
        return 2
    print(found.to_string(index=False, float_format=lambda number: f"{number:.3f}"))
    before = pd.read_csv(COMMITTED, keep_default_na=False) if COMMITTED.exists() else found.iloc[:0]
    worse, uncovered = worse_cells(before, found), badly_covered(found)
    for text, cells_of in (("worse than committed", worse), ("intervals hold too few or too many rows", uncovered)):
        if len(cells_of):
            print(f"\n{text}:\n{cells_of.to_string(index=False, float_format=lambda number: f'{number:.3f}')}")
    if options.write:
        kept = before[~before["table"].isin(found["table"])]
        pd.concat([kept, found] if len(kept) else [found]).sort_values(KEYS).to_csv(
            COMMITTED, index=False, float_format="%.4f", lineterminator="\n"
        )
    return int(len(worse) > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", nargs="*", help="names of tables; all where none is named")
    parser.add_argument("--tables", default=str(ROOT.parent / "shared" / "truth"), help="folder of measured tables")
    parser.add_argument("--rows", type=int, default=200, help="deployments to simulate of each table; 0: all")
    parser.add_argument("--write", action="store_true", help="keep these scores as the committed ones")
    return parser.parse_args()


def cells(path: Path, rows: int) -> Iterator[dict[str, object]]:
    """The scores of a table; none of a file that is no table of measured times."""
    try:
        rows_of = held_out_rows(path, simulated=rows)
    except UsageError as error:
        print(f"scores: {error}", file=sys.stderr)
        return
    if signs := compiling(rows_of):
        print(f"{path.stem}: of {len(signs)} compiled networks {sum(signs)} have the right sign")
    for cell in (*score(rows_of), *score(replace(row, gpu=ALL, dtype=ALL) for row in rows_of)):
        yield {
            "table": path.stem, "gpu": cell.gpu, "kind": cell.op_class, "dtype": cell.dtype, "rows": cell.n,
            "median_error": cell.median_ape, "mean_error": cell.mape, "bias": cell.bias, "inside": cell.coverage,
            "beaten": cell.violations,
        }  # fmt: skip


def compiling(rows: Sequence[TimedRow]) -> list[bool]:
    """For each compiled network that was timed in eager execution too (the mean where by several versions of torch),
    whether the model has the right one of both as the faster."""
    eager = defaultdict[tuple[str, ...], list[TimedRow]](list)
    for row in rows:
        eager[row.gpu, row.op_class, row.dtype, row.shape].append(row)
    pairs = [(row, eager.get((row.gpu, row.op_class.removesuffix(COMPILED), row.dtype, row.shape))) for row in rows]
    return [
        (row.measured_s < mean(each.measured_s for each in others))
        == (row.modeled_s < mean(each.modeled_s for each in others))
        for row, others in pairs
        if others and row.op_class.endswith(COMPILED)
    ]


def worse_cells(before: pd.DataFrame, now: pd.DataFrame) -> pd.DataFrame:
    """The cells of both whose error or count of beaten bounds grew."""
    both = before.merge(now, on=KEYS, suffixes=("_before", "_now"))
    old, new = both["median_error_before"], both["median_error_now"]
    grew = (new >= old + WORSE_POINTS) & (new >= WORSE_FACTOR * old)
    beaten = both["beaten_now"] > both["beaten_before"]
    shown = [*KEYS, "rows_now", "median_error_before", "median_error_now", "beaten_before", "beaten_now"]
    return both.loc[grew | beaten, shown]


def badly_covered(now: pd.DataFrame) -> pd.DataFrame:
    """The cells of many rows of which the intervals hold too few or too many."""
    inside = pd.to_numeric(now["inside"])
    return now[(now["rows"] >= LEAST_ROWS) & ((inside < COVERAGE[0]) | (inside > COVERAGE[1]))]


if __name__ == "__main__":
    sys.exit(main())
