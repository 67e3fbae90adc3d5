"""Dataclasses → JSON Schema: the types that :mod:`memwall.core.structure` reads and writes, for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from memwall.core.structure import SavedAs, saved_of

_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"}, bool: {"type": "boolean"}, int: {"type": "integer"}, float: {"type": "number"}, Any: {},
}  # fmt: skip


def json_schema(cls: Any, title: str, name: str) -> dict[str, Any]:
    """The schema of a record of ``name`` (``memwall.profile/1``), or of a part of one (``measurement/1``), whose fields
    are those of a dataclass, or whose items are (``tuple[Cell, ...]``). Further keys are allowed: readers ignore
    them."""
    parts: dict[str, Any] = {}
    root = _object(cls, parts) if isinstance(cls, type) else _schema(cls, parts)
    if name.startswith("memwall."):
        own = {"schema": {"const": name}, "memwall_version": {"type": "string"}}
        root["properties"] = {**own, **root["properties"], **own}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"{name}: {title}"}
    head["description"] = "Base SI units, the unit in the key: seconds, bytes, FLOPs."
    return {**head, **root, "$defs": dict(sorted(parts.items()))}


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
