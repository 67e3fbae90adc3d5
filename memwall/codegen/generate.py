"""Group → kernel: lowers its ops, then writes one nest after another until all its stores are made.

Each round takes the reductions that can be computed now, and every store that needs no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memwall.codegen.index import AffineIndex, Variable, unravel
from memwall.codegen.kernel import Kernel, NotGenerated
from memwall.codegen.lowering import Lowering
from memwall.codegen.nests import NestRows, Partial, write_finish, write_pointwise, write_split
from memwall.codegen.ops.base import Waiting
from memwall.codegen.stores import Owed, refuse_hazards
from memwall.codegen.tensors import Body, Store, Tensor, TensorReduction, Writer, X
from memwall.codegen.writing import INT32_LIMIT, File
from memwall.core.flow import Flow
from memwall.core.graph import Graph
from memwall.fusion.plan import Group
from memwall.hardware.lookup import Gpu
from memwall.ops.loops import loop_of

#: functions in one file; a group that needs more is split unreasonably
MAX_FUNCTIONS = 16


def generate_nests(
    graph: Graph, flow: Flow, group: Group, gpu: Gpu, *, persistent: bool | None = None, split: bool | None = None
) -> Kernel:
    """The Triton source of a group without contractions or tensor lists.

    Args:
        persistent: rows in one tile, or in a loop; None lets the block sizes decide.
        split: rows shared by several thread blocks; None takes the planner's decision.

    Raises:
        NotGenerated: says why.
    """
    return _NestGenerator(graph, flow, group, gpu, persistent, split).kernel()


class _NestGenerator:
    def __init__(
        self, graph: Graph, flow: Flow, group: Group, gpu: Gpu, persistent: bool | None, split: bool | None
    ) -> None:
        self.graph, self.flow, self.group, self.gpu, self.persistent = graph, flow, group, gpu, persistent
        self.op_ids = sorted((*group.op_ids, *group.recomputes))
        self.lowering = Lowering(graph, flow, self.op_ids)
        self.file = File(graph)
        self.owed = Owed(graph, flow, group, gpu, self.lowering, self.file)
        self.scratch: dict[tuple[int, int], tuple[str, str]] = {}
        ops = [graph.ops[i] for i in self.op_ids]
        values = [graph.values[i] for op in ops for i in (*op.inputs, *op.outputs)]
        ends = (max(v.byte_range[1] // v.spec.itemsize, v.spec.numel) for v in values)
        self.is_large = any(end >= INT32_LIMIT for end in ends)
        rows = {(loop.rows, loop.cols) for op in ops if (loop := loop_of(graph, op)).kind == "row"}
        if split is None:  # whether the planner shares each row among several thread blocks
            few = bool(rows) and max(count for count, _ in rows) < gpu.sm_count
            split = few and group.cost.launches[0].thread_blocks is None
        self.rows = None if split else max(rows, default=None)
        #: what the current round starts from: the stores that wait for no scatter and, of them, for no other store, the
        #: missing reductions by their address, and reductions that a tensor needs itself by the tensor's
        self.free: list[Store] = []
        self.ready: list[Store] = []
        self.every: dict[int, TensorReduction] = {}
        self.known: dict[int, list[TensorReduction]] = {}

    def kernel(self) -> Kernel:
        pending = self.owed.stores()
        while pending:
            if len(self.file.functions) > MAX_FUNCTIONS:
                raise NotGenerated("too many launches")
            done = self._round(pending)
            if done is None:
                raise NotGenerated("its reductions wait for each other")
            for store in done:
                self.owed.remember(store)
            pending = [store for store in pending if store not in done]
            pending += self.owed.after(done)
        refuse_hazards(self.graph, self.file.functions, self.file.inputs | self.file.outputs)
        launched = self.file.functions
        schedules = dict.fromkeys(f.schedule for f in launched if f.schedule != "finish")
        name = launched[0].name if launched else "nothing"
        made = self.file.kernel(name, " + ".join(schedules) or "nothing", self.op_ids, self.group.writes)
        return replace(made, configs=_alternatives(dict(made.config)), updates=tuple(self.lowering.updates))

    # -- what is needed for it ---------------------------------------------------------------------------------------

    def _needs(self, tensor: Tensor) -> list[TensorReduction]:
        """The reductions that an element of a tensor needs, without reductions that are in memory."""
        if id(tensor) not in self.known:
            probe = _Probe(self.file, self.scratch)
            place = AffineIndex.of(Variable("x", max(tensor.numel, 1), X))
            tensor.at(Body(probe, X), unravel(place, tensor.shape))
            self.known[id(tensor)] = list(probe.found.values())
        return self.known[id(tensor)]

    def _all_needs(self, store: Store) -> list[TensorReduction]:
        """The reductions of a store and all that they depend on, in dependency order."""
        order: dict[int, TensorReduction] = {}

        def visit(tensor: Tensor) -> None:
            for reduction in self._needs(tensor):
                if id(reduction) not in order:
                    visit(reduction.source)
                    order[id(reduction)] = reduction

        visit(_source(store))
        return list(order.values())

    def _waits(self, store: Store) -> bool:
        """Whether it reads what is not scattered yet."""
        try:
            self._all_needs(store)
        except Waiting:
            return True
        return False

    # -- one round ---------------------------------------------------------------------------------------------------

    def _round(self, pending: Sequence[Store]) -> list[Store] | None:
        """Write the next function, and the one that finishes its sums; returns the stores that they make, None where
        there is no progress."""
        self.known.clear()
        self.free = [store for store in pending if not self._waits(store)]
        self.every = {id(r): r for store in self.free for r in self._all_needs(store)}
        starts = {store.value_id for store in pending if store.scatter is None}  # a scatter waits for initial values
        self.ready = [s for s in self.free if s.scatter is None or s.target or s.value_id not in starts]
        done = self._row_round(*self.rows) if self.rows is not None else None
        if done:
            return done
        if self.every:
            return self._split_round()
        if not self.ready:
            return None
        size = max(store.numel for store in self.ready)
        chosen = [store for store in self.ready if store.numel == size]
        write_pointwise(self._writer("pointwise"), chosen, self.gpu)
        return chosen

    def _writer(self, name: str) -> Writer:
        """The writer of the file's next function."""
        number = len(self.file.functions)
        writer = Writer(self.file, f"{name}_{number}" if number else name, self.is_large)
        writer.scratch = self.scratch
        self.file.functions.append(writer.function)
        return writer

    def _row_round(self, rows: int, cols: int) -> list[Store] | None:
        """All that a nest over rows can do now; None where other nests could do as much."""
        trailing = any(_is_trailing(r) for r in self.every.values() if r.sizes == (rows, cols))
        level: dict[int, int] = {}
        for key, reduction in self.every.items():
            below = [level.get(id(r), 0) for r in self._needs(reduction.source)]
            is_local = reduction.sizes == (rows, cols) and (rows != cols or _is_trailing(reduction) == trailing)
            if is_local and 0 not in below:
                level[key] = 1 + max(below, default=0)
        if not level:
            return None
        sizes = {(cols, rows), (1, rows), (1, rows * cols)}
        late = [
            r
            for key, r in self.every.items()
            if key not in level
            and r.kind == "sum"
            and all(id(n) in level for n in self._needs(r.source))
            and r.sizes in sizes
        ]
        chosen = [
            store
            for store in self.ready
            if store.numel in (rows, rows * cols) and all(id(r) in level for r in self._all_needs(store))
        ]
        depths = range(1, max(level.values()) + 1)
        levels = [[self.every[k] for k, n in level.items() if n == depth] for depth in depths]
        writer = self._writer("rows")
        partials = NestRows(writer, (rows, cols), levels, late, chosen, self.gpu).write(self.persistent)
        return [*chosen, *self._finish(partials, writer.function.constants.get("PROGRAMS", 1), chosen)]

    def _split_round(self) -> list[Store] | None:
        """The largest reduction that can be computed now, with others over its space."""
        ready = [r for r in self.every.values() if not self._needs(r.source)]
        if not ready:
            return None
        first = max(ready, key=lambda r: r.source.numel)
        same = [r for r in ready if (r.source.shape, r.dims) == (first.source.shape, first.dims)]
        size = first.source.numel
        chosen = [s for s in self.ready if s.numel == size > 1 and not self._all_needs(s) and s.scatter is None]
        writer = self._writer("split")
        partials = write_split(writer, same, chosen, self.gpu)
        return [*chosen, *self._finish(partials, writer.function.constants["STRIPES"], chosen)]

    def _finish(self, partials: Sequence[Partial], count: int, chosen: Sequence[Store]) -> list[Store]:
        """Combine partial results, all of one size in one launch, and store what needs no others."""
        for scratch in self.file.scratch:
            scratch.count = scratch.count.replace("PROGRAMS", str(count)).replace("STRIPES", str(count))
        done: list[Store] = []
        for kept in dict.fromkeys(p.reduction.sizes[0] for p in partials):
            group = [p for p in partials if p.reduction.sizes[0] == kept]
            own = {id(p.reduction) for p in group}
            left = [s for s in self.free if s not in chosen and s not in done]
            follow = [
                s
                for s in left
                if s in self.ready
                and s.numel == kept
                and s.scatter is None
                and (asked := self._needs(_source(s)))
                and all(id(r) in own for r in asked)
            ]
            done += follow
            later = {id(r) for s in left if s not in follow for r in self._needs(_source(s))}
            later |= {id(r) for key, one in self.every.items() if key not in own for r in self._needs(one.source)}
            keep = [p.reduction for p in group if id(p.reduction) in later]
            self.scratch.update(write_finish(self._writer("finish"), group, follow, keep, count))
        return done


