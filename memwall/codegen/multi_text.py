"""The text of a kernel over lists of tensors: from variants, each the code of some positions, to a Python file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

#: dtype name → Triton's and torch's
_TRITON = {"float16": "tl.float16", "bfloat16": "tl.bfloat16", "float32": "tl.float32", "float64": "tl.float64"}

_HEAD = """import torch
import triton
import triton.language as tl

#: may be assigned before run(): elements of one pass, of one program (whole passes), and warps
BLOCK = {BLOCK}
CHUNK = {CHUNK}
NUM_WARPS = {NUM_WARPS}
"""

_LAUNCH = '''
TABLES = {}


def launch(function, columns, vectors, *numbers):
    """Run a function on every chunk of every tensor. The tables stay on the device for as long as the addresses do."""
    places = (t.data_ptr() for column in columns for t in column)
    key = (function.__name__, CHUNK, *places, *(t.numel() for t in columns[vectors[0]]))
    if key not in TABLES:
        device = columns[0][0].device
        addresses = torch.tensor([[t.data_ptr() for t in column] for column in columns]).T
        sizes = torch.tensor([t.numel() for t in columns[vectors[0]]])
        is_aligned = (addresses[:, vectors] % 16 == 0).all(1)
        rows = torch.cat((sizes[:, None], is_aligned[:, None], addresses), 1)
        chunks = (sizes + CHUNK - 1) // CHUNK
        row = torch.repeat_interleave(torch.arange(len(sizes)), chunks)
        chunk = torch.arange(len(row)) - (chunks.cumsum(0) - chunks)[row]
        blocks = torch.stack((row, chunk), 1).to(torch.int32)
        tables = (rows, blocks, *(torch.tensor(n, dtype=torch.float64) for n in numbers))
        TABLES[key] = [table.contiguous().to(device) for table in tables]
    tables = TABLES[key]
    if len(tables[1]):
        function[(len(tables[1]),)](*tables, BLOCK=BLOCK, CHUNK=CHUNK, num_warps=NUM_WARPS)
'''


@dataclass(frozen=True, slots=True)
class Operand:
    """A column of a table. ``is_number``: one element for all of a row's. ``stored``: the variable stored to it.
    ``is_output``: its tensors are returned. ``like`` is the column whose layout new memory takes, -1 where the
    tensors are given."""

    dtype: str
    is_number: bool
    is_loaded: bool
    stored: str
    is_output: bool
    like: int = -1


@dataclass(frozen=True)
class Variant:
    """One function: its arithmetic in ``dtype``, its columns, and for each of its rows the elements and the numbers.

    ``before`` are lines for a tensor as a whole, ``lines`` for each of its elements. ``inputs`` are the value ids of
    each given column, ``outputs`` of each that is returned.
    """

    function: str
    dtype: str
    operands: tuple[Operand, ...]
    before: tuple[str, ...]
    lines: tuple[str, ...]
    sizes: tuple[int, ...]
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    numbers: tuple[tuple[float, ...], ...] = ()

    @property
    def vectors(self) -> list[int]:
        """Columns of whole tensors."""
        return [n for n, operand in enumerate(self.operands) if not operand.is_number]

    @property
    def given(self) -> list[str]:
        """The per-tensor numbers and variables that the lines for each element use."""
        loaded = [f"x{n}" for n, operand in enumerate(self.operands) if operand.is_number]
        fixed = [f"n{n}" for n in range(len(self.numbers[0]))] if self.numbers else []
        made = [line.partition(" = ")[0] for line in self.before]
        used = set(re.findall(r"\w+", "\n".join(self.lines)))
        return [name for name in (*loaded, *fixed, *made) if name in used]


def source_of(variants: Sequence[Variant], places: Mapping[int, int], config: Mapping[str, int]) -> str:
    """The file; ``places`` says which argument of ``run()`` each input value is."""
    parts = [_HEAD.format_map(config)]
    for variant in variants:
        parts += [_elements(variant), _update(variant)]
    parts += [_LAUNCH, *_tables(variants), _run(variants, places)]
    return "\n".join(parts)


def _elements(variant: Variant) -> str:
    """The function that handles one pass: loads, arithmetic, stores."""
    vectors = [f"p{n}" for n in variant.vectors]
    signature = ", ".join((*vectors, *variant.given, "start", "left"))
    lines = [
        f"def elements{variant.function.removeprefix('update')}("
        f"{signature}, BLOCK: tl.constexpr, IS_WHOLE: tl.constexpr):",
        "    lane = tl.arange(0, BLOCK)",
        *(f"    {pointer} += start" for pointer in vectors),
        "    if IS_WHOLE:",
        "        mask = None",
        *(f"        {pointer} = tl.multiple_of({pointer}, 16)" for pointer in vectors),
        "    else:",
        "        mask = lane < left",
    ]
    for n in variant.vectors:
        operand = variant.operands[n]
        if operand.is_loaded:
            lines.append(f"    x{n} = tl.load(p{n} + lane, mask=mask){_cast(operand.dtype, variant.dtype)}")
    lines += [f"    {line}" for line in variant.lines]
    for n, operand in enumerate(variant.operands):
        if operand.stored:
            cast = _cast(variant.dtype, operand.dtype)
            lines.append(f"    tl.store(p{n} + lane, {operand.stored}{cast}, mask=mask)")
    return "\n@triton.jit\n" + "\n".join(lines) + "\n"


def _cast(given: str, wanted: str) -> str:
    return "" if given == wanted else f".to({_TRITON[wanted]})"


def _update(variant: Variant) -> str:
    """The kernel: finds its chunk in the tables and loops over it."""
    given = len(variant.numbers[0]) if variant.numbers else 0
    names = ", ".join((*(f"p{n}" for n in variant.vectors), *variant.given, "start", "left"))
    call = f"elements{variant.function.removeprefix('update')}({names}, BLOCK, "
    lines = [
        f"def {variant.function}(rows, blocks, {'numbers, ' * bool(given)}BLOCK: tl.constexpr, CHUNK: tl.constexpr):",
        "    program = tl.program_id(0)",
        "    number = tl.load(blocks + 2 * program).to(tl.int64)",
        "    first = tl.load(blocks + 2 * program + 1).to(tl.int64) * CHUNK",
        f"    row = rows + number * {len(variant.operands) + 2}",
        "    size = tl.load(row)",
        "    is_aligned = tl.load(row + 1) != 0",
    ]
    for n, operand in enumerate(variant.operands):
        lines.append(f"    p{n} = tl.load(row + {n + 2}).to(tl.pointer_type({_TRITON[operand.dtype]}))")
        if operand.is_number:
            lines.append(f"    x{n} = tl.load(p{n}){_cast(operand.dtype, variant.dtype)}")
    for n in range(given):
        cast = _cast("float64", variant.dtype)
        lines.append(f"    n{n} = tl.load(numbers + number * {given} + {n}){cast}")
    lines += [
        *(f"    {line}" for line in variant.before),
        "    for start in range(first, tl.minimum(first + CHUNK, size), BLOCK):",
        "        left = size - start",
        "        if is_aligned & (left >= BLOCK):",
        f"            {call}True)",
        "        else:",
        f"            {call}False)",
    ]
    return "\n@triton.jit\n" + "\n".join(lines) + "\n"


def _tables(variants: Sequence[Variant]) -> Iterator[str]:
    """The numbers that differ between the tensors of a list, one row per tensor."""
    for variant in variants:
        if variant.numbers:
            rows = "".join(f"    {row!r},\n" for row in variant.numbers)
            yield f"\nNUMBERS{variant.function.removeprefix('update').upper()} = (\n{rows})\n"


def _run(variants: Sequence[Variant], places: Mapping[int, int]) -> str:
    """The function that launches all kernels and returns what they wrote."""
    lines, results = [], []
    for variant in variants:
        ending = variant.function.removeprefix("update")
        name = f"columns{ending}"
        given = iter(variant.inputs)
        lines.append(f"{name} = [")
        lines += [
            f"    {_column([places[i] for i in next(given)] if o.like < 0 else [])},  # {_about(o)}"
            for o in variant.operands
        ]
        lines.append("]")
        for n, operand in enumerate(variant.operands):
            if operand.like >= 0:
                lines.append(
                    f"{name}[{n}] = [empty(t.shape, t.stride(), dtype=torch.{operand.dtype}, device=t.device)"
                    f" for t in {name}[{operand.like}]]"
                )
        numbers = f", NUMBERS{ending.upper()}" if variant.numbers else ""
        lines.append(f"launch({variant.function}, {name}, {variant.vectors}{numbers})")
        results += [f"*{name}[{n}]" for n, operand in enumerate(variant.operands) if operand.is_output]
    body = "\n".join(f"    {line}" for line in (*lines, f"return ({', '.join(results)},)"))
    return f"\ndef run(*tensors, seed=0, empty=torch.empty_strided):\n{body}\n"


def _column(places: Sequence[int]) -> str:
    """The arguments at some positions."""
    if not places:
        return "()"
    first, count = places[0], len(places)
    if list(places) == list(range(first, first + count)):
        return f"tensors[{first}:{first + count}]"
    if len(set(places)) == 1:
        return f"tensors[{first}:{first + 1}] * {count}"
    return f"[tensors[i] for i in {list(places)}]"


def _about(operand: Operand) -> str:
    done = " and ".join(["read"] * operand.is_loaded + ["written"] * bool(operand.stored))
    return f"{operand.dtype}{', one number each' * operand.is_number}, {done}"
