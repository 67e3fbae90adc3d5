"""Text of HLO → :class:`HloModule`: with and without ``%``, signatures, layouts, types of operands, frames."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter

from memwall.core.errors import UsageError
from memwall.core.graph import ITEMSIZE
from memwall.frontend.hlo.module import (
    DEVICES,
    HloArray,
    HloComputation,
    HloInstruction,
    HloModule,
    HloShape,
    split,
    unquoted,
)

#: XLA's name of a type → memwall's, where it is another
DTYPES: Mapping[str, str] = {
    "pred": "bool", "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16",
    "c64": "complex64", "c128": "complex128", "f8e4m3": "float8_e4m3fn", "f8e4m3b11fnuz": "float8_e4m3fnuz",
    "f4e2m1fn": "float4_e2m1fn_x2", "f8e3m4": "float8_e4m3fn",
    **{name.replace("float8_", "f8"): name for name in ITEMSIZE if name.startswith("float8_")},
    **{f"s{bits}": f"int{bits}" for bits in (1, 2, 4, 8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (1, 2, 4, 8, 16, 32, 64)},
}  # fmt: skip

_HEAD = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s*(?:\(.*\)\s*->\s*.*)?\{\s*$")
#: the attributes that may follow the body of a computation
_END = re.compile(r"^\}(?:,.*)?$")
_FIRST = re.compile(r"^\s*(ROOT\s+)?%?([\w.\-]+)\s*=\s*")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_ARRAY = re.compile(r"\s*(\w+)\[([^\]]*)\](?:\{([^{}]*)\})?")
_COMMENT = re.compile(r"/\*[^*]*\*/")
_BRACKET = re.compile(r'[(){}\[\]"]')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_OPERAND = re.compile(r"%?([\w.\-]+)\s*$")
_TILE = re.compile(r"\(([\d,*]*)\)")
_SPACE = re.compile(r"S\((\d+)\)")
_BITS = re.compile(r"E\((\d+)\)")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_ROW = re.compile(r"^(\d+)\s+(.*)$")
_FIELD = re.compile(r"(\w+)=(\d+)")
#: brackets within each other, and elements of an axis, that no program has
_DEEPEST, _LONGEST = 64, 1 << 62
#: opcodes whose parentheses hold no operands
_LITERAL = ("constant", "parameter", "iota")


def parse(text: str, name: str = "HLO") -> HloModule:
    """The module of a text; ``name`` stands in messages.

    Raises:
        UsageError: it is no HLO, or it is cut off; says the line.
    """
    return _Reader(text, name).module()


def typed_instruction(line: str) -> tuple[HloInstruction, tuple[HloShape, ...]]:
    """An instruction on one line, and the shapes of its operands, where they stand before their names, as in traces.

    Raises:
        UsageError: the line is not an instruction.
    """
    reader = _Reader(line, "HLO")
    first = _FIRST.match(line)
    if first is None:
        raise UsageError(f"this is no instruction: {_shown(line)}")
    one = reader._instruction(line, first)
    _, at = reader._shape(line, first.end())
    begin = line.index("(", at)
    texts = (part.rpartition(" ")[0] for part in split(line[begin + 1 : _closed(line, begin) - 1]))
    return one, tuple(reader._read(text) for text in texts if text) if one.operands else ()


class _Reader:
    """The lines of a text, each with its number, and where it is in them."""

    def __init__(self, text: str, name: str) -> None:
        self._lines, self._name, self._at = text.splitlines(), name, 0

    def module(self) -> HloModule:
        name, said = self._first()
        tables: dict[str, dict[int, str]] = {}
        found: dict[str, HloComputation] = {}
        entry: HloComputation | None = None
        for line in self:
            if not line.strip() or line.lstrip().startswith("//"):
                continue
            if line.strip() in _TABLES:
                tables[line.strip()] = self._table()
            elif head := _HEAD.match(line):
                found[head[2]] = made = self._computation(head[2])
                entry = made if head[1] else entry
            else:
                raise self._wrong(f"this is no computation: {_shown(line)}")
        if entry is None:
            raise self._wrong("the text ends before the ENTRY computation")
        self._check(found)
        return HloModule(name, entry, found, said, _frames(tables))

    def __iter__(self) -> Iterator[str]:
        while self._at < len(self._lines):
            self._at += 1
            yield self._lines[self._at - 1]

    def _first(self) -> tuple[str, dict[str, str]]:
        for line in self:
            if not line.strip() or line.lstrip().startswith("//"):
                continue
            if not line.startswith("HloModule"):
                break
            name, *parts = split(line.removeprefix("HloModule")) or [""]
            said = {key.strip(): value for key, _, value in (part.partition("=") for part in parts)}
            if not all(said.get(key, "1").isdecimal() for key in DEVICES):
                raise self._wrong(f"how many devices run it is no number: {_shown(line)}")
            return name, said
        raise self._wrong("this is no HLO, which begins with HloModule")

    def _table(self) -> dict[int, str]:
        """Rows until an empty line."""
        found = {}
        for line in self:
            row = _ROW.match(line)
            if row is None:
                break
            found[int(row[1])] = row[2]
        return found

    def _computation(self, name: str) -> HloComputation:
        found: list[HloInstruction] = []
        root = ""
        for line in self:
            if _END.match(line):
                if not found:
                    raise self._wrong(f"the computation {name} is empty")
                return HloComputation(name, tuple(found), root or found[-1].name)
            if not line.strip():
                continue
            first = _FIRST.match(line)
            if first is None:
                raise self._wrong(f"this is no instruction: {_shown(line)}")
            made = self._instruction(line, first)
            found.append(made)
            root = made.name if first[1] else root
        raise self._wrong(f"the text ends within the computation {name}")

    def _instruction(self, line: str, first: re.Match[str]) -> HloInstruction:
        number = self._at
        shape, at = self._shape(line, first.end())
        opcode = _OPCODE.match(line, at)
        if opcode is None:
            raise self._wrong(f"there is no operation: {_shown(line)}")
        end = _closed(line, opcode.end() - 1)
        while end < 0:  # a literal on several lines
            more = next(iter(self), None)
            if more is None or _FIRST.match(more) or _END.match(more):
                self._at = number
                raise self._wrong(f"parentheses are not closed: {_shown(line)}")
            line = f"{line} {more.strip()}"
            end = _closed(line, opcode.end() - 1)
        inside, said = line[opcode.end() : end - 1], line[end:].lstrip(", ")
        if opcode[1] in _LITERAL:
            return HloInstruction(first[2], opcode[1], shape, (), said, inside.strip(), number)
        return HloInstruction(first[2], opcode[1], shape, _operands(inside), said, "", number)

    def _shape(self, line: str, at: int) -> tuple[HloShape, int]:
        if line.startswith("(", at):
            end = _closed(line, at)
            if end > 0:
                return self._read(line[at:end]), end
        elif (array := _ARRAY.match(line, at)) is not None:
            return self._read(array[0]), array.end()
        raise self._wrong(f"there is no shape: {_shown(line)}")

    def _read(self, text: str) -> HloShape:
        try:
            return shape_of(text)
        except ValueError as error:
            raise self._wrong(str(error)) from None

    def _check(self, computations: Mapping[str, HloComputation]) -> None:
        """Refuse a text that names what it does not have, or whose computations call themselves."""
        for computation in computations.values():
            for one in computation.instructions:
                self._at = one.line
                if one.opcode == "parameter" and not one.literal.isdecimal():
                    raise self._wrong(f"the parameter {one.name} has no number")
                missing = [name for name in one.operands if name not in computation.by_name]
                missing += [name for name in one.called if name not in computations]
                if missing:
                    raise self._wrong(f"{one.name} names {missing[0]}, which is not there")
        try:
            TopologicalSorter({name: made.called for name, made in computations.items()}).prepare()
        except CycleError as error:
            raise self._wrong(f"the computation {error.args[1][0]} calls itself") from None

    def _wrong(self, what: str) -> UsageError:
        return UsageError(f"{self._name}, line {max(self._at, 1)}: {what}")


@lru_cache(maxsize=4096)
def shape_of(text: str) -> HloShape:
    """The shape of ``(f32[], bf16[8,128]{1,0:T(8,128)(2,1)S(1)})``.

    Raises:
        ValueError: the text is not a shape.
    """
    text = _COMMENT.sub("", text).strip()
    if text.startswith("("):
        return tuple(map(shape_of, split(text[1:-1])))
    found = _ARRAY.fullmatch(text)
    if found is None:
        raise ValueError(f"this is no shape: {_shown(text)}")
    dtype, sizes, layout = found[1], found[2], found[3] or ""
    if dtype in ("token", "opaque"):
        return ()
    if dtype not in DTYPES:
        raise ValueError(f"no type {dtype!r} is known")
    axes_said = [size.strip(" <=") for size in sizes.split(",") if size.strip()]
    if not all(size.isdecimal() and int(size) < _LONGEST for size in axes_said):
        raise ValueError(f"the sizes are no numbers of elements: {_shown(text)}")
    shape = tuple(map(int, axes_said))
    order, _, rest = layout.partition(":")
    axes = tuple(map(int, order.split(","))) if order else tuple(reversed(range(len(shape))))
    if sorted(axes) != list(range(len(shape))):
        raise ValueError(f"the layout does not fit the shape: {_shown(text)}")
    _, has_tiles, tiled = rest.partition("T")
    tiles = _TILE.findall(re.split(r"[A-Z]", tiled)[0]) if has_tiles else []
    space, bits = _SPACE.search(rest), _BITS.search(rest)
    return HloArray(
        DTYPES[dtype],
        shape,
        axes,
        tuple(tuple(int(size) if size.isdecimal() else 1 for size in tile.split(",")) for tile in tiles),
        int(space[1]) if space else 0,
        min(int(bits[1]), 8) if bits else 8,
    )


def _operands(text: str) -> tuple[str, ...]:
    """Names of operands, which may stand behind their shapes."""
    parts = split(_COMMENT.sub("", text)) if "[" in text or "/*" in text else text.split(",")
    return tuple(found[1] for part in parts if (found := _OPERAND.search(part)))


def _closed(text: str, at: int) -> int:
    """Where the bracket that opens there has closed; -1: it does not, or holds too many within each other."""
    depth = 0
    while special := _BRACKET.search(text, at):
        at = special.end()
        if special[0] == '"':
            string = _STRING.match(text, special.start())
            if string is None:
                return -1
            at = string.end()
        elif special[0] in "({[":
            depth += 1
            if depth > _DEEPEST:
                return -1
        else:
            depth -= 1
            if not depth:
                return at
    return -1


def _frames(tables: Mapping[str, Mapping[int, str]]) -> dict[int, str]:
    """Number of a frame → ``path:line``."""
    files = {number: unquoted(text.strip()) for number, text in tables.get("FileNames", {}).items()}
    places = {}
    for number, text in tables.get("FileLocations", {}).items():
        said = {key: int(value) for key, value in _FIELD.findall(text)}
        places[number] = f"{files.get(said.get('file_name_id', 0), '')}:{said.get('line', 0)}"
    rows = tables.get("StackFrames", {}).items()
    located = {number: dict(_FIELD.findall(text)).get("file_location_id", "0") for number, text in rows}
    return {number: places[int(place)] for number, place in located.items() if int(place) in places}


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else f"{text[:77]}..."
