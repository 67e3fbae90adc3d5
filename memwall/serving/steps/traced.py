"""What a traced step says of itself: how many tokens of which sequences it takes; what its regions read and write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from memwall.core.errors import UsageError
from memwall.core.flow import Flow
from memwall.core.graph import Graph, Op, Value, distinct_bytes
from memwall.serving.steps.regions import CACHES, Region, regions
from memwall.serving.steps.step import EngineStep

_FIXED = ("parameter", "buffer")


class TracedStep:
    """One traced step, a decode or a prefill."""

    def __init__(self, graph: Graph, stored: Callable[[str], str | None] = lambda path: None, context: int = 0) -> None:
        """``stored`` names the scheme of a module's weights: empty where they stay as they are, None where they are as
        the layout says, but for the head and routers; ``context`` says how many tokens were before the step, where
        windows hold fewer.

        Raises:
        UsageError: the graph is no step of a language model.
        """
        self.graph, self.flow, self.stored, self.context = graph, Flow.of(graph), stored, context
        self.regions = regions(graph, self.flow)
        if not any(region.kind in ("attention", "state") for region in self.regions):
            if any(storage.role == "kv_cache" for storage in graph.storages):
                raise UsageError(
                    "no attention and no state that a server has kernels for is found in the step; memwall"
                    " profile --mode decode models it as the model runs it"
                )
            raise UsageError("the server policy is of steps with a cache; profile with --mode prefill or --mode decode")
        self.encodes = False
        #: regions of whose results each GPU has a share, and a summand
        self._sharded: set[int] = set()
        self._partial: set[int] = set()
        #: storages of results that kernels of states write in two bytes, whatever the model does
        self._halved: set[int] = set()
        #: matmuls that read shares
        self._of_shares: set[int] = set()

    @cached_property
    def step(self) -> EngineStep:
        """The step that was traced."""
        batch, new = self._shape
        own = [region for region in self._of("attention") if not self._is_cross(region)]
        entries = (self._entries(region) * self._ratio(region.place) for region in own)
        before = max([self.context, *(cached for _, cached in map(self._cached, own)), *entries])
        if new == 1 and before:
            return EngineStep(batch, batch * before)
        return EngineStep(0, 0, ((new, before),) * batch)

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

    def _of(self, kind: str) -> Iterator[Region]:
        return (region for region in self.regions if region.kind == kind)

    def outside(self, region: Region) -> tuple[list[Value], list[Value]]:
        """The values that a region reads of others, and values that others, or the caller, read of it."""
        inside, values, flow = set(region.ops), self.graph.values, self.flow
        read = {v: values[i] for op in region.ops for i, v in flow.reads[op] if flow.writer[v] not in inside}
        views = {(value.storage, value.offset, value.spec): value for value in read.values()}
        views |= {
            (values[i].storage, values[i].offset, values[i].spec): values[i]
            for op in region.ops
            for i, v in flow.reads[op]
            if flow.writer[v] not in inside
        }
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

    def _core(self, region: Region) -> tuple[Value, Value, int]:
        """The queries, the result, and the bytes of a number of attention."""
        values = self.graph.values
        cores = [
            op
            for op in (self.graph.ops[i] for i in region.ops)
            if op.op_class == "attention" or (op.op_class == "contraction" and "bmm" in op.name)
        ]
        if not cores:
            raise UsageError(
                f"the attention of {region.place} is of no kind that the server policy models: it has no matmul of"
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
            value.storage: value.spec.shape[2]
            for value in self.outside(region)[0]
            if self.graph.storages[value.storage].role in CACHES and len(value.spec.shape) == 4
        }
        lengths = list(held.values())
        return next((length for length in lengths if length != lengths[0]), 0)

    def _pairs(self, place: str) -> list[Region]:
        """The pairs of matmuls of a module and of modules below, of values and their weights, of which entries are
        made."""
        return [r for r in self._of("product") if f"{r.place}.".startswith(f"{place}.") and len(r.ops) == 2]

    def _ratio(self, place: str) -> int:
        """Tokens that an entry stands for: each has a bias of its own in the module that makes it; 0: none does."""
        inside = {region.place for region in self._pairs(place)}
        biases = [
            self.graph.values[i].spec.shape
            for i in self.graph.parameters
            if self.graph.storages[self.graph.values[i].storage].name.rpartition(".")[0] in inside
        ]
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

    def _top_k(self, region: Region) -> Op | None:
        """The last choice of a region."""
        ops = (self.graph.ops[i] for i in reversed(region.ops))
        return next((op for op in ops if op.name.startswith("aten.topk")), None)

    def _choice(self, region: Region) -> int:
        """How many the last choice of a region takes; 0 without one."""
        choice = self._top_k(region)
        return 0 if choice is None else self.graph.specs(choice.outputs)[0].shape[-1]
