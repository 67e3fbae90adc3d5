"""Arrays and parameters of a jaxpr in the terms of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def shape_of(aval: Any) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of an array; of keys the shape and dtype of their words, of a token none."""
    dtype = getattr(aval, "dtype", None)
    shape = tuple(getattr(aval, "shape", ()))
    base = getattr(getattr(dtype, "_impl", None), "key_shape", None)
    if base is not None:
        return (*shape, *base), "uint32"
    if dtype is None:
        return (0,), "bool"
    return shape, dtype_name(dtype)


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of JAX as graphs have it; ``float0`` has no elements."""
    name = str(np.dtype(dtype).name if isinstance(dtype, np.dtype | type) else dtype)
    return {"float0": "bool", "void": "bool", "float4_e2m1fn": "float4_e2m1fn_x2"}.get(name, name)


def plain_parameters(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a primitive as plain JSON types; all others, such as functions, are left out."""
    found = {}
    for name, value in params.items():
        plain = _plain(value)
        if plain is not _NOT_PLAIN and plain is not None:
            found[name] = plain
    return found


_NOT_PLAIN = object()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        items = [_plain(each) for each in value]
        return _NOT_PLAIN if any(each is _NOT_PLAIN for each in items) else items
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return dtype_name(value)
    name = getattr(value, "name", None)  # members of an enumeration: a precision, a mode
    return name if isinstance(name, str) and hasattr(value, "value") else _NOT_PLAIN
