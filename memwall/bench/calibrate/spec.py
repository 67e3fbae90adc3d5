"""Quantities → a spec in schema ``memwall.gpu/1``: lines ``key = value  # how it was measured``, aligned in each table.

Of a CUDA device it has the datasheet's peaks, the fractions that were reached, and the constants of the utilization
models that make them predict what was measured. For a GPU that is not in the hardware table only the measured rates are
known: they are its peaks. Of its utilization constants, a copy, a triad and a sum give the share of the bandwidth that
streams attain, and a square product the rate of its dtype. The others are the nearest GPU's, as in any file that
leaves them out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from memwall.bench.calibrate.sampling import WIDE, SampledQuantity
from memwall.bench.machine import cpu_name, memory_bytes, vendor_name
from memwall.core.graph import Pipe, contiguous
from memwall.core.units import counted
from memwall.hardware.constants import CONSTANTS, Constants, StreamConstants, names_of
from memwall.hardware.gpu import KERNELS, PRODUCTS
from memwall.hardware.lookup import Gpu, load_gpu, match_device
from memwall.ops import Cost
from memwall.ops import table_calls as calls
from memwall.perfmodel.families import constants, table_of
from memwall.perfmodel.roofline import predict_cost

#: quantities from which the highest rate of float32 is taken
_FLOAT32 = ("product.float32", "linear.float32", "peak.float32", "pointwise_convolution",
            "pointwise_convolution_batched", "window_convolution", "strided_convolution")  # fmt: skip
_DRAM = ("dram.copy", "dram.triad", "dram.read", "dram.in_place")


class SpecLine(NamedTuple):
    """``key = value  # comment``; the value is TOML already."""

    key: str
    value: str
    comment: str = ""


def document(tables: Mapping[str, Sequence[SpecLine]]) -> str:
    """A TOML document of tables by dotted name, the unnamed first; empty ones are left out."""
    return "\n".join(_table(name, lines) for name, lines in tables.items() if lines)


def _table(name: str, lines: Sequence[SpecLine]) -> str:
    texts = [f"{line.key} = {line.value}" for line in lines]
    width = max(map(len, texts))
    body = [f"{t:{width}}  # {line.comment}" if line.comment else t for t, line in zip(texts, lines, strict=True)]
    return "\n".join(([f"[{name}]"] if name else []) + body) + "\n"


def head(name: str, title: str, how: str, vendor: str, architecture: str, *more: SpecLine) -> list[SpecLine]:
    """The unnamed table: what was measured, and how."""
    return [
        SpecLine("schema", '"memwall.gpu/1"'),
        SpecLine("name", quoted(name)),
        SpecLine("full_name", quoted(title), how),
        SpecLine("vendor", quoted(vendor)),
        SpecLine("architecture", quoted(architecture)),
        *(SpecLine(line.key, quoted(line.value)) for line in more),
        SpecLine("calibration", '"measured"'),
    ]


def quoted(text: str) -> str:
    """A TOML string, without characters that it cannot contain."""
    return '"' + "".join(char for char in text if char.isprintable() and char not in '"\\') + '"'


def number(value: float) -> str:
    """Four digits."""
    return f"{value:.3e}"


def fraction(reached: float) -> str:
    """A fraction of a peak; one of a datasheet that is exceeded is another GPU's."""
    return f"{min(reached, 1.0):.4f}"


def note(quantity: SampledQuantity, what: str) -> str:
    """How a number was measured, and the spread of its samples."""
    wide = ": uncertain" if quantity.spread > WIDE else ""
    dropped = f", {quantity.rejected} dropped" if quantity.rejected else ""
    return f"{what}; {quantity.samples} samples{dropped} within {quantity.spread:.1%}{wide}"


# -- a CPU's spec ------------------------------------------------------------------------------------------------------


