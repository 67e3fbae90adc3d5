"""Quantities measured on a CUDA device → its spec: the datasheet's peaks, the fractions that were reached, and the
constants of the utilization models that make them predict what was measured.

For a GPU that is not in the hardware table only the measured rates are known: they are its peaks. Of its utilization
constants, a copy, a triad and a sum give the share of the bandwidth that streams attain, and a square product the rate
of its dtype. The others are those of the nearest GPU, as in any file that leaves them out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from memwall.bench.calibrate.sampling import Quantity
from memwall.bench.calibrate.spec import Line, document, note, number, quoted
from memwall.core.graph import Pipe, contiguous
from memwall.hardware.constants import CONSTANTS, Constants, StreamConstants, names_of
from memwall.hardware.lookup import Gpu, load_gpu, match_device
from memwall.ops import Cost
from memwall.ops import table_calls as calls
from memwall.perfmodel.families import constants, table_of
from memwall.perfmodel.roofline import predict_cost

#: the fastest of these is the bandwidth of a GPU without a datasheet
_STREAM_NAMES = ("dram.copy", "dram.triad", "dram.read")


def cuda_spec(answer: Mapping[str, Any], quantities: Mapping[str, Quantity], job: Mapping[str, Any]) -> str:
    """The TOML text, in schema ``memwall.gpu/1``."""
    tables = _tables(answer, quantities)
    return document({**tables, **utilization_tables(_as_read(document(tables)), quantities)})


def _as_read(text: str) -> Gpu:
    """The device of a file with this text, with what it leaves out from similar GPUs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cuda.toml"
        path.write_text(text, encoding="utf-8")
        return load_gpu(path)


def _tables(answer: Mapping[str, Any], quantities: Mapping[str, Quantity]) -> dict[str, Sequence[Line]]:
    """All tables but those of utilization."""
    gpu = match_device(answer["name"])
    host = [
        _seconds("launch_overhead_s", quantities["launch"], "graph of adds of one element"),
        _seconds("dispatch_s", quantities["dispatch"], "eager adds issued by the CPU"),
    ]
    head = _head(answer, gpu)
    if gpu is None:
        return {"": head, **_rates(answer, quantities), "host": host}
    peaks = {
        f"peak_flop_per_s.{engine}": [
            Line(pipe.dtype, number(rate), gpu.sources.get(f"peak_flop_per_s.{pipe}", ""))
            for pipe, rate in gpu.peak_flop_per_s.items()
            if pipe.engine == engine
        ]
        for engine in ("tensor", "vector")
    }
    return {
        "": head, "compute": _compute(gpu), **peaks, "memory": _memory(gpu),
        "power": [Line("tdp_w", f"{gpu.tdp_w:g}", "the GPU's")] if gpu.tdp_w else [],
        "host": host, "achievable": [_triad(quantities, gpu.dram_bytes_per_s)],
        **{f"achievable.{engine}": _fractions(gpu, quantities, engine) for engine in ("tensor", "vector")},
    }  # fmt: skip


def _triad(quantities: Mapping[str, Quantity], dram_bytes_per_s: float) -> Line:
    quantity = quantities["dram.triad"]
    return Line("dram", _fraction(quantity.rate / dram_bytes_per_s), note(quantity, "triad"))


def _seconds(key: str, quantity: Quantity, what: str) -> Line:
    return Line(key, number(quantity.seconds), note(quantity, what))


def _head(answer: Mapping[str, Any], gpu: Gpu | None) -> list[Line]:
    base = gpu.name if gpu else "cuda"
    return [
        Line("schema", '"memwall.gpu/1"'), Line("name", quoted(f"{base}-measured")),
        Line("full_name", quoted(f"{answer['name']}, as measured"), f"memwall calibrate, torch {answer['torch']}"),
        Line("vendor", quoted(gpu.vendor if gpu else "NVIDIA")),
        Line("architecture", quoted(gpu.architecture if gpu else "unknown")),
        Line("compute_capability", quoted(answer["compute_capability"])), Line("calibration", '"measured"'),
    ]  # fmt: skip


