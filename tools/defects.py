"""List the defects that tests/defects holds off: number, cause, test, and how the test ends at an older commit.

``python tools/defects.py [--at COMMIT] [-o reports/defects.md]``: a test is named ``test_a01_...``, the letter and
number of its defect; the first paragraph of its docstring is the cause. With ``--at`` the tests run in a checkout of
that commit as well, where each must fail.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_NAME = re.compile(r"test_([a-f])(\d\d)_\w+")


class Defect(NamedTuple):
    number: str
    cause: str
    file: str
    test: str


def defects() -> list[Defect]:
    """Every test of a defect, by number."""
    found = [defect for path in (ROOT / "tests/defects").glob("test_*.py") for defect in _in(path)]
    return sorted(found, key=lambda defect: (defect.number[0], int(defect.number[2:]), defect))


def _in(path: Path) -> Iterator[Defect]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and (name := _NAME.fullmatch(node.name)):
            cause = (ast.get_docstring(node) or "").split("\n\n")[0]
            if not cause:
                raise SystemExit(f"{path.name}: {node.name} does not say the cause")
            yield Defect(f"{name[1].upper()} {int(name[2])}", " ".join(cause.split()), path.name, node.name)


def outcomes(root: Path) -> dict[tuple[str, str], str]:
    """(file, test) -> failed, passed or skipped, in a checkout; a test with parameters fails if one of them does."""
    report = root / "defects.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "2", f"--junitxml={report}",
               "tests/defects"]  # fmt: skip
    # the plugin of the installed memwall is that of this checkout
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run(command, cwd=root, check=False, env=environment)
    found: dict[tuple[str, str], str] = {}
    for case in ET.parse(report).iter("testcase"):
        key = (f"{case.attrib['classname'].rpartition('.')[2]}.py", case.attrib["name"].partition("[")[0])
        kinds = {child.tag for child in case}
        state = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        found[key] = "failed" if "failed" in (state, found.get(key)) else state
    report.unlink()
    return found


def at_commit(commit: str) -> dict[tuple[str, str], str]:
    """How the tests of this checkout end with the package of another commit."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "main"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", root, commit], cwd=ROOT, check=True)
        try:
            shutil.copytree(ROOT / "tests/defects", root / "tests/defects")
            return outcomes(root)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", root], cwd=ROOT, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at", metavar="COMMIT", help="run the tests at this commit too; each must fail there")
    parser.add_argument("-o", "--output", type=Path, help="write the list here instead of to standard output")
    options = parser.parse_args()
    rows, here = defects(), outcomes(ROOT)
    there = at_commit(options.at) if options.at else {}
    heads = ["number", "cause", "test", "now", *([f"at {options.at}"] if options.at else [])]
    lines = ["# Defects and the tests that hold them off", "",
             f"`python tools/defects.py{f' --at {options.at}' if options.at else ''} -o reports/defects.md` runs the"
             " tests and writes this list.", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]  # fmt: skip
    for row in rows:
        ends = [found.get((row.file, row.test), "missing") for found in (here, there)[: 1 + bool(options.at)]]
        cells = [row.number, row.cause.replace("|", "\\|"), f"`tests/defects/{row.file}::{row.test}`", *ends]
        lines.append(f"| {' | '.join(cells)} |")
    text = "\n".join(lines) + "\n"
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    wrong = [row for row in rows if here[row.file, row.test] == "failed"]
    wrong += [row for row in rows if options.at and there.get((row.file, row.test)) != "failed"]
    for row in wrong:
        print(f"{row.number} {row.test}: not as it should be", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
