"""One GPU: its ceilings, the pipe that stands in for one it lacks, and the values that each field may have.

Everything is base SI: FLOP/s (a fused multiply-add is 2), bytes/s, bytes, Hz, W, s. Peaks are dense. The checks
at the end serve a saved record (:meth:`Gpu.from_dict`) and a file (:mod:`memwall.hardware.gpu_spec`) alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from memwall.core.errors import UsageError
from memwall.core.graph import Pipe
from memwall.hardware.cpu_rates import CACHES, KERNELS, PRODUCTS, Cpu

ENGINES = ("tensor", "vector")
DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "fp8", "int8")
PIPE_NAMES = tuple(f"{engine}.{dtype}" for engine in ENGINES for dtype in DTYPES)

#: Where a file states no achievable fraction: 85 % of the bandwidth, 75 % of a peak.
DEFAULT_DRAM_FRACTION, DEFAULT_PEAK_FRACTION = 0.85, 0.75


def _chain(names: str) -> tuple[Pipe, ...]:
    return tuple(Pipe.parse(name) for name in names.split())


#: Where a product runs on a GPU that lacks the requested pipe: the first pipe of the list that it has.
_FALLBACK: Mapping[Pipe, tuple[Pipe, ...]] = {
    Pipe.parse(pipe): _chain(chain)
    for pipe, chain in {
        "tensor.float64": "vector.float64 vector.float32",
        "tensor.float32": "vector.float32",  # only AMD has matrix units for it
        "tensor.tf32": "tensor.float32 vector.float32",
        "tensor.float16": "vector.float16 tensor.bfloat16 vector.float32",
        "tensor.bfloat16": "vector.float32",  # no native bfloat16: libraries convert and use FP32
        "tensor.fp8": "tensor.float16 tensor.bfloat16 vector.float32",  # converted up
        "tensor.int8": "vector.int8 vector.float32",
    }.items()
}
_LAST_RESORT = _chain("vector.float32")

#: Whose achievable fraction stands in for a pipe that has none, in this order.
_NEIGHBOURS: Mapping[str, tuple[str, ...]] = {
    "tensor": ("float16", "bfloat16", "tf32", "float32", "fp8", "int8", "float64"),
    "vector": ("float32", "float64", "float16", "bfloat16", "int8"),
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as a process sees it (one die of an MI250X). Rates are dense datasheet peaks in base SI."""

    # Canonical short name, the file's stem: "h100-sxm".
    name: str
    full_name: str
    vendor: str
    # pascal, volta, turing, ampere, ada, hopper, blackwell, cdna, cdna2, cdna3, tpu, wafer, cpu.
    architecture: str
    # "9.0" for NVIDIA, "gfx942" for AMD, None elsewhere.
    compute_capability: str | None
    # Year and month of the announcement: "2022-09".
    release: str
    # Other names, the strings that drivers report among them.
    aliases: tuple[str, ...]
    # Units that run blocks: SMs, CUs, TensorCores. 1 (the default): nothing is lost to partial waves.
    sm_count: int
    boost_clock_hz: float
    # Dense peak of each pipe that the GPU has, FLOP/s.
    peak_flop_per_s: Mapping[Pipe, float]
    dram_bytes_per_s: float
    # Capacity as marketed, decimal.
    dram_bytes: int
    # Last cache before DRAM; 0 means none.
    l2_bytes: int
    # The highest known figure, so that no kernel beats a bound.
    l2_bytes_per_s: float
    # Both directions together, as vendors state it; 0 means no link.
    link_bytes_per_s: float
    # 0 means unknown.
    tdp_w: float
    # Launch latency of one kernel, launched back to back, seconds.
    launch_overhead_s: float
    # CPU time that eager PyTorch needs to issue one op, seconds: a property of the host.
    dispatch_s: float
    # Fraction of a datasheet number that can be reached: "dram" (always there), "tensor.float16", ...
    achievable: Mapping[str, float]
    # Dotted key of the file -> the comment next to the number.
    sources: Mapping[str, str]
    # How the fractions are known: bandwidth and a GEMM "measured" on this GPU, some or all inherited from
    # its "architecture", or none known and defaults taken ("datasheet").
    calibration: str
    # "gemm.bfloat16.plateau" -> value: constants of memwall.ops.launches, some from a similar GPU.
    utilization: Mapping[str, float] = field(default_factory=dict)
    # "gemm.bfloat16" -> the GPU on whose rows the table was scored: its file states an interval.
    fitted_on: Mapping[str, str] = field(default_factory=dict)
    # What a CPU's kernels reach; None on a GPU.
    cpu: Cpu | None = None

    def __hash__(self) -> int:
        """Hash of what GPUs of one name may differ in: they are keys wherever a kernel is priced."""
        return hash((self.name, self.sm_count, self.dram_bytes_per_s, self.l2_bytes, self.launch_overhead_s))

    @property
    def has_multiprocessors(self) -> bool:
        """Whether PyTorch's and its libraries' kernels run here, on as many multiprocessors as the file says: not on a
        TPU, nor where the file omits their number."""
        return self.compute_capability is not None and self.sm_count > 1

    def ceiling_pipe(self, pipe: Pipe) -> Pipe:
        """The pipe that work for ``pipe`` runs on here: itself, or where a library falls back to."""
        for candidate in (pipe, *_FALLBACK.get(pipe, ()), *_LAST_RESORT):
            if candidate in self.peak_flop_per_s:
                return candidate
        return min(self.peak_flop_per_s, key=lambda known: (self.peak_flop_per_s[known], known))

    def peak(self, pipe: Pipe) -> float:
        """Datasheet FLOP/s of the pipe that ``pipe`` falls back to here; never zero."""
        return self.peak_flop_per_s[self.ceiling_pipe(pipe)]

    def achievable_fraction(self, pipe: Pipe) -> float:
        """Fraction of :meth:`peak` that large GEMMs reach: the pipe's own, else that of a similar pipe, else 0.75."""
        end = self.ceiling_pipe(pipe)
        for dtype in (end.dtype, *_NEIGHBOURS[end.engine]):
            if (known := self.achievable.get(f"{end.engine}.{dtype}")) is not None:
                return known
        return DEFAULT_PEAK_FRACTION

    def ridge_point(self, pipe: Pipe) -> float:
        """FLOP per DRAM byte above which work for ``pipe`` is limited by compute."""
        return self.peak(pipe) / self.dram_bytes_per_s

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types in a fixed order; :meth:`from_dict` reads it back."""
        record: dict[str, Any] = {name: getattr(self, name) for name in FIELDS}
        record["aliases"] = list(self.aliases)
        record["peak_flop_per_s"] = {str(pipe): rate for pipe, rate in self.peak_flop_per_s.items()}
        record["achievable"] = dict(self.achievable)
        record["sources"] = dict(self.sources)
        record["utilization"] = dict(self.utilization)
        record["fitted_on"] = dict(self.fitted_on)
        if self.cpu is not None:
            record["cpu"] = self.cpu.to_dict()
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Gpu:
        """The GPU of a saved record; keys that this version does not know are ignored.

        Raises:
            UsageError: a key is missing or its value is of the wrong kind.
        """
        if not isinstance(record, Mapping):
            raise UsageError(f"saved GPU: must be a table, not {shown(record)}")
        values = {name: _saved(name, record.get(name)) for name in FIELDS}
        peaks = _saved_table(record, "peak_flop_per_s", positive)
        if not peaks or any(key not in PIPE_NAMES for key in peaks):
            raise UsageError("saved GPU: peak_flop_per_s: must name pipes, such as tensor.float16")
        values["peak_flop_per_s"] = {Pipe.parse(key): rate for key, rate in peaks.items()}
        values["achievable"] = {"dram": DEFAULT_DRAM_FRACTION} | _saved_table(record, "achievable", fraction)
        values["sources"] = _saved_table(record, "sources", text)
        values["utilization"] = _saved_table(record, "utilization", _not_negative)
        values["fitted_on"] = _saved_table(record, "fitted_on", text)
        values["cpu"] = _saved_cpu(record)
        return cls(**values)


# ---- a saved record


def _saved(name: str, value: Any) -> Any:
    _, check, default = FIELDS[name]
    if default in (None, "") and value == default:
        return default
    try:
        return check(value)
    except WrongValue as error:
        raise UsageError(f"saved GPU: {name}: {error}") from None


def _saved_table(record: Mapping[str, Any], name: str, check: Callable[[Any], Any]) -> dict[str, Any]:
    table = record.get(name, {})
    if not isinstance(table, Mapping):
        raise UsageError(f"saved GPU: {name}: must be a table, not {shown(table)}")
    try:
        return {str(key): check(value) for key, value in table.items()}
    except WrongValue as error:
        raise UsageError(f"saved GPU: {name}: {error}") from None


def _saved_cpu(record: Mapping[str, Any]) -> Cpu | None:
    saved = record.get("cpu")
    if saved is None:
        return None
    if not isinstance(saved, Mapping):
        raise UsageError(f"saved GPU: cpu: must be a table, not {shown(saved)}")
    flat: dict[str, Any] = {}
    for name, value in saved.items():
        flat |= {f"{name}.{key}": n for key, n in value.items()} if isinstance(value, Mapping) else {name: value}
    try:
        return cpu_of({key: CPU_KEYS[key](value) for key, value in flat.items() if key in CPU_KEYS})
    except WrongValue as error:
        raise UsageError(f"saved GPU: cpu: {error}") from None


# ---- what a value may be


class WrongValue(Exception):
    """A value that a key may not have; the message ends a line that names the key."""


def shown(value: object) -> str:
    """The value as a message quotes it."""
    code = repr(value) if not isinstance(value, int) or value.bit_length() < 256 else "a huge integer"
    return one_line(code if len(code) <= 60 else f"{code[:57]}...")


def one_line(value: object, longest: int = 300) -> str:
    line = str(value)
    if not line.isprintable():
        line = "".join(char if char.isprintable() else "?" for char in line)
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise WrongValue(f"must be a line of text, not {shown(value)}")
    return value


def _capability(value: Any) -> str:
    """NVIDIA's two numbers (9.0), or another vendor's name (gfx942), which begins with a letter."""
    known = text(value)
    if not known[0].isalpha() and not re.fullmatch(r"[0-9]{1,3}\.[0-9]{1,3}", known):
        raise WrongValue(f"must be as in '9.0', not {shown(value)}")
    return known


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise WrongValue(f"must be a list of texts, not {shown(value)}")
    return tuple(map(text, value))


def _one_of(*choices: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in choices:
            raise WrongValue(f"must be one of {', '.join(choices)}, not {shown(value)}")
        return str(value)

    return check


def _number(value: Any, wanted: str, fits: Callable[[float], bool]) -> float:
    """The value as a float: finite, and neither absurdly large nor small, so that no rate overflows."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WrongValue(f"must be {wanted}, not {shown(value)}")
    in_range = abs(value) <= 1e25 and (value == 0 or abs(value) >= 1e-15)  # False for NaN
    if not in_range or not fits(value):
        raise WrongValue(f"must be {wanted} in base SI units, not {shown(value)}")
    return float(value)


