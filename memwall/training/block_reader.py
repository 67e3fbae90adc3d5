"""A traced training step, cut into its blocks (:mod:`memwall.training.blocks`).

Collectives among the ranks that share matmuls and experts take their time on a cluster
(:func:`memwall.perfmodel.collectives.collective_s`). Of keys and values that pass around a ring, only what takes longer
than the attention of a step is waited for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from memwall.core.graph import Graph, Op
from memwall.perfmodel.roofline import Estimate
from memwall.simulate.memory import temporaries
from memwall.simulate.plan_context import MODEL_CLASSES
from memwall.simulate.schedule import Alone, Schedule, ScheduledKernels
from memwall.training.blocks import WORKS, Block, Blocks, BlockWork
from memwall.training.dispatch import Routing
from memwall.training.places import AFTER, BEFORE, collective_of, core_ops, places_of, repeated_ops

#: of these, collectives of the ranks that share matmuls
_OF_PRODUCTS = ("all_reduce", "all_gather", "reduce_scatter")

#: collective, bytes of its message, the ranks of its group (:mod:`memwall.core.ranks`), and of an all-to-all that
#: HybridEP takes the place of how tokens choose experts → seconds
LinkTime = Callable[..., float]


def read_blocks(
    graph: Graph,
    schedule: Schedule,
    link_s: LinkTime,
    slower: Mapping[str, float] = MappingProxyType({}),
    shares: Iterable[str] = (),
) -> Blocks:
    """The blocks of a traced training step.

    Args:
        schedule: of the same graph, with its plan.
        link_s: how long collectives take.
        slower: op class → how many times longer its kernels take, such as an older library's.
        shares: names of the parameters of which each rank that shares matmuls has a part.

    Raises:
        UsageError: the model has no list of layers.
    """
    kernels = schedule.kernels
    assert isinstance(kernels, ScheduledKernels)  # of a schedule that was simulated, not read
    return _reader_of(graph, frozenset(shares)).timed(kernels.alone(schedule.gpu), link_s, slower)


def light_blocks(graph: Graph, schedule: Schedule, link_s: LinkTime) -> Blocks:
    """As :func:`read_blocks`, with the time at the speed of light of what grows with the samples of a microbatch, at
    least in proportion; ``link_s``: how long collectives take at least."""
    reader, slowest = _reader_of(graph), min(schedule.gpu.dram_bytes_per_s, schedule.gpu.l2_bytes_per_s)
    rows = (Alone(kernel.op_ids[0], kernel.bound_s * reader.grows(kernel, slowest)) for kernel in schedule.kernels)
    return reader.timed(rows, lambda op, *message: 0.0 if op == "send_recv" else link_s(op, *message), {})


def peak_op(graph: Graph, block: int) -> Op:
    """The op of a block at which most is alive. Blocks are counted from what stands before the layers, which is 0, to
    what stands after them."""
    reader = _reader_of(graph)
    return graph.ops[reader.peaks.get(sorted(reader.blocks)[block], (0, 0))[1]]


def traced_messages(graph: Graph) -> list[Counter[tuple[str, bool, str, int, str, Routing | None]]]:
    """Of each block: pass, whether in attention's core, collective, bytes and group of its messages, and how tokens
    choose experts if it sends them to these → how often."""
    reader, found = _reader_of(graph), defaultdict[int, Counter[Any]](Counter)
    for place, names, _, _, *sent in reader._tags:
        found[place][names[0], "core" in names, *sent] += bool(sent[0])
    return [+found[place] for place in sorted(reader.blocks)]


def _timed(block: Block, works: Mapping[str, BlockWork]) -> Block:
    """A block with what runs in it."""
    found: dict[str, Any] = {name: works.get(name, BlockWork()) for name in WORKS}
    return replace(block, **found)


#: the graph that was read last, with its reader: one trace is put on many clusters
_LAST: list[tuple[Graph, _BlockReader]] = []


def _reader_of(graph: Graph, shares: frozenset[str] | None = None) -> _BlockReader:
    """``shares``: as of :func:`read_blocks`; None: any, as who asks needs no FLOPs."""
    if not _LAST or _LAST[0][0] is not graph or shares not in (None, _LAST[0][1].shares):
        _LAST[:] = [(graph, _BlockReader(graph, shares or frozenset()))]
    return _LAST[0][1]


@dataclass
class _RingTimes:
    """What runs in a ring of attention: seconds of messages, and attention's by op."""

    sent_s: float = 0.0
    attention_s: dict[int, float] = field(default_factory=dict)

    def takes(self, op: int, tag: _Tag, work: BlockWork) -> bool:
        """Whether an op is a message of the ring; attention is noted."""
        if tag.op_class == "attention":
            self.attention_s[op] = self.attention_s.get(op, 0.0) + work.busy_s
        is_message = tag.collective == "send_recv"
        self.sent_s += work.busy_s * is_message
        return is_message

    @property
    def exposed_s(self) -> float:
        """Seconds of messages that the attention next to them, of all steps but one, does not hide."""
        steps = max(len(self.attention_s), 1)
        return max(self.sent_s - sum(self.attention_s.values()) * (steps - 1) / steps, 0.0)


