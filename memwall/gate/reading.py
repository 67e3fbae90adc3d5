"""``[tool.memwall.gate]`` of pyproject.toml or memwall.toml, and the command line → what is gated and by what.

A table holds settings (``gpu``, ``mode``, ``batch``: options of ``memwall profile``) and limits (a quantity's name),
the tables ``policies.NAME`` and ``gpus.NAME`` limits of one policy or GPU, and ``modules."PATTERN"`` what some modules
do together.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from memwall.analysis.quantities import ALIASES, LIMITS
from memwall.core.errors import UsageError, suggest, unknown
from memwall.core.files import read_toml
from memwall.core.question import options_of
from memwall.frontend.targets.sizes import MODES
from memwall.frontend.targets.target import FORMATS, is_target, split_target
from memwall.fusion import POLICIES
from memwall.gate.config import (
    OF_ONE_GPU,
    SERVER,
    GateConfig,
    GatedWorkload,
    Limits,
    LimitScope,
    limits_of,
    parse_scope,
)
from memwall.gate.question import GateOptions
from memwall.hardware.lookup import Gpu, load_gpus
from memwall.hardware.torch_versions import TORCH
from memwall.record.profile import Profile
from memwall.step import ATTENTION, Step
from memwall.wings import part

#: the file that holds nothing but a gate
OWN_FILE = "memwall.toml"

Types = Mapping[str, tuple[type, ...]]
#: type of an option -> type of its setting in TOML
_TOML: Mapping[type, type] = {str: str, int: int, float: float, bool: bool, Sequence: list}


def settings_of(question: Any) -> Types:
    """The settings that the options of a question are, with the types they may have in TOML."""
    found = {}
    for name, said in options_of(question).items():
        if not said.internal:
            is_list = said.several and int not in said.types
            found[said.flag or name] = (list,) if is_list else tuple(_TOML[t] for t in said.types if t in _TOML)
    return found


#: settings of a workload -> the types they may have: the options of a step, and of a server
OPTIONS: Types = {
    **settings_of(Step), **settings_of(part("serving.ServeOptions")), "price": (dict,),
}  # fmt: skip
_PLACES: Types = {"gpu": (str, list), "policy": (str, list)}
_OF_WORKLOAD: Types = {**OPTIONS, **_PLACES, "target": (str,)}
_OF_GATE: Types = {
    **OPTIONS, **_PLACES, **settings_of(GateOptions), "workloads": (dict, list), "target": (str,),
}  # fmt: skip
_SCOPES = ("gpus", "policies", "modules")
_CHOICES = {"mode": (*MODES, "serve"), "attention": ATTENTION, "torch": tuple(TORCH)}
_TYPE_NAMES = {str: "text", int: "a whole number", bool: "true or false", list: "a list", dict: "a table"}


def configuration(path: str | None, limits: Sequence[str]) -> GateConfig:
    """The configuration named, or found near the current folder, with ``limits`` over it. Raises ``UsageError``: the
    file or a limit is wrong."""
    file = Path(path) if path is not None else find_config(Path.cwd())
    found = GateConfig(Path.cwd()) if file is None else read_config(file)
    return replace(found, over=parse_scope(limits))


def find_config(folder: Path) -> Path | None:
    """memwall.toml, or a pyproject.toml that has a gate, in a folder or the nearest above it. Raises ``UsageError``:
    one of them is not TOML."""
    for place in (folder, *folder.parents):
        for name in (OWN_FILE, "pyproject.toml"):
            path = place / name
            if path.is_file() and (name == OWN_FILE or _gate_table(read_toml(path)) is not None):
                return path
        if (place / ".git").exists():
            break
    return None


def read_config(path: Path) -> GateConfig:
    """The gate of a TOML file. Raises ``UsageError``: no such file, no TOML, no gate in it, an unknown key, unit, GPU
    or policy; names the nearest."""
    record = read_toml(path)
    table = _gate_table(record)
    if table is None:
        raise UsageError(f"{path} has no [tool.memwall.gate] table")
    if path.name == OWN_FILE:  # a key outside of the gate would be a setting that nobody reads
        if stray := sorted(set(record) - {"gate", "tool"}):
            raise UsageError(f"{path.name}: {stray[0]} stands outside of [gate]; move it there")
        if {"gate", "tool"} <= set(record):
            raise UsageError(f"{path.name}: [gate] and [tool.memwall.gate] are two gates; keep one")
    where = f"{path.name}: [tool.memwall.gate]"
    if not isinstance(table, dict):
        raise UsageError(f"{where} is no table")
    settings, scope = _table(table, where, _OF_GATE)
    options, gpus, policies = _how(settings, where, path.parent)
    places: dict[str, Any] = {key: settings.get(key) for key in settings_of(GateOptions)}
    config = GateConfig(
        path.parent.resolve(), path.name, scope=scope, options=options, gpus=gpus, policies=policies, **places
    )
    if config.baseline is not None and config.baseline_ref is not None:
        raise UsageError(f"{where}: baseline and baseline_ref are two baselines; keep one")
    workloads = _workloads(config, settings, path.name)
    _check_places(config, workloads, path.name)
    return replace(config, workloads=workloads)


def _gate_table(record: dict[str, Any]) -> Any:
    table: Any = record
    for key in ("tool", "memwall", "gate"):
        table = table.get(key) if isinstance(table, dict) else None
    return record.get("gate") if table is None and "project" not in record else table


# -- tables ------------------------------------------------------------------------------------------------------------


def _table(table: Mapping[str, Any], where: str, settings: Types) -> tuple[dict[str, Any], LimitScope]:
    """The settings and the limits of one table."""
    found: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {name: {} for name in _SCOPES}
    for key, value in table.items():
        if key in _SCOPES:
            inner[key] = _named_tables(value, f"{where} {key}")
        elif key in settings:
            kinds = settings[key]
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                wanted = " or ".join(_TYPE_NAMES[kind] for kind in kinds)
                raise UsageError(f"{where}: {key} is {type(value).__name__}; want {wanted}")
            if key in _CHOICES and value not in _CHOICES[key]:
                raise UsageError(f"{where}: {key} is {value!r}; want {' or '.join(_CHOICES[key])}")
            found[key] = value
        elif key in LIMITS or key in ALIASES:
            limits[key] = value
        else:
            raise unknown("setting or quantity", key, (*settings, *_SCOPES, *LIMITS), 0.5, where)
    own = _limits({**limits, "modules": inner["modules"]}, where)
    rows_of = {_policy(name, where): rows for name, rows in inner["policies"].items()}
    policies = {name: _limits(rows, f"{where} policies.{name}") for name, rows in rows_of.items()}
    gpus: dict[str, Limits] = {}
    for name, rows in inner["gpus"].items():
        gpu = _gpus([name], f"{where} gpus")[0].name
        if gpu in gpus:
            raise UsageError(f"{where}: gpus.{name} is {gpu}, which has a table already; keep one")
        gpus[gpu] = _limits(rows, f"{where} gpus.{name}")
    return found, LimitScope(own, policies, gpus)


def _limits(table: dict[str, Any], where: str) -> Limits:
    """The limits of a table, limits of modules among them."""
    found = limits_of({name: rows for name, rows in table.items() if name != "modules"}, where)
    for pattern, rows in _named_tables(table.get("modules", {}), f"{where} modules").items():
        if not pattern:
            raise UsageError(f"{where} modules: an empty pattern fits no module; want one such as 'layers.*'")
        found |= limits_of(rows, f"{where} modules.{pattern}", pattern)
    return found


def _named_tables(value: Any, where: str) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(rows, dict) for rows in value.values()):
        raise UsageError(f"{where}: want a table per name, as in {where.rpartition(' ')[2]}.NAME")
    return value


def _gpus(names: Sequence[str | Path], where: str) -> list[Gpu]:
    try:
        return list(load_gpus(names))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


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
    if "dim" in options:
        options["dims"] = _texts(options.pop("dim"), f"{where}: dim")
    if "assume" in options:
        options["assume"] = _texts(options["assume"], f"{where}: assume")
    names = _texts(settings.get("gpu", []), f"{where}: gpu")
    gpus = _gpus([root / name if name.lower().endswith(".toml") else name for name in names], f"{where}: gpu")
    policies = [_policy(name, where) for name in _texts(settings.get("policy", []), f"{where}: policy")]
    return options, tuple(gpus), tuple(dict.fromkeys(policies))


# -- workloads ---------------------------------------------------------------------------------------------------------


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
    settings, scope = _table(row, where, _OF_WORKLOAD)
    if "target" not in settings:
        raise UsageError(f'{where} has no target; want one such as target = "model.py"')
    made = config.workload(name, settings["target"], *_how(settings, where, config.root), scope)
    serves = [key for key in made.options if key in SERVER and key != "cluster"]
    if made.load is None and serves:
        raise UsageError(f'{where}: {serves[0]} says how a model is served; add mode = "serve"')
    if "world" in made.options and OF_ONE_GPU in scope.names:
        raise UsageError(f"{where}: {OF_ONE_GPU} are not looked for in a program of many GPUs; leave the limit out")
    if made.load is not None and "world" in made.options:
        raise UsageError(f"{where}: world starts a program of many GPUs, and what is served has tp in its place")
    return made


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
    """The files of a pattern such as ``profiles/*/model.py``, relative to the root; a plain target as it is. Raises
    ``UsageError``: nothing matches."""
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
    for suffix in (".json", ".py", *FORMATS):
        title = title.removesuffix(suffix)
    return f"{title}.{name}" if name else title


# -- the command line --------------------------------------------------------------------------------------------------


def selected(
    config: GateConfig, targets: Sequence[str], gpus: Sequence[Gpu], policies: tuple[str, ...]
) -> list[GatedWorkload]:
    """The workloads that ``targets`` name, else the configured ones, on ``gpus`` and under ``policies`` where given.
    Raises ``UsageError``: there is no such workload, or two have one name."""
    configured = {workload.name: workload for workload in config.workloads}
    by_target = {workload.target: workload for workload in config.workloads}
    found: list[GatedWorkload] = []
    for text in targets:
        inside = _inside(text, config.root)
        known = configured.get(text) or by_target.get(inside)
        if known is not None:
            found.append(known)
        elif configured and not is_target(text):
            raise UsageError(f"no workload {text!r} in {config.source}; {suggest(text, configured, cutoff=0.5)}")
        else:
            found += [config.workload(workload_name(path), path) for path in expand(inside, config.root)]
    found = found if targets else list(config.workloads)
    names = [workload.name for workload in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two workloads are named {name}; name them in [tool.memwall.gate.workloads.NAME]")
    return [replace(w, gpus=tuple(gpus) or w.gpus, policies=policies or w.policies) for w in found]


def on_gpus_of(place: Path, workloads: Sequence[GatedWorkload]) -> list[GatedWorkload]:
    """Where no GPU is named and the baseline is one profile: on the GPUs that it was made for."""
    gpus = tuple(Profile.load(place).gpus)
    return [replace(workload, gpus=gpus or workload.gpus) for workload in workloads]


def base_of(config: GateConfig, asked: GateOptions) -> Path | str | None:
    """The path of the baseline, or a git ref; the command line overrides the configuration. Raises ``UsageError``: two
    bases are named, or none where one is to be written."""
    if asked.baseline is not None and asked.baseline_ref is not None:
        raise UsageError("--baseline and --baseline-ref are two baselines; give one")
    base: Path | str | None = config.baseline_ref if asked.baseline_ref is None else asked.baseline_ref
    if asked.baseline is not None:
        base = Path(asked.baseline)
    elif asked.baseline_ref is None and config.baseline is not None:
        base = config.root / config.baseline
    if asked.update and not isinstance(base, Path):
        raise UsageError(
            "--update writes a baseline: say where with --baseline PATH, or baseline = in the configuration"
        )
    return base


def _inside(target: str, root: Path) -> str:
    """A target of the command line relative to the root, where it is a path."""
    place, colon, name = target.rpartition(":")
    of_file = bool(colon) and place.endswith(".py")
    path = Path(place if of_file else target)
    if not path.is_absolute() and root == Path.cwd():
        return target
    full = Path.cwd() / path
    if not full.exists() and not any(sign in target for sign in "*?["):
        return target
    if not full.resolve().is_relative_to(root):
        return str(full)
    relative = full.resolve().relative_to(root).as_posix()
    return f"{relative}:{name}" if of_file else relative
