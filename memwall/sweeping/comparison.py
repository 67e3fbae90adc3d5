"""What a comparison is: one workload on N GPUs, N profiles, or the machines themselves: ``memwall.comparison/1``.

The first entry is the baseline of every speed-up and growth factor. Energy is what the GPU draws
by what its kernels keep busy; cost is the price of that many seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from typing import TYPE_CHECKING, Any

from memwall.analysis.dtypes import emulations
from memwall.analysis.explanation import calibration_text
from memwall.analysis.kernel_kinds import kernel_kinds
from memwall.analysis.levers import Lever
from memwall.analysis.machines import Machine
from memwall.analysis.pipes import mfu_peaks
from memwall.analysis.quantities import answer_of, answered
from memwall.analysis.verdict import verdict
from memwall.core.errors import UsageError
from memwall.core.structure import write
from memwall.core.units import duration
from memwall.core.version import __version__
from memwall.core.views import ShownResult, view
from memwall.record.kernels import peak_place, wall_shares
from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule, Totals

if TYPE_CHECKING:
    from pandas import DataFrame

SCHEMA = "memwall.comparison/1"
KINDS = ("gpus", "profiles", "machines")

#: the most entries of which it says what binds them and what would help: about a second each for 3,000 kernels
MOST_LEVERED = 5

#: GPU name -> USD per hour
Prices = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One workload on one GPU under one policy; the quantities of a step (:mod:`memwall.analysis.quantities`) are
    further fields, None where the workload or the GPU does not state one."""

    label: str
    workload: str
    gpu: str
    policy: str
    #: how the constants behind the time are known; empty on a CPU
    calibrated: str
    #: how many times faster than the entry that it is compared with (the first, or the baseline's on the same GPU)
    speedup: float
    #: its 80 % interval (:func:`ratio_interval`); None where both are on one GPU, whose errors they share
    speedup_low: float | None
    speedup_high: float | None
    #: the peaks that ``mfu`` is relative to, by pipe, the busiest first
    mfu_peaks: Mapping[str, float]
    wall_shares: Mapping[str, float]
    #: where most memory is alive: "in the optimizer step, at _foreach_sqrt"; empty where it is not known
    peak_at: str
    #: sentences: the dtypes of its products that the GPU has no tensor cores for
    emulated: tuple[str, ...]
    #: what issues the kernels; empty on a CPU, and where a CUDA graph does
    host: str = ""
    #: what binds the step, and what would make it faster (:mod:`memwall.analysis.levers`); empty where there are more
    #: than :data:`MOST_LEVERED` entries
    bound_by: str = ""
    levers: tuple[Lever, ...] = ()
    #: launches, and seconds, by kind of kernel (:mod:`memwall.analysis.kernel_kinds`): what is fused with what
    kind_kernels: Mapping[str, int] = field(default_factory=dict)
    kind_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def time_text(self) -> str:
        """``1.65 ms (1.55 ms to 1.80 ms)``: the time and its interval."""
        low_s, time_s, high_s = map(self.figure, ("low_s", "time_s", "high_s"))
        return duration(time_s) + ("" if low_s == high_s else f" ({duration(low_s)} to {duration(high_s)})")

    def figure(self, name: str) -> Any:
        """A quantity of a step."""
        return getattr(self, NAMES.get(name, name))


#: quantity -> its key in a record, where that is another
NAMES = {"peak_memory": "peak_memory_bytes"}

