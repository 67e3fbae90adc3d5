"""The contents of a profiler trace, with its kernels linked to the ops that launched them.

Times are microseconds since the first event kept (``TracedKernel.start_us`` may precede an op's: the clocks of CPU and
GPU differ by a few us). Every figure is the trace's own; nothing here is modeled.

Kernels, ops and gaps are tables: what differs from one to the next (times, links) is a number in a column, what many
share (a kernel's name, grid, stream and module; an op's name, shapes and module) is kept once. A kernel takes 32 bytes
so, an op 28, a gap 24; the object of a row is built when it is asked for.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import eq, index
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar, overload

from memwall.core.units import size

if TYPE_CHECKING:
    from memwall.traces.xla.programs import TracedProgram

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

#: sizes of one argument: ``(64, 128)``; of a tensor list: ``((64, 128), (64,))``; ``()`` for a scalar, None or a
#: 0-dim tensor (distinguished by ``types``: a tensor has its dtype there, a scalar "Scalar", "Int", "Double", "")
Dims = tuple[Any, ...]

NOTHING: Mapping[str, Any] = MappingProxyType({})
_US = 1e-6


def nothing() -> Mapping[str, Any]:
    return NOTHING


class Numbered(Generic[Key]):
    """Distinct values, each kept once, under the number of its first appearance."""

    def __init__(self) -> None:
        self.values: list[Key] = []
        self._numbers: dict[Key, int] = {}

    def number(self, value: Key) -> int:
        """The number of a value, which is added if it is new."""
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = len(self.values)
            self.values.append(value)
        return found

    def find(self, value: Key) -> int:
        """The number of a value; -1 if it has none."""
        return self._numbers.get(value, -1)


class ColumnTable(Sequence[Item]):
    """Rows kept as columns: :meth:`row` builds the object of one when it is asked for, and does not keep it."""

    def row(self, number: int) -> Item:
        """The row of a number from 0 to the length."""
        raise NotImplementedError

    @overload
    def __getitem__(self, place: int) -> Item: ...
    @overload
    def __getitem__(self, place: slice) -> list[Item]: ...
    def __getitem__(self, place: int | slice) -> Item | list[Item]:
        places = range(len(self))[place if isinstance(place, slice) else index(place)]
        return self.row(places) if isinstance(places, int) else [self.row(number) for number in places]

    def __iter__(self) -> Iterator[Item]:
        return map(self.row, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Detail:
    """Arguments that many events share: of an op, or of a kernel."""

    dims: tuple[Dims, ...] = ()
    types: tuple[str, ...] = ()
    strides: tuple[Dims, ...] | None = None
    concrete: tuple[str, ...] = ()
    source: str = ""
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    bytes: int | None = None
    attributes: Mapping[str, Any] = field(default_factory=nothing)


@dataclass(frozen=True, slots=True)
class TraceDevice:
    """A GPU of ``deviceProperties``, or one that only kernels name (then only ``index`` is known).

    ``kernels`` counts the kernels that ran on it: a trace lists all GPUs of the machine.
    """

    SAVED: ClassVar = ("index", "name", "kernels")

    index: int
    name: str = ""
    sm_count: int | None = None
    kernels: int = 0
    dram_bytes: int | None = None
    #: "NVIDIA" or "AMD"; empty where the trace does not show it
    vendor: str = ""
    #: "9.0"; AMD's 9.4 is gfx942
    compute_capability: str = ""

    @property
    def label(self) -> str:
        """Its name, else what is known of it: ``an unnamed GPU of AMD with 304 multiprocessors, compute 9.4``."""
        known = {
            "multiprocessors": str(self.sm_count or ""),
            "of memory": size(self.dram_bytes) if self.dram_bytes else "",
        }
        texts = [f"{text} {what}" for what, text in known.items() if text]
        texts += [f"compute {self.compute_capability}"] if self.compute_capability else []
        maker = f" of {self.vendor}" if self.vendor else ""
        return self.name or (f"an unnamed GPU{maker} with {', '.join(texts)}" if texts else "")


@dataclass(frozen=True, slots=True)
class TracedOp:
    """One op as the CPU ran it: ``aten::addmm``, an autograd.Function, a Triton call; or a range around kernels that a
    program or a library marked, which is no op (``is_op``).

    ``id`` is its index in :attr:`ProfilerTrace.ops`; parents come before children. ``dims``, ``types`` and ``strides``
    have one entry per argument and are empty if shapes were not recorded (``strides`` is None if they were not)."""

    id: int
    name: str
    thread: tuple[str, str]  # process, thread, as written
    start_us: float
    dur_us: float
    dims: tuple[Dims, ...] = ()
    types: tuple[str, ...] = ()
    strides: tuple[Dims, ...] | None = None
    concrete: tuple[str, ...] = ()
    parent: int | None = None  # the innermost op around it on its thread
    module: str = ""  # "BertModel_0/BertLayer_3/Linear_1", outermost first, where modules were recorded
    source: str = ""  # "file(line): function" of the user's frame, where stacks were recorded
    phase: str = ""  # "forward", "backward", "optimizer" or ""
    forward: int | None = None  # of a backward op: the forward op of the same sequence number
    #: the other args that determine a cost: kernel_file, kernel_hash, kernel_backend, grid, num_warps, kernel_kwargs
    #: of Triton; "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype" of a collective
    attributes: Mapping[str, Any] = field(default_factory=nothing)
    is_op: bool = True

    @property
    def end_us(self) -> float:
        return self.start_us + self.dur_us


@dataclass(frozen=True, slots=True)
class TracedKernel:
    """One row of a GPU stream; ``id`` is its index in :attr:`ProfilerTrace.kernels`, which are sorted by start."""

    SAVED: ClassVar = ("name", "stream", "time_s")

    id: int
    name: str
    category: str  # "kernel", "memcpy", "memset" or "communication", by the category and the name
    device: int
    stream: int
    start_us: float
    dur_us: float
    op: int | None = None  # id of the innermost op or range around its launch; None: unmatched
    module: str = ""  # of an unmatched one: the module and the user's line around its launch, where recorded
    source: str = ""
    launch: str = ""  # the runtime call that launched it: "cudaLaunchKernel"; "" where none correlates
    launch_us: float | None = None  # when that call began
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    bytes: int | None = None  # of a memcpy or memset, as the profiler says
    attributes: Mapping[str, Any] = field(default_factory=nothing)  # further args: "In msg nelems" of a collective

    @property
    def end_us(self) -> float:
        return self.start_us + self.dur_us

    @property
    def time_s(self) -> float:
        return self.dur_us * _US


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which no stream of a device ran anything, and what the CPU did at its end."""

    SAVED: ClassVar = ("device", "start_s", "time_s", "cause")

    device: int
    start_us: float
    dur_us: float
    cause: str  # "host: aten::linear", "sync: cudaStreamSynchronize", "graph launch: cudaGraphLaunch", "unknown"

    @property
    def start_s(self) -> float:
        return self.start_us * _US

    @property
    def time_s(self) -> float:
        return self.dur_us * _US


