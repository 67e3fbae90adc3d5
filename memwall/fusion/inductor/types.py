"""Inductor's decisions as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """One kernel of Inductor's schedule.

    ``op_ids`` are the ops that it owns, ``recomputes`` those that it also computes though another kernel owns them.
    ``kind`` is ``triton`` (``cpp`` on a CPU), ``extern`` (a library's), ``template`` or ``none`` (nothing runs).
    ``read_bytes`` and ``write_bytes`` are Inductor's own count over all ``launches``. ``fx_ops`` has the calls of each
    operator that its own ops were decomposed into, views left out; ``ir_nodes`` is how many loop-level nodes were
    fused into it, and ``loop_ops`` what their bodies call. ``parts`` names the kernel of each launch; kernels that
    share a name but differ are distinguished by a number.
    """

    name: str
    kind: str
    op_ids: tuple[int, ...]
    recomputes: tuple[int, ...]
    launches: int
    read_bytes: int
    write_bytes: int
    ir_nodes: int = 0
    fx_ops: Mapping[str, int] = field(default_factory=dict)
    loop_ops: Mapping[str, int] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Lowered:
    """A graph's forward and backward ops as Inductor would run them: each op is owned by exactly one kernel.

    ``kernels`` are in launch order. ``why_not_fused`` counts refused pairs of the compiled graph by reason.
    ``fallbacks`` names operators, other than products, convolutions and attention, for which Inductor has no lowering
    and calls a library. ``notes`` say where a real ``torch.compile`` is likely to decide otherwise.
    """

    kernels: tuple[LoweredKernel, ...]
    why_not_fused: Mapping[str, int]
    fallbacks: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def ir_nodes(self) -> int:
        """Loop-level nodes before fusion."""
        return sum(kernel.ir_nodes for kernel in self.kernels)

    @property
    def fx_ops(self) -> dict[str, int]:
        """Calls of each operator after Inductor's decompositions, before its graph passes; views left out."""
        return total(kernel.fx_ops for kernel in self.kernels)

    @property
    def loop_ops(self) -> dict[str, int]:
        """Calls of each op in the bodies of all loops, once for each loop."""
        return total(kernel.loop_ops for kernel in self.kernels)

    @property
    def launches(self) -> dict[str, int]:
        """Launches of each distinct kernel."""
        return total(Counter(kernel.parts) for kernel in self.kernels)


def total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of some counts, by name."""
    sums: Counter[str] = Counter()
    for some in counts:
        sums.update(some)
    return dict(sorted(sums.items()))
