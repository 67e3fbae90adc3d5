"""A step with a cache → the kernels that a server runs in its place: which ops each of them stands for.

Anchors come first: matmuls with weights (matmuls of one module that read the same tensor are one, as fused QKV and
gate-up projections), the experts of a mixture, and what is done with a cache (attention, or the update of a state) with
all that is computed for it alone: rotary embeddings, norms of queries and keys, copies of the cache, masks. What
follows from weights and positions alone is prepared once, when the server starts. All other ops between two anchors are
one kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from memwall.core.flow import Flow
from memwall.core.graph import Graph, Op
from memwall.ops.recorded import INTEGERS

#: roles of memory whose contents are known before the first request
_FIXED = ("parameter", "buffer")
CACHES = ("kv_cache", "kv_made")
_PRODUCTS = ("contraction",)
#: columns of a block of quantised weights; how many times as many rows have weights that servers leave out of wide ones
_BLOCK_COLUMNS, _MUCH = 128, 32
#: classes of ops that need whole rows
WHOLE_CLASSES = ("reduction", "normalization")


def is_narrow(graph: Graph, op: Op) -> bool:
    """Whether a matmul has fewer columns than a block of quantised weights, and much fewer than its input, as the gates
    of a delta rule and of a shared expert: servers keep these in the model's dtype."""
    columns = graph.specs(op.outputs)[0].shape[-1]
    weights = next(spec for spec in graph.specs(op.inputs)[::-1] if len(spec.shape) > 1)
    return columns < _BLOCK_COLUMNS and _MUCH * columns * columns <= weights.numel


@dataclass(slots=True)
class Region:
    """Ops of one kernel, in call order. ``kind``: matmul, experts, attention, index (of sparse attention), state,
    between or prepared; ``place`` is the module."""

    kind: str
    ops: list[int]
    place: str
    #: anchors on the longest way to it
    level: int = 0
    #: numbers of the regions whose results it reads
    reads: set[int] = field(default_factory=set)


def regions(graph: Graph, flow: Flow) -> list[Region]:
    """The regions of a step, in the order in which they run; each op is in one."""
    return _RegionWalk(graph, flow).run()


def _place(region: Region) -> tuple[int, int]:
    """Products run when their first op could, as all read the same; others when what they read last is there."""
    place = min if region.kind == "product" else max
    return (region.kind != "prepared", place(region.ops, default=-1))


