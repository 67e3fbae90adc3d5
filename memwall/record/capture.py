"""What TorchDynamo made of a model, as data: its partial graphs, the breaks between them, the guards, recompilations.

A compiler fuses within one run of a partial graph only. Backward ops belong to the run of their forward op; gradient
accumulation in ``.grad`` and the optimizer's step to none. The workload's own loss is captured with the model.

A break is counted where it ends a graph. Inside a function called from a captured one it ends two graphs, the caller's
and the function's own; ``cuts`` has both, ``count`` is how often the line itself was reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import groupby
from typing import Annotated, Any, ClassVar

from memwall.core.graph import EAGER, Op
from memwall.core.structure import BadRecord, SavedAs

#: Ops beyond which the regions of a saved capture are damage.
MAX_OPS = 10_000_000

#: Bytes of weights beyond which a model is not run on real tensors for its breaks.
REAL_BYTES = 4 << 30


@dataclass(frozen=True)
class PartialGraph:
    """One run of a captured graph. ``code`` numbers the captures: a block called N times is captured once, runs N."""

    code: int
    forward_ops: int
    backward_ops: int


@dataclass(frozen=True)
class Break:
    """A line that Dynamo could not capture.

    ``after_op`` is the last op before the line was first reached, ``cuts`` every op after which a graph ended because
    of it; ids of the Graph, None for a break before the first op. Where Dynamo gave up the model's own function because
    of the line, ``lost_from`` is the first op of the rest, which graphs hold only as far as it is in other functions.
    """

    reason: str
    detail: str
    file: str
    line: int
    source_line: str
    function: str
    count: int
    after_op: int | None
    cuts: tuple[int, ...]
    lost_from: int | None = None


@dataclass(frozen=True)
class Guard:
    """What must hold for a captured graph to be used again; if it fails, Dynamo captures anew."""

    name: str
    kind: str
    check: str


@dataclass(frozen=True)
class Recompile:
    """A further call: its inputs, how many graphs were captured for it, the guards that failed, and the dimensions
    that the new graphs take in any size, as in ``dimension 0 of x (s77)``."""

    inputs: tuple[str, ...]
    captures: int
    reasons: tuple[str, ...]
    dynamic: tuple[str, ...]


def _read_regions(value: Any) -> tuple[int, ...]:
    try:
        runs = [(int(region), int(count)) for region, count in value]
    except (TypeError, ValueError):
        raise BadRecord("is not a list of [region, ops]") from None
    if sum(count for _, count in runs) > MAX_OPS:
        raise BadRecord("holds more ops than a profile can have")
    return tuple([region for region, count in runs for _ in range(count)])


def _write_regions(regions: tuple[int, ...]) -> list[list[int]]:
    return [[region, len([*ops])] for region, ops in groupby(regions)]


#: a record has the regions of ops as runs of ``[region, ops]``
_REGIONS = SavedAs(tuple[tuple[int, ...], ...], _read_regions, _write_regions)


@dataclass(frozen=True)
class Capture:
    """What Dynamo made of a workload.

    ``regions`` has, for each op of the Graph, the index in ``graphs`` of the run that holds it, or ``EAGER``.
    ``captures`` counts distinct captured graphs. ``unmatched`` counts ops of the Graph that are missing at their place
    in the run under Dynamo: 0 where both streams are equal. ``data`` is ``meta`` or ``real``: the tensors that ran.
    ``failure`` says why nothing was captured. ``behind`` is the first op after the model: the sum of its outputs, where
    that replaces a loss.
    """

    SAVED: ClassVar = (
        "graphs",
        "captures",
        "breaks",
        "guard_kinds",
        "guards",
        "recompiles",
        "regions",
        "unmatched",
        "data",
        "notes",
        "failure",
        "behind",
        "guards_left_out",
    )

    graphs: tuple[PartialGraph, ...] = ()
    captures: int = 0
    breaks: tuple[Break, ...] = ()
    guard_kinds: Mapping[str, int] = field(default_factory=dict)
    guards: tuple[Guard, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    regions: Annotated[tuple[int, ...], _REGIONS] = ()
    unmatched: int = 0
    data: str = "meta"
    notes: tuple[str, ...] = ()
    failure: str | None = None
    behind: int | None = None

    @property
    def guards_left_out(self) -> int:
        """Guards that are counted in ``guard_kinds`` and not listed."""
        return sum(self.guard_kinds.values()) - len(self.guards)


def carry(
    known: Sequence[int], given: Sequence[Op], ops: Sequence[Op]
) -> tuple[tuple[int, ...], tuple[int | None, ...], int]:
    """The regions of some ops (``known``, of ``given``) for another trace of the same step: the region of each op, the
    counterpart of each given op, and how many ops have no counterpart.

    An op without a counterpart belongs to the region of its neighbours where both agree, else to none.
    """
    wanted = [(op.phase, op.name) for op in ops if op.phase != "optimizer"]
    names = [(op.phase, op.name) for op in given if op.phase != "optimizer"]
    regions: list[int | None] = [None] * len(wanted)
    places: list[int | None] = [None] * len(names)
    for i, j, size in _matching(names, wanted):
        regions[j : j + size] = known[i : i + size]
        places[i : i + size] = [op.id for op in ops[j : j + size]]
    unmatched = regions.count(None)
    before = EAGER
    for j, region in enumerate(regions):
        if region is None:
            after = next((r for r in regions[j + 1 :] if r is not None), EAGER)
            regions[j] = before if before == after else EAGER
        before = regions[j] or 0
    filled = [EAGER if r is None else r for r in regions]
    return (*filled, *[EAGER] * (len(ops) - len(wanted))), tuple(places), unmatched


def place_before(places: Sequence[int | None], stop: int) -> int | None:
    """The counterpart of the last of the first ``stop`` given ops that has one."""
    return next((place for place in reversed(places[:stop]) if place is not None), None)


def _matching(given: list[Any], wanted: list[Any]) -> Iterable[tuple[int, int, int]]:
    """Equal runs of two sequences; equal ends are not searched."""
    short = min(len(given), len(wanted))
    head = next((i for i in range(short) if given[i] != wanted[i]), short)
    tail = next((i for i in range(short - head) if given[-1 - i] != wanted[-1 - i]), short - head)
    yield 0, 0, head
    middle = SequenceMatcher(None, given[head : len(given) - tail], wanted[head : len(wanted) - tail], autojunk=False)
    for i, j, size in middle.get_matching_blocks():
        yield head + i, head + j, size
    yield len(given) - tail, len(wanted) - tail, tail
