"""Group → kernel: lowers its ops, then writes one nest after another until all its stores are made.

Each round takes the reductions that can be computed now, and every store that needs only those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from memwall.codegen.index import Index, Variable, unravel
from memwall.codegen.kernel import Kernel, NotGenerated
from memwall.codegen.lowering import Lowering
from memwall.codegen.nests import write_finish, write_pointwise, write_split
from memwall.codegen.ops.base import Waiting
from memwall.codegen.rows import Rows, write_rows
from memwall.codegen.stores import Owed, refuse_hazards
from memwall.codegen.tensors import Body, Reduction, Tensor
from memwall.codegen.writer import Partial, Store, Writer, X
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
    return _Generator(graph, flow, group, gpu, persistent, split).kernel()


@dataclass
class _Rest:
    """What is left to do at the start of a round.

    ``free`` are the stores of ``pending`` that wait for no scatter. ``needs`` are the missing reductions of each store,
    with those that they depend on; ``asked`` only those that the store itself needs. ``every`` are all of them,
    ``direct`` what each of them needs.
    """

    pending: Sequence[Store]
    free: Sequence[Store]
    needs: Mapping[int, list[Reduction]]
    every: Mapping[int, Reduction]
    direct: Mapping[int, list[Reduction]]
    asked: Mapping[int, list[Reduction]]

    @property
    def ready(self) -> list[Store]:
        """The stores that wait for no other: a scatter waits for its output's initial values."""
        starts = {store.value_id for store in self.pending if store.scatter is None}
        return [s for s in self.free if s.scatter is None or s.target or s.value_id not in starts]


