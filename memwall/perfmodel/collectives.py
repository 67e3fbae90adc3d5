"""Collectives over the links of GPUs: how long it takes to send what crosses (:mod:`memwall.ops.collective`).

A GPU's ``link_bytes_per_s`` counts both directions, so a link carries half of it each way. In a ring all-reduce each of
n GPUs sends and receives 2 (n - 1) / n of the buffer in 2 (n - 1) steps (Patarasu and Yuan, 2009). The two GPUs of a
pair share a bridge of some of the links; several pairs, or nodes, communicate over PCIe or the network, which is then
the bottleneck.
"""

from __future__ import annotations

from dataclasses import dataclass

from memwall.hardware.lookup import Gpu


def link_s(nbytes: float, gpu: Gpu) -> float:
    """Seconds of bytes that cross the GPU's link one way, at the datasheet's rate; 0 where it has no link."""
    return nbytes / (gpu.link_bytes_per_s / 2) if gpu.link_bytes_per_s else 0.0


@dataclass(frozen=True, slots=True)
class Link:
    """How NCCL uses the link between the GPUs of a network."""

    #: one way, bytes per second; None: half of the GPU's own figure
    bytes_per_s: float | None
    #: fraction of that rate that large buffers reach
    reached: float
    #: seconds of the launch and setup, and of each step of the ring
    start_s: float
    step_s: float


#: (network's kind, whether all GPUs are behind one switch or bridge, architecture) -> the slowest link.
#: Nominal rates: NVLink as the GPU has it, an NVLink bridge of a pair 300e9, PCIe 4 and 5 x16, a 200 Gbit/s adapter.
#: Fractions and latencies are fitted to Vidur's all-reduce rows; there are none over a network on Hopper.
_LINKS = {
    ("dgx", True, "ampere"): Link(None, 0.571, 42e-6, 1.0e-6),
    ("dgx", True, "hopper"): Link(None, 0.787, 26e-6, 0.35e-6),
    ("dgx", False, "ampere"): Link(25e9, 0.322, 108e-6, 0.0),
    ("pairwise_nvlink", True, "ampere"): Link(300e9, 0.652, 37e-6, 1.9e-6),
    ("pairwise_nvlink", True, "hopper"): Link(300e9, 0.659, 11.7e-6, 2.3e-6),
    ("pairwise_nvlink", False, "ampere"): Link(32e9, 0.739, 53e-6, 0.84e-6),
    ("pairwise_nvlink", False, "hopper"): Link(64e9, 0.776, 2.6e-6, 2.6e-6),
}


def all_reduce_s(gpu: Gpu, link: Link, nbytes: int, workers: int) -> tuple[float, float]:
    """Seconds of an all-reduce, and of its bytes alone at the nominal rate of the link."""
    rate = link.bytes_per_s or gpu.link_bytes_per_s / 2
    steps = 2 * (workers - 1)
    wire_s = steps / workers * nbytes / rate
    return wire_s / link.reached + link.start_s + steps * link.step_s, wire_s


def link_of(kind: str, close: bool, architecture: str) -> Link | None:
    """The link of a network (``dgx`` or ``pairwise_nvlink``; ``close``: all GPUs are behind one switch or bridge), from
    another architecture where this one has no data; None for an unknown kind."""
    known = [link for (name, near, _), link in _LINKS.items() if (name, near) == (kind, close)]
    return _LINKS.get((kind, close, architecture), known[-1]) if known else None
