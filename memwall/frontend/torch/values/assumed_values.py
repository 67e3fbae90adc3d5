"""The values that are assumed of what decides among activations: a top-k, a rounding, the count of a mask.

They are given with what they rest on, which is noted once a shape or a branch follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from memwall.frontend.torch.values.assumptions import Assumptions, Basis
from memwall.frontend.torch.values.value_rules import CHOICES, COPYING, COUNTS, FINITE, ROUNDED, WHOLE, is_small


class Values(Protocol):
    """What keeps values: of the elements of a tensor, or one that all of them equal."""

    def give(self, tensor: torch.Tensor, value: torch.Tensor, *assumed: Basis) -> None: ...

    def give_uniform(self, tensor: torch.Tensor, value: Any, *assumed: Basis) -> None: ...


def assume(
    values: Values, assumptions: Assumptions, name: str, out: Any, args: tuple, kwargs: Mapping[str, Any]
) -> None:
    """Give the results ``out`` of an op of activations on ``meta`` the values that are assumed, if any are."""
    if name in FINITE:
        values.give_uniform(out, FINITE[name])
    elif name in CHOICES:
        _choose(values, assumptions, name, out, args, kwargs)
    elif name in ROUNDED and args[0].is_floating_point() and (name not in COPYING or out.dtype in WHOLE):
        values.give_uniform(out, *assumptions.unasked("rounded"))
    elif name in COUNTS and args[0].dtype is torch.bool:
        _count(values, assumptions, out, args[0].numel())


def assume_places(values: Values, assumptions: Assumptions, places: torch.Tensor, counts: torch.Tensor) -> None:
    """Give what ``unique`` returns of where its elements went, and of how often each was: about evenly."""
    if counts.numel() and is_small(places):
        spread = torch.arange(places.numel(), device="cpu") * counts.numel() // places.numel()
        assumed = assumptions.unasked("nonzero")[1]
        values.give(places, spread.view(places.shape), assumed)
        values.give(counts, spread.bincount(minlength=counts.numel()), assumed)


def _count(values: Values, assumptions: Assumptions, out: torch.Tensor, elements: int) -> None:
    """Give the counts of a mask: its true elements, spread over the counts."""
    counts = max(out.numel(), 1)
    total, assumed = assumptions.counted(elements)
    if total % counts == 0:
        values.give_uniform(out, total // counts, assumed)
    elif is_small(out):
        spread = (torch.arange(counts + 1, device="cpu") * total // counts).diff()
        values.give(out, spread.view(out.shape), assumed)


def _choose(
    values: Values, assumptions: Assumptions, name: str, out: Any, args: tuple, kwargs: Mapping[str, Any]
) -> None:
    """Give the places that a top-k returns."""
    places, dim = out if name == "aten.argmax" else out[1], CHOICES[name](args, kwargs)
    scores = args[0].shape
    if dim is None or not scores or not is_small(places):
        return
    keeps = places.dim() == len(scores)
    found, assumed = assumptions.chosen(scores, dim, places.shape[dim] if keeps else 1)
    values.give(places, found if keeps else found.squeeze(dim), assumed)