def _compute(gpu: Gpu) -> list[Line]:
    return [
        Line("sm_count", str(gpu.sm_count), gpu.sources.get("compute.sm_count", "")),
        Line("boost_clock_hz", number(gpu.boost_clock_hz), gpu.sources.get("compute.boost_clock_hz", "")),
    ]


def _memory(gpu: Gpu) -> list[Line]:
    names = ("dram_bytes_per_s", "dram_bytes", "l2_bytes", "l2_bytes_per_s")
    values = {name: getattr(gpu, name) for name in names}
    return [
        Line(name, str(value) if isinstance(value, int) else number(value), gpu.sources.get(f"memory.{name}", ""))
        for name, value in values.items()
    ]  # fmt: skip


def _fractions(gpu: Gpu, quantities: Mapping[str, Quantity], engine: str) -> list[Line]:
    """A product's rate over the datasheet's peak of the pipe that it runs on."""
    lines = {}
    for name, quantity in quantities.items():
        kind, _, dtype = name.partition(".")
        pipe = gpu.ceiling_pipe(Pipe("tensor", dtype)) if kind == "product" else None
        if pipe is not None and pipe.engine == engine and pipe.dtype == dtype:
            reached = quantity.rate / gpu.peak_flop_per_s[pipe]
            lines[dtype] = Line(dtype, _fraction(reached), note(quantity, "square product"))
    return list(lines.values())


def _fraction(reached: float) -> str:
    """A fraction of a datasheet's number: more than all of it means that the datasheet is another GPU's."""
    return f"{min(reached, 1.0):.4f}"


def _rates(answer: Mapping[str, Any], quantities: Mapping[str, Quantity]) -> dict[str, list[Line]]:
    best = max((name for name in _STREAM_NAMES if name in quantities), key=lambda name: quantities[name].rate)
    lines: dict[str, list[Line]] = {"tensor": [], "vector": []}
    for name, quantity in quantities.items():
        kind, _, dtype = name.partition(".")
        if kind == "product":
            engine = "vector" if dtype in ("float32", "float64") else "tensor"
            lines[engine].append(Line(dtype, number(quantity.rate), note(quantity, "square product")))
    every = {
        engine: [Line(line.key, "1.0", "the peak is the rate that was measured") for line in found]
        for engine, found in lines.items()
    }
    return {
        "compute": [Line("sm_count", str(answer["sm_count"]))],
        **{f"peak_flop_per_s.{engine}": found for engine, found in lines.items()},
        "memory": [
            Line("dram_bytes_per_s", number(quantities[best].rate), note(quantities[best], best)),
            Line("dram_bytes", str(answer["dram_bytes"])),
        ],
        "achievable": [_triad(quantities, quantities[best].rate)],
        **{f"achievable.{engine}": found for engine, found in every.items()},
    }


# -- constants of the utilization --------------------------------------------------------------------------------------

#: constant of ``stream.elementwise`` -> what it is measured by, in words
_STREAMS = {"read": "sum", "triad": "triad", "copy": "copy"}
#: constants of products that are rates; a product gives one number, so they are scaled by one factor
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
    work = cost.launches[0]
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
    origin = f"{source} of {gpu.fitted_on.get(source, 'a similar GPU')}" if source else "a GPU without data"
    said = note(quantity, f"square product of {side}, {factor:.3f} times {origin}")
    lines = [
        Line(name, f"{value:.5g}", said if name in _RATES else f"as {origin}")
        for name, value in scaled(factor).items()
        if name in _RATES or source != table
    ]
    return table, lines


def _factor(time_s: Callable[[float], float], measured_s: float) -> float:
    """The factor of the rates for which the model predicts ``measured_s``, or an end of the range."""
    low, high = _LEAST, _MOST
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if time_s(middle) > measured_s else (low, middle)
    return high
