"""Count lines per folder of the package and compare them with ``tools/lines.toml``; growth is a decision.

    python tools/lines.py            print the counts and what exceeds its ceiling; exit code 1 where something does
    python tools/lines.py --lower    lower each ceiling to what is there now

Rows of ``[analyzer]``, ``[wings]`` and ``[apart]`` are the most lines of Python that a folder may have; ``[shape]``
limits sums, modules and functions. ``[public]`` and ``[mirrors]`` name by module the functions that may have more than
six parameters: what users call, and what has the parameters of an op, or of a library's function, that it stands for.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from memwall.wings import WINGS  # noqa: E402

CEILINGS = Path(__file__).with_suffix(".toml")
#: tables of functions that may have more parameters than others
WIDE, MOST_PARAMETERS = ("public", "mirrors"), 6
#: what keeps the formatter from a statement
SKIP = "# fmt: skip"


def line_counts() -> dict[str, int]:
    """Lines of every module, by its path in the repository."""
    files = sorted(path for folder in ("memwall", "lab", "tests") for path in (ROOT / folder).rglob("*.py"))
    return {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files}


def folder_of(path: str) -> str:
    """Where the lines of a module count: a folder of the package, ``memwall`` for what lies at its top, ``lab``, or
    ``tests``, also for the tests of the lab."""
    parts = path.split("/")
    if "tests" in parts[:2]:
        return "tests"
    return parts[1] if parts[0] == "memwall" and len(parts) > 2 else parts[0]


def functions_of(path: str) -> list[tuple[int, int, str]]:
    """Each function of a module: its lines, from ``def`` to its end, its named parameters, without ``self``, and its
    name."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return [((node.end_lineno or 0) - node.lineno + 1, len(_parameters(node.args)), node.name) for node in found]


def _parameters(arguments: ast.arguments) -> list[str]:
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return names[names[:1] in (["self"], ["cls"]) :]


def wide_functions(paths: Iterable[str]) -> set[tuple[str, str]]:
    """The functions of more than six parameters: module and name."""
    every = ((path, *function) for path in paths for function in functions_of(path))
    return {(path, name) for path, _, parameters, name in every if parameters > MOST_PARAMETERS}


def allowed_functions(ceilings: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The functions that may have more: module and name."""
    rows = [row for table in WIDE for row in ceilings.get(table, {}).items()]
    return {(f"memwall/{module}", name) for module, names in rows for name in names.split()}


def measured(allowed: Set[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """The current numbers, in the form of the file of ceilings: folders of the analyzer, wings, and what is apart."""
    counts = line_counts()
    folders: Counter[str] = Counter()
    for path, lines in counts.items():
        folders[folder_of(path)] += lines
    package = {path: lines for path, lines in counts.items() if path.startswith("memwall/")}
    functions = sorted(each for path in package for each in functions_of(path))
    bodies = [lines for path, lines in package.items() if not path.endswith("__init__.py")]
    apart, wings = ("lab", "tests"), [name for name in folders if name in WINGS]
    analyzer = {name: folders[name] for name in sorted(folders) if name not in (*apart, *wings)}
    return {
        "analyzer": analyzer,
        "wings": {name: folders[name] for name in sorted(wings)},
        "apart": {name: folders[name] for name in apart},
        "shape": {
            "all_of_analyzer": sum(analyzer.values()),
            "package": sum(package.values()),
            "longest_module": max(package.values()),
            "longest_function": functions[-1][0],
            "function_90th_percentile": functions[len(functions) * 9 // 10][0],
            "functions_of_over_6_parameters": len(wide_functions(package) - allowed),
            "unformatted_statements": sum((ROOT / path).read_text(encoding="utf-8").count(SKIP) for path in package),
        },
        "at_least": {"median_module": int(statistics.median(bodies))},
    }


def lower(now: dict[str, dict[str, int]]) -> None:
    """Write today's numbers where they are better than the ceilings; comments and order stay."""
    text = CEILINGS.read_text(encoding="utf-8")
    for table, better in (*((table, min) for table in now if table != "at_least"), ("at_least", max)):
        for name, count in now[table].items():
            pattern = re.compile(rf"^({name} = )(\d+)", re.MULTILINE)
            if pattern.search(text):
                text = pattern.sub(lambda m, n=count, b=better: f"{m[1]}{b(int(m[2]), n)}", text)
    CEILINGS.write_text(text, encoding="utf-8")


def main() -> int:
    """Compare, and print what is over."""
    allowed = allowed_functions(tomllib.loads(CEILINGS.read_text(encoding="utf-8")))
    now = measured(allowed)
    if "--lower" in sys.argv:
        lower(now)
    ceilings = tomllib.loads(CEILINGS.read_text(encoding="utf-8"))
    stale = sorted(allowed - wide_functions(path for path in line_counts() if path.startswith("memwall/")))
    over = [f"{name} of {path} has no more than {MOST_PARAMETERS} parameters, or is gone" for path, name in stale]
    for table, rows in now.items():
        for name, count in rows.items():
            limit = ceilings.get(table, {}).get(name)
            print(f"{name:26s} {count:7,d} {'-' if limit is None else format(limit, ',d'):>8s}")
            if limit is None:
                over.append(f"{name} has no row in [{table}] of {CEILINGS.name}")
            elif count < limit if table == "at_least" else count > limit:
                over.append(f"{name}: {count:,}; {CEILINGS.name} says {limit:,}")
    for line in over:
        print(f"lines: {line}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
