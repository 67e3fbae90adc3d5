"""Whether two groups of ops may share one kernel: a list of small rules, each with a name and a reason.

A rule sees the two groups and the edges between them and returns the reason for a refusal, or None; the first refusal
is recorded. The planner itself checks whether another kernel must run between (``cycle``), whether one kernel is slower
than two (``slower when fused``), and whether it spilled when compiled (``register spill``). Random numbers may be drawn
inside a kernel; :mod:`memwall.fusion.recompute` ensures that none is drawn twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from memwall.core.graph import EAGER, Graph, Op, TensorSpec, Value
from memwall.fusion.pricing import Border
from memwall.ops.launches import ROW_BYTES_ON_CHIP
from memwall.ops.loops import FAR, Loop
from memwall.ops.registry import is_users_own

#: ops in one generated kernel; beyond it compile times and register pressure grow without a gain
MAX_OPS = 64
#: tensors that one kernel reads or writes: each takes a pointer and, per element in flight, registers
MAX_TENSORS = 48
#: ops that may be recomputed for each element of a larger kernel that uses them
MAX_REPEATED_OPS = 12

#: arguments of a gather that are read in order
INDEX_ARGUMENTS = ("indices", "index")

#: the op that gives a tensor memory of its own, in the order that is asked for
COPY = "aten.clone"

MATRIX_CLASSES = ("contraction", "convolution", "attention")


def has_matrix_op(graph: Graph, op_ids: Iterable[int]) -> bool:
    """Whether one of some ops is a product, a convolution or attention."""
    return any(graph.ops[i].op_class in MATRIX_CLASSES for i in op_ids)


def is_library_call(graph: Graph, op_ids: Sequence[int]) -> bool:
    """Whether a group is one such op alone: no generated kernel is faster than the library's (on an H200 ours took 1.01
    to 1.44 times as long in 16 bits, 1.3 to 5.7 times in float32 without TF32: reports/measured_h200.md)."""
    return len(op_ids) == 1 and has_matrix_op(graph, op_ids)


@dataclass
class Shape:
    """The loop nest of a group: the union of its ops' nests."""

    numel: int
    rows: int = 0
    cols: int = 0
    axes: str = ""
    has_row: bool = False
    has_columns: bool = False
    kinds: frozenset[str] = frozenset()

    @classmethod
    def of(cls, loop: Loop) -> Shape:
        """The loop nest of one op; a full reduction fixes no rows."""
        is_total = loop.kind == "column" and loop.cols == 1  # partial sums can be made in any order
        fixed = loop.kind in ("row", "column", "grid") and not is_total
        return cls(
            loop.numel,
            loop.rows if fixed or loop.kind == "multi" else 0,
            loop.cols if fixed else 0,
            loop.axes,
            loop.kind == "row",
            loop.columns,
            frozenset((loop.kind,)),
        )


@dataclass
class FusionCandidate:
    """A group in the making. ``members`` are op ids in call order; ``makers`` the ops that wrote what they read."""

    members: list[int]
    inside: frozenset[int]
    makers: frozenset[int]
    border: Border
    shape: Shape
    #: of what kernels it may share: :meth:`memwall.core.graph.Graph.program_of`
    program: str
    region: int
    op_class: str
    accumulators: int = 0
    #: values that are complete only when the kernel ends
    late: frozenset[int] = frozenset()
    #: storages that the group overwrites, and one view of each storage that it touches (None: several that differ)
    overwritten: frozenset[int] = frozenset()
    views: dict[int, Value | None] = field(default_factory=dict)
    #: values that the kernel writes in another order than it computes them in
    moved: frozenset[int] = frozenset()

    @property
    def is_generated(self) -> bool:
        """Whether it can be a generated kernel: :func:`library_kernel` refuses all others."""
        return self.op_class not in MATRIX_CLASSES and "opaque" not in self.shape.kinds


class Edge(NamedTuple):
    """A value that the first group passes to the second: as written, as read, and the argument that reads it."""

    producer: Op
    consumer: Op
    written: Value
    read: Value
    argument: str = ""
    consumer_kind: str = "point"
    #: the consumer writes elements at other positions than it reads them from
    moves: bool = False
    #: it is not kept, and nothing else reads it
    is_only: bool = False
    #: no generated kernel reads what the consumer writes
    is_last: bool = False


