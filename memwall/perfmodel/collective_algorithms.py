"""What the algorithms of collectives send: steps and shares of the message on each level of links
(:mod:`memwall.perfmodel.collectives` has the sources and takes the fastest)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from memwall.core.units import counted
from memwall.hardware.links import PROTOCOLS, Link, Protocol, TorusAxis

#: kinds of links on which vLLM and SGLang run custom all-reduces of more than two GPUs, which read each other's memory
_DIRECT_READS = ("nvlink", "nvswitch", "nvls", "xgmi")


class LinkLevel(NamedTuple):
    """A link with the job's groups on it: ``groups`` of ``gpus`` GPUs each."""

    name: str
    link: Link
    groups: int
    gpus: int

    @property
    def rate(self) -> float:
        return self.link.rate(self.gpus, self.groups)

    @property
    def most_rate(self) -> float:
        return self.link.most_rate(self.gpus, self.groups)

    @property
    def axes(self) -> tuple[TorusAxis, ...]:
        """Of a torus; of other links one that has all groups."""
        return self.link.axes(self.groups) if self.link.torus else (TorusAxis(self.groups, self.rate),)


class Leg(NamedTuple):
    """What an algorithm does on a level: steps, the share of the message that leaves a group, and that which a GPU
    keeps and copies in its own memory."""

    level: LinkLevel
    steps: float
    share: float
    own: float = 0.0


class Way(NamedTuple):
    """An algorithm with the protocol of each of its legs."""

    algorithm: str
    protocol: str
    legs: Sequence[Leg]
    protocols: Sequence[Protocol]

    def time_s(self, nbytes: float) -> float:
        start_s = max(how.start_s for how in self.protocols)
        steps_s = sum(leg.steps * how.step_s for leg, how in zip(self.legs, self.protocols, strict=True))
        streams_s = (_stream_s(leg, how, nbytes) for leg, how in zip(self.legs, self.protocols, strict=True))
        return start_s + steps_s + max(streams_s)

    def words(self) -> str:
        """Its names, and where its bytes go."""
        steps = counted(round(sum(leg.steps for leg in self.legs)), "step")
        sent = ", ".join(f"{leg.share:.3g} x the message on {leg.level.name}" for leg in self.legs)
        return f"{f'{self.algorithm} {self.protocol}'.strip()}: {steps}, {sent}"


def _stream_s(leg: Leg, how: Protocol, nbytes: float) -> float:
    """Seconds of a leg's bytes in the best number of pieces."""
    bytes_s = (leg.share + leg.own * how.own_parts) * nbytes / (leg.level.rate * how.share)
    return bytes_s + 2 * math.sqrt(bytes_s * how.fill_s)


def _ring(levels: Sequence[LinkLevel], rounds: int = 1, whole: bool = False) -> list[Leg]:
    """Through all GPUs, each node entered once; ``whole``: the message goes around undivided."""
    workers = math.prod(level.groups for level in levels)
    share = 1.0 if whole else rounds * (workers - 1) / workers
    own = 0.0 if whole else 1 / workers
    legs, outer = [], workers
    for i, level in enumerate(levels):
        inside, outer = outer, outer // level.groups
        edges = inside - outer if i < len(levels) - 1 else inside
        legs.append(Leg(level, rounds * (workers - 1) * edges / workers, share, own))
    return legs


def _tree(levels: Sequence[LinkLevel], rounds: int = 1) -> list[Leg]:
    """A chain in each node, double binary trees between nodes."""
    *inner, last = levels
    depth = math.ceil(math.log2(last.groups))
    return [*(Leg(each, rounds * (each.groups - 1), rounds) for each in inner), Leg(last, rounds * depth, rounds)]


def _hierarchy(levels: Sequence[LinkLevel], rounds: int = 1) -> list[Leg]:
    """Each level on its own: of what leaves a group, every GPU sends its part."""
    others = [rounds * (each.groups - 1) for each in levels]
    return [Leg(each, n, n / each.groups, 1 / each.groups) for each, n in zip(levels, others, strict=True)]


def _in_switch(levels: Sequence[LinkLevel], rounds: int = 1) -> list[Leg]:
    """Sums, and copies, in the innermost switch; a hierarchy between nodes."""
    first, *others = _hierarchy(levels, rounds)
    parts = first.level.groups
    return [Leg(first.level, 1, (parts + 1) / parts), *others]


def _torus(levels: Sequence[LinkLevel], rounds: int = 1, whole: bool = False) -> list[Leg]:
    """Rings along all axes at once, in both directions; slices exchange what their chips have summed. ``whole``: the
    message goes around undivided."""
    legs = _hierarchy(levels, rounds)
    return [leg._replace(steps=rounds * _hops(leg.level), share=1.0 if whole else leg.share, own=0.0) for leg in legs]


def _hops(level: LinkLevel) -> int:
    return sum(axis.hops(level.link.bytes_per_s) for axis in level.axes)


def _torus_pairs(levels: Sequence[LinkLevel], rounds: int = 1) -> list[Leg]:
    """Every chip sends a part to each other one: on average over a quarter of each ring, and over links that an axis
    without a ring has half of."""
    workers, legs = math.prod(level.groups for level in levels), []
    for each in levels:
        share = each.gpus * each.gpus * (each.groups - 1) / workers
        if each.link.torus:
            share = each.rate * max(axis.chips / 4 / axis.rate for axis in each.axes)
        legs.append(Leg(each, _hops(each), share))
    return legs


def _pairs(levels: Sequence[LinkLevel], rounds: int = 1) -> list[Leg]:
    """Every GPU sends a part to each other one, over the level that joins the two."""
    workers = math.prod(level.groups for level in levels)
    peers = [each.gpus * (each.groups - 1) for each in levels]
    return [Leg(each, n, each.gpus * n / workers, 1 / workers) for each, n in zip(levels, peers, strict=True)]


