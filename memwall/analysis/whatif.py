"""What-ifs: the totals again on a GPU with other numbers, or with each module hand-fused into one kernel.

``dram_bytes_per_s*=2`` changes one number of the GPU and leaves all others as they are: more multiprocessors alone
raise no peak; ``latency_s/=2`` halves what no peak shortens, and a factor of ``link_bytes_per_s`` holds for all links
of a cluster. ``dtype=bfloat16`` (or ``tf32``) puts the products into another dtype (:mod:`memwall.analysis.dtypes`).
``fuse:layers.*.mlp`` puts all ops of each module that the pattern matches, phase by phase, into one
kernel, contractions included and whatever the planner's rules say, as if every intermediate stayed on chip. memwall's
planner plans the rest again around it; Inductor's groups stay as they are except for the ops taken out.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memwall.analysis.dtypes import DTYPES, in_dtype, known_dtype
from memwall.core.errors import UsageError, suggest
from memwall.core.graph import Graph, Pipe
from memwall.core.progress import counting
from memwall.core.structure import BadRecord, shown
from memwall.fusion import why_not
from memwall.fusion.hand_fused import fuse_modules, modules_of
from memwall.hardware.checks import fraction, not_negative, positive
from memwall.hardware.constants import CONSTANTS, names_of
from memwall.hardware.engine import EngineHost
from memwall.hardware.gpu import FIELDS, PIPE_NAMES
from memwall.hardware.host import Host
from memwall.hardware.links import Cluster
from memwall.hardware.lookup import Gpu
from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule, Totals

#: Policies that plan again on a GPU with other numbers, and around hand-fused modules. The others keep their groups:
#: eager has none, and Inductor hardly depends on the numbers.
REPLANNED = frozenset(("memwall",))
#: numbers of a GPU that no planner looks at, or that hold products back whatever they are fused with
UNPLANNED = ("host", "tdp_w")
#: Policies that no hand-fused kernel changes: a lower bound.
FLOORS = frozenset(("ideal",))

_OPERATORS: Mapping[str, Callable[[float, float], float]] = {
    "*=": operator.mul, "/=": operator.truediv, "=": lambda old, new: new,
}  # fmt: skip
_NUMBER = re.compile(r"([-+]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?)\s*([^\s\d]*)")
_PREFIX: Mapping[str, float] = {
    "": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18, "m": 1e-3, "u": 1e-6, "n": 1e-9,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
}  # fmt: skip
#: the end of a field's name -> its unit; the longest end wins
_UNITS: Mapping[str, str] = {
    "flop_per_s": "FLOP/s", "bytes_per_s": "B/s", "bytes": "B", "_s": "s", "_hz": "Hz", "_w": "W", "": "",
}  # fmt: skip

#: A GPU's scalar numbers, and numbers that come in tables with their keys.
SCALARS = tuple(name for name, row in FIELDS.items() if name.endswith(("_s", "_bytes", "_hz", "_w", "_count")))
#: the host's seconds: as many for each op that launches, or all of them by a factor
DISPATCH = "dispatch_s"
#: the seconds of a kernel that no peak shortens, all of them by a factor: its launch, the clocks of its instructions
#: and dependent steps, and these constants of its family
LATENCY = "latency_s"
_LATENCIES = frozenset(("latency_s", "start_s", "split_s", "join_s", "step_s"))
LINK = "link_bytes_per_s"
TABLES: Mapping[str, tuple[Callable[[Any], float], tuple[str, ...]]] = {
    "peak_flop_per_s": (positive, PIPE_NAMES),
    "achievable": (fraction, ("dram", *PIPE_NAMES)),
}


@dataclass(frozen=True)
class GpuChange:
    """One number of the GPU changed: ``field``, its ``key`` in a table (empty: all), operator, operand in base SI."""

    text: str
    field: str
    key: str
    operator: str
    operand: float

    def on(self, gpu: Gpu) -> Gpu:
        """The GPU with that number changed. Raises UsageError: it has no such pipe, or the number would be
        impossible."""
        try:
            if self.field == DISPATCH:
                return replace(gpu, host=self._host(gpu.host))
            if self.field == LATENCY:
                return _with_latency(gpu, positive(self._factor))
            if self.field == LINK and gpu.cluster:
                gpu = replace(gpu, cluster=self._joined(gpu.cluster))
            changed: dict[str, Any] = {self.field: self._table(gpu) if self.field in TABLES else self._scalar(gpu)}
        except BadRecord as error:
            raise UsageError(f"--what-if {self.text}: on {gpu.name}, {self.field} {error}") from None
        except ZeroDivisionError:
            raise UsageError(f"--what-if {self.text} divides by zero") from None
        return replace(gpu, **changed)

    def on_engine(self, host: EngineHost) -> EngineHost:
        """The CPU of an inference engine with that number changed: as many seconds for each kernel that it launches,
        or all of its seconds by a factor. Raises UsageError: as :meth:`on`."""
        if self.field != DISPATCH:
            return host
        try:
            number = not_negative(_OPERATORS[self.operator](1.0, self.operand))
        except BadRecord as error:
            raise UsageError(f"--what-if {self.text}: {self.field} {error}") from None
        return replace(host, launch_s=number) if self.operator == "=" else host.scaled(number)

    @property
    def _factor(self) -> float:
        if self.operator == "=":
            raise UsageError(f"--what-if {self.text}: {self.field} takes a factor, as in '{self.field}*=2'")
        return _OPERATORS[self.operator](1.0, self.operand)

    def _joined(self, cluster: Cluster) -> Cluster:
        links = {
            name: replace(link, bytes_per_s=positive(self._factor * link.bytes_per_s))
            for name, link in cluster.link.items()
        }
        return replace(cluster, link=links)

    def _host(self, host: Host) -> Host:
        number = not_negative(_OPERATORS[self.operator](1.0, self.operand))
        return Host.uniform(number) if self.operator == "=" else host.scaled(number)

    def _scalar(self, gpu: Gpu) -> Any:
        old = getattr(gpu, self.field)
        new = _OPERATORS[self.operator](old, self.operand)
        return FIELDS[self.field][1](round(new) if isinstance(old, int) and math.isfinite(new) else new)

    def _table(self, gpu: Gpu) -> dict[Any, float]:
        table = getattr(gpu, self.field)
        found = {key: rate for key, rate in table.items() if not self.key or str(key) == self.key}
        if not found and self.operator != "=":
            there = ", ".join(map(str, table))
            raise UsageError(f"--what-if {self.text}: {gpu.name} has no {self.key}; it has {there}")
        if not found:
            found = {Pipe.parse(self.key) if self.field == "peak_flop_per_s" else self.key: 0.0}
        check, change = TABLES[self.field][0], _OPERATORS[self.operator]
        return {**table, **{key: check(change(old, self.operand)) for key, old in found.items()}}


@dataclass(frozen=True)
class FuseChange:
    """All ops of one phase of each module that ``pattern`` matches, in one kernel. ``*`` matches any text."""

    text: str
    pattern: str


@dataclass(frozen=True)
class DtypeChange:
    """The products in another dtype."""

    text: str
    dtype: str


Change = GpuChange | FuseChange | DtypeChange


def _with_latency(gpu: Gpu, factor: float) -> Gpu:
    """The GPU whose kernels wait ``factor`` times as long for all that no peak shortens."""
    constants = dict(gpu.utilization)
    for table in {key.rpartition(".")[0] for key in constants}:
        defaults = CONSTANTS[table.partition(".")[0]]()
        for name in _LATENCIES.intersection(names_of(type(defaults))):
            constants[f"{table}.{name}"] = factor * constants.get(f"{table}.{name}", getattr(defaults, name))
    return replace(
        gpu,
        launch_overhead_s=factor * gpu.launch_overhead_s,
        boost_clock_hz=gpu.boost_clock_hz / factor,
        run_clock_hz=gpu.run_clock_hz / factor,
        max_clock_hz=gpu.max_clock_hz / factor,
        utilization=constants,
    )


def parse_change(text: str) -> Change:
    """A what-if as it is written on the command line. Raises UsageError: it is not a what-if; names the nearest field,
    or shows the syntax."""
    text = text.strip()
    if text.startswith("fuse:"):
        pattern = text.removeprefix("fuse:").strip()
        if not pattern:
            raise UsageError("--what-if fuse: names no module; want a pattern, as in 'fuse:layers.*.mlp'")
        return FuseChange(text, pattern)
    sign = next((sign for sign in _OPERATORS if sign in text), None)
    if sign is None:
        raise UsageError(
            f"cannot read the what-if {shown(text)}; want FIELD=VALUE, FIELD*=FACTOR or fuse:MODULES,"
            " as in 'dram_bytes_per_s*=2', 'l2_bytes=100MB', 'fuse:layers.*.mlp'"
        )
    name, _, operand = (part.strip() for part in text.partition(sign))
    if name == "dtype" and sign == "=":
        if known_dtype(operand) not in DTYPES:
            raise UsageError(f"--what-if {text}: matmuls have no dtype {shown(operand)}; {suggest(operand, DTYPES)}")
        return DtypeChange(text, known_dtype(operand))
    field, key = _field(name)
    unit = next(unit for end, unit in _UNITS.items() if field.endswith(end)) if sign == "=" else ""
    return GpuChange(text, field, key, sign, _value(text, operand, unit))


def _field(name: str) -> tuple[str, str]:
    table, _, key = name.partition(".")
    if table in TABLES and (not key or key in TABLES[table][1]):
        return table, key
    if name in (*SCALARS, DISPATCH, LATENCY):
        return name, ""
    known = [
        *SCALARS,
        DISPATCH,
        LATENCY,
        *TABLES,
        *(f"{table}.{key}" for table, (_, keys) in TABLES.items() for key in keys),
    ]
    offer = suggest(name, known, listed=(*SCALARS, DISPATCH, LATENCY, *TABLES))
    raise UsageError(f"--what-if: a GPU has no number named {shown(name)}; {offer}")


def _value(text: str, operand: str, unit: str) -> float:
    """A number with or without its unit, in base SI."""
    found = _NUMBER.fullmatch(operand)
    suffix = found[2] if found else ""
    prefix = suffix.removesuffix(unit)
    if found is None or (suffix and not (unit and suffix.endswith(unit))) or prefix not in _PREFIX:
        wanted = f"a number, or one in {unit} such as {_EXAMPLES[unit]}" if unit else "a number"
        raise UsageError(f"--what-if {text}: {shown(operand)} is not {wanted}")
    if not math.isfinite(float(found[1])):
        raise UsageError(f"--what-if {text}: {shown(operand)} is not a number that a GPU can have")
    if prefix.endswith("i") and unit != "B":
        raise UsageError(f"--what-if {text}: rates are decimal; {shown(operand)} is not")
    return float(found[1]) * _PREFIX[prefix]


_EXAMPLES = {"FLOP/s": "200TFLOP/s", "B/s": "2TB/s", "B": "100MB", "s": "3us", "Hz": "1.7GHz", "W": "400W"}


@dataclass(frozen=True)
class Outcome:
    """What a what-if changes for one policy on one GPU. ``specs`` are applied together."""

    specs: tuple[str, ...] = field(metadata={"key": "what_if"})
    gpu: str
    policy: str
    before: Totals
    after: Totals
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return " and ".join(self.specs)

    @property
    def speedup(self) -> float:
        return self.before.time_s / self.after.time_s if self.after.time_s else 1.0


def what_if(
    profile: Profile,
    changes: Sequence[Change],
    gpus: Sequence[Gpu],
    policies: Sequence[str],
    regions: Mapping[int, Sequence[int]] | None = None,
) -> list[Outcome]:
    """Totals before and after each change, and after all of them together where there are several. Plans are from
    the profile's own simulations; missing ones, and all of a saved record, are made here. ``regions``: number of a
    graph -> for each of its ops the region that the profile was planned with; memwall's planner fuses within one only.
    Raises UsageError: a change fits neither the GPU nor the model."""
    launches = {(s.gpu, s.policy): s.launch for s in profile.simulations}
    if not changes:
        return []
    wanted = [(gpu, policy) for gpu in gpus for policy in policies]
    pairs = [pair for pair in wanted if pair in launches or not why_not(pair[1], pair[0])]
    before = [profile.schedule(gpu, policy, launch=launches.get((gpu, policy), "eager")) for gpu, policy in pairs]
    sets = [(change,) for change in changes] + ([tuple(changes)] if len(changes) > 1 else [])
    every = [(some, schedule) for some in sets for schedule in before]
    return [
        outcome(profile, schedule, some, (regions or {}).get(schedule.graph))
        for some, schedule in counting(every, "simulating what-ifs")
    ]


def outcome(
    profile: Profile, before: Schedule, changes: Sequence[Change], regions: Sequence[int] | None = None
) -> Outcome:
    """One schedule, which has its plan, before and after some changes together; as :func:`what_if`."""
    changed, plan, number = before.gpu, before.plan, before.graph
    for change in changes:
        if isinstance(change, GpuChange):
            changed = change.on(changed)
    for change in changes:
        if isinstance(change, DtypeChange):
            profile, number = in_dtype(profile, before, change.dtype), 0
            if regions and len(regions) != len(profile.graph.ops):  # attention has other kernels
                regions = None
            plan = profile.schedule(changed, before.policy, launch=before.launch, regions=regions).plan
    assert plan is not None
    graph, costs = profile.graphs[number], profile.costs[number]
    patterns = [change.pattern for change in changes if isinstance(change, FuseChange)]
    notes: tuple[str, ...] = ()
    if patterns:
        regions = _regions(graph, patterns, regions)
    planned = replace(changed, **{name: getattr(before.gpu, name) for name in UNPLANNED})
    if plan.policy in REPLANNED and (planned != before.gpu or patterns):
        again = profile.schedule(changed, plan.policy, graph=number, launch=before.launch, regions=regions)
        kept = profile.schedule(changed, graph=number, launch=before.launch, plan=plan)
        # a planner counts no seconds of the host, and may launch more where launches are cheap
        plan = again.plan if patterns or again.totals.time_s < kept.totals.time_s else plan
        assert plan is not None
    if patterns and plan.policy in FLOORS:
        notes = (f"{plan.policy} is a floor: replacing modules by one kernel does not change it",)
    elif patterns:
        written = fuse_modules(graph, costs, changed, plan, patterns)
        plan, notes = written.plan, written.refused
    after = profile.schedule(changed, graph=number, launch=before.launch, plan=plan).totals
    return Outcome(tuple(change.text for change in changes), before.gpu.name, plan.policy, before.totals, after, notes)


def _regions(graph: Graph, patterns: Sequence[str], apart: Sequence[int] | None) -> list[int]:
    """A region for each module that a pattern matches: none of the planner's kernels crosses its border."""
    regions = [0] * len(graph.ops) if apart is None else [*apart]
    free = max(regions, default=0) + 1
    numbers: dict[tuple[str, str], int] = {}
    for pattern in patterns:
        for unit, ops in modules_of(graph, pattern).items():
            for op in ops:
                regions[op] = numbers.setdefault(unit, free + len(numbers))
    return regions
