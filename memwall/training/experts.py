"""Expert parallelism for any module whose experts are stacked: the module of one rank.

As in Megatron-LM, each of the ranks that share experts has as many whole ones, and tokens of its own. Rows for experts
of other ranks go to them and their results come back, in an all-to-all each, and so do their gradients; what arrives
is sorted by expert. Every rank gets as many rows as it sends, and every expert as many as another, as with a router
that is balanced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from memwall.core.errors import UsageError
from memwall.training.exchanges import GROUPS, become, exchanging

#: attributes in which modules keep how many experts they have
_COUNTS = ("num_experts", "n_experts", "num_local_experts", "n_routed_experts")


def share_experts(module: nn.Module, ep: int) -> None:
    """Leave one of ``ep`` ranks its experts, in place.

    Raises:
        UsageError: the model has no stacked experts, or a number of them that ``ep`` does not divide; names the module.
    """
    found = [(path, part) for path, part in module.named_modules() if _count(part)]
    if not found:
        raise UsageError(
            f"ep={ep}: no part of {type(module).__name__} has the weights of its experts in tensors [experts, ...], so"
            " there is nothing to share: leave ep out"
        )
    for path, part in found:
        count = _count(part)
        if count % ep:
            raise UsageError(f"ep={ep} does not divide the {count} experts of {path or type(part).__name__}")
        for name, whole in list(part.named_parameters(recurse=False)):
            if whole.shape[0] == count:
                share = whole.detach().narrow(0, 0, count // ep).clone()
                setattr(part, name, nn.Parameter(share, whole.requires_grad))
        for name in _COUNTS:
            if part.__dict__.get(name) == count:
                setattr(part, name, count // ep)
        become(part, _elsewhere)


def _count(part: nn.Module) -> int:
    """Experts whose weights a module has stacked: two tensors or more of three axes, the first of them equal."""
    counts = [weight.shape[0] for weight in part.parameters(recurse=False) if weight.dim() == 3]
    return counts[0] if len(counts) > 1 and len(set(counts)) == 1 else 0


def _elsewhere(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Rows to the ranks of their experts, and the results back."""
    rows, chosen, *rest = (*args, *kwargs.values())
    if not chosen.is_floating_point() and chosen.dim() == 1:
        ranks = dist.get_world_size(GROUPS["ep"])
        experts = len(chosen) // ranks
        made = forward(_turned(_ROUTE(rows), ranks, experts), _ends(rows, experts), *rest)
        return _ROUTE(_turned(made, experts, ranks))
    if chosen.is_floating_point() or chosen.dim() != 2 or len(rest) != 1:
        raise UsageError(
            "ep: experts are called with rows and where each expert's end, or with tokens, choices and their weights"
            " (as in transformers)"
        )
    return _of_tokens(forward, rows, chosen, rest[0])


def _of_tokens(forward: Any, tokens: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Experts of tokens that each chose some."""
    flat, top_k = tokens.reshape(-1, tokens.shape[-1]), chosen.shape[-1]
    order = chosen.flatten().sort()[1]
    rows = _ROUTE(flat[order // top_k])
    experts = torch.arange(len(rows), device=rows.device) % _count(forward.__self__)
    made = _ROUTE(forward(rows, experts[:, None], rows.new_ones(len(rows), 1)))
    back = torch.empty_like(made).index_copy(0, order, made).unflatten(0, (-1, top_k))
    return (back * weights.unsqueeze(-1).to(made.dtype)).sum(1).view_as(tokens)


def _turned(rows: torch.Tensor, outer: int, inner: int) -> torch.Tensor:
    """Rows by sender and expert as rows by expert and sender, or back."""
    if inner == 1 or outer == 1:
        return rows
    if len(rows) % (outer * inner):  # groups are not equal, and as many rows move
        return rows.clone()
    return rows.unflatten(0, (outer, inner, -1)).transpose(0, 1).flatten(0, 2)


def _ends(rows: torch.Tensor, experts: int) -> torch.Tensor:
    """Where the rows of each of a rank's experts end, equally many each."""
    return torch.arange(1, experts + 1, dtype=torch.int32, device=rows.device) * (len(rows) // experts)


def _routed(rows: torch.Tensor) -> torch.Tensor:
    ranks = dist.get_world_size(GROUPS["ep"])
    if len(rows) % ranks:
        raise UsageError(f"ep={ranks} does not divide the {len(rows):,} rows for experts of a microbatch")
    made = torch.empty_like(rows)
    dist.all_to_all_single(made, rows.contiguous(), group=GROUPS["ep"])
    return made


_ROUTE = exchanging(_routed, _routed)