class OpKind(NamedTuple):
    """What ops of one kind share."""

    name: str
    thread: tuple[str, str]
    module: str
    source: str
    phase: str
    is_op: bool
    detail: Detail


class Ops(ColumnTable[TracedOp]):
    """The ops of a trace. ``parent`` and ``forward`` are -1 for none."""

    def __init__(self) -> None:
        self.kinds: list[OpKind] = []
        self.kind, self.parent, self.forward = array("i"), array("i"), array("i")
        self.start_us, self.dur_us = array("d"), array("d")

    def __len__(self) -> int:
        return len(self.kind)

    def kind_of(self, number: int) -> OpKind:
        return self.kinds[self.kind[number]]

    def around(self, number: int) -> Iterator[int]:
        """An op and those around it, innermost first."""
        while number >= 0:
            yield number
            number = self.parent[number]

    def linked(self) -> bytearray:
        """Of each row whether it is an op or in one: a kernel that only a range surrounds is linked to no op."""
        found = bytearray(len(self))
        for number, (kind, parent) in enumerate(zip(self.kind, self.parent, strict=True)):
            found[number] = self.kinds[kind].is_op or (parent >= 0 and found[parent])
        return found

    def row(self, number: int) -> TracedOp:
        name, thread, module, source, phase, is_op, detail = self.kind_of(number)
        parent, forward = self.parent[number], self.forward[number]
        return TracedOp(
            number,
            name,
            thread,
            self.start_us[number],
            self.dur_us[number],
            detail.dims,
            detail.types,
            detail.strides,
            detail.concrete,
            parent if parent >= 0 else None,
            module,
            source,
            phase,
            forward if forward >= 0 else None,
            detail.attributes,
            is_op,
        )


