"""The gate's outputs, each opened by a consumer: a parser, a published schema, the rules of a runner."""

import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import jsonschema
import junitparser
import pytest
import xmlschema
from markdown_it import MarkdownIt

from memwall.analysis.numbers import apart, change_text
from memwall.cli.output import GATE_SUFFIXES
from memwall.core.errors import UsageError
from memwall.gate.diff import Cause
from memwall.gate.forges import fingerprints, place_of, source_place, target_place
from memwall.gate.page import GateReport
from memwall.gate.result import Baseline, GateResult, Problem
from memwall.gate.wording import command, counts, finding_of, name, sentence, subject
from memwall.report import render
from memwall.report.json_schema import schema_text
from tests.unit import gate_fixture as fixture
from tests.unit.report_fixture import make_profile

ROOT = Path(__file__).parents[3]
SCHEMAS = Path(__file__).parents[2] / "schemas"

RESULTS = {
    "pass": fixture.PASS, "fail": fixture.FAIL, "inconclusive": fixture.INCONCLUSIVE, "empty": fixture.EMPTY,
    "broken": fixture.BROKEN, "hostile": fixture.hostile(), "many": fixture.many(30, 20),
}  # fmt: skip

PICTURES = ("svg", "png", "pdf")
#: the kinds that are text
GATE_KINDS = tuple(kind for kind in GateReport.kinds if kind not in PICTURES)


def render_gate(result, kind, width=None, color=False, **options):
    return render(GateReport(result, **options), kind, width=width, color=color)


@pytest.fixture(params=RESULTS, name="result")
def _result(request) -> GateResult:
    return RESULTS[request.param]


# --- numbers and sentences -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("values", "unit", "texts"), [
    ([402_653_000, 402_650_000], "B", ["402.653 MB", "402.650 MB"]),
    ([1_000_000_000, 999_999_999], "B", ["1.000000000 GB", "0.999999999 GB"]),  # not 1.00 GB and 1000.00 MB
    ([1_220_400_000, None, 12_000], "B", ["1.22 GB", "", "12.00 kB"]),  # far apart: scales of their own
    ([512, 513], "B", ["512 B", "513 B"]),
    ([118, 120, 120.36], "count", ["118", "120", "120.4"]),
    ([1_234_567], "count", ["1,234,567"]),
    ([3.2e-3, 3.2004e-3], "s", ["3.2000 ms", "3.2004 ms"]),
    ([18.5e-6, 4e-9], "s", ["18.50 us", "4.00 ns"]),
    ([3.1e-3, 3.1e-3 * (1 + 1e-14)], "s", ["3.10 ms", "3.10 ms"]),  # rounding of a sum
    ([1_206_000_000, 1_200_000_000 * 1.005 - 2e-7], "B", ["1.21 GB", "1.21 GB"]),
    ([0.4612, 0.46118], "fraction", ["46.120 %", "46.118 %"]),
    ([0.0, 0.0], "B", ["0 B", "0 B"]),
    ([-1_183_744], "B", ["-1.18 MB"]),
    ([2_000_000_000_000_001, 2_000_000_000_000_000], "FLOP",
     ["2.000000000000001 PFLOP", "2.000000000000000 PFLOP"]),
])  # fmt: skip
def test_unequal_numbers_never_read_the_same(values, unit, texts):
    assert apart(values, unit) == texts


@pytest.mark.parametrize(("change", "allowed", "text"), [
    (None, None, ""), (0.0, None, "0 %"), (0.017, 0.005, "+1.7 %"), (-0.25, None, "-25.0 %"),
    (0.00504, 0.005, "+0.504 %"),  # +0.5 % would read as what is allowed
    (5e-10, 0.0, "+0.00000005 %"), (11.34, None, "+1,134.0 %"), (1e-15, 0.0, "0 %"),
])  # fmt: skip
def test_a_change_never_reads_as_none_or_as_the_limit(change, allowed, text):
    assert change_text(change, allowed) == text


