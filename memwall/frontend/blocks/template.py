"""What a replay keeps of a traced block: its ops by place, its results, and their representation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from memwall.core import compat
from memwall.core.graph import Value
from memwall.frontend.blocks.known import Known


class ReplayMismatch(Exception):
    """A replay would not equal the full trace."""


class StoragePlace(NamedTuple):
    """A storage as a block sees it. ``kind`` is ``argument``, ``own`` (a parameter or buffer), ``made`` (inside the
    segment), and in backward also ``forward`` (made by the block's forward) or ``gradient`` (that came in)."""

    kind: str
    number: int


class Handed(NamedTuple):
    """What a block returns: argument number ``passed`` itself, a tensor like ``value`` in the storage at ``place``, or
    a plain value."""

    place: StoragePlace | None = None
    value: Value | None = None
    requires_grad: bool = False
    passed: int | None = None
    plain: Any = None
    is_view: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """Recorded ops ``start`` to ``stop``, and the place of every storage that they touch. ``bases`` is the offset in
    elements at which a place's tensor begins; ``prefix`` is the module path to replace."""

    start: int
    stop: int
    prefix: str
    places: dict[int, StoragePlace]
    bases: dict[StoragePlace, int]
    free_calls: Counter[str]


@dataclass(frozen=True, slots=True)
class BackwardTemplate:
    """How a block runs backward: its ops, and the gradients of its arguments and of its parameters."""

    segment: Segment
    arguments: tuple[Handed | None, ...]
    parameters: tuple[Handed | None, ...]


@dataclass
class Template:
    """How a block runs forward, and backward for each kind of incoming gradients. It writes its own tensors
    that are numbered in ``written``. ``values`` are what is known of the tensors that it makes; where it depends on
    values, the values of its arguments and buffers must be ``given``."""

    forward: Segment
    outputs: tuple[Handed, ...]
    tree: compat.TreeSpec
    written: tuple[int, ...] = ()
    values: tuple[Known | None, ...] = ()
    given: Any = None
    backward: dict[Any, BackwardTemplate | None] = field(default_factory=dict)


#: place → (its storage in this block, offset at which its tensor begins)
StandIns = dict[StoragePlace, tuple[int, int]]


@dataclass
class Instance:
    """One replayed call: its module, its arguments, the storages that replace the template's, and its ops."""

    module: nn.Module
    path: str
    template: Template
    tensors: list[torch.Tensor]
    leaves: list[Any]
    tree: compat.TreeSpec
    autocast: torch.dtype | None
    stand_ins: StandIns
    start: int
    stop: int


class GradientCapture(torch.autograd.Function):
    """Passes a tensor on, and in backward keeps its whole gradient instead of passing it further."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, captured: dict[int, torch.Tensor], index: int) -> torch.Tensor:
        ctx.captured, ctx.index = captured, index
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.captured[ctx.index] = gradient
        return None, None, None


class ReplayedBlock(torch.autograd.Function):
    """The autograd node of a replayed block."""

    @staticmethod
    def forward(ctx: Any, replayer: Any, instance: Instance, anchor: Any, *tensors: Any) -> tuple[torch.Tensor, ...]:
        ctx.replayer, ctx.instance = replayer, instance
        ctx.set_materialize_grads(False)
        made = [handed for handed in instance.template.outputs if handed.place is not None]
        results = tuple(replayer._tensor(handed, instance.stand_ins, tensors) for handed in made)
        ctx.mark_non_differentiable(*[r for r, h in zip(results, made, strict=True) if not h.requires_grad])
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled() or ctx.replayer.recorder.phase != "backward":
            raise ReplayMismatch("a gradient is taken inside the model, or is itself differentiated")
        given = ctx.replayer.backward(ctx.instance, gradients)
        needed = ctx.needs_input_grad[3:]
        return (None, None, None, *[g if n else None for g, n in zip(given, needed, strict=True)])
