"""The constants that a GPU's file may state for each launch family: how well such kernels use the GPU.

Each has a meaning, a range and a default; the file says from which rows it was fitted
(``[utilization.<family>.<variant>]``). The launches themselves are in :mod:`memwall.ops.launches`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar


def constant(default: float, low: float, high: float, meaning: str, *, fit_low: float | None = None) -> Any:
    """A field of :class:`Constants`: the value without data, the range that a file or a record may state, what it is,
    and the least that a fit may find where files may state less."""
    found = {"low": low, "high": high, "fit_low": low if fit_low is None else fit_low, "meaning": meaning}
    return field(default=default, metadata=found)


#: variant of a launch of any family that no row of any GPU shows
NO_ROWS = "unmeasured"


@dataclass(frozen=True, slots=True)
class Constants:
    """The numbers of one family on one GPU; the defaults are what holds for GPUs without data."""

    FAMILY: ClassVar[str] = ""
    #: tables that a file may state; a missing one is replaced by the first that is there
    VARIANTS: ClassVar[tuple[str, ...]] = ()
    #: measured over modeled time, 10th and 90th percentile, with another GPU's constants, and with the defaults or
    #: the former where that is wider (``lab/fits/foreign_intervals.py``); here the widest of all families but walks
    FOREIGN: ClassVar[tuple[float, float]] = (0.61, 2.34)
    UNKNOWN: ClassVar[tuple[float, float]] = (0.61, 2.34)
    #: both, of variants whose kernels differ more between GPUs
    FOREIGN_OF: ClassVar[Mapping[str, tuple[float, float]]] = {}
    #: a variant that no row of a shipped GPU shows: without a table of its own it takes the constants of the one that
    #: it is like, or else of the first, and the widest interval
    UNMEASURED: ClassVar[str] = ""
    LIKE: ClassVar[str] = ""
    interval_low: float = constant(0.61, 0.01, 1.0, "measured over modeled time, 10th percentile")
    interval_high: float = constant(2.34, 1.0, 100.0, "measured over modeled time, 90th percentile")
    interval_long: float = constant(
        1.0, 0.05, 3.0, "power of both for kernels of 0.5 ms and more; they hold as they are up to 5 us"
    )

    @classmethod
    def stated(cls) -> tuple[str, ...]:
        """The variants that a file may have a table of."""
        return (*cls.VARIANTS, cls.UNMEASURED) if cls.UNMEASURED else cls.VARIANTS


def names_of(kind: type[Constants]) -> tuple[str, ...]:
    """The names of a family's constants."""
    return tuple(item.name for item in fields(kind))


