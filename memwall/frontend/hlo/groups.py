"""Which devices a collective joins: ``replica_groups`` as lists, or as a grid that is cut into rows."""

from __future__ import annotations

import re
from math import prod

import numpy as np

from memwall.core.errors import UsageError
from memwall.frontend.hlo.module import HloInstruction

_GRID = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
#: devices that no program has
_MOST = 1 << 20
_GROUP = re.compile(r"\{([\d,\s]+)\}")


def replica_groups(one: HloInstruction, devices: int) -> list[int]:
    """The devices of the first group: all of them where none are named.

    Raises:
        UsageError: there are more devices than any program has.
    """
    text = one.attributes.get("replica_groups", "") or one.attributes.get("source_target_pairs", "")
    grid = _GRID.match(text)
    if grid is not None:
        of_group, sizes, axes = ([int(n) for n in (part or "").split(",") if n] for part in grid.groups())
        if prod(sizes) > _MOST:
            raise UsageError(f"line {one.line} of the HLO: {one.name} has groups of {prod(sizes):,} devices")
        found = np.arange(prod(sizes)).reshape(sizes).transpose(axes or range(len(sizes))).reshape(of_group)
        return [int(device) for device in found.reshape(of_group[0], -1)[0]]
    listed = _GROUP.search(text)
    if listed is not None:
        return [int(device) for device in listed[1].split(",")]
    return list(range(devices))
