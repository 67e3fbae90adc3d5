"""Where each op runs: in the group that owns it, and once more in each group that computes its result again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Placement:
    """``inside[g]`` are the ops that group ``g`` runs; ``runs[op]`` are the groups that run it, its owner first."""

    def __init__(self, parts: Iterable[tuple[Sequence[int], Sequence[int]]]) -> None:
        self.inside: list[set[int]] = []
        self.runs: dict[int, list[int]] = {}
        copies = []
        for number, (owned, again) in enumerate(parts):
            self.inside.append({*owned, *again})
            for op in owned:
                self.runs[op] = [number]
            copies += [(op, number) for op in again]
        for op, number in copies:
            self.runs[op].append(number)

    def add(self, ops: Iterable[int], groups: Iterable[int]) -> list[tuple[int, int]]:
        """Let the groups run the ops too; returns what is new, for :meth:`remove`."""
        new = [(op, g) for g in groups for op in ops if op not in self.inside[g]]
        for op, group in new:
            self.inside[group].add(op)
            self.runs[op].append(group)
        return new

    def remove(self, added: Iterable[tuple[int, int]]) -> None:
        """Take an :meth:`add` back."""
        for op, group in added:
            self.inside[group].remove(op)
            self.runs[op].remove(group)

    def is_read(self, writer: int, readers: Iterable[int]) -> bool:
        """Whether some group runs a reader of what ``writer`` made without making it itself."""
        inside, runs = self.inside, self.runs
        return any(writer not in inside[group] for reader in readers for group in runs[reader])
