"""What the kernels of a schedule hold: which ops share one, and which stand alone. It tells apart what two compilers
fuse, whatever their ops are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule


@dataclass(frozen=True, slots=True)
class KindTotal:
    """Kernels of one kind: their number, launches counted, and their seconds."""

    kernels: int = 0
    time_s: float = 0.0


#: op class that marks a kernel → what kernels with such an op are called; the first that a kernel has decides
_MARKS: Mapping[str, str] = {
    "communication": "collectives", "attention": "attention", "convolution": "convolutions", "contraction": "matmuls",
    "normalization": "reductions", "reduction": "reductions", "optimizer": "element-wise",
    "elementwise": "element-wise", "movement": "copies",
}  # fmt: skip
#: kinds in the order in which tables list them: each alone, and with others in one kernel
KINDS = tuple(f"{name}{suffix}" for name in dict.fromkeys((*_MARKS.values(), "others")) for suffix in ("", " fused"))


def kernel_kinds(profile: Profile, schedule: Schedule) -> dict[str, KindTotal]:
    """The kinds of kernels that a schedule has, in the order of :data:`KINDS`."""
    ops = profile.graphs[schedule.graph].ops
    found: dict[str, KindTotal] = {}
    for kernel in schedule.kernels:
        if not kernel.launches:
            continue
        classes = [ops[i].op_class for i in (*kernel.op_ids, *kernel.recomputes)]
        kind = _kind(classes)
        known = found.get(kind, KindTotal())
        found[kind] = KindTotal(known.kernels + kernel.launches, known.time_s + kernel.time_s)
    return {kind: found[kind] for kind in KINDS if kind in found}


def _kind(classes: Sequence[str]) -> str:
    own = set(classes)
    name = next((name for mark, name in _MARKS.items() if mark in own), "others")
    return name if len(classes) == 1 else f"{name} fused"
