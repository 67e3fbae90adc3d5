"""``[tool.memwall.gate]`` of pyproject.toml or memwall.toml → :class:`memwall.gate.config.GateConfig`.

A table holds settings (``gpu``, ``mode``, ``batch``: those of ``memwall profile``) and limits (a quantity's name), the
tables ``policies.NAME`` and ``gpus.NAME`` limits of one policy or GPU, and ``modules."PATTERN"`` what some modules do
together.
"""

from __future__ import annotations

import glob
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from memwall.analysis.quantities import ALIASES, LIMITS
from memwall.core.errors import UsageError, unknown
from memwall.core.files import read_text
from memwall.frontend.workload.target import split_target
from memwall.fusion import POLICIES
from memwall.gate.config import GateConfig, GatedWorkload, Limits, Scope, limits_of
from memwall.gate.limits import Limit
from memwall.hardware.lookup import Gpu, load_gpus

#: the file that holds nothing but a gate
OWN_FILE = "memwall.toml"

#: settings of a workload -> the types they may have; the keywords of ``memwall.profile`` aside from gpu and policy
OPTIONS: Mapping[str, type | tuple[type, ...]] = {
    "mode": str, "batch": int, "seq": int, "dtype": str, "autocast": str, "optimizer": str, "attention": str,
    "cuda_graph": bool, "real": bool, "input": list, "max_ops": int,
}  # fmt: skip
_PLACES: Mapping[str, type | tuple[type, ...]] = {"gpu": (str, list), "policy": (str, list)}
_SCOPES = ("gpus", "policies", "modules")
#: settings of the whole gate alone
_WHOLE: Mapping[str, type | tuple[type, ...]] = {
    "workloads": (dict, list), "baseline": str, "baseline_ref": str, "history": str,
}  # fmt: skip
_CHOICES = {"mode": ("inference", "training"), "attention": ("auto", "flash", "efficient", "math")}


def find_config(folder: Path) -> Path | None:
    """memwall.toml, or a pyproject.toml that has a gate, in a folder or the nearest above it.

    Raises:
        UsageError: one of them is not TOML.
    """
    for place in (folder, *folder.parents):
        for name in (OWN_FILE, "pyproject.toml"):
            path = place / name
            if path.is_file() and (name == OWN_FILE or _gate_table(_read(path)) is not None):
                return path
        if (place / ".git").exists():
            break
    return None


def read_config(path: Path) -> GateConfig:
    """The gate of a TOML file.

    Raises:
        UsageError: no such file, no TOML, no gate in it, an unknown key, unit, GPU or policy; names the nearest.
    """
    record = _read(path)
    table = _gate_table(record)
    if table is None:
        raise UsageError(f"{path} has no [tool.memwall.gate] table")
    if path.name == OWN_FILE:
        _check_own(record, path.name)
    where = f"{path.name}: [tool.memwall.gate]"
    if not isinstance(table, dict):
        raise UsageError(f"{where} is no table")
    settings, scope = _table(table, where, {**OPTIONS, **_PLACES, **_WHOLE, "target": str})
    options, gpus, policies = _how(settings, where, path.parent)
    config = GateConfig(path.parent.resolve(), path.name, scope=scope, options=options, gpus=gpus, policies=policies,
                        baseline=settings.get("baseline"), baseline_ref=settings.get("baseline_ref"),
                        history=settings.get("history"))  # fmt: skip
    if config.baseline is not None and config.baseline_ref is not None:
        raise UsageError(f"{where}: baseline and baseline_ref are two baselines; keep one")
    workloads = _workloads(config, settings, path.name)
    _check_places(config, workloads, path.name)
    return replace(config, workloads=workloads)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:  # no TOML, or a number of thousands of digits
        raise UsageError(f"{path} is not TOML: {error}") from None