@dataclass
class CandidatePair:
    """Two groups that might become one; ``edges`` run from the first to the second, none for siblings."""

    first: FusionCandidate
    second: FusionCandidate
    edges: Sequence[Edge] = ()

    @property
    def both(self) -> tuple[FusionCandidate, FusionCandidate]:
        """Both groups in order."""
        return self.first, self.second


Rule = Callable[[CandidatePair], str | None]

#: What a kernel does, to identify its twins in repeated layers and in other plans: the names of its ops in call order,
#: each with the spec of its first result.
Work = tuple[tuple[str, TensorSpec | None], ...]

#: kernels that spill registers on the given GPU at any block size, and how much
Spills = Mapping[Work, str]

#: the rule that forbids them
REGISTER_SPILL = "register spill"


def work_of(graph: Graph, op_ids: Iterable[int]) -> Work:
    """What a kernel of some ops does, including ops that it recomputes."""
    ops = [graph.ops[i] for i in sorted(op_ids)]
    return tuple((op.name, graph.values[op.outputs[0]].spec if op.outputs else None) for op in ops)


def graph_break(pair: CandidatePair) -> str | None:
    """A compiler sees one partial graph at a time."""
    first, second = pair.both
    return "the compiler's graph breaks between them" if first.region != second.region else None


def outside_the_graph(pair: CandidatePair) -> str | None:
    """An op that no partial graph holds runs eagerly, and so alone."""
    outside = EAGER in (pair.first.region, pair.second.region)
    return "one of them runs outside the compiler's graph" if outside else None


def phase(pair: CandidatePair) -> str | None:
    """Forward, backward and the optimizer's step are launched one after another, or where they are one program the
    optimizer's kernels are planned apart (:meth:`memwall.core.graph.Graph.program_of`)."""
    first, second = pair.first.program, pair.second.program
    if first == second:
        return None
    whole = "the optimizer's kernels are planned apart"
    return f"{first} and {second} are launched as two graphs" if first and second else whole


def contraction_first(pair: CandidatePair) -> str | None:
    """Library products add into a matrix (GEMM's beta); other epilogues are not modeled."""
    if not pair.edges or _accumulates(pair) or pair.first.op_class not in MATRIX_CLASSES:
        return None
    return f"the {pair.first.op_class} is a library kernel without an epilogue for it"


def contraction_second(pair: CandidatePair) -> str | None:
    """A library product reads its operands from memory."""
    if not pair.edges or pair.second.op_class not in MATRIX_CLASSES:
        return None
    return f"the {pair.second.op_class} is a library kernel without a prologue for it"


def _accumulates(pair: CandidatePair) -> bool:
    first, second = pair.first, pair.second
    if len(second.members) > 1 or first.members != [edge.producer.id for edge in pair.edges]:
        return False
    edge = pair.edges[0]
    return (
        edge.producer.name in ("aten.mm", "aten.bmm")
        and edge.consumer.name in ("aten.add.Tensor", "aten.add_.Tensor")
        and (edge.consumer.attributes or {}).get("alpha", 1) == 1
        and first.shape.numel in (0, second.shape.numel)
        and edge.written.spec.numel == second.shape.numel
        and edge.is_last
    )


def library_kernel(pair: CandidatePair) -> str | None:
    """Ops with an unknown loop nest, or that a library or a kernel of the user's own runs as a whole."""
    if _accumulates(pair):
        return None
    for group in pair.both:
        if not group.is_generated:
            names = {(edge.producer if group is pair.first else edge.consumer).name for edge in pair.edges}
            if own := sorted(filter(is_users_own, names)):
                return f"{' and '.join(own)} is a kernel of the user's own, into which no compiler looks"
            return "no kernel is generated for one of them"
    return None


def tensor_lists(pair: CandidatePair) -> str | None:
    """A kernel over a list of tensors takes only ops over the same list, in the same order."""
    first, second = pair.first.shape, pair.second.shape
    if ("multi" in first.kinds) != ("multi" in second.kinds):
        return "one works on a list of tensors"
    if "multi" in first.kinds and (first.numel, first.rows) != (second.numel, second.rows):
        return "their lists of tensors differ"
    places = ((edge.producer.outputs.index(edge.written.id), _read_at(edge)) for edge in pair.edges)
    if "multi" in first.kinds and any(written != read for written, read in places):
        return "their lists of tensors are in different order"
    return None


