"""How fused attention kernels use a GPU.

Many queries: a thread block holds a tile of queries of one head and loops over tiles of keys. A step takes the clocks
of its matmuls on the tensor cores and of its softmax on the vector lanes, which overlap only in part; that
keeps fast tensor cores at half of their peak. Tiles are whole: a causal call pays for the upper halves of the tiles
on its diagonal, a short sequence for a whole tile.

One query (decode): a block streams the keys and values of one key head for the whole group of query heads that
share it (FlashDecoding, XQA); several blocks share a long sequence, and a last pass combines their parts. Without a
group, with one too wide for a tile, or where a server's groups would have too few blocks, each query head has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import hypot
from typing import NamedTuple

from memwall.core.graph import Pipe
from memwall.core.units import counted
from memwall.hardware.chips import chip_of
from memwall.hardware.constants import AttentionConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.product_launches import FusedAttention
from memwall.perfmodel.base import Terms, traffic_s

#: queries that a block holds, keys of one step of its loop (FlashAttention-2 for head sizes up to 128)
TILE = (128, 64)
#: the same in memory-efficient kernels, for heads of up to 64 and for wider ones (fmha_cutlassF_*_64x64, _32x128)
EFFICIENT_TILES, _NARROW = ((64, 64), (32, 128)), 64
#: numbers of a head that a kernel is compiled for, to which shorter ones are padded: FlashAttention-2 and -3
#: (flash_fwd_launch_template.h, hopper/tile_size.h); Triton takes powers of two; others multiples of 16
HEAD_SIZES: Mapping[str, tuple[int, ...]] = {
    "flash": (32, 64, 96, 128, 192, 256), "flash3": (64, 96, 128, 192, 256),
    "triton": (16, 32, 64, 128, 256, 512),
}  # fmt: skip
_HEAD_UNIT = 16
#: query heads of one key head that a decode kernel takes in one block (TensorRT-LLM, decoderXQARunner: 32)
WIDEST_GROUP = 32
#: query rows of the narrowest tensor core tile, to which a group is padded
GROUP_ROWS = 8
#: a sequence is split until each multiprocessor has this many blocks, but no part gets fewer keys
SPLIT = (2, 256)
#: the same of a group in TensorRT-LLM's XQA kernels, which it takes where so many times their blocks fill the GPU
#: (decoderXQAConstants.h: kTargetWaveFactor, kMinHistoryTokensPerBlock, kEnableMinBlockFactor)
XQA_SPLIT, XQA_BLOCKS = (8, 128), 4
#: share of a partial wave's idle time that is lost
ROUNDING = 0.5
#: blocks of unequal length end unevenly: by this fraction of the longest, on average
UNEVEN_END = 0.5
#: a float32 matmul on TF32 cores takes three of them (CUTLASS, OpMultiplyAddFastF32)
TF32_PRODUCTS = 3
#: bytes of a number of the queries' gradients while they are summed, and how often these are moved: set to zero, read
#: and written by the block that adds last, read to be converted (flash_bwd_launch_template.h: dq_accum)
_SUM_BYTES, _SUM_PASSES = 4, 4
#: kernels that multiply all pairs below the diagonal whatever the window: times of cudnn_sdpa.csv grow with the square
#: of the length
_WHOLE_WINDOWS = ("cudnn_fp8_backward", "cudnn_mxfp8_backward")
#: a kernel that takes values as wide as queries: of GB200's times in cudnn_sdpa.csv a pair with heads of 192 and values
#: of 128 takes 1.5 times what one of 128 does, and 1.3 times the FLOPs
_ONE_SIZE = "cudnn_backward"
_LANES = Pipe.parse("vector.float32")


def predict(launch: FusedAttention, gpu: Gpu, known: AttentionConstants, resident_bytes: int = 0) -> Terms:
    """The terms of a launch with the constants given."""
    if not launch.batch * launch.heads * launch.pairs:
        return Terms.of(0.0, traffic_s(gpu, launch.bytes, 0, known.stream), ends_s=known.latency_s)
    return (_decode if launch.is_decode else _tiled)(launch, gpu, known, resident_bytes)


def explain(launch: FusedAttention, gpu: Gpu, known: AttentionConstants, terms: Terms) -> str:
    """Why the launch takes its time, in one sentence."""
    if not terms.facts:
        return "No query attends to a key; only bytes are moved."
    return (_explain_decode if launch.is_decode else _explain_tiled)(launch, gpu, known, terms)


# ---- many queries


class _Tiles(NamedTuple):
    """Blocks of all heads, steps of all blocks of one head, and what a block is: its tile, its longest loop."""

    rows: int
    columns: int
    blocks: int
    steps: float
    longest: float
    even: bool


def _tiles(launch: FusedAttention, gpu: Gpu) -> _Tiles:
    rows, columns = chip_of(gpu).serving_tile if launch.kernel == "serving" else TILE
    if launch.kernel == "efficient":
        rows, columns = EFFICIENT_TILES[max(launch.head_size, launch.value_size) > _NARROW]
    per_head, across = -(-launch.queries // rows), -(-launch.keys // columns)
    even = launch.pairs >= launch.queries * launch.keys
    pairs, causal = launch.pairs, launch.queries * (2 * launch.keys - launch.queries + 1) // 2
    edges = 1 + (pairs < causal)
    if launch.variant in _WHOLE_WINDOWS and edges > 1:
        pairs, edges = causal, 1
    # half a tile is lost where an edge of the mask crosses one; each block takes at least one step, at most all
    crossed = pairs / (rows * columns) + edges * per_head * max(1.0, rows / columns) / 2 * (not launch.whole_tiles)
    steps = per_head * across if even else min(max(crossed, per_head), per_head * across)
    longest = min(across, 2 * steps / per_head)
    return _Tiles(rows, columns, launch.batch * launch.heads * per_head, steps, longest, even)


def _tiled(launch: FusedAttention, gpu: Gpu, known: AttentionConstants, resident_bytes: int) -> Terms:
    tiles = _tiles(launch, gpu)
    step = tiles.rows * tiles.columns * _pair_clocks(launch, gpu, known)
    clocks = longest = tiles.longest * step + known.block_clocks
    if tiles.even:
        clocks = -(-tiles.blocks // gpu.sm_count) * longest
    elif tiles.blocks > gpu.sm_count:
        all_blocks = launch.batch * launch.heads * tiles.steps * step + tiles.blocks * known.block_clocks
        clocks = max(longest, all_blocks / gpu.sm_count + UNEVEN_END * longest)
    resident = min(resident_bytes, launch.read_bytes)
    if launch.kernel == "serving":  # the pass before the kernel evicts what does not fit next to its results
        over = (2 * launch.read_bytes + launch.write_bytes) / max(gpu.l2_bytes, 1)
        resident = int(resident * min(max(2 - over, 0.0), 1.0))
    traffic = _moved_s(launch, gpu, known, resident) + _accumulated_s(launch, gpu, known)
    issue_s, refill_s = _prepare_s(launch, gpu, known, 2 * launch.read_bytes, 2 * resident)
    prepare_s = max(issue_s, refill_s)
    # loading and storing tiles, and the pass before, add to the loops
    loading_s = max(1.0, tiles.blocks / gpu.sm_count) * known.block_clocks / gpu.boost_clock_hz
    loops_s = clocks / gpu.boost_clock_hz - loading_s
    body_s = max(loops_s + loading_s, traffic) + prepare_s
    facts = {"tiles": tiles, "loops_s": loops_s, "loading_s": loading_s, "traffic_s": traffic, "prepare_s": prepare_s}
    latency_s = loading_s + issue_s + known.latency_s
    return Terms(loops_s, traffic + refill_s, latency_s, body_s, known.latency_s, facts)


def _product_rate(launch: FusedAttention, gpu: Gpu, known: AttentionConstants) -> float:
    """FLOP/s of the matmuls alone: relative to GEMMs, since a power-limited GPU is limited in both."""
    return gpu.peak(launch.pipe) * min(gpu.achievable_fraction(launch.pipe) * known.plateau, 1.0)


def padded(kernel: str, size: int) -> int:
    """Numbers of a head as a kernel multiplies them."""
    least = -(-size // _HEAD_UNIT) * _HEAD_UNIT
    return next((compiled for compiled in HEAD_SIZES.get(kernel, ()) if compiled >= size), least)


def _pair_clocks(launch: FusedAttention, gpu: Gpu, known: AttentionConstants) -> float:
    """Clocks of a multiprocessor per (query, key) pair of a tile: the matmuls, of padded heads, and the softmax."""
    size, value_size = (padded(launch.kernel, each) for each in (launch.head_size, launch.value_size))
    if launch.variant == _ONE_SIZE:
        value_size = max(size, value_size)
    launch = replace(launch, head_size=size, value_size=value_size)
    products = TF32_PRODUCTS if launch.itemsize == 4 and gpu.ceiling_pipe(launch.pipe).dtype == "tf32" else 1
    per_clock = gpu.sm_count * gpu.boost_clock_hz
    product_clocks = products * launch.flops_per_pair * per_clock / _product_rate(launch, gpu, known)
    return product_clocks + 2 * known.softmax_instructions * per_clock / gpu.peak(_LANES)


def _moved_s(launch: FusedAttention, gpu: Gpu, known: AttentionConstants, resident: int) -> float:
    """Seconds of the traffic; where all fits in L2, results stay there as far as the inputs did."""
    if launch.bytes <= gpu.l2_bytes:
        resident = resident * launch.bytes // max(launch.read_bytes, 1)
    return traffic_s(gpu, launch.bytes - resident, resident, known.stream)


def _accumulated_s(launch: FusedAttention, gpu: Gpu, known: AttentionConstants) -> float:
    """Seconds of the traffic of a backward kernel's queries' gradients: blocks that hold keys add to them in float32,
    which is set to zero before and converted after."""
    if not launch.accumulates:
        return 0.0
    numbers = launch.batch * launch.heads * launch.queries * launch.head_size
    return traffic_s(gpu, numbers * _SUM_BYTES * _SUM_PASSES, 0, known.stream)


def _prepare_s(
    launch: FusedAttention, gpu: Gpu, known: AttentionConstants, moved: int, resident: int
) -> tuple[float, float]:
    """Seconds of the instructions and of the traffic of a server's pass before the kernel (transpose and store)."""
    if launch.kernel != "serving":
        return 0.0, 0.0
    issue_s = moved / (gpu.sm_count * gpu.boost_clock_hz * known.prepare_bytes_per_clock)
    return issue_s, traffic_s(gpu, moved - resident, resident, known.stream)


