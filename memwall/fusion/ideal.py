"""The ``ideal`` policy: the traffic that no fusion can avoid; a lower bound that no memwall plan beats.

Matrix kernels (contractions, convolutions, attention) read their operands and write their results; ops between two of
them run in an epilogue or a prologue without traffic of their own, except that each tensor from before the step is read
at most once and each that outlives the step is written once. Values that backward needs are recomputed. Decomposed
attention counts as one flash-style kernel: tensors of the size of the scores stay on chip, and backward recomputes
them. Recurrent layers keep their launches, and collectives are kernels of their own: no compiler replaces those.
Forward ops whose results nothing needs do not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from memwall.core.flow import Flow
from memwall.core.graph import Graph, Op, Value, distinct_bytes, left_in
from memwall.fusion.plan import Group, Plan, in_order, not_run
from memwall.fusion.pricing import library_launches, with_launches
from memwall.fusion.rules import MATRIX_CLASSES
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.ops.registry import find_row


def ideal_plan(
    graph: Graph, costs: Sequence[Cost], gpu: Gpu | None = None, regions: Sequence[int] | None = None
) -> Plan:
    """One group per matrix kernel with the ops that follow it, up to the next one. The GPU does not matter."""
    return _Ideal(graph, costs).plan()


def one_kernel(graph: Graph, costs: Sequence[Cost]) -> Cost:
    """What a single kernel that does all of a graph would cost: its FLOPs, each tensor from before it read once, each
    that outlives it written once. Its launches are the ops', which tell the fastest algorithm of each."""
    ideal = _Ideal(graph, costs)
    run = [op.id for op in graph.ops if op.id not in ideal.unused]
    read_bytes, write_bytes = ideal.crossing_bytes(run)
    total = sum((costs[i] for i in run), start=Cost(launches=()))
    return replace(total, read_bytes=read_bytes, write_bytes=write_bytes)


