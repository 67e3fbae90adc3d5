"""Kernels → rows: what one execution of one op launched is one row, so that its FLOPs and bytes count once.

An op that has a cost and launches kernels itself includes all that the ops inside it launch: a product with the copy
that made its operand dense, an embedding's gradient with the zeros that it is added to. An op that only calls others
(``aten::linear``) has no row, they have. Collectives and copies have their own rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from memwall.ops import Cost
from memwall.traces.records import Trace, TracedKernel, TracedOp
from memwall.traces.schemas import schemas_of
from memwall.traces.triton import is_triton

#: records of the dispatcher's own that compute nothing
_WRAPPERS = ("autograd::", "torch::autograd::", "c10d::", "nccl:", "torch::distributed::", "torch::jit::", "profiler::")


@dataclass(frozen=True, slots=True)
class Launches:
    """The kernels of one row. ``op`` is the op that they count for; None if unknown."""

    op: TracedOp | None
    kernels: list[TracedKernel] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """``communication``, ``copy`` (memcpy and memset alone) or ``kernel``."""
        categories = {kernel.category for kernel in self.kernels}
        if categories == {"communication"}:
            return "communication"
        return "copy" if categories <= {"memcpy", "memset"} else "kernel"


@dataclass(frozen=True, slots=True)
class RowCost:
    """What a row must do; ``cost`` is None if the trace does not contain it, and ``reason`` says why."""

    cost: Cost | None
    op_class: str
    reason: str = ""
    #: the reads may be fewer than counted: strides or indices are not known
    may_read_less: bool = False
    twin_bytes: int = 0
    notes: tuple[str, ...] = ()


def is_call(op: TracedOp) -> bool:
    """Whether an op is a call of the dispatcher or of a Triton kernel: not an annotation, nor an autograd node
    other than those known to be kernels of their own."""
    if "::" not in op.name:
        return is_triton(op) or bool(schemas_of(op.name))
    return not op.name.startswith(_WRAPPERS) and " " not in op.name


def can_be_costed(op: TracedOp) -> bool:
    """Whether the op's shapes were recorded and a schema, or a Triton kernel's name, identifies them."""
    return bool(op.dims) and (is_triton(op) or bool(schemas_of(op.name)))


def rows_of(trace: Trace) -> list[Launches]:
    """All kernels of a trace as rows, in the order of their first kernels."""
    owners = {kernel.id: _owner(trace, kernel) for kernel in trace.kernels}
    direct = {op for op in owners.values() if op is not None and can_be_costed(trace.ops[op])}
    outermost = {op: [outer.id for outer in trace.around(op) if outer.id in direct][-1] for op in direct}
    #: by its op; by the kernel for a collective, and where no call owns it
    groups: dict[tuple[bool, int], Launches] = {}
    for kernel in trace.kernels:
        owner = owners[kernel.id]
        op = None if owner is None else trace.ops[outermost.get(owner, owner)]
        shared = op is not None and is_call(op) and kernel.category != "communication"
        groups.setdefault((shared, op.id if op and shared else kernel.id), Launches(op)).kernels.append(kernel)
    return list(groups.values())


def _owner(trace: Trace, kernel: TracedKernel) -> int | None:
    """The nearest op around a launch that can be costed, else the innermost call, else the innermost op."""
    if kernel.op is None:
        return None
    if kernel.category == "communication" or "GraphLaunch" in kernel.launch:
        return kernel.op
    around = list(trace.around(kernel.op))
    for op in around:
        if can_be_costed(op):
            return op.id
        if op.name.startswith(("autograd::", "torch::autograd::", "CompiledFunction")):
            break  # anything outside is another call
    return next((op.id for op in around if is_call(op)), kernel.op)
