"""The cost of a group of ops as one generated kernel: the bytes that cross its border, its FLOPs, its launches.

A version that is made and read inside the group crosses no border. Each distinct byte from outside is read once, each
version that is needed outside is written once; outputs without readers are not written. ``extra_bytes``, which counts
in ``time_s`` only, adds rows that are read again since no cache keeps them between two passes, and the partial sums of
column sums, one row per thread block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from memwall.core.flow import Flow
from memwall.core.graph import EAGER, Graph, Pipe, Span, Value, distinct_bytes, left_in, union_bytes
from memwall.fusion.plan import Group, Placement
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.ops.launches import ROW_BYTES_ON_CHIP, Launch, Plain, Stream
from memwall.ops.loops import OPAQUE, loop_of
from memwall.ops.product_launches import Convolution, FusedAttention, Gemm, Recurrent
from memwall.ops.registry import is_recurrent
from memwall.perfmodel.roofline import predict_cost

#: rows in flight on a multiprocessor: it holds 2048 threads, and a row takes a block of 512
ROWS_PER_SM = 4
#: bytes of a partial sum, in float32
PARTIAL_BYTES = 4


#: instructions for each random number of a generated kernel, by how many it uses of the four that a call of Triton's
#: generator makes (``tl.rand``, ``tl.rand4x``): what ptxas makes of a dropout for 7.5 to 9.0, less the same without
DRAW_INSTRUCTIONS = {1: 54, 4: 20}

#: Kinds of launches that keep their kind when others join them.
MATRIX = (Gemm, Convolution, FusedAttention, Recurrent)


def with_launches(
    cost: Cost,
    *,
    kernels: int = 1,
    extra_bytes: int = 0,
    extra_flops: int = 0,
    thread_blocks: int | None = None,
    numbers: int = 4,
) -> Cost:
    """The cost of a group with its launches, which has the launches of its ops as eager kernels.

    Products keep their shape and their share of the group's bytes; other ops add no launch. Without products the group
    is one generated kernel over its bytes. If the launches of an op are unknown, the group's are too.

    Args:
        kernels: the number of launches.
        extra_bytes, extra_flops: bytes and FLOPs beyond the group's compulsory ones.
        thread_blocks: the most thread blocks of the group.
        numbers: random numbers that it uses of a call of the generator, a key of :data:`DRAW_INSTRUCTIONS`.
    """
    moved: dict[str, Any] = {"read_bytes": cost.read_bytes + extra_bytes, "write_bytes": cost.write_bytes}
    known = [launch for launch in cost.launches if not isinstance(launch, Plain)]
    matrix = [launch for launch in known if isinstance(launch, MATRIX)]
    launches: tuple[Launch, ...]
    if matrix:
        launches = _shared(matrix, **moved, kernels=kernels, thread_blocks=thread_blocks)
    elif known:
        pipe = max(cost.flops, key=lambda p: cost.flops[p], default=None)
        flops = cost.total_flops + extra_flops
        draws = sum(launch.draws for launch in known if isinstance(launch, Stream))
        launches = (
            Stream(
                kind="generated",
                **moved,
                flops=flops,
                pipe=pipe,
                count=kernels,
                thread_blocks=thread_blocks,
                second_pass_bytes=extra_bytes,
                draws=draws,
                instructions=draws * DRAW_INSTRUCTIONS[numbers],
            ),
        )
    else:
        launches = (Plain(**moved, flops=cost.flops, count=kernels, thread_blocks=thread_blocks),)
    return replace(cost, launches=launches)


def library_launches(graph: Graph, costs: Sequence[Cost], op_ids: Iterable[int]) -> int:
    """Launches of the recurrent layers among some ops: their library makes them whatever joins their group."""
    return sum(costs[i].kernels for i in op_ids if is_recurrent(graph.ops[i].name))


def loses_rows(gpu: Gpu, rows: int, read_bytes: int) -> bool:
    """Whether neither the chip nor L2 keeps rows of so many bytes together until a second pass over each."""
    row_bytes = read_bytes // rows
    in_flight = min(rows, ROWS_PER_SM * gpu.sm_count) * row_bytes
    return row_bytes > ROW_BYTES_ON_CHIP and in_flight > gpu.l2_bytes


def _shared(
    matrix: Sequence[Launch], read_bytes: int, write_bytes: int, kernels: int, thread_blocks: int | None
) -> tuple[Launch, ...]:
    before = sum(launch.bytes for launch in matrix)
    read_left, write_left, left = read_bytes, write_bytes, kernels
    shared: list[Launch] = []
    for launch in matrix[1:]:
        share = launch.bytes / before if before else 0.0
        read, write, count = int(read_bytes * share), int(write_bytes * share), min(left - 1, 1)
        shared.append(replace(launch, read_bytes=read, write_bytes=write, count=count))
        read_left, write_left, left = read_left - read, write_left - write, left - count
    first = replace(matrix[0], read_bytes=read_left, write_bytes=write_left, count=left, thread_blocks=thread_blocks)
    return (first, *shared)


def _spans(values: Iterable[Value]) -> list[Span]:
    """The span of each value; most share the object of their spec, which is measured once."""
    known: dict[int, tuple[int, int, int]] = {}
    found = []
    for value in values:
        spec = value.spec
        if id(spec) not in known:
            known[id(spec)] = spec.itemsize, spec.span * spec.itemsize, spec.nbytes
        itemsize, reach, nbytes = known[id(spec)]
        start = value.offset * itemsize if reach else 0
        found.append((start, start + reach, nbytes))
    return found


class Border(NamedTuple):
    """The values that a kernel reads from outside and the values that it has to write, each with its storage."""

    reads: dict[int, int]
    writes: dict[int, int]


class Pricer:
    """Prices groups of the ops of one graph on one GPU. ``placement`` says where every op runs, if known; without it
    all ops outside a group run alone."""

    def __init__(
        self,
        graph: Graph,
        costs: Sequence[Cost],
        gpu: Gpu,
        regions: Sequence[int] | None = None,
        flow: Flow | None = None,
    ) -> None:
        self.graph, self.costs, self.gpu = graph, costs, gpu
        self.flow = flow or Flow.of(graph)
        loops = {first: loop_of(graph, graph.ops[first]) for first in dict.fromkeys(graph.alike)}
        self.loops = [
            OPAQUE if regions is not None and regions[i] == EAGER else loops[first]
            for i, first in enumerate(graph.alike)
        ]
        self.carried_by = {old: new for new, old in enumerate(self.flow.carries) if old >= 0}
        self.placement: Placement | None = None
        self.spans = _spans(graph.values)
        self._nbytes = [nbytes for _, _, nbytes in self.spans]
        #: ops that do more than to read and write each element once: they have rows, sums, or places found in data
        self.nested = frozenset(i for i, loop in enumerate(self.loops) if loop.kind != "point" or loop.columns)
        self._kinds = [id(cost) for cost in costs]
        self.readers = [frozenset(some) for some in self.flow.readers]
        self._costs: dict[tuple[object, ...], Cost] = {}
        self._seconds: dict[int, tuple[float, Cost]] = {}
        values, writer = graph.values, self.flow.writer
        #: for each op: (value, its storage, the op that wrote it) of what it reads, (value, storage, version) of writes
        self._uses = [[(v, values[v].storage, writer[version]) for v, version in some] for some in self.flow.reads]
        self._made = [[(v, values[v].storage, version) for v, version in some] for some in self.flow.writes]
        #: value → the version of it that is written; ops of values that are written, or read, in several versions
        self._written = {value: version for some in self.flow.writes for value, version in some}
        self._rewriting = self._with_several_versions()
        self._alone_s: dict[tuple[object, ...], float] = {}
        self._reads_in_part = self._in_part("inputs")
        self._writes_in_part = self._in_part("outputs")
        self._looked_up = {i: self._table(i) for i in self._reads_in_part}

    def _in_part(self, side: str) -> frozenset[int]:
        """The ops whose cost does not count whole tensors, but fetched rows or the like."""
        graph, name = self.graph, "read_bytes" if side == "inputs" else "write_bytes"
        tensors = {
            first: distinct_bytes([graph.values[i] for i in getattr(graph.ops[first], side)])
            for first in dict.fromkeys(graph.alike)
        }
        return frozenset(i for i, first in enumerate(graph.alike) if getattr(self.costs[i], name) != tensors[first])

    def _table(self, op_id: int) -> int:
        """The tensor that an op reads in part."""
        inputs = self.graph.ops[op_id].inputs
        left_bytes = distinct_bytes([self.graph.values[v] for v in inputs]) - self.costs[op_id].read_bytes
        return inputs[left_in([self._nbytes[v] for v in inputs], left_bytes)] if inputs and left_bytes > 0 else -1

    def _with_several_versions(self) -> frozenset[int]:
        sides, several = (self.flow.reads, self.flow.writes), set[int]()
        for uses in (set(chain.from_iterable(side)) for side in sides):
            if len(uses) > len({value for value, _ in uses}):
                several |= {value for value, count in Counter(value for value, _ in uses).items() if count > 1}
        uses_of = zip(*sides, strict=True) if several else ()
        return frozenset(i for i, both in enumerate(uses_of) if any(v in several for v, _ in chain(*both)))

    # -- what crosses the border -------------------------------------------------------------------------------------

    def is_needed(self, version: int, inside: Set[int]) -> bool:
        """Whether a version must be in memory when a kernel that computes ``inside`` makes it."""
        flow = self.flow
        if version in flow.kept:
            return True
        if self.placement is not None:
            if self.placement.is_read(flow.writer[version], flow.readers[version]):
                return True
        elif not inside >= self.readers[version]:
            return True
        heir = self.carried_by.get(version)
        if heir is None:
            return False
        return flow.writer[heir] not in inside or self.is_needed(heir, inside)

    def group(self, op_ids: Sequence[int], recomputes: Sequence[int] = (), cost: Cost | None = None) -> Group:
        """The group as one generated kernel; ``cost`` if already known."""
        inside = frozenset((*op_ids, *recomputes))
        border = self.border(op_ids, inside, recomputes)
        if cost is None:
            cost = self.generated(op_ids, inside, border, recomputes)
        return Group(tuple(op_ids), tuple(border.reads), tuple(border.writes), cost, tuple(recomputes))

    def generated_s(self, op_ids: Sequence[int], recomputes: Sequence[int] = ()) -> float:
        """Modeled seconds of the ops as one generated kernel."""
        inside = frozenset((*op_ids, *recomputes))
        return self.cost_s(self.generated(op_ids, inside, self.border(op_ids, inside, recomputes), recomputes))

    def alone_s(self, op_id: int) -> float:
        """Modeled seconds of an op by itself, as its eager kernel or as a generated one; computed once for equal ops
        whose results are read."""
        cost = self.costs[op_id]
        if self.loops[op_id].kind == "opaque":
            return self.cost_s(cost)
        is_read = all(self.readers[version] for _, version in self.flow.writes[op_id])
        key = id(cost), self.graph.alike[op_id] if op_id in self.nested else None, None if is_read else op_id
        if key not in self._alone_s:
            self._alone_s[key] = min(self.cost_s(cost), self.generated_s((op_id,)))
        return self._alone_s[key]

    def border(self, op_ids: Sequence[int], inside: Set[int], recomputes: Sequence[int] = ()) -> Border:
        """What crosses the border of a kernel that runs ``inside``: these ops, and the ops that it recomputes."""
        return Border(self._reads((*recomputes, *op_ids), inside), self._writes(op_ids, inside))

    def joined(self, first: Border, second: Border, op_ids: Sequence[int], inside: Set[int], fed: Set[int]) -> Border:
        """The border of two kernels as one, which reads ``fed``, values that the first made, no longer."""
        if not inside.isdisjoint(self._rewriting):
            return self.border(op_ids, inside)
        reads = first.reads | {v: storage for v, storage in second.reads.items() if v not in fed}
        both, written = first.writes | second.writes, self._written
        return Border(reads, {v: storage for v, storage in both.items() if self.is_needed(written[v], inside)})

    def generated(
        self, op_ids: Sequence[int], inside: Set[int], border: Border, recomputes: Sequence[int] = ()
    ) -> Cost:
        """The cost of a generated kernel with this border; computed once for equal ops and bytes."""
        reads, writes = border
        read_bytes = self._read_bytes((*recomputes, *op_ids), inside, reads)
        write_bytes = self._write_bytes(op_ids, inside, writes)
        nested = [] if inside.isdisjoint(self.nested) else [i for i in op_ids if i in self.nested]
        extra_bytes = self._extra(op_ids, nested, read_bytes, writes) if nested else 0
        kernels, rows = (self._launches(nested), self._rows(nested)) if nested else (1, None)
        ops = tuple(map(self._kinds.__getitem__, op_ids)), tuple(map(self._kinds.__getitem__, recomputes))
        key = (*ops, read_bytes, write_bytes, extra_bytes, kernels, rows)
        cost = self._costs.get(key)
        if cost is not None:
            return cost
        eager = tuple(chain.from_iterable(self.costs[i].launches for i in op_ids))
        whole = replace(self._sum(op_ids), read_bytes=read_bytes, write_bytes=write_bytes, launches=eager)
        again = (*(self.costs[i].extra_flops for i in op_ids), *(self.costs[i].total_flops for i in recomputes))
        given = partial(with_launches, whole, extra_flops=sum(again))
        cost = given(kernels=kernels, extra_bytes=extra_bytes, thread_blocks=rows)
        if rows is not None and rows < self.gpu.sm_count:
            # each row is split over several blocks: a launch for the sums, one that reads everything again
            split = given(kernels=kernels + 1, extra_bytes=extra_bytes + read_bytes)
            cost = min(cost, split, key=lambda one: predict_cost(one, self.gpu).time_s)
        return self._costs.setdefault(key, cost)

    def alone(self, op_id: int) -> Group:
        """The op as its eager kernel: what a library runs regardless of the context."""
        op = self.graph.ops[op_id]
        return Group((op_id,), op.inputs, op.outputs, self.costs[op_id])

    def time_s(self, group: Group) -> float:
        """Modeled seconds of a group by itself: the longer of arithmetic and traffic, and its launches."""
        return self.cost_s(group.cost)

    def cost_s(self, cost: Cost) -> float:
        """Modeled seconds of a cost, predicted once for each."""
        known = self._seconds.get(id(cost))
        if known is None:
            known = self._seconds[id(cost)] = predict_cost(cost, self.gpu).time_s, cost
        return known[0]

    def _reads(self, op_ids: Iterable[int], inside: Set[int]) -> dict[int, int]:
        """The values that ops read from outside, and their storages."""
        return {value: storage for i in op_ids for value, storage, maker in self._uses[i] if maker not in inside}

    def _read_bytes(self, op_ids: Iterable[int], inside: Set[int], reads: Mapping[int, int]) -> int:
        in_part = inside & self._reads_in_part
        if not in_part:
            return self._distinct(reads)
        rest = self._distinct(self._reads([i for i in op_ids if i not in in_part], inside))
        return rest + sum([self._outside_bytes(i, inside) for i in in_part])

    def _outside_bytes(self, op_id: int, inside: Set[int]) -> int:
        """Bytes from outside of an op that reads a tensor in part: all others, if that one was made inside."""
        uses, table = self._uses[op_id], self._looked_up[op_id]
        if any(value == table and maker in inside for value, _, maker in uses):
            return self._distinct({value: storage for value, storage, maker in uses if maker not in inside})
        own = sum([self.spans[value][2] for value, _, maker in uses if maker in inside])
        return max(self.costs[op_id].read_bytes - own, 0)

    def _writes(self, op_ids: Iterable[int], inside: Set[int]) -> dict[int, int]:
        """The values that ops write and that are needed outside, and their storages."""
        is_needed = self.is_needed
        return {
            value: storage for i in op_ids for value, storage, version in self._made[i] if is_needed(version, inside)
        }

    def _write_bytes(self, op_ids: Iterable[int], inside: Set[int], writes: Mapping[int, int]) -> int:
        in_part = inside & self._writes_in_part
        if not in_part:
            return self._distinct(writes)
        total = self._distinct(self._writes([i for i in op_ids if i not in in_part], inside))
        for i in [i for i in op_ids if i in in_part]:
            needed = self._writes((i,), inside)
            if needed:
                spared = sum([self.spans[v][2] for v in self.graph.ops[i].outputs if v not in needed])
                total += max(self.costs[i].write_bytes - spared, 0)
        return total

    def _distinct(self, values: Mapping[int, int]) -> int:
        """The distinct bytes of some values, given by id with their storages."""
        spans = self.spans
        if len(set(values.values())) == len(values):
            return sum(map(self._nbytes.__getitem__, values))
        by_storage: dict[int, list[Span]] = {}
        for i, storage in values.items():
            by_storage.setdefault(storage, []).append(spans[i])
        return sum([union_bytes(group) if len(group) > 1 else group[0][2] for group in by_storage.values()])

    # -- the rest of the cost ----------------------------------------------------------------------------------------

    def _sum(self, op_ids: Sequence[int]) -> Cost:
        if len(op_ids) == 1:
            return self.costs[op_ids[0]]
        costs = [self.costs[i] for i in op_ids]
        flops: Counter[Pipe] = Counter()
        for cost in costs:
            flops.update(cost.flops)
        spared = sum([cost.spared_read_bytes for cost in costs])
        return Cost(dict(flops), modeled=all(cost.modeled for cost in costs), spared_read_bytes=spared)

    def _extra(self, op_ids: Sequence[int], nested: Sequence[int], read_bytes: int, writes: Collection[int]) -> int:
        gpu, extra = self.gpu, 0
        for i in nested:
            loop = self.loops[i]
            again = self.costs[i].extra_bytes
            if loop.kind == "grid" and again:
                made = {version: v for op in op_ids for v, version in self.flow.writes[op]}
                read = [made[version] for _, version in self.flow.reads[i] if version in made]
                if not all(v in writes for v in read):
                    again = read_bytes  # the second pass recomputes the op's inputs, which are not in memory
            if loop.kind in ("grid", "scatter"):
                extra += again
            if loop.columns and loop.cols > 1:
                blocks = min(loop.rows, gpu.sm_count)  # one block per multiprocessor loops over its rows
                sums = sum(
                    spec.numel for spec in self.graph.specs(self.graph.ops[i].outputs) if spec.numel < loop.numel
                )
                extra += 2 * blocks * sums * PARTIAL_BYTES
        rows = self._rows(nested)
        if rows and loses_rows(gpu, rows, read_bytes):
            extra += read_bytes
        return extra

    def _launches(self, op_ids: Sequence[int]) -> int:
        """Launches of the generated kernel: one for a list of tensors, another to combine the stripes of a sum, one for
        what needs a sum over the grid; a scatter takes as many as its eager kernel."""
        loops = [self.loops[i] for i in op_ids]
        if any(loop.kind == "multi" for loop in loops):
            return 1
        launches = 1 + any(loop.columns for loop in loops)
        for i, loop in zip(op_ids, loops, strict=True):
            if loop.kind == "grid":
                launches += 1 if self.graph.ops[i].op_class == "reduction" else 2
            elif loop.kind == "scatter":
                launches += self.costs[i].kernels - 1
        return launches

    def _rows(self, op_ids: Sequence[int]) -> int | None:
        return max((self.loops[i].rows for i in op_ids if self.loops[i].kind == "row"), default=None)