def test_sentences():
    assert sentence(fixture.CHECK) == ("dram_bytes of bert on h100-sxm, eager: 1.22 GB, limit +0.5% of 1.20 GB: +1.7 %")
    assert sentence(fixture.TIME) == (
        "time_s of bert on h100-sxm, eager: 3.2004 ms, limit 3.2 ms; baseline 3.1000 ms: +3.24 %"
    )
    assert sentence(fixture.MODULE) == (
        "flops[encoder.*] of bert on h100-sxm, eager: 2.000000001 GFLOP, limit +0% of 2.000000000 GFLOP: +0.00000005 %"
    )
    assert sentence(fixture.PEAK) == "peak_memory of bert on h100-sxm, eager: 4.20 GB, limit 70 GB"
    assert sentence(fixture.BREAKS) == "graph_breaks of gpt: 0, limit 0; baseline 0"
    assert sentence(replace(fixture.MFU, limit="-1 pp")) == (
        "mfu of bert on h100-sxm, eager: 46.1 %, limit -1 pp of 46.1 %: no change"
    )
    assert sentence(replace(fixture.BREAKS, value=None)) == "graph_breaks of gpt: no figure, limit 0"


@pytest.mark.parametrize(("result", "text"), [
    (fixture.PASS, "all 4 checks pass"),
    (fixture.FAIL, "8 checks: 3 fail, 1 inconclusive, 4 pass"),
    (fixture.INCONCLUSIVE, "2 checks: 1 inconclusive, 1 pass; 1 problem"),
    (fixture.EMPTY, "nothing was checked"),
    (fixture.BROKEN, "1 check passes; 1 problem"),
])  # fmt: skip
def test_the_counts(result, text):
    assert counts(result) == text


# --- places and fingerprints -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "folder", "place"), [
    ("models/bert.py:42", "", ("models/bert.py", 42)), ("./a.py:1", "", ("a.py", 1)),
    ("a.py:3", "python/nets", ("python/nets/a.py", 3)), ("../a.py:3", "python", ("a.py", 3)), ("../a.py:3", "", None),
    ("/usr/lib/a.py:3", "", None), ("C:\\a.py:3", "", None), ("C:/a.py:3", "", None), ("a.py:0", "", None),
    ("a.py", "", None), ("", "", None), (":5", "", None), ("a\nb.py:5", "", None), ("a.py:" + "9" * 5000, "", None),
    ("a.py:²", "", None), ("dir with ü/a b.py:2", "", ("dir with ü/a b.py", 2)),
])  # fmt: skip
def test_a_source_is_a_place_inside_the_repository_or_none(source, folder, place):
    assert source_place(source, folder) == place


@pytest.mark.parametrize(("target", "path"), [
    ("models/bert.py", "models/bert.py"), ("gpt.py:Net", "gpt.py"), ("hf:conf/config.json", "conf/config.json"),
    ("package.module:name", None), ("hf:conf", None), ("nets/*.py", None), ("/abs/model.py", None), ("", None),
])  # fmt: skip
def test_a_target_that_is_a_file_is_a_place(target, path):
    assert target_place(target) == (path and (path, 1))


def test_the_place_is_where_the_head_has_the_cause():
    gone_first = replace(fixture.CHECK, causes=(fixture.GONE, fixture.GREW))
    assert place_of(finding_of(gone_first)) == ("models/bert.py", 44)  # line 90 is the base's
    assert place_of(finding_of(replace(gone_first, causes=(fixture.GONE,)))) == ("models/bert.py", 1)
    nowhere = finding_of(replace(gone_first, causes=(), target="pkg.net:build"))
    assert place_of(nowhere) is None
    assert place_of(nowhere, "sub", "memwall.toml") == ("sub/memwall.toml", 1)


def names_of(*found):
    return fingerprints([finding_of(one) for one in found])


def test_a_fingerprint_knows_the_check_and_not_its_value():
    checks = [fixture.CHECK, fixture.TIME, fixture.MODULE, fixture.CHECK, replace(fixture.CHECK, measured=True)]
    first = names_of(*checks)
    assert len(set(first)) == len(checks)
    moved = [replace(c, value=9e9, baseline=1.0, allowed=2.0, causes=(), message="m", verdict="pass") for c in checks]
    assert names_of(*moved) == first
    assert names_of(replace(fixture.CHECK, gpu="a100-sxm-80gb"))[0] not in first
    three, four = (Problem("bert", "b.py", "fail", f"{n} of 90 ops have no formula") for n in (3, 4))
    assert names_of(three) == names_of(four) != names_of(replace(three, workload="gpt"))


