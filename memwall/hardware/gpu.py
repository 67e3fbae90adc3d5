"""One GPU: its ceilings, the pipe that stands in for one it lacks, and the values that each field may have.

Everything is base SI: FLOP/s (a fused multiply-add is 2), bytes/s, bytes, Hz, W, s. Peaks are dense. The checks of the
fields serve a saved record (:meth:`Gpu.from_dict`) and a file (:mod:`memwall.hardware.gpu_spec`) alike.

A CPU has rates that no datasheet states and ``memwall calibrate`` measures. One core has no other threads to hide
latency: a kernel that evaluates a function on each element is limited by that function long before it is limited by
memory, and a convolution runs in another library than a matrix product.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, get_type_hints

from memwall.core.errors import UsageError
from memwall.core.graph import DTYPES as DTYPES
from memwall.core.graph import ENGINES as ENGINES
from memwall.core.graph import Pipe
from memwall.core.structure import BadRecord, Check, check_of, checks_of, one_of, read, shown, write
from memwall.core.views import ShownResult
from memwall.hardware.checks import Line, NotNegative, Positive, Size, Whole, fraction, line, numbers
from memwall.hardware.constants import CONSTANTS
from memwall.hardware.host import Host, default_host
from memwall.hardware.links import Cluster

PIPE_NAMES = tuple(f"{engine}.{dtype}" for engine in ENGINES for dtype in DTYPES)

#: Where a file states no achievable fraction: 85 % of the bandwidth, 75 % of a peak.
DEFAULT_DRAM_FRACTION, DEFAULT_PEAK_FRACTION = 0.85, 0.75
#: Where a file does not state how products hold their rate in training: between A100 and H100
UNKNOWN_TRAINED = 0.93


#: Where a product runs on a GPU that lacks the requested pipe: the first pipe of the list that it has.
_FALLBACK: Mapping[Pipe, tuple[Pipe, ...]] = {
    Pipe.parse(pipe): tuple(map(Pipe.parse, chain.split()))
    for pipe, chain in {
        "tensor.float64": "vector.float64 vector.float32",
        "tensor.float32": "vector.float32",  # only AMD has matrix units for it
        "tensor.tf32": "tensor.float32 vector.float32",
        "tensor.float16": "vector.float16 tensor.bfloat16 vector.float32",
        "tensor.bfloat16": "vector.float32",  # no native bfloat16: libraries convert and use FP32
        "tensor.fp8": "tensor.float16 tensor.bfloat16 vector.float32",  # converted up
        "tensor.fp4": "tensor.float16 tensor.bfloat16 vector.float32",
        "tensor.int8": "vector.int8 vector.float32",
    }.items()
}
_LAST_RESORT = Pipe("vector", "float32")

#: Whose achievable fraction stands in for a pipe that has none, in this order.
_NEIGHBOURS: Mapping[str, tuple[str, ...]] = {
    "tensor": ("float16", "bfloat16", "tf32", "float32", "fp8", "fp4", "int8", "float64"),
    "vector": ("float32", "float64", "float16", "bfloat16", "int8"),
}


# -- what a value may be -----------------------------------------------------------------------------------------------


def _line_or_none(value: Any) -> str:
    return "" if value == "" else line(value)


def _capability(value: Any) -> str:
    """NVIDIA's two numbers (9.0), or another vendor's name (gfx942), which begins with a letter."""
    known = line(value)
    if not known[0].isalpha() and not re.fullmatch(r"[0-9]{1,3}\.[0-9]{1,3}", known):
        raise BadRecord(f"must be as in '9.0', not {shown(value)}")
    return known


def _peaks(value: Any) -> Mapping[Pipe, float]:
    peaks = _PEAKS(value)
    if not peaks or any(pipe not in PIPE_NAMES for pipe in peaks):
        raise BadRecord("must name pipes, such as tensor.float16")
    return {Pipe.parse(pipe): rate for pipe, rate in peaks.items()}


def _fractions(value: Any) -> Mapping[str, float]:
    return {"dram": DEFAULT_DRAM_FRACTION, **_FRACTIONS(value)}


def _constants(value: Any) -> Mapping[str, float]:
    """Each within its range; constants that this version does not know are left out."""
    found: dict[str, float] = {}
    for key, number in _NUMBERS(value).items():
        try:
            if key in CONSTANT_CHECKS:
                found[key] = CONSTANT_CHECKS[key](number)
        except BadRecord as error:
            raise error.inside(f".{key}") from None
    return found


def _within(low: float, high: float) -> Check:
    return numbers(f"a number from {low:g} to {high:g}", lambda number: low <= number <= high)


#: "gemm.bfloat16.plateau" -> the check of its range
CONSTANT_CHECKS: Mapping[str, Check] = {
    f"{family}.{variant}.{item.name}": _within(item.metadata["low"], item.metadata["high"])
    for family, kind in CONSTANTS.items() for variant in kind.stated() for item in fields(kind)
}  # fmt: skip
_NUMBERS = check_of(Mapping[str, NotNegative])
_STATED = check_of(NotNegative | None)
_PEAKS, _FRACTIONS = check_of(Mapping[str, Positive]), check_of(Mapping[str, Annotated[float, fraction]])


# -- a CPU -------------------------------------------------------------------------------------------------------------

#: data caches, the nearest first
CACHES = ("l1", "l2", "l3")

#: products that do not run as a plain matrix product: rates in FLOP/s, of float32. A pointwise convolution has a
#: kernel of one element and stride 1, ``_batched`` from 16 images on, where torch hands it to oneDNN
#: (aten/src/ATen/native/Convolution.cpp, ``use_mkldnn``); a window is larger, strided by more than 1
PRODUCTS = (
    "pointwise_convolution", "pointwise_convolution_batched", "window_convolution", "strided_convolution",
    "depthwise_convolution", "attention",
)  # fmt: skip

#: kernels that evaluate more than an add or a multiply per element: rates in elements/s, of float32. What counts as
#: an element is said in :mod:`memwall.perfmodel.cpu`
KERNELS = (
    "exp", "log", "sqrt", "rsqrt", "sin", "pow", "erf", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh", "compare",
    "where", "dropout", "softmax", "log_softmax", "layer_norm", "batch_norm", "batch_norm_training", "variance",
    "max_pool", "gelu_backward", "softmax_backward", "layer_norm_backward", "batch_norm_backward",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cpu:
    """One CPU, as eager PyTorch uses ``threads`` of its cores."""

    threads: Whole = 1
    #: extra seconds of a matrix product for operands in DRAM rather than in a cache, over the seconds in which DRAM
    #: delivers them: 0 where arithmetic hides all traffic, 1 where it hides none
    exposed_traffic: NotNegative = 0.0
    #: bytes, and bytes/s of a triad that fits, by name of :data:`CACHES`
    cache_bytes: Mapping[str, Whole] = field(default_factory=dict)
    cache_bytes_per_s: Mapping[str, Positive] = field(default_factory=dict)
    #: FLOP/s by name of :data:`PRODUCTS`
    flop_per_s: Mapping[str, Positive] = field(default_factory=dict)
    #: elements/s by name of :data:`KERNELS`
    elements_per_s: Mapping[str, Positive] = field(default_factory=dict)

    def rate_for(self, nbytes: int) -> float | None:
        """Bytes/s of the nearest cache that holds ``nbytes``; None where none does or its rate is unknown."""
        for name in CACHES:
            if nbytes <= self.cache_bytes.get(name, 0) and name in self.cache_bytes_per_s:
                return self.cache_bytes_per_s[name]
        return None


# -- a TPU -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tpu:
    """A TensorCore as XLA uses it, and how chips are joined. A chip has ``sm_count`` TensorCores."""

    #: matrix units of a TensorCore, and the rows and columns of the weights that one holds
    matrix_units: Whole
    matrix_side: Whole
    #: rows of activations in whose time a unit loads its next weights; fewer take as long
    load_rows: Whole
    #: the vector unit: lanes, sublanes, and the ALUs of each
    lanes: Whole
    sublanes: Whole
    vector_alus: Whole
    #: rows of the tiles to which XLA pads arrays of 16 bits
    sublanes_16_bit: Whole
    #: of a TensorCore
    vmem_bytes: Whole
    #: axes of the torus; bytes/s of a link, one way, of which a chip has two along each axis; an axis whose length is a
    #: multiple of ``ici_ring`` is a ring (of three axes: where all are); most chips along one; seconds of a hop
    ici_axes: Whole
    ici_bytes_per_s: Positive
    ici_ring: Whole
    ici_most: Whole
    ici_hop_s: Positive
    #: chips of a host, and bytes/s of its network, one way
    host_chips: Whole
    dcn_bytes_per_s: Positive

    def tile(self, itemsize: float) -> tuple[int, int]:
        """Rows and columns to which XLA pads the last two axes of an array. Sublanes have 32 bits and hold several
        narrower numbers; whether 16-bit numbers fill them is said."""
        rows = {2: self.sublanes_16_bit}.get(int(itemsize), self.sublanes * max(int(4 / itemsize), 1))
        return rows, self.lanes


# -- a GPU -------------------------------------------------------------------------------------------------------------

REQUIRED: Any = object()


class Stated(NamedTuple):
    """A field that a file states: its key there, and what it is where the file does not say."""

    key: str
    default: Any = REQUIRED


@dataclass(frozen=True, slots=True, repr=False)
class Gpu(ShownResult):
    """One GPU as a process sees it (one die of an MI250X). Rates are dense datasheet peaks in base SI."""

    #: canonical short name, the file's stem: "h100-sxm"
    name: Annotated[Line, Stated("name")]
    #: without one the name
    full_name: Annotated[Line, Stated("full_name", "")]
    vendor: Annotated[Line, Stated("vendor", "unknown")]
    #: pascal, volta, turing, ampere, ada, hopper, blackwell, cdna, cdna2, cdna3, tpu, wafer, cpu
    architecture: Annotated[Line, Stated("architecture", "unknown")]
    #: "9.0" for NVIDIA, "gfx942" for AMD, None elsewhere
    compute_capability: Annotated[Annotated[str, _capability] | None, Stated("compute_capability", None)]
    #: year and month of the announcement: "2022-09"; "" where it is unknown
    release: Annotated[str, _line_or_none, Stated("release", "")]
    #: other names, the strings that drivers report among them
    aliases: Annotated[tuple[Line, ...], Stated("aliases", ())]
    #: units that run blocks: SMs, CUs, TensorCores. 1: nothing is lost to partial waves
    sm_count: Annotated[Whole, Stated("compute.sm_count", 1)]
    boost_clock_hz: Annotated[Positive, Stated("compute.boost_clock_hz", 1e9)]
    dram_bytes_per_s: Annotated[Positive, Stated("memory.dram_bytes_per_s")]
    #: device memory as the driver states it (cudaDeviceProp.totalGlobalMem); what fits is compared with it
    dram_bytes: Annotated[Whole, Stated("memory.dram_bytes")]
    #: last cache before DRAM; 0: none
    l2_bytes: Annotated[Size, Stated("memory.l2_bytes", 0)]
    #: the highest known figure, so that no kernel beats a bound; without one the DRAM bandwidth
    l2_bytes_per_s: Annotated[Positive, Stated("memory.l2_bytes_per_s", 0.0)]
    #: both directions together, as vendors state it; 0: no link
    link_bytes_per_s: Annotated[NotNegative, Stated("link.link_bytes_per_s", 0.0)]
    #: 0: unknown
    tdp_w: Annotated[NotNegative, Stated("power.tdp_w", 0.0)]
    #: launch latency of one kernel, launched back to back
    launch_overhead_s: Annotated[NotNegative, Stated("host.launch_overhead_s", 2.5e-6)]
    #: how the fractions are known: bandwidth and a GEMM "measured" on this GPU, some or all inherited from its
    #: "architecture", or none known and defaults taken ("datasheet")
    calibration: Annotated[str, one_of(("measured", "architecture", "datasheet")), Stated("calibration", "datasheet")]
    #: dense peak of each pipe that the GPU has, FLOP/s
    peak_flop_per_s: Annotated[Mapping[Pipe, float], _peaks]
    #: fraction that can be reached of the datasheet's bandwidth, "dram" (always there), and of a peak at the clock at
    #: which kernels run, "tensor.float16", ...
    achievable: Annotated[Mapping[str, float], _fractions]
    #: dotted key of the file -> the comment next to the number
    sources: Mapping[str, Line]
    #: "gemm.bfloat16.plateau" -> value: constants of kernel families, some from a similar GPU
    utilization: Annotated[Mapping[str, float], _constants] = field(default_factory=dict)
    #: "gemm.bfloat16" -> the GPU on whose rows the table was scored: its file states an interval
    fitted_on: Mapping[str, Line] = field(default_factory=dict)
    #: what a CPU's kernels reach; None on a GPU
    cpu: Cpu | None = None
    #: a TPU's units and links; None on others
    tpu: Tpu | None = None
    #: what issues its kernels: no property of the GPU, so files state none
    host: Host = field(default_factory=default_host)
    #: DRAM bytes/s that the loads in flight of one multiprocessor reach: its share of the bandwidth that the GPU was
    #: built with. A what-if on the bandwidth leaves it as it is
    sm_bytes_per_s: float = 0.0
    #: share of the TDP that the board was seen to sustain in long float32 products
    sustained_power: Annotated[float, fraction, Stated("power.sustained", 1.0)] = 1.0
    #: share of their rate in short benchmarks that matrix products hold in hours of training, where the power limit
    #: lowers the clock; unless stated the mean of the GPUs on which it is known
    trained_products: Annotated[float, fraction, Stated("power.trained_products", UNKNOWN_TRAINED)] = UNKNOWN_TRAINED
    #: clock at which boards that boost past their datasheet's run kernels, and the highest that the driver allows any
    #: of them; 0: the boost clock
    run_clock_hz: Annotated[NotNegative, Stated("compute.run_clock_hz", 0.0)] = 0.0
    max_clock_hz: Annotated[NotNegative, Stated("compute.max_clock_hz", 0.0)] = 0.0
    #: clock that the peaks of tensor cores are of; 0: the boost clock
    tensor_clock_hz: Annotated[NotNegative, Stated("compute.tensor_clock_hz", 0.0)] = 0.0
    #: share of the rate at which its power holds short matmuls on tensor cores that is left in steps of seconds
    looped_products: Annotated[float, fraction, Stated("power.looped_products", 1.0)] = 1.0
    #: how it is joined to others of its kind; None: alone, or by a link of which only the datasheet's rate is known
    cluster: Cluster | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sm_bytes_per_s", self.sm_bytes_per_s or self.dram_bytes_per_s / self.sm_count)

    def __hash__(self) -> int:
        """Hash of what GPUs of one name may differ in: they are keys wherever a kernel is priced."""
        return hash((self.name, self.sm_count, self.dram_bytes_per_s, self.l2_bytes, self.launch_overhead_s))

    @property
    def has_multiprocessors(self) -> bool:
        """Whether PyTorch's and its libraries' kernels run here, on as many multiprocessors as the file says: not on a
        TPU, nor where the file omits their number."""
        return self.compute_capability is not None and self.sm_count > 1

    def ceiling_pipe(self, pipe: Pipe) -> Pipe:
        """The pipe that work for ``pipe`` runs on here: itself, or where a library falls back to.

        Raises:
            ValueError: no GPU has such a pipe, as none multiplies that dtype.
        """
        for candidate in (pipe.known, *_FALLBACK.get(pipe, ()), _LAST_RESORT):
            if candidate in self.peak_flop_per_s:
                return candidate
        return min(self.peak_flop_per_s, key=lambda known: (self.peak_flop_per_s[known], known))

    def peak(self, pipe: Pipe) -> float:
        """Datasheet FLOP/s of the pipe that ``pipe`` falls back to here; never zero."""
        return self.peak_flop_per_s[self.ceiling_pipe(pipe)]

    def achievable_fraction(self, pipe: Pipe) -> float:
        """Fraction of :meth:`peak` that large GEMMs reach: the pipe's own, else a similar pipe's, else 0.75."""
        end = self.ceiling_pipe(pipe)
        for dtype in (end.dtype, *_NEIGHBOURS[end.engine]):
            if (known := self.achievable.get(f"{end.engine}.{dtype}")) is not None:
                return known
        return DEFAULT_PEAK_FRACTION

    def running(self) -> Gpu:
        """The GPU at the clock at which its kernels run."""
        return _at_clock(self, self.run_clock_hz or self.boost_clock_hz)

    def fastest(self) -> Gpu:
        """The GPU at the highest clock that it may run at: what no kernel beats."""
        return _at_clock(self, self.max_clock_hz or self.boost_clock_hz)

    def locked(self, clock_hz: float) -> Gpu:
        """The GPU with its clock held: each engine's peak changes by the clock that its datasheet's figure is of."""
        of = {"tensor": self.tensor_clock_hz or self.boost_clock_hz, "vector": self.boost_clock_hz}
        peaks = {pipe: rate * clock_hz / of[pipe.engine] for pipe, rate in self.peak_flop_per_s.items()}
        return replace(_at_clock(self, clock_hz), peak_flop_per_s=peaks, run_clock_hz=0.0, max_clock_hz=0.0)

    def ridge_point(self, pipe: Pipe) -> float:
        """FLOP per DRAM byte above which work for ``pipe`` is limited by compute."""
        return self.peak(pipe) / self.dram_bytes_per_s

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types in a fixed order; :meth:`from_dict` reads it back."""
        record: dict[str, Any] = write(self)
        del record["sm_bytes_per_s"]
        for name in ("cpu", "tpu", "cluster", "run_clock_hz", "max_clock_hz", "tensor_clock_hz"):
            if not getattr(self, name):
                del record[name]
        return record

    @classmethod
    def from_dict(cls, record: Any) -> Gpu:
        """The GPU of a saved record; keys that this version does not know are ignored.

        Raises:
            UsageError: a key is missing or its value is of the wrong kind.
        """
        try:
            found = read(cls, record, "saved GPU")
            if "host" in record:
                return found
            return replace(found, host=host_of(_STATED(record.get("dispatch_s")), found.cpu))
        except BadRecord as error:
            raise UsageError(str(error)) from None


