"""Kernels of a server × GPU × layout → seconds of any engine step (:class:`~memwall.serving.simulation.engine.Steps`).

A kernel's time is the model's of a single one, in a CUDA graph; activations that the kernel before wrote are read from
L2 as far as they fit. Times are linear between nodes of a step's tokens and of its contexts, 32 to an octave, of which
each is evaluated once; numbers below 64 are exact. Groups with sequences of their own advance together, as their
experts wait for all, and stages of a pipeline work on as many parts of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from memwall.core.errors import UsageError
from memwall.hardware.engine import EngineHost
from memwall.hardware.links import LIBRARIES, Cluster
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.perfmodel.base import kept_share
from memwall.perfmodel.collectives import CUSTOM_BYTES, collective_s
from memwall.perfmodel.roofline import Prediction, predict_cost
from memwall.serving.simulation.engine import CAPTURED, between
from memwall.serving.steps.attention import Attention, Compressed, Index, Latent
from memwall.serving.steps.kernels import (
    Between,
    Collective,
    Encoded,
    Experts,
    Product,
    State,
    StepKernel,
    Tower,
    begun,
)
from memwall.serving.steps.plan import ServedKernels, of_head
from memwall.serving.steps.step import EngineStep, Layout
from memwall.serving.tower import as_attended

#: share of a GPU's memory that a server takes (vLLM's ``gpu_memory_utilization``)
UTILIZATION = 0.9
#: tokens and sequences of a step for whose activations memory is reserved, and bytes of CUDA's context, graphs and
#: NCCL's buffers
_BUDGET_TOKENS, _BUDGET_SEQUENCES, _CONTEXT_BYTES = 8192, 256, 2 << 30
#: bytes of a number of a row between layers
_ROW_ITEMSIZE = 2
#: kernels that read the cache
CACHED = (Attention, Compressed, Latent, Index)
#: most tokens of a step in which shared experts run on a second stream next to the others (vLLM's
#: ``VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD``; SGLang and TensorRT-LLM do so in CUDA graphs)
_STREAM_TOKENS = 256
#: bits of the nodes between which times are linear
_NODE_BITS = 6
#: what a node counts -> the kernels whose time it is, where that has another name
_KINDS = {"decodes": "cache", "prompt": "cache"}


def _depends_on(kernel: StepKernel) -> str:
    """What the time of a kernel depends on: the cache, a state and tokens, or the number of sequences or of tokens."""
    if isinstance(kernel, CACHED):
        return "cache"
    if isinstance(kernel, State):
        return "state"
    if isinstance(kernel, (Encoded, Tower)):
        return "encoder"
    if isinstance(kernel, Experts) or kernel.beside:
        return "experts" if isinstance(kernel, Experts) else "beside"
    return "sequences" if of_head(kernel) else "tokens"


@dataclass
class GpuSteps:
    """The steps of a model on the GPUs of one engine. ``host`` is the engine's CPU; memory is reserved for activations
    of ``most_tokens`` of a step and as many sequences; ``utilization`` is a share of all memory, of what weights and
    cache take (``static``), or of what weights and buffers leave for the cache (``free``). The slowest GPU runs its
    kernels at the share ``straggler`` of its speed, and the others wait for it."""

    served: ServedKernels
    gpu: Gpu
    layout: Layout = field(default_factory=Layout)
    cluster: Cluster | None = None
    utilization: float = UTILIZATION
    host: EngineHost = field(default_factory=lambda: EngineHost(""))
    max_context: int | None = None
    #: the largest step of decodes that a CUDA graph holds; 0: none holds any step
    captured: int = CAPTURED[-1]
    most_tokens: int = _BUDGET_TOKENS
    most_sequences: int = _BUDGET_SEQUENCES
    utilization_of: str = "all"
    straggler: float = 1.0
    #: whether CUDA graphs hold what lies between the kernels that read a cache or a state, each of which then waits for
    #: the CPU: 48 of a mixture made 4.07 requests per second of 5.98 (vLLM's pull request 25444, on an H100)
    attention_apart: bool = False
    _known: dict[tuple[str, int, int, int], float] = field(default_factory=dict)
    _walls: dict[tuple[object, ...], dict[str, float]] = field(default_factory=dict)
    _predicted: dict[tuple[int, EngineStep], Prediction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.layout.gpus > 1 and self.cluster is None:
            raise UsageError(f"{self.layout.gpus} GPUs of {self.gpu.name} share a model over a link: name the cluster")

    def guessing(self, served: ServedKernels | None = None, layout: Layout | None = None) -> GpuSteps:
        """The steps of what guesses tokens in the same CUDA graph: the model's own module, or another model."""
        return GpuSteps(
            served or self.served.guessing(),
            self.gpu,
            layout or self.layout,
            self.cluster,
            self.utilization,
            host=self.host.of_draft,
            straggler=self.straggler,
        )

    @cached_property
    def weights_bytes(self) -> int:
        """Bytes of the weights on one GPU."""
        return self.served.weights_bytes(self.layout)

    @cached_property
    def reserved_bytes(self) -> int:
        """Bytes of activations, graphs and buffers."""
        if self.served.within:
            return 0
        rows = (kernel for kernel, _ in self.served.kernels if isinstance(kernel, Between))
        held = (
            (self.most_sequences if row.of_sequences else self.most_tokens)
            * (row.read_bytes + row.write_bytes)
            // (self.layout.tp if row.shared else 1)
            for row in rows
        )
        return _CONTEXT_BYTES + max(held, default=0)

    @cached_property
    def capacity_bytes(self) -> int:
        """Bytes of a GPU that the server takes."""
        share, static = self.utilization, self.weights_bytes + self.reserved_bytes
        if self.utilization_of == "static":
            return int(self.gpu.dram_bytes * share) + self.reserved_bytes
        if self.utilization_of == "free":
            return static + int((self.gpu.dram_bytes - static) * share)
        return int(self.gpu.dram_bytes * share)

    def kv_bytes(self, tokens: int) -> int:
        """Bytes on one GPU of the cache of a sequence, on average over the groups of which one holds it."""
        return self.served.kv_bytes(tokens, self.layout) // self.layout.dp

    def step_s(
        self, decodes: int, context_tokens: int, prefills: Sequence[tuple[int, int]] = (), verified: int = 1
    ) -> float:
        """Seconds of a step."""
        step = EngineStep(decodes, context_tokens, tuple(prefills), verified)
        own = self._own(step)
        kernels_s = self.host.kernels_factor * self._kernels_s(step, own)
        return self._host_s(step.sequences, own) + max(kernels_s, self._issued_s(own))

    def decodes(self, batches: Sequence[int], contexts: Sequence[int]) -> tuple[list[float], list[str]]:
        """Seconds and walls of many steps, in each of which so many sequences with so long a cache make a token: in
        bulk what :meth:`step_s` and :meth:`wall` say of each."""
        times, walls, fixed = [], [], dict[int, tuple[int, float, float, float, dict[str, float]]]()
        for batch, context in zip(batches, contexts, strict=True):
            if batch not in fixed:
                step = EngineStep(batch, batch * context)
                own = self._own(step)
                host_s, issued_s = self._host_s(batch, own), self._issued_s(own)
                fixed[batch] = own.decodes, self._batch_s(step, own), host_s, issued_s, self._walls_of(step)
            decodes, batch_s, host_s, issued_s, taken = fixed[batch]
            kernels_s = self.host.kernels_factor * (batch_s + self._cached_s(decodes, context))
            times.append(host_s + max(kernels_s, issued_s))
            walls.append(self._largest(taken, EngineStep(decodes, decodes * context)))
        return times, walls

    def waits_for_cpu(self, step: EngineStep) -> bool:
        """Whether the engine's CPU takes longer to launch the kernels of a step than the GPU to run them."""
        own = self._own(step)
        return self._issued_s(own) > self.host.kernels_factor * self._kernels_s(step, own)

    def _host_s(self, sequences: int, own: EngineStep) -> float:
        """Seconds of the CPU that no kernel hides, also to go from one CUDA graph of a step to the next."""
        apart = self._launches_apart if self.attention_apart and not self._is_uncaptured(own) else 0
        return self.host.step_s + self.host.sequence_s * sequences + self.host.launch_s * apart

    def _issued_s(self, own: EngineStep) -> float:
        """Seconds of the CPU for the kernels of a step that no CUDA graph holds."""
        return self._launches[bool(own.prefills)] * self.host.launch_s if self._is_uncaptured(own) else 0.0

    def _is_uncaptured(self, own: EngineStep) -> bool:
        """Whether no CUDA graph holds a step."""
        return own.tokens > (CAPTURED[-1] if own.prefills and self.captured else self.captured)

    @cached_property
    def _launches(self) -> tuple[int, int]:
        """Kernels of a step of decodes, and of one with prompts, for which a recurrence has more of them."""
        decode, prompt = EngineStep(1, 1), EngineStep(0, 0, ((1, 0),))
        others = sum(n * self._launched(each, decode) for each, n in self.served.kernels if not isinstance(each, State))
        states = [(each, n) for each, n in self.served.kernels if isinstance(each, State)]
        decodes, prompts = (
            others + sum(n * self._launched(each, step) for each, n in states) for step in (decode, prompt)
        )
        return decodes, prompts

    def _launched(self, kernel: StepKernel, step: EngineStep) -> int:
        launches = kernel.cost(step, self.layout).launches
        return sum(launch.count for launch in launches) if isinstance(kernel, State) else max(len(launches), 1)

    @cached_property
    def _launches_apart(self) -> int:
        """Kernels of a step between which its CUDA graphs lie."""
        return sum(n for kernel, n in self.served.kernels if isinstance(kernel, (*CACHED, State)))

    def _kernels_s(self, step: EngineStep, own: EngineStep) -> float:
        """Seconds of the kernels of a step, of which a group does its own."""
        total_s = self._uncached_s(step, own) if step.prefills else self._batch_s(step, own)
        if step.decodes:
            total_s += self._cached_s(own.decodes, step.context_tokens / step.decodes, own.verified)
        return total_s + sum(map(self._prompt_s, own.prefills))

    def _batch_s(self, step: EngineStep, own: EngineStep) -> float:
        """Seconds of what reads no cache in a step of decodes alone."""
        key = "batch", step.decodes, 0, step.verified
        if key not in self._known:
            self._known[key] = self._uncached_s(step, own)
        return self._known[key]

    def _cached_s(self, decodes: int, context: float, verified: int = 1) -> float:
        """Seconds of what reads the caches of decodes."""
        each = between(context, _NODE_BITS)
        return sum(share * self._node_s("decodes", decodes, keys, verified) for keys, share in each)

    def _uncached_s(self, step: EngineStep, own: EngineStep) -> float:
        """Seconds of what reads no cache of a sequence."""
        total_s = self._sum_s("state", own) + self._sent_s(own) + begun(own) * self._encoder_s
        total_s += self._at("tokens", own.tokens) + self._at("sequences", own.outputs)
        experts_s, beside_s = self._at("experts", self._of_stage(step)), self._at("beside", own.tokens)
        return total_s + (max(experts_s, beside_s) if own.tokens <= _STREAM_TOKENS else experts_s + beside_s)

    def _at(self, kind: str, count: int) -> float:
        """Seconds of the kernels of a kind, between nodes."""
        return sum(share * self._node_s(kind, rows) for rows, share in between(count, _NODE_BITS))

    def _own(self, step: EngineStep) -> EngineStep:
        """What the fullest group does of a step, in one of the parts that are in the pipeline."""
        return step.fullest(self.layout.dp * self.layout.pp)

    def _of_stage(self, step: EngineStep) -> int:
        """Tokens of all groups in one of the parts that are in the pipeline."""
        return step.fullest(self.layout.pp).tokens

    def _sent_s(self, own: EngineStep) -> float:
        """Seconds in which stages send tokens to the next."""
        if self.layout.pp == 1:
            return 0.0
        assert self.cluster is not None
        return (self.layout.pp - 1) * _sent("send_recv", self._width * own.tokens, self.layout.gpus, self.cluster)

    @cached_property
    def _encoder_s(self) -> float:
        """Seconds of the encoder for one sequence."""
        return self._sum_s("encoder", EngineStep(0, 0, ((1, 0),)))

    @property
    def tower_s(self) -> float:
        """Seconds of the tower for the images of one request, 0 without images."""
        return sum(self._tower_s(kernel) for kernel, _ in self.served.kernels if isinstance(kernel, Tower))

    def _prompt_s(self, prefill: tuple[int, int]) -> float:
        """Seconds of what reads the cache for one prompt."""
        new, before = (between(tokens, _NODE_BITS) for tokens in prefill)
        return sum(a * b * self._node_s("prompt", queries, keys) for queries, a in new for keys, b in before)

    def _node_s(self, kind: str, count: int, keys: int = 0, verified: int = 1) -> float:
        """Seconds of the kernels of a kind for so many tokens or sequences."""
        key = kind, count, keys, verified
        if key not in self._known:
            step = (
                EngineStep(0, 0, ((count, keys),))
                if kind == "prompt"
                else EngineStep(count, count * keys, (), verified)
            )
            self._known[key] = self._sum_s(_KINDS.get(kind, kind), step)
        return self._known[key]

    def _sum_s(self, kind: str, step: EngineStep) -> float:
        return sum(n * self.kernel_s(kernel, step) for kernel, n in self._of.get(kind, ()))

    @cached_property
    def _of(self) -> dict[str, list[tuple[StepKernel, int]]]:
        """The kernels by what their time depends on."""
        kinds = {_depends_on(kernel) for kernel, _ in self.served.kernels}
        return {kind: [each for each in self.served.kernels if _depends_on(each[0]) == kind] for kind in kinds}

    def kernel_s(self, kernel: StepKernel, step: EngineStep) -> float:
        """Seconds of one kernel for what one group does; experts have the tokens of all groups."""
        if isinstance(kernel, Encoded):
            return begun(step) * self.kernel_s(kernel.kernel, kernel.step)
        if isinstance(kernel, Tower):
            return begun(step) * self._tower_s(kernel)
        if isinstance(kernel, Collective):
            return self._message_s(kernel, step)
        if not step.tokens:
            return 0.0
        found = self.prediction(kernel, step)
        own_s = found.memory_s if self._is_fused(kernel, step) else found.time_s
        return own_s / self.straggler + self._waited_s(kernel, step)

    def _tower_s(self, tower: Tower) -> float:
        """Seconds of a tower for the images of one request: no CUDA graph holds it, and the host issues each op."""
        ran = sum(n * found.time_s for found, n in self.of_tower(tower))
        return max(ran / self.straggler, self.gpu.host.issue_s(tower.issued))

    def of_tower(self, tower: Tower) -> Iterator[tuple[Prediction, int]]:
        """The kernels of a tower, and how often each runs."""
        for cost, n in tower.costs:
            yield _priced(as_attended(cost, self.gpu, self.layout.engine), self.gpu, 0), n

    def _waited_s(self, kernel: StepKernel, step: EngineStep) -> float:
        """Seconds of messages that belong to a kernel."""
        if isinstance(kernel, Experts) and self.layout.dp > 1 and step.tokens:
            return self._exchanged_s(kernel, step)
        return 0.0

    def _is_fused(self, kernel: StepKernel, step: EngineStep) -> bool:
        """Whether it is the sum and norm of rows that an all-reduce of the engine's own makes, which does them too:
        FlashInfer's and TensorRT-LLM's ``allreduce_fusion``."""
        if self.layout.tp == 1 or not isinstance(kernel, Between) or kernel.shared or kernel.of_sequences:
            return False
        width = kernel.columns * _ROW_ITEMSIZE
        return width == self._width and width * step.tokens <= CUSTOM_BYTES

    @cached_property
    def _width(self) -> int:
        """Bytes of a row between layers."""
        return max(
            (
                kernel.width
                for kernel, _ in self.served.kernels
                if isinstance(kernel, Collective) and kernel.op == "all_reduce"
            ),
            default=0,
        )

    def each(self, step: EngineStep) -> Iterator[tuple[StepKernel, int, EngineStep]]:
        """The kernels with what each does of a step."""
        own, of_stage = self._own(step), EngineStep(self._of_stage(step), 0)
        for kernel, n in self.served.kernels:
            yield kernel, n, of_stage if isinstance(kernel, Experts) else own

    def by_kind(self, step: EngineStep) -> dict[str, float]:
        """Seconds of a step by the class of its kernels; messages that belong to a kernel are ``Collective``."""
        taken: dict[str, float] = {}
        for kernel, n, own in self.each(step):
            name, waited_s = kernel.kind, self._waited_s(kernel, own)
            taken[name] = taken.get(name, 0.0) + n * (self.kernel_s(kernel, own) - waited_s)
            if waited_s:
                taken[Collective.kind] = taken.get(Collective.kind, 0.0) + n * waited_s
        return taken

    def wall(self, step: EngineStep) -> str:
        """What most of a step's time waits for: a wall of the kernels, or ``link``."""
        return self._largest(self._walls_of(step), self._own(step))

    def _largest(self, taken: Mapping[str, float], own: EngineStep) -> str:
        """The wall with the most seconds, of so many without the kernels that read a cache."""
        every = {**taken}
        for kernel, n in self._of.get("cache", ()):
            found = self.prediction(kernel, own)
            wall = found.limited_by
            every[wall] = every.get(wall, 0.0) + n * found.time_s / self.straggler
        return max(every, key=every.__getitem__)

    def _walls_of(self, step: EngineStep) -> dict[str, float]:
        """Seconds by wall of the kernels that read no cache, known after the first time."""
        key = step.decodes, step.prefills, step.verified
        if key not in self._walls:
            self._walls[key] = self._by_wall(step)
        return self._walls[key]

    def _by_wall(self, step: EngineStep) -> dict[str, float]:
        """Seconds by wall of the kernels that read no cache."""
        taken: dict[str, float] = {}
        for kernel, n, each in self.each(step):
            own = EngineStep(each.decodes, 0, each.prefills, each.verified)
            if isinstance(kernel, Collective):
                taken["link"] = taken.get("link", 0.0) + n * self._message_s(kernel, own)
            elif not isinstance(kernel, (*CACHED, Encoded, Tower)):  # an encoder is of no decode
                found = self.prediction(kernel, own)
                taken[found.limited_by] = taken.get(found.limited_by, 0.0) + n * found.time_s / self.straggler
                taken["link"] = taken.get("link", 0.0) + n * self._waited_s(kernel, own)
        return taken

    def prediction(self, kernel: StepKernel, step: EngineStep) -> Prediction:
        """The time of a kernel by its terms; no collective."""
        if isinstance(kernel, Attention):
            return _attention(kernel, self.layout.tp, self.layout.kv, self.gpu, step)
        key = id(kernel), step
        if key not in self._predicted:
            cost, is_row = kernel.cost(step, self.layout), isinstance(kernel, (Product, Between))
            written = cost.read_bytes - kernel.weights_bytes(self.layout) if is_row else 0
            resident = int(written * kept_share(self.gpu, cost.write_bytes + written))
            self._predicted[key] = _priced(cost, self.gpu, resident)
        return self._predicted[key]

    def _exchanged_s(self, kernel: Experts, step: EngineStep) -> float:
        """Seconds in which groups with sequences of their own send tokens to experts and get results back: all tokens
        to all GPUs, or each to GPUs that have its experts, whichever takes less."""
        assert self.cluster is not None
        workers, ep = self.layout.stage_gpus, self.layout.ep
        nbytes = 2 * kernel.hidden * step.tokens
        to_all = (_sent(op, nbytes, workers, self.cluster) for op in ("all_gather", "reduce_scatter"))
        if ep < workers:
            return sum(to_all)
        own_bytes = nbytes / workers * min(kernel.top_k, ep) * kernel.imbalance(step.tokens, self.layout)
        return min(sum(to_all), 2 * _sent("all_to_all", own_bytes, workers, self.cluster))

    def _message_s(self, kernel: Collective, step: EngineStep) -> float:
        if self.layout.tp == 1 or not step.tokens:
            return 0.0
        assert self.cluster is not None
        nbytes = kernel.message_bytes(step)
        library = self.layout.engine if self.layout.engine in LIBRARIES else "custom"
        return _sent(kernel.op, nbytes, self.layout.tp, self.cluster, library)


# What many models, schemes of weights and layouts share.


@lru_cache(maxsize=1 << 14)
def _sent(op: str, nbytes: float, workers: int, cluster: Cluster, library: str = "nccl") -> float:
    """Seconds of a collective."""
    return collective_s(op, nbytes, workers, cluster, library=library).time_s


@lru_cache(maxsize=1 << 15)
def _priced(cost: Cost, gpu: Gpu, resident_bytes: int) -> Prediction:
    """The time of a kernel."""
    return predict_cost(cost, gpu, resident_bytes, "graph")


@lru_cache(maxsize=1 << 16)
def _attention(kernel: Attention, tp: int, kv: str, gpu: Gpu, step: EngineStep) -> Prediction:
    """The time of attention."""
    return predict_cost(kernel.cost(step, Layout(tp=tp, kv=kv)), gpu, 0, "graph")
