"""A row of kernels → its cost, and the cost on a GPU → speed of light, wall and prediction.

``bound_s`` is as in :mod:`memwall.perfmodel.roofline`: datasheet peaks, each compulsory byte once, L2 cold. In a
running model L2 need not be cold, and a trace leaves more open. Each of these readings lowers the bound, and is used
only if the measured time contradicts the plainer one; the row says which:

1. Inputs that look alike are one tensor (``x * x``).
2. Up to the size of L2 is read from L2, where earlier kernels left it, and as much of what is written stays there.
3. If strides were not recorded, or an op need not read all its inputs (a gather whose indices repeat, a triangle):
   inputs of few bytes.

None of them changes FLOPs, and a row that is faster than all of them exceeds the roof: a model error.

A copy's bytes are the profiler's own; over the link (host, peer) they are compared with half of the GPU's
``link_bytes_per_s``, which counts both directions. So is what one rank must send of a collective: ``(n - 1) / n`` of
the message, a half where the number of ranks is not known.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memwall.core.errors import Unsupported
from memwall.hardware.chips import CHIPS
from memwall.hardware.gpu import Gpu
from memwall.ops import Call, Cost, classify, cost_of
from memwall.ops.collective import least_share
from memwall.ops.launches import Plain
from memwall.ops.libraries import library_rule, not_recorded
from memwall.ops.triton import WORK
from memwall.perfmodel.roofline import LINK, bound_s, predict_cost
from memwall.traces.calls import Hints, Surroundings, argument_bytes, as_floats, read_call, record_of
from memwall.traces.collectives import traced_message
from memwall.traces.records import ProfilerTrace, TracedKernel, TracedOp, TraceKernels
from memwall.traces.rows import Launches, RowCost, can_be_costed, is_call
from memwall.traces.triton import is_triton, triton_cost

#: ops that read only the elements that their indices, or a triangle, select
_READ_IN_PART = frozenset(
    ("embedding", "index_select", "gather", "index", "_unsafe_index", "take", "take_along_dim", "tril", "triu",
     "grid_sampler_2d", "grid_sampler_3d", "_embedding_bag")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Price:
    """A row's cost on a GPU. ``assumed`` says which reading of the trace the bound used; empty for the plain one."""

    bound_s: float
    modeled_s: float
    wall: str
    assumed: str = ""


# ---- what a row must do


def row_cost(row: Launches, surroundings: Surroundings) -> RowCost:
    """The cost of a row: of its op, of the copies, or of the collective."""
    if row.kind == "communication":
        return _communication(row, surroundings)
    if row.kind == "copy" and (copied := _copies(row.kernels)) is not None:
        return copied
    op = row.op
    if (op is None or not can_be_costed(op)) and (own := _users_kernel(row.kernels)) is not None:
        return own
    if op is None:
        return RowCost(None, "other", "no op is linked to its launch")
    if any("GraphLaunch" in kernel.launch for kernel in row.kernels):
        return RowCost(None, "other", "launched by a CUDA graph, which records no shapes")
    if not can_be_costed(op):
        return _uncosted(op, surroundings.trace)
    if is_triton(op):
        return _triton(op)
    return _costed(op, surroundings.hints(op, row.kernels), surroundings)


def of_instructions(trace: ProfilerTrace, gpu: Gpu) -> Callable[[Launches], RowCost | None]:
    """What the cost of a row is that is a run of an instruction of HLO; None for another."""
    if not trace.of_xla:
        return lambda row: None
    from memwall.traces.xla.costs import ProgramCosts  # with it comes the reader of HLO

    return ProgramCosts(trace.programs, gpu).of


def _uncosted(op: TracedOp, trace: ProfilerTrace) -> RowCost:
    """Of an op that no formula knows, or of what else stands around a launch: why there are no figures."""
    op_class, why = classify_op(op), not_recorded(op.name)
    own = next((outer for outer in trace.around(op) if outer.is_op), None)
    if why or own is None:
        return RowCost(None, op_class, why or "launched outside of any recorded op")
    if is_call(own) and not own.dims:
        return RowCost(None, op_class, "shapes were not recorded")
    why = f"no cost formula for {own.name}"
    if own.id != op.id or "::" not in op.name:  # an autograd.Function runs other ops, which have their own rows
        return RowCost(None, op_class, why)
    return _arguments_alone(op, op_class, why)


def _arguments_alone(op: TracedOp, op_class: str, why: str) -> RowCost:
    """The bytes of an op's arguments, which an unknown op of a model is charged too; whether it reads them whole, what
    it writes and its FLOPs are not known."""
    moved = argument_bytes(op)
    if not moved:
        return RowCost(None, op_class, why)
    return RowCost(Cost({}, moved, modeled=False), op_class, f"{why}: the bytes of its arguments alone")