if TYPE_CHECKING:

    class Entry(_Entry):
        def __init__(self, **values: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

else:
    _TYPES = {"word": str, "flag": bool}
    Entry = make_dataclass(
        "Entry",
        [(NAMES.get(q.name, q.name), _TYPES.get(q.unit, float | None), None) for q in answered("profile")],
        bases=(_Entry,),
        frozen=True,
        kw_only=True,
        namespace={"__module__": __name__},
    )


@dataclass(frozen=True, slots=True)
class Flip:
    """Equal kernels that hit different walls on different GPUs. ``walls`` and ``times_s`` follow the entries."""

    name: str
    module: str
    phase: str
    count: int
    walls: tuple[str, ...]
    times_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ProfileChange:
    """What one profile does more or less of than the baseline: a class or a kernel."""

    label: str
    kind: str
    name: str
    before_s: float
    after_s: float
    before_flops: int
    after_flops: int
    before_bytes: int
    after_bytes: int

    @property
    def delta_s(self) -> float:
        return self.after_s - self.before_s


#: a profile, and one of its simulations
Side = tuple[Profile, Schedule]


@dataclass(frozen=True, repr=False)
class Comparison(ShownResult):
    """What is compared (one of ``KINDS``) and the rows: entries for workloads, machines for GPUs alone."""

    kind: str
    title: str
    #: the title with mode, dtype and batch of the workloads
    subject: str = ""
    entries: tuple[Entry, ...] = ()
    flips: tuple[Flip, ...] = ()
    changes: tuple[ProfileChange, ...] = ()
    machines: tuple[Machine, ...] = ()
    memwall_version: str = __version__
    #: of each profile after the first its name, and both it and the first with the simulations that are compared, for
    #: pictures; a record does not have them
    sides: tuple[tuple[str, Side, Side], ...] = field(default=(), compare=False, repr=False)

    @property
    def baseline(self) -> str:
        """What a speed-up is over."""
        return "the first profile on the same GPU" if self.kind == "profiles" else "the first"

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON types, in a stable order."""
        own: dict[str, Any] = write(replace(self, sides=()))
        head = {"schema": SCHEMA, "memwall_version": own.pop("memwall_version")}
        own.pop("sides")
        return head | own

    def to_json(self) -> str:
        """The record as text, byte-identical for equal comparisons."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=True, allow_nan=False) + "\n"

    def to_pandas(self) -> DataFrame:
        """One row per entry (or per machine), the columns as in the CSV: the fields of :class:`Entry`, the shares of
        the walls as ``wall_shares.compute`` and so on; seconds and bytes in base units."""
        frame: DataFrame = view("sweeping.comparison_page.comparison_frame", self)
        return frame

    def _repr_html_(self) -> str:
        """What a notebook shows of a comparison."""
        text: str = view("sweeping.comparison_page.comparison_fragment", self)
        return text


def ratio_interval(base: Totals, other: Totals) -> tuple[float, float] | None:
    """The 80 % interval of ``base.time_s / other.time_s`` of two GPUs; None where a time has none.

    The errors of the two are taken as independent, so that errors of the logarithms add up as squares. On measured rows
    of equal shapes on two GPUs they are correlated by 0.1 to 0.2 (products, fp32 elementwise) and up to 0.5 to 0.7
    (attention, norms, convolutions), never below 0: the interval holds at least 80 % of them.
    """
    ends = (base.low_s, base.high_s, other.low_s, other.high_s)
    if base.low_s == base.high_s or other.low_s == other.high_s or min(ends) <= 0:
        return None
    ratio = base.time_s / other.time_s
    down = math.hypot(math.log(base.time_s / base.low_s), math.log(other.high_s / other.time_s))
    up = math.hypot(math.log(base.high_s / base.time_s), math.log(other.time_s / other.low_s))
    return ratio * math.exp(-down), ratio * math.exp(up)


def entry_of(profile: Profile, schedule: Schedule, label: str, base: Schedule, price: Prices | None) -> Entry:
    totals, gpu = schedule.totals, schedule.gpu
    apart = None if base.gpu.name == gpu.name else ratio_interval(base.totals, totals)
    kinds = kernel_kinds(profile, schedule)
    figures = answer_of(profile, schedule, (price or {}).get(gpu.name))
    return Entry(
        label=label,
        workload=profile.workload.name,
        gpu=gpu.name,
        policy=schedule.policy,
        **{NAMES.get(name, name): value for name, value in figures.items()},
        calibrated=calibration_text(profile, schedule),
        host=gpu.host.name if gpu.cpu is None and schedule.launch != "graph" else "",
        speedup=base.totals.time_s / totals.time_s if totals.time_s else 0.0,
        speedup_low=apart and apart[0],
        speedup_high=apart and apart[1],
        mfu_peaks={str(pipe): rate for pipe, rate in mfu_peaks(profile, schedule).items()},
        wall_shares=wall_shares(schedule),
        peak_at=peak_place(profile, schedule),
        emulated=emulations(profile, schedule),
        kind_kernels={name: kind.kernels for name, kind in kinds.items()},
        kind_s={name: kind.time_s for name, kind in kinds.items()},
    )


def levered(entries: Sequence[Entry], ran: Sequence[tuple[Profile, Schedule]]) -> list[Entry]:
    """The entries with what binds them and what would help, unless they are too many."""
    if len(entries) > MOST_LEVERED:
        return [*entries]
    told = [verdict(*each) for each in ran]
    return [
        replace(entry, bound_by=each.bound_by, levers=each.levers) for entry, each in zip(entries, told, strict=True)
    ]


def check_prices(price: Prices | None, names: Sequence[str]) -> None:
    for name in price or {}:
        if name not in names:
            raise UsageError(f"there is a price for {name}, which is not compared; compared are {', '.join(names)}")
