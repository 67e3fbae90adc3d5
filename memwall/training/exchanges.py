"""What ranks that share matmuls exchange: the inputs and the results of a module's layers, and their gradients.

As in Megatron-LM, what is summed forward (an all-reduce) needs no message backward, and the other way around; along a
sequence an all-gather forward is a reduce-scatter backward, and the other way around.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from memwall.core.errors import UsageError
from memwall.training.layout import Parallelism

#: what happens to a tensor, or to its gradient on the way back
Exchanges = Callable[[torch.Tensor], torch.Tensor]
#: a module's forward, its arguments and keywords → its result
Way = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


#: name of a group → the fake process group of rank 0
GROUPS: dict[str, Any] = {}
#: "entry" → of the tensor that it splits: how many axes, the one of the sequence, and how long that is
_WHOLE: dict[str, tuple[int, int, int]] = {}


def join(layout: Parallelism) -> None:
    """Make the fake process groups of rank 0: of the ranks that share matmuls (``tp``), sequences (``cp``) and experts
    (``ep``)."""
    sharing = layout.tp * layout.cp
    _WHOLE.clear()
    dist.init_process_group("fake", rank=0, world_size=max(sharing, layout.ep))
    for name, ranks in (("tp", range(layout.tp)), ("cp", range(0, sharing, layout.tp)), ("ep", range(layout.ep))):
        GROUPS[name] = dist.new_group(list(ranks))


def become(module: nn.Module, way: str | Way) -> None:
    """Let a module exchange its input or result, as a class of its own: hooks would make each block unlike the next."""
    if way:
        kind: Any = type(module)
        module.__class__ = _becoming(kind, way)


@lru_cache(maxsize=256)
def _becoming(kind: type[nn.Module], way: str | Way) -> type[nn.Module]:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        call = _WAYS[way] if isinstance(way, str) else way
        return call(MethodType(kind.forward, self), args, kwargs)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _of_input(exchange: Exchanges) -> Callable[..., Any]:
    """Exchange the first tensor of activations among the arguments."""

    def call(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = [*args, *kwargs.values()]
        at = next(i for i, item in enumerate(given) if isinstance(item, torch.Tensor) and item.is_floating_point())
        given[at] = exchange(given[at])
        return forward(*given[: len(args)], **dict(zip(kwargs, given[len(args) :], strict=True)))

    return call


def _of_result(exchange: Exchanges) -> Callable[..., Any]:
    """Exchange the result, or the first of several."""

    def call(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = forward(*args, **kwargs)
        return (exchange(made[0]), *made[1:]) if isinstance(made, tuple) else exchange(made)

    return call


def _look_up(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Rows of this rank's share of a table, zeros for rows of others, summed."""
    return _SUM(forward(*(arg.clamp(max=0) for arg in args), **{key: arg.clamp(max=0) for key, arg in kwargs.items()}))


def _loss(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """This rank's share of the logits, and what the ranks' cross-entropy of them sends: of each row the largest logit,
    that of the right class and the sum of exponentials (Megatron-LM's ``vocab_parallel_cross_entropy``)."""
    made = forward(*args, **kwargs)
    rows = torch.empty(made.shape[:-1], dtype=torch.float32, device=made.device)
    for _ in range(3):
        dist.all_reduce(rows, group=GROUPS["tp"])
    return made


def _reduced(x: torch.Tensor) -> torch.Tensor:
    made = x.detach()
    dist.all_reduce(made, group=GROUPS["tp"])
    return made


def _gathered(x: torch.Tensor) -> torch.Tensor:
    """All ranks' parts along the sequence."""
    ranks = dist.get_world_size(GROUPS["tp"])
    axis = _sequence_axis(x, ranks)
    made = x.new_empty(*x.shape[:axis], x.shape[axis] * ranks, *x.shape[axis + 1 :])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer versions of torch have another name for it
        dist.all_gather_into_tensor(made, x.contiguous(), GROUPS["tp"])
    return made


def _scattered(x: torch.Tensor) -> torch.Tensor:
    """This rank's part of the sum of all ranks'."""
    made = torch.empty_like(_part(x), memory_format=torch.contiguous_format)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.reduce_scatter_tensor(made, x.contiguous(), group=GROUPS["tp"])
    return made


def _part(x: torch.Tensor) -> torch.Tensor:
    axis, ranks = _sequence_axis(x, 1), dist.get_world_size(GROUPS["tp"])
    if x.shape[axis] % ranks:
        raise UsageError(f"sp: {ranks} ranks do not divide a sequence of {x.shape[axis]:,}")
    return x.narrow(axis, 0, x.shape[axis] // ranks)


def _entered(x: torch.Tensor) -> torch.Tensor:
    axis = _longest(x)
    _WHOLE["entry"] = x.dim(), axis, x.shape[axis]
    return _part(x).contiguous()


def _sequence_axis(x: torch.Tensor, parts: int) -> int:
    """The axis that was split where the sequence is entered, of a tensor that is one of so many parts of as long a one;
    else the longest. What lies between groups treats all tokens alike."""
    axes, axis, length = _WHOLE.get("entry", (0, 0, 0))
    return axis if x.dim() == axes and parts * x.shape[axis] == length else _longest(x)


def _longest(x: torch.Tensor) -> int:
    """The longest axis but for the width: most often the sequence, first or second."""
    return max(range(x.dim() - 1), key=lambda axis: x.shape[axis])


def exchanging(forward: Exchanges, backward: Exchanges) -> Exchanges:
    """An exchange with the exchange of its gradient."""

    class Exchange(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return forward(x)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return backward(gradient)

    return Exchange.apply


def _once(exchange: Exchanges, name: str) -> Exchanges:
    """The exchange of a tensor that several layers read, made once."""

    def call(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor | None = getattr(x, name, None)
        if made is None:
            made = exchange(x)
            setattr(x, name, made)
        return made

    return call


def _same(x: torch.Tensor) -> torch.Tensor:
    return x.view_as(x)


_SUM = exchanging(_reduced, _same)
#: way -> what a module does next to its own forward
_WAYS: Mapping[str, Way] = {
    "copy": _of_input(_once(exchanging(_same, _reduced), "_memwall_copy")),
    "gather": _of_input(_once(exchanging(_gathered, _scattered), "_memwall_gathered")),
    "region": _of_input(exchanging(_gathered, _scattered)),
    "entry": _of_input(exchanging(_entered, _gathered)),
    "reduce": _of_result(_SUM),
    "look up": _look_up,
    "loss": _loss,
    "exit": _of_result(exchanging(_gathered, lambda gradient: _part(gradient).contiguous())),
    "scatter": _of_result(exchanging(_scattered, _gathered)),
}
