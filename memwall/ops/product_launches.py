"""Launches of products, by the sizes that their models know: matrix products, convolutions, recurrent networks,
attention. Launches of all other kernels are in :mod:`memwall.ops.launches`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from memwall.core.graph import Pipe
from memwall.hardware.constants import NO_ROWS
from memwall.ops.launches import Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm(Launch):
    """``batch`` products of [m, k] with [k, n] on one pipe; ``itemsize`` bytes per element of an operand. ``aligned``:
    the rows of both operands begin at multiples of 16 bytes. ``padded_from``: the product before a compiler
    padded it."""

    FAMILY: ClassVar[str] = "gemm"
    pipe: Pipe
    batch: int
    m: int
    n: int
    k: int
    itemsize: float
    aligned: bool = True
    padded_from: Gemm | None = None
    #: rows of all of a batch whose products differ in them, ``m`` being the rows of the tallest; 0: all have ``m``
    rows: int = 0

    @property
    def variant(self) -> str:
        return self.pipe.dtype

    @property
    def shown_by(self) -> str:
        return self.variant if self.aligned else NO_ROWS

    @property
    def splits(self) -> bool:
        """Whether several blocks may share a result, each with a part of k."""
        return True

    @property
    def side_itemsizes(self) -> tuple[float, float]:
        """Bytes per operand element of the shorter of m and n, and of the longer."""
        return self.itemsize, self.itemsize

    @property
    def pipe_flops(self) -> Mapping[Pipe, int]:
        return {self.pipe: self.flops}

    @property
    def flops(self) -> int:
        """FLOPs, 2 for each multiply-add."""
        return 2 * (self.rows or self.batch * self.m) * self.n * self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledGemm(Gemm):
    """A product by a kernel that has one ``tile``, of rows of m and columns of n, and does not split k."""

    tile: tuple[int, int]

    @property
    def splits(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedGemm(Gemm):
    """A product with weights [n, k] as a scheme of :mod:`memwall.ops.quantised` stores them. ``itemsize`` is that of
    the activations and of the arithmetic; narrower weights are converted to it inside the kernel."""

    scheme: str
    #: the table of constants of the kernel that runs it
    kernel: str
    weight_itemsize: float

    @property
    def variant(self) -> str:
        return self.kernel

    @property
    def splits(self) -> bool:
        """Kernels of 16-bit activations do (TensorRT-LLM's, Marlin), and cuBLASLt's; others of scaled operands do not:
        SGLang's and vLLM's products take a time in proportion to k where they have few tiles."""
        return self.weight_itemsize < self.itemsize or self.kernel == self.pipe.dtype

    @property
    def side_itemsizes(self) -> tuple[float, float]:
        sides = self.itemsize, self.weight_itemsize
        return sides if self.m <= self.n else sides[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorGemm(Gemm):
    """``batch`` products of [m, k] with [k, n] by multiply-adds of single threads, or on AMD's matrix cores."""

    FAMILY: ClassVar[str] = "gemm_vector"
    #: a bias is added in the same launch; operands are bfloat16 and become float32 in the inner loop
    bias: bool = False
    converts: bool = False

    @property
    def shown_by(self) -> str:
        return self.variant


@cache
def _fourier_flops(kernel: tuple[int, ...], channels_in: int, channels_out: int) -> float:
    """FLOPs of a place of the result by overlap-save, in tiles of the best size: real transforms of 2.5 n log2(n), and
    for each pair of channels n/2 complex products and sums of 8 (Mathieu, Henaff, LeCun 2014). The transforms of the
    weights, which all images share, are left out."""
    axes, smallest, found = len(kernel), max(kernel, default=1).bit_length(), []
    for bits in range(smallest, smallest + 8):
        transforms = 2.5 * bits * axes * (channels_in + channels_out)
        of_tile = 2 ** (bits * axes) * (4 * channels_in * channels_out + transforms)
        found.append(of_tile / math.prod(2**bits - size + 1 for size in kernel))
    return min(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution(Launch):
    """One pass of a convolution; which of its three tensors is made of the other two is its ``role``. The geometry is
    that of the forward pass: channels of one group, and the places of the input and of the output along each axis. A
    transposed convolution's forward pass is another's gradient of its input."""

    FAMILY: ClassVar[str] = "convolution"
    pipe: Pipe
    #: forward, input or weight: the output, or the gradient of an operand
    role: str
    images: int
    groups: int
    channels_in: int
    channels_out: int
    places_in: tuple[int, ...]
    places_out: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    itemsize: int
    #: distance of the window's taps along each axis; empty: 1
    dilation: tuple[int, ...] = ()
    #: the library timed its engines and took the best (``cudnn.benchmark``) instead of asking its heuristic
    searched: bool = False
    channels_last: bool = False
    #: the layer is a transposed convolution, whose passes are another's in other roles
    transposed: bool = False

    @property
    def variant(self) -> str:
        return {"float32": "float32", "float64": "float32", "tf32": "tf32"}.get(self.pipe.dtype, "float16")

    @property
    def shown_by(self) -> str:
        """No row shows a gradient in groups; what few there are take two to five times as long as modeled."""
        in_groups = self.role != "forward" and self.groups > 1 and not self.depthwise
        return NO_ROWS if in_groups else self.variant

    @property
    def pipe_flops(self) -> Mapping[Pipe, int]:
        positions = self.images * math.prod(self.places_out) * math.prod(self.kernel)
        return {self.pipe: 2 * positions * self.groups * self.channels_in * self.channels_out}

    @property
    def spared_flops(self) -> int:
        """Three quarters for unit-stride windows of 3 and more: Winograd F(4x4, 3x3) needs a quarter (36 multiplies for
        16 outputs of 9; Lavin and Gray 2015). For larger windows measured rows alone support a quarter of the
        direct FLOPs, and Fourier transforms may need fewer still."""
        (flops,) = self.pipe_flops.values()
        plain = len(self.kernel) < 2 or min(self.kernel) < 3 or any(step != 1 for step in self.stride)
        least = flops if plain or self.groups != 1 else flops // 4
        places = self.images * self.groups * math.prod(self.places_out) * math.prod(self.stride)
        return flops - min(least, int(places * _fourier_flops(self.kernel, self.channels_in, self.channels_out)))

    @property
    def depthwise(self) -> bool:
        """Whether each channel is convolved alone, by PyTorch's own kernels instead of a library's."""
        return self.pipe.engine == "vector" and self.groups > 1 and self.channels_in == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent(Launch):
    """A library's call for all steps, layers and directions of a recurrent network, forward or backward. ``rows`` are
    rows of all steps: sequences of different lengths (``packed``) have fewer in later ones."""

    FAMILY: ClassVar[str] = "recurrent"
    pipe: Pipe
    dtype: str
    #: lstm, gru, rnn_tanh or rnn_relu, and its gates
    cell: str
    gates: int
    backward: bool
    #: the gradients of the weights too
    of_weights: bool
    steps: int
    rows: int
    layers: int
    directions: int
    #: sizes of the first layer's input, of a gate, and of the state that the next step reads: a projection is smaller
    inputs: int
    hidden: int
    state: int
    itemsize: int
    packed: bool = False
    #: between layers
    dropout: bool = False

    @property
    def latencies(self) -> int:
        return 1

    @property
    def is_projected(self) -> bool:
        return self.state != self.hidden

    @property
    def is_small(self) -> bool:
        """Whether PyTorch asks cuDNN for ``CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H`` (RNN.cpp, ``get_algo``): one kernel
        for all steps of a layer."""
        most = 192 if self.gates > 1 else 384
        most -= (64 if self.gates > 1 else 128) * self.backward
        return self.dtype != "float64" and not (self.packed or self.is_projected) and self.hidden <= most

    @property
    def variant(self) -> str:
        return "standard"

    @property
    def pipe_flops(self) -> Mapping[Pipe, int]:
        """Each weight with each row, twice where the weights get gradients too."""
        gates, projected = self.gates * self.hidden, self.state * self.hidden * self.is_projected
        inputs = self.inputs + (self.layers - 1) * self.directions * self.state
        weights = self.directions * (gates * inputs + self.layers * (gates * self.state + projected))
        return {self.pipe: 2 * (1 + self.of_weights) * self.rows * weights}


#: kernels whose backward no row of any GPU shows, and the one whose constants it takes
_BACKWARD = dict.fromkeys(("flash3", "flash4", "triton"), "flash_backward")
#: Triton loads rows in whole vectors where it knows that they begin at multiples of so many numbers
_TRITON_UNIT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedAttention(Launch):
    """Forward or backward of a fused kernel over ``pairs`` (query, key) pairs of one head. ``kernel`` is ``flash``,
    ``efficient`` or ``cudnn`` of PyTorch, or ``serving``: the op of an inference server, which first applies rotary
    embeddings to queries and keys and stores keys and values in its cache."""

    FAMILY: ClassVar[str] = "attention"
    pipe: Pipe
    kernel: str
    backward: bool
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_size: int
    value_size: int
    pairs: int
    itemsize: int

    @property
    def variant(self) -> str:
        kernel = self.kernel + "_fp8" * (self.itemsize == 1 and self.kernel == "cudnn")
        if self.backward:
            return _BACKWARD.get(kernel, f"{kernel}_backward")
        if self.is_decode:
            return "decode"
        if self.kernel == "triton" and self.head_size % _TRITON_UNIT:
            return "triton_unaligned"
        return "prefill" if self.kernel == "serving" else kernel

    @property
    def shown_by(self) -> str:
        return NO_ROWS if self.backward and self.kernel in _BACKWARD else self.variant

    @property
    def whole_tiles(self) -> bool:
        """Whether ``pairs`` are of whole tiles, as a mask of blocks has them."""
        return False

    @property
    def accumulates(self) -> bool:
        """Whether blocks add to the gradients of the queries, in float32."""
        return self.backward

    @property
    def pipe_flops(self) -> Mapping[Pipe, int]:
        return {self.pipe: self.batch * self.heads * self.pairs * self.flops_per_pair}

    @property
    def flops_again(self) -> Mapping[Pipe, int]:
        """The scores, a product of queries and keys, which no forward kernel keeps."""
        again = 2 * self.batch * self.heads * self.pairs * self.head_size
        return {self.pipe: again} if self.backward else {}

    @property
    def is_decode(self) -> bool:
        """One new token against the keys before it, by a kernel that splits long sequences over blocks."""
        return self.queries == 1 < self.keys and self.kernel != "efficient" and not self.backward

    @property
    def query_bytes(self) -> int:
        """Bytes of the queries; what else is read are keys and values."""
        return self.batch * self.heads * self.queries * self.head_size * self.itemsize

    @property
    def flops_per_pair(self) -> int:
        """FLOPs of a (query, key) pair: two products, or five in the backward, which recomputes the scores."""
        if self.backward:
            return 2 * (3 * self.head_size + 2 * self.value_size)
        return 2 * (self.head_size + self.value_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockAttention(FusedAttention):
    """A kernel of ``flex_attention``, which leaves out whole blocks of pairs: Inductor's Triton template, or
    FlashAttention-4. Triton's backward has blocks for the queries' gradient and others for keys' and values',
    and both compute the scores and their gradients (``flex_backwards.py.jinja``, seven ``tl.dot``)."""

    @property
    def whole_tiles(self) -> bool:
        return True

    @property
    def accumulates(self) -> bool:
        return self.backward and self.kernel != "triton"

    @property
    def flops_again(self) -> Mapping[Pipe, int]:
        if not self.backward:
            return {}
        forward = 2 * (self.head_size + self.value_size)
        return {self.pipe: self.batch * self.heads * self.pairs * (self.flops_per_pair - 2 * forward)}

    @property
    def flops_per_pair(self) -> int:
        if self.backward and self.kernel == "triton":
            return 2 * (4 * self.head_size + 3 * self.value_size)
        if self.backward:
            return 2 * (3 * self.head_size + 2 * self.value_size)
        return 2 * (self.head_size + self.value_size)