# --- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "kind"), [
    ("txt", "text"), ("md", "md"), ("xml", "junit"), ("gitlab.json", "gitlab"),
])  # fmt: skip
def test_golden_files(golden, suffix, kind):
    golden(f"gate_fail.{suffix}", render_gate(fixture.FAIL, kind))


def test_the_verdict_comes_first_and_nothing_is_wider_than_the_terminal(result):
    text = render_gate(result, "text", width=100)
    assert text.splitlines()[0] == f"memwall gate: {result.verdict.upper()}"
    assert all(char.isprintable() for char in text.replace("\n", ""))
    colored = render_gate(result, "text", width=100, color=True)
    plain = re.sub(r"\x1b\[[\d;]*m", "", colored)
    assert [line.rstrip() for line in plain.splitlines()] == text.splitlines()


def test_a_baseline_of_another_memwall_is_said():
    noted = replace(fixture.INCONCLUSIVE.baseline, notes=("written by another memwall <b>",))
    for kind in ("text", "md", "summary", "github"):
        text = " ".join(render_gate(replace(fixture.INCONCLUSIVE, baseline=noted), kind).split())
        assert "written by another memwall" in text and ("md" not in kind or "&lt;b&gt;" in text)
        assert "compared with gate/baseline.json; memwall 0.6.0, the baseline by memwall 0.5.1" in text


def test_many_passing_checks_are_counted_and_causes_left_out_are_summed():
    text = render_gate(fixture.many(1, 40), "text", top=2)
    assert "40 checks pass" in text and "pass  kernels" not in text
    # 9 causes of 12 kernels, 12,582,912 bytes, 18.5 us each; 7 are not shown
    assert "and 7 more causes: +84 kernels, +88.08 MB, +129.50 us" in text


def test_causes_left_out_are_summed_on_each_gpu_under_each_policy():
    """Two policies that take 12 kernels more each, of causes of their own, have not taken 24 more together."""
    eager, fused = (fixture.nine_causes(module) for module in ("eager", "fused"))
    checks = (replace(fixture.CHECK, causes=eager), replace(fixture.CHECK, policy="memwall", causes=fused[:8]))
    text = " ".join(render_gate(GateResult(checks, memwall_version="1"), "text", top=2).split())
    # of eager's nine causes two are shown; 12 kernels each
    assert "and 15 more causes: +84 kernels to +96 kernels, +88.08 MB to +100.66 MB, +129.50 us to +148.00 us" in text


def test_causes_that_one_check_counts_and_another_names_are_not_added_up():
    named = fixture.nine_causes("net")
    counted = Cause("elsewhere", "", "", "", "", 1, 24, 0, 25_165_824, 37e-6, "2 further changes")
    checks = (replace(fixture.CHECK, causes=(*named[:7], counted)), replace(fixture.TIME, causes=named[2:]))
    text = " ".join(render_gate(GateResult(checks, memwall_version="1"), "text", top=2).split())
    assert "and 7 more, and further changes elsewhere" in text and "more causes:" not in text


def test_a_page_begins_with_what_changed_first_and_how_to_see_it_again():
    page = render_gate(fixture.FAIL, "html")
    answer = page.partition("<h2")[0]
    assert "<dt>bert, first of 3 causes</dt><dd><b>appeared x12</b></dd>" in answer
    assert "<dd>_to_copy in encoder.layer.*.attention (forward)" in answer
    assert '<p>Again:</p><pre class="command"><code>memwall gate models/bert.py gpt.py:Net' in answer


# --- GitHub: workflow commands ---------------------------------------------------------------------------------------

#: Commands of a runner that could do harm or be forged.
COMMANDS = (
    "error", "warning", "notice", "debug", "set-output", "set-env", "add-path", "add-mask", "group", "endgroup",
    "stop-commands", "save-state", "add-matcher", "remove-matcher", "echo", "internal-set-repo-path",
)  # fmt: skip


