"""Regions of a traced step → the kernels of a server: their sizes, and how GPUs share them.

GPUs share the heads of attention, the columns of a product whose result no norm or choice needs whole, and the rows of
the one that follows it; its sums are added by an all-reduce (Shoeybi et al., Megatron-LM, arXiv 1909.08053).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from memwall.core.errors import UsageError
from memwall.core.flow import Flow
from memwall.core.graph import Graph, Op, Value, distinct_bytes
from memwall.fusion.server.kernels import (
    Attention,
    Between,
    Collective,
    Compressed,
    Encoded,
    Experts,
    Index,
    Kernel,
    Latent,
    Product,
    Sampling,
    State,
    Step,
)  # fmt: skip
from memwall.fusion.server.regions import CACHES, Region, regions

_FIXED = ("parameter", "buffer")
#: of a product whose columns GPUs share: engines leave gates and mixers of fewer on each
_LEAST_COLUMNS = 32
#: classes of ops that need whole rows; and ops, which choose from them
_WHOLE_CLASSES, _CHOICES = ("reduction", "normalization"), ("topk", "sort", "argmax", "gather")


@dataclass(frozen=True)
class Read:
    """A region, its kernel, and the messages before it and behind it."""

    region: Region
    kernel: Kernel
    before: tuple[Kernel, ...] = ()
    after: tuple[Kernel, ...] = ()


class Reader:
    """Reads the kernels of one traced step, a decode or a prefill."""

    def __init__(
        self, graph: Graph, stored: Callable[[str], str | None] = lambda path: None, context: int = 0
    ) -> None:  # fmt: skip
        """``stored`` names the scheme of a module's weights: empty where they stay as they are, None where they are as
        the layout says, but for the head and routers; ``context`` says how many tokens were before the step, where
        windows hold fewer.

        Raises:
        UsageError: the graph is no step of a language model.
        """
        self.graph, self.flow, self.stored, self.context = graph, Flow.of(graph), stored, context
        self.regions = regions(graph, self.flow)
        if not any(region.kind in ("attention", "state") for region in self.regions):
            raise UsageError("the server policy is of steps with a cache; profile with --mode prefill or --mode decode")
        self.encodes = False
        self._sharded: set[int] = set()
        self._partial: set[int] = set()

    @cached_property
    def step(self) -> Step:
        """The step that was traced."""
        batch, new = self._shape
        own = [region for region in self._of("attention") if not self._is_cross(region)]
        entries = (self._entries(region) * self._ratio(region.place) for region in own)
        before = max([self.context, *(cached for _, cached in map(self._cached, own)), *entries])
        if new == 1 and before:
            return Step(batch, batch * before)
        return Step(0, 0, ((new, before),) * batch)

    @cached_property
    def _shape(self) -> tuple[int, int]:
        """Samples, and new tokens of each."""
        for i in self.graph.inputs:
            if self._is_step_input(i):
                batch, new = (*self.graph.values[i].spec.shape, 1)[:2]
                return batch, new
        raise UsageError("the step has no input whose shape says how many tokens it takes")

    @property
    def tokens(self) -> int:
        """Tokens of the traced step."""
        batch, new = self._shape
        return batch * new

    @cached_property
    def _of_source(self) -> frozenset[int]:
        """Regions whose results do not depend on the tokens of the step, but on what an encoder reads; none without."""
        tokens = next(self.graph.values[i].storage for i in self.graph.inputs if self._is_step_input(i))
        mine = {op.id for op in self.graph.ops if any(self.graph.values[i].storage == tokens for i in op.inputs)}
        for op in self.graph.ops:
            if any(self.flow.writer[version] in mine for _, version in self.flow.reads[op.id]):
                mine.add(op.id)
        found = {i for i, r in enumerate(self.regions) if r.kind != "prepared" and mine.isdisjoint(r.ops)}
        if self.step.decodes or not any(self.regions[i].kind == "product" for i in found):
            return frozenset()
        return frozenset(found)

    def _is_step_input(self, number: int) -> bool:
        value = self.graph.values[number]
        return self.graph.storages[value.storage].role not in CACHES and bool(value.spec.shape)

    @cached_property
    def _encoder(self) -> Reader:
        """A reader of the same regions, for which the rows are those of the encoder."""
        first = min(i for i in self._of_source if self.regions[i].kind == "product")
        made = self.graph.specs(self.graph.ops[self.regions[first].ops[0]].outputs)[0]
        batch = self._shape[0]
        rows, other = made.numel // made.shape[-1] // batch, copy(self)
        other.encodes = True
        other.__dict__ |= {"_shape": (batch, rows), "step": Step(0, 0, ((rows, 0),) * batch)}
        return other

    def _of(self, kind: str) -> Iterator[Region]:
        return (region for region in self.regions if region.kind == kind)

    def read(self) -> list[Read]:
        """All kernels in the order in which they run, prepared ops left out."""
        found = []
        for number, region in enumerate(self.regions):
            if region.kind == "prepared":
                continue
            before: tuple[Collective, ...] = ()
            reader = self._encoder if number in self._of_source else self
            if waiting := region.reads & self._partial:
                before = (Collective(op="all_reduce", width=reader._width(self.regions[min(waiting)])),)
                self._partial -= waiting
            kernel, after = _MAKERS[region.kind](reader, number, region)
            read = Read(region, kernel, before, after)
            found.append(read if reader is self else reader.once(read))
        return found

    def once(self, read: Read) -> Read:
        """What is read, once for each sequence."""
        wrap = lambda kernel: Encoded(kernel=kernel, tokens=self._shape[1])  # noqa: E731
        return Read(read.region, wrap(read.kernel), tuple(map(wrap, read.before)), tuple(map(wrap, read.after)))

    # -- what a region reads and writes -------------------------------------------------------------------------------

    def outside(self, region: Region) -> tuple[list[Value], list[Value]]:
        """The values that a region reads of others, and those that others, or the caller, read of it."""
        inside, values, flow = set(region.ops), self.graph.values, self.flow
        read = {v: values[i] for op in region.ops for i, v in flow.reads[op] if flow.writer[v] not in inside}
        views = {(value.storage, value.offset, value.spec): value for value in read.values()}
        views |= {
            (values[i].storage, values[i].offset, values[i].spec): values[i]
            for op in region.ops for i, v in flow.reads[op] if flow.writer[v] not in inside
        }  # fmt: skip
        written = {}
        for op in region.ops:
            for i, version in flow.writes[op]:
                if version in flow.kept or not inside.issuperset(flow.readers[version]):
                    written[version] = values[i]
        return list(views.values()), list(written.values())

    def _split(self, values: Iterable[Value]) -> tuple[list[Value], list[Value], list[Value]]:
        """Values of weights and what was prepared; of caches; and of tokens."""
        found: tuple[list[Value], list[Value], list[Value]] = ([], [], [])
        for value in values:
            role = self.graph.storages[value.storage].role
            if value.storage in self._prepared:
                if self._prepared[value.storage]:
                    found[0].append(value)
            else:
                found[0 if role in _FIXED else 1 if role in CACHES else 2].append(value)
        return found

    @cached_property
    def _prepared(self) -> dict[int, bool]:
        """Storages that are prepared, and whether of weights; what is made of positions alone is little."""
        found: dict[int, bool] = {}
        for op in (self.graph.ops[i] for region in self._of("prepared") for i in region.ops):
            read = [self.graph.values[i].storage for i in op.inputs]
            of_weights = any(found.get(i, self.graph.storages[i].role in _FIXED) for i in read)
            found |= dict.fromkeys((self.graph.values[i].storage for i in op.outputs), of_weights)
        return found

    def _width(self, region: Region) -> int:
        """Bytes of a token in the last result of a region."""
        _, written = self.outside(region)
        return max(value.spec.nbytes for value in written) // self.tokens

    # -- kernels ------------------------------------------------------------------------------------------------------

    def product(self, number: int, region: Region) -> tuple[Kernel, tuple[Collective, ...]]:
        ops = [self.graph.ops[i] for i in region.ops]
        made = [self.graph.values[op.outputs[0]].spec for op in ops]
        grouped = "bmm" in ops[0].name  # a matrix for each group of columns
        rows = self.tokens if grouped else made[0].numel // made[0].shape[-1]
        n, k = sum(spec.numel // rows for spec in made), self._inner(ops[0])
        is_last = self._is_last(number)
        of_sequences = is_last and rows <= self._shape[0]
        wholes = self._wholes(number, {spec.shape[-1] for spec in made})
        of_index = any(number in region.reads for region in self._of("index"))
        readers = [other for other in self.regions if number in other.reads]
        kept = not is_last and all(map(self._compresses, readers))  # for the cache alone, which is on every GPU
        is_row = region.reads & self._sharded and not grouped
        split = (
            "whole" if kept or (n < _LEAST_COLUMNS and not is_last) else
            "row" if is_row else "whole" if wholes or of_index else "column"
        )  # fmt: skip
        after: tuple[Collective, ...] = ()
        if split == "row":
            self._partial.add(number)
        elif split == "column" and is_last:
            after = (Collective(op="all_gather", width=n * made[0].itemsize, of_sequences=of_sequences),)
        elif split == "column":
            self._sharded.add(number)
        columns: Counter[str | None] = Counter()
        for op, spec in zip(ops, made, strict=True):
            columns[self.stored(op.module)] += spec.numel // rows
        own = max(columns, key=columns.__getitem__)
        if own is None and (is_last or not wholes.isdisjoint(_CHOICES)):
            own = ""
        return Product(n=n, k=k, dtype=made[0].dtype, split=split, of_sequences=of_sequences, own=own), after

    def _is_last(self, number: int) -> bool:
        """Whether a region makes logits: the model's output, or what only element-wise ops separate from it."""
        after = [i for i, region in enumerate(self.regions) if number in region.reads]
        if after:
            return all(self.regions[i].kind == "between" and self._is_last(i) for i in after)
        made = {self.graph.values[i].storage for op in self.regions[number].ops for i in self.graph.ops[op].outputs}
        return not made.isdisjoint(self.graph.values[i].storage for i in self.graph.outputs)

    def _inner(self, op: Op) -> int:
        specs = self.graph.specs(op.inputs)
        return next(a.shape[-1] for a, b in pairwise(specs) if len(a.shape) > 1 and len(b.shape) > 1)

    def _wholes(self, number: int, widths: set[int]) -> set[str]:
        """Ops that reduce over, or choose from, whole rows of one of these widths, of those that read the results."""
        near = (region for region in self.regions if number in region.reads and region.kind in ("between", "experts"))
        ops = (self.graph.ops[i] for region in near for i in region.ops)
        found = set()
        for op in ops:
            name, specs = op.name.split(".")[1], self.graph.specs(op.inputs)
            if (
                (op.op_class in _WHOLE_CLASSES or name in _CHOICES)
                and specs
                and specs[0].shape[-1:]
                and (specs[0].shape[-1] in widths)
            ):
                found.add(name)
        return found

    def attention(self, number: int, region: Region) -> tuple[Kernel, tuple[Collective, ...]]:
        self._sharded.add(number)
        query, result, itemsize = self._core(region)
        heads = query.spec.numel // (self.tokens * query.spec.shape[-1])
        size, value_size = query.spec.shape[-1], result.spec.shape[-1]
        for op in (self.graph.ops[i] for i in region.ops):
            weight = next((s for s in self.graph.specs(op.inputs)[1:] if len(s.shape) == 2), None)
            if op.op_class == "contraction" and weight is not None and "bmm" not in op.name:
                nope = weight.shape[-1] // heads - value_size
                rank, rope = weight.shape[-2], size - nope
                self._check(region, {heads * size + rank + rope, heads * (size + rope) + rank + rope})
                return Latent(heads=heads, nope=nope, rope=size - nope, rank=weight.shape[-2], value=value_size,
                              dtype=query.spec.dtype, top_k=self._indexed(region)), ()  # fmt: skip
        kv_heads, cached = self._cached(region)
        if self._is_cross(region):
            return Attention(heads=heads, kv_heads=kv_heads, head_size=size, value_size=value_size, source=cached,
                             dtype=query.spec.dtype, causal=False), ()  # fmt: skip
        if not kv_heads:
            read = self._split(self.outside(region)[0])[2]
            width = distinct_bytes(read) // (self.tokens * itemsize)
            kv_heads = max((width - heads * size) // (size + value_size), 1)
        each = heads * size + kv_heads * size
        self._check(region, {each, each + kv_heads * value_size})
        before = self.step.context_tokens // self.step.decodes if self.step.decodes else 0
        window = cached + 1 if cached and cached < before else 0
        ratio = self._ratio(region.place) if window and self._entries(region) else 0
        if ratio or (window and self._has_one_vector(region)):
            return Compressed(heads=heads, size=size, window=window, ratio=ratio, top_k=self._indexed(region),
                              opened=self._opened(region.place), dtype=query.spec.dtype), ()  # fmt: skip
        return Attention(heads=heads, kv_heads=kv_heads, head_size=size, value_size=value_size, window=window,
                         dtype=query.spec.dtype, causal=not self.encodes), ()  # fmt: skip

    def _check(self, region: Region, widths: set[int]) -> None:
        """Raises UsageError: attention reads other numbers of each new token than queries, keys and values."""
        width = self._new_numbers(region)
        if width not in widths:
            raise UsageError(
                f"the attention of {region.place} is of no kind that the server policy models: it reads {width:,}"
                f" numbers of each new token where queries, keys and values have {max(widths):,}"
            )

    def _core(self, region: Region) -> tuple[Value, Value, int]:
        """The queries, the result, and the bytes of a number of attention."""
        values = self.graph.values
        cores = [
            op for op in (self.graph.ops[i] for i in region.ops)
            if op.op_class == "attention" or (op.op_class == "contraction" and "bmm" in op.name)
        ]  # fmt: skip
        if not cores:
            raise UsageError(
                f"the attention of {region.place} is of no kind that the server policy models: it has no product of"
                " queries and keys"
            )
        query, result = values[cores[0].inputs[0]], values[cores[-1].outputs[0]]
        return query, result, query.spec.itemsize

    def _cached(self, region: Region) -> tuple[int, int]:
        """Heads and tokens of what is in the cache before the region; zeros where nothing is."""
        for value in self.outside(region)[0]:
            if self.graph.storages[value.storage].role in CACHES and len(value.spec.shape) == 4:
                return value.spec.shape[1], value.spec.shape[2]
        return 0, 0

    def _entries(self, region: Region) -> int:
        """Compressed entries that attention reads next to a window of the cache; 0 where it has none."""
        held = {
            value.storage: value.spec.shape[2] for value in self.outside(region)[0]
            if self.graph.storages[value.storage].role in CACHES and len(value.spec.shape) == 4
        }  # fmt: skip
        lengths = list(held.values())
        return next((length for length in lengths if length != lengths[0]), 0)

    def _compresses(self, region: Region) -> bool:
        """Whether a state is inside attention: it makes entries of the attention's cache."""
        inside = (region.place.startswith(f"{other.place}.") for other in self._of("attention"))
        return region.kind == "state" and any(inside)

    def _has_one_vector(self, region: Region) -> bool:
        """Whether the same numbers of a new token are its key and its value: both caches get them."""
        roles, values, added = self.graph.storages, self.graph.values, list[set[int]]()
        for op in region.ops:
            read = self.flow.reads[op]
            old = {v for i, v in read if roles[values[i].storage].role == "kv_cache" and len(values[i].spec.shape) == 4}
            if old and self.graph.ops[op].op_class == "movement":
                added.append({v for _, v in read} - old)
        return len(added) > 1 and all(added[0] == each for each in added) and bool(added[0])

    def _pairs(self, place: str) -> list[Region]:
        """The pairs of products of a module and those below, of values and their weights, of which entries are made."""
        return [r for r in self._of("product") if f"{r.place}.".startswith(f"{place}.") and len(r.ops) == 2]

    def _opened(self, place: str) -> int:
        """Numbers of a token that are kept until an entry is made of them."""
        pairs = (region.ops for region in self._pairs(place) if region.place != place)
        return sum(self.graph.specs(self.graph.ops[i].outputs)[0].shape[-1] for ops in pairs for i in ops)

    def _ratio(self, place: str) -> int:
        """Tokens that an entry stands for: each has a bias of its own in the module that makes it; 0: none does."""
        inside = {region.place for region in self._pairs(place)}
        biases = [
            self.graph.values[i].spec.shape for i in self.graph.parameters
            if self.graph.storages[self.graph.values[i].storage].name.rpartition(".")[0] in inside
        ]  # fmt: skip
        return max((shape[0] for shape in biases if len(shape) == 2), default=0)

    def _is_cross(self, region: Region) -> bool:
        """Whether attention has queries alone of the new tokens: all keys are in the cache already."""
        query = self._core(region)[0]
        return self._cached(region)[0] > 0 and self._new_numbers(region) == query.spec.numel // self.tokens

    def _new_numbers(self, region: Region) -> int:
        """Numbers of each new token that attention reads, but what an index chose."""
        indices = {i for r in self._of("index") for op in r.ops for i in self.graph.ops[op].outputs}
        read = [value for value in self._split(self.outside(region)[0])[2] if value.id not in indices]
        return distinct_bytes(read) // (self.tokens * self._core(region)[2])

    def _indexed(self, region: Region) -> int:
        """Tokens that an index chooses for each query of attention; 0 where none does."""
        found = (self.regions[i] for i in region.reads if self.regions[i].kind == "index")
        return max((self._choice(index) for index in found), default=0)

    def _choice(self, region: Region) -> int:
        """How many the last choice of a region takes."""
        chosen = (self.graph.ops[i] for i in reversed(region.ops) if self.graph.ops[i].name.startswith("aten.topk"))
        return next((self.graph.specs(op.outputs)[0].shape[-1] for op in chosen), 0)

    def index(self, number: int, region: Region) -> tuple[Kernel, tuple[Collective, ...]]:
        ops = (self.graph.ops[i] for i in region.ops)
        query = next(self.graph.specs(op.inputs)[0] for op in ops if op.op_class == "contraction")
        size, ratio = query.shape[-1], self._ratio(region.place) or 1
        return Index(heads=query.numel // (self.tokens * size), size=size, top_k=self._choice(region), ratio=ratio), ()

    def state(self, number: int, region: Region) -> tuple[Kernel, tuple[Collective, ...]]:
        if region.reads & self._sharded:
            self._sharded.add(number)
        read, written = self.outside(region)
        fixed, cached, data = self._split(read)
        _, stored, made = self._split(written)
        batch, _ = self._shape
        if self._compresses(region):
            width = self._opened(region.place.rpartition(".")[0]) * max(value.spec.itemsize for value in stored)
            return Between(read_bytes=width, write_bytes=width, weight_bytes=distinct_bytes(fixed), columns=0,
                           itemsize=1, shared=False), ()  # fmt: skip
        if distinct_bytes(stored) != distinct_bytes(cached) and self.step.decodes:
            raise UsageError(
                f"{region.place} keeps a cache that grows and is not that of attention, which the server"
                " policy does not model"
            )
        return State(
            state_bytes=max(distinct_bytes(cached), distinct_bytes(stored)) // batch,
            read_bytes=distinct_bytes(data) // self.tokens, write_bytes=distinct_bytes(made) // self.tokens,
            weight_bytes=distinct_bytes(fixed),
        ), ()  # fmt: skip

    def experts(self, number: int, region: Region) -> tuple[Kernel, tuple[Collective, ...]]:
        self._partial.add(number)
        weights = [
            spec for op in region.ops if self.graph.ops[op].op_class == "contraction"
            for spec in self.graph.specs(self.graph.ops[op].inputs[:2])[1:] if len(spec.shape) == 3
        ]  # fmt: skip
        first, last = weights[0], weights[-1]
        count, hidden, inter = first.shape[0], first.shape[1], last.shape[1]
        return Experts(hidden=hidden, inter=inter, count=count, top_k=self._chosen(number), dtype=first.dtype,
                       gated=first.shape[2] == 2 * inter, own=self.stored(region.place)), ()  # fmt: skip

    def _chosen(self, number: int) -> int:
        """Experts of a token: what the last choice before them makes."""
        near = (self.regions[i] for i in (number, *sorted(self.regions[number].reads, reverse=True)))
        own = (self.graph.ops[i] for i in self.regions[number].ops)
        rows = next(self.graph.specs(op.inputs)[0] for op in own if op.op_class == "contraction")
        moved = rows.numel // rows.shape[-1] // self.tokens if len(rows.shape) == 2 else 1
        return next(filter(None, map(self._choice, near)), max(moved, 1))

    def between(self, number: int, region: Region) -> tuple[Kernel, tuple[Collective, ...]]:
        shared = bool(region.reads & self._sharded)
        if shared:
            self._sharded.add(number)
        read, written = self.outside(region)
        ops = [self.graph.ops[i] for i in region.ops]
        tables = {op.inputs[0] for op in ops if op.name.startswith("aten.embedding")}
        fixed, _, data = self._split(value for value in read if value.id not in tables)
        gathered = sum(self.graph.specs(op.outputs)[0].nbytes for op in ops if op.inputs and op.inputs[0] in tables)
        widths = (self.graph.specs(op.inputs)[0].shape[-1] for op in ops if op.op_class in _WHOLE_CLASSES)
        kernel = Between(
            read_bytes=(distinct_bytes(data) + gathered) // self.tokens,
            write_bytes=distinct_bytes(written) // self.tokens, weight_bytes=distinct_bytes(fixed),
            columns=max(widths, default=0), itemsize=max((value.spec.itemsize for value in written), default=1),
            shared=shared, of_sequences=self._is_last(number),
        )  # fmt: skip
        after = (Collective(op="all_reduce", width=gathered // self.tokens),) if gathered else ()
        return kernel, after


_MAKERS = {
    "product": Reader.product, "attention": Reader.attention, "index": Reader.index, "state": Reader.state,
    "experts": Reader.experts, "between": Reader.between,
}  # fmt: skip


def sampling(graph: Graph) -> tuple[Kernel, ...]:
    """The choice of the next token, which the model leaves to its caller."""
    specs = [graph.values[i].spec for i in graph.outputs]
    widest = max((spec.shape[-1] for spec in specs if len(spec.shape) in (2, 3) and spec.shape[-1] > 1000), default=0)
    return (Sampling(vocabulary=widest),) if widest else ()