@lru_cache(maxsize=256)
def _at_clock(gpu: Gpu, clock_hz: float) -> Gpu:
    """The GPU with peaks, L2 and all clocks at another clock than the datasheet's; DRAM and links keep theirs."""
    if clock_hz == gpu.boost_clock_hz:
        return gpu
    faster = clock_hz / gpu.boost_clock_hz
    return replace(
        gpu,
        boost_clock_hz=clock_hz,
        run_clock_hz=0.0,
        max_clock_hz=0.0,
        peak_flop_per_s={pipe: faster * rate for pipe, rate in gpu.peak_flop_per_s.items()},
        l2_bytes_per_s=faster * gpu.l2_bytes_per_s,
    )


def host_of(dispatch_s: float | None, cpu: Cpu | None) -> Host:
    """The host of a GPU whose file, or older record, states the seconds of an eager op, or none. A CPU issues nothing:
    it runs an op when it is called."""
    if dispatch_s is None and cpu is None:
        return default_host()
    return Host.uniform(dispatch_s or 0.0)


#: Field of Gpu -> key of a file, how its value is checked, and its default.
FIELDS: Mapping[str, tuple[str, Check, Any]] = {
    name: (item.key, checks_of(Gpu)[name], item.default)
    for name, hint in get_type_hints(Gpu, include_extras=True).items()
    for item in getattr(hint, "__metadata__", ())
    if isinstance(item, Stated)
}