def _check_own(record: dict[str, Any], file: str) -> None:
    """A key outside of the gate would be a setting that nobody reads."""
    stray = sorted(set(record) - {"gate", "tool"})
    if stray:
        raise UsageError(f"{file}: {stray[0]} stands outside of [gate]; move it there")
    if {"gate", "tool"} <= set(record):
        raise UsageError(f"{file}: [gate] and [tool.memwall.gate] are two gates; keep one")


def _gate_table(record: dict[str, Any]) -> Any:
    table: Any = record
    for key in ("tool", "memwall", "gate"):
        table = table.get(key) if isinstance(table, dict) else None
    return record.get("gate") if table is None and "project" not in record else table


def _table(
    table: Mapping[str, Any], where: str, settings: Mapping[str, type | tuple[type, ...]]
) -> tuple[dict[str, Any], Scope]:
    """The settings and the limits of one table."""
    found: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {name: {} for name in _SCOPES}
    for key, value in table.items():
        if key in _SCOPES:
            inner[key] = _named_tables(value, f"{where} {key}")
        elif key in settings:
            kinds = settings[key]
            if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
                raise UsageError(f"{where}: {key} is {type(value).__name__}; want {_kind_names(kinds)}")
            if key in _CHOICES and value not in _CHOICES[key]:
                raise UsageError(f"{where}: {key} is {value!r}; want {' or '.join(_CHOICES[key])}")
            found[key] = value
        elif key in LIMITS or key in ALIASES:
            limits[key] = value
        else:
            raise unknown("setting or quantity", key, (*settings, *_SCOPES, *LIMITS), 0.5, where)
    scope = Scope(
        {**limits_of(limits, where), **_by_module(inner["modules"], where)},
        {_policy(name, where): _inside(rows, f"{where} policies.{name}") for name, rows in inner["policies"].items()},
        _by_gpu(inner["gpus"], where),
    )
    return found, scope


def _by_gpu(tables: Mapping[str, dict[str, Any]], where: str) -> dict[str, Limits]:
    found: dict[str, Limits] = {}
    for name, rows in tables.items():
        gpu = _gpus([name], f"{where} gpus")[0].name
        if gpu in found:
            raise UsageError(f"{where}: gpus.{name} is {gpu}, which has a table already; keep one")
        found[gpu] = _inside(rows, f"{where} gpus.{name}")
    return found


def _gpus(names: Iterable[str | Path], where: str) -> list[Gpu]:
    try:
        return list(load_gpus(names))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def _inside(table: dict[str, Any], where: str) -> dict[tuple[str, str], tuple[Limit, ...]]:
    """The limits of a GPU or a policy, those of modules among them."""
    modules = _named_tables(table.get("modules", {}), f"{where} modules")
    return {**limits_of({k: v for k, v in table.items() if k != "modules"}, where), **_by_module(modules, where)}


def _by_module(tables: Mapping[str, Any], where: str) -> dict[tuple[str, str], tuple[Limit, ...]]:
    found: dict[tuple[str, str], tuple[Limit, ...]] = {}
    for pattern, rows in tables.items():
        if not pattern:
            raise UsageError(f"{where} modules: an empty pattern fits no module; want one such as 'layers.*'")
        found |= limits_of(rows, f"{where} modules.{pattern}", pattern)
    return found


def _named_tables(value: Any, where: str) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(rows, dict) for rows in value.values()):
        raise UsageError(f"{where}: want a table per name, as in {where.rpartition(' ')[2]}.NAME")
    return value


def _kind_names(kinds: type | tuple[type, ...]) -> str:
    names = {str: "text", int: "a whole number", bool: "true or false", list: "a list", dict: "a table"}
    return " or ".join(names[kind] for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))


def _policy(name: str, where: str) -> str:
    if name not in POLICIES:
        raise unknown("policy named", name, POLICIES, 0.5, where)
    return name


def _texts(value: Any, where: str) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not all(isinstance(item, str) for item in items):
        raise UsageError(f"{where} is a list of texts")
    return tuple(items)


