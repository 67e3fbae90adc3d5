"""Quantities measured on a CUDA device → those constants of its utilization (:mod:`memwall.ops.launches`) that they
tell.

A copy, a triad and a sum tell what streams reach of the bandwidth; a square product tells the rate of its dtype. What
they do not tell is another board's, as in any file that leaves it out (:func:`memwall.hardware.lookup.inherit`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace

from memwall.bench.calibrate.sampling import Quantity
from memwall.bench.calibrate.toml_text import Line, note
from memwall.core.graph import Pipe, contiguous
from memwall.hardware.constants import CONSTANTS, Constants, StreamConstants, names_of
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.ops import table_calls as calls
from memwall.perfmodel.families import constants, table_of
from memwall.perfmodel.roofline import predict_cost, works_of

#: constant of ``stream.elementwise`` -> what tells it, in words
_STREAMS = {"read": "sum", "triad": "triad", "copy": "copy"}
#: constants of products that are rates; a product tells one number, so they are scaled by one factor
_RATES = ("plateau", "sustained", "flop_per_joule")
#: between which the factor is looked for, in so many halvings
_LEAST, _MOST, _HALVINGS = 0.05, 2.0, 40


def utilization_tables(gpu: Gpu, quantities: Mapping[str, Quantity]) -> dict[str, list[Line]]:
    """The tables ``utilization.*`` of a file; ``gpu`` is what the file says without them."""
    if not gpu.has_multiprocessors:
        return {}
    tables = {"utilization.stream.elementwise": _streams(gpu, quantities)}
    for name, quantity in quantities.items():
        kind, _, dtype = name.partition(".")
        if kind == "product" and gpu.ceiling_pipe(Pipe("tensor", dtype)).dtype == dtype:
            table, lines = _product(gpu, dtype, quantity)
            tables[f"utilization.{table}"] = lines
    return tables


def _within(kind: type[Constants], name: str, value: float) -> float:
    """The value, or the end of the range that the constant may have."""
    known = next(item.metadata for item in fields(kind) if item.name == name)
    return float(min(max(value, known["low"]), known["high"]))


def _streams(gpu: Gpu, quantities: Mapping[str, Quantity]) -> list[Line]:
    """Fractions of the bandwidth; the launch in them is a few us of arrays of 1 GiB."""
    return [
        Line(
            key,
            f"{_within(StreamConstants, key, quantity.rate / gpu.dram_bytes_per_s):.4f}",
            note(quantity, f"{what} of large arrays"),
        )
        for key, what in _STREAMS.items()
        if (quantity := quantities.get(f"dram.{key}"))
    ]  # fmt: skip


def square_product(side: int, dtype: str) -> Cost:
    """The cost of the product that was timed."""
    stored = "float32" if dtype == "tf32" else dtype
    name = "aten._int_mm.default" if dtype == "int8" else "aten.mm.default"
    operand = contiguous((side, side), stored)
    result = contiguous((side, side), "int32" if dtype == "int8" else stored)
    return calls.cost(name, (("self", operand), ("mat2", operand)), [result], allow_tf32=dtype == "tf32")


def _product(gpu: Gpu, dtype: str, quantity: Quantity) -> tuple[str, list[Line]]:
    """The table of a dtype's products, and the rates with which the model takes as long as was measured."""
    side = round((quantity.work / 2) ** (1 / 3))
    cost = square_product(side, dtype)
    work = works_of(cost)[0]
    kind, table = CONSTANTS[work.FAMILY], f"{work.FAMILY}.{work.variant}"
    known, source = constants(kind, gpu, work.variant), table_of(kind, gpu, work.variant)
    held = {name: getattr(known, name) for name in names_of(kind) if not name.startswith("interval")}

    def scaled(factor: float) -> dict[str, float]:
        rates = {name: _within(kind, name, factor * held[name]) for name in _RATES if name in held}
        return held | rates

    def time_s(factor: float) -> float:
        values = {f"{table}.{name}": value for name, value in scaled(factor).items()}
        return predict_cost(cost, replace(gpu, utilization={**gpu.utilization, **values})).time_s

    factor = _factor(time_s, quantity.seconds)
    origin = f"{source} of {gpu.fitted_on.get(source, 'a similar board')}" if source else "a board without data"
    said = note(quantity, f"square product of {side}, {factor:.3f} times {origin}")
    lines = [
        Line(name, f"{value:.5g}", said if name in _RATES else f"as {origin}")
        for name, value in scaled(factor).items()
        if name in _RATES or source != table
    ]
    return table, lines


def _factor(time_s: Callable[[float], float], measured_s: float) -> float:
    """The factor of the rates with which the model takes ``measured_s``; an end of the range where none does."""
    low, high = _LEAST, _MOST
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if time_s(middle) > measured_s else (low, middle)
    return high
