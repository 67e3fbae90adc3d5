"""One workload on N GPUs, N profiles side by side, or the machines themselves: ``memwall.comparison/1``.

The first entry is the baseline of every speed-up and growth factor. Energy is the GPU's TDP over the step, an upper
bound on what the GPU draws; cost is the price of that many seconds.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memwall.analysis.dtypes import emulations
from memwall.analysis.explanation import calibration_text
from memwall.analysis.levers import Lever
from memwall.analysis.machines import Machine, machines_of
from memwall.analysis.pipes import mfu_peaks
from memwall.analysis.quantities import answer_of, answered
from memwall.analysis.table import Sums, class_rows, equal_kernels, group_by, join
from memwall.analysis.verdict import verdict
from memwall.core.errors import UsageError
from memwall.core.structure import write
from memwall.core.units import duration
from memwall.core.version import __version__
from memwall.core.views import view
from memwall.fusion import UNIVERSAL
from memwall.hardware.host import Host
from memwall.hardware.lookup import Gpu, load_gpu
from memwall.pipeline import Names, asked_gpus, policy_names
from memwall.pipeline import profile as make_profile
from memwall.record.kernels import peak_place, schedule_label, wall_shares
from memwall.record.profile import Profile
from memwall.record.schedules import CHEAP
from memwall.simulate.schedule import Schedule, Totals, time_by_wall

if TYPE_CHECKING:
    from pandas import DataFrame

SCHEMA = "memwall.comparison/1"
KINDS = ("gpus", "profiles", "machines")

#: rows of flips and of changes that a comparison keeps, the longest time first
MAX_ROWS = 20

#: the most entries of which it says what binds them and what would help: about a second each for 3,000 kernels
MOST_LEVERED = 5

#: a flip counts where the kernels take this share of the time on some GPU
NOTABLE = 1e-3

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


@dataclass(frozen=True)
class Comparison:
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

    @property
    def baseline(self) -> str:
        """What a speed-up is over."""
        return "the first profile on the same GPU" if self.kind == "profiles" else "the first"

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON types, in a stable order."""
        own: dict[str, Any] = write(self)
        head = {"schema": SCHEMA, "memwall_version": own.pop("memwall_version")}
        return head | own

    def to_json(self) -> str:
        """The record as text, byte-identical for equal comparisons."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=True, allow_nan=False) + "\n"

    def to_pandas(self) -> DataFrame:
        """One row per entry (or per machine), the columns those of the CSV: the fields of :class:`Entry`, the shares of
        the walls as ``wall_shares.compute`` and so on; seconds and bytes in base units."""
        frame: DataFrame = view("sweeping.comparison_page.comparison_frame", self)
        return frame

    def _repr_html_(self) -> str:
        """What a notebook shows of a comparison."""
        text: str = view("sweeping.comparison_page.comparison_fragment", self)
        return text


# -- one workload, N GPUs ----------------------------------------------------------------------------------------------


def compare_profile(
    profile: Profile, gpus: Sequence[Gpu], *, price: Prices | None = None, policies: Sequence[str] = ()
) -> Comparison:
    """The workload of a profile on N GPUs: its own simulations, or its graph simulated where it lacks one.
    ``policies``: default to the profile's, or eager if it has none. Raises UsageError: no GPU, a price for a GPU that
    is not compared, or no such policy."""
    if not gpus:
        raise UsageError("nothing to compare: name at least one GPU")
    _check_prices(price, [gpu.name for gpu in gpus])
    named = policies or tuple(profile.policies) or ("eager",)
    # those made in this run or by a compiler are kept, the others are made again
    known = {(s.gpu, s.policy): s for s in profile.simulations if s.policy not in CHEAP}
    pairs = [(gpu, policy) for policy in named for gpu in gpus]
    schedules = [known.get(pair) or profile.schedule(*pair, launch=profile.launch) for pair in pairs]
    entries = [_entry(profile, s, schedule_label(profile, s), schedules[0], price) for s in schedules]
    entries = _levered(entries, [(profile, s) for s in schedules])
    flipped = flips(profile, schedules) if len(named) == 1 else ()
    subject = f"{profile.workload.name}, {profile.workload.configuration}"
    return Comparison("gpus", profile.workload.name, subject, tuple(entries), flipped)


def flips(profile: Profile, schedules: Sequence[Schedule]) -> tuple[Flip, ...]:
    """Groups of equal kernels whose wall is not the same on all GPUs, if notable, the longest time first; groups of one
    op and module that change walls alike are one. Schedules of different graphs (another attention kernel) are joined
    where they run equal kernels."""
    known: dict[tuple, list[tuple]] = {}
    groups = []
    for schedule in schedules:
        same = schedule.graph, schedule.policy, schedule.policy in UNIVERSAL or schedule.gpu.name
        if same not in known:
            known[same] = equal_kernels(profile, schedule.graph, schedule.kernels)
        groups.append(known[same])
    columns = [group_by(schedule.timings, keys) for schedule, keys in zip(schedules, groups, strict=True)]
    found: dict[tuple, Flip] = {}
    for key, count in Counter(groups[0]).items():
        by_wall = [time_by_wall(column.get(key, ())) for column in columns]
        times = tuple(sum(walls.values()) for walls in by_wall)
        walls = tuple(max(each, key=each.__getitem__) if any(each.values()) else "" for each in by_wall)
        flipped = len({wall for wall in walls if wall}) > 1
        if flipped and any(time_s >= NOTABLE * s.totals.time_s for time_s, s in zip(times, schedules, strict=True)):
            flip = Flip(key[0], key[3], key[2], count, walls, times)
            row = flip.name, flip.module, flip.phase, walls
            found[row] = _joined(found[row], flip) if row in found else flip
    rows = sorted(found.values(), key=lambda flip: (-max(flip.times_s), flip.name, flip.module, flip.phase))
    return tuple(rows[:MAX_ROWS])


def _joined(flip: Flip, other: Flip) -> Flip:
    times_s = tuple(map(sum, zip(flip.times_s, other.times_s, strict=True)))
    return replace(flip, count=flip.count + other.count, times_s=times_s)


def ratio_interval(base: Totals, other: Totals) -> tuple[float, float] | None:
    """The 80 % interval of ``base.time_s / other.time_s`` of two GPUs; None where a time has none.

    The errors of the two are taken as independent, so that those of the logarithms add up as squares. On measured rows
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


