"""Quantities measured on a CPU → its spec, a comment beside each number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memwall.bench.calibrate.sampling import Quantity
from memwall.bench.calibrate.spec_text import Line, document, note, number, quoted
from memwall.bench.machine import cpu_name, memory_bytes, vendor_name
from memwall.hardware.cpu_rates import KERNELS, PRODUCTS

#: quantities from which the highest rate of float32 is taken
_FLOAT32 = ("product.float32", "linear.float32", "peak.float32", "pointwise_convolution",
            "pointwise_convolution_batched", "window_convolution", "strided_convolution")  # fmt: skip
_DRAM = ("dram.copy", "dram.triad", "dram.read", "dram.in_place")


def cpu_spec(answer: Mapping[str, Any], quantities: Mapping[str, Quantity], job: Mapping[str, Any]) -> str:
    """The TOML text, in schema ``memwall.gpu/1`` with ``[cpu]``."""
    writer = _Writer(answer, quantities, job)
    tables = {
        "": writer.head(), "compute": writer.compute(), "peak_flop_per_s.tensor": writer.tensor_peaks(),
        "peak_flop_per_s.vector": writer.vector_peaks(), "memory": writer.memory(), "host": writer.host(),
        "achievable": writer.achievable_dram(), "achievable.tensor": writer.achievable_tensor(),
        "achievable.vector": writer.achievable_vector(), "cpu": writer.cpu(),
        "cpu.cache_bytes": writer.caches(), "cpu.cache_bytes_per_s": writer.cache_rates(),
        "cpu.flop_per_s": writer.rates(PRODUCTS, "float32 FLOP/s"),
        "cpu.elements_per_s": writer.rates(KERNELS, "elements/s of eager float32, in the second cache"),
    }  # fmt: skip
    return document(tables)


class _Writer:
    def __init__(self, answer: Mapping[str, Any], quantities: Mapping[str, Quantity], job: Mapping[str, Any]) -> None:
        self.answer, self.quantities, self.job = answer, quantities, job
        #: seconds of a call that does next to nothing: no part of a kernel's rate
        self.call_s = quantities["call"].seconds

    def rate(self, name: str) -> float:
        """Work per second of a kernel without its call."""
        quantity = self.quantities[name]
        return quantity.work / max(quantity.seconds - self.call_s, quantity.seconds / 2)

    def note(self, name: str, what: str) -> str:
        """How a number was measured."""
        return note(self.quantities[name], what)

    def _best(self, names: tuple[str, ...]) -> str:
        return max((name for name in names if name in self.quantities), key=self.rate)

    # -- the tables --------------------------------------------------------------------------------------------------

    def head(self) -> list[Line]:
        threads = self.job["threads"]
        name = f"{cpu_name()} ({threads} thread{'s' if threads > 1 else ''})"
        busy = "; other processes ran meanwhile (--accept-busy)" if self.job["accept_busy"] else ""
        how = f"memwall calibrate, torch {self.answer['torch']}, {self.answer['isa']}{busy}"
        return [
            Line("schema", '"memwall.gpu/1"', ""), Line("name", '"cpu"', ""),
            Line("full_name", quoted(name), how), Line("vendor", quoted(vendor_name()), ""),
            Line("architecture", '"cpu"', ""), Line("calibration", '"measured"', ""),
            Line("aliases", "[]", ""),
        ]  # fmt: skip

    def compute(self) -> list[Line]:
        return [Line("sm_count", str(self.job["threads"]), "threads that a kernel uses")]

    def tensor_peaks(self) -> list[Line]:
        return [
            self._peak(dtype, f"product.{dtype}")
            for dtype in ("bfloat16", "float16", "int8")
            if f"product.{dtype}" in self.quantities
        ]

    def vector_peaks(self) -> list[Line]:
        best = self._best(_FLOAT32)
        return [self._peak("float32", best), self._peak("float64", "product.float64")]

    def _peak(self, key: str, name: str) -> Line:
        said = f"{name.partition('.')[0].replace('_', ' ')}, the highest rate of {key} seen here"
        return Line(key, number(self.rate(name)), self.note(name, said))

    def memory(self) -> list[Line]:
        best, caches = self._best(_DRAM), self.answer["cache_bytes"]
        lines = [
            Line("dram_bytes_per_s", number(self.rate(best)), self.note(best, f"{best}, the fastest of four")),
            Line("dram_bytes", str(memory_bytes()), "as the system states it"),
        ]
        if caches:
            last = list(caches)[-1]
            inner = self._best(tuple(n for n in self.quantities if n.endswith((".triad", ".in_place"))))
            lines += [
                Line("l2_bytes", str(caches[last]), f"{last}, the last cache, as the system states it"),
                Line("l2_bytes_per_s", number(self.rate(inner)), self.note(inner, f"{inner}, the fastest cache")),
            ]
        return lines

    def host(self) -> list[Line]:
        return [
            Line("launch_overhead_s", f"{self.call_s:.3e}", self.note("call", "add of one element")),
            Line("dispatch_s", "0", "a CPU runs an op when it is called: the line above has it all"),
        ]

    def achievable_dram(self) -> list[Line]:
        return [self._fraction("dram", "dram.triad", self._best(_DRAM), "triad over the fastest")]

    def achievable_tensor(self) -> list[Line]:
        said = "linear layer of 256 x 1024 x 1024 with its bias over the peak"
        plain = [
            Line(dtype, "1.0", "the peak is a product's own rate")
            for dtype in ("float16", "int8")
            if f"product.{dtype}" in self.quantities
        ]
        return [self._fraction("bfloat16", "linear.bfloat16", "product.bfloat16", said), *plain]

    def achievable_vector(self) -> list[Line]:
        said = "linear layer of 256 x 1024 x 1024 with its bias over the peak"
        return [
            self._fraction("float32", "linear.float32", self._best(_FLOAT32), said),
            Line("float64", "1.0", "the peak is a product's own rate"),
        ]

    def _fraction(self, key: str, name: str, peak: str, said: str) -> Line:
        return Line(key, f"{min(self.rate(name) / self.rate(peak), 1.0):.4f}", self.note(name, said))

    def cpu(self) -> list[Line]:
        cached, dram = self.quantities["weights.cached"], self.quantities["weights.dram"]
        delivered_s = dram.work / self.rate("dram.triad")
        exposed = max(dram.seconds - cached.seconds, 0.0) / delivered_s
        said = "linear layer of 64 rows, its weight in DRAM and in a cache: the difference over the weight's DRAM time"
        return [
            Line("threads", str(self.job["threads"]), ""),
            Line("exposed_traffic", f"{exposed:.3f}", self.note("weights.dram", said)),
        ]

    def caches(self) -> list[Line]:
        return [Line(name, str(size), "") for name, size in self.answer["cache_bytes"].items()]

    def cache_rates(self) -> list[Line]:
        return [
            Line(
                name, number(self.rate(f"{name}.triad")),
                self.note(f"{name}.triad", "triad of three arrays in half of it"),
            )
            for name in self.answer["cache_bytes"]
            if f"{name}.triad" in self.quantities
        ]  # fmt: skip

    def rates(self, names: tuple[str, ...], what: str) -> list[Line]:
        return [Line(name, number(self.rate(name)), self.note(name, what)) for name in names if name in self.quantities]
