"""How often gates are right: unchanged code in ten odd repositories, and regressions brought in on purpose.

    python lab/benchmarks/gate_trials.py noop [--first 0 --last 10] [--repeat 10] -o noop.json
    python lab/benchmarks/gate_trials.py regressions -o regressions.json
    python lab/benchmarks/gate_trials.py report noop*.json regressions.json > reports/gate_trials.md

A no-op is a commit that changes no kernel: docs, a comment, a rename, formatting, functions in another order. It is
gated against the commit before with the default limits, by ``run_gate`` in this process with servers that all gates
share; the last of each repository goes through the command line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from gate_trials_models import REGRESSIONS, REPOSITORIES, git, write

from memwall.gate.reading import read_config
from memwall.gate.run import run_gate
from memwall.gate.tracing import Tracers

ROOT = Path(__file__).resolve().parents[2]


def docs(folder: Path, number: int) -> None:
    write(folder, {"README.md": f"Words, {number} of them.\n"})


def comment(folder: Path, number: int) -> None:
    _edit(folder, lambda text: f"# note {number}\n\n{text}")


def rename(folder: Path, number: int) -> None:
    """A variable in the model, and a file next to it that nothing reads."""
    old, new = ("value", "renamed") if "value" in next(_models(folder)).read_text() else ("renamed", "value")
    _edit(folder, lambda text: text.replace(old, new))
    write(folder, {f"notes/{number}.txt": "x"})
    git(folder, "add", ".")
    git(folder, "mv", f"notes/{number}.txt", f"notes/moved {number}.txt")


def formatting(folder: Path, number: int) -> None:
    _edit(folder, lambda text: text.replace("\n\n\ndef ", "\n\n\n\ndef ") if number % 2 else
          text.replace("\n\n\n\ndef ", "\n\n\ndef "))  # fmt: skip


def order(folder: Path, number: int) -> None:
    """The functions of the model's file the other way round."""

    def turned(text: str) -> str:
        head, *functions = text.split("\n\n\ndef ")
        return "\n\n\ndef ".join([head, *[part.rstrip("\n") for part in reversed(functions)]]) + "\n"

    _edit(folder, turned)


NOOPS = (docs, comment, rename, formatting, order)


def _models(folder: Path) -> Any:
    return (path for path in sorted(folder.rglob("*.py")) if "def model" in path.read_text() and not path.is_symlink())


def _edit(folder: Path, change: Callable[[str], str]) -> None:
    for path in _models(folder):
        path.write_text(change(path.read_text()))


def noop(first: int, last: int, repeat: int) -> dict[str, Any]:
    """Verdicts of no-op gates by repository, and what was said where one did not pass."""
    found: dict[str, Any] = {}
    for name in list(REPOSITORIES)[first:last]:
        counts: Counter[str] = Counter()
        said: list[str] = []
        with tempfile.TemporaryDirectory() as place, Tracers() as tracers:
            folder = REPOSITORIES[name](Path(place))
            for number in range(repeat):
                for change in NOOPS:
                    change(folder, number)
                    git(folder, "add", ".")
                    git(folder, "commit", "-q", "--allow-empty", "-m", change.__name__)
                    config = read_config(folder / "memwall.toml")
                    result = run_gate(config, config.workloads, "HEAD~1", tracers=tracers).result
                    counts[f"{change.__name__} {result.verdict}"] += 1
                    rows = [*result.checks, *result.problems]
                    said += [row.message or str(row)[:300] for row in rows if row.verdict != "pass"][:2]
            counts[f"command line {_command(folder).returncode}"] += 1
        found[name] = {"counts": counts, "said": sorted({text[:300] for text in said})[:4]}
        print(name, dict(counts), file=sys.stderr)
    return found


