"""The first configuration of a gate: the model files below a folder, and a small memwall.toml that gates them."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from memwall.core.errors import UsageError
from memwall.gate.reading import OWN_FILE, workload_name

#: folders below the current one in which files are looked for
_DEPTH = 3
#: what a model file defines, as ``frontend.workload.contract`` reads it: any of these sets
_FORMS = ({"workload"}, {"model", "inputs"}, {"Model", "get_inputs"})

_HEAD = """\
# What memwall gate checks. The settings are options of memwall profile; docs/gate.md has all quantities.
[gate]
{places}baseline = "memwall_baselines"  # memwall gate --update writes it; commit it
kernels = "+0"
dram_bytes = "+0.5%"
time_s = "+0.5%"
peak_memory = "+0.5%"
"""


def below(folder: Path, name: str) -> Iterator[Path]:
    """The files of a name, or a pattern, in a folder and some levels below, hidden folders left out."""
    for depth in range(_DEPTH + 1):
        for path in sorted(folder.glob("*/" * depth + name)):
            if not any(part.startswith(".") for part in path.relative_to(folder).parts):
                yield path


def model_files(folder: Path) -> list[str]:
    """The files that define a model and its inputs, relative to the folder. Raises ``UsageError``: no file does."""
    found = [path.relative_to(folder).as_posix() for path in below(folder, "*.py") if _is_model(path)]
    if not found:
        raise UsageError("no model file here: name TARGETs, or write model() and inputs() into one (docs/profile.md)")
    return found


def _is_model(path: Path) -> bool:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return False
    defined = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return any(form <= defined for form in _FORMS)


def first_config(targets: Sequence[str], gpus: Sequence[str], policies: Sequence[str]) -> str:
    """The text of a memwall.toml."""
    places = "".join(
        f"{key} = {json.dumps(list(names))}\n" for key, names in (("gpu", gpus), ("policy", policies)) if names
    )
    tables: dict[str, str] = {}
    for target in targets:
        name = workload_name(target)
        if name in tables:  # as its path says
            name = target.removesuffix(".py").replace("/", "_")
        tables[name] = f"\n[gate.workloads.{json.dumps(name)}]\ntarget = {json.dumps(target)}\n"
    return _HEAD.format(places=places) + "".join(tables.values())


def others_below(folder: Path) -> list[str]:
    """The memwall.toml files below a folder, relative to it."""
    return [path.relative_to(folder).as_posix() for path in below(folder, OWN_FILE) if path.parent != folder]
