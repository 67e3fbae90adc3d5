"""What a text of HLO says: a module of computations, each a list of instructions, with shapes and layouts.

The grammar is from ``HloInstruction::ToString`` and ``hlo_parser.cc`` of XLA; layouts are as in xla/layout.h.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from memwall.core.graph import TensorSpec


@dataclass(frozen=True, slots=True)
class HloArray:
    """An array: dtype as memwall names it, sizes in elements, and how it lies in memory. ``minor_to_major``: the axes
    from the fastest; ``tiles``: of a TPU, sizes of nested tiles of the minor axes; ``space``: 0 is DRAM, on a TPU 1 is
    VMEM and 2 is for flags of synchronisation, 5 the host's memory; ``bits`` of an element, where they are fewer than a
    byte."""

    dtype: str
    shape: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...] = ()
    space: int = 0
    bits: int = 8

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one to the next of each axis, without tiles."""
        found, step = [0] * len(self.shape), 1
        for axis in self.minor_to_major:
            found[axis] = step
            step *= max(self.shape[axis], 1)
        return tuple(found)

    @property
    def spec(self) -> TensorSpec:
        """Its shape, strides and dtype."""
        return TensorSpec(self.shape, self.strides, self.dtype)


#: an array, or a tuple of shapes; a token is an empty tuple
HloShape = HloArray | tuple["HloShape", ...]


def arrays(shape: HloShape) -> Iterator[HloArray]:
    """The arrays of a shape, in order."""
    if isinstance(shape, HloArray):
        yield shape
    else:
        for each in shape:
            yield from arrays(each)


#: attributes of a module that multiply to the devices that run it
DEVICES = ("num_partitions", "replica_count")
#: attributes that name computations
_CALLED = ("calls", "to_apply", "body", "condition", "branch_computations", "true_computation", "false_computation",
           "called_computations", "select", "scatter", "comparator", "custom_call_computations")  # fmt: skip
_NAME = re.compile(r"%?([\w.\-]+)")
_QUOTED = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s,}]+)')
_INTEGERS = re.compile(r"-?\d+")


@dataclass(frozen=True)
class HloInstruction:
    """One instruction. ``operands`` are names of instructions of its computation; ``literal`` is what stands in their
    place for a constant or a parameter; ``said`` are its attributes as text."""

    name: str
    opcode: str
    shape: HloShape
    operands: tuple[str, ...]
    said: str = ""
    literal: str = ""
    line: int = 0

    @cached_property
    def attributes(self) -> Mapping[str, str]:
        """Attribute → its text, braces included."""
        found: dict[str, str] = {}
        for part in split(self.said):
            name, has_value, text = part.partition("=")
            if has_value:
                found[name.strip()] = text.strip()
        return found

    @cached_property
    def backend_config(self) -> Mapping[str, Any]:
        """What the backend adds; empty where there is nothing, or nothing that is JSON."""
        text = self.attributes.get("backend_config", "")
        if text.startswith('"'):
            text = unquoted(text)
        try:
            found = json.loads(text) if text.startswith("{") else {}
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @cached_property
    def metadata(self) -> Mapping[str, str]:
        """``op_name``, ``source_file``, ``source_line``, ``stack_frame_id`` and what else there is."""
        text = self.attributes.get("metadata", "")
        return {name: unquoted(value) for name, value in _QUOTED.findall(text[1:-1])}

    @cached_property
    def called(self) -> tuple[str, ...]:
        """The computations that it names."""
        texts = (self.attributes[name] for name in _CALLED if name in self.attributes)
        return tuple(found for text in texts for found in _NAME.findall(text))

    def integers(self, attribute: str) -> tuple[int, ...]:
        """The numbers of an attribute such as ``dimensions={0,1}``; none where it is not there."""
        return tuple(map(int, _INTEGERS.findall(self.attributes.get(attribute, ""))))

    @property
    def trip_count(self) -> int | None:
        """How often a while loop runs, where the compiler knows."""
        count = self.backend_config.get("known_trip_count", {}).get("n")
        return int(count) if count is not None else None


@dataclass(frozen=True)
class HloComputation:
    """Instructions in order, each after its operands; ``root`` names the result."""

    name: str
    instructions: tuple[HloInstruction, ...]
    root: str

    @cached_property
    def by_name(self) -> Mapping[str, HloInstruction]:
        """Name → instruction."""
        return {one.name: one for one in self.instructions}

    @cached_property
    def called(self) -> frozenset[str]:
        """The computations that its instructions name."""
        return frozenset(name for one in self.instructions for name in one.called)

    @cached_property
    def parameters(self) -> tuple[HloInstruction, ...]:
        """Its parameters, by number."""
        found = [one for one in self.instructions if one.opcode == "parameter"]
        return tuple(sorted(found, key=lambda one: int(one.literal)))


@dataclass(frozen=True)
class HloModule:
    """A program: its computations by name, the entry among them. ``said``: the attributes of its first line;
    ``frames``: number of a stack frame → ``path:line``."""

    name: str
    entry: HloComputation
    computations: Mapping[str, HloComputation]
    said: Mapping[str, str] = field(default_factory=dict)
    frames: Mapping[int, str] = field(default_factory=dict)

    @property
    def is_scheduled(self) -> bool:
        """Whether the compiler has put its instructions in order: it is optimized."""
        return self.said.get("is_scheduled") == "true"

    @property
    def is_of_tpu(self) -> bool:
        """Whether its arrays lie in tiles."""
        return any(array.tiles for one in self.entry.instructions for array in arrays(one.shape))

    @property
    def partitions(self) -> int:
        """Devices among which the program is divided; and its replicas."""
        return prod(int(self.said.get(name, 1)) for name in DEVICES)

    def source_of(self, instruction: HloInstruction) -> str:
        """The line of the user's code, as ``path:line``; empty where the text does not say."""
        said = instruction.metadata
        if "source_file" in said:
            return f"{said['source_file']}:{said.get('source_line', 0)}"
        frame = said.get("stack_frame_id", "")
        return self.frames.get(int(frame), "") if frame.isdecimal() else ""


_SPECIAL = re.compile(r'["{}()\[\],]')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def split(text: str) -> list[str]:
    """The parts between commas that stand in no braces and no string."""
    found, begin, depth, at = [], 0, 0, 0
    while special := _SPECIAL.search(text, at):
        mark, at = special[0], special.end()
        if mark == '"':
            string = _STRING.match(text, special.start())
            at = string.end() if string else len(text)
        elif mark in "{([":
            depth += 1
        elif mark in "})]":
            depth -= 1
        elif not depth:
            found.append(text[begin : special.start()].strip())
            begin = at
    found.append(text[begin:].strip())
    return [part for part in found if part]


def unquoted(text: str) -> str:
    """A string as it was before it was printed; other text as it is."""
    if not text.startswith('"'):
        return text
    return re.sub(r"\\(.)", r"\1", text[1:-1])