@dataclass(frozen=True, slots=True)
class GemmConstants(Constants):
    """How a library's matrix kernels use a GPU; clocks at the boost clock, bytes per clock of one SM."""

    FAMILY: ClassVar[str] = "gemm"
    #: by pipe; of quantised products by kernel (:data:`memwall.ops.quantised.KERNELS`)
    VARIANTS: ClassVar[tuple[str, ...]] = (
        "bfloat16",
        "float16",
        "tf32",
        "fp8",
        "int8",
        "float32",
        "float64",
        "int4_wo",
        "int8_wo",
        "sq",
        "fp8_scaled",
        "fp8_block",
        "fp8_block_sglang",
        "nvfp4",
        "nvfp4_sglang",
        "nvfp4_trtllm",
        "latent_bfloat16",
        "latent_fp8",
    )
    #: residuals of the fit half of aiconfigurator_quant_gemm with each GPU left out, GPU and table of equal weight
    FOREIGN_OF: ClassVar[Mapping[str, tuple[float, float]]] = {
        **dict.fromkeys(("int4_wo", "int8_wo", "sq"), (0.47, 1.35)),
        **dict.fromkeys(("fp8_scaled", "fp8_block", "fp8_block_sglang"), (0.84, 1.45)),
        **dict.fromkeys(("nvfp4", "nvfp4_sglang", "nvfp4_trtllm"), (0.84, 1.45)),
    }
    UNMEASURED: ClassVar[str] = "mxfp4"
    LIKE: ClassVar[str] = "int4_wo"
    FOREIGN: ClassVar[tuple[float, float]] = (0.84, 1.25)
    UNKNOWN: ClassVar[tuple[float, float]] = (0.75, 1.26)
    plateau: float = constant(0.9, 0.3, 1.1, "fraction of its peak that an SM reaches inside a tile")
    sustained: float = constant(0.65, 0.2, 2.0, "fraction of the peak that 1 W per TFLOP/s of float16 allows")
    load: float = constant(45.0, 0.5, 400.0, "bytes of operands that an SM loads in a clock")
    depth_clocks: float = constant(6.0, 0.0, 30.0, "clocks that a lone tile takes for 2 bytes of a row")
    rounding: float = constant(0.7, 0.0, 1.0, "share of a partial wave's idle time that is lost")
    tile_clocks: float = constant(2500.0, 0.0, 9000.0, "clocks to begin and to end a tile of 128 x 256")
    store: float = constant(10.0, 1.0, 64.0, "bytes of results that an SM writes in a clock")
    dram: float = constant(0.85, 0.4, 1.0, "fraction of the DRAM bandwidth that operands stream at")
    split_s: float = constant(2.5e-6, 0.0, 2e-5, "seconds to add the parts of a matmul split along k")
    start_s: float = constant(0.0, 0.0, 2e-5, "seconds of the shortest matmul beyond an empty kernel")


@dataclass(frozen=True, slots=True)
class VectorGemmConstants(Constants):
    """How a library's float32 and float64 products use a GPU."""

    FAMILY: ClassVar[str] = "gemm_vector"
    VARIANTS: ClassVar[tuple[str, ...]] = ("float32", "float64")
    FOREIGN: ClassVar[tuple[float, float]] = (0.84, 1.55)
    UNKNOWN: ClassVar[tuple[float, float]] = (0.74, 2.03)
    plateau: float = constant(0.92, 0.2, 1.05, "fraction of the peak of 128x128 tiles at the boost clock")
    flop_per_joule: float = constant(5.3e10, 1e10, 1e12, "FLOP that a joule pays for on a chip of 16 nm")
    burst_s: float = constant(5e-4, 0.0, 1e-1, "seconds until it does")
    looped: float = constant(1.0, 0.2, 1.0, "share of flop_per_joule that is left after seconds of steps")
    batched: float = constant(1.0, 0.5, 1.3, "rate of a batch over that of a matmul alone")
    biased: float = constant(1.0, 0.5, 1.3, "rate with a bias added (cuBLASLt) over that without")
    operand_load: float = constant(5.0, 0.0, 40.0, "multiply-adds that loading an operand's element takes")
    step_clocks: float = constant(450.0, 50.0, 4000.0, "clocks of a lone block's step of 8 in k")
    tile_clocks: float = constant(2500.0, 0.0, 20000.0, "clocks to fill a wave and store its results")
    split_s: float = constant(4e-6, 0.0, 2e-5, "seconds to add the parts of a matmul whose k is split")
    reach_bytes: float = constant(9e7, 1e6, 1e10, "operand rows in flight, end to end, that the TLB reaches")
    walk: float = constant(0.0, 0.0, 10.0, "how much longer a step takes where every row misses the TLB")
    conflict: float = constant(0.0, 0.0, 10.0, "how much longer where rows lie a multiple of 128 KiB apart")
    deep: float = constant(1.0, 0.2, 1.2, "rate of a batch of deep matmuls with small results, over others")


