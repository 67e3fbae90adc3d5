"""What a table of kernels is, and how the cells of its rows are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from memwall.bench.accuracy.kinds import LEAST, Record, Skip, TableKind, number, seconds
from memwall.bench.accuracy.samples import Sample
from memwall.core.errors import UsageError
from memwall.hardware.lookup import Gpu, load_gpu, match_device
from memwall.ops import Cost
from memwall.perfmodel.base import kept_share

T = TypeVar("T")
K = TypeVar("K", str, tuple[str, str])
#: the largest plausible size of an axis
_LARGEST_SIZE = 1 << 40


@dataclass(frozen=True, kw_only=True)
class Call:
    """The call that one time of a row measures, with its cost on the row's shape. ``warm`` bytes of what it reads are
    in L2 before it; None: what the same call leaves there. ``split``, ``drawn`` and ``shows`` as in :class:`Sample`;
    ``time`` is the column of the time if not the table's, ``measured_s`` the time itself if no column has it."""

    op_class: str
    dtype: str
    shape: str
    cost: Cost
    warm: int | None = None
    split: str = ""
    drawn: bool = False
    time: str = ""
    measured_s: float | None = None
    shows: str = ""


@dataclass(frozen=True)
class Table(TableKind):
    """A table of kernels: what a row of it measures. ``call`` raises as ``read``. ``launch`` is how calls were timed,
    ``gpu`` and ``time`` (ms) are columns."""

    call: Callable[[Record], Call | Iterable[Call]]
    launch: str = "graph"
    gpu: str = "gpu"
    time: str = "latency_ms"
    resolution_s: float = 0.0

    def read(self, record: Record, source: Path) -> Iterator[Sample]:
        found = self.call(record)
        for call in (found,) if isinstance(found, Call) else found:
            yield self._sample(record, call)

    def _sample(self, record: Record, call: Call) -> Sample:
        label = record.get(self.gpu, self.gpu)
        gpu, cost = gpu_named(label), call.cost
        warm = int(cost.read_bytes * kept_share(gpu, cost.bytes)) if call.warm is None else call.warm
        measured_s = seconds(record, call.time or self.time) if call.measured_s is None else call.measured_s
        return Sample(self.name, label, gpu, call.op_class, call.dtype, call.shape, cost, self.launch, warm, measured_s,
                      self.resolution_s, call.split, call.drawn, call.shows)  # fmt: skip


# -- cells, all of which raise ValueError if they are not what they should be ------------------------------------------


def size(record: Record, name: str, least: int = 1) -> int:
    """A whole number of at least 1, or 0."""
    what = "a size" if least else "a count"
    found = number(record, name, least, _LARGEST_SIZE, what)
    if found != int(found):
        raise ValueError(f"{name} is {str(record[name])[:40]!r}, not {what}")
    return int(found)


def count(record: Record, name: str) -> int:
    """A whole number of at least 0."""
    return size(record, name, 0)


def positive(record: Record, name: str) -> float:
    """A number above 0."""
    return number(record, name, LEAST, 1 / LEAST, "a number above 0")


def known(table: Mapping[K, T], name: K, what: str) -> T:
    """The entry of a name, or of several; raises :class:`Skip` if the table does not have it."""
    if name not in table:
        raise Skip(f"{what} {(name if isinstance(name, str) else ' '.join(name))[:40]!r} is not known")
    return table[name]


#: Data sets' names of a GPU that neither drivers nor memwall's specs use.
_LABELS: Mapping[str, str] = {
    "a100": "a100-80gb-sxm",  # Vidur: 80 GB
    "h100": "h100-sxm",  # Vidur: SXM or NVL, not stated
    "P100-PCIe(?)": "p100-pcie-16gb",
    "V100-SXM2-16GB(DGX-1)": "v100-sxm2-16gb",
    "AMD Instinct MI250": "mi250x",  # a process sees one die
    "V100 (PCIe/SXM2 16GB not stated)": "v100-sxm2-16gb",
    "A100 40GB": "a100-40gb-pcie",
    "A100 80GB (PCIe 1935 / SXM 2039 not stated)": "a100-80gb-pcie",
    "H200 (SXM/GH200 not stated)": "h200",
    "A100 SXM4 40GB (MIG 7g)": "a100-40gb-sxm",
    "GH200 96GB HBM3 (120GB LPDDR)": "gh200",
    "MI250X one GCD": "mi250x",
    "V100": "v100-sxm2-16gb",
    "V100-SXM2-16GB": "v100-sxm2-16gb",
    "P100": "p100-pcie-16gb",
    "A100 SXM": "a100-80gb-sxm",
    "A100 PCIe": "a100-80gb-pcie",
    "NVIDIA A100 80GB (Modal)": "a100-80gb-sxm",  # SXM or PCIe, not stated
    "NVIDIA A10G (Modal)": "a10g",
    "NVIDIA L40S (bare machine)": "l40s",
    "NVIDIA T4 (Modal)": "t4",
    "GH200 SXM": "gh200",
    "rtx_pro_6000_server": "rtx-pro-6000-server",
    "RTX6000P": "rtx-pro-6000-server",
}


@lru_cache(maxsize=256)
def gpu_named(label: str) -> Gpu:
    """The GPU that a data set means. Raises Skip: there is no spec of it."""
    try:
        return load_gpu(_LABELS[label]) if label in _LABELS else match_device(label) or load_gpu(label)
    except UsageError:
        raise Skip(f"there is no spec of the GPU {label[:60]!r}") from None
