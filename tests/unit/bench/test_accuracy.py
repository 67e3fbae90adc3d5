"""Scores against arithmetic by hand, and scipy where it is there; files that are good and files that are not."""

import json
import random
from dataclasses import replace

import pytest

from memwall.bench.accuracy import Scored, TableKind, TimedRow, kinds, reading, score, score_all, score_files
from memwall.bench.accuracy.kinds import OWN
from memwall.bench.accuracy.page import AccuracyReport
from memwall.bench.accuracy.scores import floors_s, kappa, percentile, regime, spearman
from memwall.core.errors import UsageError
from memwall.report import render
from tests.unit.measured_fixture import make_measured
from tests.unit.report_fixture import make_profile


def row(modeled_s, measured_s, bound_s=None, op_class="elementwise", dtype="float16", gpu="g", dataset="d"):
    return TimedRow(dataset, gpu, op_class, dtype, modeled_s, measured_s, bound_s)


def test_a_cell_by_hand():
    """Errors +10 %, -20 %, +50 %, -100 %, 0 %, in this order."""
    rows = [row(1.1, 1.0, 0.9), row(0.8, 1.0, 1.2), row(6.0, 4.0, 1.0), row(0.0, 3.0), row(2.0, 2.0, 2.0)]
    (cell,) = score(rows)
    assert (cell.dataset, cell.gpu, cell.op_class, cell.dtype, cell.n) == ("d", "g", "elementwise", "float16", 5)
    assert cell.mape == pytest.approx((0.1 + 0.2 + 0.5 + 1.0 + 0.0) / 5)
    assert cell.median_ape == pytest.approx(0.2)
    assert cell.bias == pytest.approx((0.1 - 0.2 + 0.5 - 1.0 + 0.0) / 5)
    assert cell.p90 == pytest.approx(0.5 + 0.6 * (1.0 - 0.5))  # rank 0.9 x 4 = 3.6 of 0, 0.1, 0.2, 0.5, 1.0
    assert cell.within_20 == pytest.approx(3 / 5)
    assert cell.violations == 1  # 1.0 below 1.2; equal is none
    # ranks modeled 3 2 5 1 4, measured 1.5 1.5 5 4 3: products of deviations -0 +1.5 +4 -2 +0 = 3.5; sqrt(10 x 9.5)
    assert cell.spearman == pytest.approx(3.5 / 95**0.5)


def test_cells_are_apart_and_in_order():
    rows = [row(1, 1, gpu="b"), row(1, 1, dtype="float32"), row(1, 1), row(2, 1, op_class="attention")]
    assert [(c.gpu, c.op_class, c.dtype, c.n) for c in score(rows)] == [
        ("b", "elementwise", "float16", 1), ("g", "attention", "float16", 1), ("g", "elementwise", "float16", 1),
        ("g", "elementwise", "float32", 1),
    ]  # fmt: skip
    assert [(c.gpu, c.op_class, c.dtype, c.n) for c in score_all(rows)] == [
        ("b", "all", "all", 1),
        ("g", "all", "all", 3),
    ]


def test_kappa_by_hand():
    """3 of 4 agree; by chance 0.5 x 0.75 + 0.5 x 0.25 = 0.5 do."""
    labels = [("overhead", "overhead"), ("overhead", "overhead"), ("compute", "compute"), ("compute", "overhead")]
    assert kappa(labels) == pytest.approx((0.75 - 0.5) / (1 - 0.5))
    assert kappa([("compute", "compute")] * 3) is None
    assert kappa([("compute", "bandwidth")] * 3) == 0.0
    assert kappa([]) is None


def labelled(measured_s, limited_by, low_s=0.0, high_s=9.0):
    return TimedRow(
        "d",
        "g",
        "c",
        "t",
        1.0,
        measured_s,
        limited_by=limited_by,
        datasheet_limit="bandwidth",
        low_s=low_s,
        high_s=high_s,
        r0_s=0.5,
        r1_s=2.0,
    )


def test_regimes_intervals_and_rooflines():
    """The shortest takes 1 s: those under 2 s are overhead, 2 s and more bandwidth."""
    rows = [labelled(1.0, "overhead"), labelled(1.9, "bandwidth"), labelled(2.0, "bandwidth", high_s=1.5)]
    (cell,) = score(rows)
    assert cell.coverage == pytest.approx(2 / 3)
    # 2 of 3 agree; by chance 1/3 x 2/3 + 2/3 x 1/3 = 4/9
    assert cell.kappa == pytest.approx((2 / 3 - 4 / 9) / (5 / 9))
    assert cell.r0_mape == pytest.approx((0.5 + (1 - 0.5 / 1.9) + 0.75) / 3)
    assert cell.r1_mape == pytest.approx((1.0 + (2 / 1.9 - 1) + 0.0) / 3)


def test_rows_that_rounding_cannot_place_have_no_regime():
    """To 1 s, a floor of 1 is 0.5 to 1.5, so 3 is 2.5 to 3.5: half of it 1.25 to 1.75, over or under the floor. 4 is
    at least 3.5, half of it 1.75: surely more than the floor."""
    rows = [replace(labelled(s, "bandwidth"), resolution_s=1.0) for s in (1.0, 3.0, 4.0)]
    assert [regime(row, floors_s(rows)) for row in rows] == [None, None, "bandwidth"]
    exact = [replace(row, resolution_s=0.0) for row in rows]
    assert [regime(row, floors_s(exact)) for row in exact] == ["overhead", "bandwidth", "bandwidth"]


