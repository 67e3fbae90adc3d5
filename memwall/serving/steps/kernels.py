"""The kernels of a server as functions of the step: what each must do for any batch, context and share of the GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from memwall.core.errors import UsageError
from memwall.core.graph import ITEMSIZE
from memwall.hardware.host import HostWork
from memwall.ops import Cost, served_calls, table_calls
from memwall.ops.experts import SCHEMES as EXPERTS
from memwall.ops.quantised import SCHEMES, in_groups, quantised_product
from memwall.ops.routing import BY_CHANCE, ExpertRouting, loads_of
from memwall.serving.steps.step import EngineStep, Layout

#: scheme of matmuls -> scheme of experts, where it is another
OF_EXPERTS = {"fp8_static": "fp8", "int4_awq": "int4_wo", "mxfp4": "w4a16_mxfp4"}

NO_COST = Cost(launches=())

#: engines that multiply by each weight of a delta rule's input by itself: SGLang up to 0.5.9 (its pull request 20074)
_BY_PART = ("sglang",)

#: rows from this length on take a kernel with a block for each
_NORM_COLUMNS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKernel:
    """One kernel of a step, or a few that follow one another. ``place`` is not part of it: layers are alike.
    ``beside``: it needs nothing of the experts, nor they of it, so that a second stream runs it next to them.
    ``kind`` is what a record calls the class."""

    kind: ClassVar[str]
    beside: bool = False

    def cost(self, step: EngineStep, layout: Layout) -> Cost:
        """What it must do on one GPU."""
        raise NotImplementedError

    def weights_bytes(self, layout: Layout) -> int:
        """Bytes of its weights on one GPU."""
        return 0

    def kv_bytes(self, tokens: int, layout: Layout) -> int:
        """Bytes that one sequence of so many tokens holds in its cache, on one GPU."""
        return 0


def share_of(count: int, parts: int) -> int:
    """The largest share of a count that is divided."""
    return -(-count // parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product(StepKernel):
    """``[rows, k] x [k, n]`` with weights. ``split``: the GPUs share its columns (``column``), its rows (``row``) or
    nothing (``whole``). ``of_sequences``: it has a row for each sequence, not for each token. ``groups``: a row has so
    many parts of ``k`` numbers, each of which makes a part of the ``n`` columns alone."""

    kind: ClassVar[str] = "Product"

    n: int
    k: int
    dtype: str
    split: str = "whole"
    of_sequences: bool = False
    #: the scheme of its weights, empty for none; None: as the layout says
    own: str | None = None
    groups: int = 1
    #: columns of the weights of a recurrence's input, which some engines multiply one by one
    parts: tuple[int, ...] = ()

    def cost(self, step: EngineStep, layout: Layout) -> Cost:
        if self.parts and layout.engine in _BY_PART:
            return sum((replace(self, n=n, parts=()).cost(step, layout) for n in self.parts), NO_COST)
        rows, n, k = step.outputs if self.of_sequences else step.tokens, *self._sizes(layout)
        groups = share_of(self.groups, layout.tp) if self.split == "column" else self.groups
        if scheme := self._scheme(layout):
            return in_groups(quantised_product(rows, n // groups, k, scheme, self.dtype, engine=layout.engine), groups)
        if groups > 1:
            return table_calls.batched_product(groups, rows, n // groups, k, self.dtype)
        return table_calls.product(rows, n, k, self.dtype)

    def weights_bytes(self, layout: Layout) -> int:
        n, k = self._sizes(layout)
        if scheme := self._scheme(layout):
            return SCHEMES[scheme].weights.nbytes(n, k)
        return n * k * ITEMSIZE[self.dtype]

    def _scheme(self, layout: Layout) -> str:
        return layout.weights if self.own is None else self.own

    def _sizes(self, layout: Layout) -> tuple[int, int]:
        n = share_of(self.n, layout.tp) if self.split == "column" else self.n
        return n, share_of(self.k, layout.tp) if self.split == "row" else self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded(StepKernel):
    """A kernel of an encoder, or of the keys of its results: it runs once for each sequence, with its first tokens, on
    ``tokens`` rows."""

    kind: ClassVar[str] = "Encoded"

    kernel: StepKernel
    tokens: int

    @property
    def step(self) -> EngineStep:
        """What it does for one sequence."""
        return EngineStep(0, 0, ((self.tokens, 0),))

    def cost(self, step: EngineStep, layout: Layout) -> Cost:
        return sum((self.kernel.cost(self.step, layout) for _ in range(begun(step))), NO_COST)

    def weights_bytes(self, layout: Layout) -> int:
        return self.kernel.weights_bytes(layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower(StepKernel):
    """The tower that reads a request's images, op by op and whole on each GPU, in the step that begins the request.
    ``costs`` are its kernels with how often each runs, ``issued`` what the host does to issue them."""

    kind: ClassVar[str] = "Encoded"

    costs: tuple[tuple[Cost, int], ...]
    weight_bytes: int
    issued: HostWork

    def cost(self, step: EngineStep, layout: Layout) -> Cost:
        of_one = (cost for cost, n in self.costs for _ in range(n))
        return sum((cost for cost in of_one for _ in range(begun(step))), NO_COST)

    def weights_bytes(self, layout: Layout) -> int:
        return self.weight_bytes * layout.pp  # one stage has it, and each GPU of that whole


def begun(step: EngineStep) -> int:
    """Sequences that a step begins."""
    return sum(not before for _, before in step.prefills)


@dataclass(frozen=True, slots=True, kw_only=True)
class State(StepKernel):
    """The update of a state of constant size: the state is read and written once for each sequence, the rest for each
    token."""

    kind: ClassVar[str] = "State"

    state_bytes: int
    read_bytes: int
    write_bytes: int
    weight_bytes: int

    def cost(self, step: EngineStep, layout: Layout) -> Cost:
        state = step.sequences * self.state_bytes
        read = (state + step.tokens * self.read_bytes + self.weight_bytes) // layout.tp
        write = (state + step.tokens * self.write_bytes) // layout.tp
        return table_calls.stream(read, write, max(write // 4, 1))

    def weights_bytes(self, layout: Layout) -> int:
        return self.weight_bytes // layout.tp

    def kv_bytes(self, tokens: int, layout: Layout) -> int:
        return self.state_bytes // layout.tp


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(StepKernel):
    """The fused layer of a mixture: permute, grouped matmuls, activation, combine. The tokens of a step are of
    all groups."""

    kind: ClassVar[str] = "Experts"

    hidden: int
    inter: int
    count: int
    top_k: int
    gated: bool
    dtype: str
    #: the scheme of its weights, empty for none; None: as the layout says
    own: str | None = None
    #: whether all tokens choose the same, as the trace assumes
    alike: bool = False
    routing: ExpertRouting = BY_CHANCE

    def cost(self, step: EngineStep, layout: Layout) -> Cost:
        return served_calls.experts(
            step.tokens,
            self.hidden,
            self.inter,
            self.top_k,
            self.count,
            tp=max(layout.stage_gpus // layout.ep, 1),
            ep=layout.ep,
            dtype=self._scheme(layout),
            routing=self.routing,
            gated=self.gated,
            engine=layout.experts_engine or layout.engine,
            alike=self.alike,
        )

    def weights_bytes(self, layout: Layout) -> int:
        stored, inter = EXPERTS[self._scheme(layout)].weights, (1 + self.gated) * self.inter
        one = stored.nbytes(inter, self.hidden) + stored.nbytes(self.hidden, self.inter)
        return share_of(self.count + self.routing.copies, layout.ep) * one * layout.ep // layout.stage_gpus

    def imbalance(self, tokens: int, layout: Layout) -> float:
        """Rows of the GPU that has most over the mean of all."""
        if self.routing == BY_CHANCE:
            return 1.0
        loads = loads_of(tokens, self.count, self.top_k, layout.ep, self.routing)
        return sum(rows * experts for rows, experts in loads) * layout.ep / (tokens * self.top_k)

    def _scheme(self, layout: Layout) -> str:
        scheme = layout.experts or layout.weights if self.own is None else self.own
        found = OF_EXPERTS.get(scheme, scheme) or self.dtype
        if found not in EXPERTS:
            raise UsageError(f"no server has kernels of experts in {found}: cast the model first (--dtype bfloat16)")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Between(StepKernel):
    """Element-wise ops and norms between two anchors: bytes of each token, and bytes read once. ``columns``: the row
    that it reduces over; 0 for none. ``shared``: of tensors that the GPUs share."""

    kind: ClassVar[str] = "Between"

    read_bytes: int
    write_bytes: int
    weight_bytes: int
    columns: int
    itemsize: int
    shared: bool
    of_sequences: bool = False

    def cost(self, step: EngineStep, layout: Layout) -> Cost:
        rows, parts = step.outputs if self.of_sequences else step.tokens, layout.tp if self.shared else 1
        read = (rows * self.read_bytes + self.weight_bytes) // parts
        write = rows * self.write_bytes // parts
        if self.columns >= _NORM_COLUMNS:
            return table_calls.row_kernel("block_norm", rows, self.columns, self.itemsize, read, write)
        return table_calls.stream(read, write, max(write // self.itemsize, 1))

    def weights_bytes(self, layout: Layout) -> int:
        return self.weight_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(StepKernel):
    """A message between the GPUs of an engine: ``width`` bytes for each token, or for each sequence."""

    kind: ClassVar[str] = "Collective"

    op: str
    width: int
    of_sequences: bool = False

    def cost(self, step: EngineStep, layout: Layout) -> Cost:
        return NO_COST

    def message_bytes(self, step: EngineStep) -> int:
        """Bytes of the message, as nccl-tests define its size."""
        return self.width * (step.outputs if self.of_sequences else step.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling(StepKernel):
    """The next token from the logits: their float32 form, its largest, and a sum over it."""

    kind: ClassVar[str] = "Sampling"

    vocabulary: int

    def cost(self, step: EngineStep, layout: Layout) -> Cost:
        count = step.outputs * self.vocabulary
        return table_calls.stream(6 * count, 4 * count, count)
