"""A lower bound of a whole step that knows L2: the traffic that no cache of its size can keep away from DRAM.

The sum of the kernels' bounds takes a kernel whose operands fit in L2 at L2 bandwidth, also where gigabytes pass
between two uses of them. Here the step is cut into windows of kernels. Of what a window reads and did not write itself,
L2 holds no more than its size when the window begins; of what it writes and a later kernel reads, no more when it ends.
The rest crosses DRAM while the window runs, and the window takes at least as long as its kernels do one after another
at L2 speed and datasheet peaks. Any cut gives a bound; the best of some is taken.

Streams run at the same time. Each is cut alone, without what another one touches, which may find it in L2 at any
moment. What shares the GPU, or a link, runs one after another from whatever stream, and the traffic of the whole step
shares DRAM.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from memwall.core.graph import Graph
from memwall.fusion import Plan
from memwall.hardware.lookup import Gpu
from memwall.perfmodel.collectives import ways_of
from memwall.perfmodel.roofline import on_chip_s

#: a window ends when its traffic exceeds so many times the size of L2; the other cut is one window for the whole step
_L2_SIZES = 8


class _BoundKernel(NamedTuple):
    #: seconds with all operands in L2, and what it occupies in them: ``""`` the GPU, or the ways of a link
    on_chip_s: float
    ways: tuple[str, ...]
    #: storage -> bytes that it certainly reads, or writes: 0 where nobody knows
    reads: dict[int, int]
    writes: dict[int, int]

    def of(self, storages: set[int]) -> _BoundKernel:
        """What it does to some storages alone."""
        reads, writes = ({s: size for s, size in each.items() if s in storages} for each in (self.reads, self.writes))
        return self._replace(reads=reads, writes=writes)


def step_bound_s(graph: Graph, plan: Plan, gpu: Gpu) -> float:
    """Seconds that no run of the plan can beat on this GPU, whatever its L2 keeps."""
    known: dict[int, tuple[float, tuple[str, ...]]] = {}
    kernels, streams = list[_BoundKernel](), defaultdict[int, list[_BoundKernel]](list)
    touching = defaultdict[int, set[int]](set)
    for group in plan.groups:
        cost, stream = group.cost, graph.ops[group.op_ids[0]].stream
        if id(cost) not in known:
            known[id(cost)] = on_chip_s(cost, gpu), ways_of(cost, gpu)
        reads = _certain(graph, group.reads, cost.least_read_bytes)
        kernels.append(_BoundKernel(*known[id(cost)], reads, _certain(graph, group.writes, cost.write_bytes)))
        streams[stream].append(kernels[-1])
        for storage in (*kernels[-1].reads, *kernels[-1].writes):
            touching[storage].add(stream)
    if len(streams) == 1:
        return _longest_s(graph, kernels, gpu)
    occupied_s = defaultdict[str, float](float)
    for kernel in kernels:
        for way in kernel.ways:
            occupied_s[way] += kernel.on_chip_s
    apart = {storage for storage, found in touching.items() if len(found) == 1}
    each_s = [_longest_s(graph, [kernel.of(apart) for kernel in those], gpu) for those in streams.values()]
    moving = [kernel._replace(on_chip_s=0.0) for kernel in kernels]
    return max([*occupied_s.values(), *each_s, _cut(moving, _next_reads(graph, moving), gpu, math.inf)])


def _longest_s(graph: Graph, kernels: Sequence[_BoundKernel], gpu: Gpu) -> float:
    """The best bound of kernels one after another."""
    following = _next_reads(graph, kernels)
    return max(_cut(kernels, following, gpu, most) for most in (_L2_SIZES * gpu.l2_bytes, math.inf))


def _certain(graph: Graph, values: Sequence[int], nbytes: int) -> dict[int, int]:
    """The bytes of each storage that a kernel touches for sure when it moves ``nbytes`` of these values in all: a
    lookup touches less than its table, and nobody knows where."""
    least: dict[int, int] = {}
    most: dict[int, int] = {}
    for value in (graph.values[number] for number in values):
        storage, size = value.storage, value.spec.nbytes
        least[storage] = max(least.get(storage, 0), size)
        most[storage] = min(most.get(storage, 0) + size, graph.storages[storage].nbytes)
    missing = max(sum(most.values()) - nbytes, 0)
    return {storage: max(size - missing, 0) for storage, size in least.items()}


def _next_reads(graph: Graph, kernels: Sequence[_BoundKernel]) -> list[dict[int, tuple[int, int]]]:
    """For each kernel, storage that it writes -> the next kernel that touches it, and the bytes that this certainly
    reads of those written: two parts of a storage may be apart. What is never touched again is read after the step if
    it stays."""
    sizes = [storage.nbytes for storage in graph.storages]
    kept = {graph.values[i].storage for i in graph.outputs}
    kept |= {s.id for s in graph.storages if s.is_persistent or s.role == "gradient"}
    touched: dict[int, tuple[int, int]] = {storage: (len(kernels), sizes[storage]) for storage in kept}
    found: list[dict[int, tuple[int, int]]] = []
    for index in range(len(kernels) - 1, -1, -1):
        kernel = kernels[index]
        following = [(s, size, *touched[s]) for s, size in kernel.writes.items() if s in touched]
        found.append({s: (reader, max(size + read - sizes[s], 0)) for s, size, reader, read in following})
        touched |= dict.fromkeys(kernel.writes, (index, 0))
        touched |= {storage: (index, size) for storage, size in kernel.reads.items() if size}
    return found[::-1]


def _cut(
    kernels: Sequence[_BoundKernel], following: Sequence[dict[int, tuple[int, int]]], gpu: Gpu, most_bytes: float
) -> float:
    """The bound with windows of about ``most_bytes`` of traffic."""
    total_s, begin = 0.0, 0
    while begin < len(kernels):
        read: dict[int, int] = {}
        written: set[int] = set()
        end, moved, busy_s = begin, 0, 0.0
        while end < len(kernels) and moved <= most_bytes:
            kernel = kernels[end]
            for storage, size in kernel.reads.items():
                if storage not in written and size > read.get(storage, 0):
                    moved += size - read.get(storage, 0)
                    read[storage] = size
            for storage, size in kernel.writes.items():
                moved += 0 if storage in written else size
                written.add(storage)
            busy_s += kernel.on_chip_s
            end += 1
        left: dict[int, int] = {}
        for index in range(begin, end):
            for storage, (reader, size) in following[index].items():
                if reader >= end:  # the window's last write of it
                    left[storage] = size
        crossing = sum(max(sum(sizes.values()) - gpu.l2_bytes, 0) for sizes in (read, left))
        total_s += max(busy_s, crossing / gpu.dram_bytes_per_s)
        begin = end
    return total_s
