"""Regions that have a cache → attention, indices and states with their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memwall.core.errors import UsageError
from memwall.core.graph import Op, TensorSpec, distinct_bytes
from memwall.serving.steps.attention import Attention, Compressed, Index, Latent
from memwall.serving.steps.kernels import Between, Collective, State, StepKernel
from memwall.serving.steps.regions import WHOLE_CLASSES, Region
from memwall.serving.steps.states import DeltaRule, Scan
from memwall.serving.steps.traced import TracedStep

#: of a sum in float32
_SUM_BYTES = 4


class CacheReader(TracedStep):
    """Reads the kernels that have a cache."""

    def attention(self, number: int, region: Region) -> tuple[StepKernel, tuple[Collective, ...]]:
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
                return Latent(
                    heads=heads,
                    nope=nope,
                    rope=size - nope,
                    rank=weight.shape[-2],
                    value=value_size,
                    dtype=query.spec.dtype,
                    top_k=self._indexed(region),
                ), ()
        kv_heads, cached = self._cached(region)
        sizes: Any = {"heads": heads, "head_size": size, "value_size": value_size, "dtype": query.spec.dtype}
        if self._is_cross(region):
            return Attention(**sizes, kv_heads=kv_heads, source=cached, causal=False), ()
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
            return Compressed(
                heads=heads,
                size=size,
                window=window,
                ratio=ratio,
                top_k=self._indexed(region),
                opened=self._opened(region.place),
                shared=self._shared(region.place, size),
                dtype=query.spec.dtype,
            ), ()
        causal, top_k = not self.encodes, self._indexed(region)
        attention = Attention(**sizes, kv_heads=kv_heads, window=window, causal=causal, top_k=top_k)
        return attention, self._summed(region, {count * size for count in (heads, kv_heads) if count > 1})

    def _summed(self, region: Region, widths: set[int]) -> tuple[Collective, ...]:
        """The message of norms over all heads of queries, or of keys, of which each GPU has some: a sum of squares in
        float32 for each norm (vLLM's ``MiniMaxText01RMSNormTP.forward_qk``, in one all-reduce)."""
        ops = (self.graph.ops[i] for i in region.ops)
        norms = [op for op in ops if op.op_class in WHOLE_CLASSES and self._reduced(op) in widths]
        return (Collective(op="all_reduce", width=_SUM_BYTES * len(norms)),) if norms else ()

    def _reduced(self, op: Op) -> int:
        """Numbers of a row that an op reads."""
        specs = self.graph.specs(op.inputs)
        return specs[0].shape[-1] if specs and specs[0].shape else 0

    def _check(self, region: Region, widths: set[int]) -> None:
        """Raises UsageError: attention reads other numbers of each new token than queries, keys and values."""
        width = self._new_numbers(region)
        if width not in widths:
            raise UsageError(
                f"the attention of {region.place} is of no kind that the server policy models: it reads {width:,}"
                f" numbers of each new token where queries, keys and values have {max(widths):,}"
            )

    def _has_one_vector(self, region: Region) -> bool:
        """Whether the same numbers of a new token are its key and its value: both caches get them."""
        roles, values, added = self.graph.storages, self.graph.values, list[set[int]]()
        for op in region.ops:
            read = self.flow.reads[op]
            old = {v for i, v in read if roles[values[i].storage].role == "kv_cache" and len(values[i].spec.shape) == 4}
            if old and self.graph.ops[op].op_class == "movement":
                added.append({v for _, v in read} - old)
        return len(added) > 1 and all(added[0] == each for each in added) and bool(added[0])

    def _opened(self, place: str) -> int:
        """Numbers of a token that are kept until an entry is made of them."""
        pairs = (region.ops for region in self._pairs(place) if region.place != place)
        return sum(self.graph.specs(self.graph.ops[i].outputs)[0].shape[-1] for ops in pairs for i in ops)

    def _series(self, place: str, size: int) -> int:
        """Entries of ``size`` numbers to which a token contributes, each by numbers of its own."""
        pairs = (region.ops for region in self._pairs(place) if region.place != place)
        return max(self.graph.specs(self.graph.ops[i].outputs)[0].shape[-1] for ops in pairs for i in ops) // size

    def _shared(self, place: str, size: int) -> int:
        """Numbers of the tokens of the last entry that the next one is made of, too."""
        series = self._series(place, size) if self._ratio(place) else 1
        return self._opened(place) * (series - 1) // series * self._ratio(place)

    def _compresses(self, region: Region) -> bool:
        """Whether a state is inside attention: it makes entries of the attention's cache."""
        inside = (region.place.startswith(f"{other.place}.") for other in self._of("attention"))
        return region.kind == "state" and any(inside)

    def _indexed(self, region: Region) -> int:
        """Tokens that an index chooses for each query of attention; 0 where none does."""
        found = (self.regions[i] for i in region.reads if self.regions[i].kind == "index")
        return max((self._choice(index) * (self._block(index) or 1) for index in found), default=0)

    def _block(self, index: Region) -> int:
        """Keys that an index chooses together, by the largest of their scores; 0: each alone."""
        ops = (self.graph.ops[i] for i in index.ops)
        return next((self.graph.specs(op.inputs)[0].shape[-1] for op in ops if op.name.startswith("aten.amax")), 0)

    def index(self, number: int, region: Region) -> tuple[StepKernel, tuple[Collective, ...]]:
        ops = (self.graph.ops[i] for i in region.ops)
        query = next(self.graph.specs(op.inputs)[0] for op in ops if op.op_class == "contraction")
        size, ratio = query.shape[-1], self._ratio(region.place) or 1
        return Index(
            heads=query.numel // (self.tokens * size),
            size=size,
            top_k=self._choice(region),
            ratio=ratio,
            block=self._block(region),
        ), ()

    def state(self, number: int, region: Region) -> tuple[StepKernel, tuple[Collective, ...]]:
        if region.reads & self._sharded:
            self._sharded.add(number)
        read, written = self.outside(region)
        fixed, cached, data = self._split(read)
        _, stored, made = self._split(written)
        batch, _ = self._shape
        place = region.place.rpartition(".")[0]
        if self._compresses(region) and (opened := self._opened(place)):
            # a token's numbers are kept and, in the mean, read once more for an entry, which is written
            itemsize = max(value.spec.itemsize for value in stored)
            series = self._series(place, min(value.spec.shape[-1] for value in stored))
            entry = opened // (2 * series)  # weighted values, of its series together
            return Between(
                read_bytes=2 * opened * itemsize,
                write_bytes=(opened + entry // self._ratio(place)) * itemsize,
                weight_bytes=distinct_bytes(fixed),
                columns=0,
                itemsize=1,
                shared=False,
            ), ()
        if distinct_bytes(stored) != distinct_bytes(cached) and self.step.decodes:
            raise UsageError(
                f"{region.place} keeps a cache that grows and is not that of attention, which the server"
                " policy does not model"
            )
        moved: dict[str, Any] = {
            "state_bytes": max(distinct_bytes(cached), distinct_bytes(stored)) // batch,
            "read_bytes": distinct_bytes(data) // self.tokens,
            "write_bytes": distinct_bytes(made) // self.tokens,
            "weight_bytes": distinct_bytes(fixed),
        }
        found = self._recurrence(region, [value.spec for value in stored], moved)
        if found is not None:
            self._halved |= {value.storage for value in made}
        return found or State(**moved), ()

    def _recurrence(self, region: Region, stored: Sequence[TensorSpec], moved: Mapping[str, int]) -> State | None:
        """The layer of a state of heads and a window of a convolution: the delta rule, whose step a sigmoid scales, or
        the scan of Mamba-2. None: neither."""
        states, windows = ([spec for spec in stored if len(spec.shape) == axes] for axes in (4, 3))
        if len(states) != 1 or not windows:
            return None
        _, heads, rows, columns = states[0].shape
        channels = sum(spec.shape[1] for spec in windows)
        known: Any = {
            **moved, "heads": heads, "channels": channels, "taps": windows[0].shape[-1], "dtype": states[0].dtype,
        }  # fmt: skip
        is_delta = any(self.graph.ops[i].name.startswith("aten.sigmoid") for i in region.ops)
        shared = channels - heads * (columns if is_delta else rows)  # of queries and keys, or of B and C
        kinds, odd = divmod(shared, 2 * (rows if is_delta else columns))
        if odd or kinds < 1:
            return None
        if is_delta:
            decays = (
                self.graph.specs(op.outputs)[0].numel
                for op in map(self.graph.ops.__getitem__, region.ops)
                if op.name.startswith("aten.exp")
            )
            gates = max(decays, default=0) // (self.tokens * heads)
            return DeltaRule(keys=kinds, key_size=rows, value_size=columns, gates=rows if gates == rows else 1, **known)
        return Scan(groups=kinds, size=rows, state=columns, **known)