def _how(
    settings: Mapping[str, Any], where: str, root: Path
) -> tuple[dict[str, Any], tuple[Gpu, ...], tuple[str, ...]]:
    """Options of ``memwall.profile``, GPUs and policies; the path of a GPU's file is relative to the root."""
    options = {key: settings[key] for key in OPTIONS if key in settings}
    if "input" in options:
        options["input_specs"] = _texts(options.pop("input"), f"{where}: input")
    names = _texts(settings.get("gpu", []), f"{where}: gpu")
    paths = [root / name if name.lower().endswith(".toml") else name for name in names]
    gpus = _gpus(paths, f"{where}: gpu")
    policies = tuple(_policy(name, where) for name in _texts(settings.get("policy", []), f"{where}: policy"))
    return options, tuple(gpus), tuple(dict.fromkeys(policies))


def _workloads(config: GateConfig, settings: Mapping[str, Any], file: str) -> tuple[GatedWorkload, ...]:
    rows = settings.get("workloads", {})
    if isinstance(rows, list):
        targets = [t for text in _texts(rows, f"{file}: workloads") for t in expand(text, config.root)]
        rows = {workload_name(target): {"target": target} for target in targets}
        if len(rows) < len(targets):
            raise UsageError(f"{file}: two workloads have one name; name them as [tool.memwall.gate.workloads.NAME]")
    if "target" in settings:
        name = workload_name(settings["target"])
        if name in rows:
            raise UsageError(f"{file}: target and workloads have one {name} each; keep one")
        rows = {name: {"target": settings["target"]}, **rows}
    where = f"{file}: [tool.memwall.gate.workloads."
    return tuple(_workload(config, name, row, f"{where}{name}]") for name, row in rows.items())


def _workload(config: GateConfig, name: str, row: Any, where: str) -> GatedWorkload:
    if not isinstance(row, dict):
        raise UsageError(f'{where} is no table; want one with target = "model.py"')
    if not name or "/" in name or "\\" in name or name.startswith("."):
        raise UsageError(f"{where}: a workload's name has no / in it and begins with no dot")
    settings, scope = _table(row, where, {**OPTIONS, **_PLACES, "target": str})
    if "target" not in settings:
        raise UsageError(f'{where} has no target; want one such as target = "model.py"')
    return config.workload(name, settings["target"], *_how(settings, where, config.root), scope)


def _check_places(config: GateConfig, workloads: tuple[GatedWorkload, ...], file: str) -> None:
    """A limit for a GPU or a policy that nothing runs on would never be checked."""
    whole = (config.workload("", "any.py"), *workloads)
    rows = [("the gate", config.scope, whole), *((w.name, w.scope, (w,)) for w in workloads)]
    for name, scope, runs in rows:
        gpus = {gpu.name for run in runs for gpu in run.gpus}
        policies = {policy for run in runs for policy in run.policies}
        for kind, limited, there in (("gpu", scope.gpus, gpus), ("policy", scope.policies, policies)):
            if stray := next((key for key in limited if key not in there), None):
                add = f"add it to {kind} = [{', '.join(sorted(there))}]"
                raise UsageError(f"{file}: {name} limits {kind} {stray}, which nothing runs on; {add}")


def expand(target: str, root: Path) -> list[str]:
    """The files of a pattern such as ``profiles/*/model.py``, relative to the root; a plain target as it is.

    Raises:
        UsageError: nothing matches.
    """
    if not any(sign in target for sign in "*?["):
        return [target]
    found = sorted(Path(name).as_posix() for name in glob.glob(target, root_dir=root, recursive=True))  # noqa: PTH207
    if not found:
        raise UsageError(f"no file matches {target!r} in {root.name or root}")
    return found


def workload_name(target: str) -> str:
    """A target's name: ``profiles/bert_large/model.py`` is bert_large, any other file has its own name."""
    kind, place, name = split_target(target)
    path = Path(place)
    by_folder = path.name == "config.json" if kind == "hf" else path.stem == "model"
    title = path.parent.name if by_folder and path.parent.name else path.name.removesuffix(".gz")
    title = title.removesuffix(".json").removesuffix(".py")
    return f"{title}.{name}" if name else title
