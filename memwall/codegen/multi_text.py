"""A kernel over lists of tensors as text: the work at each position of the lists, and the Python file that does it."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from memwall.codegen.kernel import NotGenerated
from memwall.codegen.tensors import triton_dtype
from memwall.core.graph import Value
from memwall.fusion.rules import aligned

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


@dataclass
class ListColumn:
    """A tensor of one row. ``is_number``: one element for all of the row's. ``is_given``: it exists before the kernel.
    ``stored`` is the variable that is stored to it, as the value ``output``."""

    value: Value
    is_number: bool
    is_given: bool
    is_loaded: bool = False
    stored: str = ""
    output: int = -1

    @property
    def dtype(self) -> str:
        return self.value.spec.dtype


@dataclass
class ListRow:
    """The work at one position of the lists, computed in ``dtype``: tensors, lines of arithmetic, per-tensor numbers.

    ``before`` are lines for the tensor as a whole, ``lines`` for each of its elements. ``made`` are the values made so
    far with the variable that holds them, the latest last.
    """

    elements: int
    dtype: str
    columns: list[ListColumn] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    made: list[tuple[Value, str]] = field(default_factory=list)

    def column(self, value: Value, *, is_given: bool = True, is_number: bool = False) -> int:
        """The number of a tensor's column, which is added if it is missing."""
        for number, column in enumerate(self.columns):
            if _same_place(column.value, value):
                return number
        self.columns.append(ListColumn(value, is_number or value.spec.numel == 1 != self.elements, is_given))
        return len(self.columns) - 1

    def read(self, value: Value, *, is_number: bool = False) -> str:
        """The variable that holds a value."""
        for made, name in reversed(self.made):
            if _same_place(made, value):
                return name
            if made.overlaps(value):
                raise NotGenerated("a tensor is read otherwise than it was written")
        number = self.column(value, is_number=is_number)
        self.columns[number].is_loaded = True
        return f"x{number}"

    @property
    def variables(self) -> set[str]:
        """The variables that hold results."""
        return {name for _, name in self.made}

    def name(self, wanted: str) -> str:
        """A variable that is not taken."""
        taken = self.variables
        names = (wanted if n == 1 else f"{wanted}_{n}" for n in range(1, len(taken) + 2))
        return next(name for name in names if name not in taken)

    def like(self, column: ListColumn) -> int:
        """The given column whose layout a tensor in new memory takes; -1 for one that is given."""
        if column.is_given:
            return -1
        spec = column.value.spec
        for number, other in enumerate(self.columns):
            if other.is_given and (other.value.spec.shape, other.value.spec.strides) == (spec.shape, spec.strides):
                return number
        raise NotGenerated("a new tensor is laid out unlike all that are read")

    @property
    def code(self) -> Hashable:
        """All that its function depends on: rows of equal codes run the same."""
        if not any(column.stored for column in self.columns):
            raise NotGenerated("nothing is written")
        operands = [(c.dtype, c.is_number, c.is_loaded, c.stored, c.output >= 0, self.like(c)) for c in self.columns]
        return self.dtype, tuple(operands), tuple(self.before), tuple(self.lines)

    @property
    def vectors(self) -> list[int]:
        """Columns of whole tensors."""
        return [n for n, column in enumerate(self.columns) if not column.is_number]

    @property
    def given(self) -> list[str]:
        """The per-tensor numbers and variables that the lines for each element use."""
        loaded = [f"x{n}" for n, column in enumerate(self.columns) if column.is_number]
        fixed = [f"n{n}" for n in range(len(self.numbers))]
        made = [line.partition(" = ")[0] for line in self.before]
        used = set(re.findall(r"\w+", "\n".join(self.lines)))
        return [name for name in (*loaded, *fixed, *made) if name in used]


def _same_place(a: Value, b: Value) -> bool:
    same = a.storage == b.storage and a.spec.dtype == b.spec.dtype and a.spec.numel == b.spec.numel
    return same and aligned(a, b)


# -- the file; rows that run the same code stand under the ending of their function's name ----------------------------


def source_of(variants: Mapping[str, Sequence[ListRow]], places: Mapping[int, int], config: Mapping[str, int]) -> str:
    """The file; ``places`` says which argument of ``run()`` each input value is."""
    parts = [_HEAD.format_map(config)]
    for ending, rows in variants.items():
        parts += [_elements(ending, rows[0]), _update(ending, rows[0])]
    return "\n".join([*parts, _LAUNCH, *_tables(variants), _run(variants, places)])


