"""Quantities measured on a CPU → its spec in schema ``memwall.gpu/1``, with a comment on each number; and the text of
any spec: lines ``key = value  # how it was measured``, aligned within a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from memwall.bench.calibrate.sampling import WIDE, Quantity
from memwall.bench.machine import cpu_name, memory_bytes, vendor_name
from memwall.hardware.gpu import KERNELS, PRODUCTS

#: quantities from which the highest rate of float32 is taken
_FLOAT32 = ("product.float32", "linear.float32", "peak.float32", "pointwise_convolution",
            "pointwise_convolution_batched", "window_convolution", "strided_convolution")  # fmt: skip
_DRAM = ("dram.copy", "dram.triad", "dram.read", "dram.in_place")


class Line(NamedTuple):
    """``key = value  # comment``; the value is TOML already."""

    key: str
    value: str
    comment: str = ""


def document(tables: Mapping[str, Sequence[Line]]) -> str:
    """A TOML document of tables by dotted name, the unnamed first; empty ones are left out."""
    return "\n".join(_table(name, lines) for name, lines in tables.items() if lines)


def _table(name: str, lines: Sequence[Line]) -> str:
    texts = [f"{line.key} = {line.value}" for line in lines]
    width = max(map(len, texts))
    body = [f"{t:{width}}  # {line.comment}" if line.comment else t for t, line in zip(texts, lines, strict=True)]
    return "\n".join(([f"[{name}]"] if name else []) + body) + "\n"


def head(name: str, title: str, how: str, vendor: str, architecture: str, *more: Line) -> list[Line]:
    """The unnamed table: what was measured, and how."""
    return [
        Line("schema", '"memwall.gpu/1"'), Line("name", _quoted(name)), Line("full_name", _quoted(title), how),
        Line("vendor", _quoted(vendor)), Line("architecture", _quoted(architecture)),
        *(Line(line.key, _quoted(line.value)) for line in more), Line("calibration", '"measured"'),
    ]  # fmt: skip


def _quoted(text: str) -> str:
    """A TOML string, without characters that it cannot contain."""
    return '"' + "".join(char for char in text if char.isprintable() and char not in '"\\') + '"'


def number(value: float) -> str:
    """Four digits."""
    return f"{value:.3e}"


def fraction(reached: float) -> str:
    """A fraction of a peak; one of a datasheet that is exceeded is another GPU's."""
    return f"{min(reached, 1.0):.4f}"


def note(quantity: Quantity, what: str) -> str:
    """How a number was measured, and the spread of its samples."""
    wide = ": uncertain" if quantity.spread > WIDE else ""
    dropped = f", {quantity.rejected} dropped" if quantity.rejected else ""
    return f"{what}; {quantity.samples} samples{dropped} within {quantity.spread:.1%}{wide}"


# -- a CPU's spec ------------------------------------------------------------------------------------------------------


