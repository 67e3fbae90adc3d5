"""Tables of problems: their answers, their scores, and what is wrong with them."""

import csv
import io
import json

import pytest

from memwall.bounding.problems import ProblemsReport, read_problems, solved
from memwall.core.errors import UsageError
from memwall.hardware.lookup import load_gpus
from memwall.report import render

TABLE = """problem,name,gpu,measured,comment
"mm(bf16[4096,4096], bf16[4096,4096])",square,h100,200us,
"mm(bf16[4096,4096], bf16[4096,4096])",too fast,h100,20us,
relu(f32[1024]),small,,,kept
sofmax(f32[8]),typo,l4,,
"""


@pytest.fixture
def rows(tmp_path):
    (tmp_path / "problems.csv").write_text(TABLE)
    return read_problems(str(tmp_path / "problems.csv"), load_gpus(["a100", "l4"]))


def test_a_row_without_a_gpu_is_of_each_that_is_asked_for(rows):
    assert [(row.name, row.gpu.name) for row in rows] == [
        ("square", "h100-sxm"), ("too fast", "h100-sxm"), ("small", "a100-80gb-sxm"), ("small", "l4"), ("typo", "l4"),
    ]  # fmt: skip


def test_answers_and_scores(rows):
    square, quick, *small, typo = solved(rows, "eager")
    bound_s = 2 * 4096**3 / 989.4e12
    assert square.bound_s == pytest.approx(bound_s, rel=1e-3)
    assert square.of_bound == pytest.approx(bound_s / 200e-6, rel=1e-3)
    assert square.speedup == pytest.approx(square.baseline_s / 200e-6)
    assert square.sol_score == pytest.approx(1 / (1 + (200e-6 - bound_s) / (square.baseline_s - bound_s)), rel=1e-3)
    assert (quick.possible, quick.speedup, quick.sol_score) == (False, None, None)
    assert [row.measured_s for row in small] == [None, None]
    assert "no op 'sofmax'" in typo.error


def test_impossible_times_score_nothing(rows):
    made = ProblemsReport(solved(rows, "eager"), "eager")
    text = render(made, "text")
    assert "1 time at or above the bound, 1 below it" in text
    assert "other kinds of files" not in text
    assert "typo: torch has no op 'sofmax'" in text
    table = list(csv.DictReader(io.StringIO(render(made, "csv"))))
    assert [row["possible"] for row in table] == ["true", "false", "", "", ""]
    assert json.loads(render(made, "json"))["schema"] == "memwall.bounds/1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name,gpu\na,h100\n", "has no column problem"),
        ("problem\n", "has no problem"),
        ("problem,gpu\nrelu(f32[8]),h1000\n", "line 2: "),
        ("problem,measured\nrelu(f32[8]),fast\n", "line 2: "),
        ("problem,gpu\n ,h100\n", "line 2: the problem is empty"),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(tmp_path, text, words):
    (tmp_path / "problems.csv").write_text(text)
    with pytest.raises(UsageError) as error:
        read_problems(str(tmp_path / "problems.csv"), load_gpus(["l4"]))
    assert words in str(error.value)