def cpu_spec(answer: Mapping[str, Any], quantities: Mapping[str, SampledQuantity], job: Mapping[str, Any]) -> str:
    """The TOML text."""
    rates = _Rates(quantities)
    caches, threads = answer["cache_bytes"], str(job["threads"])
    float32, dram = rates.best(_FLOAT32), rates.best(_DRAM)
    low = [dtype for dtype in ("bfloat16", "float16", "int8") if f"product.{dtype}" in quantities]
    linear = "linear layer of 256 x 1024 x 1024 with its bias over the peak"
    own_rate = "the peak is a matmul's own rate"
    busy = "; other processes ran meanwhile (--accept-busy)" if job["accept_busy"] else ""
    title = f"{cpu_name()} ({counted(job['threads'], 'thread')})"
    how = f"memwall calibrate, torch {answer['torch']}, {answer['isa']}{busy}"
    return document(
        {
            "": [*head("cpu", title, how, vendor_name(), "cpu"), SpecLine("aliases", "[]")],
            "compute": [SpecLine("sm_count", threads, "threads that a kernel uses")],
            "peak_flop_per_s.tensor": [rates.peak(dtype, f"product.{dtype}") for dtype in low],
            "peak_flop_per_s.vector": [rates.peak("float32", float32), rates.peak("float64", "product.float64")],
            "memory": [
                rates.line("dram_bytes_per_s", dram, f"{dram}, the fastest of four"),
                SpecLine("dram_bytes", str(memory_bytes()), "as the system states it"),
                *(rates.last_cache(caches) if caches else ()),
            ],
            "host": [
                SpecLine("launch_overhead_s", number(rates.call_s), note(quantities["call"], "add of one element")),
                SpecLine("dispatch_s", "0", "a CPU runs an op when it is called: the line above has it all"),
            ],
            "achievable": [rates.fraction("dram", "dram.triad", dram, "triad over the fastest")],
            "achievable.tensor": [
                rates.fraction("bfloat16", "linear.bfloat16", "product.bfloat16", linear),
                *(SpecLine(dtype, "1.0", own_rate) for dtype in low if dtype != "bfloat16"),
            ],
            "achievable.vector": [
                rates.fraction("float32", "linear.float32", float32, linear),
                SpecLine("float64", "1.0", own_rate),
            ],
            "cpu": [SpecLine("threads", threads), rates.exposed_traffic()],
            "cpu.cache_bytes": [SpecLine(name, str(size)) for name, size in caches.items()],
            "cpu.cache_bytes_per_s": [
                rates.line(name, f"{name}.triad", "triad of three arrays in half of it")
                for name in caches
                if f"{name}.triad" in quantities
            ],
            "cpu.flop_per_s": rates.lines(PRODUCTS, "float32 FLOP/s"),
            "cpu.elements_per_s": rates.lines(KERNELS, "elements/s of eager float32, in the second cache"),
        }
    )


