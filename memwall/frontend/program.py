"""What every front end is asked and answers: :class:`TraceOptions` → :class:`TraceResult`; and a :class:`Program`, a
target that is no torch module. Knows no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from memwall.core.errors import UsageError
from memwall.core.graph import Graph
from memwall.frontend.facts import TraceFacts, WorkloadInfo
from memwall.hardware.lookup import Gpu
from memwall.hardware.torch_versions import NEWEST, TORCH
from memwall.ops.lowering import LowerableGraph
from memwall.ops.sdpa import GENERATIONS, Backends

#: what runs attention where nothing is asked for
NEWEST_BACKENDS = Backends(GENERATIONS["cudnn"], TORCH[NEWEST])


@dataclass(frozen=True)
class TraceOptions:
    """How to trace. ``autocast`` and ``dtype`` are names of dtypes; ``attention`` says which
    kernels of attention run, for the graph of the trace; graphs for other GPUs are derived from it. ``torch.cuda``
    answers as ``gpu`` does, or as the default GPU if ``gpu`` is None. Inference runs under ``torch.no_grad()`` unless
    ``gradients`` is set, as after a plain ``eval()``. ``assume`` says what holds where activations decide
    (:mod:`memwall.frontend.torch.values.assumptions`). ``compiled``: all that the model calls is compiled."""

    mode: str = "inference"
    dtype: str | None = None
    autocast: str | None = None
    attention: Backends = NEWEST_BACKENDS
    real: bool = False
    max_ops: int = 200_000
    replay: bool = True
    gpu: Gpu | None = None
    gradients: bool = False
    assume: tuple[str, ...] = ()
    compiled: bool = False


@dataclass(frozen=True)
class TraceResult:
    """A graph, what was traced, and what else the trace found. ``attention`` is what other GPUs need whose attention
    kernels may differ; ``versions`` are of the packages that made the graph, torch where none are said."""

    graph: Graph
    workload: WorkloadInfo
    facts: TraceFacts
    attention: LowerableGraph | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Program(ABC):
    """A target whose graph another front end than torch's makes.

    Attributes:
        name: a short name for reports.
        target: what the user wrote to name it.
    """

    #: what messages call it
    kind: ClassVar[str] = "a program"

    name: str
    target: str

    @abstractmethod
    def traced(self, options: TraceOptions) -> TraceResult:
        """Its graph. Raises ``UsageError``: it cannot be read, or an option has no meaning for it."""

    def exported(self, options: TraceOptions, platform: str) -> str | Callable[[], bytes]:
        """The same step for policy xla on ``cuda`` or ``tpu``: text that a compiler has optimized already, or what has
        ``jax.export`` serialize it, for which JAX must be installed. Raises ``UsageError``: it is nothing that XLA
        compiles."""
        raise UsageError(f"{self.target or self.name} is {self.kind}: policy xla compiles JAX programs and StableHLO")


def not_a_module(program: Program) -> UsageError:
    """What is raised where a target has to be a PyTorch module."""
    return UsageError(
        f"{program.target or program.name} is {program.kind}, and this needs a PyTorch module; profile, compare, sweep"
        " and gate take it"
    )


def refuse_options(program: Program, options: TraceOptions) -> None:
    """Refuse what has no meaning for a program that is read as it was exported, by a UsageError."""
    if options.mode not in ("inference", "forward"):
        raise UsageError(
            f"{program.target} is {program.kind}, a forward pass as it was exported: it has no {options.mode}"
        )
    if options.dtype:
        raise UsageError(f"--dtype has no effect on {program.target}, {program.kind}, whose dtypes are in the file")


def described(graph: Graph, held: Iterable[tuple[str, int]], **said: Any) -> WorkloadInfo:
    """What was traced, of parameters of these dtypes and numbers of elements: its dtype is the floating one of most of
    them, else of the inputs; ``said`` are further fields."""
    specs, sizes = graph.specs(graph.inputs), list(held)
    dtype = "float32"
    for some in (sizes, [(spec.dtype, spec.numel) for spec in specs]):
        total: Counter[str] = Counter()
        for name, count in some:
            if "float" in name:
                total[name] += count
        if total:
            dtype = max(total, key=total.__getitem__)
            break
    inputs = tuple({"shape": list(spec.shape), "dtype": spec.dtype} for spec in specs)
    return WorkloadInfo(dtype=dtype, inputs=inputs, **{"parameters": sum(count for _, count in sizes), **said})
