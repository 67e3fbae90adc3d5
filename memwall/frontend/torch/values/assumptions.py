"""What a trace assumes where the model's shapes or branches depend on activations, which have no values.

``nonzero=0.5 experts=balanced rounded=4 number=1 boxes=0.5 condition=true`` holds unless the user says otherwise, for
the whole model or for the modules that a pattern names. Every assumption that was used is stated, with the module and
the line that needed it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch

from memwall.core.errors import UsageError, unknown
from memwall.frontend.torch.values.value_rules import SELECTING, WHOLE
from memwall.ops.routing import expected_active

Read = Callable[[str], Any]


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def _configuration(text: str) -> Mapping[str, str] | int | None:
    """A number from 1 on, or settings by name; None: the first that the kernel's own rules leave."""
    if text == "first":
        return None
    if not text.isdecimal():
        return dict(part.split("=") for part in text.split(","))
    if not int(text):
        raise ValueError
    return int(text)


def _one_of(**choices: Any) -> Read:
    return choices.__getitem__


class AssumptionKind(NamedTuple):
    """One thing to assume: how its value is read, what is wanted, its default, and what it says."""

    read: Read
    wants: str
    default: str
    says: str


KINDS: Mapping[str, AssumptionKind] = {
    "nonzero": AssumptionKind(
        _fraction, "a fraction from 0 to 1", "0.5", "how much of a mask that depends on activations is true"
    ),
    "experts": AssumptionKind(
        _one_of(balanced=True, same=False),
        "balanced, or same for the first k in every row",
        "balanced",
        "how the choices of a top-k of activations spread, all alike by chance",
    ),
    "rounded": AssumptionKind(
        _count, "a whole number of at least 0", "4", "the value of activations that are rounded to whole numbers"
    ),
    "number": AssumptionKind(
        _number, "a number", "1", "what Python reads of activations (.item(), .tolist(), .numpy())"
    ),
    "boxes": AssumptionKind(
        _fraction, "a fraction from 0 to 1", "0.5", "how much of its image's height and width a detected box spans"
    ),
    "ranks": AssumptionKind(
        _one_of(alike=True, unknown=False),
        "alike, or unknown",
        "alike",
        "what other ranks send where this rank's own numbers are known",
    ),
    "kernels": AssumptionKind(
        _one_of(torch=False, installed=True),
        "torch, or installed",
        "torch",
        "whether flash-linear-attention, mamba-ssm and causal-conv1d run what transformers has PyTorch for",
    ),
    "condition": AssumptionKind(
        _one_of(true=True, false=False), "true or false", "true", "what a branch on activations finds"
    ),
    "trips": AssumptionKind(
        _count, "a whole number of at least 0", "1", "how often a loop of a Triton kernel runs whose end data decides"
    ),
    "config": AssumptionKind(
        _configuration,
        "a number from 1 on, settings such as BLOCK=128,num_warps=8, or first",
        "first",
        "which configuration of an autotuned Triton kernel runs",
    ),
}


class Basis(NamedTuple):
    """What a value rests on, as ``experts=balanced``; of choices, how many different ones any run makes at least, of
    all else 0."""

    text: str
    fewest: int = 0


#: What random numbers rest on that follow others whose number activations decide, and what that says.
RANDOM = Basis("random=seed 0")
_SAYS = {"random": "random numbers after others that depend on activations, which a run may find different"}


class _Rule(NamedTuple):
    pattern: str
    kind: str
    text: str
    said: str


def read_assumptions(texts: Iterable[str]) -> tuple[_Rule, ...]:
    """The rules of ``KIND=VALUE`` and ``MODULES:KIND=VALUE``; a UsageError names what is wrong with one."""
    return tuple(map(_read, texts))


def _read(text: str) -> _Rule:
    pattern, _, said = text.rpartition(":")
    kind, _, value = (part.strip() for part in said.partition("="))
    if kind not in KINDS:
        raise unknown("assumption", kind, KINDS, where=f"--assume {text!r}")
    try:
        KINDS[kind].read(value)
    except (ValueError, KeyError):
        raise UsageError(f"--assume {text!r}: {kind} wants {KINDS[kind].wants}, not {value!r}") from None
    return _Rule(pattern.strip() or "*", kind, value, text)


