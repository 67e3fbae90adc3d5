"""Profile → rows: the sums that every renderer shows, each computed here and nowhere else.

Conventions. A kernel belongs to the phase of its first op and to the module that all of its ops share. Kernels that
repeat (the same op on the same shapes in the same place of a repeated block) form one :class:`KernelRow` with a count;
all its figures are totals over the repeats. A row's wall is the one that most of its time stands under.

*Times fewer FLOP/s*: the FLOP/s that the matrix classes (contraction, convolution, attention: those that MFU counts)
attain together, over the FLOP/s that a class attains. None for the matrix classes themselves, and for a class that does
less than one FLOP per hundred bytes: it moves data, and a ratio would say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from memwall.core.errors import UsageError
from memwall.core.graph import PHASES, TensorSpec
from memwall.ops.registry import OP_CLASSES
from memwall.perfmodel.roofline import WALLS as WALLS
from memwall.perfmodel.roofline import Estimate
from memwall.record.profile import Profile
from memwall.simulate.schedule import MODEL_CLASSES, Schedule

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(frozen=True, slots=True)
class ShareRow:
    """Some kernels of a schedule together: a class, a phase or a module."""

    key: str
    kernels: int
    flops: int
    bytes: int
    bound_s: float
    time_s: float
    limited_by: str
    #: fractions of the whole schedule
    flop_share: float
    byte_share: float
    time_share: float
    #: how many times fewer FLOP/s than the matrix classes; set for classes only
    times_fewer: float | None = None

    @property
    def attained_flop_per_s(self) -> float:
        """FLOPs over modeled time."""
        return self.flops / self.time_s if self.time_s else 0.0

    @property
    def arithmetic_intensity(self) -> float:
        """FLOP per compulsory DRAM byte."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One kernel, or ``count`` equal ones. FLOPs, bytes and seconds are totals over all of them."""

    name: str
    op_class: str
    phase: str
    module: str
    shapes: str
    count: int
    flops: int
    read_bytes: int
    write_bytes: int
    bound_s: float
    time_s: float
    compute_s: float
    memory_s: float
    overhead_s: float
    limited_by: str
    time_share: float
    modeled: bool
    low_s: float
    high_s: float

    @property
    def bytes(self) -> int:
        """Compulsory DRAM bytes."""
        return self.read_bytes + self.write_bytes

    @property
    def arithmetic_intensity(self) -> float:
        """FLOP per compulsory DRAM byte; 0 where nothing moves."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def attained_flop_per_s(self) -> float:
        """FLOPs over modeled time."""
        return self.flops / self.time_s if self.time_s else 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """What a user sees of the speed: steps, samples and tokens per second; None where the workload has no count."""

    steps_per_s: float
    samples_per_s: float | None
    tokens_per_s: float | None


#: ``--sort`` key -> what to sort by, largest first
SORT_KEYS: dict[str, Callable[[KernelRow], float]] = {
    "time": lambda row: row.time_s,
    "flops": lambda row: row.flops,
    "bytes": lambda row: row.bytes,
    "intensity": lambda row: row.arithmetic_intensity,
    "bound": lambda row: row.bound_s,
    "count": lambda row: row.count,
}


# -- where a kernel belongs --------------------------------------------------------------------------------------------


def collapse(module: str) -> str:
    """A module path with its numbers as stars: ``layers.3.attn`` is ``layers.*.attn``."""
    return _NUMBER.sub("*", module)


def common_module(paths: Sequence[str]) -> str:
    """The longest module path that contains all of some paths."""
    if len(set(paths)) == 1:
        return paths[0]
    shared = []
    for parts in zip(*(path.split(".") for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def kernel_phase(profile: Profile, schedule: Schedule, kernel: Estimate) -> str:
    """The phase in which a kernel runs: that of its last op."""
    return profile.graphs[schedule.graph].ops[max(kernel.op_ids)].phase if kernel.op_ids else PHASES[0]


def kernel_module(profile: Profile, schedule: Schedule, kernel: Estimate) -> str:
    """The module that all ops of a kernel share."""
    ops = profile.graphs[schedule.graph].ops
    return common_module([ops[i].module for i in kernel.op_ids]) if kernel.op_ids else ""


def short_name(name: str) -> str:
    """A name for people: ``aten.add.Tensor`` is ``add``; of a fused kernel each part; other libraries' names stay."""
    return _OVERLOAD.sub(r"\1", name)


_OVERLOAD = re.compile(r"(?:(?<=\+)|^)(?:aten\.)?((?<=aten\.)\w+)(?:\.\w+)?(?=[+ ]|$)")


