"""What a collective hands to this rank where every other rank holds what this one does.

Programs exchange counts before they exchange rows, as experts on several GPUs do, and read them: without a value the
rows that arrive would be a guess. Balanced routers, and programs whose ranks do the same, have equal counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from memwall.frontend.torch.ranks.distributed import GROUPS, ranks_of
from memwall.ops.signatures import Signature

Values = Sequence[torch.Tensor]
#: this rank's tensors, its place in the group, the ranks, the call's arguments by name → what it is handed; None where
#: that does not follow
Rule = Callable[[Values, int, int, Mapping[str, Any]], Values | None]


def handed(
    signature: Signature, values: Values, args: tuple, kwargs: Mapping[str, Any], shapes: Sequence[torch.Size]
) -> Values | None:
    """The values of the tensors of ``shapes`` that a collective writes or returns, from the values that it reads; None
    where they do not follow or do not fit."""
    rule = _RULES.get(signature.name)
    if rule is None:
        return None
    given = dict(kwargs) | {argument.name: value for argument, value in zip(signature.arguments, args, strict=False)}
    ranks = ranks_of(next(given[name] for name in GROUPS if name in given))
    found = rule(values, ranks.index(dist.get_rank()), len(ranks), given)
    if found is None or [part.numel() for part in found] != [shape.numel() for shape in shapes]:
        return None
    return [part.reshape(shape) for part, shape in zip(found, shapes, strict=True)]


def _reduced(values: Values, ranks: int, given: Mapping[str, Any]) -> Values | None:
    """The reduction of as many equal tensors as there are ranks."""
    asked: Any = given["reduce_op"]
    if not isinstance(asked, str):  # an object of its own
        members: Mapping[str, Any] = dist.ReduceOp.RedOpType.__members__
        asked = {int(value): name for name, value in members.items()}.get(asked.op(), "")
    by_name: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "sum": lambda value: value * ranks,
        "avg": torch.clone,
        "min": torch.clone,
        "max": torch.clone,
    }
    reduce = by_name.get(asked.lower())
    return None if reduce is None else [reduce(value) for value in values]


def _all_reduced(values: Values, place: int, ranks: int, given: Mapping[str, Any]) -> Values | None:
    return _reduced(values, ranks, given)


def _scattered(values: Values, place: int, ranks: int, given: Mapping[str, Any]) -> Values | None:
    parts = [value.tensor_split(ranks)[place] for value in values]
    return _reduced(parts, ranks, given)


def _scattered_list(values: Values, place: int, ranks: int, given: Mapping[str, Any]) -> Values | None:
    return _reduced([values[place]], ranks, given)


def _gathered(values: Values, place: int, ranks: int, given: Mapping[str, Any]) -> Values | None:
    return [torch.cat([value.flatten()] * ranks) for value in values]


def _gathered_list(values: Values, place: int, ranks: int, given: Mapping[str, Any]) -> Values | None:
    return [values[0].clone() for _ in range(ranks)]


def _exchanged(values: Values, place: int, ranks: int, given: Mapping[str, Any]) -> Values | None:
    """From each rank the part that this one sends to its own place."""
    (value,) = values
    sizes = [int(size) for size in given.get("input_split_sizes") or ()]
    parts = value.split(sizes) if sizes else value.tensor_split(ranks)
    return [torch.cat([parts[place]] * ranks)]


def _exchanged_list(values: Values, place: int, ranks: int, given: Mapping[str, Any]) -> Values | None:
    return [values[place].clone() for _ in range(ranks)]


def _same(values: Values, place: int, ranks: int, given: Mapping[str, Any]) -> Values | None:
    return [value.clone() for value in values]


_RULES: Mapping[str, Rule] = {
    "c10d.allreduce_": _all_reduced,
    "c10d._allgather_base_": _gathered,
    "c10d.allgather_": _gathered_list,
    "c10d._reduce_scatter_base_": _scattered,
    "c10d.reduce_scatter_": _scattered_list,
    "c10d.alltoall_base_": _exchanged,
    "c10d.alltoall_": _exchanged_list,
    "c10d.broadcast_": _same,
    "_c10d_functional.all_reduce": _all_reduced,
    "_c10d_functional.all_reduce_": _all_reduced,
    "_c10d_functional.all_gather_into_tensor": _gathered,
    "_c10d_functional.reduce_scatter_tensor": _scattered,
    "_c10d_functional.all_to_all_single": _exchanged,
    "_c10d_functional.broadcast": _same,
}
