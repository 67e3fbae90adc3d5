"""The first configuration of a gate: the model files below a folder, and a small memwall.toml that gates them."""

from __future__ import annotations

import ast
import fnmatch
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from memwall.core.errors import UsageError
from memwall.gate.reading import OWN_FILE, workload_name

#: folders below the current one in which files are looked for: packages in a repository of many lie deep
_DEPTH = 6
#: what the top of a virtual environment has, whose code is that of others
_OTHERS = "pyvenv.cfg"
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


def below(folder: Path, name: str) -> list[Path]:
    """The files of a name, or a pattern, in a folder and some levels below, the nearest first; hidden folders and
    virtual environments are left out."""
    found: list[Path] = []
    for top, folders, files in os.walk(folder):
        place = Path(top)
        is_last = len(place.relative_to(folder).parts) == _DEPTH
        folders[:] = [] if is_last else [name for name in folders if _is_own(place / name)]
        found += [place / file for file in fnmatch.filter(files, name)]
    return sorted(found, key=lambda path: (len(path.parts), path))


def _is_own(folder: Path) -> bool:
    return not folder.name.startswith(".") and not (folder / _OTHERS).exists()


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
    named, tables = Counter(map(workload_name, dict.fromkeys(targets))), list[str]()
    for target in dict.fromkeys(targets):
        name = workload_name(target)
        if named[name] > 1:  # as its path says
            name = target.removesuffix(".py").replace("/", "_")
        tables.append(f"\n[gate.workloads.{json.dumps(name)}]\ntarget = {json.dumps(target)}\n")
    return _HEAD.format(places=places) + "".join(tables)


def others_below(folder: Path) -> list[str]:
    """The memwall.toml files below a folder, relative to it."""
    return [path.relative_to(folder).as_posix() for path in below(folder, OWN_FILE) if path.parent != folder]
