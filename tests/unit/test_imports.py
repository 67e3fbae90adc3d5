"""Imports point one way: a file imports only what stands above it in this list."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Bottom first. A folder is one entry; within it files may import each other.
ORDER = (
    "errors", "units", "files", "_version", "graph", "cpu_rates", "work", "gpu", "gpu_spec", "hardware", "workload",
    "trace", "cost", "utilization", "roofline", "fusion", "cpu", "agreement", "capture", "funnel", "reference",
    "codegen", "simulate", "breaks", "record", "measurement", "views", "profile", "schedules", "whatif", "analysis",
    "verdict", "savings", "explanation", "closing", "accuracy", "alternatives", "fused", "emit", "compare",
    "pipeline", "tracing", "kineto", "calibrate", "measure", "contest", "gate", "history", "report", "expectations",
    "cli", "pytest_plugin", "__init__", "__main__",
)  # fmt: skip

#: ``trace`` stands above ``cost`` in that list and yet neither may know the other.
STRANGERS = {("cost", "trace"), ("cost", "workload"), ("simulate", "trace"), ("profile", "trace"), ("report", "trace"),
             ("compare", "trace"), ("report", "pipeline"), ("cost", "gpu"), ("cost", "gpu_spec"),
             ("cost", "hardware")}  # fmt: skip

#: Modules that stay importable without torch.
LIGHT = ("memwall", "memwall.cli", "memwall.cli.gpus", "memwall.cli.profile", "memwall.cli.compare",
         "memwall.cli.report", "memwall.cli.fuse", "memwall.fused", "memwall.whatif", "memwall.breaks", "memwall.emit",
         "memwall.savings", "memwall.agreement", "memwall.capture", "memwall.funnel", "memwall.fusion",
         "memwall.codegen", "memwall.closing", "memwall.accuracy", "memwall.cli.accuracy", "memwall.measurement",
         "memwall.calibrate", "memwall.cli.calibrate", "memwall.measure", "memwall.cli.measure",
         "memwall.profile", "memwall.pipeline", "memwall.compare", "memwall.workload", "memwall.report",
         "memwall.gate.run", "memwall.cli.gate", "memwall.report.gating", "memwall.history", "memwall.report.history",
         "memwall.expectations", "memwall.kineto.analysis", "memwall.report.kineto", "memwall.cli.trace_input",
         "memwall.pytest_plugin", "memwall.contest")  # fmt: skip

HEAVY = ("torch", "pandas", "matplotlib", "triton", "transformers", "pyarrow")


def imports_of(path: Path) -> set[str]:
    """Names of memwall's own modules that a file imports, anywhere in it, type-checking blocks included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            names = [node.module or ""]
        found.update(name.removeprefix("memwall").lstrip(".") for name in names if name.partition(".")[0] == "memwall")
    return found


FILES = sorted((ROOT / "memwall").rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(ROOT / "memwall").parts[0].removesuffix(".py")


def test_every_file_is_in_the_list():
    assert {part_of(path) for path in FILES} == set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_imports_only_from_above(path):
    own = part_of(path)
    for name in imports_of(path):
        target = name.partition(".")[0]
        assert target or own in ("__init__", "__main__"), f"{path.name}: 'from memwall import ...' inside the package"
        if target and target != own:
            assert ORDER.index(target) < ORDER.index(own), f"{own} imports {target}, which stands below it"
            assert (own, target) not in STRANGERS, f"{own} must not know {target}"


@pytest.mark.parametrize("module", LIGHT)
def test_importing_it_imports_nothing_heavy(module):
    code = f"import sys, {module}; print(*[m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_packages_of_the_wheel_are_all_there_are():
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    folders = {str(p.parent.relative_to(ROOT)).replace("/", ".") for p in (ROOT / "memwall").rglob("__init__.py")}
    assert set(listed) == folders | {"memwall.hardware_specs"}