class KernelKind(NamedTuple):
    """What kernels of one kind share."""

    name: str
    category: str
    device: int
    stream: int
    module: str
    source: str
    launch: str
    detail: Detail


class TraceKernels(ColumnTable[TracedKernel]):
    """The kernels of a trace. ``op`` is -1 for none, ``launch_us`` is not a number if no call launched it."""

    def __init__(self) -> None:
        self.kinds: list[KernelKind] = []
        self.kind, self.op = array("i"), array("i")
        self.start_us, self.dur_us, self.launch_us = array("d"), array("d"), array("d")

    def __len__(self) -> int:
        return len(self.kind)

    def kind_of(self, number: int) -> KernelKind:
        return self.kinds[self.kind[number]]

    def end_us(self, number: int) -> float:
        return self.start_us[number] + self.dur_us[number]

    def by_device(self) -> dict[int, array[int]]:
        """Device -> its kernels, in order."""
        devices: dict[int, array[int]] = {}
        for number, kind in enumerate(self.kind):
            devices.setdefault(self.kinds[kind].device, array("i")).append(number)
        return dict(sorted(devices.items()))

    def total_us(self, numbers: Iterable[int]) -> float:
        """The durations of some kernels together."""
        return sum(map(self.dur_us.__getitem__, numbers))

    def row(self, number: int) -> TracedKernel:
        name, category, device, stream, module, source, launch, detail = self.kind_of(number)
        op, launch_us = self.op[number], self.launch_us[number]
        return TracedKernel(
            number,
            name,
            category,
            device,
            stream,
            self.start_us[number],
            self.dur_us[number],
            op if op >= 0 else None,
            module,
            source,
            launch,
            None if math.isnan(launch_us) else launch_us,
            detail.grid,
            detail.block,
            detail.bytes,
            detail.attributes,
        )


class Gaps(ColumnTable[Gap]):
    """The gaps of a trace."""

    def __init__(self) -> None:
        self.causes: Numbered[str] = Numbered()
        self.device, self.cause = array("q"), array("i")
        self.start_us, self.dur_us = array("d"), array("d")

    def __len__(self) -> int:
        return len(self.cause)

    def take(self, order: Sequence[int]) -> None:
        """Put the gaps in this order."""
        for name in ("device", "cause", "start_us", "dur_us"):
            column = getattr(self, name)
            setattr(self, name, array(column.typecode, map(column.__getitem__, order)))

    def row(self, number: int) -> Gap:
        cause = self.causes.values[self.cause[number]]
        return Gap(self.device[number], self.start_us[number], self.dur_us[number], cause)


@dataclass(frozen=True, slots=True)
class ProfilerStep:
    """A ``ProfilerStep#N`` annotation."""

    name: str
    start_us: float
    dur_us: float


@dataclass(frozen=True, slots=True)
class ProfilerTrace:
    """A trace, linked. ``ops`` are the ops that own a kernel, and the ops around them, sorted by start."""

    path_name: str  # the file's name, without folders
    devices: tuple[TraceDevice, ...]
    ops: Ops
    kernels: TraceKernels
    gaps: Gaps
    steps: tuple[ProfilerStep, ...]
    span_us: float  # from the first to the last end of everything kept, CPU and GPU
    busy_us: Mapping[int, float]  # device -> time in which at least one of its streams ran something
    exposed_communication_us: Mapping[int, float]  # device -> communication that no kernel or copy overlapped
    notes: tuple[str, ...]  # what was dropped or guessed, a line each
    #: process group -> its ranks; "": all of them, where no group is listed or only one
    ranks: Mapping[str, int] = field(default_factory=nothing)
    events: int = 0  # of the file, most of which are no kernel
    of_xla: bool = False  # recorded by XLA's profiler, in which ops are instructions of HLO
    programs: tuple[TracedProgram, ...] = ()  # of such a trace the optimized HLO of what ran

    def around(self, op: TracedOp | int | None) -> Iterator[TracedOp]:
        """An op and those around it, innermost first."""
        if op is not None:
            yield from map(self.ops.row, self.ops.around(op if isinstance(op, int) else op.id))
