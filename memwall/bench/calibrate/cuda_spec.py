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
from memwall.bench.calibrate.spec import Line, document, fraction, head, note, number
from memwall.core.graph import Pipe, contiguous
from memwall.hardware.constants import CONSTANTS, Constants, StreamConstants, names_of
from memwall.hardware.lookup import Gpu, load_gpu, match_device
from memwall.ops import Cost
from memwall.ops import table_calls as calls
from memwall.perfmodel.families import constants, table_of
from memwall.perfmodel.roofline import predict_cost

Tables = dict[str, Sequence[Line]]


def cuda_spec(answer: Mapping[str, Any], quantities: Mapping[str, Quantity], job: Mapping[str, Any]) -> str:
    """The TOML text, in schema ``memwall.gpu/1``."""
    gpu = match_device(answer["name"])
    base = gpu.name if gpu else "cuda"
    title, how = f"{answer['name']}, as measured", f"memwall calibrate, torch {answer['torch']}"
    maker = (gpu.vendor, gpu.architecture) if gpu else ("NVIDIA", "unknown")
    capability = Line("compute_capability", answer["compute_capability"])
    issued = (("launch_overhead_s", "launch", "graph of adds of one element"),
              ("dispatch_s", "dispatch", "eager adds issued by the CPU"))  # fmt: skip
    host = [Line(key, number(quantities[of].seconds), note(quantities[of], what)) for key, of, what in issued]
    tables: Tables = {
        "": head(f"{base}-measured", title, how, *maker, capability),
        **(_of_datasheet(gpu, quantities, host) if gpu else _as_measured(answer, quantities, host)),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cuda.toml"
        path.write_text(document(tables), encoding="utf-8")
        return document({**tables, **_utilization(load_gpu(path), quantities)})


def _of_datasheet(gpu: Gpu, quantities: Mapping[str, Quantity], host: Sequence[Line]) -> Tables:
    """A known GPU's own numbers, and the fractions of them that were reached."""

    def lines(table: str, *names: str) -> list[Line]:
        values = {name: getattr(gpu, name) for name in names}
        return [
            Line(name, str(value) if isinstance(value, int) else number(value), gpu.sources.get(f"{table}.{name}", ""))
            for name, value in values.items()
        ]

    peaks: dict[str, list[Line]] = {"tensor": [], "vector": []}
    reached: dict[str, list[Line]] = {"tensor": [], "vector": []}
    for pipe, rate in gpu.peak_flop_per_s.items():
        peaks[pipe.engine].append(Line(pipe.dtype, number(rate), gpu.sources.get(f"peak_flop_per_s.{pipe}", "")))
    for dtype, quantity in _products(quantities).items():
        pipe = gpu.ceiling_pipe(Pipe("tensor", dtype))
        if pipe.dtype == dtype:
            share = fraction(quantity.rate / gpu.peak_flop_per_s[pipe])
            reached[pipe.engine].append(Line(dtype, share, note(quantity, "square product")))
    return {
        "compute": lines("compute", "sm_count", "boost_clock_hz"),
        **{f"peak_flop_per_s.{engine}": found for engine, found in peaks.items()},
        "memory": lines("memory", "dram_bytes_per_s", "dram_bytes", "l2_bytes", "l2_bytes_per_s"),
        "power": [Line("tdp_w", f"{gpu.tdp_w:g}", "the GPU's")] if gpu.tdp_w else [],
        "host": host, "achievable": [_triad(quantities, gpu.dram_bytes_per_s)],
        **{f"achievable.{engine}": found for engine, found in reached.items()},
    }  # fmt: skip


def _as_measured(answer: Mapping[str, Any], quantities: Mapping[str, Quantity], host: Sequence[Line]) -> Tables:
    """The rates of a GPU without a datasheet, which are its peaks."""
    best = max((f"dram.{key}" for key in _STREAMS if f"dram.{key}" in quantities), key=lambda n: quantities[n].rate)
    peaks: dict[str, list[Line]] = {"tensor": [], "vector": []}
    for dtype, quantity in _products(quantities).items():
        engine = "vector" if dtype in ("float32", "float64") else "tensor"
        peaks[engine].append(Line(dtype, number(quantity.rate), note(quantity, "square product")))
    own = "the peak is the rate that was measured"
    return {
        "compute": [Line("sm_count", str(answer["sm_count"]))],
        **{f"peak_flop_per_s.{engine}": found for engine, found in peaks.items()},
        "memory": [
            Line("dram_bytes_per_s", number(quantities[best].rate), note(quantities[best], best)),
            Line("dram_bytes", str(answer["dram_bytes"])),
        ],
        "achievable": [_triad(quantities, quantities[best].rate)],
        **{f"achievable.{engine}": [Line(p.key, "1.0", own) for p in found] for engine, found in peaks.items()},
        "host": host,
    }


def _triad(quantities: Mapping[str, Quantity], dram_bytes_per_s: float) -> Line:
    quantity = quantities["dram.triad"]
    return Line("dram", fraction(quantity.rate / dram_bytes_per_s), note(quantity, "triad"))


def _products(quantities: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """The square products by dtype."""
    return {n.partition(".")[2]: quantity for n, quantity in quantities.items() if n.startswith("product.")}


# -- constants of the utilization --------------------------------------------------------------------------------------

#: constant of ``stream.elementwise`` -> what it is measured by, in words
_STREAMS = {"read": "sum", "triad": "triad", "copy": "copy"}
#: constants of products that are rates; a product gives one number, so they are scaled by one factor
_RATES = ("plateau", "sustained", "flop_per_joule")
#: between which the factor is looked for, in so many halvings
_LEAST, _MOST, _HALVINGS = 0.05, 2.0, 40


def _utilization(gpu: Gpu, quantities: Mapping[str, Quantity]) -> Tables:
    """The tables ``utilization.*`` of a file; ``gpu`` is what the file says without them. Streams are fractions of the
    bandwidth; the launch in them is a few us of arrays of 1 GiB."""
    if not gpu.has_multiprocessors:
        return {}
    streams = []
    for key, what in _STREAMS.items():
        if quantity := quantities.get(f"dram.{key}"):
            share = _within(StreamConstants, key, quantity.rate / gpu.dram_bytes_per_s)
            streams.append(Line(key, f"{share:.4f}", note(quantity, f"{what} of large arrays")))
    tables: Tables = {"utilization.stream.elementwise": streams}
    for dtype, quantity in _products(quantities).items():
        if gpu.ceiling_pipe(Pipe("tensor", dtype)).dtype == dtype:
            table, lines = _product(gpu, dtype, quantity)
            tables[f"utilization.{table}"] = lines
    return tables


def _within(kind: type[Constants], name: str, value: float) -> float:
    """The value, or the end of the range that the constant may have."""
    known = next(item.metadata for item in fields(kind) if item.name == name)
    return float(min(max(value, known["low"]), known["high"]))


def _product(gpu: Gpu, dtype: str, quantity: Quantity) -> tuple[str, list[Line]]:
    """The table of a dtype's products, and the rates with which the model takes as long as was measured."""
    side = round((quantity.work / 2) ** (1 / 3))
    cost = _square_product(side, dtype)
    work = cost.launches[0]
    kind, table = CONSTANTS[work.FAMILY], f"{work.FAMILY}.{work.variant}"
    known, source = constants(kind, gpu, work.variant), table_of(kind, gpu, work.variant)
    held = {name: getattr(known, name) for name in names_of(kind) if not name.startswith("interval")}

    def scaled(factor: float) -> dict[str, float]:
        return held | {name: _within(kind, name, factor * held[name]) for name in _RATES if name in held}

    def time_s(factor: float) -> float:
        values = {f"{table}.{name}": value for name, value in scaled(factor).items()}
        return predict_cost(cost, replace(gpu, utilization={**gpu.utilization, **values})).time_s

    factor = _factor(time_s, quantity.seconds)
    origin = f"{source} of {gpu.fitted_on.get(source, 'a similar GPU')}" if source else "a GPU without data"
    said = note(quantity, f"square product of {side}, {factor:.3f} times {origin}")
    return table, [
        Line(name, f"{value:.5g}", said if name in _RATES else f"as {origin}")
        for name, value in scaled(factor).items()
        if name in _RATES or source != table
    ]


def _square_product(side: int, dtype: str) -> Cost:
    """The cost of the product that was timed."""
    name, stored, made = "aten.mm.default", "float32" if dtype == "tf32" else dtype, ""
    if dtype == "int8":
        name, made = "aten._int_mm.default", "int32"
    operand, result = contiguous((side, side), stored), contiguous((side, side), made or stored)
    return calls.cost(name, (("self", operand), ("mat2", operand)), [result], allow_tf32=dtype == "tf32")


def _factor(time_s: Callable[[float], float], measured_s: float) -> float:
    """The factor of the rates for which the model predicts ``measured_s``, or an end of the range."""
    low, high = _LEAST, _MOST
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if time_s(middle) > measured_s else (low, middle)
    return high
