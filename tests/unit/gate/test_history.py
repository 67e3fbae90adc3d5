"""The history of figures: one form of a file, merges by git itself, steps, the trend's table and picture."""

import json
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from memwall.analysis.quantities import LIMITS
from memwall.cli import main
from memwall.core.errors import UsageError
from memwall.gate.figure import trend_chart
from memwall.gate.history import SCHEMA, HistoryRow, append, commits, committed, entry_of, read, steps, trends
from memwall.gate.history_page import CSV_COLUMNS, HistoryReport
from memwall.report import render
from memwall.report.figures.scene import Dot, Stroke, Text, drawn
from tests.unit.report_fixture import NEW, OLD, make_profile

A, B, C, D = ("a" * 40, "b" * 40, "c" * 40, "d" * 40)


def render_history(rows, kind, quantities=()):
    return render(HistoryReport(rows, quantities), kind)


def row(commit: str = A, day: int = 1, version: str = "1.0", gpu: str = "old", **figures: float) -> HistoryRow:
    figures = figures or {"time_s": 1e-3, "dram_bytes": 1000, "kernels": 10, "peak_memory": 5000, "mfu": 0.5}
    return HistoryRow(commit, f"2026-01-{day:02d}T00:00:00Z", version, "net", "inference", gpu, "eager", figures)


# -- entries -----------------------------------------------------------------------------------------------------------


def test_an_entry_has_every_quantity_of_every_simulation():
    profile = make_profile(gpus=(OLD, NEW))
    rows = entry_of({"small": profile}, A, "2026-11-22T07:24:55+02:00")
    assert [(r.workload, r.mode, r.gpu, r.policy) for r in rows] == [
        ("small", "training", "old", "eager"),
        ("small", "training", "new", "eager"),
    ]
    first = rows[0]
    assert first.date == "2026-11-22T05:24:55Z" and first.memwall_version == profile.memwall_version
    totals = profile.simulations[0].totals
    assert first.figures["time_s"] == totals.time_s and first.figures["kernels"] == totals.kernels
    modeled = {"flops", "dram_bytes", "bound_s", "mfu", "mbu", "peak_memory", "materialized_bytes", "coverage"}
    assert modeled < set(first.figures) < set(LIMITS)
    assert "graph_breaks" not in first.figures  # nothing was captured


@pytest.mark.parametrize(("commit", "date", "message"), [
    ("HEAD", "2026-01-01T00:00:00Z", "'HEAD' is no commit's hash"),
    (A, "yesterday", "'yesterday' is no date with an offset"),
    (A, "2026-01-01T00:00:00", "no date with an offset"),
])  # fmt: skip
def test_an_entry_of_no_commit_or_date_is_refused(commit, date, message):
    with pytest.raises(UsageError, match=message):
        entry_of({"small": make_profile()}, commit, date)


def test_an_entry_of_nothing_is_refused():
    with pytest.raises(UsageError, match="there is nothing to add"):
        entry_of({}, A, "2026-01-01T00:00:00Z")
    with pytest.raises(UsageError, match="there is nothing to add"):
        entry_of({"small": make_profile().with_simulations(())}, A, "2026-01-01T00:00:00Z")


# -- the file ----------------------------------------------------------------------------------------------------------


def test_the_file_is_json_lines_of_a_stated_schema_in_the_order_of_dates(tmp_path):
    path = tmp_path / "h.jsonl"
    append(path, [row(B, 2)])
    append(path, [row(A, 1), row(A, 1, gpu="new")])
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(r["schema"], r["commit"], r["gpu"]) for r in records] == [
        (SCHEMA, A, "new"),
        (SCHEMA, A, "old"),
        (SCHEMA, B, "old"),
    ]
    assert list(records[0]) == [
        "schema", "commit", "date", "memwall_version", "workload", "mode", "gpu", "policy", "figures",
    ]  # fmt: skip
    assert read(path) == (row(A, 1, gpu="new"), row(A, 1), row(B, 2))


def test_the_file_does_not_depend_on_the_order_of_writing(tmp_path):
    rows = [row(A, 1), row(B, 2), row(C, 3, gpu="new")]
    append(tmp_path / "one", rows)
    for each in reversed(rows):
        append(tmp_path / "other", [each])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_a_commit_that_is_there_is_replaced_and_others_stay(tmp_path):
    path = tmp_path / "h.jsonl"
    append(path, [row(A, 1), row(A, 1, gpu="new"), row(B, 2)])
    before = path.read_bytes()
    append(path, [row(A, 1)])
    assert path.read_bytes() == before
    append(path, [replace(row(A, 1), memwall_version="2.0", figures={"kernels": 11})])
    assert [r.figures["kernels"] for r in read(path)] == [10, 11, 10]
    assert len(read(path)) == 3


