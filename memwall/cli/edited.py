"""Saved records that somebody edited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memwall.core.errors import UsageError
from memwall.core.structure import one_line
from memwall.wings import part


def refuse_misfit(parameters: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` if one of a command's parameters is a saved record that was edited: torch refuses an op of
    it with its attributes."""
    from memwall.frontend.targets.target import is_saved
    from memwall.record.profile import Profile

    for given in parameters.values():
        for target in (given,) if isinstance(given, str) else given if isinstance(given, tuple) else ():
            if not isinstance(target, str) or not is_saved(target) or part("traces.is_trace")(target):
                continue
            from memwall.ops.evaluate import misfit

            saved = Profile.load(target)
            traced = [saved.attention.traced] if saved.attention else []
            for op in filter(None, map(misfit, [*saved.graphs, *traced])):
                attributes = one_line(dict(op.attributes), 160)
                raise UsageError(f"{target}: op {op.id} ({op.name}) cannot have the attributes {attributes}")
