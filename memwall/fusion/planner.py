"""The ``memwall`` policy: memwall's fusion planner. It needs only the graph and the GPU, not a compiler.

Each op, in call order, starts as its own group and tries to join the groups that made what it reads (vertical fusion),
then groups that read the same tensors (horizontal), largest saving first. A union has to pass the rules of
:mod:`memwall.fusion.rules`, must not close a cycle, and must be modeled faster than its parts on the given GPU. Then
values that are cheap to recompute are no longer stored (:mod:`memwall.fusion.recompute`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from memwall.core.flow import Flow
from memwall.core.graph import EAGER, Graph
from memwall.core.progress import counting
from memwall.fusion import rules
from memwall.fusion.plan import Group, Part, Placement, Plan, Refusal, in_order, not_run
from memwall.fusion.pricing import Border, Pricer
from memwall.fusion.recompute import recompute
from memwall.fusion.repeats import Shortened, shorten
from memwall.fusion.rules import MATRIX_CLASSES, CandidatePair, Edge, FusionCandidate, Shape, Spills, aligned, work_of
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost, graph_costs
from memwall.ops.loops import late_outputs, moves, reads_elsewhere

#: groups that an op tries to join, largest saving first
MAX_CANDIDATES = 8
#: groups that may have to move ahead of a union before it is refused
MAX_SEARCH = 1000
#: last readers of a tensor that are tried as siblings
MAX_SIBLINGS = 4


def memwall_plan(
    graph: Graph,
    costs: Sequence[Cost],
    gpu: Gpu,
    regions: Sequence[int] | None = None,
    spills: Spills = MappingProxyType({}),
) -> Plan:
    """Fuse what is legal and modeled faster on ``gpu``. Repeated layers are planned once.

    Args:
        regions: for each op the number of the compiler's partial graph that holds it; fusion crosses none. None: one
            graph.
        spills: kernels that spill when compiled, with the reason for refusing them.
    """
    short = shorten(graph) if regions is None else Shortened(graph)
    pricer = Pricer(graph, costs, gpu, regions, short.flow)
    of_short = pricer if short.graph is graph else Pricer(short.graph, _short_costs(short, costs), gpu)
    parts, refusals = _parts(of_short, regions, spills)
    whole = short.expand(parts)
    if whole is None:
        parts, refusals = _parts(pricer, regions, spills)
        whole = [part._replace(source=number) for number, part in enumerate(parts)]
    elif short.graph is not graph:
        refusals = _counted(short, whole, parts, refusals)
    pricer.placement = Placement(whole)
    known: dict[int, Group] = {}
    groups = []
    for part in whole:
        group = _cheapest(pricer, part, known.get(part.source), spills)
        known.setdefault(part.source, group)
        groups.append(group)
    return Plan("memwall", tuple(groups), refusals, _left_alone(pricer, groups, regions))


def _left_alone(pricer: Pricer, groups: Sequence[Group], regions: Sequence[int] | None) -> frozenset[int]:
    """The ops that no compiled graph holds: ops outside the regions, and a phase of which no op gains a kernel."""
    programs = [pricer.graph.program_of(op) for op in pricer.graph.ops]
    compiled = {programs[group.op_ids[0]] for group in groups if group.cost is not pricer.costs[group.op_ids[0]]}
    return frozenset(
        op_id
        for op_id, program in enumerate(programs)
        if program not in compiled or (regions is not None and regions[op_id] == EAGER)
    )


def _parts(pricer: Pricer, regions: Sequence[int] | None, spills: Spills) -> tuple[list[Part], tuple[Refusal, ...]]:
    """The owned and recomputed ops of each group, in launch order, and the refusals."""
    walk = _PlanWalk(pricer, regions, spills)
    walk.run()
    members = [group.members for group in walk.groups if group is not None]
    refusals = walk.refusals()
    parts, stored = recompute(pricer, members, regions, spills)
    for refusal in stored:
        key = refusal.producer, refusal.consumer
        if key not in refusals or refusals[key].rule == "phase":  # two graphs, and it could be recomputed
            refusals[key] = refusal
    try:
        ordered = in_order(pricer.flow, parts)
    except ValueError:  # a kernel that recomputes a value must run before what its own inputs wait for
        ordered = in_order(pricer.flow, [Part(tuple(ops)) for ops in members])
    return ordered, tuple(refusals.values())


def _short_costs(short: Shortened, costs: Sequence[Cost]) -> list[Cost]:
    """The costs of the short graph's ops: the whole graph's, except for ops over lists that lost entries."""
    fresh = graph_costs(short.graph)
    ops = short.whole.ops
    return [
        costs[whole] if len(op.inputs) == len(ops[whole].inputs) else fresh[op.id]
        for op, whole in zip(short.graph.ops, short.op_of, strict=True)
    ]


def _counted(
    short: Shortened, whole: Sequence[Part], parts: Sequence[Part], refusals: Sequence[Refusal]
) -> tuple[Refusal, ...]:
    """The refusals with the ops' ids in the whole graph, and how often each occurs there."""
    copies = Counter(part.source for part in whole)
    source_of = {op: number for number, part in enumerate(parts) for op in part.op_ids}
    return tuple(
        replace(
            refusal,
            producer=short.op_of[refusal.producer],
            consumer=short.op_of[refusal.consumer],
            count=copies[source_of[refusal.consumer]],
        )
        for refusal in refusals
    )


