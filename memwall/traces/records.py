"""The contents of a profiler trace, with its kernels linked to the ops that launched them.

Times are microseconds since the first event kept (``TracedKernel.start_us`` may precede an op's: the clocks of CPU and
GPU differ by a few us). Every figure is the trace's own; nothing here is modeled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from memwall.core.units import size

#: sizes of one argument: ``(64, 128)``; of a tensor list: ``((64, 128), (64,))``; ``()`` for a scalar, None or a
#: 0-dim tensor (distinguished by ``types``: a tensor has its dtype there, a scalar "Scalar", "Int", "Double", "")
Dims = tuple[Any, ...]

NOTHING: Mapping[str, Any] = MappingProxyType({})


def nothing() -> Mapping[str, Any]:
    return NOTHING


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of ``deviceProperties``, or one that only kernels name (then only ``index`` is known).

    ``kernels`` counts those that ran on it: a trace lists all GPUs of the machine.
    """

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
            "multiprocessors": str(self.sm_count or ""), "of memory": size(self.dram_bytes) if self.dram_bytes else "",
        }  # fmt: skip
        texts = [f"{text} {what}" for what, text in known.items() if text]
        texts += [f"compute {self.compute_capability}"] if self.compute_capability else []
        maker = f" of {self.vendor}" if self.vendor else ""
        return self.name or (f"an unnamed GPU{maker} with {', '.join(texts)}" if texts else "")


@dataclass(frozen=True, slots=True)
class TracedOp:
    """One op as the CPU ran it: ``aten::addmm``, a Triton call, a user's annotation around kernels.

    ``id`` is its index in :attr:`Trace.ops`; parents come before children. ``dims``, ``types`` and ``strides`` have
    one entry per argument and are empty if shapes were not recorded (``strides`` is None if they were not).
    """

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

    @property
    def end_us(self) -> float:
        return self.start_us + self.dur_us


@dataclass(frozen=True, slots=True)
class TracedKernel:
    """One row of a GPU stream; ``id`` is its index in :attr:`Trace.kernels`, which are sorted by start."""

    id: int
    name: str
    category: str  # "kernel", "memcpy", "memset" or "communication", by the category and the name
    device: int
    stream: int
    start_us: float
    dur_us: float
    op: int | None = None  # id of the innermost op around its launch; None: unmatched
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


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which no stream of a device ran anything, and what the CPU did at its end."""

    device: int
    start_us: float
    dur_us: float
    cause: str  # "host: aten::linear", "sync: cudaStreamSynchronize", "graph launch: cudaGraphLaunch", "unknown"


@dataclass(frozen=True, slots=True)
class Step:
    """A ``ProfilerStep#N`` annotation."""

    name: str
    start_us: float
    dur_us: float


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace, linked. ``ops`` are those that own a kernel, and the ops around them, sorted by start."""

    path_name: str  # the file's name, without folders
    devices: tuple[Device, ...]
    ops: tuple[TracedOp, ...]
    kernels: tuple[TracedKernel, ...]
    gaps: tuple[Gap, ...]
    steps: tuple[Step, ...]
    span_us: float  # from the first to the last end of everything kept, CPU and GPU
    busy_us: Mapping[int, float]  # device -> time in which at least one of its streams ran something
    exposed_communication_us: Mapping[int, float]  # device -> communication that no kernel or copy overlapped
    notes: tuple[str, ...]  # what was dropped or guessed, a line each
    #: process group -> its ranks; "": all of them, where no group is listed or only one
    ranks: Mapping[str, int] = field(default_factory=nothing)

    def around(self, op: TracedOp | int | None) -> Iterator[TracedOp]:
        """An op and those around it, innermost first."""
        while op is not None:
            found = self.ops[op] if isinstance(op, int) else op
            yield found
            op = found.parent
