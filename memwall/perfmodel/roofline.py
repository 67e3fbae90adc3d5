"""Cost × Gpu → seconds: the speed of light, and the prediction with its interval.

A cost is one launch or several, one after another; each launch is a :class:`memwall.ops.launches.Launch`, and its
family's model (:mod:`memwall.perfmodel.families`) says how well it uses the GPU::

    compute_s  = arithmetic at the rate that this shape reaches
    memory_s   = DRAM and L2 traffic at the bandwidth that this shape reaches
    latency_s  = what no peak would help: instructions other than the arithmetic, dependent steps, loads in a row,
                 too few thread blocks, a pipeline that fills, synchronization
    overhead_s = launches × launch latency + time that the GPU waits for the CPU
    time_s     = max(compute_s, memory_s, latency_s) + overhead_s, never below bound_s

Each is the time of that resource alone; the largest of the first three also holds what does not overlap with it: the
start and the end of a launch, and the other walls of several launches. ``limited_by`` is the largest of all terms.
``bound_s`` is the speed of light: datasheet peaks at the highest clock that the part may run, each compulsory byte
once, no overhead; bytes at L2 bandwidth where all that the kernel touches fits in L2 (Williams, Waterman, Patterson:
Roofline, CACM 2009). The other terms are at the clock at which it does run.

``low_s`` and ``high_s`` are the 80 % interval: the 10th and 90th percentile of measured over modeled time, by family
and GPU, on the rows that the constants were fitted to, or where they are few, on parts of them that a fit of the other
parts did not see. It may narrow with the time of a kernel (:class:`memwall.perfmodel.base.Interval`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

from memwall.core.graph import Pipe
from memwall.hardware.constants import CONSTANTS, LaunchConstants
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.ops.launches import Launch
from memwall.perfmodel.base import kept_share
from memwall.perfmodel.collectives import sent_s
from memwall.perfmodel.families import Terms, as_run, constants, interval, terms_of

#: the walls, in the order in which reports list them
WALLS = ("compute", "bandwidth", "latency", "overhead")
#: the wall of traffic over a link between GPUs, or to the host
LINK = "link"
#: wall -> its term of the time; of equal terms the first is the wall
TERMS = {
    "bandwidth": "memory_s", "compute": "compute_s", "latency": "latency_s", "overhead": "overhead_s", LINK: "link_s",
}  # fmt: skip
#: the terms of :data:`TERMS` that overlap
OVERLAPPING = ("bandwidth", "compute", "latency")
_TERM_NAMES, _seconds = tuple(TERMS), attrgetter(*TERMS.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The time of a kernel on one GPU, in seconds, by its terms. ``overhead_s`` holds the launch latencies, and within
    a schedule the wait for the CPU; ``low_s`` to ``high_s`` is the 80 % interval."""

    bound_s: float
    compute_s: float
    memory_s: float
    latency_s: float = 0.0
    overhead_s: float
    low_s: float
    high_s: float
    link_s: float = 0.0
    #: seconds at the peaks that the kernels need less than the FLOPs of the cost do, for MFU: Winograd does fewer FLOPs
    #: than are counted, a grouped convolution may run on another pipe (below 0: a slower one)
    spared_s: float = 0.0

    @property
    def time_s(self) -> float:
        """The longest of arithmetic, traffic and latency, plus the overhead; no less than the bytes on the link."""
        return max(max(self.compute_s, self.memory_s, self.latency_s) + self.overhead_s, self.link_s)

    @property
    def limited_by(self) -> str:
        """One of :data:`WALLS`, or :data:`LINK`: the largest of the terms."""
        terms = _seconds(self)
        return _TERM_NAMES[terms.index(max(terms))]


_whole_s = Prediction.time_s.__get__


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(Prediction):
    """One kernel (one group) of a schedule. Bytes are compulsory; all seconds but ``bound_s`` hold ``wait_s``, and
    ``time_s``, its bound and its interval are without ``hidden_s``."""

    id: int
    name: str
    op_ids: tuple[int, ...]
    op_class: str
    flops: int
    read_bytes: int
    write_bytes: int
    #: launches that it takes, and ops of other kernels that it computes again
    launches: int = 1
    recomputes: tuple[int, ...] = ()
    #: CPU time to issue it, and the part of ``overhead_s`` in which the GPU waits for that
    issue_s: float = 0.0
    wait_s: float = 0.0
    #: of a message between GPUs: seconds in which other kernels run
    hidden_s: float = 0.0

    @property
    def time_s(self) -> float:
        """Seconds that it adds to the step."""
        return max(_whole_s(self) - self.hidden_s, 0.0)

    @property
    def bytes(self) -> int:
        """Compulsory DRAM bytes."""
        return self.read_bytes + self.write_bytes

    @property
    def arithmetic_intensity(self) -> float:
        """FLOP per compulsory DRAM byte; 0 where nothing moves."""
        return self.flops / self.bytes if self.bytes else 0.0


#: direct FLOPs over the fewest from which transforms count on tensor cores too: windows of 5 x 5 and more
_LARGE = 8


def peak_compute_s(cost: Cost, gpu: Gpu) -> float:
    """Seconds that the FLOPs take at the datasheet peaks of their pipes."""
    return _peak_s(cost.flops, gpu)


def _peak_s(flops: Mapping[Pipe, int], gpu: Gpu) -> float:
    return sum((count / gpu.peak(pipe) for pipe, count in flops.items()), 0.0)