DAMAGED = {
    "cut": ('{"schema": "memwall.histo', "line 2 is not JSON"),
    "newer": (row(B).to_line().replace("history/1", "history/2"), "line 2 was written by a newer memwall"),
    "other": ('{"schema": "memwall.profile/1"}', "line 2 is not a memwall.history record"),
    "list": ("[1, 2]", 'line 2 is not a memwall.history record: it has no "schema"'),
    "no gpu": (row(B).to_line().replace('"gpu": "old", ', ""), "line 2: has no 'gpu'"),
    "commit": (row("x" * 40).to_line(), "line 2: commit is not the hash of a commit, but 'xxx"),
    "date": (row(B).to_line().replace("2026-01-01T", "2026-13-01T"), "line 2: date is not a date in UTC"),
    "nan": (row(B).to_line().replace("10,", "NaN,"), "line 2: figures.kernels must be a number, not nan"),
    "text": (row(B).to_line().replace("10,", '"10",'), "line 2: figures.kernels must be a number, not '10'"),
    "twice": (row(A, kernels=11).to_line(), "line 2: net on old at aaaaaaaaaaaa stands there twice"),
    "merge": ("<<<<<<< HEAD", "line 2 is left from a merge"),
    "deep": ("[" * 100_000, "line 2 is not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_line_is_named_and_the_file_stays(tmp_path, name):
    line, message = DAMAGED[name]
    path = tmp_path / "h.jsonl"
    path.write_text(f"{row(A).to_line()}\n{line}\n")
    before = path.read_bytes()
    for use in (lambda: read(path), lambda: append(path, [row(C, 3)])):
        with pytest.raises(UsageError) as caught:
            use()
        assert f"{path} {message}" in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_bytes() == before


def test_what_is_no_text_and_what_is_missing_is_said(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        read(tmp_path / "bytes")
    with pytest.raises(UsageError, match="no such file"):
        read(tmp_path / "nothing")
    with pytest.raises(UsageError, match="cannot read"):
        read(tmp_path)


# -- git ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """``git(*arguments)`` in a new repository with one commit, of a known date."""
    for name, value in {
        "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
        "GIT_COMMITTER_DATE": "2026-03-04T05:06:07+09:00", "GIT_CONFIG_GLOBAL": "/dev/null",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q", "-b", "main")
    (tmp_path / "net.py").write_text("one\n")
    (tmp_path / ".gitattributes").write_text("*.jsonl merge=union\n")
    git("add", "-A")
    git("commit", "-qm", "one")
    return git


def test_the_commit_and_its_own_date(tmp_path, repository):
    assert committed(tmp_path) == (repository("rev-parse", "HEAD"), "2026-03-03T20:06:07Z")
    (tmp_path / "sub").mkdir()
    assert committed(tmp_path / "sub")[0] == repository("rev-parse", "HEAD")


def test_changes_that_are_not_committed_are_refused_but_for_the_history_itself(tmp_path, repository):
    history = tmp_path / "sub" / "h.jsonl"
    history.parent.mkdir()
    append(history, [row(A)])
    repository("add", "-A")
    repository("commit", "-qm", "two")
    append(history, [row(B, 2)])
    rows = entry_of({"small": make_profile()}, *committed(history.parent, history))
    assert {r.commit for r in rows} == {repository("rev-parse", "HEAD")}
    with pytest.raises(UsageError, match=r"sub/h.jsonl has changes that are not committed"):
        committed(tmp_path)
    (tmp_path / "net.py").write_text("two\n")
    with pytest.raises(UsageError, match=r"net.py has changes that are not committed; commit first"):
        committed(tmp_path, history)


def test_no_repository_and_no_commit_are_said(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UsageError, match="not a git repository"):
        committed(tmp_path)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with pytest.raises(UsageError, match=r"git log in .*does not have any commits"):
        committed(tmp_path)


def test_git_merges_what_two_branches_added(tmp_path, repository):
    path = tmp_path / "h.jsonl"
    append(path, [row(A, 1)])
    repository("add", "-A")
    repository("commit", "-qm", "base")
    repository("switch", "-qc", "other")
    append(path, [row(C, 3)])
    repository("commit", "-qam", "other")
    repository("switch", "-q", "main")
    append(path, [row(D, 4), row(B, 2)])
    repository("commit", "-qam", "main")
    repository("merge", "-q", "--no-edit", "other")
    assert commits(read(path)) == (A, B, C, D)


# -- steps -------------------------------------------------------------------------------------------------------------


def test_steps_are_changes_above_the_threshold_of_neighbouring_commits():
    rows = (
        row(A, 1, kernels=100, mfu=0.5, time_s=1.0),
        row(B, 2, kernels=100, mfu=0.5, time_s=1.0009),  # below 0.1 %
        row(C, 3, kernels=101, mfu=0.6, time_s=1.0),
        row(D, 4, kernels=99, mfu=0.6, time_s=1.0),
    )
    found = [(s.row.commit, s.quantity, s.before, s.after, s.worse) for s in steps(rows)]
    assert found == [(C, "kernels", 100, 101, True), (C, "mfu", 0.5, 0.6, False), (D, "kernels", 101, 99, False)]
    assert steps(rows)[0].change == pytest.approx(0.01)
    assert {s.quantity for s in steps(rows, ["mfu"])} == {"mfu"}
    assert len(steps(rows, ["time_s"], threshold=0.0005)) == 2


def test_versions_of_memwall_are_never_compared():
    rows = (row(A, 1, kernels=100), row(B, 2, "1.1", kernels=200), row(C, 3, "1.1", kernels=300))
    assert [(s.row.commit, s.before) for s in steps(rows)] == [(C, 200)]


def test_series_are_apart_and_a_figure_that_is_missing_is_no_step():
    rows = (row(A, 1, kernels=1), row(A, 1, gpu="new", kernels=5), row(B, 2, mfu=0.1), row(B, 2, gpu="new", kernels=5))
    assert steps(rows) == () and len(trends(rows)) == 2


def test_a_step_from_nothing_has_no_change():
    (step,) = steps((row(A, 1, graph_breaks=0), row(B, 2, graph_breaks=1)))
    assert step.change is None and step.worse


# -- the trend ---------------------------------------------------------------------------------------------------------


def trend() -> tuple[HistoryRow, ...]:
    days = ((A, 1, "1.0", 100), (B, 2, "1.0", 117), (C, 3, "2.0", 200), (D, 4, "2.0", 150))
    return tuple(
        row(commit, day, version, gpu,
            time_s=scale * kernels * 1e-5, dram_bytes=10**9, kernels=kernels, peak_memory=10**9)
        for commit, day, version, kernels in days
        for gpu, scale in (("old", 2.0), ("new", 1.0))
    )  # fmt: skip


def test_the_table_has_the_steps_newest_first_and_says_that_versions_are_not_compared():
    text = render_history(trend(), "text")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    kernels = [line for line in lines if " kernels " in line and "2026" in line]
    assert kernels == [
        "2026-01-04 ddddddddd net all GPUs eager kernels 200 150 -25.0 % better",
        "2026-01-02 bbbbbbbbb net all GPUs eager kernels 100 117 +17.0 % worse",
    ]
    assert "8 steps: 4 for the worse, 4 for the better." in text  # kernels and time_s, two GPUs, two commits
    assert "1.0 from aaaaaaaaa (2026-01-01), 2.0 from ccccccccc (2026-01-03)" in text
    assert "figures of two versions are not comparable" in text


def test_without_a_step_it_says_so():
    assert "No step: no figure changed by more than 0.1 %" in render_history((row(A, 1), row(B, 2)), "text")


def test_the_csv_has_every_figure_and_pandas_reads_it():
    import io

    import pandas

    frame = pandas.read_csv(io.StringIO(render_history(trend(), "csv")))
    assert list(frame.columns) == list(CSV_COLUMNS) and len(frame) == 8 * 4
    steps_of = frame[frame.change.notna()]
    assert set(zip(steps_of.commit, steps_of.quantity, strict=True)) == {
        (commit, name) for commit in (B, D) for name in ("time_s", "kernels")
    }


def test_the_pictures_are_pictures_and_always_the_same():
    svg = render_history(trend(), "svg")
    assert svg == render_history(trend(), "svg")
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert render_history(trend(), "png").startswith(b"\x89PNG\r\n")


def marks(rows, quantities, kind):
    """The marks of one kind in the picture."""
    scene = drawn(trend_chart(rows, quantities))
    return [mark for mark in scene.marks if isinstance(mark, kind)]


def test_the_picture_marks_steps_breaks_lines_and_draws_versions():
    dots = marks(trend(), ["kernels"], Dot)[:-2]  # but for the legend's two
    # equal on both GPUs: one line, in two parts; a triangle for each GPU's step; a dashed line before the third commit
    assert [dot.shape for dot in dots].count("circle") == 4
    assert [dot.shape for dot in dots if dot.shape != "circle"] == ["up", "up", "down", "down"]
    dashed = [line for line in marks(trend(), ["kernels"], Stroke) if line.dash == (4, 3)]
    assert len(dashed) == 1
    parts = [line for line in marks(trend(), ["kernels"], Stroke) if line.width == 1.6]
    assert [len(line.places) for line in parts] == [2, 2]
    assert len([line for line in marks(trend(), ["time_s"], Stroke) if line.width == 1.6]) == 4
    texts = {text.text for text in marks(trend(), ["kernels"], Text)}
    assert {"kernels launched", "+17.0 %", "-25.0 %", "memwall 2.0"} <= texts


def test_two_branches_of_two_versions_leave_the_panel_legible():
    """By date they alternate: eleven changes of version, of which four are named."""
    rows = [row(f"{day:040x}", day, f"{1 + day % 2}.0", kernels=10) for day in range(1, 13)]
    assert len([line for line in marks(rows, ["kernels"], Stroke) if line.dash == (4, 3)]) == 11
    assert len([text for text in marks(rows, ["kernels"], Text) if text.text.startswith("memwall")]) <= 4


@pytest.mark.parametrize("high", [9e-3, 45e-3, 300e-3])
def test_a_logarithmic_axis_can_be_read(high):
    """A decade alone has often one tick or none."""
    rows = [row(A, 1, time_s=1.1e-3), row(B, 2, time_s=high)]
    assert len([text for text in marks(rows, ["time_s"], Text) if text.text.endswith(" ms")]) >= 3


@pytest.mark.parametrize("figures", [{"kernels": 5}, {"kernels": 0}, {"time_s": 1e-9}])
def test_one_commit_can_be_drawn(figures):
    assert render_history((row(A, 1, **figures),), "png", list(figures)).startswith(b"\x89PNG")


def test_hostile_names_stay_text(tmp_path):
    name = "<script>alert(1)</script> $x$ | \x1b[31m \n %s"
    rows = tuple(replace(r, workload=name, memwall_version="<b>") for r in trend())
    page = render_history(rows, "html")
    assert "<script>alert" not in page and '<svg class="chart wide"' in page
    assert "\x1b" not in render_history(rows, "text")
    assert "\n|  |" not in render_history(rows, "md")
    ElementTree.fromstring(render_history(rows, "svg"))


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def history(tmp_path):
    path = tmp_path / "h.jsonl"
    append(path, trend())
    return path


def test_report_writes_every_kind(history, tmp_path, capsys):
    files = [tmp_path / f"t{suffix}" for suffix in (".svg", ".pdf", ".png", ".html", ".md", ".csv", ".txt")]
    outputs = [part for file in files for part in ("-o", str(file))]
    assert main(["report", "--history", str(history), "-q", *outputs]) == 0
    assert all(file.stat().st_size > 100 for file in files) and len(files) == len(HistoryReport.kinds)
    assert "Steps, newest first" in capsys.readouterr().out


def test_report_shows_the_quantities_that_are_named(history, capsys):
    assert main(["report", "--history", str(history), "--quantity", "kernels", "peak_memory_bytes"]) == 0
    out = capsys.readouterr().out
    assert "4 steps: " in out and "time_s" not in out and "peak memory" in out


@pytest.mark.parametrize(("arguments", "message"), [
    (["--history", "{h}", "--quantity", "kernel"], "no quantity 'kernel'; did you mean kernels?"),
    (["--history", "{h}", "--quantity", "mfu"], "the history has no mfu; it has kernels, dram_bytes, time_s"),
    (["--history", "{h}", "--json"], "--json has no use for a history"),
    (["--history", "{h}", "--top", "3"], "--top has no use for a history"),
    (["profile.json", "--history", "{h}"], "PROFILE has no use for a history"),
    (["--history", "{h}", "-o", "x.json"], "cannot tell what to write into 'x.json'"),
    (["--history", "nothing.jsonl"], "no such file: nothing.jsonl"),
    (["--history", "/dev/null"], "the history is empty"),
    ([], "nothing to show: name a saved profile, or a history with --history"),
    (["profile.json", "--quantity", "kernels"], "--quantity is of a --history"),
])  # fmt: skip
def test_misuse_is_one_line_with_the_way_out(history, capsys, arguments, message):
    assert main(["report", *(text.replace("{h}", str(history)) for text in arguments)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