@dataclass(frozen=True, slots=True)
class ConvolutionConstants(Constants):
    """How a library's kernels use a GPU: ``float32`` without TF32 (and float64), ``tf32``, ``float16`` for all narrower
    types.

    A step of k is one multiply-add of every element of a tile.
    """

    FAMILY: ClassVar[str] = "convolution"
    VARIANTS: ClassVar[tuple[str, ...]] = ("float16", "tf32", "float32")
    FOREIGN: ClassVar[tuple[float, float]] = (0.70, 1.67)
    UNKNOWN: ClassVar[tuple[float, float]] = (0.62, 1.60)
    plateau: float = constant(0.6, 0.1, 1.0, "fraction of the peak of an implicit GEMM in 128 x 128 tiles")
    backward_input: float = constant(0.85, 0.1, 1.5, "the same for the input's gradient, over the plateau")
    backward_weight: float = constant(0.85, 0.1, 1.5, "the same for the weight's gradient, over the plateau")
    reuse: float = constant(0.45, 0.0, 1.0, "exponent of a tile's m n / (m + n) in its rate")
    ramp: float = constant(40.0, 0.0, 400.0, "steps of k that the start and the end of a tile cost")
    lone_tile: float = constant(1.2e4, 500.0, 6e4, "elements of a tile that fills a multiprocessor by itself")
    part_steps: float = constant(6000.0, 64.0, 1e5, "steps of k in the shortest part of a split matmul")
    channel_slice: float = constant(32.0, 1.0, 64.0, "tensor cores take channels in multiples of this")
    relayout: float = constant(0.2, 0.0, 1.0, "share of NCHW tensors that tensor cores need copied to NHWC")
    copy_launches: float = constant(0.0, 0.0, 3.0, "launches of these copies that relayout's share does not hold")
    winograd: float = constant(0.6, 0.1, 1.0, "fraction of the peak that Winograd's matmuls reach")
    winograd_traffic: float = constant(1.3, 0.1, 3.0, "rate of its transforms over that of the DRAM")
    winograd_fused: float = constant(0.5, 0.1, 1.0, "fraction of the peak that Winograd in one kernel reaches")
    depthwise: float = constant(0.125, 0.01, 1.0, "fraction of the peak of depthwise kernels")


@dataclass(frozen=True, slots=True)
class AttentionConstants(Constants):
    """How fused attention kernels use a GPU. Clocks are a multiprocessor's at the boost clock."""

    FAMILY: ClassVar[str] = "attention"
    VARIANTS: ClassVar[tuple[str, ...]] = (
        "flash",
        "flash3",
        "flash4",
        "triton",
        "triton_unaligned",
        "trtllm",
        "prefill",
        "cudnn",
        "efficient",
        "flash_backward",
        "cudnn_backward",
        "cudnn_fp8",
        "cudnn_fp8_backward",
        "cudnn_mxfp8",
        "cudnn_mxfp8_backward",
        "efficient_backward",
        "decode",
    )
    FOREIGN: ClassVar[tuple[float, float]] = (0.78, 1.21)
    UNKNOWN: ClassVar[tuple[float, float]] = (0.78, 2.34)
    # the loop over a tile's keys
    plateau: float = constant(0.6, 0.05, 1.5, "rate of a tile's matmuls over that of large GEMMs")
    softmax_instructions: float = constant(6.0, 0.0, 40.0, "float32 instructions per score, not hidden by matmuls")
    # around that loop
    block_clocks: float = constant(0.0, 0.0, 1e5, "clocks of a block before and after its loop")
    latency_s: float = constant(2e-6, 0.0, 1e-4, "seconds of dependent steps beyond the launch latency")
    stream: float = constant(0.85, 0.1, 1.0, "fraction of the DRAM bandwidth that large inputs reach")
    prepare_bytes_per_clock: float = constant(
        8.0, 0.1, 100.0, "bytes per clock that a multiprocessor moves in a server's pass before the kernel"
    )
    # decode: a block for each key head and its group of query heads, or one for each query head
    sm_bytes_per_clock: float = constant(24.0, 0.5, 100.0, "bytes per clock that a multiprocessor streams for groups")
    row_clocks: float = constant(1.5, 0.0, 100.0, "clocks per element of a block's query rows, filled up to 8")
    head_block_clocks: float = constant(2400.0, 0.0, 1e5, "block_clocks, a block for each query head")
    head_bytes_per_clock: float = constant(25.0, 0.5, 100.0, "sm_bytes_per_clock, a block for each query head")
    join_s: float = constant(5e-6, 0.0, 1e-4, "seconds to join the parts of a sequence that several blocks read")


