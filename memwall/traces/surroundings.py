"""What a trace says about an op beyond its own record: its kernels' names, its gradient, the ops after it."""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from typing import Any

from memwall.core.errors import Unsupported
from memwall.core.graph import TensorSpec
from memwall.traces.calls import Hints, list_dtype, spec_of
from memwall.traces.records import Trace, TracedKernel, TracedOp

#: how many following ops are searched for the reader of a result
_NEXT = 4
#: an indexing kernel's threads and elements per thread (``index_elementwise_kernel<128, 4, ...>``)
_INDEXING = re.compile(r"index_elementwise_kernel<(\d+), ?(\d+)")
#: float32 products that ran on plain FP32 units
_FULL_FLOAT32 = re.compile(
    r"_sgemm|^sgemm|sgemv|simt|ffma|f32f32_f32f32|scudnn|_SB_|_S_B_|winograd|gemv|fft|wgrad_alg0"
)


class Surroundings:
    """Look-ups in one trace. ``known`` caches equal calls."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.known: dict[tuple[Any, ...], Any] = {}
        self._gradients: dict[int, TracedOp] = {}
        for op in trace.ops:  # an autograd node comes before the ops inside it
            if op.forward is not None and op.dims:
                self._gradients.setdefault(op.forward, op)
        self._by_thread: dict[tuple[str, str], list[TracedOp]] = {}
        self._starts: dict[tuple[str, str], list[float]] = {}

    def hints(self, op: TracedOp, kernels: Sequence[TracedKernel]) -> Hints:
        """What is known without looking at the ops after it."""
        names = [kernel.name for kernel in kernels]
        return Hints(
            list_dtype=list_dtype(names),
            allow_tf32=may_be_tf32(names),
            gradient=self._gradient(op),
            forward=self.trace.ops[op.forward] if op.forward is not None else None,
            parent=self.trace.ops[op.parent] if op.parent is not None else None,
            elements=_covered(kernels),
            slices=_slices(kernels),
        )

    def _gradient(self, op: TracedOp) -> tuple[TensorSpec, ...]:
        """The gradients of the op's results, as its autograd node took them."""
        for outer in self.trace.around(op):
            node = self._gradients.get(outer.id)
            if node is not None:
                return _specs(node)
            if "::" not in outer.name:
                break
        return ()

    def consumers(self, op: TracedOp) -> tuple[TensorSpec, ...]:
        """What the next ops of the thread that launch something read, in order."""
        if op.thread not in self._by_thread:
            own = [other for other in self.trace.ops if other.thread == op.thread and other.dims]
            self._by_thread[op.thread] = own
            self._starts[op.thread] = [other.start_us for other in own]
        after = bisect.bisect_left(self._starts[op.thread], op.end_us)
        found: list[TensorSpec] = []
        for other in self._by_thread[op.thread][after : after + _NEXT]:
            found += _specs(other)
        return tuple(found)


def _specs(op: TracedOp) -> tuple[TensorSpec, ...]:
    found = []
    for place in range(len(op.dims)):
        try:
            spec = spec_of(op, place)
        except Unsupported:
            continue
        if spec is not None and spec.shape:
            found.append(spec)
    return tuple(found)


def _covered(kernels: Sequence[TracedKernel]) -> int:
    """The fewest elements for which an indexing kernel is launched with this grid."""
    for kernel in kernels:
        match = _INDEXING.search(kernel.name)
        if match and kernel.grid:
            return (kernel.grid[0] - 1) * int(match[1]) * int(match[2]) + 1
    return 0


def _slices(kernels: Sequence[TracedKernel]) -> int:
    """How many slices a gathering kernel copies: one column of blocks each (IndexKernelUtils.cu)."""
    return next((k.grid[0] for k in kernels if "vectorized_gather_kernel" in k.name and k.grid), 0)


def may_be_tf32(names: Sequence[str]) -> bool:
    """Whether float32 products of these kernels may have run in TF32: not if a name says otherwise."""
    return not any(_FULL_FLOAT32.search(name) for name in names)
