"""Which argument each recorded value of an op is: schemas as text, so that reading a trace needs no torch.

A trace gives an op's name without its overload, and a list of values without names. ``schemas.txt`` holds the schemas
of the ops of torch that have a cost formula (``tools/op_schemas.py`` writes it); schemas of other libraries are in
:mod:`memwall.ops.schemas`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from operator import itemgetter
from typing import NamedTuple

from memwall.core.graph import ITEMSIZE
from memwall.ops.registry import find_row
from memwall.ops.schemas import Schema, by_name, library_schemas, parse
from memwall.traces.records import TracedOp

#: C++ name of a recorded type -> dtype; other types are not tensors
DTYPES: Mapping[str, str] = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "at::Half": "float16",
    "c10::BFloat16": "bfloat16", "at::BFloat16": "bfloat16", "long int": "int64", "long": "int64",
    "long long": "int64", "int": "int32", "short int": "int16", "short": "int16", "unsigned char": "uint8",
    "signed char": "int8", "char": "int8", "bool": "bool", "unsigned short": "uint16",
    "short unsigned int": "uint16", "unsigned int": "uint32", "unsigned long": "uint64",
    "long unsigned int": "uint64", "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
    "c10::complex<c10::Half>": "complex32",
    **{f"c10::{name.replace('float', 'Float')}": name for name in ITEMSIZE if name.startswith("float8")},
}  # fmt: skip

#: torch's own names of dtypes, which some writers record; a value without sizes is then a number
SCALAR_TYPES: Mapping[str, str] = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Byte": "uint8", "Char": "int8", "Bool": "bool",
}  # fmt: skip


class Bound(NamedTuple):
    """A recorded call with its arguments by name.

    ``places`` are the indices of the recorded values; ``out`` the indices of the results of an ``out=`` call.
    """

    op: TracedOp
    schema: Schema
    places: Mapping[str, int]
    out: tuple[int, ...]


def bind(op: TracedOp) -> Bound | None:
    """The op's values under the names of the schema that they fit best; None if no schema is known."""
    if op.dims and len(op.concrete) > len(op.dims):  # the sizes of tensors alone, the values of all
        op = replace(op, dims=op.dims + ((),) * (len(op.concrete) - len(op.dims)))
    count, schema = len(op.dims), _best(op)
    out: tuple[int, ...] = ()
    if schema is None and count and _kind(op, count - 1) == "tensor":  # arange(0, 8, 1, out=...)
        count, out = count - 1, (count - 1,)
        schema = _best(replace(op, dims=op.dims[:count]))
    if schema is None:
        return None
    extra = range(len(schema.arguments), count)
    if len(extra) <= max(schema.results, 1):
        out = out or tuple(i for i in extra if _kind(op, i) == "tensor")
    return Bound(op, schema, {argument.name: i for i, argument in enumerate(schema.arguments[:count])}, out)


def _best(op: TracedOp) -> Schema | None:
    scores = [(score, schema) for schema in schemas_of(op.name) if (score := _fit(schema, op)) is not None]
    return max(scores, key=itemgetter(0))[1] if scores else None


def _fit(schema: Schema, op: TracedOp) -> int | None:
    """How well a schema fits the recorded values; None if a tensor is passed for a value or vice versa."""
    count = len(schema.arguments)
    beyond = len(op.dims) - count
    matched = 0
    for i, argument in enumerate(schema.arguments[: len(op.dims)]):
        kind = _kind(op, i)
        if kind != "none" and kind != argument.kind and not (kind == "value" and argument.kind == "tensor"):
            return None
        is_list = i < len(op.types) and op.types[i] == "ScalarList"
        matched += kind == argument.kind and (kind != "value" or is_list == argument.several)
    results = all(_kind(op, i) == "tensor" for i in range(count, len(op.dims)))
    return 2 * matched - abs(beyond) + 4 * (beyond == 0 or (0 < beyond <= schema.results and results))


def _kind(op: TracedOp, place: int) -> str:
    """What was recorded: ``tensor``, ``list`` of tensors, ``value``, or ``none`` if unknown."""
    type_name = op.types[place] if place < len(op.types) else ""
    dims = op.dims[place]
    if dims and isinstance(dims[0], tuple):
        return "list"
    if type_name in DTYPES:
        return "tensor"
    if "TensorList" in type_name:
        return "list"
    if dims:
        return "tensor"
    return "none" if type_name in ("", "GenericList", "None", "OptionalTensorList") else "value"


@cache
def schemas_of(name: str) -> tuple[Schema, ...]:
    """The schemas of an op as a trace names it: ``aten::add``; an ``autograd.Function`` has no namespace there."""
    key = name if "::" in name else f"autograd_function::{name}"
    row = find_row(key.replace("::", "."))
    own = (row.schema,) if row and row.schema else ()
    return (*(parse(line) for line in (*_lines().get(key, ()), *own)), *library_schemas().get(key, ()))


@cache
def _lines() -> Mapping[str, tuple[str, ...]]:
    own = (files("memwall.traces") / "schemas.txt").read_text(encoding="utf-8").splitlines()
    return by_name([f"aten::{line}" for line in own])
