"""What the modules of a rank are, without running them: ranks whose modules are alike do the same step.

An outline holds the classes of all modules, what they print of themselves, the shapes of their parameters and buffers
on this rank, and their plain attributes. Ranks whose numbers differ are still alike if a number grows regularly from
one rank to the next: by the same step, as the number of a stage does, or by as many modules of its kind as the rank
before has, as the number of a layer does. An outline does not show whether a forward function asks for its rank.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import nn

from memwall.core import compat
from memwall.core.layers import collapse
from memwall.frontend.targets import Workload
from memwall.frontend.torch.build import build_module
from memwall.frontend.torch.dispatch.tensors import plain_parts
from memwall.frontend.torch.process.cuda_answers import cuda_answers
from memwall.frontend.torch.process.light_imports import light_imports
from memwall.frontend.torch.ranks.distributed import fake_groups, own_group
from memwall.frontend.torch.run import exclusive
from memwall.frontend.torch.values.known import KnownValues
from memwall.hardware.gpu import Gpu

_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.Size)
_NUMBER = re.compile(r"\d+")


class Outline(NamedTuple):
    """The modules of a rank: what must be equal, and numbers that may count ranks or layers, each with the path of its
    module (numbers in it as stars). ``parameters``: how many tensors."""

    structure: tuple[Any, ...]
    numbers: tuple[tuple[str, float], ...]
    parameters: int


def outline_of(workload: Workload, gpu: Gpu) -> Outline:
    """The outline of the modules that a workload builds, as a trace for that GPU does. A ``UsageError`` as there."""
    with exclusive(), light_imports(), torch.inference_mode(False), cuda_answers(gpu), own_group(), fake_groups():
        module = build_module(workload.model, "meta", lambda message: None, KnownValues()).module
    numbers: list[tuple[str, float]] = []
    structure = tuple(_part(path, part, numbers) for path, part in module.named_modules())
    return Outline(structure, tuple(numbers), sum(1 for _ in module.parameters()))


def _part(path: str, module: nn.Module, numbers: list[tuple[str, float]]) -> tuple[Any, ...]:
    held, path = (*compat.parameters(module).items(), *compat.buffers(module).items()), collapse(path)
    shown = _NUMBER.sub("#", text := module.extra_repr())
    numbers += [(path, float(number)) for number in _NUMBER.findall(text)]
    own = [*_attributes(path, vars(module), numbers)]
    hooks = len(compat.forward_pre_hooks(module)), len(compat.forward_hooks(module))
    tensors = [(name, *_tensor(tensor)) for name, tensor in held if tensor is not None]
    return path, type(module).__qualname__, shown, hooks, tuple(tensors), tuple(own)


def _tensor(tensor: torch.Tensor) -> Iterable[Any]:
    parts = [(tuple(part.shape), str(part.dtype)) for part in plain_parts(tensor)]
    return tensor.requires_grad, str(getattr(tensor, "placements", "")), *parts


def _attributes(path: str, own: Mapping[str, Any], numbers: list[tuple[str, float]]) -> Iterator[Any]:
    """The plain attributes of a module; of numbers only the names."""
    for name, value in own.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers.append((path, float(value)))
            yield name
        elif isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(isinstance(v, _PLAIN) for v in value)):
            yield name, str(value)


def alike(outlines: Mapping[int, Outline]) -> dict[int, int]:
    """Map each rank to the first rank that is like it, or to itself where none is. The first and the last rank are like
    no other, since one has no stage before it and one has none after it. A rank without parameters is like no other
    either, since nothing shows what it does.

    Args:
        outlines: by rank, in the order of the stages.
    """
    order, found = [*outlines], dict[int, int]()
    before = [
        *accumulate((Counter(part[0] for part in each.structure) for each in outlines.values()), initial=Counter())
    ]
    groups: dict[Any, list[int]] = {}
    for rank, outline in outlines.items():
        is_end = rank in (order[0], order[-1]) or not outline.parameters
        groups.setdefault((rank if is_end else None, outline.structure, len(outline.numbers)), []).append(rank)
    for ranks in groups.values():
        places = [order.index(rank) for rank in ranks]
        counts = [
            len(ranks) > 2 and _counts(places, column, before)
            for column in zip(*(outlines[rank].numbers for rank in ranks), strict=True)
        ]
        first: dict[Any, int] = {}
        for rank in ranks:
            kept = tuple(n for n, is_count in zip(outlines[rank].numbers, counts, strict=True) if not is_count)
            found[rank] = first.setdefault(kept, rank)
    return {rank: found[rank] for rank in order}


def _counts(places: list[int], column: tuple[tuple[str, float], ...], before: list[Counter[str]]) -> bool:
    """Whether a number of each rank grows with its place by the same step, or with the modules of its path in the ranks
    ``before`` it."""
    (path, first), start = column[0], places[0]
    step = (column[1][1] - first) / (places[1] - start)
    rows = [(place, number - first) for place, (_, number) in zip(places, column, strict=True)]
    return any(
        all(more == grown(place) for place, more in rows)
        for grown in (lambda at: step * (at - start), lambda at: before[at][path] - before[start][path])
    )
