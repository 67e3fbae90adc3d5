"""The stores that a group has to make, and the hazards where it overwrites memory that it reads.

A write to a storage makes a new version of it (:mod:`memwall.core.flow`). Memory holds a version from the launch that
writes it until a later version overwrites it. Thread blocks and warps run in any order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from memwall.codegen.index import AffineIndex, offset, ravel
from memwall.codegen.kernel import NotGenerated
from memwall.codegen.lowering import Lowering, is_given, locate
from memwall.codegen.tensors import Body, Indices, Scatter, Store, Tensor
from memwall.codegen.writing import File, Function, Touch
from memwall.core.flow import Flow
from memwall.core.graph import Graph, Value
from memwall.fusion.plan import Group
from memwall.fusion.rules import COPY, aligned
from memwall.hardware.chips import chip_of
from memwall.hardware.lookup import Gpu

#: dtypes that a scatter adds up, in float32
_ADDED_UP = ("float32", "float16", "bfloat16")


class Owed:
    """The stores that a group has to make: at first, and after scatters into scratch memory."""

    def __init__(self, graph: Graph, flow: Flow, group: Group, gpu: Gpu, lowering: Lowering, file: File) -> None:
        self.graph, self.flow, self.group, self.gpu = graph, flow, group, gpu
        self.lowering, self.file = lowering, file
        self.inside = frozenset((*group.op_ids, *group.recomputes))

    def stores(self) -> list[Store]:
        """The last version of each value that leaves the group; values that were there before are written in place."""
        writes = (write for op_id in self.group.op_ids for write in self.flow.writes[op_id])
        last = {value_id: version for value_id, version in writes if value_id in self.group.writes}
        if len(last) < len(set(self.group.writes)):
            raise NotGenerated("it writes what none of its ops makes")
        stores: list[Store] = []
        for value_id in self.group.writes:
            made, written_id = self.lowering.made[last[value_id]]
            assert written_id == value_id
            self.file.versions[value_id] = last[value_id]
            is_new = not is_given(self.graph, self.flow, value_id, self.inside)
            (self.file.make if is_new else self.file.take)(value_id)
            if isinstance(made, Scatter):
                stores += self._scatter_stores(value_id, made, is_new)
            else:
                stores.append(Store(value_id, made, copied=self._copied(last[value_id])))
        for version, (made, value_id) in self.lowering.made.items():
            if isinstance(made, Scatter) and version not in last.values():
                stores.append(self._inner_scatter(value_id, made))
        for value_id, tensor in self.lowering.updates.items():
            stores.append(Store(value_id, tensor))
        return [store for store in stores if store.numel]

    def _copied(self, version: int) -> Scatter | None:
        """What a copy in another order takes from the group, and where its elements go in memory; None for others."""
        op = self.graph.ops[self.flow.writer[version]]
        if op.name != COPY or self.flow.writer[self.flow.reads[op.id][0][1]] not in self.inside:
            return None
        read_id, source_version = self.flow.reads[op.id][0]
        made, written_id = self.lowering.made[source_version]
        read, written, result = (self.graph.values[i] for i in (read_id, written_id, op.outputs[0]))
        if isinstance(made, Scatter) or aligned(written, read) or not read.spec.is_dense:
            return None

        def place(body: Body, i: Indices) -> tuple[AffineIndex, list[str]]:
            found = locate(offset(i, written.spec.strides) + (written.offset - read.offset), read.spec)
            return offset(found, result.spec.strides), []

        return Scatter(made, place, result.spec.shape, result.spec.dtype, None, accumulate=False)

    def _scatter_stores(self, value_id: int, made: Scatter, is_new: bool) -> list[Store]:
        """The stores of a scatter: the output's initial values, then what is added to them."""
        self._check_atomics(made)
        if not self.graph.values[value_id].spec.is_contiguous:
            raise NotGenerated("scattering into a tensor that is not contiguous")
        if not is_new and made.accumulate and made.dtype != "float32":
            raise NotGenerated(f"adding to {made.dtype} in place")
        scattered = Store(value_id, made.source, made)
        if not is_new:
            return [scattered]
        if not made.accumulate:
            assert made.start is not None
            return [Store(value_id, made.start), scattered]
        if made.dtype not in _ADDED_UP:
            raise NotGenerated(f"adding up {made.dtype}")
        if made.dtype == "float32" and made.start is None:
            self.file.zeroed.add(value_id)
        else:
            scattered.target = self._sums(made)
        return [scattered]

    def _sums(self, made: Scatter) -> str:
        """Scratch memory that a scatter adds into."""
        return self.file.new_scratch("float32", str(math.prod(made.shape)), zero=True)

    def _inner_scatter(self, value_id: int, made: Scatter) -> Store:
        """A scatter whose result only this group reads: it stays in scratch memory."""
        self._check_atomics(made)
        if not made.accumulate or made.dtype not in _ADDED_UP:
            raise NotGenerated("a tensor is written in part and read in the same kernel")
        return Store(value_id, made.source, made, self._sums(made))

    def _check_atomics(self, made: Scatter) -> None:
        if made.accumulate and not chip_of(self.gpu).triton_atomics:
            raise NotGenerated("Triton adds atomically from compute capability 7.0 on")

    def after(self, done: Sequence[Store]) -> list[Store]:
        """The stores after scatters into scratch memory: the output from its initial values and the sums."""
        found = []
        for store in done:
            if store.scatter is None or not store.target:
                continue
            whole = _summed(store.scatter, store.target)
            for version, (made, _) in self.lowering.made.items():
                if made is store.scatter:
                    self.lowering.stored[version] = whole
            if store.value_id in self.group.writes:
                found.append(Store(store.value_id, whole))
        return found

    def remember(self, store: Store) -> None:
        """From now on a stored tensor is read from memory where it is used again."""
        if store.value_id in self.lowering.updates or store.target:
            return
        own = store.scatter or store.tensor
        for version, (made, value_id) in self.lowering.made.items():
            if made is own and value_id == store.value_id:
                self.lowering.stored[version] = self.lowering.load(value_id, version)