class _Tag(NamedTuple):
    """What of an op decides where its time counts. ``names``: its direction, and the parts of that which it is in;
    ``repeated``: every rank that shares matmuls computes it alike; ``collective`` of ``nbytes`` and ``group`` where
    it is one."""

    place: int
    names: tuple[str, ...]
    op_class: str
    repeated: bool = False
    collective: str = ""
    nbytes: int = 0
    group: str = ""
    #: how tokens choose experts, where it sends them to these
    routing: Routing | None = None


class _BlockReader:
    """A graph by its blocks, and what of each does not depend on the GPU."""

    def __init__(self, graph: Graph, shares: frozenset[str]) -> None:
        self.graph, self.places, self.shares = graph, places_of(graph), shares
        self.core = core_ops(graph, self.places)
        self._read_forward: defaultdict[int, set[int]] = defaultdict(set)
        #: storage → the first block that reads it in backward
        self._read_backward: dict[int, int] = {}
        self._made_in: dict[int, int] = {}
        self._shares: dict[int, float] = {}
        self._of_core: set[int] = set()
        #: storages that the inputs flow into, weights and their gradients aside
        self._flowing = {graph.values[i].storage for i in graph.inputs}
        self._names = [collective_of(op) for op in graph.ops]
        #: layers whose keys and values pass around a ring, and modules whose rows go to the experts of other ranks
        self._rings = {self.places[i] for i, name in enumerate(self._names) if name == "send_recv" and i in self.core}
        self._shared = {op.module for op, name in zip(graph.ops, self._names, strict=True) if name == "all_to_all"}
        #: layer, rows for experts → how tokens choose these
        self._routings: dict[tuple[int, int], Routing] = {}
        for op in graph.ops:
            self._note(op)
        self._repeated = repeated_ops(graph, shares)
        self._tags = [self._tag(op) for op in graph.ops]
        #: of each op a number that ops of equal tags share, in whatever layer they are
        numbers: dict[Any, int] = {}
        self._kinds = [numbers.setdefault((tag.place in self._rings, *tag[1:]), len(numbers)) for tag in self._tags]
        self._numbers = {value.storage: value.spec.numel for value in (graph.values[i] for i in graph.parameters)}
        self._holders = {number: self._read_forward[number] for number in self._numbers}

    def _note(self, op: Op) -> None:
        values, place, name = self.graph.values, self.places[op.id], self._names[op.id]
        read, made = ({values[i].storage for i in numbers} for numbers in (op.inputs, op.outputs))
        if read & self._flowing:
            self._flowing |= {number for number in made if self.graph.storages[number].role == "activation"}
        if op.phase != "forward":
            for number in read:
                self._read_backward[number] = min(self._read_backward.get(number, place), place)
            return
        if op.name.startswith("aten.topk"):
            scores, chosen = self.graph.specs((op.inputs[0], op.outputs[0]))
            self._routings[place, chosen.numel] = Routing(chosen.shape[-1], scores.shape[-1])
        for number in read:
            self._read_forward[number].add(place)
        if op.id in self.core and (op.op_class in ("contraction", "attention") or read & self._of_core):
            self._of_core |= made - self._made_in.keys()
        if name == "all_gather":  # gathered again for backward, next to a matmul
            share = self.graph.specs(op.inputs)[0].nbytes / max(self.graph.specs(op.outputs)[0].nbytes, 1)
            self._shares |= dict.fromkeys(made - read, share)
        if place in self._rings and (op.op_class == "attention" or name == "send_recv"):
            self._shares |= dict.fromkeys(made, 0.0)  # the sum of all steps is kept, and keys and values pass again
        for number in made:
            self._made_in.setdefault(number, place)

    def _tag(self, op: Op) -> _Tag:
        names, specs, collective = (op.phase, *self._parts(op)), self.graph.specs, self._names[op.id]
        if not collective:
            return _Tag(self.places[op.id], names, op.op_class, op.id in self._repeated)
        moved, place, group = (*specs(op.inputs), *specs(op.outputs)), self.places[op.id], str(op.attributes["group"])
        nbytes, routing = max(spec.nbytes for spec in moved), None
        if collective == "all_to_all":
            routing = self._routings.get((place, moved[0].shape[0]))
        return _Tag(place, names, op.op_class, False, collective, nbytes, group, routing)

    def _parts(self, op: Op) -> Iterator[str]:
        if op.id in self.core:
            yield "core"
        roles = {self.graph.storages[self.graph.values[i].storage].role for i in op.outputs}
        if op.phase == "backward" and op.op_class in ("contraction", "convolution") and "gradient" in roles:
            yield "weight"

    # -- on a GPU ------------------------------------------------------------------------------------------------------

    def timed(self, kernels: Iterable[Alone], link_s: LinkTime, slower: Mapping[str, float]) -> Blocks:
        """The blocks with the times of kernels."""
        works = self._works(kernels, link_s, slower)
        before, after, *layers = (_timed(block, works.get(place, {})) for place, block in self.blocks.items())
        return Blocks(before, tuple(layers), after, self.tied)

    def grows(self, kernel: Estimate, slowest_bytes_per_s: float) -> bool:
        """Whether a kernel's bound grows with the samples: it computes, or moves what the inputs flow into alone."""
        if kernel.bytes / slowest_bytes_per_s < kernel.bound_s:
            return True
        op = self.graph.ops[kernel.op_ids[0]]
        touched = {self.graph.values[i].storage for i in (*op.inputs, *op.outputs)}
        return len(kernel.op_ids) == 1 and touched <= self._flowing

    def _works(
        self, kernels: Iterable[Alone], link_s: LinkTime, slower: Mapping[str, float]
    ) -> dict[int, dict[str, BlockWork]]:
        """Place → direction → what runs there, once for places with the same kernels; ``weight`` and ``core`` are part
        of the others."""
        rows: defaultdict[int, list[Alone]] = defaultdict(list)
        alike: defaultdict[int, list[tuple[float, ...]]] = defaultdict(list)
        tags, kinds = self._tags, self._kinds
        for row in kernels:
            op, *rest = row
            place = tags[op].place
            rows[place].append(row)
            alike[place].append((kinds[op], *rest))
        sent_s, known, found = cache(link_s), dict[Any, dict[str, BlockWork]](), dict[int, dict[str, BlockWork]]()
        for place, of_place in rows.items():
            key = tuple(alike[place])
            if key not in known:
                known[key] = self._works_of(of_place, sent_s, slower)
            found[place] = known[key]
        return found

    def _works_of(self, rows: Iterable[Alone], sent_s: LinkTime, slower: Mapping[str, float]) -> dict[str, BlockWork]:
        """Direction → what runs in one place."""
        found, rings = defaultdict[str, BlockWork](BlockWork), defaultdict[str, _RingTimes](_RingTimes)
        for op, busy_s, issue_s, flops, matrix_s, again, again_s in rows:
            tag = self._tags[op]
            if tag.names[0] == "optimizer":
                continue
            busy_s *= slower.get(tag.op_class, 1.0)
            repeated, repeated_s = flops * tag.repeated, matrix_s * tag.repeated
            kernel = BlockWork(
                busy_s,
                0.0,
                issue_s,
                flops,
                0.0,
                repeated,
                matrix_s=matrix_s,
                repeated_s=repeated_s,
                again=again,
                again_s=again_s,
            )
            work = _work(tag, kernel, sent_s)
            if tag.place in self._rings and rings[tag.names[0]].takes(op, tag, work):
                work = replace(work, busy_s=0.0, link_s=0.0)
            for name in tag.names:
                found[name] += work
        for phase, ring in rings.items():
            for name in (phase, *(["core"] if phase == "forward" else [])):
                found[name] += BlockWork(ring.exposed_s, ring.exposed_s)
        return dict(found)

    # -- on any GPU ----------------------------------------------------------------------------------------------------

    @property
    def tied(self) -> int:
        """Numbers of weights that are read before the layers and after them."""
        return sum(n for number, n in self._numbers.items() if {BEFORE, AFTER} <= self._holders[number])

    @cached_property
    def peaks(self) -> Mapping[int, tuple[int, int]]:
        """Place → the most that dies in its pass, in bytes, and the op at which that is alive."""
        kept = {number: self._shares.get(number, 1.0) for number in self._read_backward if number in self._made_in}
        return temporaries(self.graph, self.places, kept)

    @cached_property
    def blocks(self) -> Mapping[int, Block]:
        """Place → the block there without its times: what stands before the layers, after them, and each layer."""
        numbers = sorted(set(self.places) - {BEFORE, AFTER})
        found = {place: Counter[str]() for place in (BEFORE, AFTER, *numbers)}
        for number, place in self._read_backward.items():
            if number in self._made_in and self.graph.storages[number].role == "activation" and place in found:
                nbytes = round(self.graph.storages[number].nbytes * self._shares.get(number, 1.0))
                found[place] += {"activation_bytes": nbytes, "core_bytes": nbytes * (number in self._of_core)}
        for number, places in self._read_forward.items():
            for place in places if len(places) < min(len(numbers), 3) else ():  # tables of positions are no input
                if self._made_in.get(number, place) != place:
                    found[place]["input_bytes"] += self.graph.storages[number].nbytes
        experts = tuple(f"{module}." for module in self._shared)
        trained = {storage.name for storage in self.graph.storages if storage.role == "gradient"}
        for number, count in self._numbers.items():
            block = found[min(self._holders[number], default=AFTER)]
            name = self.graph.storages[number].name
            of_experts = bool(experts) and name.startswith(experts)
            block["parameters"] += count
            block["experts"] += count * of_experts
            block["frozen"] += count * (name not in trained)
            block["frozen_experts"] += count * (name not in trained and of_experts)
        for place, (nbytes, _) in self.peaks.items():
            found[place]["temporary_bytes"] = nbytes
        return {place: _sized(sums) for place, sums in found.items()}


