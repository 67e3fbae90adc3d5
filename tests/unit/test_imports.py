"""Imports point one way: the analyzer's folders import only from those above them in a list, and a wing imports the
analyzer and no other wing; and nothing imports in a circle."""

import importlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from memwall.wings import WINGS, command_module, kinds_of_points, page_of, part, planner
from tests.unit.places import ROOT

#: the analyzer, in the order in which the data flows; nothing imports the package itself
ANALYZER = (
    "wings", "core", "hardware", "ops", "perfmodel", "frontend", "fusion", "simulate", "record", "analysis", "step",
    "conflicts", "subjects", "pipeline", "programs", "trace_cache", "points", "report", "cli",
)  # fmt: skip
#: what the package is from outside: it may name anything
OUTSIDE = ("__init__", "__main__")

#: Modules that stay importable without torch: the front door of every folder, and every command.
LIGHT = ("memwall", "memwall.serving.command", "memwall.sweeping.command", "memwall.sweeping.search_command",
         "memwall.sweeping.compare_command", "memwall.gate.command", "memwall.gate.pytest_plugin",
         "memwall.bench.accuracy_command", "memwall.bench.calibrate_command", "memwall.bench.measure_command",
         *(f"memwall.{name}" for name in (*ANALYZER, *WINGS)),
         *(f"memwall.cli.{name}" for name in ("gpus", "ops", "profile", "report", "cache")),
         "memwall.fusing.command", "memwall.fusing.run", "memwall.core.compat", "memwall.hardware.lookup",
         "memwall.bench.accuracy", "memwall.gate.history", "memwall.gate.run",
         "memwall.frontend.targets", "memwall.record.capture", "memwall.record.profile", "memwall.bench.kernels",
         "memwall.bench.ab", "memwall.bench.calibrate", "memwall.traces.analysing", "memwall.codegen.emit")  # fmt: skip

HEAVY = ("torch", "pandas", "matplotlib", "triton", "transformers", "pyarrow")


IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(memwall[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)|import[ \t]+(memwall[\w.]*))", re.M
)


@cache
def imports_of(path: Path) -> set[str]:
    """Modules of the package that a file imports, anywhere in it, type-checking blocks included."""
    text, found = path.read_text(encoding="utf-8"), set()
    assert not re.search(r"^\s*from +\.", text, re.MULTILINE), f"{path}: a relative import"
    for module, names, whole in IMPORT.findall(text):
        parts = [part.partition(" as ")[0].strip() for part in re.sub(r"#.*", "", names).strip("() \n").split(",")]
        full = [f"{module}.{part}" for part in parts if part]
        found.update([name if name in MODULES else module for name in full] or [whole])
    return found


FILES = sorted((ROOT / "memwall").rglob("*.py"))
MODULES = {str(p.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__"): p for p in FILES}


def part_of(path: Path) -> str:
    return path.relative_to(ROOT / "memwall").parts[0].removesuffix(".py")


def test_the_folders_are_the_list():
    assert {part_of(path) for path in FILES} == {*ANALYZER, *WINGS, *OUTSIDE}


def test_a_file_imports_only_from_above():
    wrong = []
    for path in FILES:
        own = part_of(path)
        for name in imports_of(path):
            target = name.removeprefix("memwall").lstrip(".").partition(".")[0]
            if not target and own not in OUTSIDE:
                wrong.append(f"{path}: 'from memwall import ...' inside the package")
            elif target in ("", own) or own in OUTSIDE:
                continue
            elif target in WINGS:
                wrong.append(f"{path} imports {name} of a wing, which is asked through memwall.wings")
            elif own in ANALYZER and ANALYZER.index(target) > ANALYZER.index(own):
                wrong.append(f"{path} imports {name}, which stands below it")
    assert wrong == []


def test_what_wings_offer_is_there():
    for wing, row in WINGS.items():
        for name in row.parts:
            part(f"{wing}.{name}")
        for command in row.commands:
            assert importlib.import_module(command_module(command)).command.name == command
        assert all(planner(policy) for policy in row.policies)
        assert all(page_of(result) for result in row.pages)
        assert set(row.points) <= {kind.name for kind in kinds_of_points()}


def test_nothing_imports_in_a_circle():
    uses = {name: imports_of(path) & MODULES.keys() - {name} for name, path in MODULES.items()}
    while free := [name for name, used in uses.items() if not used & uses.keys()]:
        for name in free:
            del uses[name]
    assert not uses, "each of these leads back to itself, or to one that does"


def test_importing_it_imports_nothing_heavy():
    """One process imports them all, and says after which something heavy was there."""
    code = f"""
import importlib, sys
for module in {LIGHT}:
    importlib.import_module(module)
    if heavy := [name for name in {HEAVY} if name in sys.modules]:
        sys.exit(f"{{module}} imports {{heavy}}")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_packages_of_the_wheel_are_all_there_are():
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    folders = {str(p.parent.relative_to(ROOT)).replace("/", ".") for p in (ROOT / "memwall").rglob("__init__.py")}
    assert set(listed) == folders | {"memwall.hardware_specs"}
