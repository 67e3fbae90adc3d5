"""Kernels → instructions of HLO: each run of one is an op of the trace, with its operands' shapes, module and line.

A trace names the instruction of a kernel (``hlo_op``), except in some graphs of kernels: then the kernel's own name
may be an instruction's. Kernels of one instruction that follow each other on a stream are one run of it, until
the first of them comes again; a sort runs the same kernel many times.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from memwall.core.errors import UsageError
from memwall.frontend.hlo import HloArray, HloComputation, HloInstruction
from memwall.frontend.hlo.groups import replica_groups
from memwall.frontend.hlo.module import arrays
from memwall.frontend.hlo.names import module_of, phase_of
from memwall.frontend.hlo.parsing import typed_instruction
from memwall.traces.records import Detail, Gaps, KernelKind, OpKind, Ops, TraceKernels
from memwall.traces.xla.lanes import ModuleRuns
from memwall.traces.xla.programs import TracedProgram, numbered

#: collectives of HLO → their names in messages
_MESSAGES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute",
             "collective-broadcast")  # fmt: skip
_CALLED: Mapping[str, str] = {"collective-permute": "send_recv", "collective-broadcast": "broadcast"}


class _Named(NamedTuple):
    """A program's name and number, and the instruction's name."""

    program: str
    number: int
    instruction: str


class _Found(NamedTuple):
    """The place of a program among all, and an instruction with the computation in which it stands."""

    place: int
    computation: HloComputation
    one: HloInstruction


@dataclass
class Instructions:
    """What links kernels to the instructions of programs. ``runs``: when programs ran on a device, where it has a lane
    for them; ``given``: the dump that was asked for by name; ``notes``: what else there is to say."""

    programs: Sequence[TracedProgram]
    runs: Mapping[int, ModuleRuns]
    given: str = ""
    notes: list[str] = field(default_factory=list)
    #: why a program's HLO cannot be read, by its name; and programs without any
    unread: dict[str, str] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    _numbers: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def link(self, kernels: TraceKernels, ops: Ops, gaps: Gaps, base: float) -> tuple[Ops, list[str]]:
        """The ops of the instructions that ran, to which the kernels now belong, and what is to be said of it. Gaps
        of a device that has a lane for programs are explained by these.

        Args:
            base: what the starts of kernels are relative to.

        Raises:
            UsageError: the dump that was asked for has no instruction that ran.
        """
        made, orders = Ops(), {device: _Order(runs, base) for device, runs in self.runs.items()}
        _explain(gaps, orders)
        known: dict[tuple[int, str], int] = {}
        last: dict[tuple[int, int], tuple[int, str, int]] = {}
        for number, kind_number in enumerate(kernels.kind):
            kind = kernels.kinds[kind_number]
            order = orders.get(kind.device)
            run = order.name(order.at(kernels.start_us[number])) if order else ""
            if (kind_number, run) not in known:
                known[kind_number, run] = self._kind(kind, run, made)
            op_kind, lane = known[kind_number, run], (kind.device, kind.stream)
            if op_kind < 0:
                kernels.op[number] = -1
                last.pop(lane, None)
                continue
            before = last.get(lane)
            if before is None or before[0] != op_kind or (before[1] == kind.name and not _is_sort(made.kinds[op_kind])):
                last[lane] = before = op_kind, kind.name, len(made)
                made.kind.append(op_kind)
                made.parent.append(-1)
                made.forward.append(-1)
                made.start_us.append(kernels.start_us[number])
                made.dur_us.append(0.0)
            op = kernels.op[number] = before[2]
            made.dur_us[op] = kernels.end_us(number) - made.start_us[op]
        if self.given and not any("program" in kind.detail.attributes for kind in made.kinds):
            self._refuse(made)
        return made, self._notes(kernels, made)

    def _refuse(self, made: Ops) -> None:
        """Raises ``UsageError``: what the dump has, and what ran."""
        dumps = sorted({program.name for program in self.programs})
        ran = sorted({f"{kind.name} of {kind.detail.attributes['hlo_module'] or 'a program'}" for kind in made.kinds})
        why = "; ".join(self.unread.values()) or f"the trace ran {', '.join(ran[:2]) or 'none that it names'}"
        raise UsageError(f"{self.given}, HLO of {', '.join(dumps[:3])}, has no instruction of the trace: {why}")

    def _kind(self, kind: KernelKind, run: str, made: Ops) -> int:
        """The number of the kind of op that a kernel belongs to, which is added if it is new; -1 for none."""
        said = kind.detail.attributes
        program, number = numbered(str(said.get("hlo_module") or run))
        number = said["program_id"] if isinstance(said.get("program_id"), int) else number
        named = _Named(program, number, str(said.get("hlo_op", "")))
        found = self._find(named, kind.name)
        if isinstance(found, str) and not named.instruction:
            return -1
        key = named if isinstance(found, str) else (found.place, found.one.name)
        if key not in self._numbers:
            self._numbers[key] = len(made.kinds)
            made.kinds.append(
                _from_trace(named, kind, found) if isinstance(found, str) else self._from_hlo(found, kind)
            )
        return self._numbers[key]

    def _find(self, named: _Named, kernel: str) -> _Found | str:
        """The instruction, or why it is not known."""
        alike = [n for n, program in enumerate(self.programs) if named.program in ("", program.name)]
        exact = [place for place in alike if self.programs[place].number == named.number >= 0]
        having = []
        for place in exact or alike:
            try:
                if (found := self.programs[place].find(named.instruction, kernel)) is not None:
                    having.append(_Found(place, *found))
            except UsageError as error:
                self.unread[named.program] = str(error)
        if len(having) == 1:
            return having[0]
        if having:
            return f"several programs are called {named.program}, and the trace does not say which of them ran"
        if alike:
            return self.unread.get(named.program, "its program has no instruction of this name")
        if named.instruction:
            self.missing.add(named.program)
        return "the optimized HLO of its program is not there (--hlo)"

    def _from_hlo(self, found: _Found, kind: KernelKind) -> OpKind:
        place, computation, one = found
        said, module = kind.detail.attributes, self.programs[place].module
        inside = [each for name in one.called for each in module.computations[name].instructions]
        told = next((each for each in (one, *reversed(inside)) if "op_name" in each.metadata), one)
        given = [array for operand in one.operands for array in arrays(computation.by_name[operand].shape)]
        attributes = {"program": place, "hlo_op": one.name, **_shared(said)}
        opcode = one.opcode.removesuffix("-start")
        if opcode in _MESSAGES:
            attributes |= _message(opcode, one, given, module.partitions)
        name, source = told.metadata.get("op_name", ""), module.source_of(told)
        return _op_kind(one.name, name, source if not source.startswith("<") else "", given or [*arrays(one.shape)],
                        attributes)  # fmt: skip

    def _notes(self, kernels: TraceKernels, made: Ops) -> list[str]:
        notes = [*self.notes, *(f"{name}: {why}" for name, why in self.unread.items())]
        lost = array("i", (number for number, op in enumerate(kernels.op) if op < 0))
        if lost:
            notes.append(f"{len(lost)} GPU rows ({kernels.total_us(lost):.0f} us) name no instruction of HLO")
        if self.missing:
            notes.append(
                f"the optimized HLO of {', '.join(sorted(filter(None, self.missing))) or 'what ran'} is not there, and"
                " kernels have the trace's own figures alone: dump it with XLA_FLAGS=--xla_dump_to=DIR, and name the"
                " folder with --hlo"
            )
        return notes


class _Order:
    """Runs of programs on a device, by their begin; times are relative to ``base``."""

    def __init__(self, runs: ModuleRuns, base: float) -> None:
        order = sorted(range(len(runs.names)), key=runs.start_us.__getitem__)
        self._starts = array("d", (runs.start_us[place] - base for place in order))
        self._ends = array("d", (runs.end_us[place] - base for place in order))
        self._names = [runs.names[place] for place in order]

    def at(self, time_us: float) -> int:
        """The number of the run at a time; -1 where there was none."""
        place = bisect_right(self._starts, time_us) - 1
        return place if place >= 0 and time_us <= self._ends[place] else -1

    def name(self, run: int) -> str:
        """The program of a run; empty for -1."""
        return self._names[run] if run >= 0 else ""


def _explain(gaps: Gaps, orders: Mapping[int, _Order]) -> None:
    """Say of the gaps of a device whether a program was running."""
    for number, device in enumerate(gaps.device):
        if (order := orders.get(device)) is not None:
            start = gaps.start_us[number]
            run = order.at(start)
            is_within = run >= 0 and run == order.at(start + gaps.dur_us[number])
            cause = f"inside a program: {order.name(run)}" if is_within else "host: between programs"
            gaps.cause[number] = gaps.causes.number(cause)


def _from_trace(named: _Named, kind: KernelKind, why: str) -> OpKind:
    """The op of an instruction of which only the trace tells, and why."""
    said = kind.detail.attributes
    try:
        given = [*arrays(typed_instruction(str(said.get("long_name", "")))[1])]
    except UsageError:
        given = []
    name = str(said.get("op_name") or said.get("tf_op") or "").removesuffix(":")
    attributes = {"hlo_op": named.instruction, "hlo_module": named.program, "why": why, **_shared(said)}
    return _op_kind(named.instruction, name if "/" in name else "", kind.detail.source, given, attributes)


#: what the op keeps of its kernels' arguments
_KEPT = ("long_name", "hlo_category", "flops", "model_flops", "bytes_accessed", "asynchronous")


def _shared(said: Mapping[str, Any]) -> dict[str, Any]:
    return {name: said[name] for name in _KEPT if name in said}


def _op_kind(name: str, op_name: str, source: str, given: Sequence[HloArray], attributes: Mapping[str, Any]) -> OpKind:
    detail = Detail(tuple(one.shape for one in given), tuple(one.dtype for one in given), attributes=attributes)
    return OpKind(name, ("", ""), module_of(op_name), source, phase_of(op_name), True, detail)


def _message(opcode: str, one: HloInstruction, given: Sequence[HloArray], devices: int) -> dict[str, Any]:
    """What a collective sends, as the arguments of a collective of PyTorch say it, in bytes."""
    sent, ranks = sum(array.spec.nbytes for array in given), len(replica_groups(one, devices))
    return {
        "Collective name": _CALLED.get(opcode, opcode.replace("-", "_")),
        "In msg nelems": sent,
        "Out msg nelems": sent * ranks if opcode == "all-gather" else sent,
        "dtype": "uint8",
        "Group size": ranks,
    }


def _is_sort(kind: OpKind) -> bool:
    return kind.name.startswith("sort")
