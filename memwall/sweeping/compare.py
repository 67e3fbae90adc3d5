"""Comparisons: one workload on N GPUs with the kernels whose wall flips, N profiles with what changed, or machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from memwall.analysis.machines import machines_of
from memwall.analysis.table import Sums, class_rows, equal_kernels, group_by, join
from memwall.core.errors import UsageError
from memwall.fusion import UNIVERSAL
from memwall.hardware.host import Host
from memwall.hardware.lookup import Gpu, load_gpu
from memwall.hardware.torch_versions import NEWEST
from memwall.pipeline import Names, asked_gpus, policy_names
from memwall.pipeline import profile as make_profile
from memwall.record.kernels import schedule_label
from memwall.record.profile import Profile
from memwall.record.schedules import CHEAP
from memwall.simulate.schedule import Schedule, time_by_wall
from memwall.sweeping.comparison import Comparison, Flip, Prices, ProfileChange, Side, check_prices, entry_of, levered

#: rows of flips and of changes that a comparison keeps, the longest time first
MAX_ROWS = 20

#: a flip counts where the kernels take this share of the time on some GPU
NOTABLE = 1e-3

# -- one workload, N GPUs ----------------------------------------------------------------------------------------------


def compare_profile(
    profile: Profile, gpus: Sequence[Gpu], *, price: Prices | None = None, policies: Sequence[str] = ()
) -> Comparison:
    """The workload of a profile on N GPUs: its own simulations, or its graph simulated where it lacks one.
    ``policies``: default to the profile's, or eager if it has none. Raises UsageError: no GPU, a price for a GPU that
    is not compared, or no such policy."""
    if not gpus:
        raise UsageError("nothing to compare: name at least one GPU")
    check_prices(price, [gpu.name for gpu in gpus])
    named = policies or tuple(profile.policies) or ("eager",)
    # plans made in this run or by a compiler are kept, the others are made again
    known = {(s.gpu, s.policy): s for s in profile.simulations if s.policy not in CHEAP}
    pairs = [(gpu, policy) for policy in named for gpu in gpus]
    schedules = [known.get(pair) or profile.schedule(*pair, launch=profile.launch) for pair in pairs]
    entries = [entry_of(profile, s, schedule_label(profile, s), schedules[0], price) for s in schedules]
    entries = levered(entries, [(profile, s) for s in schedules])
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


# -- N profiles --------------------------------------------------------------------------------------------------------


def compare_profiles(profiles: Sequence[Profile], *, price: Prices | None = None) -> Comparison:
    """N profiles side by side, the first the baseline; each entry is compared with the baseline on the same GPU. Raises
    UsageError: fewer than two profiles, one without a simulation, or a price for a GPU that is not compared."""
    if len(profiles) < 2:
        raise UsageError("nothing to compare: name at least two profiles, or one profile and GPUs")
    if bare := [each.workload.name for each in profiles if not each.simulations]:
        raise UsageError(f"{bare[0]} has no simulation to compare; profile it on a GPU")
    check_prices(price, [s.gpu.name for p in profiles for s in p.simulations])
    names = _names(profiles)
    entries, changes, sides = [], [], []
    for profile, name in zip(profiles, names, strict=True):
        for schedule in profile.simulations:
            base = _counterpart(profiles[0], schedule)
            label = f"{name} on {schedule_label(profile, schedule)}"
            entries.append(entry_of(profile, schedule, label, base, price))
        if profile is not profiles[0]:
            before, after = _compared(profiles[0], profile)
            sides.append((name, before, after))
            changes += _changes(before, after, name)
    entries = levered(entries, [(profile, schedule) for profile in profiles for schedule in profile.simulations])
    subject = _subject(names, [profile.workload.configuration for profile in profiles])
    return Comparison("profiles", " and ".join(names), subject, tuple(entries), (), tuple(changes), sides=tuple(sides))


def _names(profiles: Sequence[Profile]) -> list[str]:
    """What each profile is called: its model, the library and its version where these differ, and a number where two
    are called alike."""
    versions = [_library(each) for each in profiles]
    several = len(set(versions)) > 1
    seen: Counter[str] = Counter()
    names = []
    for each, version in zip(profiles, versions, strict=True):
        name = f"{each.workload.name} ({version})" if several else each.workload.name
        seen[name] += 1
        names.append(name + (f" #{seen[name]}" if seen[name] > 1 else ""))
    return names


def _library(profile: Profile) -> str:
    """What a profile's program is written with: the torch whose kernels run, or the package that traced it."""
    if profile.of_torch:
        return f"torch {profile.traced.version.name}"
    return next(f"{name} {version}" for name, version in profile.environment.items())


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


def _compared(base: Profile, other: Profile) -> tuple[Side, Side]:
    """The simulations that are compared: on the first GPU that both have."""
    after = min(other.simulations, key=lambda s: _counterpart(base, s).gpu.name != s.gpu.name)
    return (base, _counterpart(base, after)), (other, after)


def _changes(before: Side, after: Side, name: str) -> list[ProfileChange]:
    """Classes and kernels that changed, most time first."""
    sides = before, after
    classes = [{row.key: row for row in class_rows(profile, schedule)} for profile, schedule in sides]
    kernels = [_by_name(profile, schedule) for profile, schedule in sides]
    rows = []
    for kind, (old, new) in (("class", classes), ("kernel", kernels)):
        if not any(key in old for key in new):  # of another framework, whose names are others
            continue
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
    torch: str | Iterable[str] = (),
    **options: Any,
) -> Comparison:
    """One workload on N GPUs or with N versions of torch, N profiles side by side, or, without a target, the machines
    themselves.

    Args:
        target_or_profiles: a target, module or workload (profiled first, with ``options`` as for :func:`profile`), a
            profile, a list of profiles, or None.
        gpu: the GPUs; the profile's own when empty.
        price: USD per hour by GPU name.
        policy: how ops are grouped into kernels, one way or several; the profile's own where none is named.
        host: what issues the kernels, as for :func:`profile`; the profile's own where none is named.
        torch: the version whose kernels run, or several, which stand side by side, the first the baseline.

    Raises:
        UsageError: fewer than two things to compare, several versions of what is traced, or as :func:`profile`.
    """
    versions = [torch] if isinstance(torch, str) else list(torch)
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
        made = [make_profile(target_or_profiles, torch=each, **options) for each in versions or (NEWEST,)]
        if len(made) > 1:
            return compare_profiles(made, price=price)
        target_or_profiles = made[0]
    elif versions:
        raise UsageError(f"{target_or_profiles.workload.name} is already traced, for one version of torch")
    if not gpus and target_or_profiles.gpus:
        gpus = asked_gpus(target_or_profiles.gpus, host)
    return compare_profile(target_or_profiles.on(gpus), gpus, price=price, policies=policies)