class _Generator:
    def __init__(
        self, graph: Graph, flow: Flow, group: Group, gpu: Gpu, persistent: bool | None, split: bool | None
    ) -> None:
        self.graph, self.flow, self.group, self.gpu, self.persistent = graph, flow, group, gpu, persistent
        self.op_ids = sorted((*group.op_ids, *group.recomputes))
        self.lowering = Lowering(graph, flow, self.op_ids)
        self.file = File(graph)
        self.owed = Owed(graph, flow, group, gpu, self.lowering, self.file)
        self.scratch: dict[tuple[int, int], tuple[str, str]] = {}
        self.known: dict[int, list[Reduction]] = {}
        self.is_large = any(
            max(graph.values[i].byte_range[1] // graph.values[i].spec.itemsize, graph.values[i].spec.numel)
            >= INT32_LIMIT
            for op_id in self.op_ids
            for i in (*graph.ops[op_id].inputs, *graph.ops[op_id].outputs)
        )
        self.rows = self._row_space() if not (self._splits() if split is None else split) else None

    def _row_space(self) -> tuple[int, int] | None:
        loops = [loop_of(self.graph, self.graph.ops[i]) for i in self.op_ids]
        found = {(loop.rows, loop.cols) for loop in loops if loop.kind == "row"}
        return max(found, default=None)

    def _splits(self) -> bool:
        """Whether the planner shares each row among several thread blocks."""
        loops = [loop_of(self.graph, self.graph.ops[i]) for i in self.op_ids]
        rows = [loop.rows for loop in loops if loop.kind == "row"]
        return bool(rows) and self.group.cost.launches[0].thread_blocks is None and max(rows) < self.gpu.sm_count

    def kernel(self) -> Kernel:
        pending = self.owed.stores()
        while pending:
            if len(self.file.functions) > MAX_FUNCTIONS:
                raise NotGenerated("too many launches")
            done = self._round(pending)
            if not done:
                raise NotGenerated("its reductions wait for each other")
            for store in done:
                self.owed.remember(store)
            finished = {id(store) for store in done}
            pending = [store for store in pending if id(store) not in finished]
            pending += self.owed.after(done)
        refuse_hazards(self.graph, self.file.functions, self.file.inputs | self.file.outputs)
        writes = self.group.writes
        launched = self.file.functions
        schedule = " + ".join(dict.fromkeys(f.schedule for f in launched if f.schedule != "finish"))
        config = self.file.constants()
        text = self.file.text(writes)
        return Kernel(
            name=launched[0].name if launched else "nothing",
            source=text,
            inputs=tuple(self.file.inputs),
            outputs=tuple(writes),
            op_ids=tuple(self.op_ids),
            launches=self.file.launches(),
            schedule=schedule or "nothing",
            config=config,
            configs=_alternatives(config),
            is_random=any(f.draws for f in launched),
            updates=tuple(self.lowering.updates),
        )

    # -- what is needed for it ---------------------------------------------------------------------------------------

    def _needs(self, tensor: Tensor) -> list[Reduction]:
        """The reductions that an element of a tensor needs, without those that are in memory."""
        probe = _Probe(self.file, self.lowering, self.scratch)
        body = Body(probe, X)
        tensor.at(body, unravel(Index.of(Variable("x", max(tensor.numel, 1), X)), tensor.shape))
        return list(probe.found.values())

    def _waits(self, store: Store) -> bool:
        """Whether it reads what is not scattered yet."""
        try:
            self._all_needs([_source(store)])
        except Waiting:
            return True
        return False

    def _all_needs(self, tensors: Iterable[Tensor]) -> list[Reduction]:
        """Those and all that they depend on, in dependency order."""
        order: dict[int, Reduction] = {}

        def visit(reduction: Reduction) -> None:
            if id(reduction) in order:
                return
            for source in self._needs(reduction.source):
                visit(source)
            order[id(reduction)] = reduction

        for tensor in tensors:
            for reduction in self._needs(tensor):
                visit(reduction)
        return list(order.values())

    # -- one round ---------------------------------------------------------------------------------------------------

    def _round(self, pending: Sequence[Store]) -> list[Store]:
        """Write the next function, and the one that finishes its sums; returns the stores that they make."""
        whole, pending = pending, [store for store in pending if not self._waits(store)]
        needs = {id(store): self._all_needs([_source(store)]) for store in pending}
        every = {id(r): r for found in needs.values() for r in found}
        rest = _Rest(
            whole, pending, needs, every,
            {key: self._needs(r.source) for key, r in every.items()},
            {id(store): self._needs(_source(store)) for store in pending},
        )  # fmt: skip
        if self.rows is not None:
            done = self._row_round(rest)
            if done is not None:
                return done
        if every:
            return self._split_round(rest)
        size = max(store.numel for store in rest.ready)
        chosen = [store for store in rest.ready if store.numel == size]
        writer = self._writer("pointwise")
        write_pointwise(writer, chosen, self.gpu)
        self.file.functions.append(writer.function)
        return chosen

    def _writer(self, name: str) -> Writer:
        number = len(self.file.functions)
        writer = Writer(self.file, self.lowering, f"{name}_{number}" if number else name, self.is_large)
        writer.scratch = self.scratch
        return writer

    def _row_round(self, rest: _Rest) -> list[Store] | None:
        """All that a nest over rows can do now; None where other nests could do as much."""
        assert self.rows is not None
        rows, cols = self.rows

        trailing = [_is_trailing(r) for r in rest.every.values() if _sizes(r) == (rows, cols)]

        def is_local(reduction: Reduction) -> bool:
            if _sizes(reduction) != (rows, cols):
                return False
            return rows != cols or _is_trailing(reduction) == any(trailing)

        level: dict[int, int] = {}
        for key, reduction in rest.every.items():
            below = [level.get(id(r)) for r in rest.direct[key]]
            if is_local(reduction) and None not in below:
                level[key] = 1 + max((n for n in below if n is not None), default=0)
        if not level:
            return None
        sizes = {(cols, rows), (1, rows), (1, rows * cols)}
        late = [
            r for key, r in rest.every.items()
            if key not in level and r.kind == "sum" and all(id(n) in level for n in rest.direct[key])
            and _sizes(r) in sizes
        ]  # fmt: skip
        chosen = [
            store for store in rest.ready
            if store.numel in (rows, rows * cols) and all(id(r) in level for r in rest.needs[id(store)])
        ]  # fmt: skip
        depth = max(level.values())
        levels = [[rest.every[k] for k, n in level.items() if n == at] for at in range(1, depth + 1)]
        writer = self._writer("rows")
        partials = write_rows(writer, Rows(rows, cols, levels, late, chosen), self.gpu, self.persistent)
        self.file.functions.append(writer.function)
        count = writer.function.constants.get("PROGRAMS", 1)
        done = [*chosen, *self._finish(partials, count, rest, chosen)]
        return done or None

    def _split_round(self, rest: _Rest) -> list[Store]:
        """The largest reduction that can be computed now, with others over its space."""
        ready = [r for key, r in rest.every.items() if not rest.direct[key]]
        if not ready:
            return []
        first = max(ready, key=lambda r: r.source.numel)
        same = [r for r in ready if (r.source.shape, r.dims) == (first.source.shape, first.dims)]
        size = first.source.numel
        chosen = [s for s in rest.ready if s.numel == size > 1 and not rest.needs[id(s)] and s.scatter is None]
        writer = self._writer("split")
        partials = write_split(writer, same, chosen, self.gpu)
        self.file.functions.append(writer.function)
        stripes = writer.function.constants["STRIPES"]
        return [*chosen, *self._finish(partials, stripes, rest, chosen)] or [_NOTHING]

    def _finish(self, partials: Sequence[Partial], count: int, rest: _Rest, chosen: Sequence[Store]) -> list[Store]:
        """Combine partial results, those of one size in one launch, and store what needs only those."""
        for scratch in self.file.scratch:
            scratch.count = scratch.count.replace("PROGRAMS", str(count)).replace("STRIPES", str(count))
        done: list[Store] = []
        taken = {id(s) for s in chosen}
        for kept in dict.fromkeys(math.prod(p.reduction.kept) for p in partials):
            group = [p for p in partials if math.prod(p.reduction.kept) == kept]
            own = {id(p.reduction) for p in group}
            follow = [
                s for s in rest.ready
                if id(s) not in taken and s.numel == kept and s.scatter is None and rest.asked[id(s)]
                and all(id(r) in own for r in rest.asked[id(s)])
            ]  # fmt: skip
            taken |= {id(s) for s in follow}
            later = {id(r) for s in rest.free if id(s) not in taken for r in rest.asked[id(s)]}
            later |= {id(r) for key, sources in rest.direct.items() if key not in own for r in sources}
            writer = self._writer("finish")
            keep = [p.reduction for p in group if id(p.reduction) in later]
            found = write_finish(writer, group, follow, keep, (group[0].stripes, count))
            self.scratch.update(found)
            self.file.functions.append(writer.function)
            done += follow
        return done


def _sizes(reduction: Reduction) -> tuple[int, int]:
    return math.prod(reduction.kept), math.prod(reduction.reduced)


def _is_trailing(reduction: Reduction) -> bool:
    """Whether the last axes are reduced."""
    real = [i for i, size in enumerate(reduction.source.shape) if size > 1]
    return bool(real) and real[-1] in reduction.dims


def _source(store: Store) -> Tensor:
    return store.scatter.source if store.scatter is not None else store.tensor


#: marks progress without a store
_NOTHING = Store(-1, Tensor((), "float32", lambda body, i: "0"))


class _Probe(Writer):
    """Evaluates without writing, to see which reductions are needed."""

    def __init__(self, file: File, lowering: Lowering, scratch: dict) -> None:
        super().__init__(file, lowering, "probe", False)
        self.scratch = scratch
        self.found: dict[int, Reduction] = {}

    def pointer(self, value_id: int) -> str:
        return "p"

    def point(self, name: str, argument: str, dtype: str, note: str = "") -> str:
        return name

    def reduced(self, body: Body, reduction: Reduction, kept: Index, component: int) -> str:
        if (id(reduction), component) not in self.scratch:
            self.found[id(reduction)] = reduction
        return "0"


def _alternatives(config: dict[str, int]) -> tuple[dict[str, int], ...]:
    """Block sizes worth trying on a device, the chosen ones first."""
    found = [dict(config)]
    for change in ({"NUM_WARPS": 2.0}, {"NUM_WARPS": 0.5}, {"XBLOCK": 2.0}, {"XBLOCK": 0.5}):
        other = dict(config)
        for prefix, factor in change.items():
            for name, value in config.items():
                if name.startswith(prefix):
                    other[name] = max(1, min(int(value * factor), 16 if prefix == "NUM_WARPS" else 1 << 16))
        if other not in found:
            found.append(other)
    return tuple(found)