def bound_s(cost: Cost, gpu: Gpu) -> float:
    """Speed of light of a kernel: no real run is faster."""
    gpu = gpu.fastest()
    rate = gpu.l2_bytes_per_s if cost.least_bytes <= gpu.l2_bytes else gpu.dram_bytes_per_s
    return max(least_compute_s(cost, gpu), cost.least_bytes / rate, sent_s(cost, gpu)[1])


def on_chip_s(cost: Cost, gpu: Gpu) -> float:
    """Speed of light of a kernel whose operands all are in L2, and whose results stay there."""
    gpu = gpu.fastest()
    rate = max(gpu.l2_bytes_per_s, gpu.dram_bytes_per_s)
    return max(least_compute_s(cost, gpu), cost.least_bytes / rate, sent_s(cost, gpu)[1])


def least_compute_s(cost: Cost, gpu: Gpu) -> float:
    """Seconds of the engine that is busy longest at its peaks: tensor cores and vector units run at the same time. With
    the FLOPs of the fastest algorithm: on tensor cores, of Fourier transforms of large windows alone."""
    return max(engine_s(cost, gpu).values(), default=0.0)


def engine_s(cost: Cost, gpu: Gpu) -> dict[str, float]:
    """Seconds at its peaks of each engine that a cost needs, as :func:`least_compute_s` counts them."""
    found: dict[str, float] = {}
    for pipe, count in cost.flops.items():
        engine = gpu.ceiling_pipe(pipe).engine
        found[engine] = found.get(engine, 0.0) + count / gpu.peak(pipe)
    # what windows of 3 x 3 may spare, a quarter or so, has not been seen to pay on tensor cores
    if cost.least_flops is not None and ("tensor" not in found or _LARGE * cost.least_flops < cost.total_flops):
        return {engine: seconds * cost.least_flops / cost.total_flops for engine, seconds in found.items()}
    return found


def launches_of(cost: Cost, gpu: Gpu, resident_bytes: int = 0) -> list[tuple[Launch, Terms]]:
    """The launches of a cost, with ``resident_bytes`` of its reads in L2 already; each later launch finds in L2 what
    remains of the traffic of the one before it."""
    launches, resident, gpu = [], resident_bytes, gpu.running()
    for launch in (as_run(launch, gpu) for launch in cost.launches):
        launches.append((launch, terms_of(launch, gpu, resident)))
        resident = int(launch.bytes * kept_share(gpu, launch.bytes))
    return launches


def launch_floor_s(gpu: Gpu, launch: str = "graph") -> float:
    """Launch latency, the seconds of an empty kernel: in a ``graph`` or a full queue, or by another way of timing
    (:class:`memwall.hardware.constants.LaunchConstants`)."""
    if launch != "graph" and f"launch.{launch}.floor_s" in gpu.utilization:
        return constants(LaunchConstants, gpu, launch).floor_s
    return gpu.launch_overhead_s


def predict_cost(cost: Cost, gpu: Gpu, resident_bytes: int = 0, launch: str = "graph") -> Prediction:
    """The prediction for all launches of a cost, with the arguments of :func:`launches_of`."""
    launches = launches_of(cost, gpu, resident_bytes)
    floors_s = sum(item.latencies for item, _ in launches) * launch_floor_s(gpu, launch)
    bound = bound_s(cost, gpu)
    walls = {TERMS[wall]: 0.0 for wall in OVERLAPPING}
    body = ends = down = up = spared = 0.0
    faster = gpu.running().boost_clock_hz / gpu.boost_clock_hz  # terms are of that clock
    for item, terms in launches:
        for name in walls:
            walls[name] += getattr(terms, name)
        body += terms.body_s
        ends += terms.ends_s
        if terms.peak_s is not None:
            spared += _peak_s(item.pipe_flops, gpu) - terms.peak_s * faster
        own_s = terms.time_s + floors_s / len(launches)
        low, high = interval(CONSTANTS[item.FAMILY], gpu, item.shown_by).at(own_s)
        down += own_s * (1 - low)
        up += own_s * (high - 1)
    on_link_s = sent_s(cost, gpu)[0]
    if max(body, on_link_s) < bound:  # no kernel is faster; its bound is its wall
        body = bound
        name = "compute_s" if least_compute_s(cost, gpu.fastest()) >= bound else "memory_s"
        walls[name] = max(walls[name], bound)
    walls[max(walls, key=walls.__getitem__)] = body + ends
    time_s = max(body + ends + floors_s, on_link_s)
    low_s = max(time_s - down, bound)
    if cost.template is not None:
        low_s = min(low_s, template_s(cost.template, gpu))
    return Prediction(
        bound_s=bound, **walls, overhead_s=floors_s, link_s=on_link_s, spared_s=spared, low_s=low_s, high_s=time_s + up
    )


#: share of the roofline that the quickest of Inductor's Triton templates reach: the 90th percentile of the convolutions
#: of half of KernelBench's modules that mode max-autotune makes faster on an L40S, 0.13 to 0.68
TEMPLATE_REACHED = 0.6


def template_s(cost: Cost, gpu: Gpu) -> float:
    """Seconds of a quick template that does what the cost says."""
    return bound_s(cost, gpu) / TEMPLATE_REACHED + cost.latencies * launch_floor_s(gpu)