def _summed(scatter: Scatter, target: str) -> Tensor:
    """A scatter's output: its initial values and the sums in scratch memory."""

    def rule(body: Body, i: Indices) -> str:
        added = body.load_scratch(target, "float32", ravel(i, scatter.shape))
        return added if scatter.start is None else f"{scatter.start.at(body, i)} + {added}"

    return Tensor(scatter.shape, scatter.dtype, rule)


def refuse_hazards(graph: Graph, functions: Sequence[Function], names: Mapping[int, str]) -> None:
    """Check that every read finds its version in any order of a launch's thread blocks.

    Args:
        names: value → its pointer in the functions, which are in launch order.

    Raises:
        NotGenerated: a read might find another version.
    """
    values = graph.values
    before: list[Touch] = []
    for function in functions:
        for read in dict.fromkeys(function.reads):
            if any(_newer(values, write, read) for write in before):
                raise NotGenerated("a later launch reads what an earlier one has overwritten")
            for write in function.writes:
                if not _newer(values, write, read):
                    continue
                if not _is_same(values, write, read):
                    raise NotGenerated("a tensor is written over that is also read at other places")
                if _reads_late(function, names[read.value_id], names[write.value_id]):
                    raise NotGenerated("a tensor is read again after it was written over")
        for write in function.writes:
            if any(_newer(values, other, write) for other in before):
                raise NotGenerated("a part of a tensor is written before the whole")
            if any(_newer(values, other, write) for other in function.writes):
                raise NotGenerated("a tensor is written twice in one launch")
        before += function.writes


def _newer(values: Sequence[Value], write: Touch, other: Touch) -> bool:
    """Whether a write puts a later version where the other reads or writes its own."""
    a, b = values[write.value_id], values[other.value_id]
    return write.version > other.version and a.overlaps(b)


def _is_same(values: Sequence[Value], write: Touch, read: Touch) -> bool:
    """Whether both are the same element in each thread block."""
    a, b = values[write.value_id], values[read.value_id]
    return (a.spec.dtype, a.offset, write.place) == (b.spec.dtype, b.offset, read.place)


def _reads_late(function: Function, read: str, written: str) -> bool:
    """Whether a pointer is read after another has been written, in the order of the text."""
    loads = [n for n, line in enumerate(function.lines) if f"tl.load({read} + " in line]
    stores = [n for n, line in enumerate(function.lines) if line.lstrip().startswith(f"tl.store({written} + ")]
    return bool(loads and stores) and max(loads) > min(stores)