def _costed(op: TracedOp, hints: Hints, surroundings: Surroundings) -> RowCost:
    """The cost of an op, once for equal calls with equal hints."""
    sizes = hints.parent.dims if hints.parent is not None and "convolution_backward" in op.name else ()
    around: tuple[Any, ...] = () if op.concrete else (hints.gradient, sizes)
    if hints.forward is not None and "::" not in op.name:
        around = (hints.forward.dims, hints.forward.types, hints.forward.concrete)
    key = (
        op.name,
        op.phase,
        op.dims,
        op.types,
        op.strides,
        op.concrete,
        hints.list_dtype,
        hints.allow_tf32,
        hints.elements,
        hints.slices,
        around,
    )
    known = surroundings.known.get(key)
    if known is not None:
        return known
    found = _read(op, hints)
    if found.cost is None and (consumers := surroundings.consumers(op)):
        later = _read(op, replace(hints, consumers=consumers))
        if later.cost is not None:
            return replace(later, one_off=True)
    surroundings.known[key] = found
    return found


#: torch 1.8 recorded shapes without dtypes
_NO_DTYPES = "the dtypes of its arguments were not recorded"


def _read(op: TracedOp, hints: Hints) -> RowCost:
    if any(op.types):
        return _read_typed(op, hints)
    found = _read_typed(as_floats(op), hints)  # FLOPs are as of floats, of whatever size
    if found.cost is None or not found.cost.modeled:
        return RowCost(None, found.op_class, found.reason if found.cost is None else _NO_DTYPES)
    return RowCost(found.cost, found.op_class, f"{_NO_DTYPES}: FLOPs alone", flops_alone=True, notes=found.notes)


def _read_typed(op: TracedOp, hints: Hints) -> RowCost:
    op_class = classify_op(op)
    try:
        if (rule := library_rule(op.name)) is not None:
            if (recorded := record_of(op, hints)) is None:
                return _arguments_alone(op, op_class, "no version that is known has its arguments")
            cost, op_class, notes = rule(recorded)
            return RowCost(cost, op_class, may_read_less=op.strides is None, notes=notes)
        read = read_call(op, hints)
    except Unsupported as error:
        return RowCost(None, op_class, str(error))
    except (LookupError, ArithmeticError, ValueError, TypeError):  # a stride of 0, a list where a number belongs
        return RowCost(None, op_class, "its recorded values make no sense")
    cost = cost_of(read.call)
    op_class = classify(read.call.name, op.phase)
    if not cost.modeled:
        return _arguments_alone(op, op_class, "no cost formula for this form of the op")
    less = op.strides is None or read.call.name.split(".")[1] in _READ_IN_PART
    return RowCost(
        cost, op_class, may_read_less=less, twin_bytes=min(read.twin_bytes, cost.read_bytes), notes=read.notes
    )


def classify_op(op: TracedOp) -> str:
    """The class of a recorded op by its name and phase."""
    return "elementwise" if is_triton(op) else classify(op.name.replace("::", "."), op.phase)


def _triton(op: TracedOp) -> RowCost:
    classes = {"triton_red": "reduction", "triton_per": "reduction", "triton_tem": "contraction"}
    op_class = classes.get(op.name[:10], "elementwise")
    try:
        cost, note = triton_cost(op)
    except Unsupported as error:
        return RowCost(None, op_class, str(error))
    return RowCost(cost, op_class, may_read_less=op.strides is None, notes=(note,))


def _users_kernel(kernels: Sequence[TracedKernel]) -> RowCost | None:
    """Of a Triton kernel of the user's that some model profiled here launches too: what was read of it then."""
    if len(kernels) != 1 or not kernels[0].grid or not kernels[0].block:
        return None
    (kernel,) = kernels
    from memwall.frontend.triton.work import remembered  # with it come the reader of Triton's IR and numpy

    work = remembered(kernel.name, kernel.grid or (), math.prod(kernel.block or ()))
    if work is None:
        return None
    call = Call(f"triton.{kernel.name}", (), (), (), {WORK: work.attribute()}, 0, 0)
    note = "as read of the kernel of that name and grid in the model that was profiled last"
    return RowCost(cost_of(call), work.op_class, notes=(note,))


# ---- copies


_OVER_THE_LINK = (
    "HtoD",
    "DtoH",
    "PtoP",
    "MemcpyH2D",
    "MemcpyD2H",
    "MemcpyP2P",
    "HtoA",
    "AtoH",
    "HostToDevice",
    "DeviceToHost",
    "Host -> Device",
)


def _copies(kernels: Sequence[TracedKernel]) -> RowCost | None:
    """Memory copies and fills by the bytes that the profiler states; None if it does not."""
    if any(kernel.bytes is None for kernel in kernels):
        return None
    read = write = link = 0
    for kernel in kernels:
        moved = kernel.bytes or 0
        if kernel.category == "memset":
            write += moved
        elif any(way in kernel.name for way in _OVER_THE_LINK):
            link += moved
        else:
            read, write = read + moved, write + moved
    copies = Plain(read_bytes=read, write_bytes=write, count=len(kernels))
    return RowCost(Cost({}, read, write, link_bytes=float(link), launches=(copies,)), "movement")


# ---- collectives


