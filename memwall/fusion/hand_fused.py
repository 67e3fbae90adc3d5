"""Modules hand-fused into one kernel each: what a plan becomes when all ops of a module share a launch.

All ops of the module are included, contractions too, and the planner's rules do not apply: such a kernel is
priced as if every intermediate stayed on chip. Only a cycle forbids it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import accumulate

from memwall.core.errors import UsageError, nearest
from memwall.core.flow import Flow
from memwall.core.graph import Graph
from memwall.core.layers import collapse
from memwall.fusion.plan import Group, Part, Placement, Plan, in_order, inverse, topological, waits
from memwall.fusion.pricing import Pricer
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost

#: (path, phase)
Unit = tuple[str, str]


@dataclass(frozen=True)
class HandFused:
    """A plan in which modules run as one kernel each: how many do, and which cannot, with the reason."""

    plan: Plan
    fused: int
    refused: tuple[str, ...]


def modules_of(graph: Graph, pattern: str) -> dict[Unit, tuple[int, ...]]:
    """(module, phase) -> its ops, for each outermost module whose path fits the pattern; a UsageError that suggests
    names if none does."""
    found: dict[str, str] = {}
    members: dict[Unit, list[int]] = {}
    for op in graph.ops:
        if op.module not in found:
            paths = accumulate(op.module.split("."), lambda path, part: f"{path}.{part}")
            found[op.module] = next((p for p in paths if p and fnmatchcase(p, pattern)), "")
        if found[op.module]:
            members.setdefault((found[op.module], op.phase), []).append(op.id)
    if not members:
        raise UsageError(f"no module fits {pattern!r}; {_near_modules(graph, pattern)}")
    return {key: tuple(ops) for key, ops in members.items()}


def _near_modules(graph: Graph, pattern: str) -> str:
    paths: dict[str, None] = {}
    for op in graph.ops:
        starred = collapse(op.module)
        paths.update(dict.fromkeys(accumulate(starred.split("."), lambda path, part: f"{path}.{part}")))
    paths.pop("", None)
    near = [p for p in paths if p.endswith(f".{pattern}")] or nearest(pattern, paths, 3, 0.4)
    return f"did you mean {', '.join(near[:3])}?" if near else f"there is {', '.join([*paths][:6]) or 'none'}"


def fuse_modules(graph: Graph, costs: Sequence[Cost], gpu: Gpu, plan: Plan, patterns: Sequence[str]) -> HandFused:
    """The plan with each module that a pattern finds, phase by phase, as one kernel priced like any group.

    A module that a path leaves and re-enters cannot be one kernel: it stays as it was. A group of the plan that
    would form a cycle with one of the new kernels is split into single ops.

    Raises:
        UsageError: a pattern fits no module.
    """
    home: dict[int, Unit] = {}
    for pattern in patterns:
        for unit, ops in modules_of(graph, pattern).items():
            for op in ops:
                if op not in home or len(unit[0]) < len(home[op][0]):  # the outermost of nested modules
                    home[op] = unit
    units: dict[Unit, list[int]] = {}
    for op, unit in sorted(home.items()):
        units.setdefault(unit, []).append(op)
    pricer = Pricer(graph, costs, gpu)
    whole = {unit: tuple(ops) for unit, ops in units.items() if _is_convex(pricer.flow, ops)}
    refused = [f"{_name(unit)}: what leaves it comes back into it" for unit in units if unit not in whole]
    while True:
        groups = _without_circles(pricer, _take_out(plan, whole), set(whole.values()))
        if groups is not None:
            return HandFused(replace(plan, groups=tuple(groups)), len(whole), tuple(refused))
        unit, _ = whole.popitem()
        refused.append(f"{_name(unit)}: it and another module wait for each other")


def _name(unit: Unit) -> str:
    module, phase = unit
    return f"{module} ({phase})"


def _is_convex(flow: Flow, ops: Sequence[int]) -> bool:
    """Whether no path leaves the ops and comes back."""
    inside = frozenset(ops)
    behind: set[int] = set()  # ops outside that depend on one inside
    for op_id in range(ops[0], ops[-1] + 1):
        deps = flow.deps[op_id]
        if op_id in inside:
            if not behind.isdisjoint(deps):
                return False
        elif any(dep in inside or dep in behind for dep in deps):
            behind.add(op_id)
    return True


def _take_out(plan: Plan, units: Mapping[Unit, tuple[int, ...]]) -> list[Group | Part]:
    """The groups of the plan, without the ops of units, and the units."""
    unit_of = {op: unit for unit, ops in units.items() for op in ops}
    again: dict[Unit, set[int]] = {unit: set() for unit in units}
    parts: list[Group | Part] = []
    for group in plan.groups:
        touched = {unit_of[op] for op in group.op_ids if op in unit_of}
        for unit in touched:
            again[unit].update(group.recomputes)
        rest = tuple([op for op in group.op_ids if op not in unit_of])
        if rest:
            parts.append(Part(rest, group.recomputes) if touched else group)
    parts.extend(Part(ops, tuple(sorted(again[unit].difference(ops)))) for unit, ops in units.items())
    return parts


def _without_circles(
    pricer: Pricer, parts: list[Group | Part], modules: Collection[tuple[int, ...]]
) -> list[Group] | None:
    """The priced groups in launch order; None when hand-fused kernels wait for each other."""
    while True:
        try:
            ordered = in_order(pricer.flow, parts)
        except ValueError:
            stuck = _in_circles(pricer.flow, parts)
            loose = {i for i in stuck if len(parts[i].op_ids) > 1 and parts[i].op_ids not in modules}
            if not loose:
                return None
            singles: list[Group | Part] = [
                Part((op,), parts[i].recomputes) for i in sorted(loose) for op in parts[i].op_ids
            ]
            parts = [part for i, part in enumerate(parts) if i not in loose] + singles
        else:
            pricer.placement = Placement(ordered)
            return [_priced(pricer, part) for part in ordered]


def _priced(pricer: Pricer, part: Group | Part) -> Group:
    if isinstance(part, Group):
        return part
    if len(part.op_ids) == 1 and not part.recomputes:
        return pricer.alone(part.op_ids[0])
    return pricer.group(part.op_ids, part.recomputes)


def _in_circles(flow: Flow, parts: Sequence[Group | Part]) -> set[int]:
    """Numbers of the parts on a cycle, or between two cycles."""
    before = waits(flow, parts)
    free = {number for some in (before, inverse(before)) for number in topological(some, int)}
    return set(range(len(parts))) - free
