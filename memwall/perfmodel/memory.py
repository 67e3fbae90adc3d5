"""Seconds of memory traffic: DRAM and L2, at the rates that kernels reach. Shared by all families."""

from __future__ import annotations

from memwall.hardware.lookup import Gpu

#: share of the L2 bandwidth (bytes per clock x boost clock) that warm elementwise kernels reach: residual adds of 12 to
#: 25 MB take 4 to 9 us on an A100 and 25 MB 4.5 us on an H100 (Vidur)
L2_REACHED = 0.45
#: shares of L2 up to which all of a footprint stays in it, and from which none does over repeated passes: fp32 add,
#: mul, relu and gelu on an A100 (NeuSight); each half of that L2 keeps its own copy
STAYS, GONE = 0.6, 1.0


def traffic_s(gpu: Gpu, dram_bytes: float, l2_bytes: float = 0.0, fraction: float | None = None) -> float:
    """Seconds that the bytes take at ``fraction`` of the DRAM bandwidth, by default that of a triad."""
    reached = gpu.achievable["dram"] if fraction is None else fraction
    return dram_bytes / (gpu.dram_bytes_per_s * reached) + l2_bytes / (gpu.l2_bytes_per_s * L2_REACHED)


def kept_share(gpu: Gpu, footprint_bytes: float) -> float:
    """Share of a footprint that a second pass over it finds in L2: 1 up to :data:`STAYS` of L2, 0 from :data:`GONE`."""
    if not gpu.l2_bytes:
        return 0.0
    return min(max((GONE - footprint_bytes / gpu.l2_bytes) / (GONE - STAYS), 0.0), 1.0)
