"""What an instruction of HLO must do on a GPU or TPU: as its program says, else as the trace itself does.

A kernel costs what it does under policy ``xla``: the bytes that cross the border of its fusion, and the FLOPs of all in
it. A trace of a TPU has FLOPs and the instruction's text: the bytes are then of operands and results in DRAM, and
no more than the trace counts, since a fusion may read a part of an operand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memwall.core.errors import UsageError
from memwall.core.graph import Pipe
from memwall.frontend.hlo.graph import graph_of
from memwall.frontend.hlo.module import HloShape, arrays
from memwall.frontend.hlo.parsing import typed_instruction
from memwall.hardware.gpu import Gpu
from memwall.ops import Cost, graph_costs
from memwall.ops.launches import Plain
from memwall.simulate.plan_context import label_of
from memwall.traces.records import TracedOp
from memwall.traces.rows import Launches, RowCost
from memwall.traces.values import whole_number
from memwall.traces.xla.programs import TracedProgram
from memwall.wings import part

#: what XLA calls kinds of instructions → classes of ops, the first that is in the kind's name
_CLASSES: Mapping[str, str] = {
    "convolution": "contraction", "dot": "contraction", "reduce": "reduction", "copy": "movement",
    "data formatting": "movement", "slice": "movement", "gather": "movement", "scatter": "movement",
    "fusion": "elementwise", "elementwise": "elementwise",
}  # fmt: skip
_DRAM = 0


class ProgramCosts:
    """Costs of the instructions of some programs on a GPU or TPU."""

    def __init__(self, programs: Sequence[TracedProgram], gpu: Gpu) -> None:
        self._programs, self._gpu = programs, gpu
        self._known: dict[int, Mapping[str, RowCost] | str] = {}

    def of(self, row: Launches) -> RowCost | None:
        """The cost of a row whose op is an instruction of HLO; None for another, and for messages and copies, whose
        bytes the trace has."""
        op = row.op
        if op is None or "hlo_op" not in op.attributes:
            return None
        if op.attributes.get("asynchronous"):
            return RowCost(None, "movement", "half of what runs aside: its time is not that of the transfer")
        if row.kind == "communication" or all(kernel.bytes is not None for kernel in row.kernels):
            return None
        if "program" not in op.attributes:
            return _said(op)
        kernels = self._of_program(op.attributes["program"])
        if isinstance(kernels, str):
            return RowCost(None, "other", kernels)
        return kernels.get(op.attributes["hlo_op"], RowCost(None, "other", "no kernel is known of this instruction"))

    def _of_program(self, place: int) -> Mapping[str, RowCost] | str:
        """The costs of a program's kernels by instruction, or why there are none."""
        if place not in self._known:
            try:
                self._known[place] = kernel_costs(self._programs[place], self._gpu)
            except UsageError as error:
                self._known[place] = str(error)
        return self._known[place]


def kernel_costs(program: TracedProgram, gpu: Gpu) -> dict[str, RowCost]:
    """By instruction the cost of its kernel on a GPU or TPU; of a loop an iteration counts.

    Raises:
        UsageError: the program cannot be read, or is too large.
    """
    read = graph_of(program.module, each_once=True)
    costs = graph_costs(read.graph)
    found: dict[str, RowCost] = {}
    for group in part("xla.plan_of")(read, costs, gpu).groups:
        if group.name and group.name not in found:
            unknown = sorted({read.graph.ops[i].name for i in group.op_ids if not costs[i].modeled})
            why = f"no cost formula for {', '.join(unknown)}" if unknown else ""
            found[group.name] = RowCost(group.cost, label_of(read.graph, group, costs)[1], why)
    return found


def _said(op: TracedOp) -> RowCost:
    """The cost as far as the trace itself states it."""
    said = op.attributes
    category = str(said.get("hlo_category", "")) or op.name
    op_class = next((name for mark, name in _CLASSES.items() if mark in category), "other")
    flops = max(whole_number(said.get("flops")), whole_number(said.get("model_flops")))
    try:
        one, given = typed_instruction(str(said.get("long_name", "")))
    except UsageError:
        return RowCost(None, op_class, said["why"])
    if one.opcode in ("custom-call", "fusion") and flops < 0:
        return RowCost(None, op_class, "the trace states no FLOPs of it")
    counted = whole_number(said.get("bytes_accessed"))
    written = _in_dram(one.shape)
    read = sum(map(_in_dram, given))
    if 0 <= counted < read + written:
        written = min(written, counted)
        read = counted - written
    dtype = op.types[0] if op.types else "float32"
    pipe = Pipe("tensor", dtype) if op_class == "contraction" else Pipe("vector", "float32")
    work = {pipe: flops} if flops > 0 else {}
    notes = ("FLOPs are the trace's, bytes are its operands' and results'",)
    launch = Plain(read_bytes=read, write_bytes=written, flops=work)
    return RowCost(Cost(work, read, written, launches=(launch,)), op_class, may_read_less=True, notes=notes)


def _in_dram(shape: HloShape) -> int:
    return sum(array.spec.nbytes for array in arrays(shape) if array.space == _DRAM)