def _sized(sums: Mapping[str, int]) -> Block:
    """A block of which only sizes are known."""
    return Block(
        parameters=sums["parameters"],
        activation_bytes=sums["activation_bytes"],
        core_bytes=sums["core_bytes"],
        input_bytes=sums["input_bytes"],
        experts=sums["experts"],
        temporary_bytes=sums["temporary_bytes"],
        frozen=sums["frozen"],
        frozen_experts=sums["frozen_experts"],
    )


def _work(tag: _Tag, kernel: BlockWork, link_s: LinkTime) -> BlockWork:
    """A kernel's work, in the time of its collective if it is one."""
    if tag.op_class in MODEL_CLASSES:
        return kernel
    if tag.op_class != "communication":
        return BlockWork(kernel.busy_s, 0.0, kernel.issue_s)
    message = tag.collective, tag.nbytes, tag.group
    sent_s = link_s(*message) if tag.collective else 0.0  # a send is next to what arrives
    a2a_s = sent_s if tag.collective == "all_to_all" else 0.0
    hybrid_s = link_s(*message, tag.routing) if tag.routing else 0.0
    tensor_s = sent_s if tag.collective in _OF_PRODUCTS else 0.0
    return BlockWork(sent_s, sent_s, kernel.issue_s, 0, tensor_s, a2a_s=a2a_s, hybrid_s=hybrid_s)