@dataclass(frozen=True, slots=True)
class RecurrentConstants(Constants):
    """How cuDNN's persistent kernels run recurrent layers; without rows, from the latencies of L2."""

    FAMILY: ClassVar[str] = "recurrent"
    VARIANTS: ClassVar[tuple[str, ...]] = ("standard",)
    step_clk: float = constant(3000.0, 100.0, 2e4, "clocks of a persistent step: state to L2, barrier, back")


@dataclass(frozen=True, slots=True)
class LatentConstants(Constants):
    """How latent attention of an inference server uses a GPU, by server, phase and dtype of the cache; clocks at the
    boost clock, bytes per clock of one multiprocessor."""

    FAMILY: ClassVar[str] = "latent"
    VARIANTS: ClassVar[tuple[str, ...]] = tuple(
        f"{engine}_{phase}_{cache}"
        for phase in ("prefill", "decode")
        for cache in ("bfloat16", "fp8")
        for engine in ("trtllm", "sglang", "vllm")
    )
    FOREIGN: ClassVar[tuple[float, float]] = (0.80, 1.46)
    UNKNOWN: ClassVar[tuple[float, float]] = (0.74, 2.16)
    plateau: float = constant(0.6, 0.02, 1.2, "fraction of the peak that matmuls reach inside a tile")
    rows: float = constant(0.5, 0.005, 3.0, "fraction of the DRAM bandwidth that queries, results and new latents take")
    start_s: float = constant(1e-5, 0.0, 5e-4, "seconds of the shortest call beyond its launch latency")
    host_s: float = constant(1.5e-4, 0.0, 1e-2, "seconds that the server's host takes outside of a CUDA graph")
    # prefill
    block_clocks: float = constant(4000.0, 0.0, 1e5, "clocks of a block before and after its loop")
    # decode
    stream: float = constant(0.9, 0.02, 1.0, "fraction of the DRAM bandwidth that cached latents reach")
    sm_bytes_per_clock: float = constant(25.0, 0.3, 200.0, "bytes of latents that a block loads in a clock")
    most_parts: float = constant(256.0, 1.0, 1024.0, "most blocks that share a sequence")


@dataclass(frozen=True, slots=True)
class WalkConstants(Constants):
    """How kernels use a GPU whose blocks walk along a sequence, by kernel (:class:`memwall.ops.launches.Walk`): linear
    attention, state spaces, convolutions of a few taps, sparse attention and its index, casts. Clocks at the boost
    clock."""

    FAMILY: ClassVar[str] = "walk"
    VARIANTS: ClassVar[tuple[str, ...]] = (
        "delta_triton",
        "delta_fused",
        "state_triton",
        "state_fused",
        "conv_rows",
        "conv_tiles",
        "conv_update",
        "conv_update_rows",
        "index",
        "index_paged",
        "top_k",
        "top_k_flat",
        "sparse_prefill",
        "sparse_decode",
        "sparse_rows",
        "sparse_gen",
        "sparse_gen_fp8",
        "sparse_window",
        "cast",
        "cast_rows",
        "cast_eager",
        "amax",
        "amax_rows",
    )
    FOREIGN: ClassVar[tuple[float, float]] = (0.70, 1.29)
    UNKNOWN: ClassVar[tuple[float, float]] = (0.41, 2.20)
    plateau: float = constant(0.9, 0.01, 1.2, "fraction of the peak that a block's matmuls reach")
    stream: float = constant(
        0.7, 0.02, 1.1, "fraction of the DRAM bandwidth that what is read and written once takes", fit_low=0.3
    )
    block_clk: float = constant(3000.0, 0.0, 5e4, "clocks of a block beside its steps")
    step_clk: float = constant(1000.0, 0.0, 5e4, "clocks of a step, which waits for the one before it")
    start_s: float = constant(2e-6, 0.0, 5e-5, "seconds of the shortest of its kernels, the launch included")


