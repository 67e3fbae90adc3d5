"""A traced training step, cut into its blocks: what comes before the repeated layers, each layer, and what comes after.

Times are those of one microbatch on one rank. Collectives among the ranks that share products and experts take their
time on a cluster (:func:`memwall.perfmodel.collectives.collective_s`). Of keys and values that pass around a ring, only
what takes longer than the attention of a step is waited for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from memwall.core.errors import UsageError
from memwall.core.graph import Graph, Op
from memwall.perfmodel.roofline import Estimate
from memwall.simulate.schedule import MODEL_CLASSES, Schedule

#: part of a collective's name -> its name in :mod:`memwall.perfmodel.collectives`
_COLLECTIVES: Mapping[str, str] = {
    "allreduce": "all_reduce", "all_reduce": "all_reduce", "allgather": "all_gather", "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all", "all_to_all": "all_to_all", "recv": "send_recv",
}  # fmt: skip
#: of these, those of the ranks that share products
_OF_PRODUCTS = ("all_reduce", "all_gather", "reduce_scatter")


@dataclass(frozen=True, slots=True)
class Work:
    """What runs in one direction: seconds of the GPU, of these those of collectives (``link_s``), of these those next
    to products (``tensor_s``), and seconds of the CPU to issue it. ``flops``: of products and attention."""

    busy_s: float = 0.0
    link_s: float = 0.0
    issue_s: float = 0.0
    flops: int = 0
    tensor_s: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.busy_s + other.busy_s, self.link_s + other.link_s, self.issue_s + other.issue_s,
                    self.flops + other.flops, self.tensor_s + other.tensor_s)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Block:
    """A layer, or what stands before or after the layers. ``weight``: the part of backward that makes gradients of
    weights; ``core``: the part of forward between attention's scores and its result.

    Bytes: ``activation_bytes`` are kept from forward to backward, ``core_bytes`` of them by attention's core,
    ``input_bytes`` is what the block reads of the one before; ``parameters`` are numbers that it holds, ``experts`` of
    them of experts that it shares with other ranks."""

    forward: Work = Work()
    backward: Work = Work()
    weight: Work = Work()
    core: Work = Work()
    parameters: int = 0
    activation_bytes: int = 0
    core_bytes: int = 0
    input_bytes: int = 0
    experts: int = 0


@dataclass(frozen=True, slots=True)
class Blocks:
    """A model as blocks. ``tied``: numbers that both ends hold, such as the embedding that is the head too."""

    before: Block
    layers: tuple[Block, ...]
    after: Block
    tied: int = 0

    def stretched(self, layers: int) -> Blocks:
        """The model with so many layers, its first and last as they are and the second between them."""
        first, inner, *_, last = self.layers
        return replace(self, layers=(first, *[inner] * (layers - 2), last))


#: collective, bytes of its message, the ranks of its group (:mod:`memwall.core.ranks`) → seconds
LinkTime = Callable[[str, int, str], float]
#: where an op is: before the layers, in one, or after them
_BEFORE, _AFTER = -1, 1 << 30


def read_blocks(
    graph: Graph, schedule: Schedule, link_s: LinkTime,
    slower: Mapping[str, float] = MappingProxyType({}),
) -> Blocks:  # fmt: skip
    """The blocks of a traced training step.

    Args:
        schedule: of the same graph, with its plan.
        link_s: how long collectives take.
        slower: op class → how many times longer its kernels take, such as those of an older library.

    Raises:
        UsageError: the model has no list of layers.
    """
    places = _places(graph)
    readers = _Reader(graph, places, _core_ops(graph, places))
    works = readers.works(schedule, link_s, slower)
    numbers = sorted({place for place in places if place not in (_BEFORE, _AFTER)})
    before, after, *layers = (readers.block(place, works.get(place, {})) for place in (_BEFORE, _AFTER, *numbers))
    return Blocks(before, tuple(layers), after, readers.tied)


def _places(graph: Graph) -> list[int]:
    """Where each op is: the number of its layer in the longest list; other ops by their neighbours."""
    prefix = _list_of_layers(graph)
    numbers = [_number(op.module, prefix) for op in graph.ops]
    count = len({number for number in numbers if number is not None})
    found, last = [], {"forward": _BEFORE, "backward": _AFTER, "optimizer": _AFTER}
    seen: Counter[str] = Counter()
    ends = {"forward": _last(graph, numbers, "forward"), "backward": _last(graph, numbers, "backward")}
    for op, number in zip(graph.ops, numbers, strict=True):
        if number is not None:
            seen[op.phase] += 1
            last[op.phase] = number
        elif count and seen[op.phase] and op.id > ends.get(op.phase, op.id):
            last[op.phase] = _AFTER if op.phase == "forward" else _BEFORE
        found.append(last[op.phase])
    return found


def _last(graph: Graph, numbers: list[int | None], phase: str) -> int:
    """The last op of a phase that is in a layer."""
    own = zip(graph.ops, numbers, strict=True)
    return max((op.id for op, number in own if op.phase == phase and number is not None), default=-1)


def _list_of_layers(graph: Graph) -> str:
    """The path of the list with the most layers, of those that have half of the ops in modules with numbers."""
    ops: Counter[str] = Counter()
    layers: defaultdict[str, set[str]] = defaultdict(set)
    for op in graph.ops:
        parts = op.module.split(".")
        for at in (i for i, part in enumerate(parts) if part.isdecimal()):
            ops[".".join(parts[:at])] += 1
            layers[".".join(parts[:at])].add(parts[at])
    most = max(ops.values(), default=0)
    lists = [prefix for prefix in ops if len(layers[prefix]) > 1 and 2 * ops[prefix] >= most]
    if not lists:
        raise UsageError("the model has no list of layers (nn.ModuleList, nn.Sequential), by which a layout divides it")
    return max(lists, key=lambda prefix: (len(layers[prefix]), prefix))


def _number(module: str, prefix: str) -> int | None:
    if prefix and not module.startswith(f"{prefix}."):
        return None
    number = module[len(prefix) :].lstrip(".").partition(".")[0]
    return int(number) if number.isdecimal() else None


def _core_ops(graph: Graph, places: list[int]) -> dict[int, int]:
    """Ops of attention's core, and the layer of each: from the first product of activations in a layer's forward pass
    to the last."""
    products: defaultdict[int, list[int]] = defaultdict(list)
    for op in graph.ops:
        if op.phase == "forward" and op.op_class in ("contraction", "attention"):
            roles = {graph.storages[graph.values[i].storage].role for i in op.inputs}
            if places[op.id] not in (_BEFORE, _AFTER) and "parameter" not in roles:
                products[places[op.id]].append(op.id)
    return {op: place for place, ops in products.items() for op in range(ops[0], ops[-1] + 1)}


@dataclass
class _Ring:
    """What runs in a ring of attention: seconds of messages, and attention's by op."""

    sent_s: float = 0.0
    attention_s: dict[int, float] = field(default_factory=dict)

    def takes(self, op: Op, work: Work) -> bool:
        """Whether an op is a message of the ring; attention is noted."""
        if op.op_class == "attention":
            self.attention_s[op.id] = self.attention_s.get(op.id, 0.0) + work.busy_s
        is_message = _collective(op) == "recv"
        self.sent_s += work.busy_s * is_message
        return is_message

    @property
    def exposed_s(self) -> float:
        """Seconds of messages that the attention next to them, that of all steps but one, does not hide."""
        steps = max(len(self.attention_s), 1)
        return max(self.sent_s - sum(self.attention_s.values()) * (steps - 1) / steps, 0.0)


