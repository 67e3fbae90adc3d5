"""Kernels of a server × GPU × layout → seconds of any engine step (:class:`~memwall.simulate.serving.engine.Steps`).

A kernel's time is the model's of a single one, in a CUDA graph; activations that the kernel before wrote are read from
L2 as far as they fit. What depends on the number of tokens alone is evaluated once for each number, what reads a cache
for each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from memwall.core.errors import UsageError
from memwall.fusion.server.kernels import (
    Attention,
    Between,
    Collective,
    Experts,
    Index,
    Kernel,
    Latent,
    Layout,
    Product,
    Step,
)  # fmt: skip
from memwall.fusion.server.plan import Served
from memwall.hardware.cluster import Cluster
from memwall.hardware.lookup import Gpu
from memwall.perfmodel.base import kept_share
from memwall.perfmodel.collectives import collective_s
from memwall.perfmodel.roofline import Prediction, predict_cost

#: share of a GPU's memory that a server takes (vLLM's ``gpu_memory_utilization``)
UTILIZATION = 0.9
#: tokens of a step for whose activations memory is reserved, and bytes of CUDA's context, graphs and NCCL's buffers
_BUDGET_TOKENS, _CONTEXT_BYTES = 8192, 2 << 30
#: kernels that read the cache
_CACHED = (Attention, Latent, Index)


@dataclass
class GpuSteps:
    """The steps of a model on the GPUs of one engine. ``host_s`` is what the engine's CPU adds to each step."""

    served: Served
    gpu: Gpu
    layout: Layout = field(default_factory=Layout)
    cluster: Cluster | None = None
    utilization: float = UTILIZATION
    host_s: float = 0.0
    max_context: int | None = None
    _known: dict[tuple[int, int], float] = field(default_factory=dict)
    _prompts: dict[tuple[int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.layout.tp > 1 and self.cluster is None:
            raise UsageError(f"{self.layout.tp} GPUs of {self.gpu.name} share a model over a link: name the cluster")

    @cached_property
    def weights_bytes(self) -> int:
        """Bytes of the weights on one GPU."""
        return self.served.weights_bytes(self.layout)

    @cached_property
    def reserved_bytes(self) -> int:
        """Bytes of activations, graphs and buffers."""
        rows = (kernel for kernel, _ in self.served.kernels if isinstance(kernel, Between))
        return _CONTEXT_BYTES + _BUDGET_TOKENS * max((row.read_bytes + row.write_bytes for row in rows), default=0)

    @cached_property
    def capacity_bytes(self) -> int:
        """Bytes of a GPU that the server takes."""
        return int(self.gpu.dram_bytes * self.utilization)

    def kv_bytes(self, tokens: int) -> int:
        """Bytes on one GPU of the cache of a sequence."""
        return self.served.kv_bytes(tokens, self.layout)

    def step_s(self, decodes: int, context_tokens: int, prefills: Sequence[tuple[int, int]] = ()) -> float:
        """Seconds of a step."""
        step = Step(decodes, context_tokens, tuple(prefills))
        decoded_s = self._cached_s(Step(decodes, context_tokens)) if decodes else 0.0
        return self.host_s + self._rows_s(step) + decoded_s + sum(self._prompt_s(prefill) for prefill in step.prefills)

    def _prompt_s(self, prefill: tuple[int, int]) -> float:
        """Seconds of what reads the cache for one prompt, most of which are alike."""
        if prefill not in self._prompts:
            self._prompts[prefill] = self._cached_s(Step(0, 0, (prefill,)))
        return self._prompts[prefill]

    def _cached_s(self, step: Step) -> float:
        """Seconds of the kernels that read a cache."""
        cached = ((kernel, n) for kernel, n in self.served.kernels if isinstance(kernel, _CACHED))
        return sum(n * self.kernel_s(kernel, step) for kernel, n in cached)

    def _rows_s(self, step: Step) -> float:
        """Seconds of the kernels that read no cache."""
        key = step.tokens, step.sequences
        if key not in self._known:
            rows = ((kernel, n) for kernel, n in self.served.kernels if not isinstance(kernel, _CACHED))
            self._known[key] = sum(n * self.kernel_s(kernel, step) for kernel, n in rows)
        return self._known[key]

    def kernel_s(self, kernel: Kernel, step: Step) -> float:
        """Seconds of one kernel."""
        if isinstance(kernel, Collective):
            return self._message_s(kernel, step)
        if not step.tokens:
            return 0.0
        exchanged_s = self._exchanged_s(kernel, step) if isinstance(kernel, Experts) and self.layout.dp > 1 else 0.0
        return self.prediction(kernel, step).time_s + exchanged_s

    def by_kind(self, step: Step) -> dict[str, float]:
        """Seconds of a step by the class of its kernels."""
        taken: dict[str, float] = {}
        for kernel, n in self.served.kernels:
            name = type(kernel).__name__
            taken[name] = taken.get(name, 0.0) + n * self.kernel_s(kernel, step)
        return taken

    def wall(self, step: Step) -> str:
        """What most of a step's time waits for: a wall of the kernels, or ``link``."""
        taken: dict[str, float] = {}
        for kernel, n in self.served.kernels:
            is_message = isinstance(kernel, Collective)
            name = "link" if is_message else self.prediction(kernel, step).limited_by
            taken[name] = taken.get(name, 0.0) + n * self.kernel_s(kernel, step)
        return max(taken, key=taken.__getitem__)

    def prediction(self, kernel: Kernel, step: Step) -> Prediction:
        """The time of a kernel by its terms; no collective."""
        cost = kernel.cost(step, self.layout)
        written = cost.read_bytes - kernel.weights_bytes(self.layout) if isinstance(kernel, (Product, Between)) else 0
        return predict_cost(cost, self.gpu, int(written * kept_share(self.gpu, cost.write_bytes + written)), "graph")

    def _exchanged_s(self, kernel: Experts, step: Step) -> float:
        """Seconds in which groups with sequences of their own send tokens to experts and get results back."""
        assert self.cluster is not None
        workers = self.layout.tp * self.layout.dp
        nbytes = 2 * kernel.hidden * step.tokens * self.layout.dp
        ways = ("all_gather", "reduce_scatter")
        return sum(collective_s(op, nbytes, workers, self.cluster).time_s for op in ways)

    def _message_s(self, kernel: Collective, step: Step) -> float:
        if self.layout.tp == 1 or not step.tokens:
            return 0.0
        assert self.cluster is not None
        nbytes = kernel.message_bytes(step)
        return collective_s(kernel.op, nbytes, self.layout.tp, self.cluster, library="custom").time_s
