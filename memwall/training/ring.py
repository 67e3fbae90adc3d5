"""Context parallelism for any module: each rank has a part of every sequence, and attention goes around a ring.

There are as many steps as ranks, as in Liu et al., 2023 (ring attention) and TransformerEngine. In each step a rank's
queries meet the keys and values of another rank, which arrive in one message while the step before runs. In backward
they go around again, with their gradients. Each rank has a chunk from the front and one from the back of a sequence, so
that in every step causal attention is half of full attention for each of them. Attention is found where the module
calls ``torch.nn.functional.scaled_dot_product_attention``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from memwall.core import compat
from memwall.core.errors import UsageError
from memwall.training.exchanges import GROUPS, become


def share_sequences(module: nn.Module) -> None:
    """Let a module, in place, cut the sequences among its inputs and pass keys and values around."""
    become(module, _of_part)


def _of_part(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A pass on this rank's part of the inputs' second axis."""
    ranks = dist.get_world_size(GROUPS["cp"])
    given = [item for item in compat.tree_leaves((args, kwargs)) if isinstance(item, Tensor) and item.dim() > 1]
    seq = given[0].shape[1] if given else 0
    if not seq or seq % (2 * ranks):
        raise UsageError(f"cp={ranks}: {2 * ranks} chunks, two a rank, do not divide sequences (axis 1) of {seq:,}")

    def part(item: Any) -> Any:
        is_sequence = isinstance(item, Tensor) and item.dim() > 1 and item.shape[1] == seq
        return item.narrow(1, 0, seq // ranks) if is_sequence else item

    args, kwargs = compat.tree_map(part, (args, kwargs))
    ring = _RingAttention(F.scaled_dot_product_attention, ranks)
    with patch.object(F, "scaled_dot_product_attention", ring):
        made = forward(*args, **kwargs)
    if not ring.calls:
        raise UsageError("cp: the module never calls torch.nn.functional.scaled_dot_product_attention: leave cp out")
    return made


class _RingAttention:
    """Attention over the keys and values of all ranks."""

    def __init__(self, attend: Callable[..., Tensor], ranks: int) -> None:
        self.attend, self.ranks, self.calls = attend, ranks, 0

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        if attn_mask is not None:
            raise UsageError("cp: attention with a mask is not passed around a ring; use is_causal=True, or none")
        self.calls += 1
        kwargs |= {"dropout_p": dropout_p}
        packed = _Pack.apply(key, value)
        made = self.attend(query, *_Unpack.apply(packed, key.shape, value.shape, 1), is_causal=is_causal, **kwargs)
        for _ in range(self.ranks - 1):
            packed = _Pass.apply(packed)
            met = _Unpack.apply(packed, key.shape, value.shape, 2 if is_causal else 1)
            made = made + self.attend(query, *met, **kwargs)
        return made


class _Pack(torch.autograd.Function):
    """Keys and values as one message."""

    @staticmethod
    def forward(ctx: Any, key: Tensor, value: Tensor) -> Tensor:
        ctx.shapes = key.shape, value.shape
        return torch.cat((key.flatten(), value.flatten()))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _views(gradient, *ctx.shapes)


class _Unpack(torch.autograd.Function):
    """The first 1/n of the keys and of the values of a message."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, keys: torch.Size, values: torch.Size, n: int) -> Any:
        ctx.n = n
        return tuple(each.narrow(2, 0, each.shape[2] // n) for each in _views(packed, keys, values))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        rest = [each.new_zeros(each.numel() * (ctx.n - 1)) for each in gradients]
        parts = [part for pair in zip((each.flatten() for each in gradients), rest, strict=True) for part in pair]
        return torch.cat(parts), None, None, None


def _views(packed: Tensor, keys: torch.Size, values: torch.Size) -> tuple[Tensor, Tensor]:
    first, second = packed.split((keys.numel(), values.numel()))
    return first.view(keys), second.view(values)


class _Pass(torch.autograd.Function):
    """The message of the rank before. Backward passes it again, as it is not kept, and its gradient."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor) -> Tensor:
        return _passed(packed)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        _passed(torch.empty_like(gradient))
        return _passed(gradient)


def _passed(packed: Tensor) -> Tensor:
    group, made = GROUPS["cp"], torch.empty_like(packed)
    _, *others = dist.get_process_group_ranks(group)
    sends = (dist.isend(packed, others[0], group), dist.irecv(made, others[-1], group))
    for work in sends:
        if work is not None:
            work.wait()
    return made