class _RegionWalk:
    def __init__(self, graph: Graph, flow: Flow) -> None:
        self.graph, self.flow, self.ops = graph, flow, graph.ops
        self.role = [storage.role for storage in graph.storages]
        self.owner: dict[int, Region] = {}
        #: storage of a parameter → its axes
        self.axes = {graph.values[i].storage: len(graph.values[i].spec.shape) for i in graph.parameters}
        self.before = [
            [
                flow.writer[v]
                for v in (*[v for _, v in reads], *[flow.carries[v] for _, v in writes])
                if v >= 0 and flow.writer[v] >= 0
            ]
            for reads, writes in zip(flow.reads, flow.writes, strict=True)
        ]
        self.after: list[list[int]] = [[] for _ in self.ops]
        for number, sources in enumerate(self.before):
            for source in sources:
                self.after[source].append(number)

    def run(self) -> list[Region]:
        self._prepared()
        self._experts()
        self._cached()
        self._products()
        self._between()
        self._inlined()
        found = sorted({id(region): region for region in self.owner.values()}.values(), key=_place)
        number = {id(region): i for i, region in enumerate(found)}
        for op in self.ops:
            sources = (number[id(self.owner[before])] for before in self.before[op.id])
            self.owner[op.id].reads.update(sources)
        for i, region in enumerate(found):
            region.reads.discard(i)
        return found

    def _take(self, kind: str, ops: Iterable[int], place: str) -> Region:
        region = Region(kind, sorted(ops), place)
        self.owner.update(dict.fromkeys(region.ops, region))
        return region

    def _prepared(self) -> None:
        """Ops that read nothing but weights, and what follows from those, from positions and from single numbers, such
        as how many tokens a static cache holds, or whole ones that the prompt's step left: how far positions are on."""
        found: set[int] = set()
        for op in self.ops:
            fixed = (self._is_fixed(i, v) or self.flow.writer[v] in found for i, v in self.flow.reads[op.id])
            written = (self.role[self.graph.values[i].storage] for i in op.outputs)
            if all(fixed) and not any(role in CACHES for role in written):
                found.add(op.id)
        self._take("prepared", found, "")

    def _is_fixed(self, number: int, version: int) -> bool:
        value = self.graph.values[number]
        role = self.role[value.storage]
        single, whole = not value.spec.shape, value.spec.dtype in INTEGERS
        left = role == "activation" and self.flow.writer[version] < 0  # by the prompt's step, or by Python
        return role in _FIXED or (role == "input" and single) or (left and (single or whole))

    def weight(self, op: Op) -> int | None:
        """The value of the weights that a matmul reads, as they are or prepared."""
        for value, version in self.flow.reads[op.id][::-1]:
            maker = self.flow.writer[version]
            fixed = self.role[self.graph.values[value].storage] == "parameter"
            prepared = maker >= 0 and maker in self.owner and self.owner[maker].kind == "prepared"
            if (fixed or prepared) and len(self.graph.values[value].spec.shape) > 1:
                return value
        return None

    def _experts(self) -> None:
        """All that the modules do whose matmuls have weights with an axis of experts, or weights of one expert."""
        places = {
            op.module
            for op in self.ops
            if op.op_class in _PRODUCTS and op.id not in self.owner and self._has_experts(self.weight(op))
        }
        own = {place: set(self._inside(place)) for place in sorted(places)}
        for place, inside in own.items():
            others = set().union(*(ops for other, ops in own.items() if other != place))
            while more := self._of_each_expert(inside) - others:
                inside |= more
            self._take("experts", inside, place)

    def _has_experts(self, weight: int | None) -> bool:
        """Whether weights have an axis of experts, or are the matrix of one of those in a parameter."""
        if weight is None:
            return False
        value = self.graph.values[weight]
        axes = len(value.spec.shape)
        return axes in (2, 3) and self.axes.get(value.storage, axes) == 3

    def _of_each_expert(self, inside: set[int]) -> set[int]:
        """Ops outside that make or read a row of each expert for every token: a server moves the chosen rows."""
        values, flow = self.graph.values, self.flow
        products = [self.ops[op] for op in inside if self.ops[op].op_class in _PRODUCTS]
        counts = {values[weight].spec.shape[0] for op in products if (weight := self.weight(op)) is not None}
        specs = (values[i].spec for op in products for i, _ in self._data(op))
        sizes = [spec for spec in specs if len(spec.shape) == 3 and spec.shape[0] in counts]
        if not sizes:
            return set()
        least, rows = min(spec.numel for spec in sizes), min(spec.shape[0] * spec.shape[1] for spec in sizes)

        def is_of_each(number: int) -> bool:
            spec = values[number].spec
            return spec.numel >= least and not spec.numel // spec.shape[-1] % rows

        made = {flow.writer[v] for op in inside for i, v in flow.reads[op] if is_of_each(i)}
        read = {reader for op in inside for i, v in flow.writes[op] if is_of_each(i) for reader in flow.readers[v]}
        return {op for op in made | read if op >= 0 and op not in inside and op not in self.owner}

    def _inside(self, place: str) -> list[int]:
        start = f"{place}."
        return [
            op.id for op in self.ops if op.id not in self.owner and (op.module == place or op.module.startswith(start))
        ]

    def _cached(self) -> None:
        """What is done with each layer's cache, and all that is computed for that alone."""
        seeds: dict[str, set[int]] = {}
        cached: set[str] = set()
        for op in self.ops:
            if op.id in self.owner:
                continue
            with_cache = any(self.role[self.graph.values[i].storage] in CACHES for i in (*op.inputs, *op.outputs))
            is_product = op.op_class in _PRODUCTS and self.weight(op) is not None
            is_core = op.op_class == "attention" or op.op_class in _PRODUCTS
            if not is_product and (with_cache or is_core):
                seeds.setdefault(op.module, set()).add(op.id)
                cached |= {op.module} if with_cache else set()
        if "kv_cache" in self.role:  # matmuls of each token's own numbers, as of the streams of hyper-connections
            seeds = {place: own for place, own in seeds.items() if place in cached or not self._is_of_each(own)}
        for op in self.ops:  # a choice from what the cache gives
            near = [place for place in seeds if f"{place}.".startswith(f"{op.module}.")]
            if op.name.startswith("aten.topk") and near:
                follow = (number for number in self.after[op.id] if self.ops[number].module == op.module)
                seeds[op.module] = {op.id, *follow}.union(*map(seeds.pop, near))
        for place, own in sorted(seeds.items(), key=lambda seed: -seed[0].count(".")):  # the inner ones first
            inside = self._closed(place, own)
            while large := self._reads_state(place, inside):
                inside = self._closed(place, inside | large)
            names = {self.ops[i].name for i in inside}
            products = sum(self.ops[i].op_class in _PRODUCTS for i in inside)  # of scores, and of what they weigh
            attends = any(self.ops[i].op_class == "attention" for i in inside) or (
                products > 1 and any("softmax" in name for name in names)
            )
            chooses = any(name.startswith("aten.topk") for name in names)
            if attends and (spread := self._of_latents(place, inside)):
                inside = self._closed(place, inside | spread)
            if not attends and not chooses:
                self._finish(place, inside)
            self._take("attention" if attends else "index" if chooses else "state", inside, place)

    def _finish(self, place: str, inside: set[int]) -> None:
        """Add what the module makes of a state's results alone: the kernel adds a skipped input, and casts."""
        for number in self._inside(place):
            op, before = self.ops[number], set(self.before[number])
            alone = all(i in inside or (i in self.owner and self.owner[i].kind == "prepared") for i in before)
            if op.module == place and before & inside and alone and op.op_class not in _PRODUCTS:
                inside.add(number)

    def _of_latents(self, place: str, inside: set[int]) -> set[int]:
        """Matmuls whose results are both values and, next to numbers that all heads share, keys of the cache of an
        attention: a server keeps what they read, the latents."""
        found = set()
        for op in (self.ops[i] for i in self._inside(place)):
            readers = set(self.after[op.id])
            if op.op_class not in _PRODUCTS or not readers or not readers <= inside or self.weight(op) is None:
                continue
            made = {op.id}
            for number in sorted(inside):
                if not made.isdisjoint(self.before[number]):
                    made.add(number)
            stored = [i for i in made if any(self.role[s] in CACHES for s in self._storages(self.ops[i]))]
            joins = (i for i in made - {op.id} if self.ops[i].name == "aten.cat")
            if len(stored) > 1 and any(self._joins_other(i, made) for i in joins):
                found.add(op.id)
        return found

    def _joins_other(self, number: int, made: set[int]) -> bool:
        """Whether an op reads what is neither made by some others, nor prepared, nor of a cache."""
        return any(
            writer >= 0 and writer not in made and writer not in self.owner and self._role_of(value) not in CACHES
            for value, writer in ((i, self.flow.writer[v]) for i, v in self.flow.reads[number])
        )

    def _role_of(self, value: int) -> str:
        return self.role[self.graph.values[value].storage]

    def _storages(self, op: Op) -> set[int]:
        return {self.graph.values[i].storage for i in (*op.inputs, *op.outputs)}

    def _is_of_each(self, products: set[int]) -> bool:
        """Whether matmuls have a matrix of their own for each token of a step."""
        values, rows = self.graph.values, set[int]()
        for value in (values[i] for i in self.graph.inputs):
            if self.role[value.storage] not in CACHES and value.spec.shape:
                rows.add(value.spec.numel)
        made = [values[self.ops[i].outputs[0]].spec.shape for i in products]
        return all(len(shape) == 3 and shape[0] in rows for shape in made)

    def _reads_state(self, place: str, inside: set[int]) -> set[int]:
        """Ops of the module outside that read what is as large as its state: a server's kernel never writes it."""
        values, flow = self.graph.values, self.flow
        held = [
            values[i].spec.nbytes
            for op in inside
            for i, _ in flow.reads[op]
            if self.role[values[i].storage] == "kv_cache"
        ]
        least = max(held, default=0)
        made = {v for op in inside for i, v in flow.writes[op] if values[i].spec.nbytes >= least > 0}
        readers = {reader for version in made for reader in flow.readers[version]}
        return {i for i in readers - inside if i not in self.owner and self.ops[i].module == place}

    def _closed(self, place: str, seeds: set[int]) -> set[int]:
        """The seeds, what is between two of them, and what is computed for them alone in the same module."""
        inside, candidates = set(seeds), self._inside(place)
        follows: set[int] = set()
        for number in candidates:
            if number in seeds or any(before in follows for before in self.before[number]):
                follows.add(number)
        last = max(seeds)
        for number in reversed([i for i in candidates if i <= last]):
            readers = self.after[number]
            if not readers or number in inside:
                continue
            is_product = self.ops[number].op_class in _PRODUCTS and self.weight(self.ops[number]) is not None
            needed = any(reader in inside for reader in readers) if number in follows else False
            alone = all(reader in inside for reader in readers) and not is_product
            if needed or alone:
                inside.add(number)
        return inside

    def _products(self) -> None:
        """Matmuls with weights; matmuls of one module that read the same tensor are one kernel, or two: narrow ones."""
        alike: dict[tuple[str, int, int], list[int]] = {}
        for op in self.ops:
            if op.id not in self.owner and op.op_class in _PRODUCTS and (weight := self.weight(op)) is not None:
                value, version = next(use for use in self._data(op) if use[0] != weight)
                alike.setdefault((op.module.rpartition(".")[0], version, self.graph.values[value].offset), []).append(
                    op.id
                )
        for (place, *_), own in alike.items():
            for part in self._merged(own):
                self._take("product", part, place if len(part) > 1 else self.ops[part[0]].module)

    def _merged(self, ops: Sequence[int]) -> Iterator[list[int]]:
        """Matmuls of the same tensor as servers merge them: narrow ones are no part of wide weights."""
        columns = {i: self.graph.specs(self.ops[i].outputs)[0].shape[-1] for i in ops}
        few = max(columns.values()) // _MUCH
        narrow = {i for i in ops if columns[i] <= few and is_narrow(self.graph, self.ops[i])}
        yield from filter(None, ([i for i in ops if i not in narrow], [i for i in ops if i in narrow]))

    def _data(self, op: Op) -> Sequence[tuple[int, int]]:
        """The operands that are no bias: biases stand first."""
        uses = self.flow.reads[op.id]
        return [use for use in uses if self.role[self.graph.values[use[0]].storage] not in _FIXED] or uses

    def _between(self) -> None:
        """One kernel for all ops between the same anchors that pass data to each other, or read the same results."""
        level: dict[int, int] = {}
        open_regions: dict[int, Region] = {}
        for op in self.ops:
            steps = [self._level_after(before, level) for before in self.before[op.id]]
            region = self.owner.get(op.id)
            if region is not None and region.kind != "prepared":
                region.level = max([region.level, *steps])
                level[op.id] = region.level
                continue
            level[op.id] = max(steps, default=0)
            if region is not None:
                continue
            joined = {id(found): found for found in self._neighbours(op.id, level, open_regions)}
            own, *others = joined.values() if joined else [Region("between", [], op.module, level[op.id])]
            for other in others:
                own.ops += other.ops
                self.owner.update(dict.fromkeys(other.ops, own))
                open_regions = {source: own if found is other else found for source, found in open_regions.items()}
            own.ops = sorted([*own.ops, op.id])
            self.owner[op.id] = own
            for source in self._anchors(op.id, level):
                open_regions[source] = own

    def _inlined(self) -> None:
        """Element-wise ops whose results one later kernel between anchors alone reads run in that: a gate's sigmoid in
        the product with what an anchor makes meanwhile."""
        for number in reversed(range(len(self.ops))):
            region = self.owner[number]
            whole = (not self.after[op] or self.ops[op].op_class in WHOLE_CLASSES for op in region.ops)
            if region.kind != "between" or any(whole):
                continue
            readers = {
                id(read): read for op in region.ops for i in self.after[op] if (read := self.owner[i]) is not region
            }
            (reader, *others) = readers.values()
            if not others and reader.kind == "between":
                reader.ops = sorted([*reader.ops, *region.ops])
                self.owner.update(dict.fromkeys(region.ops, reader))

    def _level_after(self, number: int, level: dict[int, int]) -> int:
        kind = self.owner[number].kind
        return 0 if kind == "prepared" else level[number] + (kind != "between")

    def _anchors(self, number: int, level: dict[int, int]) -> list[int]:
        """The anchors directly before an op, as numbers of their first ops."""
        near = (before for before in self.before[number] if self.owner[before].kind not in ("between", "prepared"))
        return [self.owner[before].ops[0] for before in near if self._level_after(before, level) == level[number]]

    def _neighbours(self, number: int, level: dict[int, int], open_regions: dict[int, Region]) -> list[Region]:
        near = [
            self.owner[before]
            for before in self.before[number]
            if self.owner[before].kind == "between" and level[before] == level[number]
        ]
        return near + [open_regions[a] for a in self._anchors(number, level) if a in open_regions]
