"""Modules as a tree: what each costs with all that is inside it. The children of a node add up to it, to the byte.

The modules of a list are one node, ``layers.*``, with a count. A chain of modules with one child each is one node,
``model.layers.*``. What a module does itself, next to its children, is a child of its own, ``(itself)``. The optimizer
of a step is a module. Memory is what is alive at the peak: a parameter, its gradient and its optimizer state belong to
the parameter's module, any other tensor to the module whose kernel first writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from memwall.analysis.table import Sums, TableRow, share
from memwall.core.layers import collapse
from memwall.perfmodel.roofline import Estimate
from memwall.record.kernels import kernel_module
from memwall.record.profile import Profile
from memwall.simulate.memory import alive_at_peak
from memwall.simulate.schedule import Schedule

WHOLE, ITSELF = "(whole step)", "(itself)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow(TableRow):
    """A node; its key is its path from its parent. ``memory_bytes`` is None where the plan is not known."""

    #: modules that it represents
    count: int
    memory_bytes: int | None
    whole_memory_bytes: int | None
    children: tuple[ModuleRow, ...] = ()

    @property
    def memory_share(self) -> float | None:
        return None if self.memory_bytes is None else share(self.memory_bytes, self.whole_memory_bytes or 0)

    def walk(self, depth: int, level: int = 0) -> Iterator[tuple[int, ModuleRow]]:
        """The node and what is below it, at most ``depth`` levels of it, each with its level."""
        yield level, self
        for child in self.children if level < depth else ():
            yield from child.walk(depth, level + 1)


@dataclass(slots=True)
class _Node:
    """What belongs to a module itself, and its children by name."""

    kernels: list[Estimate] = field(default_factory=list)
    nbytes: int = 0
    paths: set[str] = field(default_factory=set)
    children: dict[str, _Node] = field(default_factory=dict)

    def at(self, path: str) -> _Node:
        """The node of a module; creates it and its parents if they are missing."""
        node, parts = self, path.split(".") if path else []
        for i, part in enumerate(parts):
            node = node.children.setdefault(collapse(part), _Node())
            node.paths.add(".".join(parts[: i + 1]))
        return node

    def all_kernels(self) -> Iterator[Estimate]:
        yield from self.kernels
        for child in self.children.values():
            yield from child.all_kernels()

    def all_bytes(self) -> int:
        return self.nbytes + sum(child.all_bytes() for child in self.children.values())


def module_tree(profile: Profile, schedule: Schedule) -> ModuleRow:
    """The tree of a schedule; its root is the whole step."""
    root = _Node()
    for kernel in schedule.kernels:
        root.at(kernel_module(profile, schedule, kernel)).kernels.append(kernel)
    alive = _alive(profile, schedule)
    for path, nbytes in alive or ():
        root.at(path).nbytes += nbytes
    total = root.all_bytes() if alive is not None else None
    return _row(WHOLE, root, Sums.of(schedule.kernels), total)


def _row(name: str, node: _Node, whole: Sums, total: int | None) -> ModuleRow:
    while len(node.children) == 1 and not node.kernels and not node.nbytes and name != WHOLE:
        ((part, node),) = node.children.items()
        name = f"{name}.{part}"
    children = [_row(part, child, whole, total) for part, child in node.children.items()]
    if children and (node.kernels or node.nbytes):
        children.append(_row(ITSELF, _Node(node.kernels, node.nbytes, node.paths), whole, total))
    children.sort(key=lambda row: (-row.time_s, -(row.memory_bytes or 0), row.key))
    kernels = [*node.all_kernels()]
    row = ModuleRow.of(
        kernels,
        key=name,
        whole=whole,
        count=len(node.paths) or 1,
        children=tuple(children),
        memory_bytes=None if total is None else node.all_bytes(),
        whole_memory_bytes=total,
    )
    return row if kernels else replace(row, limited_by="-")


def _alive(profile: Profile, schedule: Schedule) -> list[tuple[str, int]] | None:
    """(module, bytes) of each tensor that is alive at the peak; None where the plan is not known."""
    graph, plan = profile.graphs[schedule.graph], profile.plan(schedule)
    if plan is None:
        return None
    writers = graph.first_writers
    owners = {s.name: s.name.rpartition(".")[0] for s in graph.storages if s.role in ("parameter", "buffer")}
    found = []
    for storage in alive_at_peak(graph, plan):
        owner = next((owners[name] for name in _prefixes(storage.name) if name in owners), None)
        if owner is None:
            owner = graph.ops[writers[storage.id]].module if storage.id in writers else ""
        found.append((owner, storage.nbytes))
    return found


def _prefixes(name: str) -> Iterable[str]:
    """``a.b.c``, ``a.b``, ``a``: optimizer state has the name of its parameter and one of its own."""
    parts = name.split(".")
    return (".".join(parts[:i]) for i in range(len(parts), 0, -1))


def shown_depth(root: ModuleRow, most: int) -> int:
    """The deepest level at which a tree has at most ``most`` rows, at least 1."""
    depth = 1
    while (rows := sum(1 for _ in root.walk(depth + 1))) <= most and rows > sum(1 for _ in root.walk(depth)):
        depth += 1
    return depth


def levels(root: ModuleRow, depth: int | None, most: int) -> Sequence[tuple[int, ModuleRow]]:
    """(level, node) of a tree down to a ``depth``; None takes the deepest that has at most ``most`` rows."""
    return [*root.walk(shown_depth(root, most) if depth is None else depth)]