def _read_at(edge: Edge) -> int:
    """The position of the value in its list argument."""
    place = edge.consumer.inputs.index(edge.read.id)
    arguments = edge.consumer.arguments
    return place - arguments.index(arguments[place]) if arguments else place


def data_dependent_index(pair: CandidatePair) -> str | None:
    """A gather needs the whole tensor that it picks from; a scatter's result is complete only when the kernel ends."""
    for edge in pair.edges:
        if edge.consumer_kind == "scatter" and edge.argument == "self":
            return f"{_short(edge.consumer)} adds to it at places found in data"
        if edge.consumer_kind in FAR and edge.argument not in INDEX_ARGUMENTS:
            return f"{_short(edge.consumer)} reads the tensor at places of its own choice"
    return None


def unfinished_sum(pair: CandidatePair) -> str | None:
    """A second, small launch finishes the sums; ops of their size that read nothing else from the kernel join it."""
    late = [edge for edge in pair.edges if edge.written.id in pair.first.late]
    if not late:
        return None
    size = late[0].written.spec.numel
    follows = (
        len(late) == len(pair.edges)
        and pair.second.shape.kinds == {"point"}
        and pair.second.shape.numel == size
        and all(edge.written.spec.numel == size for edge in late)
        and not any(edge.moves for edge in late)
    )
    return None if follows else f"the sum of {_short(late[0].producer)} is whole only when its kernel ends"


def _short(op: Op) -> str:
    parts = op.name.split(".")
    return parts[1] if parts[0] == "aten" and len(parts) > 1 else op.name


def reduction_axes(pair: CandidatePair) -> str | None:
    """Two reductions share a kernel if they split their elements into the same rows and columns."""
    first, second = pair.first.shape, pair.second.shape
    if "multi" in first.kinds or not (first.rows and second.rows):
        return None
    if (first.rows, first.cols, first.axes) != (second.rows, second.cols, second.axes):
        return (
            f"one reduces {first.cols} of {first.numel} elements at a time and the other {second.cols} of"
            f" {second.numel}, over other axes"
        )
    if "grid" in first.kinds and pair.edges and ("grid" in second.kinds or "column" in second.kinds):
        return "the second needs sums over all that the first writes after its own sums"
    return None


def shape_change(pair: CandidatePair) -> str | None:
    """Both run over equally many elements, except one number per row or column, and ops that are cheap to repeat."""
    first, second = pair.first.shape, pair.second.shape
    if "multi" in first.kinds:
        return None
    if first.numel == second.numel or _accumulates(pair):
        return None
    small, large = (pair.first, pair.second) if first.numel < second.numel else (pair.second, pair.first)
    if not pair.edges:
        return f"{first.numel} and {second.numel} elements: their loops differ"
    if not small.shape.rows and large.shape.rows and small.shape.numel in (large.shape.rows, large.shape.cols):
        return None  # one number for each row, or for each column
    if small is pair.first and not small.shape.rows and len(small.members) <= MAX_REPEATED_OPS:
        return None  # computed at its use: a broadcast, or a part of a concatenation
    return f"{first.numel} elements against {second.numel}"


def order(pair: CandidatePair) -> str | None:
    """A value can be read at another position than it is written only where it can be recomputed there, or where a copy
    of it is all that is written there."""
    for edge in pair.edges:
        if edge.written.id in pair.first.moved:
            return "it is written in another order than the kernel computes it in"
        if edge.written.spec.dtype != edge.read.spec.dtype:  # a kernel holds numbers, not their bits
            return f"its {edge.written.spec.dtype} is read as {edge.read.spec.dtype}"
        if aligned(edge.written, edge.read) and not edge.moves:
            continue
        if _is_recomputed(pair, edge) or copies_whole(pair, edge):
            continue
        long = edge.written.storage == edge.read.storage and _is_repeatable(pair.first.shape)
        return f"it is read in another order than written{', and too long to be computed twice' if long else ''}"
    return None


def _is_repeatable(shape: Shape) -> bool:
    return not (shape.has_row or shape.has_columns or shape.kinds & {"grid", "window"})