def shapes_text(specs: Iterable[TensorSpec]) -> str:
    """``f16[8,512] f16[512,64]``: the tensors that an op reads."""
    return " ".join(f"{_SHORT.get(s.dtype, s.dtype)}[{','.join(map(str, s.shape))}]" for s in specs)


_SHORT = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2", "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8",
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip


# -- sums --------------------------------------------------------------------------------------------------------------


class _Sum:
    """Adds up kernels."""

    def __init__(self, first: Estimate | None = None) -> None:
        self.first = first
        self.count = self.kernels = self.flops = self.read_bytes = self.write_bytes = 0
        self.bound_s = self.time_s = self.low_s = self.high_s = 0.0
        self.parts = [0.0, 0.0, 0.0]
        self.walls = dict.fromkeys(WALLS, 0.0)

    def add(self, kernel: Estimate, kernels: int = 1) -> None:
        time_s = kernel.time_s
        self.count += 1
        self.kernels += kernels
        self.flops += kernel.flops
        self.read_bytes += kernel.read_bytes
        self.write_bytes += kernel.write_bytes
        self.bound_s += kernel.bound_s
        self.time_s += time_s
        self.low_s += kernel.low_s
        self.high_s += kernel.high_s
        self.parts[0] += kernel.compute_s
        self.parts[1] += kernel.memory_s
        self.parts[2] += kernel.overhead_s
        self.walls[kernel.limited_by] += time_s

    @property
    def limited_by(self) -> str:
        return max(WALLS, key=self.walls.__getitem__)


#: FLOP per byte below which a class moves data rather than computes
LEAST_INTENSITY = 0.01


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _share_rows(profile: Profile, schedule: Schedule, keys: Sequence[str]) -> list[ShareRow]:
    """One row per distinct key, in order of first appearance. ``keys[i]`` is that of ``schedule.kernels[i]``."""
    sums: dict[str, _Sum] = {}
    for kernel, key in zip(schedule.kernels, keys, strict=True):
        if key not in sums:
            sums[key] = _Sum()
        sums[key].add(kernel, kernel.launches)
    flops = sum(s.flops for s in sums.values())
    moved = sum(s.read_bytes + s.write_bytes for s in sums.values())
    time_s = sum(s.time_s for s in sums.values())
    return [
        ShareRow(
            key, s.kernels, s.flops, s.read_bytes + s.write_bytes, s.bound_s, s.time_s, s.limited_by,
            _share(s.flops, flops), _share(s.read_bytes + s.write_bytes, moved), _share(s.time_s, time_s),
        )
        for key, s in sums.items()
    ]  # fmt: skip


def class_rows(profile: Profile, schedule: Schedule) -> tuple[ShareRow, ...]:
    """Rows by op class, in the order in which the registry lists the classes."""
    rows = _share_rows(profile, schedule, [kernel.op_class for kernel in schedule.kernels])
    matrix = [row for row in rows if row.key in MODEL_CLASSES]
    matrix_rate = _share(sum(row.flops for row in matrix), sum(row.time_s for row in matrix))
    order = {name: i for i, name in enumerate(OP_CLASSES)}
    rows.sort(key=lambda row: (order.get(row.key, len(order)), row.key))
    return tuple(_with_times_fewer(row, matrix_rate) for row in rows)


def _with_times_fewer(row: ShareRow, matrix_rate: float) -> ShareRow:
    if row.key in MODEL_CLASSES or not matrix_rate or row.flops < LEAST_INTENSITY * row.bytes or not row.flops:
        return row
    values = {name: getattr(row, name) for name in ShareRow.__slots__}
    return ShareRow(**{**values, "times_fewer": matrix_rate / row.attained_flop_per_s})


def phase_rows(profile: Profile, schedule: Schedule) -> tuple[ShareRow, ...]:
    """Rows by phase: forward, backward, optimizer."""
    rows = _share_rows(profile, schedule, [kernel_phase(profile, schedule, k) for k in schedule.kernels])
    return tuple(sorted(rows, key=lambda row: PHASES.index(row.key)))


def module_rows(
    profile: Profile, schedule: Schedule, *, top: int = 15, depth: int | None = None
) -> tuple[ShareRow, ...]:
    """Rows by module, repeated blocks as one (``layers.*.attn``), longest time first.

    ``depth`` cuts the paths; None takes the deepest level at which all rows fit in ``top``. What does not fit is the
    last row, ``(others)``.
    """
    paths = [collapse(kernel_module(profile, schedule, kernel)) for kernel in schedule.kernels]
    keys = _module_keys(paths, top, depth)
    rows = sorted(_share_rows(profile, schedule, keys), key=lambda row: (-row.time_s, row.key))
    if len(rows) <= top:
        return tuple(rows)
    kept = {row.key for row in rows[: top - 1]}
    keys = [key if key in kept else OTHERS for key in keys]
    rows = _share_rows(profile, schedule, keys)
    return tuple(sorted(rows, key=lambda row: (row.key == OTHERS, -row.time_s, row.key)))