def parse_command(line: str) -> tuple[str, dict[str, str], str] | None:
    """What a runner makes of a line of a log, by its rules: first the form ``::``, then the old form ``##[``."""
    stripped = line.lstrip()
    if stripped.startswith("::") and (end := stripped.find("::", 2)) >= 0:
        command, _, listed = stripped[2:end].partition(" ")
        if command in COMMANDS:
            pairs = [pair.partition("=") for pair in listed.strip().split(",") if pair]
            data = stripped[end + 2 :].replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")
            return command, {key: _undo(value) for key, _, value in pairs if key and value}, data
    start = line.find("##[")
    if start >= 0 and (end := line.find("]", start)) >= 0:
        command = line[start + 3 : end].partition(" ")[0]
        if command in COMMANDS:
            return command, {}, line[end + 1 :]
    return None


def _undo(value: str) -> str:
    for escaped, char in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        value = value.replace(escaped, char)
    return value


def annotations(result: GateResult, **options) -> list[tuple[str, dict[str, str], str]]:
    parsed = [parse_command(line) for line in render_gate(result, "github", **options).splitlines()]
    assert None not in parsed
    return parsed


def test_github_commands(golden):
    golden("gate_fail.github.txt", render_gate(fixture.FAIL, "github"))
    found = annotations(fixture.FAIL, folder="nets")
    assert [command for command, *_ in found] == ["error"] * 2 + ["warning", "notice"]
    _, properties, message = found[0]
    assert properties == {"file": "nets/models/bert.py", "line": "42", "title": "memwall gate: dram_bytes of bert"}
    assert message.splitlines()[0] == sentence(fixture.CHECK)
    assert message.splitlines()[1] == "and 1 more: time_s on h100-sxm, eager"
    assert message.splitlines()[4].startswith("vanished: addmm in pooler (forward), models/bert.py:90: -1 kernel, ")
    assert found[-1][2] == (
        "8 checks: 3 fail, 1 inconclusive, 4 pass; compared with origin/main at 1a2b3c4d5e6f; memwall 0.6.0"
    )


def of_many_workloads(failing: int, passing: int) -> GateResult:
    """Each check of a workload of its own, so that none shares its causes."""
    found = fixture.many(failing, passing)
    return replace(found, checks=tuple(replace(c, workload=f"net_{i}") for i, c in enumerate(found.checks)))


def test_github_shows_ten_of_a_level_so_the_worst_ten_are_written():
    found = annotations(of_many_workloads(500, 3))
    assert Counter(command for command, *_ in found) == {"error": 10, "notice": 1}
    assert "block.499" in found[0][2] and "block.490" in found[9][2]  # the later, the worse
    assert "490 more not shown here" in found[-1][2]


def test_every_verdict_has_its_level(result):
    levels = {command for command, *_ in annotations(result)}
    wanted = {"pass": {"notice"}, "fail": {"error", "notice"}, "inconclusive": {"warning", "notice"}}
    assert levels >= wanted[result.verdict]
    assert result.verdict == "fail" or "error" not in levels


def test_no_name_forges_a_command_or_a_property():
    hostile = fixture.hostile()
    found = annotations(hostile)
    assert Counter(command for command, *_ in found) == {"error": 10, "warning": 10, "notice": 1}
    for _, properties, _message in found:
        assert set(properties) <= {"file", "line", "title"}
    for text in fixture.HOSTILE:
        check = replace(fixture.CHECK, workload=text, target="a,b=c:d%.py:1:Net", causes=())
        [error, _] = annotations(GateResult((check,), memwall_version="1"))
        # the title is a property: %, comma and colon come back as they were
        assert error[1]["title"] == f"memwall gate: dram_bytes{f' of {name(text)}' if name(text) else ''}"
        assert error[2] == sentence(check)


@pytest.mark.parametrize("width", [20, 118])
def test_no_line_of_the_text_is_a_command(width):
    for color in (False, True):
        for line in render_gate(fixture.hostile(), "text", width=width, color=color).splitlines():
            assert parse_command(re.sub(r"\x1b\[[\d;]*m", "", line)) is None


# --- GitHub: Markdown ------------------------------------------------------------------------------------------------