class _Ideal:
    def __init__(self, graph: Graph, costs: Sequence[Cost]) -> None:
        self.graph, self.costs = graph, costs
        self.flow = Flow.of(graph)
        self.unused = self.flow.unused(graph)
        self.on_chip: frozenset[int] = frozenset()
        self.read_before: set[int] = set()

    def plan(self) -> Plan:
        on_chip: set[int] = set()  # the versions that a flash-style kernel does not write
        flash: dict[int, int] = {}  # matmul -> the last one of its attention in its phase
        for _, family, products in attention_scores(self.graph, self.flow):
            on_chip |= family
            last = {self.graph.ops[p].phase: p for p in products}
            flash.update((p, last[self.graph.ops[p].phase]) for p in products)
        self.on_chip = frozenset(on_chip)
        try:
            groups = in_order(self.flow, [self._group(ops) for ops in self._members(flash)])
        except ValueError:  # an op between the two matmuls needs a third one: no flash-style kernel
            self.on_chip = frozenset()
            self.read_before = set()
            groups = in_order(self.flow, [self._group(ops) for ops in self._members({})])
        return Plan("ideal", tuple(groups))

    def crossing_bytes(self, op_ids: Sequence[int]) -> tuple[int, int]:
        """Bytes that ops read from before the step and write to what outlives it, if nothing between crosses. Of a
        tensor of which only a view is returned, the rest need not be written."""
        written, write_bytes = self._last_writes(op_ids)
        values, storages = self.graph.values, self.graph.storages
        returned = [values[v] for v in self.graph.outputs]
        made = {values[v].storage for v in written if not storages[values[v].storage].is_persistent}
        shown = [value for value in returned if value.storage in made]
        whole = [values[v] for v in written if values[v].storage in {value.storage for value in shown}]
        unseen = max(distinct_bytes(whole) - distinct_bytes(shown), 0)
        return self._outside_bytes(op_ids), max(write_bytes - unseen, 0)

    def _outside_bytes(self, op_ids: Sequence[int]) -> int:
        """Distinct bytes of tensors from before the step that ops read; of one that is looked up in, as many as are
        fetched, at most all."""
        values, whole, fetched = self.graph.values, list[Value](), dict[int, int]()
        size_of: dict[int, int] = {}
        for i in op_ids:
            outside = dict(self._outside(i))
            table, left_bytes = self._left(i)
            if table in outside:
                size, version = values[table].spec.nbytes, outside.pop(table)
                size_of[version] = max(size_of.get(version, 0), size)
                fetched[version] = fetched.get(version, 0) + max(size - left_bytes, 0)
            whole += [values[v] for v in outside]
        return distinct_bytes(whole) + sum(min(count, size_of[version]) for version, count in fetched.items())

    def _outside(self, op_id: int) -> list[tuple[int, int]]:
        """Tensors from before the step that an op reads, with their versions."""
        return [(v, n) for v, n in self.flow.reads[op_id] if self.flow.writer[n] < 0]

    def _left(self, op_id: int) -> tuple[int, int]:
        """The tensor that an op reads in part, and how many bytes it leaves; -1 and 0 if it reads all."""
        uses, values = [v for v, _ in self.flow.reads[op_id]], self.graph.values
        left_bytes = distinct_bytes([values[v] for v in uses]) - self.costs[op_id].read_bytes
        if left_bytes <= 0:
            return -1, 0
        return uses[left_in([values[v].spec.nbytes for v in uses], left_bytes)], left_bytes

    def _members(self, flash: Mapping[int, int]) -> list[list[int]]:
        """Each op with the last matrix kernel among its ancestors, or behind the last collective; decomposed attention
        in one group."""
        anchor_of: list[tuple[int, bool]] = []  # an op, and whether they come behind it
        members: dict[tuple[int, bool], list[int]] = {}
        for op in self.graph.ops:
            anchor = max((anchor_of[d] for d in self.flow.deps[op.id]), default=(-1, False))
            if op.op_class in MATRIX_CLASSES or _is_message(op):
                anchor = flash.get(op.id, op.id), False
            members.setdefault(anchor, []).append(op.id)
            anchor_of.append((op.id, True) if _is_message(op) else anchor)
        return [members[anchor] for anchor in sorted(members)]

    def _group(self, op_ids: list[int]) -> Group:
        run = [i for i in op_ids if i not in self.unused]
        if not run:
            return not_run(op_ids)
        if _is_message(op := self.graph.ops[run[0]]):
            return Group((op.id,), op.inputs, op.outputs, self.costs[op.id])
        matrix = [i for i in run if self.graph.ops[i].op_class in MATRIX_CLASSES]
        glue = [i for i in run if self.graph.ops[i].op_class not in MATRIX_CLASSES]
        reads, read_bytes = self._operands(matrix)
        writes: dict[int, None] = {}
        write_bytes = 0
        made = [version for i in run for _, version in self.flow.writes[i] if version not in self.flow.kept]
        # another group reads a result that this one need not keep: one tensor then crosses
        own = {*op_ids}
        flows_on = any(i not in own and i not in self.unused for version in made for i in self.flow.readers[version])
        for i in matrix:
            stays = [
                v for v, n in self.flow.writes[i] if n not in self.flow.kept and (n in self.on_chip or not flows_on)
            ]
            write_bytes += max(self.costs[i].write_bytes - self._bytes(stays), 0)
            writes.update((v, None) for v, _ in self.flow.writes[i] if v not in stays)
        early, first_bytes = self._first_reads(glue, {n for i in matrix for _, n in self.flow.reads[i]})
        last, last_bytes = self._last_writes(glue)
        reads |= dict.fromkeys(early)
        writes |= dict.fromkeys(last)
        read_bytes, write_bytes = read_bytes + first_bytes, write_bytes + last_bytes
        total = sum((self.costs[i] for i in run), start=Cost(launches=()))
        kernels = library_launches(self.graph, self.costs, run) or 1
        total = replace(total, read_bytes=read_bytes, write_bytes=write_bytes)
        cost = with_launches(total, kernels=kernels)
        return Group(tuple(op_ids), tuple(reads), tuple(writes), cost)

    def _operands(self, matrix: Sequence[int]) -> tuple[dict[int, None], int]:
        """The matmuls' operands except the scores, and their bytes; shared operands count once."""
        values, flow = self.graph.values, self.flow
        uses = [(i, v) for i in matrix for v, version in flow.reads[i] if version not in self.on_chip]
        reads = dict.fromkeys(v for _, v in uses)
        if len(matrix) > 1:
            return reads, distinct_bytes([values[v] for v in reads])
        stay = [v for i in matrix for v, version in flow.reads[i] if version in self.on_chip]
        return reads, sum(max(self.costs[i].read_bytes - self._bytes(stay), 0) for i in matrix)

    def _bytes(self, value_ids: Sequence[int]) -> int:
        return sum(self.graph.values[v].spec.nbytes for v in value_ids)

    def _first_reads(self, glue: Sequence[int], operands: set[int]) -> tuple[list[int], int]:
        """Values of tensors from before the step that these ops are the first to read (neither earlier ops nor the
        matmuls of their own kernel did), and their bytes."""
        whole: list[Value] = []
        found, part_bytes = [], 0
        for i in glue:
            old, (table, left_bytes) = self._outside(i), self._left(i)
            if table in dict(old):  # fetches some rows
                part_bytes += max(self.graph.values[table].spec.nbytes - left_bytes, 0)
                found.append(table)
                old = [(v, n) for v, n in old if v != table]
            new = [v for v, n in old if n not in self.read_before and n not in operands]
            self.read_before.update(n for _, n in old)
            whole += [self.graph.values[v] for v in new]
            found += new
        return found, distinct_bytes(whole) + part_bytes

    def _last_writes(self, glue: Sequence[int]) -> tuple[list[int], int]:
        """Values that these ops write and that outlive the step, and their bytes."""
        whole: list[Value] = []
        found, part_bytes = [], 0
        for i in glue:
            kept = [v for v, version in self.flow.writes[i] if version in self.flow.kept]
            found += kept
            values = [self.graph.values[v] for v, _ in self.flow.writes[i]]
            if kept and self.costs[i].write_bytes < distinct_bytes(values):  # some rows
                part_bytes += min(self.costs[i].write_bytes, self._bytes(kept))
            else:
                whole += [self.graph.values[v] for v in kept]
        return found, distinct_bytes(whole) + part_bytes