class _Reader:
    """Sums over the ops and the storages of each block."""

    def __init__(self, graph: Graph, places: list[int], core: Mapping[int, int]) -> None:
        self.graph, self.places, self.core = graph, places, core
        self._read_forward: defaultdict[int, set[int]] = defaultdict(set)
        #: storage → the first block that reads it in backward
        self._read_backward: dict[int, int] = {}
        self._made_in: dict[int, int] = {}
        self._shares: dict[int, float] = {}
        self._of_core: set[int] = set()
        #: layers whose keys and values pass around a ring, and modules whose rows go to the experts of other ranks
        self._rings = {places[op.id] for op in graph.ops if _collective(op) == "recv" and op.id in core}
        self._shared = {op.module for op in graph.ops if _COLLECTIVES.get(_collective(op)) == "all_to_all"}
        for op in graph.ops:
            self._note(op)
        holders: defaultdict[int, set[int]] = defaultdict(set)
        for i in graph.parameters:
            number = graph.values[i].storage
            holders[number] |= self._read_forward[number]
        self._holders = holders

    def _note(self, op: Op) -> None:
        values, place = self.graph.values, self.places[op.id]
        read = {values[i].storage for i in op.inputs}
        if op.phase != "forward":
            for number in read:
                self._read_backward[number] = min(self._read_backward.get(number, place), place)
            return
        for number in read:
            self._read_forward[number].add(place)
        made = {values[i].storage for i in op.outputs}
        if op.id in self.core and (op.op_class in ("contraction", "attention") or read & self._of_core):
            self._of_core |= made - self._made_in.keys()
        if _COLLECTIVES.get(_collective(op)) == "all_gather":  # gathered again for backward, next to a product
            share = self.graph.specs(op.inputs)[0].nbytes / max(self.graph.specs(op.outputs)[0].nbytes, 1)
            self._shares |= dict.fromkeys(made - read, share)
        if place in self._rings and (op.op_class == "attention" or _collective(op) == "recv"):
            self._shares |= dict.fromkeys(made, 0.0)  # the sum of all steps is kept, and keys and values pass again
        for number in made:
            self._made_in.setdefault(number, place)

    @property
    def tied(self) -> int:
        """Numbers of weights that are read before the layers and after them."""
        ends = [number for number, places in self._holders.items() if {_BEFORE, _AFTER} <= places]
        return sum(self._numbers[number] for number in ends)

    @property
    def _numbers(self) -> dict[int, int]:
        values = (self.graph.values[i] for i in self.graph.parameters)
        return {value.storage: value.spec.numel for value in values}

    def works(self, schedule: Schedule, link_s: LinkTime, slower: Mapping[str, float]) -> dict[int, dict[str, Work]]:
        """Place → direction → what runs there; ``weight`` and ``core`` are part of the others."""
        found: defaultdict[int, defaultdict[str, Work]] = defaultdict(lambda: defaultdict(Work))
        rings: defaultdict[tuple[int, str], _Ring] = defaultdict(_Ring)
        for kernel in schedule.kernels:
            op = self.graph.ops[kernel.op_ids[0]]
            if op.phase == "optimizer":
                continue
            place, work = self.places[op.id], self._work(op, kernel, link_s, slower.get(op.op_class, 1.0))
            if place in self._rings and rings[place, op.phase].takes(op, work):
                work = replace(work, busy_s=0.0, link_s=0.0)
            for name in (op.phase, *self._parts(op)):
                found[place][name] += work
        for (place, phase), ring in rings.items():
            for name in (phase, *(["core"] if phase == "forward" else [])):
                found[place][name] += Work(ring.exposed_s, ring.exposed_s)
        return {place: dict(works) for place, works in found.items()}

    def _work(self, op: Op, kernel: Estimate, link_s: LinkTime, slower: float) -> Work:
        busy_s, sent_s, name = slower * (kernel.time_s - kernel.wait_s), 0.0, _COLLECTIVES.get(_collective(op))
        if name:
            specs = (*self.graph.specs(op.inputs), *self.graph.specs(op.outputs))
            busy_s = sent_s = link_s(name, max(spec.nbytes for spec in specs), op.attributes["group"])
        elif op.op_class == "communication":  # a send, next to what is received
            busy_s = 0.0
        return Work(busy_s, sent_s, kernel.issue_s, kernel.flops if op.op_class in MODEL_CLASSES else 0,
                    sent_s if name in _OF_PRODUCTS else 0.0)  # fmt: skip

    def _parts(self, op: Op) -> Iterator[str]:
        if op.id in self.core:
            yield "core"
        roles = {self.graph.storages[self.graph.values[i].storage].role for i in op.outputs}
        if op.phase == "backward" and op.op_class in ("contraction", "convolution") and "gradient" in roles:
            yield "weight"

    def block(self, place: int, works: Mapping[str, Work]) -> Block:
        """The block at a place."""
        storages, inputs = self.graph.storages, 0
        kept = [number for number, at in self._read_backward.items() if at == place and number in self._made_in
                and storages[number].role == "activation"]  # fmt: skip
        for number, places in self._read_forward.items():
            if place in places and len(places) < 3 and self._made_in.get(number, place) != place:
                inputs += storages[number].nbytes
        own = sum(n for number, n in self._numbers.items() if place == min(self._holders[number], default=_AFTER))
        return Block(
            works.get("forward", Work()), works.get("backward", Work()), works.get("weight", Work()),
            works.get("core", Work()), own, self._bytes(kept), self._bytes(n for n in kept if n in self._of_core),
            inputs, self._experts(place),
        )  # fmt: skip

    def _experts(self, place: int) -> int:
        """Numbers of the experts of a layer that other ranks share."""
        storages, prefixes = self.graph.storages, tuple(f"{module}." for module in self._shared)
        held = (number for number, places in self._holders.items() if prefixes and place in places)
        return sum(self._numbers[n] for n in held if storages[n].name.startswith(prefixes))

    def _bytes(self, numbers: Iterator[int] | list[int]) -> int:
        return sum(round(self.graph.storages[n].nbytes * self._shares.get(n, 1.0)) for n in numbers)


def _collective(op: Op) -> str:
    """The key of a collective among :data:`_COLLECTIVES`; empty: it is none of them."""
    return next((key for key in _COLLECTIVES if op.op_class == "communication" and key in op.name), "")
