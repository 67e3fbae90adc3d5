"""The committed scores: what counts as worse, and which intervals hold too few rows."""

import importlib.util

import pandas as pd

from memwall.bench.accuracy import TimedRow
from tests.unit.places import ROOT


def _script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "lab" / "reports" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


scores, page = _script("scores"), _script("accuracy_page")


def _cells(*rows):
    columns = ["table", "gpu", "kind", "dtype", "rows", "median_error", "inside", "beaten"]
    return pd.DataFrame([("gemm", "h100", *row) for row in rows], columns=columns)


def test_a_cell_is_worse_by_two_points_and_a_tenth_or_by_a_beaten_bound():
    before = _cells(
        *[(kind, "fp16", 9, error, 0.8, 0) for kind, error in zip("abcd", (0.1, 0.3, 0.05, 0.1), strict=True)]
    )
    now = _cells(
        ("a", "fp16", 9, 0.125, 0.8, 0),  # 2.5 points, a quarter
        ("b", "fp16", 9, 0.325, 0.8, 0),  # 2.5 points, but a twelfth
        ("c", "fp16", 9, 0.065, 0.8, 0),  # a third, but 1.5 points
        ("d", "fp16", 9, 0.1, 0.8, 1),
        ("new", "fp16", 9, 0.9, 0.8, 3),
    )
    assert list(scores.worse_cells(before, now)["kind"]) == ["a", "d"]


def test_intervals_of_many_rows_hold_seven_to_nine_of_ten():
    now = _cells(("few", "fp16", 49, 0.1, 0.1, 0), ("low", "fp16", 50, 0.1, 0.69, 0), ("ok", "fp16", 50, 0.1, 0.9, 0),
                 ("high", "fp16", 50, 0.1, 0.91, 0), ("none", "fp16", 50, 0.1, None, 0))  # fmt: skip
    assert list(scores.badly_covered(now)["kind"]) == ["low", "high"]


def test_signs_of_compiling_are_of_networks_that_were_timed_both_ways():
    """Eager by two versions 4 and 6 s, modeled 5 both: compiled in 4.5, modeled 4 is right; another in 7, modeled 4 is
    wrong; one without eager is not counted."""
    rows = [TimedRow("t", "4090", kind, "fp16", modeled, measured, shape=name) for kind, name, modeled, measured in (
        ("infer", "a", 5, 4), ("infer", "a", 5, 6), ("infer compiled", "a", 4, 4.5), ("infer", "b", 5, 5),
        ("infer compiled", "b", 4, 7), ("infer compiled", "c", 4, 7),
    )]  # fmt: skip
    assert scores.compiling(rows) == [True, False]


def test_sets_of_many_rows_are_counted_by_what_their_intervals_hold():
    """49 rows, and rows of all GPUs, are no set; 0.6, 0.68, 0.8 and 1 are four, one of them within 70 to 90 %."""
    columns = ["table", "gpu", "kind", "rows", "inside"]
    rows = [("deepbench_gemm", "t4", "a", 49, "0.8"), ("deepbench_gemm", "all", "a", 99, "0.8")]
    rows += [
        ("deepbench_gemm", "t4", kind, 50, inside)
        for kind, inside in zip("bcde", ("0.6", "0.68", "0.8", "1"), strict=True)
    ]
    rows += [("nccl_collectives", "t4", "a", 99, "")]
    assert page.intervals(pd.DataFrame(rows, columns=columns)).splitlines()[-1] == f"| {page.KERNELS} | 4 | 1 | 2 |"


def test_the_page_shows_the_committed_scores():
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.with_scores(text, pd.read_csv(page.SCORES, keep_default_na=False)) == text