class _Rates:
    """Work per second of each kernel, without its call."""

    def __init__(self, quantities: Mapping[str, SampledQuantity]) -> None:
        self.quantities = quantities
        #: seconds of a call that does next to nothing: no part of a kernel's rate
        self.call_s = quantities["call"].seconds

    def __getitem__(self, name: str) -> float:
        quantity = self.quantities[name]
        return quantity.work / max(quantity.seconds - self.call_s, quantity.seconds / 2)

    def best(self, names: Iterable[str]) -> str:
        """The fastest of the names that were measured."""
        return max((name for name in names if name in self.quantities), key=self.__getitem__)

    def line(self, key: str, name: str, what: str) -> SpecLine:
        """A rate and how it was measured."""
        return SpecLine(key, number(self[name]), note(self.quantities[name], what))

    def lines(self, names: Sequence[str], what: str) -> list[SpecLine]:
        """The rates that were measured."""
        return [self.line(name, name, what) for name in names if name in self.quantities]

    def peak(self, dtype: str, name: str) -> SpecLine:
        """The highest rate of a dtype."""
        kernel = name.partition(".")[0].replace("_", " ")
        return self.line(dtype, name, f"{kernel}, the highest rate of {dtype} seen here")

    def fraction(self, key: str, name: str, peak: str, what: str) -> SpecLine:
        """How much of a peak is reached."""
        return SpecLine(key, fraction(self[name] / self[peak]), note(self.quantities[name], what))

    def last_cache(self, caches: Mapping[str, int]) -> list[SpecLine]:
        """The size of the last cache, and the rate of the fastest."""
        last = list(caches)[-1]
        inner = self.best(name for name in self.quantities if name.endswith((".triad", ".in_place")))
        return [
            SpecLine("l2_bytes", str(caches[last]), f"{last}, the last cache, as the system states it"),
            self.line("l2_bytes_per_s", inner, f"{inner}, the fastest cache"),
        ]

    def exposed_traffic(self) -> SpecLine:
        """The fraction of a weight's DRAM time that a linear layer does not hide."""
        cached, dram = self.quantities["weights.cached"], self.quantities["weights.dram"]
        exposed = max(dram.seconds - cached.seconds, 0.0) / (dram.work / self["dram.triad"])
        what = "linear layer of 64 rows, its weight in DRAM and in a cache: the difference over the weight's DRAM time"
        return SpecLine("exposed_traffic", f"{exposed:.3f}", note(dram, what))


# -- a CUDA device's spec ----------------------------------------------------------------------------------------------

Tables = dict[str, Sequence[SpecLine]]