def test_each_op_of_a_class_has_a_floor_of_its_own():
    rows = [replace(labelled(s, "overhead"), shape=shape) for s, shape in ((1.0, "add h=1"), (2.5, "relu h=1"))]
    assert [regime(row, floors_s(rows)) for row in rows] == ["overhead", "overhead"]
    sizes = [replace(row, shape=shape) for row, shape in zip(rows, ("1x2", "3x4"), strict=True)]
    assert [regime(row, floors_s(sizes)) for row in sizes] == ["overhead", "bandwidth"]


def test_a_time_rounded_to_the_bound_is_no_violation():
    rounded = TimedRow("d", "g", "c", "t", 1.0, 44.0, 44.4, resolution_s=1.0)
    assert not rounded.is_violation
    assert TimedRow("d", "g", "c", "t", 1.0, 44.0, 44.6, resolution_s=1.0).is_violation
    assert TimedRow("d", "g", "c", "t", 1.0, 44.0, 44.4).is_violation


@pytest.mark.parametrize(
    ("values", "fraction", "result"),
    [([5.0], 0.9, 5.0), ([1.0, 3.0], 0.5, 2.0), ([4.0, 1.0, 2.0, 3.0], 1.0, 4.0), ([10.0, 20.0, 30.0], 0.25, 15.0)],
)
def test_percentiles(values, fraction, result):
    assert percentile(values, fraction) == pytest.approx(result)


def test_rank_correlation():
    assert spearman([1, 2, 3], [10, 100, 1000]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(1 - 6 * 2 / (4 * 15))  # 1 - 6 sum d^2 / n(n^2 - 1)
    assert spearman([1, 1, 1], [1, 2, 3]) is None
    assert spearman([1], [2]) is None


def test_rank_correlation_as_scipy_has_it():
    stats = pytest.importorskip("scipy.stats")
    draw = random.Random(7)
    x = [draw.randint(0, 9) for _ in range(60)]
    y = [value + draw.randint(0, 6) for value in x]
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)


@pytest.fixture
def record(tmp_path):
    path = tmp_path / "run.json"
    make_measured().save(path)
    return path


def test_a_saved_profile_and_its_table_say_the_same(record, tmp_path):
    rows = score_files([record]).rows
    assert len(rows) == 6 + 5 + 2  # those that have a time
    assert {r.dataset for r in rows} == {"memwall eager", "memwall inductor", "memwall generated"}
    mm = rows[0]
    assert (mm.gpu, mm.op_class, mm.dtype) == ("old", "contraction", "float16")
    assert (mm.modeled_s, mm.measured_s, mm.bound_s) == pytest.approx((22.47483648e-6, 25e-6, 21.47483648e-6))
    table = tmp_path / "rows.csv"
    table.write_text(render(make_measured(), "csv"), encoding="utf-8")
    assert score(score_files([table]).rows) == score(rows)


def test_other_tables_may_be_added(tmp_path, monkeypatch):
    class Theirs(TableKind):
        def read(self, record, source):
            yield row(float(record["guess"]), float(record["clock"]), dataset="theirs")

    monkeypatch.setattr(reading, "kinds", lambda: (*kinds(), Theirs("their table", "guess clock")))
    path = tmp_path / "t.csv"
    path.write_text("clock,guess,else\n2,1,x\n", encoding="utf-8")
    assert score_files([path]).rows == [row(1.0, 2.0, dataset="theirs")]


def test_a_table_of_another_project_needs_the_lab(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "kinds", lambda: (OWN,))
    (tmp_path / "t.csv").write_text("gpu,m,n,k,latency_ms\nh100,1,1,1,1\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"tables of other projects need memwall_lab \(pip install -e lab"):
        score_files([tmp_path / "t.csv"])


def test_what_is_no_file_of_ours(tmp_path):
    make_profile().save(tmp_path / "bare.json")
    with pytest.raises(UsageError, match=r"bare.json has no measurements; memwall measure makes them"):
        score_files([tmp_path / "bare.json"])
    with pytest.raises(UsageError, match="no such file"):
        score_files([tmp_path / "none.csv"])
    with pytest.raises(UsageError, match="want a saved profile"):
        score_files([tmp_path / "x.txt"])
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not UTF-8"):
        score_files([tmp_path / "b.csv"])


def test_the_page(record, golden):
    golden("accuracy.txt", render(AccuracyReport(score_files([record])), "text"))


def test_json_has_the_cells(record):
    cells = json.loads(render(AccuracyReport(score_files([record])), "json"))
    assert list(cells[0])[:12] == [
        "dataset", "gpu", "op_class", "dtype", "n", "mape", "median_ape", "bias", "p90", "spearman", "within_20",
        "violations",
    ]  # fmt: skip
    attention = next(c for c in cells if (c["dataset"], c["op_class"]) == ("memwall eager", "attention"))
    assert attention["violations"] == 1
    assert attention["bias"] == pytest.approx(22.47483648 / 20 - 1)


def test_csv_and_markdown(record):
    scored = score_files([record])
    assert render(AccuracyReport(scored), "csv").startswith(
        "dataset,gpu,op_class,dtype,n,mape,median_ape,bias,p90,spearman,within_20,violations,"
    )
    text = render(AccuracyReport(scored), "md")
    assert "> **2 kernels were measured faster than the roofline bound allows: model error.**" in text
    assert "| memwall eager | old | attention | float16 | 1 | 12.4 | 12.4 | +12.4 |" in text
    with pytest.raises(UsageError, match="has no 'parquet' form"):
        render(AccuracyReport(scored), "parquet")


def test_a_picture_has_every_gpu(record):
    picture = render(AccuracyReport(score_files([record])), "png")
    assert picture.startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="no row to draw"):
        render(AccuracyReport(Scored([])), "svg")
