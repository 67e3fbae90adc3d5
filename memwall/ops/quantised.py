"""Quantised products of inference engines, y[m, n] = x[m, k] W[n, k]: how each scheme stores and multiplies.

A row of :data:`SCHEMES` has the bits of weights and activations, their scales and the pipe. Schemes of 16-bit
activations dequantise the weights inside the kernel and multiply on the 16-bit pipe. The others quantise the
activations, of 16 bits, in launches of their own, unless an earlier op did (SmoothQuant: the norm). A GPU without the
pipe keeps 16-bit activations and dequantises the weights, as Marlin's kernels do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from memwall.core.graph import ITEMSIZE, Pipe
from memwall.ops.base import Cost
from memwall.ops.launches import Conversion
from memwall.ops.product_launches import QuantisedGemm

#: bytes of an activation before it is quantised
_HALF_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMatrix:
    """A matrix of ``bits`` per element; one scale of ``scale_bytes``, and a zero point of ``zero_bits``, for each block
    of ``block`` rows and columns (columns run along k; 0: all of them)."""

    bits: int
    block: tuple[int, int] = (1, 0)
    scale_bytes: int = 0
    zero_bits: int = 0

    def nbytes(self, rows: int, columns: int) -> int:
        """Bytes of the elements, scales and zero points."""
        blocks = ceil(rows / (self.block[0] or rows)) * ceil(columns / (self.block[1] or columns))
        return ceil(rows * columns * self.bits / 8) + blocks * self.scale_bytes + ceil(blocks * self.zero_bits / 8)

    @property
    def itemsize(self) -> float:
        """Bytes of an element without its scale."""
        return self.bits / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How the operands of a product are stored, and the tensor pipe that multiplies them."""

    weights: StoredMatrix
    activations: StoredMatrix = StoredMatrix(bits=16)
    pipe: str = "float16"
    #: the scheme that a GPU without the pipe runs, on its 16-bit pipe
    dequantised: str = "int8_wo"


class EngineKernels(NamedTuple):
    """What an engine runs for a scheme."""

    #: the product's table of constants
    product: str
    #: launches that quantise the activations: the last converts, the ones before it find the largest value
    conversions: int = 0
    #: integer instructions of each, for an element and for a row of k
    instructions: int = 16
    row_instructions: int = 0


INT4 = StoredMatrix(bits=4, block=(1, 128), scale_bytes=2)
MXFP4 = StoredMatrix(bits=4, block=(1, 32), scale_bytes=1)
NVFP4 = StoredMatrix(bits=4, block=(1, 16), scale_bytes=1)
MXFP8 = StoredMatrix(bits=8, block=(1, 32), scale_bytes=1)
FP8_BLOCK = StoredMatrix(bits=8, block=(128, 128), scale_bytes=4)
_FP8 = StoredMatrix(bits=8, block=(0, 0), scale_bytes=4)
_INT8 = StoredMatrix(bits=8, scale_bytes=4)

SCHEMES: Mapping[str, Scheme] = {
    "int4_wo": Scheme(weights=INT4, dequantised="int4_wo"),
    # AWQ and GPTQ: a zero point of 4 bits for each group
    "int4_awq": Scheme(weights=replace(INT4, zero_bits=4), dequantised="int4_wo"),
    "mxfp4": Scheme(weights=MXFP4, dequantised="mxfp4"),
    "int8_wo": Scheme(weights=StoredMatrix(bits=8, scale_bytes=2)),
    "fp8": Scheme(weights=_FP8, activations=_FP8, pipe="fp8"),
    "fp8_static": Scheme(weights=_FP8, activations=_FP8, pipe="fp8"),
    "fp8_block": Scheme(
        weights=FP8_BLOCK,
        activations=StoredMatrix(bits=8, block=(1, 128), scale_bytes=4), pipe="fp8",
    ),
    "w4a16_nvfp4": Scheme(weights=NVFP4, dequantised="w4a16_nvfp4"),
    "nvfp4": Scheme(weights=NVFP4, activations=NVFP4, pipe="fp4", dequantised="int4_wo"),
    "sq": Scheme(weights=_INT8, activations=_INT8, pipe="int8"),
}  # fmt: skip

