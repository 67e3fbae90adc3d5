"""The JSON schemas of what memwall writes, for other programs: made of the dataclasses that are saved, by the types
that :mod:`memwall.core.structure` reads and writes, and of the options of a step. The gate's alone is a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING
from importlib import import_module
from importlib.resources import files
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from memwall.core.question import Option, options_of
from memwall.core.structure import SavedAs, saved_of
from memwall.wings import questions_of_wings, records_of_wings

#: record -> module and name of the dataclass that is saved (or of a list of one), and what it is
RECORDS: Mapping[str, tuple[str, str]] = {
    "profile": ("record.format.SavedProfile", "a traced workload, its costs and its time on each GPU"),
    "measurement": (
        "record.measurement.Measurement",
        "one run of one executor, kernel by kernel: an item of a profile's measurements",
    ),
    **records_of_wings(),
}
#: records that state no schema, a part of another and a list
_PARTS, _LISTS = ("measurement",), ("accuracy",)
_SETTINGS = "settings/1: how a step is traced and run, as keywords of memwall.profile and settings of a workload"
#: type of an option -> its name in a schema; whole numbers are numbers
_TYPES = {str: "string", bool: "boolean", float: "number", int: "integer"}
_PLAIN: dict[Any, dict[str, Any]] = {**{kind: {"type": name} for kind, name in _TYPES.items()}, Any: {}}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_DIALECT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}


def schema_text(name: str) -> str:
    """The schema of a record by its name, such as ``profile``; or of ``settings``."""
    if name == "gate":
        return files("memwall.report").joinpath("gate-1.schema.json").read_text(encoding="utf-8")
    if name == "settings":
        from memwall.step import Step

        return json.dumps(settings_schema(Step), indent=1) + "\n"
    place, title = RECORDS[name]
    module, _, saved = place.rpartition(".")
    cls: Any = getattr(import_module(f"memwall.{module}"), saved)
    family = f"{'' if name in _PARTS + _LISTS else 'memwall.'}{name}/1"
    return json.dumps(json_schema(tuple[cls, ...] if name in _LISTS else cls, title, family), indent=1) + "\n"


def settings_schema(question: Any) -> dict[str, Any]:
    """The schema of the settings of a workload in TOML, by the options of a question; ``$defs`` has other questions."""
    others = {name: {"type": "object", "properties": _properties(each)} for name, each in questions_of_wings().items()}
    head = {**_DIALECT, "title": _SETTINGS, "type": "object"}
    return {**head, "properties": _properties(question), "$defs": others}


def _properties(question: Any) -> dict[str, Any]:
    known = {said.flag or name: said for name, said in options_of(question).items() if said.help}
    return {name: _property(said) for name, said in known.items()}


def _property(said: Option) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [
        {"type": name}
        for kind, name in _TYPES.items()
        if kind in said.types and not (kind is int and float in said.types)
    ]
    if said.several:
        kinds = [*kinds, {"type": "array", "items": kinds[0]}] if int in said.types else [_TEXTS]
    if said.choices:
        kinds = [{"enum": [*said.choices]}]
    if said.default is None:
        kinds.append({"type": "null"})
    return {**(kinds[0] if len(kinds) == 1 else {"anyOf": kinds}), "description": said.help}


def json_schema(cls: Any, title: str, name: str) -> dict[str, Any]:
    """The schema of a record of ``name`` (``memwall.profile/1``), or of a part of one (``measurement/1``), whose fields
    are a dataclass', or whose items are (``tuple[Cell, ...]``). Further keys are allowed: readers ignore
    them."""
    parts: dict[str, Any] = {}
    root = _object(cls, parts) if isinstance(cls, type) else _schema(cls, parts)
    if name.startswith("memwall."):
        own = {"schema": {"const": name}, "memwall_version": {"type": "string"}}
        root["properties"] = {**own, **root["properties"], **own}
    head = {"title": f"{name}: {title}", "description": "Base SI units, the unit in the key: seconds, bytes, FLOPs."}
    return {**_DIALECT, **head, **root, "$defs": dict(sorted(parts.items()))}


def _object(cls: type, parts: dict[str, Any]) -> dict[str, Any]:
    own = saved_of(cls)
    required = [each.key for each in own if each.default is MISSING]
    properties = {each.key: _schema(each.hint, parts) for each in own}
    return {"type": "object", "required": required, "properties": properties}


def _schema(hint: Any, parts: dict[str, Any]) -> dict[str, Any]:
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        if form := next((each for each in arguments[1:] if isinstance(each, SavedAs)), None):
            return _schema(form.hint, parts)
        known = next((check.choices for check in arguments[1:] if hasattr(check, "choices")), None)
        return {"enum": [*known]} if known else _schema(arguments[0], parts)
    if origin in (Union, UnionType):
        inner = _schema(next(a for a in arguments if a is not NoneType), parts)
        return {"anyOf": [inner, {"type": "null"}]} if NoneType in arguments else inner
    if origin in (tuple, list):
        return {"type": "array", "items": _schema(arguments[0], parts)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], parts)}
    name = hint.__name__.lstrip("_")
    if name not in parts:
        parts[name] = {}
        parts[name] = _object(hint, parts)
    return {"$ref": f"#/$defs/{name}"}