def cuda_spec(answer: Mapping[str, Any], quantities: Mapping[str, SampledQuantity], job: Mapping[str, Any]) -> str:
    """The TOML text, in schema ``memwall.gpu/1``."""
    gpu = match_device(answer["name"])
    base = gpu.name if gpu else "cuda"
    title, how = f"{answer['name']}, as measured", f"memwall calibrate, torch {answer['torch']}"
    maker = (gpu.vendor, gpu.architecture) if gpu else ("NVIDIA", "unknown")
    capability = SpecLine("compute_capability", answer["compute_capability"])
    issued = (
        ("launch_overhead_s", "launch", "graph of adds of one element"),
        ("dispatch_s", "dispatch", "eager adds issued by the CPU"),
    )
    host = [SpecLine(key, number(quantities[of].seconds), note(quantities[of], what)) for key, of, what in issued]
    tables: Tables = {
        "": head(f"{base}-measured", title, how, *maker, capability),
        **(_of_datasheet(gpu, quantities, host) if gpu else _as_measured(answer, quantities, host)),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cuda.toml"
        path.write_text(document(tables), encoding="utf-8")
        return document({**tables, **_utilization(load_gpu(path), quantities)})


def _of_datasheet(gpu: Gpu, quantities: Mapping[str, SampledQuantity], host: Sequence[SpecLine]) -> Tables:
    """A known GPU's own numbers, and the fractions of them that were reached."""

    def lines(table: str, *names: str) -> list[SpecLine]:
        values = {name: getattr(gpu, name) for name in names}
        return [
            SpecLine(
                name, str(value) if isinstance(value, int) else number(value), gpu.sources.get(f"{table}.{name}", "")
            )
            for name, value in values.items()
        ]

    peaks: dict[str, list[SpecLine]] = {"tensor": [], "vector": []}
    reached: dict[str, list[SpecLine]] = {"tensor": [], "vector": []}
    for pipe, rate in gpu.peak_flop_per_s.items():
        peaks[pipe.engine].append(SpecLine(pipe.dtype, number(rate), gpu.sources.get(f"peak_flop_per_s.{pipe}", "")))
    for dtype, quantity in _products(quantities).items():
        pipe = gpu.ceiling_pipe(Pipe("tensor", dtype))
        if pipe.dtype == dtype:
            share = fraction(quantity.rate / gpu.peak_flop_per_s[pipe])
            reached[pipe.engine].append(SpecLine(dtype, share, note(quantity, "square matmul")))
    return {
        "compute": lines("compute", "sm_count", "boost_clock_hz"),
        **{f"peak_flop_per_s.{engine}": found for engine, found in peaks.items()},
        "memory": lines("memory", "dram_bytes_per_s", "dram_bytes", "l2_bytes", "l2_bytes_per_s"),
        "power": [SpecLine("tdp_w", f"{gpu.tdp_w:g}", "the GPU's")] if gpu.tdp_w else [],
        "host": host,
        "achievable": [_triad(quantities, gpu.dram_bytes_per_s)],
        **{f"achievable.{engine}": found for engine, found in reached.items()},
    }


def _as_measured(
    answer: Mapping[str, Any], quantities: Mapping[str, SampledQuantity], host: Sequence[SpecLine]
) -> Tables:
    """The rates of a GPU without a datasheet, which are its peaks."""
    best = max((f"dram.{key}" for key in _STREAMS if f"dram.{key}" in quantities), key=lambda n: quantities[n].rate)
    peaks: dict[str, list[SpecLine]] = {"tensor": [], "vector": []}
    for dtype, quantity in _products(quantities).items():
        engine = "vector" if dtype in ("float32", "float64") else "tensor"
        peaks[engine].append(SpecLine(dtype, number(quantity.rate), note(quantity, "square matmul")))
    own = "the peak is the rate that was measured"
    return {
        "compute": [SpecLine("sm_count", str(answer["sm_count"]))],
        **{f"peak_flop_per_s.{engine}": found for engine, found in peaks.items()},
        "memory": [
            SpecLine("dram_bytes_per_s", number(quantities[best].rate), note(quantities[best], best)),
            SpecLine("dram_bytes", str(answer["dram_bytes"])),
        ],
        "achievable": [_triad(quantities, quantities[best].rate)],
        **{f"achievable.{engine}": [SpecLine(p.key, "1.0", own) for p in found] for engine, found in peaks.items()},
        "host": host,
    }


def _triad(quantities: Mapping[str, SampledQuantity], dram_bytes_per_s: float) -> SpecLine:
    quantity = quantities["dram.triad"]
    return SpecLine("dram", fraction(quantity.rate / dram_bytes_per_s), note(quantity, "triad"))


def _products(quantities: Mapping[str, SampledQuantity]) -> dict[str, SampledQuantity]:
    """The square products by dtype."""
    return {n.partition(".")[2]: quantity for n, quantity in quantities.items() if n.startswith("product.")}


# -- constants of the utilization --------------------------------------------------------------------------------------

#: constant of ``stream.elementwise`` -> what it is measured by, in words
_STREAMS = {"read": "sum", "triad": "triad", "copy": "copy"}
#: constants of products that are rates; a product gives one number, so they are scaled by one factor
_RATES = ("plateau", "sustained", "flop_per_joule")
#: between which the factor is looked for, in so many halvings
_LEAST, _MOST, _HALVINGS = 0.05, 2.0, 40


def _utilization(gpu: Gpu, quantities: Mapping[str, SampledQuantity]) -> Tables:
    """The tables ``utilization.*`` of a file; ``gpu`` is what the file says without them. Streams are fractions of the
    bandwidth; the launch in them is a few us of arrays of 1 GiB."""
    if not gpu.has_multiprocessors:
        return {}
    streams = []
    for key, what in _STREAMS.items():
        if quantity := quantities.get(f"dram.{key}"):
            share = _within(StreamConstants, key, quantity.rate / gpu.dram_bytes_per_s)
            streams.append(SpecLine(key, f"{share:.4f}", note(quantity, f"{what} of large arrays")))
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


def _product(gpu: Gpu, dtype: str, quantity: SampledQuantity) -> tuple[str, list[SpecLine]]:
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
    said = note(quantity, f"square matmul of {side}, {factor:.3f} times {origin}")
    return table, [
        SpecLine(name, f"{value:.5g}", said if name in _RATES else f"as {origin}")
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
