"""``memwall accuracy``: what it prints and writes, and its one line about bad input."""

import json

import pytest

from tests.unit.measured_fixture import make_measured


@pytest.fixture
def measured(folder):
    path = folder / "measured.json"
    make_measured().save(path)
    return path


def test_it_prints_the_scores(run, measured):
    result = run("accuracy", "measured.json")
    assert (result.code, result.err) == (0, "")
    assert "2 kernels were measured faster than the roofline bound allows: model error." in result.out
    assert "By op class and dtype" in result.out


@pytest.mark.defect("34")
def test_json_has_the_cells_and_the_counts_of_rows(run, measured):
    """Rows that are not scored were counted at the end of the text, and nowhere in the record."""
    result = run("accuracy", "measured.json", "--json")
    cells = json.loads(result.out)
    assert sum(cell["n"] for cell in cells) == 13
    record = cells[0]
    left_out = record["left_out_rows"]
    assert record["read_rows"] == record["scored_rows"] + sum(left_out.values())
    assert record["scored_rows"] >= 13 and all(left_out)
    assert result.err == ""
    said = " ".join(run("accuracy", "measured.json").out.split())
    header, _, tables = said.partition("All op classes")
    assert f"rows read {record['read_rows']}" in header and "rows left out" in header
    assert all(f"{count} {reason}" in header for reason, count in left_out.items())
    assert "rows left out" not in tables.lower()


def test_a_report_as_csv_is_scored_the_same(run, measured):
    assert run("report", "measured.json", "-q", "-o", "rows.csv").code == 0
    assert run("accuracy", "rows.csv", "--json").out == run("accuracy", "measured.json", "--json").out


def test_a_file_named_twice_counts_once_and_two_files_add_up(run, measured, folder):
    once = run("accuracy", "measured.json", "--json").out
    assert run("accuracy", "measured.json", "measured.json", "--json").out == once
    make_measured(("eager",)).save(folder / "more.json")
    cells = json.loads(run("accuracy", "measured.json", "more.json", "--json").out)
    assert sum(cell["n"] for cell in cells) == 13 + 6


def test_files(run, measured, folder):
    result = run("accuracy", "measured.json", "-o", "a.md", "-o", "a.csv", "-o", "a.json", "-o", "a.txt")
    assert result.code == 0
    assert (folder / "a.md").read_text().startswith("# Modeled vs. measured time of kernels")
    assert (folder / "a.csv").read_text().startswith("dataset,gpu,op_class")
    assert json.loads((folder / "a.json").read_text())[0]["dataset"] == "memwall eager"
    assert (folder / "a.txt").read_text() == result.out


BAD = {
    "accuracy": "Missing argument",
    "accuracy measured.json --fit measured.json": "--fit takes the rows as its value",
    "accuracy --fit none.csv": "no such file: none.csv",
    "accuracy --fit other.csv": "other.csv is not a table of measured times",
    "accuracy --fit measured.json -o a.json": "end the name in .toml",
    "accuracy none.json": "no such file: none.json",
    "accuracy none.csv": "no such file: none.csv",
    "accuracy net.py": "want a saved profile (.json) or a table (.csv)",
    "accuracy saved.json": "saved.json has no measurements; memwall measure makes them",
    "accuracy measured.json -o a.parquet": "end the name in one of",
    "accuracy damaged.json": "damaged.json: measurements[0].executor is 'magic'",
    "accuracy other.csv": "other.csv is not a table of measured times",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_line(run, measured, record, folder, line):
    damaged = json.loads(measured.read_text())
    damaged["measurements"][0]["executor"] = "magic"
    (folder / "damaged.json").write_text(json.dumps(damaged))
    (folder / "other.csv").write_text("a,b\n1,2\n")
    before = sorted(path.name for path in folder.iterdir())
    result = run(*line.split())
    assert result.code == 2
    assert BAD[line] in result.error
    assert sorted(path.name for path in folder.iterdir()) == before


TABLE = "op,gpu,b,m,k,n,h,latency_ms\n" + "".join(
    f"relu,Tesla P4,{rows},,,,1024,{rows * 1024 * 8 / 150e9 * 1e3 + 0.03:.6f}\n" for rows in range(64, 64 * 80, 64)
)


def test_a_table_of_others_is_scored_on_other_shapes_and_boards(run, folder):
    (folder / "t.csv").write_text("# made up\n" + TABLE)
    result = run("accuracy", "t.csv", "--split", "-o", "a.svg", "-o", "a.csv")
    assert result.code == 0
    assert "On held-out shapes and GPUs" in result.out
    assert "<svg" in (folder / "a.svg").read_text()
    assert "r1_mape" in (folder / "a.csv").read_text()
    (cell,) = json.loads(run("accuracy", "t.csv", "--json").out)
    assert (cell["dataset"], cell["gpu"], cell["op_class"], cell["n"]) == (
        "neusight_ops",
        "Tesla P4",
        "elementwise",
        79,
    )


def test_constants_of_ones_own(run, folder):
    pytest.importorskip("scipy")
    (folder / "t.csv").write_text(TABLE)
    result = run("accuracy", "--fit", "t.csv", "-o", "own.toml")
    assert (result.code, "On the shapes not fitted to" in result.out) == (0, True)
    gpu = run("gpus", "own.toml")
    assert gpu.code == 0
    assert "p4-fitted" in gpu.out


def test_a_fit_never_writes_over_our_files(run, folder):
    from memwall.hardware.lookup import spec_path

    (folder / "t.csv").write_text(TABLE)
    result = run("accuracy", "--fit", "t.csv", "-o", str(spec_path("p4")))
    assert result.code == 2
    assert "it is a file of memwall's own" in result.error