def _is_message(op: Op) -> bool:
    return op.op_class == "communication"


def attention_scores(graph: Graph, flow: Flow) -> Iterator[tuple[Op, set[int], list[int]]]:
    """Each softmax of decomposed attention, with the versions of its scores and the matmuls before and behind them.

    Scores are the tensors between a matmul and a softmax, or a softmax and a matmul, with as many elements as the
    softmax, forward and backward. A softmax needs a matmul on both sides.
    """
    for op in graph.ops:
        if _makes_probabilities(graph, flow, op):
            family, products = _family(graph, flow, op.id)
            if sum(graph.ops[p].phase == "forward" for p in products) > 1:
                yield op, family, products


def _makes_probabilities(graph: Graph, flow: Flow, op: Op) -> bool:
    """Whether an op is a softmax, or the exponential of one that is written out: its result is summed too, as it is or
    in another dtype."""
    row = find_row(op.name)
    if row is None or op.name not in _EXPONENTIALS:
        return row is not None and row.is_softmax
    return _is_summed(graph, flow, op)


_EXPONENTIALS, _SUMS = ("aten.exp", "lax.exp"), ("aten.sum.dim_IntList", "lax.reduce_sum")
_CASTS = ("aten._to_copy", "lax.convert_element_type")


def _is_summed(graph: Graph, flow: Flow, op: Op) -> bool:
    readers = [graph.ops[i] for _, version in flow.writes[op.id] for i in flow.readers[version]]
    return any(
        reader.name in _SUMS or (reader.name in _CASTS and _is_summed(graph, flow, reader)) for reader in readers
    )


def _family(graph: Graph, flow: Flow, softmax: int) -> tuple[set[int], list[int]]:
    """The versions of a softmax's size on the paths to and from it, and the matmuls at their ends. Its inputs are
    followed to their producers and no further: a bias that all layers share does not connect them."""
    values = graph.values
    numel = values[graph.ops[softmax].outputs[0]].spec.numel
    family: set[int] = set()
    products: set[int] = set()
    seen = {(softmax, True)}
    stack = [(softmax, True)]
    while stack:
        op_id, forward = stack.pop()
        uses = [(use, False) for use in flow.reads[op_id]]
        if forward:
            uses += [(use, True) for use in flow.writes[op_id]]
        for (value, version), onward in uses:
            if values[value].spec.numel != numel or flow.writer[version] < 0:
                continue
            family.add(version)
            for other in flow.readers[version] if onward else (flow.writer[version],):
                if graph.ops[other].op_class in MATRIX_CLASSES:
                    products.add(other)
                elif (other, onward) not in seen:
                    seen.add((other, onward))
                    stack.append((other, onward))
    return family, sorted(products)