def within(low: float, high: float) -> Callable[[Any], float]:
    """The check of a number in a range."""
    return lambda value: _number(value, f"a number from {low:g} to {high:g}", lambda number: low <= number <= high)


def positive(value: Any) -> float:
    return _number(value, "a positive number", lambda number: number > 0)


def _not_negative(value: Any) -> float:
    return _number(value, "a number of 0 or more", lambda number: number >= 0)


def fraction(value: Any) -> float:
    return _number(value, "a fraction above 0 and at most 1", lambda number: 0 < number <= 1)


def count(value: Any) -> int:
    return int(_number(value, "a positive whole number", lambda number: number > 0 and number % 1 == 0))


def _size(value: Any) -> int:
    return int(_number(value, "a whole number, 0 or more,", lambda number: number >= 0 and number % 1 == 0))


REQUIRED: Any = object()

#: Field of Gpu -> key of a file, how its value is checked, and its default. The three tables (peaks, fractions,
#: sources) are built separately.
FIELDS: Mapping[str, tuple[str, Callable[[Any], Any], Any]] = {
    "name": ("name", text, REQUIRED),
    "full_name": ("full_name", text, ""),  # the name
    "vendor": ("vendor", text, "unknown"),
    "architecture": ("architecture", text, "unknown"),
    "compute_capability": ("compute_capability", _capability, None),
    "release": ("release", text, ""),
    "aliases": ("aliases", _texts, ()),
    "sm_count": ("compute.sm_count", count, 1),
    "boost_clock_hz": ("compute.boost_clock_hz", positive, 1e9),
    "dram_bytes_per_s": ("memory.dram_bytes_per_s", positive, REQUIRED),
    "dram_bytes": ("memory.dram_bytes", count, REQUIRED),
    "l2_bytes": ("memory.l2_bytes", _size, 0),
    "l2_bytes_per_s": ("memory.l2_bytes_per_s", positive, 0.0),  # the DRAM bandwidth
    "link_bytes_per_s": ("link.link_bytes_per_s", _not_negative, 0.0),
    "tdp_w": ("power.tdp_w", _not_negative, 0.0),
    "launch_overhead_s": ("host.launch_overhead_s", _not_negative, 2.5e-6),
    "dispatch_s": ("host.dispatch_s", _not_negative, 5e-6),
    "calibration": ("calibration", _one_of("measured", "architecture", "datasheet"), "datasheet"),
}

#: Key of a file's ``[cpu]`` -> how its value is checked.
CPU_KEYS: Mapping[str, Callable[[Any], Any]] = {
    "threads": count,
    "exposed_traffic": _not_negative,
    **{f"cache_bytes.{name}": count for name in CACHES},
    **{f"cache_bytes_per_s.{name}": positive for name in CACHES},
    **{f"flop_per_s.{name}": positive for name in PRODUCTS},
    **{f"elements_per_s.{name}": positive for name in KERNELS},
}


def cpu_of(values: Mapping[str, Any]) -> Cpu | None:
    """The CPU of checked values by key of :data:`CPU_KEYS`; None where there are none."""
    if not values:
        return None

    def table(name: str) -> dict[str, Any]:
        start = f"{name}."
        return {key.removeprefix(start): value for key, value in values.items() if key.startswith(start)}

    tables = {name: table(name) for name in ("cache_bytes", "cache_bytes_per_s", "flop_per_s", "elements_per_s")}
    return Cpu(values.get("threads", 1), **tables, exposed_traffic=values.get("exposed_traffic", 0.0))