@dataclass(frozen=True, slots=True)
class ExpertsConstants(Constants):
    """How the fused experts of an inference server use a GPU, by server and format of the weights; clocks at the boost
    clock, bytes per clock of one multiprocessor."""

    FAMILY: ClassVar[str] = "experts"
    VARIANTS: ClassVar[tuple[str, ...]] = tuple(
        f"{engine}_{scheme}"
        for scheme in ("bfloat16", "fp8", "fp8_block", "int4_wo", "nvfp4", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8", "w4afp8")
        for engine in ("vllm", "trtllm", "sglang")
    )
    FOREIGN: ClassVar[tuple[float, float]] = (0.66, 1.44)
    UNKNOWN: ClassVar[tuple[float, float]] = (0.61, 1.80)
    plateau: float = constant(0.7, 0.02, 1.1, "fraction of its peak that a multiprocessor reaches inside a tile")
    load: float = constant(40.0, 0.5, 400.0, "bytes of operands that a multiprocessor loads in a clock")
    tile_clocks: float = constant(2000.0, 0.0, 3e4, "clocks to begin and to end a tile")
    dram: float = constant(0.8, 0.1, 1.0, "fraction of the DRAM bandwidth that weights stream at")
    stream: float = constant(0.5, 0.02, 2.0, "fraction of it that rows are sorted, activated and summed at")
    start_s: float = constant(1.5e-5, 0.0, 3e-4, "seconds of the shortest layer beyond its launch latencies")


@dataclass(frozen=True, slots=True)
class RowsConstants(Constants):
    """How row kernels use a GPU. Clocks are boost clocks of a multiprocessor of four warp schedulers with all its
    threads busy. The bandwidth is a share of a triad's, so that both also hold on GPUs of other sizes."""

    FAMILY: ClassVar[str] = "rows"
    VARIANTS: ClassVar[tuple[str, ...]] = ("softmax_block", "softmax_warp", "layer_norm", "rms_norm", "block_norm")
    FOREIGN: ClassVar[tuple[float, float]] = (0.81, 1.19)
    UNKNOWN: ClassVar[tuple[float, float]] = (0.79, 1.69)
    plateau: float = constant(0.85, 0.3, 1.2, "share of the bandwidth of a triad that large inputs reach")
    row_clk: float = constant(150.0, 0.0, 4000.0, "clocks of a multiprocessor for a row: its start and its joins")
    column_clk: float = constant(0.5, 0.0, 3.0, "clocks of a multiprocessor for an element of a row")
    cold_clk: float = constant(
        0.0, 0.0, 2.0, "clocks more for an element that comes from DRAM: waits that nothing hides"
    )
    unaligned: float = constant(1.0, 1.0, 2.5, "column_clk's factor where rows do not begin at whole 16 bytes")
    latency_s: float = constant(2e-6, 0.0, 2e-5, "seconds from a kernel's start to its first full wave and back")
    step_s: float = constant(0.0, 0.0, 2e-6, "seconds more for each 1024 columns of a row, one after another")


@dataclass(frozen=True, slots=True)
class StreamConstants(Constants):
    """How streaming kernels use a GPU: the fractions of the DRAM bandwidth that large inputs reach, by the share of
    bytes written, and the latency of a small input."""

    FAMILY: ClassVar[str] = "stream"
    #: ``looped``: threads that load one element after another (reductions, pooling, moments, scans)
    VARIANTS: ClassVar[tuple[str, ...]] = ("elementwise", "looped")
    #: residuals of modules of such kernels, KernelBench's on A100, A10G, L40S and T4 and ours on an H200, the half that
    #: may be fitted (``lab/fits/foreign_intervals.py``)
    FOREIGN_OF: ClassVar[Mapping[str, tuple[float, float]]] = {"looped": (0.84, 1.56)}
    UNMEASURED: ClassVar[str] = NO_ROWS
    FOREIGN: ClassVar[tuple[float, float]] = (0.89, 1.2)
    UNKNOWN: ClassVar[tuple[float, float]] = (0.88, 1.2)
    read: float = constant(0.92, 0.3, 0.98, "fraction of the DRAM bandwidth where all is read")
    triad: float = constant(0.85, 0.3, 0.98, "fraction of the DRAM bandwidth where a third is written")
    copy: float = constant(0.85, 0.3, 0.98, "fraction of the DRAM bandwidth where half or more is written")
    latency_s: float = constant(0.5e-6, 0.0, 1e-5, "seconds from the start of a kernel to the plateau and back")


@dataclass(frozen=True, slots=True)
class PlainConstants(Constants):
    """No constants: the GPU's achievable fractions say everything."""

    FAMILY: ClassVar[str] = "plain"


@dataclass(frozen=True, slots=True)
class LaunchConstants(Constants):
    """Seconds around a kernel.

    ``kernel``: a profiler's time of the kernel alone. ``call``: events around one eager call on an idle GPU. The time
    is then the longer of the host's whole time and of its time up to the launch plus the kernel, as in a lone call of
    :class:`memwall.hardware.host.Host`, whose ``op_after`` is this one. The other constants are host times by op,
    relative to a binary operator's. (Kernels back to back, as in a CUDA graph:
    ``launch_overhead_s``.)
    """

    FAMILY: ClassVar[str] = "launch"
    VARIANTS: ClassVar[tuple[str, ...]] = ("kernel", "call")
    floor_s: float = constant(2.5e-6, 0.0, 1e-3, "seconds of the shortest kernel, or of a call of a binary operator")
    op_after: float = constant(0.0, 0.0, 1.0, "share of the floor from the launch to the second event")
    operator: float = constant(1.0, 0.0, 10.0, "way of a binary operator; others where a host was slower for a while")
    relu: float = constant(1.2, 0.0, 10.0, "way of a module whose function is a lone op")
    gelu: float = constant(1.15, 0.0, 10.0, "way of nn.GELU")
    softmax: float = constant(1.25, 0.0, 10.0, "way of nn.Softmax")
    layer_norm: float = constant(1.76, 0.0, 10.0, "way of nn.LayerNorm: checks, three results")
    batched: float = constant(1.2, 0.0, 10.0, "way of torch.bmm")
    linear: float = constant(1.97, 0.0, 10.0, "way of a matmul of 3 axes with 2: views around the call of cuBLAS")
    convolution: float = constant(2.6, 0.0, 20.0, "way of nn.Conv2d: cuDNN's plan is looked up")


@dataclass(frozen=True, slots=True)
class TpuConstants(Constants):
    """What kernels that XLA compiles reach of a TPU (:mod:`memwall.perfmodel.tpu`)."""

    FAMILY: ClassVar[str] = "tpu"
    VARIANTS: ClassVar[tuple[str, ...]] = ("matrix", "vector", "attention")
    reached: float = constant(0.93, 0.3, 1.0, "share of their peak that matrix units reach in whole tiles")
    dram: float = constant(0.85, 0.4, 1.0, "share of the bandwidth of HBM")


#: family -> its constants
CONSTANTS: Mapping[str, type[Constants]] = {
    kind.FAMILY: kind
    for kind in (
        GemmConstants, VectorGemmConstants, ConvolutionConstants, AttentionConstants, RecurrentConstants,
        LatentConstants, WalkConstants, ExpertsConstants, RowsConstants, StreamConstants, LaunchConstants,
        PlainConstants, TpuConstants,
    )
}  # fmt: skip