def _elements(ending: str, row: ListRow) -> str:
    """The function that handles one pass: loads, arithmetic, stores."""
    vectors = [f"p{n}" for n in row.vectors]
    signature = ", ".join((*vectors, *row.given, "start", "left"))
    lines = [
        "lane = tl.arange(0, BLOCK)",
        *(f"{pointer} += start" for pointer in vectors),
        "if IS_WHOLE:",
        "    mask = None",
        *(f"    {pointer} = tl.multiple_of({pointer}, 16)" for pointer in vectors),
        "else:",
        "    mask = lane < left",
    ]
    for n in row.vectors:
        if row.columns[n].is_loaded:
            lines.append(f"x{n} = tl.load(p{n} + lane, mask=mask){_cast(row.columns[n].dtype, row.dtype)}")
    lines += row.lines
    for n, column in enumerate(row.columns):
        if column.stored:
            lines.append(f"tl.store(p{n} + lane, {column.stored}{_cast(row.dtype, column.dtype)}, mask=mask)")
    return _function(f"elements{ending}({signature}, BLOCK: tl.constexpr, IS_WHOLE: tl.constexpr)", lines)


def _update(ending: str, row: ListRow) -> str:
    """The kernel: finds its chunk in the tables and loops over it."""
    numbers = len(row.numbers)
    names = ", ".join((*(f"p{n}" for n in row.vectors), *row.given, "start", "left"))
    lines = [
        "program = tl.program_id(0)",
        "number = tl.load(blocks + 2 * program).to(tl.int64)",
        "first = tl.load(blocks + 2 * program + 1).to(tl.int64) * CHUNK",
        f"row = rows + number * {len(row.columns) + 2}",
        "size = tl.load(row)",
        "is_aligned = tl.load(row + 1) != 0",
    ]
    for n, column in enumerate(row.columns):
        lines.append(f"p{n} = tl.load(row + {n + 2}).to(tl.pointer_type({triton_dtype(column.dtype)}))")
        if column.is_number:
            lines.append(f"x{n} = tl.load(p{n}){_cast(column.dtype, row.dtype)}")
    for n in range(numbers):
        lines.append(f"n{n} = tl.load(numbers + number * {numbers} + {n}){_cast('float64', row.dtype)}")
    lines += [
        *row.before,
        "for start in range(first, tl.minimum(first + CHUNK, size), BLOCK):",
        "    left = size - start",
        "    if is_aligned & (left >= BLOCK):",
        f"        elements{ending}({names}, BLOCK, True)",
        "    else:",
        f"        elements{ending}({names}, BLOCK, False)",
    ]
    given = "numbers, " * bool(numbers)
    return _function(f"update{ending}(rows, blocks, {given}BLOCK: tl.constexpr, CHUNK: tl.constexpr)", lines)


def _function(signature: str, lines: Sequence[str]) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"\n@triton.jit\ndef {signature}:\n{body}\n"


def _cast(given: str, wanted: str) -> str:
    return "" if given == wanted else f".to({triton_dtype(wanted)})"


def _tables(variants: Mapping[str, Sequence[ListRow]]) -> Iterator[str]:
    """The numbers that differ between the tensors of a list, one row per tensor."""
    for ending, rows in variants.items():
        if rows[0].numbers:
            lines = "".join(f"    {tuple(row.numbers)!r},\n" for row in rows)
            yield f"\nNUMBERS{ending.upper()} = (\n{lines})\n"


def _run(variants: Mapping[str, Sequence[ListRow]], places: Mapping[int, int]) -> str:
    """The function that launches all kernels and returns what they wrote."""
    lines, results = [], []
    for ending, rows in variants.items():
        name, first = f"columns{ending}", rows[0]
        lines.append(f"{name} = [")
        for n, column in enumerate(first.columns):
            given = [places[row.columns[n].value.id] for row in rows] if column.is_given else []
            done = " and ".join(["read"] * column.is_loaded + ["written"] * bool(column.stored))
            lines.append(f"    {_column(given)},  # {column.dtype}{', one number each' * column.is_number}, {done}")
        lines.append("]")
        for n, column in enumerate(first.columns):
            if not column.is_given:
                lines.append(
                    f"{name}[{n}] = [empty(t.shape, t.stride(), dtype=torch.{column.dtype}, device=t.device)"
                    f" for t in {name}[{first.like(column)}]]"
                )
        numbers = f", NUMBERS{ending.upper()}" if first.numbers else ""
        lines.append(f"launch(update{ending}, {name}, {first.vectors}{numbers})")
        results += [f"*{name}[{n}]" for n, column in enumerate(first.columns) if column.output >= 0]
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