def markdown(text: str) -> list:
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)


def text_of(inline) -> str:
    """What a reader sees of a line; the only tags in it are those that we write."""
    for child in inline.children:
        assert child.type in ("text", "html_inline", "strong_open", "strong_close", "text_special", "softbreak"), child
        assert child.type != "html_inline" or child.content in ("<code>", "</code>"), child.content
    return "".join(child.content for child in inline.children if child.type != "html_inline")


def tables(tokens: list) -> list[list[list[str]]]:
    found: list[list[list[str]]] = []
    for token in tokens:
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and token.level >= 4 and found:
            found[-1][-1].append(text_of(token)) if token.level in (4, 5) else None
    return found


class Tags(HTMLParser):
    """Counts tags; only a few are ours."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        assert tag in ("details", "summary", "code") and not attrs
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_comment(self, data):
        assert data == " memwall-gate "


def test_the_marker_is_the_first_line_of_a_comment_and_of_nothing_else(result):
    assert render_gate(result, "md").splitlines()[0] == "<!-- memwall-gate -->"
    assert "<!--" not in render_gate(result, "summary")
    assert f"### memwall gate: {result.verdict}" in render_gate(result, "summary").splitlines()[0]


@pytest.mark.parametrize("kind", ["md", "summary"])
def test_the_tables_have_their_columns_whatever_the_names(kind, result):
    tokens = markdown(render_gate(result, kind))
    found = tables(tokens)
    for rows in found:
        assert {len(row) for row in rows} == {len(rows[0])}
        assert rows[0][1:3] in (["workload", "check"], ["op", "module"])
    blocks = "".join(token.content for token in tokens if token.type == "html_block")
    assert Tags(blocks).open == []
    for token in tokens:
        if token.type == "inline" and token.level < 4:
            text_of(token)


def test_every_cell_says_what_was_checked():
    """The last cell is the limit and no cell is lost: no name ended a cell early."""
    hostile = fixture.hostile()
    rows = [row for table in tables(markdown(render_gate(hostile, "summary"))) for row in table if len(row) == 9]
    shown = {tuple(cell.strip() for cell in (*row[1:5], row[8])) for row in rows}
    for check in hostile.checks:
        names = (check.workload, subject(check), check.gpu, check.policy, check.limit)
        assert tuple(name(text).strip() for text in names) in shown


def test_a_comment_is_short_enough_and_counts_what_it_leaves_out():
    result = of_many_workloads(500, 500)
    text = render_gate(result, "md")
    assert len(text) < 65_536 and len(text.encode("utf-16-le")) // 2 < 65_536
    shown = [row for table in tables(markdown(text)) for row in table]
    failing = sum(row[0] == "❌" for row in shown)
    passing = sum(row[0] == "✅" for row in shown)
    changed, _, after = text.partition("**What changed**")[2].partition("\nand ")
    more = int(after.partition(" more changes")[0].replace(",", ""))
    assert 50 < failing < 500 and 5 < passing < 500
    assert f"and {500 - failing} more that do not pass" in text
    assert changed.count("\n- ") > 50 and changed.count("\n- ") + more == 500 * 6  # of each five causes, and the rest
    assert f"and {500 - passing} more that pass" in text
    assert "1,000 checks: 500 fail, 500 pass" in text


def test_checks_moved_by_the_same_causes_share_one_list():
    checks = tuple(replace(fixture.CHECK, module=f"block.{i}") for i in range(40))
    apart = (replace(fixture.CHECK, gpu="a100-sxm-80gb"), replace(fixture.CHECK, causes=(), message="why"))
    result = GateResult((*checks, *apart), memwall_version="1")
    text = render_gate(result, "md")
    assert text.count("- **appeared x12**") == text.count("- **grew x12**") == text.count("- **vanished**") == 1
    assert "a100-sxm-80gb" in next(line for line in text.splitlines() if line.startswith("- **appeared x12**"))
    assert text.count("<code>dram\\_bytes of bert on h100-sxm, eager: 1.22 GB") == 1  # the one that says why
    assert render_gate(result, "text").count("appeared x12") == 1


@pytest.mark.defect("39")
def test_what_changed_comes_first_a_line_for_each_cause():
    """A comment had a row for each GPU, policy and check, and the causes below, folded."""
    text = render_gate(fixture.FAIL, "md")
    changed = text.partition("**What changed**")[2].partition("|  | workload")[0]
    lines = [line for line in changed.splitlines() if line]
    assert [line.partition("** ")[0] for line in lines] == ["- **appeared x12", "- **grew x12", "- **vanished"]
    assert "models/bert.py:42" in lines[0] and lines[0].endswith("moves dram\\_bytes, time\\_s on h100-sxm, eager")


@pytest.mark.parametrize(("result", "said"), [
    (fixture.FAIL, "memwall gate models/bert.py gpt.py:Net --baseline-ref 1a2b3c4d5e6f --measured"),
    (replace(fixture.FAIL, checks=(fixture.CHECK,), baseline=Baseline("file", "base lines")),
     "memwall gate models/bert.py --baseline 'base lines'"),
    (GateResult((fixture.CHECK,)), "memwall gate models/bert.py"),
    (GateResult(tuple(replace(fixture.CHECK, target=f"{i}.py") for i in range(9))), "memwall gate"),
    (fixture.PASS, ""),
])  # fmt: skip
def test_a_comment_has_the_command_that_shows_it_again(result, said):
    assert command(result) == said
    assert ("Again: <code>memwall gate" in render_gate(result, "md")) == bool(said)


def test_the_command_has_the_options_that_were_given_and_the_folder_of_a_package():
    options = {"given": ("--limit", "time_s=3 us"), "place": "packages/text"}
    said = "cd packages/text && memwall gate models/bert.py --limit 'time_s=3 us'"
    assert command(GateResult((fixture.CHECK,)), options["given"], options["place"]) == said
    assert "cd packages/text &amp;&amp; memwall gate" in render_gate(GateResult((fixture.CHECK,)), "md", **options)


def test_a_summary_is_below_one_mebibyte_at_the_longest_names():
    wide = replace(fixture.PEAK, **dict.fromkeys(("workload", "gpu", "policy", "module", "limit"), "漢" * 400))
    good = tuple(replace(wide, module=f"{i}{wide.module}") for i in range(800))
    bad = tuple(replace(check, verdict="fail") for check in good)
    result = GateResult((*good, *bad), memwall_version="1")
    assert 900_000 < len(render_gate(result, "summary").encode()) < 1_048_576
    assert 60_000 < len(render_gate(result, "md").encode()) < 65_536


# --- JUnit -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", name="junit_schema")
def _junit_schema():
    return xmlschema.XMLSchema(str(SCHEMAS / "junit-10.xsd"))


def test_junit_is_valid_and_a_dashboard_sees_the_verdict(result, junit_schema):
    text = render_gate(result, "junit")
    junit_schema.validate(text)
    root = junitparser.JUnitXml.fromstring(text.encode())
    cases = [case for suite in root for case in suite]
    faults = Counter(type(fault).__name__ for case in cases for fault in case.result)
    problems = len(result.problems) or (not result.checks)
    assert len(cases) == root.tests == len(result.checks) + problems
    assert root.failures == faults["Failure"] and root.errors == faults["Error"] and not faults["Skipped"]
    red = {"pass": (False, False), "fail": (True, bool(faults["Error"])), "inconclusive": (False, True)}
    assert (bool(root.failures), bool(root.errors)) == red[result.verdict]
    for suite in root:
        assert suite.tests == len(list(suite))
        assert suite.failures + suite.errors == sum(bool(case.result) for case in suite)


def test_a_case_is_named_for_its_check():
    root = junitparser.JUnitXml.fromstring(render_gate(fixture.FAIL, "junit").encode())
    cases = {(case.classname, case.name): case for suite in root for case in suite}
    assert [suite.name for suite in root] == ["bert", "gpt"]
    failed = cases["bert.h100-sxm.eager", "flops[encoder.*] +0%"]
    assert failed.result[0].message == sentence(fixture.MODULE) and failed.time == 0
    caused = cases["bert.h100-sxm.eager", "dram_bytes +0.5%"].result[0]
    assert "appeared x12: _to_copy in encoder.layer.*.attention" in caused.text
    unsure = cases["gpt.eager", "measured_s +5%"].result[0]
    assert isinstance(unsure, junitparser.Error) and unsure.type == "inconclusive"
    assert not cases["bert.h100-sxm.eager", "kernels 120"].result


# --- GitLab ----------------------------------------------------------------------------------------------------------


def test_gitlab_has_what_its_documentation_asks_for(result):
    rows = json.loads(render_gate(result, "gitlab", config="memwall.toml"))
    jsonschema.validate(rows, json.loads((SCHEMAS / "gitlab-code-quality.schema.json").read_text()))
    assert len({row["fingerprint"] for row in rows}) == len(rows)  # GitLab drops the second of two
    raised = [row for row in (*result.checks, *result.problems) if row.verdict != "pass"]
    assert len(rows) == len(raised) + (not result.checks and not raised)
    assert bool(rows) == (result.verdict != "pass")


def test_gitlab_severities_and_places():
    rows = json.loads(render_gate(fixture.FAIL, "gitlab"))
    assert [(row["check_name"], row["severity"]) for row in rows] == [
        ("memwall/dram_bytes", "major"), ("memwall/time_s", "major"), ("memwall/flops", "major"),
        ("memwall/measured_s", "minor"),
    ]  # fmt: skip
    assert [row["location"]["path"] for row in rows] == ["models/bert.py"] * 3 + ["gpt.py"]
    [broken] = json.loads(render_gate(fixture.BROKEN, "gitlab", config="memwall.toml", folder="nets"))
    assert broken["severity"] == "blocker"
    assert broken["location"] == {"path": "nets/memwall.toml", "lines": {"begin": 1}}
    [outside] = json.loads(render_gate(fixture.BROKEN, "gitlab", config="/etc/memwall.toml"))
    assert outside["location"]["path"] == "pyproject.toml"


# --- SARIF -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", name="sarif_schema")
def _sarif_schema():
    return jsonschema.Draft4Validator(json.loads((SCHEMAS / "sarif-schema-2.1.0.json").read_text(encoding="utf-8")))


def test_sarif_is_valid(result, sarif_schema):
    log = json.loads(render_gate(result, "sarif"))
    sarif_schema.validate(log)
    [run] = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(set(rules)) == len(rules)
    for row in run["results"]:
        assert rules[row["ruleIndex"]] == row["ruleId"]
        uri = row["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert re.fullmatch(r"[A-Za-z0-9_.~/%-]+", uri) and not uri.startswith("/") and ".." not in unquote(uri)
        assert "](" not in row["message"]["text"]  # a link in a message
    assert bool(run["results"]) == (result.verdict != "pass")
    assert ("error" in {row["level"] for row in run["results"]}) == (result.verdict == "fail")


def test_sarif_results():
    [run] = json.loads(render_gate(fixture.FAIL, "sarif"))["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["dram_bytes", "time_s", "flops", "measured_s"]
    assert [(row["ruleId"], row["level"]) for row in run["results"]] == [
        ("dram_bytes", "error"), ("time_s", "error"), ("flops", "error"), ("measured_s", "warning"),
    ]  # fmt: skip
    first = run["results"][0]
    assert first["locations"][0]["physicalLocation"]["region"] == {"startLine": 42}
    assert [row["physicalLocation"]["region"]["startLine"] for row in first["relatedLocations"]] == [42, 44]
    assert list(first["partialFingerprints"]) == ["memwallGate/v1"]  # never primaryLocationLineHash


def test_a_uri_is_percent_encoded():
    cause = replace(fixture.CAST, source="dir ü/a#b?c%.py:5")
    result = GateResult((replace(fixture.CHECK, causes=(cause,)),), memwall_version="1")
    row = json.loads(render_gate(result, "sarif"))["runs"][0]["results"][0]
    place = row["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "dir%20%C3%BC/a%23b%3Fc%25.py"


# --- the record, and what holds for all ------------------------------------------------------------------------------


def test_the_record_keeps_its_schema(result):
    schema = json.loads(schema_text("gate"))
    text = render_gate(result, "json")
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    assert text == result.to_json()


def test_a_record_with_more_or_less_than_the_schema_is_refused():
    schema = json.loads(schema_text("gate"))
    validator = jsonschema.Draft202012Validator(schema)
    for spoil in (
        lambda r: r.update(extra=1), lambda r: r["checks"][0].pop("measured"),
        lambda r: r["checks"][1]["causes"][0].update(count=0), lambda r: r.update(schema="memwall.gate/2"),
    ):  # fmt: skip
        record = fixture.FAIL.to_dict()
        spoil(record)
        assert not validator.is_valid(record)


@pytest.mark.parametrize("kind", GATE_KINDS)
def test_a_failure_is_never_silent(kind):
    """The word is in every kind, also where nothing was checked or there is a problem alone."""
    word = {"gitlab": '"(major|blocker)"', "sarif": '"level": "error"', "junit": "<failure", "github": "(?m)^::error"}
    for result in (fixture.FAIL, fixture.EMPTY, fixture.BROKEN):
        assert re.search(word.get(kind, "(?i)fail"), render_gate(result, kind))
        assert re.search(word.get(kind, "(?i)fail"), render_gate(replace(result, problems=()), kind)) or (
            result is fixture.BROKEN  # without its problem it passes
        )


def test_the_same_on_every_hash_seed():
    code = (
        "import sys, hashlib\n"
        "from memwall.gate.page import GateReport\n"
        "from memwall.report import render\n"
        "from tests.unit import gate_fixture as f\n"
        "results = f.FAIL, f.hostile(), f.many(30, 30)\n"
        "texts = [render(GateReport(r), k, width=None, color=False) for r in results"
        " for k in GateReport.kinds if k not in ('svg', 'png', 'pdf')]\n"
        "print(hashlib.sha256('\\0'.join(texts).encode()).hexdigest())\n"
        "print([m for m in ('torch', 'pandas', 'matplotlib') if m in sys.modules])\n"
    )
    command, printed = [sys.executable, "-c", code], []
    for seed in ("0", "1"):
        own = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        printed.append(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=own).stdout)
    assert printed[0] == printed[1]
    assert printed[0].splitlines()[1] == "[]"


def test_a_picture_says_that_nothing_moved():
    same = {"bert": make_profile()}
    assert "No step takes another time than its baseline." in render_gate(fixture.PASS, "svg", heads=same, bases=same)
    with pytest.raises(UsageError, match=r"needs --baseline or --baseline-ref$"):
        render_gate(fixture.PASS, "svg", heads=same)


def test_the_suffixes():
    order = list(GATE_SUFFIXES)
    for i, suffix in enumerate(order):  # the first that fits is the longest that fits
        assert not any(later.endswith(suffix) for later in order[i + 1 :])
    assert set(GATE_SUFFIXES.values()) == {*GATE_KINDS, *PICTURES} - {"github", "summary"}


def test_a_wrong_kind_and_a_wrong_option():
    with pytest.raises(UsageError, match="a gate has no 'csv' form; there is text, md, html, svg, png, pdf, summary"):
        render_gate(fixture.PASS, "csv")
    with pytest.raises(TypeError, match="'colour'"):
        render_gate(fixture.PASS, "text", colour=True)
    assert render_gate(fixture.PASS, "json", width=20) == fixture.PASS.to_json()


def test_a_check_without_a_figure_fails_loudly():
    check = replace(fixture.CHECK, value=None, baseline=None, allowed=None, causes=(), message="no such module")
    result = GateResult((check,), memwall_version="1")
    for kind in GATE_KINDS:
        assert "no such module" in render_gate(result, kind).replace("\n  ", " ")
    assert "dram\\_bytes of bert on h100-sxm, eager: no figure" in render_gate(result, "md")


def test_a_cause_that_moves_nothing_still_reads():
    cause = Cause("graph break", "item", "head", "", "net.py:9", 1, 0, 0, 0, 0.0, "Tensor.item() in forward")
    text = render_gate(GateResult((replace(fixture.CHECK, causes=(cause,)),), memwall_version="1"), "text")
    assert "graph break  item in head, net.py:9; Tensor.item() in forward" in text
