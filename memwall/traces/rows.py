"""Kernels → rows: what one execution of one op launched is one row, so that its FLOPs and bytes count once.

An op that has a cost and launches kernels itself includes all that the ops inside it launch: a product with the copy
that made its operand dense, an embedding's gradient with the zeros that it is added to. An op that only calls others
(``aten::linear``) has no row, they have. Collectives and copies have their own rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from memwall.ops import Cost
from memwall.traces.records import ColumnTable, Ops, ProfilerTrace, TracedKernel, TracedOp
from memwall.traces.schemas import schemas_of
from memwall.traces.triton import is_triton

#: ops that only run others: what they launch without one of these is no single piece of work
_WRAPPERS = ("autograd::", "torch::autograd::", "c10d::", "nccl:", "torch::distributed::", "torch::jit::", "profiler::",
             "CompiledFunction")  # fmt: skip

_UNKNOWN = -2


@dataclass(frozen=True, slots=True)
class Launches:
    """The kernels of one row. ``op`` is the op that they count for; None if unknown."""

    op: TracedOp | None
    kernels: tuple[TracedKernel, ...]

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
    #: no dtype was recorded: of the cost only the FLOPs are known, not on what they run
    flops_alone: bool = False
    notes: tuple[str, ...] = ()
    #: read with the ops that follow, which are others after the next call of this kind
    one_off: bool = False


def is_call(op: TracedOp) -> bool:
    """Whether what an op launches itself is its work: not so of a range, nor of what only runs other ops."""
    return op.is_op and not op.name.startswith(_WRAPPERS)


def can_be_costed(op: TracedOp) -> bool:
    """Whether the op is an instruction of HLO, or its shapes were recorded and a schema, or a Triton kernel's name,
    identifies them."""
    return "hlo_op" in op.attributes or (bool(op.dims) and (is_triton(op) or bool(schemas_of(op.name))))


class KernelRows(ColumnTable[Launches]):
    """All kernels of a trace as rows, in the order of their first kernels."""

    def __init__(self, trace: ProfilerTrace) -> None:
        self.trace = trace
        #: of each row the number of the op that its kernels count for, or -1
        self.op = array("i")
        row_of = self._assigned()
        #: where the kernels of each row begin in ``_kernels``, and the end of the last
        self._begin = array("i", [0]) * (len(self.op) + 1)
        for row in row_of:
            self._begin[row + 1] += 1
        for row in range(len(self.op)):
            self._begin[row + 1] += self._begin[row]
        self._kernels, free = array("i", [0]) * len(row_of), self._begin[:]
        for kernel, row in enumerate(row_of):
            self._kernels[free[row]] = kernel
            free[row] += 1

    def __len__(self) -> int:
        return len(self.op)

    def kernels(self, row: int) -> array[int]:
        """The numbers of a row's kernels, in order."""
        return self._kernels[self._begin[row] : self._begin[row + 1]]

    def count(self, row: int) -> int:
        """How many kernels a row has."""
        return self._begin[row + 1] - self._begin[row]

    def row(self, number: int) -> Launches:
        op = self.op[number]
        return Launches(
            self.trace.ops[op] if op >= 0 else None, tuple(map(self.trace.kernels.row, self.kernels(number)))
        )

    def _assigned(self) -> array[int]:
        """The row of each kernel; adds the rows."""
        ops, kernels, row_of = self.trace.ops, self.trace.kernels, array("i")
        kinds = _one_of_each_kind(ops)
        calls, costed = [is_call(op) for op in kinds], [can_be_costed(op) for op in kinds]
        apart = [kind.category == "communication" for kind in kernels.kinds]
        own = array("i", [-1]) * len(ops)  # op -> the row that its kernels share
        for op, kind in zip(_owners(self.trace, calls, costed), kernels.kind, strict=True):
            shared = op >= 0 and calls[ops.kind[op]] and not apart[kind]
            row = own[op] if shared else -1
            if row < 0:
                row = len(self.op)
                self.op.append(op)
                if shared:
                    own[op] = row
            row_of.append(row)
        return row_of


def _one_of_each_kind(ops: Ops) -> list[TracedOp]:
    first: dict[int, int] = {}
    for number, kind in enumerate(ops.kind):
        first.setdefault(kind, number)
    return [ops.row(first[kind]) for kind in range(len(ops.kinds))]


def _owners(trace: ProfilerTrace, calls: Sequence[bool], costed: Sequence[bool]) -> array[int]:
    """Of each kernel the op that it counts for, or -1: the outermost around its owner that owns kernels and can be
    costed, else the owner. ``calls`` and ``costed`` are of kinds of ops."""
    ops, kernels = trace.ops, trace.kernels
    innermost = [kind.category == "communication" or "GraphLaunch" in kind.launch for kind in kernels.kinds]
    known = array("i", [_UNKNOWN]) * len(ops)
    owners, direct = array("i"), bytearray(len(ops))
    for op, kind in zip(kernels.op, kernels.kind, strict=True):
        owner = op
        if op >= 0 and not innermost[kind]:
            if known[op] == _UNKNOWN:
                known[op] = _owner(ops, op, calls, costed)
            owner = known[op]
        if owner >= 0 and costed[ops.kind[owner]]:
            direct[owner] = True
        owners.append(owner)
    outermost = array("i", [_UNKNOWN]) * len(ops)
    for kernel, owner in enumerate(owners):
        if owner >= 0 and direct[owner]:
            if outermost[owner] == _UNKNOWN:
                outermost[owner] = [outer for outer in ops.around(owner) if direct[outer]][-1]
            owners[kernel] = outermost[owner]
    return owners


def _owner(ops: Ops, op: int, calls: Sequence[bool], costed: Sequence[bool]) -> int:
    """The nearest op around a launch that can be costed, else the innermost call, else the innermost op."""
    for outer in ops.around(op):
        if costed[ops.kind[outer]]:
            return outer
        if ops.kind_of(outer).name.startswith(("autograd::", "torch::autograd::", "CompiledFunction")):
            break  # anything outside is another call
    return next((outer for outer in ops.around(op) if calls[ops.kind[outer]]), op)
