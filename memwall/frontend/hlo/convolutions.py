"""Products in HLO: dots, and convolutions, as which XLA writes dots for a TPU too."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any

from memwall.frontend.hlo.module import HloArray, HloInstruction

_LABELS = re.compile(r"([\w?]+)_([\w?]+)->([\w?]+)")
_WINDOW = re.compile(r"(\w+)=([\d_x\-]+)")

#: places of a window that are looked at: wider ones are real windows
_WIDEST = 1 << 20


@dataclass(frozen=True)
class WindowAxis:
    """One axis of places: sizes of operand, window and result, and how the window goes over it."""

    size: int
    window: int
    result: int
    stride: int = 1
    low: int = 0
    high: int = 0
    dilation: int = 1
    window_dilation: int = 1

    @cached_property
    def met(self) -> tuple[int, int, int]:
        """Pairs of a place of the result and one of the window that meet a place of the operand; the first place that
        is met, and the one behind the last: XLA cuts operands by padding."""
        pairs, least, behind = 0, self.size, 0
        common = gcd(self.stride, self.dilation)
        step = self.dilation // common  # of the result, from one place that meets one of the operand to the next
        inverse = pow(self.stride // common, -1, step)
        for place in range(min(self.window, _WIDEST)):
            begin = place * self.window_dilation - self.low  # what the result's first place meets
            if begin % common:
                continue
            first = max(-(begin // self.stride), 0)
            first += (-begin // common * inverse - first) % step
            last = min(((self.size - 1) * self.dilation - begin) // self.stride, self.result - 1)
            if first <= last:
                last -= (last - first) % step
                pairs += (last - first) // step + 1
                least = min(least, (first * self.stride + begin) // self.dilation)
                behind = max(behind, (last * self.stride + begin) // self.dilation + 1)
        return (pairs, least, behind) if pairs else (0, 0, 0)

    @property
    def of_dot(self) -> str:
        """What the axis is of a dot: one of its ``batch``, of its ``left``, of its ``right``, or ``summed``; empty
        where it is one of a real window."""
        window, result, (pairs, first, behind) = self.window, self.result, self.met
        size = behind - first
        if size == window == result == pairs:
            return "batch"
        if window == 1 and size == result == pairs:
            return "left"
        if size == 1 and window == result == pairs:
            return "right"
        return "summed" if result == 1 and size == window == pairs else ""


def dot_numbers(one: HloInstruction) -> Mapping[str, Any]:
    """Attributes of the primitive for a ``dot``."""
    contracted = [list(one.integers(f"{side}_contracting_dims")) for side in ("lhs", "rhs")]
    batched = [list(one.integers(f"{side}_batch_dims")) for side in ("lhs", "rhs")]
    return {"dimension_numbers": [contracted, batched], "precision": precision_of(one)}


def product_numbers(one: HloInstruction) -> Mapping[str, Any]:
    """Attributes of the primitive for a ``dot``, or for a call of cuBLAS, from what its configuration says; without
    axes for another instruction."""
    if one.opcode == "dot":
        return dot_numbers(one)
    numbers = one.backend_config.get("gemm_backend_config", {}).get("dot_dimension_numbers", {})
    found = [
        [[int(axis) for axis in numbers.get(f"{side}_{kind}_dimensions", ())] for side in ("lhs", "rhs")]
        for kind in ("contracting", "batch")
    ]
    return {"dimension_numbers": found, "precision": []}


def precision_of(one: HloInstruction) -> list[str]:
    """``["highest", "highest"]``; empty where it is the default."""
    return re.findall(r"\w+", one.attributes.get("operand_precision", ""))


def window_of(one: HloInstruction) -> Mapping[str, str]:
    """What the window of an instruction is: ``size`` of ``3x3``, ``pad`` of ``1_1x0_0``."""
    return dict(_WINDOW.findall(one.attributes.get("window", "")))


@dataclass(frozen=True)
class Window:
    """A convolution: the axes of its three arrays, batch (output feature of the weight), feature (input feature), then
    places; and each axis of places."""

    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    out: tuple[int, ...]
    axes: tuple[WindowAxis, ...]
    groups: int = 1
    batch_groups: int = 1

    @classmethod
    def of(cls, one: HloInstruction, arrays: Sequence[HloArray]) -> Window:
        """The convolution of an instruction on its two operands and its result.

        Raises:
            ValueError: its ``dim_labels`` are none.
        """
        labels = _LABELS.search(one.attributes.get("dim_labels", ""))
        if labels is None:
            raise ValueError(f"{one.name} has no dim_labels")
        rank = len(labels[1]) - 2
        places = [str(place) for place in range(rank)]
        lhs = tuple(labels[1].index(mark) for mark in ("b", "f", *places))
        rhs = tuple(labels[2].index(mark) for mark in ("o", "i", *places))
        out = tuple(labels[3].index(mark) for mark in ("b", "f", *places))
        said = window_of(one)
        pads = [pad.split("_") for pad in said["pad"].split("x")] if "pad" in said else [["0", "0"]] * rank

        def each(key: str) -> list[int]:
            return [int(number) for number in said[key].split("x")] if key in said else [1] * rank

        axes = tuple(
            WindowAxis(
                arrays[0].shape[lhs[2 + place]],
                each("size")[place],
                arrays[2].shape[out[2 + place]],
                each("stride")[place],
                int(pads[place][0]),
                int(pads[place][1]),
                each("lhs_dilate")[place],
                each("rhs_dilate")[place],
            )
            for place in range(rank)
        )
        groups = int(one.attributes.get("feature_group_count", 1))
        return cls(lhs, rhs, out, axes, groups, int(one.attributes.get("batch_group_count", 1)))

    def as_dot(self) -> Mapping[str, Any] | None:
        """Attributes of the primitive of a dot, where it is one."""
        kinds = [axis.of_dot for axis in self.axes]
        if not all(kinds) or self.groups * self.batch_groups != 1:
            return None
        summed, batched = (
            [[side[2 + place] for place, kind in enumerate(kinds) if kind == wanted] for side in (self.lhs, self.rhs)]
            for wanted in ("summed", "batch")
        )
        summed = [[self.lhs[1], *summed[0]], [self.rhs[1], *summed[1]]]
        return {"dimension_numbers": [summed, batched], "precision": []}

    def part(self, operand: HloArray) -> list[tuple[int, int]]:
        """The part of the operand that is met: the first place of each of its axes, and the one behind the last."""
        found = [(0, size) for size in operand.shape]
        for axis, place in zip(self.lhs[2:], self.axes, strict=True):
            found[axis] = place.met[1:]
        return found

    def attributes(self) -> Mapping[str, Any]:
        """Attributes of the primitive of a convolution."""
        return {
            "dimension_numbers": [list(self.lhs), list(self.rhs), list(self.out)],
            "window_strides": [axis.stride for axis in self.axes],
            "padding": [[axis.low, axis.high] for axis in self.axes],
            "lhs_dilation": [axis.dilation for axis in self.axes],
            "rhs_dilation": [axis.window_dilation for axis in self.axes],
            "feature_group_count": self.groups,
            "batch_group_count": self.batch_groups,
        }

    def backward(self, of: str) -> tuple[Window, tuple[int, int]]:
        """The gradient of this convolution by its ``input`` or its ``weight`` as a convolution, and which of forward's
        three arrays (operand, weight, result) are its two operands."""
        if of == "input":
            axes = tuple(
                WindowAxis(a.result, a.window, a.size, dilation=a.stride, low=a.window - 1 - a.low) for a in self.axes
            )
            turned = (self.rhs[1], self.rhs[0], *self.rhs[2:])
            return Window(self.out, turned, self.lhs, axes, self.groups), (2, 1)
        axes = tuple(WindowAxis(a.size, a.result, a.window, low=a.low, window_dilation=a.stride) for a in self.axes)
        lhs, out = ((s[1], s[0], *s[2:]) for s in (self.lhs, self.out))
        made = (self.rhs[1], self.rhs[0], *self.rhs[2:])
        return Window(tuple(lhs), tuple(out), made, axes, batch_groups=self.groups), (0, 2)