def _is_recomputed(pair: CandidatePair, edge: Edge) -> bool:
    """Whether what makes a value is computed where it is read."""
    short = len(pair.first.members) <= MAX_REPEATED_OPS
    return edge.written.storage == edge.read.storage and short and _is_repeatable(pair.first.shape)


def moved(pair: CandidatePair) -> bool:
    """Whether the second group becomes the first's stores in another order."""
    return any(
        not aligned(edge.written, edge.read) and not _is_recomputed(pair, edge) and copies_whole(pair, edge)
        for edge in pair.edges
    )


def copies_whole(pair: CandidatePair, edge: Edge) -> bool:
    """Whether the second group is a copy, in another order, of a tensor that the first holds whole: the kernel writes
    each element where the copy has it."""
    return (
        pair.second.members == [edge.consumer.id]
        and edge.consumer.name == COPY
        and (edge.written.storage, edge.written.offset) == (edge.read.storage, edge.read.offset)
        and edge.written.spec.numel == edge.read.spec.numel == pair.first.shape.numel
        and edge.written.spec.is_dense
        and edge.read.spec.is_dense
    )


def aligned(written: Value, read: Value) -> bool:
    """Whether two views of a storage hold the same elements in the same order, repeats (broadcast axes) aside."""
    if written.offset != read.offset:
        return False
    return written.spec == read.spec or _runs(written.spec) == _runs(read.spec)


@lru_cache(maxsize=4096)
def _runs(spec: TensorSpec) -> tuple[tuple[int, int], ...]:
    """Sizes and strides with contiguous neighbours merged, without axes of size one."""
    runs: list[tuple[int, int]] = []
    for size, stride in ((n, by) for n, by in zip(spec.shape, spec.strides, strict=True) if n != 1 and by != 0):
        if runs and runs[-1][1] == size * stride:
            runs[-1] = (runs[-1][0] * size, stride)
        else:
            runs.append((size, stride))
    return tuple(runs)


def in_place(pair: CandidatePair) -> str | None:
    """Two views of one storage, one of them written: another thread may write what this one has not read yet."""
    first, second = pair.both
    for storage in first.overwritten | second.overwritten:
        views = [group.views[storage] for group in pair.both if storage in group.views]
        if None in views or (len(views) == 2 and not aligned(*views)):  # type: ignore[arg-type]
            return "a tensor is overwritten that is also read at other places, or through another view"
    return None


def too_many_live_values(pair: CandidatePair) -> str | None:
    """Each op in flight holds registers; the limit is :data:`MAX_OPS`."""
    members = len(pair.first.members) + len(pair.second.members)
    return f"{members} ops in one kernel (at most {MAX_OPS})" if members > MAX_OPS else None


def too_many_tensors(border: Border) -> str | None:
    """Checked for the union, after all other rules."""
    tensors = len(border.reads) + len(border.writes)
    return f"{tensors} tensors in one kernel (at most {MAX_TENSORS})" if tensors > MAX_TENSORS else None


def shared_memory(pair: CandidatePair) -> str | None:
    """Column sums next to a row reduction need a row of accumulators in each thread block."""
    first, second = pair.both
    if not (first.shape.has_columns or second.shape.has_columns):
        return None
    if not (first.shape.has_row or second.shape.has_row):
        return None
    wanted = 4 * (first.accumulators + second.accumulators)
    if wanted > ROW_BYTES_ON_CHIP:
        return f"{wanted // 1024} KiB of column sums in each block (at most {ROW_BYTES_ON_CHIP // 1024})"
    return None


#: name -> rule, in order of evaluation
RULES: dict[str, Rule] = {
    "phase": phase,
    "outside the graph": outside_the_graph,
    "graph break": graph_break,
    "contraction without epilogue": contraction_first,
    "contraction without prologue": contraction_second,
    "library kernel": library_kernel,
    "tensor lists": tensor_lists,
    "data-dependent index": data_dependent_index,
    "unfinished sum": unfinished_sum,
    "reduction axes differ": reduction_axes,
    "shape change": shape_change,
    "order of elements": order,
    "in-place hazard": in_place,
    "too many live values": too_many_live_values,
    "shared memory": shared_memory,
}


def veto(pair: CandidatePair) -> tuple[str, str] | None:
    """Name and reason of the first rule that refuses, or None."""
    for name, rule in RULES.items():
        reason = rule(pair)
        if reason:
            return name, reason
    return None