def cpu_spec(answer: Mapping[str, Any], quantities: Mapping[str, Quantity], job: Mapping[str, Any]) -> str:
    """The TOML text."""
    rates = _Rates(quantities)
    caches, threads = answer["cache_bytes"], str(job["threads"])
    float32, dram = rates.best(_FLOAT32), rates.best(_DRAM)
    low = [dtype for dtype in ("bfloat16", "float16", "int8") if f"product.{dtype}" in quantities]
    linear = "linear layer of 256 x 1024 x 1024 with its bias over the peak"
    own_rate = "the peak is a product's own rate"
    busy = "; other processes ran meanwhile (--accept-busy)" if job["accept_busy"] else ""
    title = f"{cpu_name()} ({threads} thread{'s' if job['threads'] > 1 else ''})"
    how = f"memwall calibrate, torch {answer['torch']}, {answer['isa']}{busy}"
    return document({
        "": [*head("cpu", title, how, vendor_name(), "cpu"), Line("aliases", "[]")],
        "compute": [Line("sm_count", threads, "threads that a kernel uses")],
        "peak_flop_per_s.tensor": [rates.peak(dtype, f"product.{dtype}") for dtype in low],
        "peak_flop_per_s.vector": [rates.peak("float32", float32), rates.peak("float64", "product.float64")],
        "memory": [
            rates.line("dram_bytes_per_s", dram, f"{dram}, the fastest of four"),
            Line("dram_bytes", str(memory_bytes()), "as the system states it"),
            *(rates.last_cache(caches) if caches else ()),
        ],
        "host": [
            Line("launch_overhead_s", number(rates.call_s), note(quantities["call"], "add of one element")),
            Line("dispatch_s", "0", "a CPU runs an op when it is called: the line above has it all"),
        ],
        "achievable": [rates.fraction("dram", "dram.triad", dram, "triad over the fastest")],
        "achievable.tensor": [
            rates.fraction("bfloat16", "linear.bfloat16", "product.bfloat16", linear),
            *(Line(dtype, "1.0", own_rate) for dtype in low if dtype != "bfloat16"),
        ],
        "achievable.vector": [
            rates.fraction("float32", "linear.float32", float32, linear), Line("float64", "1.0", own_rate)
        ],
        "cpu": [Line("threads", threads), rates.exposed_traffic()],
        "cpu.cache_bytes": [Line(name, str(size)) for name, size in caches.items()],
        "cpu.cache_bytes_per_s": [
            rates.line(name, f"{name}.triad", "triad of three arrays in half of it")
            for name in caches if f"{name}.triad" in quantities
        ],
        "cpu.flop_per_s": rates.lines(PRODUCTS, "float32 FLOP/s"),
        "cpu.elements_per_s": rates.lines(KERNELS, "elements/s of eager float32, in the second cache"),
    })  # fmt: skip


class _Rates:
    """Work per second of each kernel, without its call."""

    def __init__(self, quantities: Mapping[str, Quantity]) -> None:
        self.quantities = quantities
        #: seconds of a call that does next to nothing: no part of a kernel's rate
        self.call_s = quantities["call"].seconds

    def __getitem__(self, name: str) -> float:
        quantity = self.quantities[name]
        return quantity.work / max(quantity.seconds - self.call_s, quantity.seconds / 2)

    def best(self, names: Iterable[str]) -> str:
        """The fastest of those that were measured."""
        return max((name for name in names if name in self.quantities), key=self.__getitem__)

    def line(self, key: str, name: str, what: str) -> Line:
        """A rate and how it was measured."""
        return Line(key, number(self[name]), note(self.quantities[name], what))

    def lines(self, names: Sequence[str], what: str) -> list[Line]:
        """Those rates that were measured."""
        return [self.line(name, name, what) for name in names if name in self.quantities]

    def peak(self, dtype: str, name: str) -> Line:
        """The highest rate of a dtype."""
        kernel = name.partition(".")[0].replace("_", " ")
        return self.line(dtype, name, f"{kernel}, the highest rate of {dtype} seen here")

    def fraction(self, key: str, name: str, peak: str, what: str) -> Line:
        """How much of a peak is reached."""
        return Line(key, fraction(self[name] / self[peak]), note(self.quantities[name], what))

    def last_cache(self, caches: Mapping[str, int]) -> list[Line]:
        """The size of the last cache, and the rate of the fastest."""
        last = list(caches)[-1]
        inner = self.best(name for name in self.quantities if name.endswith((".triad", ".in_place")))
        return [
            Line("l2_bytes", str(caches[last]), f"{last}, the last cache, as the system states it"),
            self.line("l2_bytes_per_s", inner, f"{inner}, the fastest cache"),
        ]

    def exposed_traffic(self) -> Line:
        """The fraction of a weight's DRAM time that a linear layer does not hide."""
        cached, dram = self.quantities["weights.cached"], self.quantities["weights.dram"]
        exposed = max(dram.seconds - cached.seconds, 0.0) / (dram.work / self["dram.triad"])
        what = "linear layer of 64 rows, its weight in DRAM and in a cache: the difference over the weight's DRAM time"
        return Line("exposed_traffic", f"{exposed:.3f}", note(dram, what))
