"""Streams on one GPU: kernels that run while a link carries messages, and what of the messages nothing hides.

A stream runs its kernels in order, each after kernels of other streams that it waits for. The GPU computes one kernel
at a time, whichever stream is ready first, so that streams add no arithmetic. Each link carries one message at a time
each way, while the GPU computes.

The seconds of all kernels add up to the step's. Seconds in which the GPU computes nothing are charged to the messages
under way (they are exposed), first to messages that the next kernel waits for. What remains is charged to that kernel,
which waits for the CPU. A message under way takes a share of the multiprocessors and of the memory's bandwidth from the
kernels next to it, and is charged what they take longer. On a TPU engines of their own move what a program copies ahead
of its use (JAX scaling book): such a copy takes memory's bandwidth alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from memwall.core.graph import Graph
from memwall.fusion import Plan
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.perfmodel.collectives import taken_shares
from memwall.perfmodel.roofline import Prediction
from memwall.simulate.launch_queue import QueuedKernel, queue, step_in_loop

#: what asynchronous copies of a TPU occupy
DMA = "dma"


class Sides(NamedTuple):
    """What a kernel needs of the GPU, in seconds at its full rate; or what a message takes of it, in shares."""

    processors: float = 0.0
    memory: float = 0.0


def sides_of(known: Prediction, cost: Cost, link: str, gpu: Gpu) -> Sides:
    """What a kernel needs of the GPU; of one that occupies a link what it takes."""
    if not link:
        return Sides(max(known.compute_s, known.latency_s), known.memory_s)
    if link == DMA:
        return Sides(memory=cost.bytes / (known.time_s * gpu.dram_bytes_per_s) if known.time_s else 0.0)
    crossed = gpu.cluster.link[link] if gpu.cluster else None
    return Sides(*taken_shares(crossed, gpu, cost.bytes / known.time_s if known.time_s else 0.0))


class Needs(NamedTuple):
    """What a kernel needs: the link that it occupies, ``""`` the GPU itself; what it needs, or takes, of the GPU; and
    which ways of the link it takes, if not all."""

    link: str = ""
    sides: Sides = Sides()
    ways: tuple[str, ...] = ()


class Streamed(NamedTuple):
    """A kernel in its stream, with the numbers of the kernels that it waits for; the others as of :class:`Needs`."""

    step: QueuedKernel
    stream: int = 0
    link: str = ""
    waits: tuple[int, ...] = ()
    sides: Sides = Sides()
    ways: tuple[str, ...] = ()

    @property
    def occupied(self) -> tuple[str, ...]:
        """What nothing else occupies while it runs."""
        return self.ways or (self.link,)

    def slowed(self, messages: Sequence[Streamed]) -> float:
        """How many times longer a kernel takes next to messages."""
        needed, busy_s = self.sides, self.step.busy_s
        free = [1 - min(sum(taken), _MOST) for taken in zip(*(each.sides for each in messages), strict=True)]
        longer_s = max(need_s / share for need_s, share in zip(needed, free, strict=True)) - max(needed)
        return 1 + longer_s / busy_s if busy_s else 1.0


#: share of the GPU that messages take at most
_MOST = 0.5


Span = tuple[float, float]


class Overlap(NamedTuple):
    """For each kernel the seconds that the GPU waits for the CPU before it, and, of a message, seconds in which kernels
    hide it, less what they take longer for it; the seconds of all; where kernels overlap, when each begins and ends."""

    waits: Sequence[float]
    hidden: Sequence[float]
    time_s: float
    spans: Sequence[Span] = ()


def overlapped(kernels: Sequence[Streamed], ahead_s: float = 0.0) -> Overlap:
    """Run kernels through their streams while the GPU is busy for ``ahead_s`` more; seconds from then on."""
    spans, slowing, cpu_s = _dispatch(kernels, ahead_s)
    end_s = max([cpu_s, ahead_s, *(end for _, end in spans)])
    computing = sorted((i for i, each in enumerate(kernels) if not each.link), key=lambda i: spans[i])
    sending = sorted((i for i, each in enumerate(kernels) if each.link), key=lambda i: spans[i])
    starts = [spans[i][0] for i in sending]
    waits, exposed = [0.0] * len(kernels), [0.0] * len(kernels)
    for by_message in slowing.values():
        for j, seconds in by_message.items():
            exposed[j] += seconds
    done_s, first = ahead_s, 0
    for i in [*computing, None]:
        begin_s = end_s if i is None else spans[i][0]
        while first < len(sending) and spans[sending[first]][1] <= done_s:
            first += 1
        under_way = sending[first : bisect_left(starts, begin_s)] if begin_s > done_s else []
        if i is not None:  # what it waits for is charged before others
            under_way.sort(key=lambda j: j not in kernels[i].waits)
        idle: list[Span] = [(done_s, begin_s)]
        for j in under_way:
            shown_s, idle = _taken(idle, spans[j])
            exposed[j] += shown_s
        idle_s = sum(end - start for start, end in idle)
        late = i if i is not None else next(iter((computing or sending)[-1:]), None)
        if late is not None:
            waits[late] += max(idle_s, 0.0)
        if i is not None:
            busy_s = kernels[i].step.busy_s + sum(slowing.get(i, {}).values())
            waits[i] += max(spans[i][1] - begin_s - busy_s, 0.0)  # for the CPU between its launches
            done_s = spans[i][1]
    hidden = [max(each.step.busy_s - exposed[i], 0.0) if each.link else 0.0 for i, each in enumerate(kernels)]
    return Overlap(waits, hidden, end_s - ahead_s, [(begin - ahead_s, end - ahead_s) for begin, end in spans])


def _taken(idle: Sequence[Span], span: Span) -> tuple[float, list[Span]]:
    """Seconds of idle time that a span covers, and the idle time that is left."""
    begin_s, end_s = span
    shown_s = sum(max(min(end, end_s) - max(start, begin_s), 0.0) for start, end in idle)
    left = [part for start, end in idle for part in ((start, min(end, begin_s)), (max(start, end_s), end))]
    return shown_s, [(start, end) for start, end in left if end > start]


def _dispatch(kernels: Sequence[Streamed], ahead_s: float) -> tuple[list[Span], dict[int, dict[int, float]], float]:
    """When each kernel begins and ends, by how much which messages slow it, and when the CPU is done: of the next
    kernels of all streams the one that can begin first goes first, of equal ones that which has been ready, or was
    issued, before the others."""
    issued, cpu_s = _issued(kernels)
    rows: dict[int, list[int]] = {}
    for i, each in enumerate(kernels):
        rows.setdefault(each.stream, []).append(i)
    heads = dict.fromkeys(rows, 0)
    free = dict.fromkeys((way for each in kernels for way in each.occupied), ahead_s)
    after = dict.fromkeys(rows, ahead_s)
    gpu = _Gpu(kernels, issued)
    spans = gpu.spans
    while heads:
        ready = []
        for stream, place in heads.items():
            i = rows[stream][place]
            if all(j in spans for j in kernels[i].waits):
                ready_s = max(issued[i], after[stream], *(spans[j][1] for j in kernels[i].waits))
                ready.append((max(ready_s, *(free[way] for way in kernels[i].occupied)), ready_s, i))
        begin_s, _, i = min(ready)
        stream = kernels[i].stream
        for j in gpu.begin(i, begin_s):
            after[kernels[j].stream] = gpu.spans[j][1]
            free |= dict.fromkeys(kernels[j].occupied, gpu.spans[j][1])
        heads[stream] += 1
        if heads[stream] == len(rows[stream]):
            del heads[stream]
    return [gpu.spans[i] for i in range(len(kernels))], gpu.slowing, cpu_s


@dataclass
class _Gpu:
    """What runs: when each kernel begins and ends, and by how much which messages slow it."""

    kernels: Sequence[Streamed]
    issued: Sequence[float]
    spans: dict[int, Span] = field(default_factory=dict)
    slowing: dict[int, dict[int, float]] = field(default_factory=dict)
    #: the last kernel that is no message, and the messages that may be under way next to it or later
    last: int = -1
    sent: list[int] = field(default_factory=list)

    def begin(self, i: int, begin_s: float) -> tuple[int, ...]:
        """Begin a kernel, not before any that has begun; the kernels of which it says when they end."""
        if not self.kernels[i].link:
            self.last, self.sent = i, [j for j in self.sent if self.spans[j][1] > begin_s]
            return self._run(i, begin_s)
        self._run(i, begin_s)
        self.sent.append(i)
        begun_s, end_s = self.spans.get(self.last, (0.0, 0.0))
        return (i, *self._run(self.last, begun_s)) if end_s > begin_s else (i,)

    def _run(self, i: int, begin_s: float) -> tuple[int, ...]:
        kernel, issued_s = self.kernels[i], self.issued[i]
        step = kernel.step
        self.slowing[i] = {} if kernel.link or not self.sent else self._slowing(i, begin_s)
        end_s = begin_s + step.busy_s + sum(self.slowing[i].values())
        if step.later_s:
            end_s = max(end_s, issued_s + step.later_s + step.busy_s / step.launches)
        self.spans[i] = begin_s, end_s
        return (i,)

    def _slowing(self, i: int, begin_s: float) -> dict[int, float]:
        """The seconds that a kernel takes longer for each of the messages next to it."""
        found, left_s, now_s = dict[int, float](), self.kernels[i].step.busy_s, begin_s
        for until_s in sorted({time_s for j in self.sent for time_s in self.spans[j] if time_s > begin_s}):
            beside = [j for j in self.sent if self.spans[j][0] <= now_s < self.spans[j][1]]
            times = self.kernels[i].slowed([self.kernels[j] for j in beside]) if beside else 1.0
            done_s = min(left_s, (until_s - now_s) / times)
            for j in beside:
                found[j] = found.get(j, 0.0) + done_s * (times - 1) / len(beside)
            left_s, now_s = left_s - done_s, until_s
        return found


def _issued(kernels: Sequence[Streamed]) -> tuple[list[float], float]:
    """When the first launch of each kernel is issued, and when the CPU is done."""
    found, cpu_s = list[float](), 0.0
    for step in (each.step for each in kernels):
        found.append(cpu_s + step.issue_s if step.issue_s else found[-1] if found else 0.0)
        cpu_s = found[-1] + step.later_s + step.after_s if step.issue_s else cpu_s
    return found, cpu_s


def overlapped_in_loop(kernels: Sequence[Streamed]) -> Overlap:
    """A step where the same one is issued again and again, as :func:`memwall.simulate.launch_queue.step_in_loop`."""
    steps = [each.step for each in kernels]
    issued_s = sum(step.issue_s + step.later_s + step.after_s for step in steps)
    at_once = [each._replace(step=QueuedKernel(0.0, each.step.busy_s)) for each in kernels]
    found = overlapped(at_once)
    return found if found.time_s >= issued_s else overlapped(kernels, overlapped(kernels).time_s - issued_s)


@dataclass(frozen=True, slots=True)
class Lanes:
    """The streams of a plan: the stream of each kernel, and the kernels of others that it waits for."""

    streams: Sequence[int]
    waits: Sequence[tuple[int, ...]]

    @classmethod
    def of(cls, graph: Graph, plan: Plan) -> Lanes:
        """The streams of a plan; a kernel waits only for what is launched before it."""
        streams = [graph.ops[group.op_ids[0]].stream for group in plan.groups]
        if not any(streams):
            return cls(streams, ())
        kernel_of = {i: number for number, group in enumerate(plan.groups) for i in group.op_ids}
        awaited = ({kernel_of[j] for i in group.op_ids for j in graph.ops[i].waits} for group in plan.groups)
        return cls(streams, [tuple(sorted(j for j in each if j < number)) for number, each in enumerate(awaited)])

    @property
    def overlap(self) -> bool:
        """Whether any kernels may run at the same time."""
        return bool(self.waits)

    def run(self, steps: Sequence[QueuedKernel], needs: Sequence[Needs], lone: bool) -> Overlap:
        """The kernels of a step and what each needs; a ``lone`` one on an idle GPU or one in a loop."""
        if self.overlap:
            kernels = [
                Streamed(step, stream, need.link, waits, need.sides, need.ways)
                for step, stream, need, waits in zip(steps, self.streams, needs, self.waits, strict=True)
            ]
            return overlapped(kernels) if lone else overlapped_in_loop(kernels)
        waits, time_s = queue(steps) if lone else step_in_loop(steps)
        return Overlap(waits, [0.0] * len(steps), time_s)


# -- blocks of layers next to messages between replicas ----------------------------------------------------------------


class Sent(NamedTuple):
    """A message between replicas: its seconds, and the numbers of the blocks that it comes after, and that wait for
    it."""

    time_s: float
    after: tuple[int, ...] = ()
    before: tuple[int, ...] = ()


def one_ahead(gathers: Sequence[float], reduces: Sequence[float]) -> list[Sent]:
    """The gathers of blocks, each one block ahead, and their reductions behind, in the order of one stream."""
    found, last = list[Sent](), len(gathers) - 1
    for i in range(len(gathers) + 2):
        older = (i - 2,) if i > 1 else ()
        if i <= last:
            found.append(Sent(gathers[i], older, (i,)))
        found += [Sent(reduces[block], older) for block in older]
    return found


def beside_s(passes: Sequence[float], messages: Sequence[Sent], taken: Sides) -> float:
    """Seconds of blocks one after another, next to messages between replicas on another stream, each of which takes so
    much of the multiprocessors."""
    sent = [message for message in messages if message.time_s]  # before blocks that become ready with them
    needed_by = {block: (i,) for i, message in enumerate(sent) for block in message.before}
    kernels = [
        Streamed(QueuedKernel(0.0, time_s), 1, "replicas", tuple(len(sent) + block for block in after), taken)
        for time_s, after, _ in sent
    ]
    blocks = [
        Streamed(QueuedKernel(0.0, seconds), waits=needed_by.get(i, ()), sides=Sides(seconds))
        for i, seconds in enumerate(passes)
    ]
    return overlapped([*kernels, *blocks]).time_s