def _command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "memwall", "gate", "-q", "--baseline-ref", "HEAD~1", *words], cwd=folder, check=False,
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def regressions() -> dict[str, Any]:
    """What the gate says of each regression, all in one repository."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        rows = ["[gate]\n"]
        for name, row in REGRESSIONS.items():
            rows.append(f'[gate.workloads.{name}]\ntarget = "net_{name}.py"\nmode = "{row.mode}"\n')
        write(
            folder,
            {"memwall.toml": "".join(rows), **{f"net_{name}.py": row.model for name, row in REGRESSIONS.items()}},
        )
        git(folder, "init", "-q", "-b", "main")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", "as it was")
        for name, row in REGRESSIONS.items():
            assert row.model.count(row.old) == 1, name
            write(folder, {f"net_{name}.py": row.model.replace(row.old, row.new)})
        git(folder, "commit", "-q", "-am", "worse")
        done = _command(folder, "--json")
        if not done.stdout:
            raise SystemExit(done.stderr)
        record = json.loads(done.stdout)
        return {name: _outcome(record, name, row) for name, row in REGRESSIONS.items()}


def _outcome(record: dict[str, Any], name: str, row: Any) -> dict[str, Any]:
    checks = [check for check in record["checks"] if check["workload"] == name]
    failed = [check for check in checks if check["verdict"] == "fail"]
    unjudged = [check for check in checks if check["verdict"] == "inconclusive"]
    problems = [row["message"] for row in (*record["problems"], *unjudged) if row["workload"] == name]
    causes = [cause for check in failed for cause in check["causes"]]
    text = row.model.replace(row.old, row.new).splitlines()
    changed = {f"net_{name}.py:{i}" for i, line in enumerate(text, 1) if line not in row.model.splitlines()}
    lines = list(dict.fromkeys(cause["source"] for cause in causes if cause["source"]))
    moved = {
        check["quantity"]: check["value"] / check["baseline"] - 1 for check in checks
        if check["baseline"] and check["value"] is not None and check["value"] != check["baseline"]
    }  # fmt: skip
    return {
        "what": row.what, "verdict": "fail" if failed else "inconclusive" if problems else "pass",
        "quantities": list(dict.fromkeys(check["quantity"] for check in failed)),
        "line": next((line for line in lines if line in changed), lines[0] if lines else ""),
        "named": bool(changed & set(lines)), "cause": _cause(causes, changed), "moved": moved, "problems": problems,
    }  # fmt: skip


def _cause(causes: list[dict[str, Any]], changed: set[str]) -> str:
    first = next((cause for cause in causes if cause["source"] in changed), causes[0] if causes else None)
    return f"{first['kind']}: {first['op']} {first['module']}".strip() if first else ""


def report(files: list[Path]) -> None:
    """Print the report of what other runs have found."""
    found: dict[str, Any] = {}
    for path in files:
        found |= json.loads(path.read_text())
    trials = {name: row for name, row in found.items() if "counts" in row}
    made = {name: row for name, row in found.items() if "verdict" in row}
    print(
        "# How often gates are right\n\n`lab/benchmarks/gate_trials.py` made this: nothing in it was written by hand.\n"
    )
    total = sum(count for row in trials.values() for key, count in row["counts"].items() if "line" not in key)
    wrong = {v: sum(n for r in trials.values() for key, n in r["counts"].items() if key.endswith(v))
             for v in ("fail", "inconclusive")}  # fmt: skip
    lines = [code for row in trials.values() for code in row["counts"] if code.startswith("command line")]
    print(f"## Unchanged code\n\n{total} gates of commits that change no kernel (docs, comments, renames, formatting,"
          f" functions in another order) in {len(trials)} repositories: {wrong['fail']} fail,"
          f" {wrong['inconclusive']} are inconclusive. {len(lines)} further gates through the command line:"
          f" exit codes {', '.join(sorted({code.rpartition(' ')[2] for code in lines}))}.\n")  # fmt: skip
    print("| repository | gates | pass | fail | inconclusive | what the inconclusive say |\n|---|---|---|---|---|---|")
    for name, row in trials.items():
        counts: Counter[str] = Counter()
        for key, count in row["counts"].items():
            if not key.startswith("command line"):
                counts[key.rpartition(" ")[2]] += count
        said = "; ".join(row["said"]).replace("|", "\\|")
        cells = [name, counts.total(), *(counts[v] for v in ("pass", "fail", "inconclusive")), said]
        print(f"| {' | '.join(map(str, cells))} |")
    caught = [row for row in made.values() if row["verdict"] == "fail"]
    named = sum(row["named"] for row in caught)
    print(
        f"\n## Regressions\n\n{len(made)} changes for the worse, each in a model of its own, with the default limits:"
    )
    print(
        f"{len(caught)} fail, {named} of them with the changed line, the others with the line or the module whose ops"
    )
    print("changed. What passes is below every limit, as its largest change shows.\n")
    print("| regression | verdict | limits | first cause | line | largest change |\n|---|---|---|---|---|---|")
    for row in made.values():
        moved = sorted(row["moved"].items(), key=lambda item: -abs(item[1]))[:1]
        largest = ", ".join(f"{key} {value:+.2%}" for key, value in moved) or "; ".join(row["problems"])
        where = row["line"] + ("" if row["named"] or not row["line"] else " (uses it)")
        cells = [row["what"], row["verdict"], ", ".join(row["quantities"]), row["cause"], where, largest]
        print("| " + " | ".join(cell.replace("|", " ") for cell in cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("noop", "regressions", "report"))
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=len(REPOSITORIES))
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.what == "report":
        report(options.files)
        return
    found = noop(options.first, options.last, options.repeat) if options.what == "noop" else regressions()
    options.output.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