def _communication(row: Launches, surroundings: Surroundings) -> RowCost:
    """The bytes that a rank must send or receive."""
    message = traced_message(row, surroundings.trace)
    if not message.nbytes:
        return RowCost(None, "communication", "the size of the message was not recorded")
    if message.ranks == 1:
        return RowCost(Cost({}, 0, 0), "communication")
    notes = ("the number of ranks was not recorded: half of the message must cross the link",)
    share = least_share(message.name, message.ranks)
    return RowCost(Cost(link_bytes=share * message.nbytes), "communication", notes=() if message.ranks else notes)


# ---- the price on a GPU


class Pricing:
    """Prices on one GPU, on which the rows were measured or not."""

    def __init__(self, gpu: Gpu, *, measured_here: bool = True) -> None:
        self.gpu, self._measured_here = gpu, measured_here

    def prices(self, row: RowCost) -> tuple[Price, ...]:
        """Speed of light, prediction and wall by each reading of the trace, the plain one first; none if the cost is
        not known."""
        if row.cost is None or not row.cost.modeled or row.flops_alone:
            return ()
        predicted = predict_cost(row.cost, self.gpu, launch="kernel")  # as a profiler times: without the gap between
        crosses = row.cost.link_bytes and not row.cost.bytes  # of a transfer only the bytes on the link are known
        # times of another GPU say nothing of how a row is to be read
        readings = tuple(_readings(row, self.gpu))[: None if self._measured_here else 1]
        return tuple(
            Price(
                bound,
                bound if crosses else max(predicted.time_s, bound),
                LINK if crosses else predicted.limited_by,
                assumed,
            )
            for bound, assumed in readings
        )


def reading(prices: Sequence[Price], measured_s: float) -> int:
    """Which reading a measured time does not contradict: the first, or the plain one if it contradicts all."""
    return next((place for place, price in enumerate(prices) if price.bound_s <= measured_s), 0)


def _readings(row: RowCost, gpu: Gpu) -> Iterator[tuple[float, str]]:
    """(bound, what it assumes): the plain one first, each next one lower."""
    assert row.cost is not None
    cost = row.cost
    yield bound_s(cost, gpu), ""
    if row.twin_bytes:
        cost = replace(cost, read_bytes=cost.read_bytes - row.twin_bytes)
        yield bound_s(cost, gpu), "inputs that look alike are one tensor"
    yield _warm_bound_s(cost, gpu), "inputs in L2"
    if row.may_read_less:
        yield _warm_bound_s(replace(cost, read_bytes=0), gpu), "inputs are broadcast, or read in part"


def _warm_bound_s(cost: Cost, gpu: Gpu) -> float:
    """The bound if L2 holds inputs when the kernel starts and results when it ends."""
    arithmetic_s = bound_s(replace(cost, read_bytes=0, write_bytes=0), gpu)
    dram = max(cost.least_read_bytes - gpu.l2_bytes, 0) + max(cost.write_bytes - gpu.l2_bytes, 0)
    return max(arithmetic_s, dram / gpu.dram_bytes_per_s, cost.least_bytes / gpu.l2_bytes_per_s)


# ---- products in kernels of an earlier GPU's instructions: a reason to be slower than modeled

#: generation that a name of a product on tensor cores states -> major compute capability
_NAMED = {chip.architecture: int(name[3:-1]) for name, chip in CHIPS.items() if name.startswith("sm_")}
_STATED = re.compile(
    r"\b(?:cutlass_(?P<cutlass>\d\d)_(?>\w*?tensorop)\w*?gemm|sm(?P<sm>\d\d)_xmma_gemm"
    r"|(?P<name>volta|turing|ampere)_\w*?[hsi](?:884|1688|16816|8816|16832)gemm)"
)


def older_kernels_note(kernels: TraceKernels, numbers: Iterable[int], gpu: Gpu) -> str:
    """How long products, the kernels of some numbers, ran in kernels of an earlier generation than the GPU's; empty if
    none did.

    The model assumes a GPU's own library kernels. Kernels of an earlier generation run on a later GPU (an older
    library, operands that the later kernels do not support) at the earlier instructions' rate.
    """
    capability = (gpu.compute_capability or "").partition(".")[0]
    if not capability.isdecimal():
        return ""
    older: dict[int, re.Match[str]] = {}
    for number, kind in enumerate(kernels.kinds):
        match = _STATED.search(kind.name)
        if match is not None and 0 < _generation(match) < int(capability):
            older[number] = match
    ran = array("i", (number for number in numbers if kernels.kind[number] in older))
    if not ran:
        return ""
    count = "1 kernel" if len(ran) == 1 else f"{len(ran):,} kernels"
    taken = f"{kernels.total_us(ran):,.0f} us of matmuls ran in {count}"
    longest = older[kernels.kind[max(ran, key=kernels.dur_us.__getitem__)]]
    return f"{taken} of an earlier GPU generation ({longest[0]}): the model takes {gpu.name}'s own"


def _generation(match: re.Match[str]) -> int:
    """The major compute capability that a kernel's name states."""
    digits = match["cutlass"] or match["sm"]
    return int(digits) // 10 if digits else _NAMED[match["name"]]