def _cheapest(pricer: Pricer, part: Part, twin: Group | None, spills: Spills) -> Group:
    """The ops as one kernel; a single op runs as its eager kernel unless a generated one is modeled faster. ``twin`` is
    the same group of another layer: it costs the same."""
    ops, again, _ = part
    if pricer.graph.ops[ops[0]].is_view:
        return not_run(ops)
    alone = pricer.alone(ops[0]) if len(ops) == 1 and not again else None
    if alone and (pricer.loops[ops[0]].kind == "opaque" or work_of(pricer.graph, ops) in spills):
        return alone
    if alone and twin and twin.cost is alone.cost:
        return alone
    generated = pricer.group(ops, again, twin.cost if twin else None)
    if not alone:
        return generated
    return generated if pricer.time_s(generated) < pricer.time_s(alone) else alone


class _PlanWalk:
    def __init__(self, pricer: Pricer, regions: Sequence[int] | None, spills: Spills) -> None:
        graph, gpu = pricer.graph, pricer.gpu
        self.pricer, self.graph, self.gpu, self.regions, self.spills = pricer, graph, gpu, regions, spills
        self.flow: Flow = pricer.flow
        first = set(self.flow.first.values())
        self.overwrites = {version for version in range(len(self.flow.storage)) if version not in first}
        self.groups: list[FusionCandidate | None] = []
        self.group_of: list[int] = []
        self.price: list[float] = []
        #: the groups in a valid launch order (-1: a gap), and the position of each
        self.order: list[int] = []
        self.place: dict[int, int] = {}
        #: (producer, consumer) → rule, reason, the value as written and as read, and whether it has no other reader
        self.refused: dict[tuple[int, int], tuple[str, str, int, int, bool]] = {}
        loops, moving = pricer.loops, {first: moves(graph.ops[first]) for first in dict.fromkeys(graph.alike)}
        self.moves = [moving[first] for first in graph.alike]
        self.makers = [frozenset([self.flow.writer[version] for _, version in some]) for some in self.flow.reads]
        self.written = {version: value for some in self.flow.writes for value, version in some}
        self.generates = [loop.kind != "opaque" for loop in loops]
        self.shapes = {loop: Shape.of(loop) for loop in dict.fromkeys(loops)}
        self.bandwidth = gpu.dram_bytes_per_s * gpu.achievable["dram"]

    def run(self) -> None:
        for op in counting(self.graph.ops, "planning ops, fused by memwall"):
            index = len(self.groups)
            self.group_of.append(index)
            self.groups.append(self._single(op.id))
            self.place[index] = len(self.order)
            self.order.append(index)
            self.price.append(self.pricer.alone_s(op.id))
            refused: set[int] = set()
            for other in self._neighbours(op.id):
                target = self.group_of[other]
                if target == index or target in refused:
                    continue
                if self._try_pair(target, index):
                    index = self.group_of[op.id]
                    refused.clear()
                else:
                    refused.add(target)

    def _single(self, op_id: int) -> FusionCandidate:
        op, loop = self.graph.ops[op_id], self.pricer.loops[op_id]
        values = self.graph.values
        views: dict = {}
        for value_id in (*op.inputs, *op.outputs):
            value = values[value_id]
            known = views.setdefault(value.storage, value)
            if known is not None and not aligned(known, value):
                views[value.storage] = None
        if reads_elsewhere(op, loop):
            views.update((values[i].storage, None) for i in op.inputs)
        again = [values[v].storage for v, version in self.flow.writes[op_id] if version in self.overwrites]
        sums = sum(s.numel for s in self.graph.specs(op.outputs) if s.numel < loop.numel) if loop.columns else 0
        region = -2 if self.regions is None else self.regions[op_id]
        inside = frozenset((op_id,))
        return FusionCandidate(
            [op_id],
            inside,
            self.makers[op_id],
            self.pricer.border((op_id,), inside),
            self.shapes[loop],
            self.graph.program_of(op),
            region,
            op.op_class,
            sums,
            frozenset(late_outputs(self.graph, op, loop)),
            frozenset(again),
            views,
        )

    # -- who might join -----------------------------------------------------------------------------------------------

    def _neighbours(self, op_id: int) -> list[int]:
        """Ops whose groups this one might join, largest shared tensor first: producers before siblings."""
        spans, flow = self.pricer.spans, self.flow
        producers: dict[int, int] = {}
        siblings: dict[int, int] = {}
        for value_id, version in flow.reads[op_id]:
            nbytes = spans[value_id][2]
            writer = flow.writer[version]
            if writer >= 0:
                producers[writer] = producers.get(writer, 0) + nbytes
            readers = flow.readers[version]
            before = bisect_left(readers, op_id)
            for reader in readers[max(before - MAX_SIBLINGS, 0) : before]:
                siblings[reader] = siblings.get(reader, 0) + nbytes
        ranked = sorted([(nbytes, op) for op, nbytes in producers.items()], reverse=True)
        ranked += sorted([(nbytes, op) for op, nbytes in siblings.items() if op not in producers], reverse=True)
        return [op for _, op in ranked[:MAX_CANDIDATES]]

    def _edges(self, first: FusionCandidate, second: FusionCandidate) -> list[Edge]:
        graph, flow = self.graph, self.flow
        edges: list[Edge] = []
        inside, makers = first.inside, self.makers
        for op_id in second.members:
            if inside.isdisjoint(makers[op_id]):
                continue
            op, kind = graph.ops[op_id], self.pricer.loops[op_id].kind
            for position, (value_id, version) in enumerate(flow.reads[op_id]):
                writer = flow.writer[version]
                if writer in inside:
                    written = graph.values[self.written[version]]
                    argument = op.arguments[position] if position < len(op.arguments) else ""
                    is_only = self._is_only(version)
                    is_last = is_only and graph.ops[writer].op_class in MATRIX_CLASSES and self._is_last(op_id)
                    edges.append(
                        Edge(
                            graph.ops[writer],
                            op,
                            written,
                            graph.values[value_id],
                            argument,
                            kind,
                            self.moves[op_id],
                            is_only,
                            is_last,
                        )
                    )
        return edges

    def _is_only(self, version: int) -> bool:
        """Whether it is not kept and has one reader."""
        return version not in self.flow.kept and len(self.flow.readers[version]) == 1

    def _is_last(self, op_id: int) -> bool:
        flow, own = self.flow, self._program(op_id)
        readers = (r for _, version in flow.writes[op_id] for r in flow.readers[version])
        return not any(self.generates[r] and self._program(r) == own for r in readers)

    def _program(self, op_id: int) -> str:
        return self.graph.program_of(self.graph.ops[op_id])

    # -- may they, and is it worth it ---------------------------------------------------------------------------------

    def _try_pair(self, a: int, b: int) -> bool:
        """Whether two groups could be one, and are one now."""
        first, second = self.groups[a], self.groups[b]
        assert first is not None and second is not None
        feeds, is_fed = not first.inside.isdisjoint(second.makers), not second.inside.isdisjoint(first.makers)
        if feeds and is_fed:
            return False  # each feeds the other through different ops: other steps unite them with what is between
        if is_fed:
            first, second = second, first
            a, b = b, a
        if not (feeds or is_fed) and not (first.is_generated and second.is_generated):
            return False  # nothing to say of two that share an input, one of them a library's kernel
        edges = self._edges(first, second) if feeds or is_fed else ()
        pair = CandidatePair(first, second, edges)
        found = rules.veto(pair)
        before = self._between(a, b) if found is None else None
        if found is None and before is None:
            found = "cycle", "another kernel must run between them"
        if found is None:
            members, inside = sorted((*first.members, *second.members)), first.inside | second.inside
            fed = {edge.read.id for edge in edges}
            border = self.pricer.joined(first.border, second.border, members, inside, fed)
            together_s = self.pricer.cost_s(self.pricer.generated(members, inside, border))
            apart_s = self.price[a] + self.price[b]
            crowded = None if "multi" in first.shape.kinds else rules.too_many_tensors(border)
            spilled = self.spills.get(work_of(self.graph, members)) if self.spills else None
            if crowded:
                found = "too many live values", crowded
            elif spilled:
                found = rules.REGISTER_SPILL, spilled
            elif together_s < apart_s:
                self._reorder(a, b, min(a, b), before or ())
                self._unite(a, b, pair, border)
                self.price[min(a, b)] = together_s
                return True
            else:
                found = "slower when fused", self._why_slower(first, second, together_s, apart_s)
        self._refuse(edges, *found)
        return False

    def _why_slower(self, first: FusionCandidate, second: FusionCandidate, together_s: float, apart_s: float) -> str:
        rows = min((s.shape.rows for s in (first, second) if s.shape.has_row), default=0)
        idle = f"; {rows} rows leave {self.gpu.sm_count - rows} of {self.gpu.sm_count} multiprocessors idle"
        cause = idle if 0 < rows < self.gpu.sm_count else ""
        return f"modeled {together_s * 1e6:.2f} us as one, {apart_s * 1e6:.2f} us as two{cause}"

    def _between(self, a: int, b: int) -> list[int] | None:
        """The groups after the earlier of the two that must run before the later, in their order; None where one of
        them depends on the earlier: a union would be a cycle."""
        early, late = sorted((a, b), key=self.place.__getitem__)
        start = self.place[early]
        found: set[int] = set()
        stack = [late]
        while stack:
            index = stack.pop()
            group = self.groups[index]
            assert group is not None
            for source in {self.group_of[dep] for op in group.members for dep in self.flow.deps[op]} - {index}:
                if source == early:
                    if index != late:
                        return None
                elif self.place[source] > start and source not in found:
                    found.add(source)
                    stack.append(source)
                    if len(found) > MAX_SEARCH:
                        return None
        return sorted(found, key=self.place.__getitem__)

    def _reorder(self, a: int, b: int, keep: int, before: Sequence[int]) -> None:
        """Keep ``order`` topological: what the later needs, then the union, then the rest of what was between."""
        low, high = sorted((self.place[a], self.place[b]))
        if not before:
            self.order[low], self.order[high], self.place[keep] = keep, -1, low
            return
        ahead = set(before)
        rest = [g for g in self.order[low : high + 1] if g not in ahead and g not in (a, b, -1)]
        moved = [*before, keep, *rest]
        self.order[low : high + 1] = moved + [-1] * (high + 1 - low - len(moved))
        for place, index in enumerate(moved, start=low):
            self.place[index] = place

    def _unite(self, a: int, b: int, pair: CandidatePair, border: Border) -> None:
        """Put both into the group of lower index; edges run from ``a`` to ``b``."""
        second_members = pair.second.members
        keep, drop = min(a, b), max(a, b)
        one, two = self.groups[keep], self.groups[drop]
        assert one is not None and two is not None
        x, y = one.shape, two.shape
        fixed = x if x.rows else y
        shape = Shape(
            max(x.numel, y.numel),
            fixed.rows,
            fixed.cols,
            fixed.axes,
            x.has_row or y.has_row,
            x.has_columns or y.has_columns,
            x.kinds | y.kinds,
        )
        views = dict(one.views)
        for storage, value in two.views.items():
            known = views.setdefault(storage, value)
            if known is None or value is None or not aligned(known, value):
                views[storage] = None
        late = one.late | two.late
        if late and {edge.written.id for edge in pair.edges} & late:  # it follows the sums in their launch
            late |= {i for op in second_members for i in self.graph.ops[op].outputs}
        moved = one.moved | two.moved
        if rules.moved(pair):
            moved |= {i for op in second_members for i in self.graph.ops[op].outputs}
        members = sorted((*one.members, *two.members))
        self.groups[keep] = FusionCandidate(
            members,
            one.inside | two.inside,
            one.makers | two.makers,
            border,
            shape,
            one.program,
            one.region,
            one.op_class,
            one.accumulators + two.accumulators,
            late,
            one.overwritten | two.overwritten,
            views,
            moved,
        )
        self.groups[drop] = None
        for member in members:
            self.group_of[member] = keep

    def _refuse(self, edges: Sequence[Edge], rule: str, reason: str) -> None:
        for edge in edges:
            key = edge.producer.id, edge.consumer.id
            self.refused[key] = rule, reason, edge.written.id, edge.read.id, edge.is_only

    def refusals(self) -> dict[tuple[int, int], Refusal]:
        """Producer and consumer → why they are not in one kernel: the last reason found."""
        spans, found = self.pricer.spans, {}
        for key, (rule, reason, written, read, is_only) in self.refused.items():
            saved = spans[read][2] + (spans[written][2] if is_only else 0)
            found[key] = Refusal(rule, reason, *key, saved, saved / self.bandwidth)
        return found