def _transfer(levels: Sequence[LinkLevel], rounds: int = 1) -> list[Leg]:
    """The message to one GPU behind the outermost link."""
    return [Leg(levels[-1], 1, 1.0)]


def _one_shot(levels: Sequence[LinkLevel], rounds: int = 1) -> list[Leg]:
    """Every GPU reads the messages of all others."""
    return [Leg(each, each.groups - 1, each.groups - 1) for each in levels]


class CollectiveOp(NamedTuple):
    """A collective: how often its bytes go around, and its algorithms by the name of their protocols' group."""

    rounds: int
    algorithms: Mapping[str, Callable[..., list[Leg]]]
    #: whether the message is sent undivided
    whole: bool = False

    def bus_factor(self, workers: int) -> float:
        """Bus bandwidth over ``nbytes / time_s`` (nccl-tests, PERFORMANCE.md)."""
        return 1.0 if self.whole else self.rounds * (workers - 1) / workers


_whole_ring, _whole_torus = partial(_ring, whole=True), partial(_torus, whole=True)

OPS: Mapping[str, CollectiveOp] = {
    "all_reduce": CollectiveOp(2, {"ring": _ring, "tree": _tree, "nvls": _in_switch, "torus": _torus}),
    "all_gather": CollectiveOp(1, {"ring": _ring, "hierarchical": _hierarchy, "torus": _torus}),
    "reduce_scatter": CollectiveOp(1, {"ring": _ring, "hierarchical": _hierarchy, "torus": _torus}),
    "all_to_all": CollectiveOp(1, {"direct": _pairs, "torus": _torus_pairs}),
    "broadcast": CollectiveOp(1, {"ring": _whole_ring, "tree": _tree, "torus": _whole_torus}, whole=True),
    "send_recv": CollectiveOp(1, {"send": _transfer, "direct": _transfer, "torus": _transfer}, whole=True),
}
#: algorithm → its protocols: of the innermost level, and of the others
_PROTOCOLS: Mapping[str, tuple[tuple[str, str], ...]] = {
    **dict.fromkeys(("ring", "tree", "hierarchical"), (("ll", "ll"), ("ll128", "ll128"), ("simple", "simple"))),
    "nvls": (("nvls", "simple"),),
    "torus": (("torus", "torus"),),
    "direct": (("direct_ll", "direct_ll"), ("direct", "direct")),
    "send": (("send", "send"),),
    "one-shot": (("one_shot", "one_shot"),),
    "two-shot": (("two_shot", "two_shot"),),
    "TensorRT-LLM one-shot": (("trtllm_one_shot", "trtllm_one_shot"),),
    "TensorRT-LLM two-shot": (("trtllm_two_shot", "trtllm_two_shot"),),
}
#: library → the algorithms of its own all-reduce
CUSTOM: Mapping[str, Mapping[str, Callable[..., list[Leg]]]] = {
    "nccl": {},
    "custom": {"one-shot": _one_shot, "two-shot": _hierarchy},
    "trtllm": {"TensorRT-LLM one-shot": _one_shot, "TensorRT-LLM two-shot": _hierarchy},
}
#: as NCCL prints them
_PRINTED = {"ll": "LL", "ll128": "LL128", "simple": "Simple", "direct_ll": "LL", "direct": "Simple", "nvls": "Simple"}


def protocol_ways(op: str, levels: Sequence[LinkLevel], library: str) -> Iterator[Way]:
    """The algorithms with each of their protocols that the links have."""
    algorithms = dict(OPS[op].algorithms)
    inside = len(levels) == 1
    kind = levels[0].link.kind
    reads = kind in _DIRECT_READS or (levels[0].groups == 2 and kind in PROTOCOLS["one_shot"])
    if CUSTOM[library] and op == "all_reduce" and inside and reads:
        algorithms = dict(CUSTOM[library])
    elif inside:
        algorithms = {name: legs for name, legs in algorithms.items() if name not in ("tree", "hierarchical")}
    elif levels[0].link.kind != "nvls":
        algorithms.pop("hierarchical", None)
    for name, legs_of in algorithms.items():
        legs = legs_of(levels, OPS[op].rounds)
        for first, other in _PROTOCOLS[name]:
            names = [first, *[other] * (len(legs) - 1)]
            if all(each in leg.level.link.protocols for each, leg in zip(names, legs, strict=True)):
                hows = [leg.level.link.protocols[each] for each, leg in zip(names, legs, strict=True)]
                yield Way(name, _PRINTED.get(first, ""), legs, hows)


def nominal_s_per_byte(legs: Sequence[Leg]) -> float:
    """Seconds per byte of message on the slowest level at its nominal rate."""
    return max(leg.share / leg.level.rate for leg in legs)


def _least_s_per_byte(legs: Sequence[Leg]) -> float:
    """The same at the rate that no algorithm exceeds."""
    return max(leg.share / leg.level.most_rate for leg in legs)


def bound_s_per_byte(op: CollectiveOp, levels: Sequence[LinkLevel]) -> float:
    """Seconds per byte of message that no algorithm beats: switches that do sums spare half of an all-reduce."""
    if op.algorithms == OPS["all_to_all"].algorithms:
        return _least_s_per_byte(_pairs(levels))
    if op.whole:
        return 1 / levels[-1].most_rate
    legs = _hierarchy(levels, op.rounds)
    in_switch = [leg._replace(share=leg.share / op.rounds) if leg.level.link.kind == "nvls" else leg for leg in legs]
    return _least_s_per_byte(in_switch)