#: (scheme, engine) -> its kernels, where they are others than the scheme's, which have engine ""
KERNELS: Mapping[tuple[str, str], EngineKernels] = {
    ("int4_wo", ""): EngineKernels("int4_wo"),
    ("int4_awq", ""): EngineKernels("int4_wo"),
    ("mxfp4", ""): EngineKernels("mxfp4"),
    ("w4a16_nvfp4", ""): EngineKernels("mxfp4"),  # Marlin's kernels for 4-bit floating point, whatever the scales
    ("int8_wo", ""): EngineKernels("int8_wo"),
    ("fp8", ""): EngineKernels("fp8_scaled", 1),
    # vLLM's static_scaled_fp8_quant has up to 1024 threads for a row of k, which take an SM some 2000 clocks however
    # short it is, on H200, B200 and L40S alike, and half a clock for each element
    ("fp8_static", ""): EngineKernels("fp8_scaled", 1, 32, 128_000),
    # cuBLASLt's (trtllm::cublas_scaled_mm), as PyTorch's scaled products
    ("fp8", "trtllm"): EngineKernels("fp8", 1),
    ("fp8_static", "trtllm"): EngineKernels("fp8", 1),
    ("fp8_block", ""): EngineKernels("fp8_block", 1),
    ("fp8_block", "sglang"): EngineKernels("fp8_block_sglang", 1),
    ("nvfp4", ""): EngineKernels("nvfp4", 1),
    ("nvfp4", "sglang"): EngineKernels("nvfp4_sglang", 1),
    ("nvfp4", "trtllm"): EngineKernels("nvfp4_trtllm", 1),
    ("sq", ""): EngineKernels("sq"),
}


def kernels_of(scheme: str, engine: str = "") -> EngineKernels:
    """The kernels of a scheme in an engine (trtllm, vllm, sglang)."""
    return KERNELS.get((scheme, engine), KERNELS[scheme, ""])


def pipe_of(scheme: str) -> Pipe:
    """The pipe that multiplies the operands as a scheme stores them."""
    return Pipe("tensor", SCHEMES[scheme].pipe)


@lru_cache(maxsize=1 << 16)
def quantised_product(m: int, n: int, k: int, scheme: str, out: str = "bfloat16", *, engine: str = "") -> Cost:
    """``y[m, n] = x[m, k] W[n, k]`` with weights as a ``scheme`` stores them, by the kernels of an ``engine`` (trtllm,
    vllm, sglang), or of the one that is usual. bfloat16 activations are quantised before it where the scheme asks."""
    found = product_of_stored(m, n, k, scheme, out, engine=engine)
    before = _conversions(m, k, SCHEMES[scheme], kernels_of(scheme, engine))
    if not before:
        return found
    # The product comes first: which of its bytes are in L2 is known, and the others find what all of them touch.
    read_bytes = found.read_bytes - before[-1].write_bytes + before[0].read_bytes
    return replace(found, read_bytes=read_bytes, launches=(*found.launches, *before))


def product_of_stored(m: int, n: int, k: int, scheme: str, out: str = "bfloat16", *, engine: str = "") -> Cost:
    """The same of activations that an earlier op quantised."""
    how, pipe = SCHEMES[scheme], pipe_of(scheme)
    gemm = QuantisedGemm(
        pipe=pipe,
        batch=1,
        m=m,
        n=n,
        k=k,
        itemsize=how.activations.itemsize,
        scheme=scheme,
        kernel=kernels_of(scheme, engine).product,
        weight_itemsize=how.weights.itemsize,
        read_bytes=how.activations.nbytes(m, k) + how.weights.nbytes(n, k),
        write_bytes=m * n * ITEMSIZE[out],
    )
    return Cost({pipe: gemm.flops}, gemm.read_bytes, gemm.write_bytes, launches=(gemm,))


def in_groups(given: Cost, groups: int) -> Cost:
    """So many products of one size as batches of the same launches, each with activations and weights of its own."""
    if groups == 1:
        return given
    names = "batch", "read_bytes", "write_bytes", "elements", "instructions"
    launches = (
        replace(work, **{name: groups * getattr(work, name) for name in names if hasattr(work, name)})
        for work in given.launches
    )
    flops = {pipe: groups * count for pipe, count in given.flops.items()}
    moved = {name: groups * getattr(given, name) for name in ("read_bytes", "write_bytes")}
    return replace(given, flops=flops, launches=tuple(launches), **moved)


def _conversions(m: int, k: int, how: Scheme, kernels: EngineKernels) -> tuple[Conversion, ...]:
    """The launches that quantise [m, k] activations."""
    if not kernels.conversions:
        return ()
    last = Conversion(
        read_bytes=_HALF_BYTES * m * k,
        write_bytes=how.activations.nbytes(m, k),
        elements=m * k,
        instructions=m * (k * kernels.instructions + kernels.row_instructions),
        product=Pipe("tensor", how.pipe),
    )
    return (*[replace(last, write_bytes=0)] * (kernels.conversions - 1), last)
