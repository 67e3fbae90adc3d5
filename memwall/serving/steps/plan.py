"""A traced step → its plan under the ``server`` policy, and its kernels for any other step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from memwall.core.graph import Graph
from memwall.fusion.plan import Group, Plan, not_run
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.serving.steps.kernels import Encoded, Experts, Product, Sampling, StepKernel
from memwall.serving.steps.reading import Reader, ReadRegion, sampling
from memwall.serving.steps.step import Layout

#: the layer of a module by its name: ``model.layers.3`` of ``model.layers.3.mlp.experts``
_LAYER = re.compile(r".*?\b\d+\b")
#: tokens whose cache tells layers that keep all of them from others
_LONG = 1 << 20
#: what a region's kernel is called in reports
_NAMES = {
    "product": "fused product", "attention": "paged attention", "state": "state update", "experts": "fused experts",
    "between": "fused element-wise", "index": "sparse index",
}  # fmt: skip


def server_plan(
    graph: Graph, costs: Sequence[Cost], gpu: Gpu | None = None, regions: Sequence[int] | None = None
) -> Plan:
    """One group for each kernel of a server, on one GPU; prepared ops do not run.

    Raises:
        UsageError: the graph is no step with a cache.
    """
    reader = Reader(graph)
    step, layout = reader.step, Layout()
    groups = [not_run(region.ops) for region in reader.regions if region.kind == "prepared" and region.ops]
    for read in reader.read():
        region = read.region
        reads, writes = ([value.id for value in values] for values in reader.outside(region))
        name = _NAMES[region.kind] if len(region.ops) > 1 else ""
        groups.append(Group(tuple(region.ops), tuple(reads), tuple(writes), read.kernel.cost(step, layout), name=name))
    return Plan("server", tuple(groups))


@dataclass(frozen=True)
class ServedKernels:
    """The kernels of a model on a server, with how many of each a step runs. ``other_bytes`` are weights that no kernel
    reads whole: tables of embeddings. ``layer``: kernels of the last layer that keeps a whole cache. ``within``: it
    is a module of another model, whose head and buffers it shares."""

    kernels: tuple[tuple[StepKernel, int], ...]
    other_bytes: int
    layer: tuple[StepKernel, ...] = ()
    within: bool = False

    def weights_bytes(self, layout: Layout) -> int:
        """Bytes of the weights on one GPU."""
        held = ((kernel, n) for kernel, n in self.kernels if not (self.within and of_head(kernel)))
        own = self.other_bytes // layout.tp + sum(n * kernel.weights_bytes(layout) for kernel, n in held)
        return own // layout.pp

    def kv_bytes(self, tokens: int, layout: Layout) -> int:
        """Bytes on one GPU of the cache of a sequence of so many tokens."""
        return sum(n * kernel.kv_bytes(tokens, layout) for kernel, n in self.kernels) // layout.pp

    def guessing(self) -> ServedKernels:
        """A module that guesses the token after the next one (DeepSeek-V3's MTP): a layer like the model's last, and
        its head. The matmul that joins the two inputs of its layer is left out."""
        head = ((kernel, n) for kernel, n in self.kernels if of_head(kernel))
        return ServedKernels((*Counter(self.layer).items(), *head), 0, within=True)

    def token_bytes(self, tokens: int, layout: Layout) -> int:
        """Bytes on one GPU that one more token adds to that, on average over the tokens that one entry stands for."""
        every = max((getattr(kernel, "ratio", 1) for kernel, _ in self.kernels), default=1) or 1
        return (self.kv_bytes(tokens + every, layout) - self.kv_bytes(tokens, layout)) // every


def of_head(kernel: StepKernel) -> bool:
    """Whether it runs once for each row of logits."""
    return isinstance(kernel, Sampling) or bool(getattr(kernel, "of_sequences", False))


def served(
    graph: Graph, stored: Callable[[str], str | None] = lambda path: None, context: int = 0, prompt: Graph | None = None
) -> ServedKernels:
    """The kernels of a model, from one decode step; ``stored`` and ``context`` as of :class:`Reader`. Of a model with
    an encoder that is in the step of a ``prompt``.

    Raises:
        UsageError: the graph is no step with a cache.
    """
    reader = Reader(graph, stored, context)
    reads = reader.read()
    alone = _independent(reader)
    kernels: Counter[StepKernel] = Counter()
    layers: dict[str, list[StepKernel]] = {}
    for read in reads:
        if reader.casts_logits(read.region):
            continue
        kernel = _as_run(read.kernel, reads)
        own = (*read.before, replace(kernel, beside=id(read.region) in alone), *read.after)
        kernels.update(own)
        if found := _LAYER.match(graph.ops[read.region.ops[0]].module):
            layers.setdefault(found[0], []).extend(own)
    kernels.update(sampling(graph))
    if prompt is not None:
        first = Reader(prompt, stored).read()
        kernels.update(
            kernel
            for read in first
            for kernel in (*read.before, read.kernel, *read.after)
            if isinstance(kernel, Encoded)
        )
    read_bytes = sum(n * _built(kernel).weights_bytes(Layout()) for kernel, n in kernels.items())
    held_bytes = sum(storage.nbytes for storage in graph.storages if storage.role == "parameter")
    return ServedKernels(tuple(kernels.items()), max(held_bytes - read_bytes, 0), _last(list(layers.values())))


def _last(layers: Sequence[Sequence[StepKernel]]) -> tuple[StepKernel, ...]:
    """The kernels of the last layer that keeps a whole cache; where others keep none, as their experts are layers of
    their own, with the kernels of the last of these."""
    if not layers:
        return ()
    kept = [sum(kernel.kv_bytes(_LONG, Layout()) for kernel in layer) for layer in layers]
    chosen = [max(i for i, kept_bytes in enumerate(kept) if kept_bytes == max(kept))]
    chosen += [i for i, kept_bytes in enumerate(kept) if not kept_bytes][-1:]
    return tuple(kernel for i in chosen for kernel in layers[i])


def _built(kernel: StepKernel) -> StepKernel:
    """A kernel with its weights as they were traced."""
    if isinstance(kernel, Encoded):
        return replace(kernel, kernel=_built(kernel.kernel))
    return replace(kernel, own=None) if isinstance(kernel, (Product, Experts)) else kernel


def _independent(reader: Reader) -> set[int]:
    """Regions that need nothing of a layer's experts, nor they of them: shared experts."""
    before, known = [sum(1 << j for j in region.reads) for region in reader.regions], list[int]()
    while before != known:
        known = list(before)
        for i, region in enumerate(reader.regions):
            before[i] = reduce(or_, (before[j] for j in region.reads), before[i])
    found = set()
    experts = [i for i, region in enumerate(reader.regions) if region.kind == "experts"]
    for i, region in enumerate(reader.regions):
        if region.kind in ("product", "between") and any(not (before[i] >> e | before[e] >> i) & 1 for e in experts):
            found.add(id(region))
    return found


def _as_run(kernel: StepKernel, reads: Iterable[ReadRegion]) -> StepKernel:
    """A router that the model runs in float32 multiplies in the dtype of its experts, as servers do."""
    experts = next((read.kernel for read in reads if isinstance(read.kernel, Experts)), None)
    if experts and isinstance(kernel, Product) and kernel.dtype == "float32" and kernel.n == experts.count:
        return replace(kernel, dtype=experts.dtype)
    return kernel
