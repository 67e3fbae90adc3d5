"""Regions of a traced step → the kernels of a server: their sizes, and how GPUs share them.

GPUs share the heads of attention, the columns of a matmul whose result no norm or choice needs whole, and the rows of
the one that follows it; its sums are added by an all-reduce (Shoeybi et al., Megatron-LM, arXiv 1909.08053).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from memwall.core.errors import UsageError
from memwall.core.graph import Graph, Op, TensorSpec, distinct_bytes
from memwall.ops.routing import expected_active
from memwall.serving.steps.caches import CacheReader
from memwall.serving.steps.kernels import Between, Collective, Encoded, Experts, Product, Sampling, StepKernel
from memwall.serving.steps.regions import WHOLE_CLASSES, Region, is_narrow
from memwall.serving.steps.step import EngineStep

#: of a matmul whose columns GPUs share: engines leave gates and mixers of fewer on each
_LEAST_COLUMNS = 32
#: ops that choose from whole rows
_CHOICES = ("topk", "sort", "argmax", "gather")


@dataclass(frozen=True)
class ReadRegion:
    """A region, its kernel, and the messages before it and behind it."""

    region: Region
    kernel: StepKernel
    before: tuple[StepKernel, ...] = ()
    after: tuple[StepKernel, ...] = ()


class Reader(CacheReader):
    """Reads the kernels of one traced step."""

    @cached_property
    def _encoder(self) -> Reader:
        """A reader of the same regions, for which the rows are the encoder's."""
        first = min(i for i in self._of_source if self.regions[i].kind == "product")
        made = self.graph.specs(self.graph.ops[self.regions[first].ops[0]].outputs)[0]
        batch = self._shape[0]
        rows, other = made.numel // made.shape[-1] // batch, copy(self)
        other.encodes = True
        other.__dict__ |= {"_shape": (batch, rows), "step": EngineStep(0, 0, ((rows, 0),) * batch)}
        return other

    def read(self) -> list[ReadRegion]:
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
            read = ReadRegion(region, kernel, before, after)
            found.append(read if reader is self else reader.once(read))
        return found

    def once(self, read: ReadRegion) -> ReadRegion:
        """What is read, once for each sequence."""
        wrap = lambda kernel: Encoded(kernel=kernel, tokens=self._shape[1])  # noqa: E731
        return ReadRegion(read.region, wrap(read.kernel), tuple(map(wrap, read.before)), tuple(map(wrap, read.after)))

    def product(self, number: int, region: Region) -> tuple[StepKernel, tuple[Collective, ...]]:
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
        # of two matmuls in a row (low rank) the first is on every GPU, and the columns of the second are shared
        first = {i for i in region.reads if self.regions[i].kind == "product"} - self._of_shares
        is_row = (region.reads - first) & self._sharded and not grouped
        if region.reads & self._sharded:
            self._of_shares.add(number)
        elif readers and all(reader.kind == "product" for reader in readers):
            kept = True
        split = (
            "whole"
            if kept or (n < _LEAST_COLUMNS and not is_last)
            else "row"
            if is_row
            else "whole"
            if wholes or of_index
            else "column"
        )
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
        if own is None and (is_last or not wholes.isdisjoint(_CHOICES) or all(is_narrow(self.graph, op) for op in ops)):
            own = ""
        return Product(
            n=n,
            k=k,
            dtype=made[0].dtype,
            split=split,
            of_sequences=of_sequences,
            own=own,
            groups=n // made[0].shape[-1] if grouped else 1,
            parts=tuple(spec.numel // rows for spec in made) if self._of_state(readers) and len(made) > 1 else (),
        ), after

    def _of_state(self, readers: Iterable[Region]) -> bool:
        """Whether a recurrence reads it."""
        return any(reader.kind == "state" for reader in readers)

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
        """Ops that reduce over, or choose from, whole rows of one of these widths, of ops that read the results."""
        near = (region for region in self.regions if number in region.reads and region.kind in ("between", "experts"))
        ops = (self.graph.ops[i] for region in near for i in region.ops)
        found = set()
        for op in ops:
            name, specs = op.name.partition(".")[2] or op.name, self.graph.specs(op.inputs)
            if (
                (op.op_class in WHOLE_CLASSES or name in _CHOICES)
                and specs
                and specs[0].shape[-1:]
                and (specs[0].shape[-1] in widths)
            ):
                found.add(name)
        return found

    def experts(self, number: int, region: Region) -> tuple[StepKernel, tuple[Collective, ...]]:
        self._partial.add(number)
        products = [op for op in map(self.graph.ops.__getitem__, region.ops) if op.op_class == "contraction"]
        weights, apart = self._expert_weights(products)
        if len(weights) < 2:
            raise UsageError(f"{region.place} multiplies by experts once, which the server policy does not model")
        first, last = weights[0].shape, weights[-1].shape
        count, hidden, inter = min(spec.shape[0] for spec in weights), first[1], last[1]
        top_k = self._chosen(number, count)
        touched = {op.attributes["slices"][0] for op in products if "slices" in op.attributes} | {apart}
        return Experts(
            hidden=hidden,
            inter=inter,
            count=count,
            top_k=top_k,
            dtype=weights[0].dtype,
            gated=len(weights) == 3 or first[2] == 2 * inter,
            own=self.stored(region.place),
            alike=top_k in touched and round(expected_active(self.tokens, count, top_k)) > top_k,
        ), ()

    def _expert_weights(self, products: Iterable[Op]) -> tuple[list[TensorSpec], int]:
        """(experts, rows, columns) of each of a mixture's weights, and, where each expert has a matmul of its own, how
        many experts have one; 0 where all share one."""
        found: dict[int, TensorSpec] = {}
        apart: set[tuple[int, int]] = set()
        for op in products:
            fixed = self._split(self.graph.values[i] for i in op.inputs)[0]
            matrices = [value for value in fixed if len(value.spec.shape) in (2, 3)]
            if not matrices:
                continue
            value = matrices[-1]  # biases come first
            spec, storage = value.spec, self.graph.storages[value.storage]
            if len(spec.shape) == 2:
                spec = replace(spec, shape=(storage.nbytes // spec.nbytes, *spec.shape))
                apart.add((value.storage, value.offset))
            found.setdefault(value.storage, spec)
        return list(found.values()), len(apart) // max(len(found), 1)

    def _chosen(self, number: int, count: int) -> int:
        """Experts of a token among ``count``: what the last choice before them makes. A choice among more takes some
        that do nothing (LongCat-Flash's zero experts), by chance as often as any other."""
        own = (self.graph.ops[i] for i in self.regions[number].ops)
        rows = next(self.graph.specs(op.inputs)[0] for op in own if op.op_class == "contraction")
        if rows.shape[0] == count and not rows.strides[0]:  # each expert has all tokens, as shared ones do
            return count
        near = (self.regions[i] for i in (number, *sorted(self.regions[number].reads, reverse=True)))
        if (choice := next(filter(None, map(self._top_k, near)), None)) is not None:
            among, chosen = (self.graph.specs(values)[0].shape[-1] for values in (choice.inputs, choice.outputs))
            return min(round(chosen * count / among) if among > count else chosen, count)
        if rows.shape[0] == count and len(rows.shape) == 3:
            raise UsageError(
                f"{self.regions[number].place} multiplies each part of a token's numbers by a matrix of its own, which"
                " the server policy does not model"
            )
        moved = rows.numel // rows.shape[-1] // self.tokens if len(rows.shape) == 2 else 1
        return max(moved, 1)

    def _storages(self, values: Iterable[int]) -> set[int]:
        return {self.graph.values[i].storage for i in values}

    def casts_logits(self, region: Region) -> bool:
        """Whether a region is the float32 form of the logits alone, which the choice of the next token has."""
        casts = region.kind == "between" and all(self.graph.ops[i].name == "aten._to_copy" for i in region.ops)
        return casts and self._is_last(self.regions.index(region))

    def between(self, number: int, region: Region) -> tuple[StepKernel, tuple[Collective, ...]]:
        shared = bool(region.reads & self._sharded)
        if shared:
            self._sharded.add(number)
        read, written = self.outside(region)
        ops = [self.graph.ops[i] for i in region.ops]
        tables = {op.inputs[0] for op in ops if op.name.startswith("aten.embedding")}
        fixed, _, data = self._split(value for value in read if value.id not in tables)
        halved = sum(v.spec.nbytes - 2 * v.spec.distinct_elements for v in data if v.storage in self._halved)
        kept = {value.storage for value in written}
        copies = {
            i for op in ops if op.name == "aten._to_copy" and kept & self._storages(op.inputs) for i in op.outputs
        }
        written = [value for value in written if value.id not in copies]  # who reads these reads what they are casts of
        gathered = sum(self.graph.specs(op.outputs)[0].nbytes for op in ops if op.inputs and op.inputs[0] in tables)
        widths = (self.graph.specs(op.inputs)[0].shape[-1] for op in ops if op.op_class in WHOLE_CLASSES)
        kernel = Between(
            read_bytes=(distinct_bytes(data) - halved + gathered) // self.tokens,
            write_bytes=distinct_bytes(written) // self.tokens,
            weight_bytes=distinct_bytes(fixed),
            columns=max(widths, default=0),
            itemsize=max((value.spec.itemsize for value in written), default=1),
            shared=shared,
            of_sequences=self._is_last(number),
        )
        after = (Collective(op="all_reduce", width=gathered // self.tokens),) if gathered else ()
        return kernel, after


_MAKERS = {
    "product": Reader.product, "attention": Reader.attention, "index": Reader.index, "state": Reader.state,
    "experts": Reader.experts, "between": Reader.between,
}  # fmt: skip


def sampling(graph: Graph) -> tuple[StepKernel, ...]:
    """The choice of the next token, which the model leaves to its caller."""
    specs = [graph.values[i].spec for i in graph.outputs]
    widest = max((spec.shape[-1] for spec in specs if len(spec.shape) in (2, 3) and spec.shape[-1] > 1000), default=0)
    return (Sampling(vocabulary=widest),) if widest else ()