OTHERS = "(others)"


def _module_keys(paths: Sequence[str], top: int, depth: int | None) -> list[str]:
    def cut(level: int) -> list[str]:
        return [".".join(path.split(".")[:level]) or "(top)" for path in paths]

    if depth is not None:
        return cut(depth)
    deepest = max((path.count(".") + 1 for path in paths), default=1)
    for level in range(deepest, 1, -1):
        keys = cut(level)
        if len(set(keys)) <= top:
            return keys
    return cut(1)


def kernel_groups(profile: Profile, graph: int, kernels: Sequence[Estimate]) -> list[tuple]:
    """For each kernel the key of what it repeats: name, class, phase, module with its numbers as stars, shapes."""
    ops, values = profile.graphs[graph].ops, profile.graphs[graph].values
    starred: dict[str, str] = {}
    keys: list[tuple] = []
    for kernel in kernels:
        members = [ops[i] for i in kernel.op_ids]
        module = members[0].module if len(members) == 1 else common_module([op.module for op in members])
        if module not in starred:
            starred[module] = collapse(module)
        shapes = tuple([values[i].spec for op in members for i in op.inputs])
        keys.append((kernel.name, kernel.op_class, members[0].phase, starred[module], shapes, kernel.flops,
                     kernel.read_bytes, kernel.write_bytes))  # fmt: skip
    return keys


def kernel_rows(
    profile: Profile, schedule: Schedule, *, top: int | None = None, sort: str = "time", group: bool = True
) -> tuple[KernelRow, ...]:
    """The kernels, largest first by ``sort``; with ``group``, repeated kernels as one row.

    Raises:
        UsageError: ``sort`` is no sort key.
    """
    if sort not in SORT_KEYS:
        raise UsageError(f"cannot sort by {sort!r}; choose one of {', '.join(SORT_KEYS)}")
    sums: dict[object, _Sum] = {}
    keys: Sequence[object] = range(len(schedule.kernels))
    if group:
        keys = kernel_groups(profile, schedule.graph, schedule.kernels)
    for key, kernel in zip(keys, schedule.kernels, strict=True):
        if key not in sums:
            sums[key] = _Sum(kernel)
        sums[key].add(kernel)
    total_s = schedule.totals.time_s
    rows = [_kernel_row(profile, schedule, entry, total_s) for entry in sums.values()]
    rows.sort(key=lambda row: (-SORT_KEYS[sort](row), row.name, row.module, row.phase, row.shapes))
    return tuple(rows[:top])


def _kernel_row(profile: Profile, schedule: Schedule, entry: _Sum, total_s: float) -> KernelRow:
    kernel = entry.first
    assert kernel is not None
    graph, costs = profile.graphs[schedule.graph], profile.costs[schedule.graph]
    module = kernel_module(profile, schedule, kernel)
    specs = [graph.values[i].spec for op_id in kernel.op_ids for i in graph.ops[op_id].inputs]
    return KernelRow(
        kernel.name, kernel.op_class, kernel_phase(profile, schedule, kernel),
        collapse(module) if entry.count > 1 else module, shapes_text(specs), entry.count,
        entry.flops, entry.read_bytes, entry.write_bytes, entry.bound_s, entry.time_s,
        entry.parts[0], entry.parts[1], entry.parts[2],
        entry.limited_by, _share(entry.time_s, total_s), all(costs[i].modeled for i in kernel.op_ids),
        entry.low_s, entry.high_s,
    )  # fmt: skip


# -- single figures ----------------------------------------------------------------------------------------------------


def wall_shares(schedule: Schedule) -> dict[str, float]:
    """Fraction of the time under each wall."""
    by_wall = schedule.time_by_wall()
    total = sum(by_wall.values())
    return {wall: _share(by_wall[wall], total) for wall in WALLS}


def rates(profile: Profile, schedule: Schedule) -> Rates:
    """Steps, samples and tokens per second."""
    time_s = schedule.totals.time_s
    steps = _share(1.0, time_s)
    samples, tokens = profile.workload.samples, profile.workload.tokens
    return Rates(steps, None if samples is None else samples * steps, None if tokens is None else tokens * steps)


def schedule_label(profile: Profile, schedule: Schedule) -> str:
    """``h100-sxm``, with the policy where it is not eager or several were simulated."""
    several = len({s.policy for s in profile.simulations}) > 1
    return f"{schedule.gpu.name}, {schedule.policy}" if several or schedule.policy != "eager" else schedule.gpu.name
