"""What the time of an inference server's own kernels depends on: latent attention and mixtures of experts, as
:mod:`memwall.ops.launches` has the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from memwall.core.graph import Pipe
from memwall.ops.launches import Launch
from memwall.ops.product_launches import Gemm

#: format of experts' weights -> the one whose kernels run, whatever the scales (Marlin's for 4-bit floating point)
_KERNELS = {"w4a16_nvfp4": "w4a16_mxfp4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentProduct(Gemm):
    """The products of all heads before or after absorbed latent attention, with the conversion of the activations
    where they are quantised."""

    @property
    def variant(self) -> str:
        return f"latent_{self.pipe.dtype}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentLaunch(Launch):
    """DeepSeek's latent attention (MLA) in an inference server: keys and values of all heads are products of one latent
    of ``rank`` numbers for each token, next to which stand ``rope`` numbers of a rotated key. ``absorbed`` kernels
    attend to the latents themselves, as one key head of all query heads, the others to ``heads`` keys of
    ``nope + rope`` numbers and values of ``value``. ``eager``: it is not in a CUDA graph, and the host may take
    longer than the GPU."""

    FAMILY: ClassVar[str] = "latent"
    pipe: Pipe
    engine: str
    #: dtype of the cached latents, and bytes of a number of it
    cache: str
    itemsize: int
    batch: int
    heads: int
    queries: int
    keys: int
    pairs: int
    nope: int
    rope: int
    rank: int
    value: int
    absorbed: bool
    eager: bool = False

    @property
    def is_decode(self) -> bool:
        """One new token against the latents before it."""
        return self.queries == 1 and self.absorbed

    @property
    def variant(self) -> str:
        return f"{self.engine}_{'decode' if self.is_decode else 'prefill'}_{self.cache}"

    @property
    def widths(self) -> tuple[int, int]:
        """Numbers of a head's key and of its value, as the kernel attends to them."""
        return (self.rank + self.rope, self.rank) if self.absorbed else (self.nope + self.rope, self.value)

    @property
    def latent_bytes(self) -> int:
        """Bytes of the latents of all keys."""
        return self.batch * self.keys * (self.rank + self.rope) * self.itemsize

    @property
    def pipe_flops(self) -> Mapping[Pipe, int]:
        return {self.pipe: 2 * self.batch * self.heads * self.pairs * sum(self.widths)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenLatent(Launch):
    """Latent attention of ``rows`` new tokens, each to the latents of ``chosen`` places, of which ``pairs`` over all
    rows are filled. Which kernel does it depends on the server, its cache, the heads of the GPU and the GPU
    (:func:`memwall.perfmodel.chosen.kernel_of`)."""

    FAMILY: ClassVar[str] = "walk"
    engine: str
    #: dtype of the cached latents
    cache: str
    heads: int
    rows: int
    chosen: int
    pairs: int
    #: numbers of a latent, and of the part of it that is summed
    size: int
    value: int
    #: of decodes: the kernel that attends to all latents of a shorter cache
    dense: LatentLaunch | None = None

    @property
    def variant(self) -> str:
        return "sparse_prefill"

    @property
    def latencies(self) -> int:
        return 0

    @property
    def pipe_flops(self) -> Mapping[Pipe, int]:
        return {Pipe("tensor", "bfloat16"): 2 * self.heads * self.pairs * (self.size + self.value)}


@lru_cache(maxsize=1 << 15)
def _blocks(loads: tuple[tuple[int, int], ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """What both products, and all GPUs, share of so many rows and experts."""
    return tuple(sum([-(-rows // size) * experts for rows, experts in loads]) for size in sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsLaunch(Launch):
    """The experts of a mixture that are on one GPU: the rows of the tokens sorted by expert, a grouped product into
    ``gates * inter`` columns, the activation, a grouped product back to ``hidden`` columns, and the sum over each
    token's experts. ``engine`` is the inference server whose kernels run, ``scheme`` the format of the weights."""

    FAMILY: ClassVar[str] = "experts"
    pipe: Pipe
    engine: str
    scheme: str
    tokens: int
    hidden: int
    #: columns that this GPU has of an expert's ``inter``, and the first product's columns for each of them
    inter: int
    gates: int
    #: (rows, experts that have so many), without experts that have none
    loads: tuple[tuple[int, int], ...]
    #: of one expert's weights and their scales; of one activation in the products
    expert_bytes: int
    itemsize: float
    #: rows that are activated and summed: kernels that skip rows of experts elsewhere only in products move them all
    moved_rows: int

    @property
    def variant(self) -> str:
        return f"{self.engine}_{_KERNELS.get(self.scheme, self.scheme)}"

    @property
    def active(self) -> int:
        """Experts with at least one row."""
        return sum(experts for _, experts in self.loads)

    @property
    def rows(self) -> int:
        """Rows of all experts: a token's row once for each of its experts here."""
        return sum(rows * experts for rows, experts in self.loads)

    def blocks(self, *sizes: int) -> tuple[int, ...]:
        """Blocks of each of so many rows that hold the rows of all experts, each expert's last one filled up."""
        return _blocks(self.loads, sizes)

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """Columns and depth of the two products."""
        return (self.gates * self.inter, self.hidden), (self.hidden, self.inter)

    @property
    def pipe_flops(self) -> Mapping[Pipe, int]:
        return {self.pipe: 2 * self.rows * sum(n * k for n, k in self.products)}