class Assumptions:
    """The rules of one trace, and which were used where. ``where`` gives the module and the line that ask now."""

    def __init__(self, rules: Iterable[_Rule], where: Callable[[], tuple[str, str]]) -> None:
        self._rules = tuple(rules)
        self._where = where
        self._used: dict[str, dict[str, None]] = {}
        self._asked: set[_Rule] = set()

    @property
    def by_module(self) -> bool:
        """Whether a rule holds for some modules alone."""
        return any(rule.pattern != "*" for rule in self._rules)

    def value(self, kind: str) -> Any:
        """What is assumed here; it is noted."""
        text = self._text(kind)
        self.note(f"{kind}={text}")
        return KINDS[kind].read(text)

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor on the host of equal elements, which are what is assumed that Python reads of activations."""
        kind = "condition" if tensor.dtype is torch.bool else "rounded" if tensor.dtype in WHOLE else "number"
        return torch.tensor(self.value(kind), dtype=tensor.dtype, device="cpu").expand(tensor.shape)

    def unasked(self, kind: str) -> tuple[Any, Basis]:
        """What is assumed here, and as it is noted once something depends on it."""
        text = self._text(kind)
        return KINDS[kind].read(text), Basis(f"{kind}={text}")

    def note(self, used: str) -> None:
        """An assumption, as ``nonzero=0.5``, decides what runs here."""
        module, line = self._where()
        self._used.setdefault(used, {})[f"{module or 'the model'}{f' at {line}' if line else ''}"] = None

    def _text(self, kind: str) -> str:
        module = self._where()[0]
        for rule in reversed(self._rules):
            if rule.kind == kind and fnmatchcase(module, rule.pattern):
                self._asked.add(rule)
                return rule.text
        return KINDS[kind].default

    def chosen(self, scores: torch.Size, dim: int, count: int) -> tuple[torch.Tensor, Basis]:
        """Places that a top-k along ``dim`` of scores of a shape chooses, ``count`` along that axis, and what that
        assumes: as many different places as are expected of choices by chance, about equally often, or the first ones.
        It is not noted: only what is done with the places may matter."""
        balanced, assumed = self.unasked("experts")
        places = max(scores[dim], 1)
        rows = math.prod(scores) // places
        different = round(expected_active(rows, places, count)) if balanced else count
        choices = torch.arange(rows * count, device="cpu") % max(different, 1)
        if balanced:  # all over the axis
            choices = choices * places // max(different, 1)
        others = [size for axis, size in enumerate(scores) if axis != dim % len(scores)]
        return choices.view(*others, count).movedim(-1, dim), assumed._replace(fewest=count)

    def counted(self, elements: int) -> tuple[int, Basis]:
        """How many of a mask's elements are true, as ``nonzero`` of that mask finds, and what that assumes; not noted,
        as above."""
        fraction, assumed = self.unasked("nonzero")
        return _part(fraction, elements), assumed

    def used(self) -> str:
        """What was assumed so far, as ``nonzero=0.5, condition=true``."""
        return ", ".join(self._used)

    def boxes(self, count: int, height: int, width: int) -> tuple[torch.Tensor, Basis]:
        """Corners of boxes in the middle of an image, ``[count, 4]``, and what they assume; not noted, as above."""
        text = self._text("boxes")
        span = KINDS["boxes"].read(text)
        size = torch.tensor((width, height, width, height), dtype=torch.float32, device="cpu")
        middle = size / 2 + size * torch.tensor((-span / 2, -span / 2, span / 2, span / 2), device="cpu")
        return middle.expand(count, 4), Basis(f"boxes={text}")

    def unused(self) -> list[str]:
        """What the user assumes and no call asked for, as it was written."""
        return [rule.said for rule in self._rules if rule not in self._asked]

    def lines(self) -> list[str]:
        """What was assumed, a line each."""
        lines = []
        for used, places in self._used.items():
            first, *others = places
            more = f" and in {len(others)} more place{'s' * (len(others) > 1)}" if others else ""
            kind = used.partition("=")[0]
            says = KINDS[kind].says if kind in KINDS else _SAYS[kind]
            lines.append(f"{used}, {says} (needed in {first}{more})")
        return lines


def assumed_result(assumptions: Assumptions, name: str, args: tuple) -> Any:
    """The result on ``meta`` of an op whose shape, or result, depends on activations; NotImplemented for one that no
    assumption answers."""
    tensor = args[0]
    if name == "aten._local_scalar_dense":
        return assumptions.read(tensor).item()
    make = _COUNTED.get(name)
    if make is None:
        return NotImplemented
    return make(assumptions.value("nonzero"), *args)


def _meta(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _part(fraction: float, count: int) -> int:
    """A fraction of some elements: at least one of them unless it is 0, as a model may take no care of none."""
    return max(round(fraction * count), min(1, count)) if fraction else 0


def _selected(fraction: float, tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    return _meta(_part(fraction, math.prod(shape)), dtype=tensor.dtype)


def _unique(fraction: float, tensor: torch.Tensor, *options: Any) -> tuple[torch.Tensor, ...]:
    count = _part(fraction, tensor.numel())
    return _meta(count, dtype=tensor.dtype), _meta(*tensor.shape), _meta(count)


def _unique_slices(fraction: float, tensor: torch.Tensor, dim: int, *options: Any) -> tuple[torch.Tensor, ...]:
    count = _part(fraction, tensor.shape[dim])
    shape = [count if axis == dim % tensor.dim() else size for axis, size in enumerate(tensor.shape)]
    return _meta(*shape, dtype=tensor.dtype), _meta(tensor.shape[dim]), _meta(count)


#: op → its result where a fraction of its elements counts
_COUNTED: Mapping[str, Callable[..., Any]] = {
    "aten.nonzero": lambda fraction, x: _meta(_part(fraction, x.numel()), x.dim()),
    "aten.masked_select": _selected,
    "aten._unique2": _unique,
    "aten.unique_consecutive": _unique,
    "aten.unique_dim": _unique_slices,
    **dict.fromkeys(SELECTING, lambda fraction, boxes, *others: _meta(_part(fraction, boxes.shape[0]))),
}