def _is_trailing(reduction: TensorReduction) -> bool:
    """Whether the last axes are reduced."""
    real = [i for i, size in enumerate(reduction.source.shape) if size > 1]
    return bool(real) and real[-1] in reduction.dims


def _source(store: Store) -> Tensor:
    return store.scatter.source if store.scatter is not None else store.tensor


class _Probe(Writer):
    """Evaluates without writing, to see which reductions are needed."""

    def __init__(self, file: File, scratch: dict) -> None:
        super().__init__(file, "probe")
        self.scratch = scratch
        self.found: dict[int, TensorReduction] = {}

    def pointer(self, value_id: int) -> str:
        return "p"  # not taken

    def reduced(self, body: Body, reduction: TensorReduction, kept: AffineIndex, component: int) -> str:
        if (id(reduction), component) not in self.scratch:
            self.found[id(reduction)] = reduction
        return "0"


def _alternatives(config: dict[str, int]) -> tuple[dict[str, int], ...]:
    """Block sizes worth trying on a device, the chosen ones first."""
    found = [config]
    for prefix, most in (("NUM_WARPS", 16), ("XBLOCK", 1 << 16)):
        for factor in (2, 0.5):
            changed = {n: max(1, min(int(v * factor), most)) for n, v in config.items() if n.startswith(prefix)}
            if config | changed not in found:
                found.append(config | changed)
    return tuple(found)