def _entry(profile: Profile, schedule: Schedule, label: str, base: Schedule, price: Prices | None) -> Entry:
    totals, gpu = schedule.totals, schedule.gpu
    apart = None if base.gpu.name == gpu.name else ratio_interval(base.totals, totals)
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
    )


def _levered(entries: Sequence[Entry], ran: Sequence[tuple[Profile, Schedule]]) -> list[Entry]:
    """The entries with what binds them and what would help, unless they are too many."""
    if len(entries) > MOST_LEVERED:
        return [*entries]
    told = [verdict(*each) for each in ran]
    return [
        replace(entry, bound_by=each.bound_by, levers=each.levers) for entry, each in zip(entries, told, strict=True)
    ]


def _check_prices(price: Prices | None, names: Sequence[str]) -> None:
    for name in price or {}:
        if name not in names:
            raise UsageError(f"there is a price for {name}, which is not compared; compared are {', '.join(names)}")


# -- N profiles --------------------------------------------------------------------------------------------------------


def compare_profiles(profiles: Sequence[Profile], *, price: Prices | None = None) -> Comparison:
    """N profiles side by side, the first the baseline; each entry is compared with the baseline on the same GPU. Raises
    UsageError: fewer than two profiles, one without a simulation, or a price for a GPU that is not compared."""
    if len(profiles) < 2:
        raise UsageError("nothing to compare: name at least two profiles, or one profile and GPUs")
    if bare := [each.workload.name for each in profiles if not each.simulations]:
        raise UsageError(f"{bare[0]} has no simulation to compare; profile it on a GPU")
    _check_prices(price, [s.gpu.name for p in profiles for s in p.simulations])
    seen: Counter[str] = Counter()
    names = []
    for each in profiles:
        seen[each.workload.name] += 1
        times = seen[each.workload.name]
        names.append(each.workload.name + (f" #{times}" if times > 1 else ""))
    entries, changes = [], []
    for profile, name in zip(profiles, names, strict=True):
        for schedule in profile.simulations:
            base = _counterpart(profiles[0], schedule)
            label = f"{name} on {schedule_label(profile, schedule)}"
            entries.append(_entry(profile, schedule, label, base, price))
        if profile is not profiles[0]:
            changes += _changes(profiles[0], profile, name)
    entries = _levered(entries, [(profile, schedule) for profile in profiles for schedule in profile.simulations])
    subject = _subject(names, [profile.workload.configuration for profile in profiles])
    return Comparison("profiles", " and ".join(names), subject, tuple(entries), (), tuple(changes))


