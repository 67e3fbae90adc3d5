"""How latent attention (MLA) uses a GPU.

Many queries: thread blocks hold a tile of queries of one head (absorbed: of all heads of as many tokens as fill it) and
loop over tiles of keys, as in :mod:`memwall.perfmodel.attention`; queries, keys, values and results move at ``rows``
of the bandwidth besides. One query (decode): the latents of a sequence are streamed once for all heads, by up to
``most_parts`` blocks with two for each multiprocessor::

    part_s   = latents of a part at ``sm_bytes_per_clock``
    stream_s = latents at ``stream`` of the bandwidth
    time_s   = hypot(longer of matmuls and waves x part; stream_s) + queries and results at ``rows`` + ``start_s``

Outside of a CUDA graph it takes at least the ``host_s`` of the server's host.
"""

from __future__ import annotations

from math import ceil, hypot

from memwall.core.units import bandwidth, counted, duration, flop_rate, percent, size
from memwall.hardware.chips import chip_of
from memwall.hardware.constants import LatentConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.serving import LatentLaunch
from memwall.perfmodel.attention import UNEVEN_END
from memwall.perfmodel.base import Terms, traffic_s

#: a sequence is split until each multiprocessor has this many blocks, but no part gets fewer keys
_BLOCKS_PER_SM, _LEAST_PART = 2, 64
#: fewest query rows that tensor cores multiply
_LEAST_ROWS = 16


def predict(launch: LatentLaunch, gpu: Gpu, known: LatentConstants, resident_bytes: int = 0) -> Terms:
    """The terms of a launch with the constants given."""
    (flops,) = launch.pipe_flops.values()
    math_s = flops / (gpu.peak(launch.pipe) * known.plateau)
    terms = (_decode if launch.is_decode else _prefill)(launch, gpu, known, math_s, resident_bytes)
    host_s = known.host_s if launch.eager else 0.0
    if host_s <= terms.time_s:
        return terms
    return Terms(terms.compute_s, terms.memory_s, host_s, host_s, 0.0, terms.facts)


def _prefill(launch: LatentLaunch, gpu: Gpu, known: LatentConstants, math_s: float, resident_bytes: int) -> Terms:
    """Tiles as of other attention; ``math_s`` is the arithmetic of all pairs on all multiprocessors."""
    rows, columns = chip_of(gpu).serving_tile
    shared = launch.heads if launch.absorbed else 1  # query rows of one token in a tile
    per_head, across = ceil(launch.queries * shared / rows), ceil(launch.keys / columns)
    crossed = launch.pairs * shared / (rows * columns) + per_head * max(1.0, rows / columns) / 2
    steps = min(max(crossed, per_head), per_head * across)
    of_heads = launch.batch * launch.heads // shared
    step_s = math_s * gpu.sm_count * rows * columns / max(of_heads * shared * launch.pairs, 1)
    block_s = known.block_clocks / gpu.boost_clock_hz
    blocks, longest_s = of_heads * per_head, min(across, 2 * steps / per_head) * step_s + block_s
    loops_s = longest_s
    if blocks > gpu.sm_count:
        all_s = (of_heads * steps * step_s + blocks * block_s) / gpu.sm_count + UNEVEN_END * longest_s
        loops_s = max(longest_s, all_s)
    moved_s = traffic_s(gpu, _moved_bytes(launch), 0, known.rows)
    ends_s = max(1.0, blocks / gpu.sm_count) * block_s
    facts = {"blocks": blocks, "loops_s": loops_s, "moved_s": moved_s}
    return Terms(loops_s - ends_s, moved_s, ends_s + known.start_s, loops_s + moved_s, known.start_s, facts)


def _moved_bytes(launch: LatentLaunch) -> int:
    """Queries, keys, values and results once, and latents in 16 bits twice."""
    key, value = launch.widths
    per_token = launch.heads * (key + value) * (1 if launch.absorbed else 2)
    return 2 * launch.batch * launch.keys * (per_token + 2 * (launch.rank + launch.rope))


def _decode(launch: LatentLaunch, gpu: Gpu, known: LatentConstants, math_s: float, resident_bytes: int) -> Terms:
    products_s = math_s * max(_LEAST_ROWS / launch.heads, 1.0)
    most = min(_BLOCKS_PER_SM * gpu.sm_count // launch.batch, launch.keys // _LEAST_PART, int(known.most_parts))
    parts = max(most, 1)
    part_bytes = ceil(launch.keys / parts) * launch.latent_bytes / (launch.batch * launch.keys)
    waves = ceil(launch.batch * parts / gpu.sm_count)
    blocks_s = waves * part_bytes / known.sm_bytes_per_clock / gpu.boost_clock_hz
    warm = min(resident_bytes, launch.latent_bytes)
    stream_s = traffic_s(gpu, launch.latent_bytes - warm, warm, known.stream)
    rows_s = traffic_s(gpu, launch.bytes - launch.latent_bytes, 0, known.rows)
    facts = {"parts": parts, "blocks": launch.batch * parts, "waves": waves, "blocks_s": blocks_s, "moved_s": rows_s}
    body_s = hypot(max(products_s, blocks_s), stream_s) + rows_s
    return Terms(products_s, stream_s + rows_s, blocks_s + known.start_s, body_s, known.start_s, facts)


def explain(launch: LatentLaunch, gpu: Gpu, known: LatentConstants, terms: Terms) -> str:
    """Why the launch takes its time, in one sentence."""
    facts = terms.facts
    form = "latents" if launch.absorbed else "keys and values"
    rate = f"{percent(known.plateau, 0)} of {flop_rate(gpu.peak(launch.pipe), launch.pipe)}"
    work = (
        f"{launch.queries} queries x {launch.keys} {form} of {counted(launch.batch, 'sequence')} for {launch.heads} "
        f"heads in {counted(facts['blocks'], 'block')} on {gpu.sm_count} SMs: {duration(terms.compute_s)} of matmuls "
        f"at {rate}"
    )
    moved = f"{duration(facts['moved_s'])} for queries and results"
    if launch.is_decode:
        moved = (
            f"{size(launch.latent_bytes)} of latents at {percent(known.stream, 0)} of "
            f"{bandwidth(gpu.dram_bytes_per_s)}, blocks that load {known.sm_bytes_per_clock:.3g} bytes a clock for "
            f"{duration(facts['blocks_s'])}, {moved}"
        )
    host = f"; the host takes {duration(known.host_s)} to launch it" if launch.eager else ""
    return f"{work}; {moved}, the start {duration(known.start_s)}{host}."