def _explain_tiled(launch: FusedAttention, gpu: Gpu, known: AttentionConstants, terms: Terms) -> str:
    tiles: _Tiles = terms.facts["tiles"]
    facts, peak = terms.facts, gpu.peak(launch.pipe)
    pairs = launch.batch * launch.heads * launch.pairs
    share = pairs * launch.flops_per_pair / max(terms.time_s, 1e-30) / peak
    filled = launch.pairs / (tiles.steps * tiles.rows * tiles.columns)
    run = f", run as {-(-tiles.blocks // gpu.sm_count)}" if tiles.even else ", the longest first"
    prepare = (
        f" and {_ms(facts['prepare_s'])} to turn queries and keys and fill the cache" if facts["prepare_s"] else ""
    )
    return (
        f"{launch.queries} queries x {launch.keys} keys for {launch.batch * launch.heads} heads in tiles of "
        f"{tiles.rows} x {tiles.columns} ({100 * min(filled, 1):.0f} % of the pairs in them are needed): "
        f"{counted(tiles.blocks, 'block')} on {gpu.sm_count} SMs = {tiles.blocks / gpu.sm_count:.1f} waves{run}; "
        f"matmuls at {_product_rate(launch, gpu, known) / 1e12:.4g} TFLOP/s and {known.softmax_instructions:.1f} "
        f"instructions of softmax a pair take {_ms(facts['loops_s'])}, to load and store tiles "
        f"{_ms(facts['loading_s'])}, against {_ms(facts['traffic_s'])} of memory{prepare}: "
        f"{100 * share:.0f} % of {peak / 1e12:.4g} TFLOP/s."
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


# ---- one query


def _decode(launch: FusedAttention, gpu: Gpu, known: AttentionConstants, resident_bytes: int) -> Terms:
    group = launch.heads // launch.kv_heads
    xqa = launch.kernel == "serving" and chip_of(gpu).xqa
    few = XQA_BLOCKS * launch.batch * launch.kv_heads * max(launch.pairs // XQA_SPLIT[1], 1) < gpu.sm_count
    alone = group == 1 or group > WIDEST_GROUP or (xqa and few)
    sequences = launch.batch * (launch.heads if alone else launch.kv_heads)
    rows = 1 if alone else -(-group // GROUP_ROWS) * GROUP_ROWS
    most, least = XQA_SPLIT if xqa and not alone else SPLIT
    parts = max(1, min(most * gpu.sm_count // sequences, launch.pairs // least))
    blocks = sequences * parts
    fixed, rate = known.block_clocks, known.sm_bytes_per_clock
    if alone:
        fixed, rate = known.head_block_clocks, known.head_bytes_per_clock
    part_bytes = -(-launch.pairs // parts) * (launch.head_size + launch.value_size) * launch.itemsize
    clocks = fixed + known.row_clocks * rows * launch.head_size + part_bytes / rate
    waves = ROUNDING * -(-blocks // gpu.sm_count) + (1 - ROUNDING) * max(blocks / gpu.sm_count, 1.0)
    blocks_s = (waves * clocks - fixed) / gpu.boost_clock_hz
    traffic = _moved_s(launch, gpu, known, min(resident_bytes, launch.read_bytes))
    join_s = known.join_s if parts > 1 else 0.0
    products = launch.batch * launch.kv_heads * launch.pairs * max(group, rows) * launch.flops_per_pair
    compute_s, ends_s = products / gpu.peak(launch.pipe), known.latency_s + fixed / gpu.boost_clock_hz
    facts = {
        "sequences": sequences,
        "parts": parts,
        "blocks": blocks,
        "clocks": clocks,
        "blocks_s": blocks_s,
        "join_s": join_s,
        "waves": waves,
    }
    body_s = max(compute_s, hypot(traffic, blocks_s) + join_s)
    return Terms(compute_s, traffic, blocks_s + join_s + ends_s, body_s, ends_s, facts)


def _explain_decode(launch: FusedAttention, gpu: Gpu, known: AttentionConstants, terms: Terms) -> str:
    facts = terms.facts
    blocks, rate = facts["blocks"], launch.bytes / max(terms.body_s, 1e-30)
    split = facts["parts"] > 1
    parts = f" in {facts['parts']} parts" if split else ""
    joined = f", {1e6 * facts['join_s']:.1f} us of it to join the parts" if split else ""
    busy = {"latency": "the memory waits", "bandwidth": "the memory is busy", "compute": "the matmuls take longest"}
    return (
        f"{launch.bytes / 1e6:.4g} MB, keys and values of {launch.pairs} tokens for each of {facts['sequences']} "
        f"sequences{parts}: {blocks} blocks of {facts['clocks']:.0f} clocks on {gpu.sm_count} SMs = "
        f"{blocks / gpu.sm_count:.1f} waves, run as {facts['waves']:.1f}, {busy[terms.wall]}: "
        f"{rate / 1e12:.3g} TB/s of {gpu.dram_bytes_per_s / 1e12:.3g}; {1e6 * terms.memory_s:.1f} us of memory against "
        f"{1e6 * terms.latency_s:.1f} us of latency{joined}."
    )