def _subject(names: Sequence[str], configurations: Sequence[str]) -> str:
    """Names with their configurations; one that all have stands once, at the end."""
    if len(set(configurations)) == 1:
        return f"{' and '.join(names)}, {configurations[0]}"
    return " and ".join(map(", ".join, zip(names, configurations, strict=True)))


def _counterpart(profile: Profile, schedule: Schedule) -> Schedule:
    """The simulation of a profile nearest to a schedule: same GPU and policy, else same GPU, else the first."""

    def distance(other: Schedule) -> tuple[bool, bool]:
        return other.gpu.name != schedule.gpu.name, other.policy != schedule.policy

    return min(profile.simulations, key=distance)


def _changes(base: Profile, other: Profile, name: str) -> list[ProfileChange]:
    """Classes and kernels that changed, on the first GPU that both have, most time first."""
    after = min(other.simulations, key=lambda s: _counterpart(base, s).gpu.name != s.gpu.name)
    before = _counterpart(base, after)
    sides = ((base, before), (other, after))
    classes = [{row.key: row for row in class_rows(profile, schedule)} for profile, schedule in sides]
    kernels = [_by_name(profile, schedule) for profile, schedule in sides]
    rows = []
    for kind, (old, new) in (("class", classes), ("kernel", kernels)):
        found = []
        for key, *both in join(old, new):
            a, b = ((row.time_s, row.flops, row.bytes) if row else (0.0, 0, 0) for row in both)
            if a != b:
                found.append(ProfileChange(name, kind, key, a[0], b[0], a[1], b[1], a[2], b[2]))
        found.sort(key=lambda row: (-abs(row.delta_s), row.name))
        rows += found[:MAX_ROWS]
    return rows


def _by_name(profile: Profile, schedule: Schedule) -> dict[str, Sums]:
    """The sums of kernels of one name, module and phase."""
    keys = equal_kernels(profile, schedule.graph, schedule.kernels)
    names = [" ".join(part for part in (key[0], key[3], f"({key[2]})") if part) for key in keys]
    return {name: Sums.of(kernels) for name, kernels in group_by(schedule.kernels, names).items()}


# -- the machines themselves -------------------------------------------------------------------------------------------


def compare_gpus(gpus: Sequence[Gpu]) -> Comparison:
    """The machines themselves; growth is relative to the first. Raises UsageError: no GPU."""
    if not gpus:
        raise UsageError("nothing to compare: name at least one GPU")
    return Comparison("machines", "machines", "machines", machines=machines_of(gpus))


# -- any of these ------------------------------------------------------------------------------------------------------


def compare(
    target_or_profiles: Any = None,
    *,
    gpu: Names = (),
    price: Mapping[str, float] | None = None,
    policy: str | Iterable[str] = (),
    host: str | Path | Host | None = None,
    **options: Any,
) -> Comparison:
    """One workload on N GPUs, N profiles side by side, or, without a target, the machines themselves.

    Args:
        target_or_profiles: a target, module or workload (profiled first, with ``options`` as for :func:`profile`), a
            profile, a list of profiles, or None.
        gpu: the GPUs; the profile's own when empty.
        price: USD per hour by GPU name.
        policy: how ops are grouped into kernels, one way or several; the profile's own where none is named.
        host: what issues the kernels, as for :func:`profile`; the profile's own where none is named.

    Raises:
        UsageError: fewer than two things to compare, or as :func:`profile`.
    """
    own = target_or_profiles if isinstance(target_or_profiles, Profile) else None
    gpus, policies = asked_gpus(gpu, host, own) if gpu else [], policy_names(policy)
    if target_or_profiles is None:
        return compare_gpus(gpus or [load_gpu(name) for name in ("p100-sxm2-16gb", "h100-sxm")])
    if isinstance(target_or_profiles, (list, tuple)) and len(target_or_profiles) > 1:
        return compare_profiles(list(target_or_profiles), price=price)
    if isinstance(target_or_profiles, (list, tuple)):
        target_or_profiles = target_or_profiles[0]
    if not isinstance(target_or_profiles, Profile):
        options |= {"gpu": gpus or "h100-sxm", "policy": policies or "eager", "host": host}
        target_or_profiles = make_profile(target_or_profiles, **options)
    if not gpus and target_or_profiles.gpus:
        gpus = asked_gpus(target_or_profiles.gpus, host)
    return compare_profile(target_or_profiles.on(gpus), gpus, price=price, policies=policies)
