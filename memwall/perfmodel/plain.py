"""The roofline with achievable ceilings, for launches without a known shape."""

from __future__ import annotations

from memwall.core.units import bandwidth, flop_rate, flops, size
from memwall.hardware.constants import PlainConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.launches import Plain
from memwall.perfmodel.base import Terms
from memwall.perfmodel.memory import traffic_s


def predict(launch: Plain, gpu: Gpu, known: PlainConstants, resident_bytes: int = 0) -> Terms:
    """FLOPs at the fraction of the peak that large matrix products reach, bytes at that of a triad."""
    compute_s = sum((n / (gpu.peak(p) * gpu.achievable_fraction(p)) for p, n in launch.flops.items()), 0.0)
    resident = min(resident_bytes, launch.read_bytes)
    return Terms(compute_s, traffic_s(gpu, launch.bytes - resident, resident), facts={"resident": resident})


def explain(launch: Plain, gpu: Gpu, known: PlainConstants, terms: Terms) -> str:
    """Why the launch takes its time, in one sentence."""
    rates = ", ".join(
        f"{flops(n)} at {gpu.achievable_fraction(p):.0%} of {flop_rate(gpu.peak(p))}" for p, n in launch.flops.items()
    )
    cached = f", {size(terms.facts['resident'])} of them from L2" if terms.facts["resident"] else ""
    moved = f"{size(launch.bytes)} at {gpu.achievable['dram']:.0%} of {bandwidth(gpu.dram_bytes_per_s)}{cached}"
    if launch.flops and not any(launch.flops.values()):
        return f"there is nothing to compute; {moved}."
    work_text = f"{rates}; {moved}" if rates else moved
    return f"no model of this kernel's shape, so the roofline at what is achievable: {work_text}."
