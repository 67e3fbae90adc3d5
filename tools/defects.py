"""List the defects that were found by using memwall: number, cause, test, and how the test ends where it was found.

``python tools/defects.py [--at] [-o reports/defects.md]``. A test of the first lists is named ``test_a01_...`` and lies
in tests/defects; any other lies where its subject does and is marked, ``@pytest.mark.defect("A 1")`` of the first lists
and ``("19b")`` of the third. The first paragraph of its docstring is the cause. With ``--at`` the tests also run with
the package of the commit at which their list was written (``FOUND_AT``), where each must fail.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
#: the commit at which each list was written
FOUND_AT = {"first and second": "1f20135", "third": "5603edfa"}
#: address space of the tests of a commit
MOST_BYTES = 10 << 30
_NAME = re.compile(r"test_([a-f])(\d\d)_\w+")
_MARK = "pytest.mark.defect"


class Defect(NamedTuple):
    found_in: str  # a key of FOUND_AT
    number: str
    cause: str
    file: str  # relative to the repository
    test: str


def defects() -> list[Defect]:
    """Every test of a defect, by list and number."""
    rows = [row for path in (ROOT / "tests").rglob("test_*.py") for row in _of_file(path)]
    return sorted(rows, key=lambda row: (row.found_in, _sortable(row.number), row))


def _sortable(number: str) -> tuple[str, int, str]:
    letter, digits, suffix = re.fullmatch(r"([A-F]?) ?(\d+)([a-z]?)", number).groups()  # type: ignore[union-attr]
    return letter, int(digits), suffix


def _of_file(path: Path) -> Iterator[Defect]:
    text, file = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
    if path.parent.name != "defects" and _MARK not in text:
        return
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            for found_in, number in _numbers(node, path.parent.name == "defects"):
                cause = (ast.get_docstring(node) or "").split("\n\n")[0]
                if not cause:
                    raise SystemExit(f"{file}: {node.name} does not say the cause")
                yield Defect(found_in, number, " ".join(cause.split()), file, node.name)


def _numbers(node: ast.FunctionDef, by_name: bool) -> Iterator[tuple[str, str]]:
    if by_name and (name := _NAME.fullmatch(node.name)):
        yield "first and second", f"{name[1].upper()} {int(name[2])}"
    for mark in node.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == _MARK:
            numbers = [str(ast.literal_eval(number)) for number in mark.args]
            yield from (("first and second" if number[0].isalpha() else "third", number) for number in numbers)


def outcomes(root: Path, rows: Sequence[Defect]) -> dict[tuple[str, str], str]:
    """(file, test) -> failed, passed or skipped, in a checkout; a test with parameters fails if one of them does."""
    if not rows:
        return {}
    report = root / "defects.xml"
    tests = sorted({f"{row.file}::{row.test}" for row in rows})
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "2", "--continue-on-collection-errors",
               f"--junitxml={report}", *tests]  # fmt: skip
    # no plugin but that of memwall in this checkout, and the measured tables that lie next to it
    plugin = (
        "memwall.gate.pytest_plugin" if (root / "memwall/gate/pytest_plugin.py").exists() else "memwall.pytest_plugin"
    )
    environment = {"MEMWALL_SHARED": str(ROOT.parent / "shared"), **os.environ, "PYTHONPATH": str(root),
                   "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": plugin}  # fmt: skip
    # what took all memory before is a failure of the test alone
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    subprocess.run(command, cwd=root, check=False, env=environment, preexec_fn=limit)
    ends: dict[tuple[str, str], str] = {}
    for case in ET.parse(report).iter("testcase"):
        key = (case.attrib["classname"].replace(".", "/") + ".py", case.attrib["name"].partition("[")[0])
        kinds = {child.tag for child in case}
        state = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        ends[key] = "failed" if "failed" in (state, ends.get(key)) else state
    report.unlink()
    return ends


def at_commit(commit: str, rows: Sequence[Defect]) -> dict[tuple[str, str], str]:
    """How tests of this checkout end with the package of another commit."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "main"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", root, commit], cwd=ROOT, check=True)
        try:
            shutil.rmtree(root / "tests")
            shutil.copytree(ROOT / "tests", root / "tests", ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(ROOT / "conftest.py", root)
            return outcomes(root, rows)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", root], cwd=ROOT, check=True)


def _sections(path: Path | None) -> dict[str, list[str]]:
    """The lines of each section of a list that was written before, by its title."""
    found: dict[str, list[str]] = {}
    title = ""
    for line in path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []:
        title = line if line.startswith("## ") else title
        if line != title:
            found.setdefault(title, []).append(line)
    return {title: lines[: len(lines) - (not lines[-1])] for title, lines in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--at", action="store_true", help="run the tests where they were found too; each must fail there"
    )
    parser.add_argument("--only", choices=FOUND_AT, help="this list alone; --output keeps the others")
    parser.add_argument("--number", help="of that list this number alone; --output keeps the others")
    parser.add_argument("-o", "--output", type=Path, help="write the list here instead of to standard output")
    options = parser.parse_args()
    if options.number and not (options.only and options.output):
        parser.error("--number goes with --only and --output")
    rows = [row for row in defects() if options.only in (None, row.found_in) and options.number in (None, row.number)]
    here = outcomes(ROOT, rows)
    there = {}
    if options.at:
        there = {name: at_commit(commit, [row for row in rows if row.found_in == name])
                 for name, commit in FOUND_AT.items() if options.only in (None, name)}  # fmt: skip
    lines = ["# Defects and the tests that hold them off", "",
             f"`python tools/defects.py{' --at' * options.at} -o reports/defects.md` runs the tests and writes this"
             " list; with `--only third` one part of it, with `--number 19` of that one number."
             " Number 44e was a defect of the tests, which `tests/unit/test_waiting.py` holds off."]  # fmt: skip
    wrong, before = [], _sections(options.output)
    for name, commit in FOUND_AT.items():
        title = f"## The {name} list{'s' if ' ' in name else ''}"
        if options.only not in (None, name):
            lines += ["", title, *before.get(title, [])]
            continue
        heads = ["number", "cause", "test", "now", *([f"at {commit}"] if options.at else [])]
        lines += ["", title]
        kept = before.get(title, []) if options.number else ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        after = [line for line in kept if line.startswith(f"| {options.number} |")]
        place = kept.index(after[0]) if after else len(kept)
        lines += kept[:place]
        for row in (row for row in rows if row.found_in == name):
            key = (row.file, row.test)
            ends = [here.get(key, "missing"), *([there[name].get(key, "missing")] if options.at else [])]
            cause = row.cause.replace("|", "\\|")
            lines.append(f"| {' | '.join([row.number, cause, f'`{row.file}::{row.test}`', *ends])} |")
            if ends[0] in ("failed", "missing") or ends[1:] not in ([], ["failed"]):
                wrong.append(row)
        lines += [line for line in kept[place:] if line not in after]
    text = "\n".join(lines) + "\n"
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    for row in wrong:
        print(f"{row.number} {row.test}: not as it should be", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
