"""What is asked of a trace, and what comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from memwall.core.errors import UsageError
from memwall.core.graph import Graph
from memwall.frontend.facts import TraceFacts, WorkloadInfo
from memwall.frontend.targets.inputs import SHORT_DTYPES
from memwall.frontend.torch.dispatch.tensors import dtype_name
from memwall.hardware.lookup import Gpu
from memwall.hardware.torch_versions import NEWEST, TORCH
from memwall.ops.lowering import LowerableGraph
from memwall.ops.sdpa import GENERATIONS, Backends

#: what runs attention where nothing is asked for
NEWEST_BACKENDS = Backends(GENERATIONS["cudnn"], TORCH[NEWEST])
#: dtypes that a model can be cast to
DTYPES = ("float32", "bfloat16", "float16", "float64")


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
    kernels may differ."""

    graph: Graph
    workload: WorkloadInfo
    facts: TraceFacts
    attention: LowerableGraph | None


def described(graph: Graph, tensors: Iterable[torch.Tensor], **said: Any) -> WorkloadInfo:
    """What was traced, of these parameters: its dtype is the floating one of most of them, else of the inputs; ``said``
    are further fields."""
    specs = graph.specs(graph.inputs)
    sizes = [(dtype_name(p.dtype), p.numel()) for p in tensors]
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


def parse_dtype(name: str) -> torch.dtype:
    """The dtype of a name such as ``bf16``.

    Raises:
        UsageError: no such dtype.
    """
    key = name.lower().removeprefix("torch.")
    key = SHORT_DTYPES.get(key, key)
    if key not in DTYPES:
        raise UsageError(f"no floating dtype named {name!r}; want float32, bfloat16, float16 or float64")
    dtype: torch.dtype = getattr(torch, key)
    return dtype
