"""The text of Triton's IR (TTIR) → operations. Triton prints one operation on a line; regions open and close on lines
of their own (the MLIR language reference, and the assembly formats of ``TritonOps.td``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from memwall.core.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a value: ``shape`` of its block, empty of a scalar, and ``element``: ``f16``, ``i32``,
    ``!tt.ptr<f16>``, ``!tt.tensordesc<...>``."""

    shape: tuple[int, ...]
    element: str

    @property
    def pointee(self) -> str:
        """What a pointer points to; empty of anything else."""
        found = re.match(r"!tt\.ptr<([^,>]+)", self.element)
        return found[1] if found else ""

    @property
    def is_float(self) -> bool:
        return self.element.startswith(("f", "bf", "tf"))


@dataclass(frozen=True, slots=True)
class IrBlock:
    """A basic block: its label, the names and types of its arguments, and its operations."""

    label: str
    arguments: tuple[tuple[str, Type], ...]
    ops: list[Operation]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: ``text`` is what stands between its name and its types, ``types`` are what it states, in
    order, the results' last. ``place`` is the user's line, as ``path:line``."""

    name: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    text: str
    types: tuple[Type, ...]
    place: str
    regions: tuple[list[IrBlock], ...] = ()

    def integer(self, name: str) -> int:
        """An attribute such as ``axis = 1 : i32``."""
        found = re.search(rf"\b{name} = (-?\d+)", self.text)
        if found is None:
            raise Unsupported(f"{self.name} states no {name}")
        return int(found[1])


@dataclass(frozen=True, slots=True)
class KernelIr:
    """A function of a module: its name, its arguments with their types, and its blocks."""

    name: str
    arguments: tuple[tuple[str, Type], ...]
    blocks: list[IrBlock] = field(default_factory=list)


_NAME = r"%[\w$.-]+(?:#\d+)?"
_OPERATION = re.compile(r'(?:(?P<results>%[\w$.:, %-]+?) = )?"?(?P<name>[a-z_]+\.[\w.]+)"?(?P<rest>.*)$')
_TYPE = re.compile(r"tensor<((?:\d+x)*)([^<>]+(?:<[^<>]*(?:<[^<>]*>)?[^<>]*>)?)>|!tt\.\w+<[^<>]*(?:<[^<>]*>)?[^<>]*>"
                   r"|\b(?:i\d+|bf16|f\d+\w*|tf32|index)\b")  # fmt: skip
#: names of operations that print without their dialect, and what ends the line that opens a region
_LOCATION = re.compile(r" loc\((#loc\d*|unknown|\".*)\)$")
#: where Triton's own functions are written
_LIBRARY = re.compile(r"/triton/(?:language|runtime)/")


def parse_type(text: str) -> Type:
    """``tensor<128x32x!tt.ptr<f16>>``, ``f32``."""
    found = _TYPE.search(text)
    if found is None:
        raise Unsupported(f"no type of Triton's: {text[:60]}")
    if found[2] is None:
        return Type((), found[0])
    return Type(tuple(int(size) for size in found[1].split("x") if size), found[2])


def types_in(text: str) -> tuple[Type, ...]:
    """All types that a text states, in order."""
    return tuple(parse_type(found[0]) for found in _TYPE.finditer(text))


def read_kernel(text: str) -> KernelIr:
    """The public function of a module.

    Raises:
        Unsupported: the text holds none, or what this reader does not know.
    """
    lines, places = [], _places(text)
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith(("#", "//", "module", "^bb0:")):
            lines.append(line)
    reader = _Lines(lines, places)
    for line in reader:
        if line.startswith("tt.func public"):
            return reader.function(line)
    raise Unsupported("the module has no public function")


class _Lines:
    """Lines that are read one after another."""

    def __init__(self, lines: list[str], places: Mapping[str, str]) -> None:
        self._lines, self._places = iter(lines), places

    def __iter__(self) -> Iterator[str]:
        return self._lines

    def function(self, head: str) -> KernelIr:
        name, arguments = re.search(r"@([\w$.-]+)\((.*)\)", head.partition(" attributes ")[0]).groups()  # type: ignore[union-attr]
        bare = re.sub(r" loc\([^()]*(?:\([^()]*\))?\)", "", arguments)
        return KernelIr(name, _arguments(bare), self._region()[0])

    def _region(self) -> tuple[list[IrBlock], str]:
        """The blocks up to the line that closes the region, and that line."""
        blocks = [IrBlock("", (), [])]
        for line in self._lines:
            if line.startswith("}"):
                return [block for block in blocks if block.ops or block.arguments or block.label] or blocks, line
            if line.startswith("^"):
                label, _, rest = line[1:].partition("//")[0].partition("(")
                bare = re.sub(r" loc\([^()]*(?:\([^()]*\))?\)", "", rest)
                blocks.append(IrBlock(label.strip(" :"), _arguments(bare.rstrip().removesuffix(":").rstrip(")")), []))
            else:
                blocks[-1].ops.append(self._operation(line))
        raise Unsupported("a region that does not end")

    def _operation(self, line: str) -> Operation:
        line, place = self._without_place(line)
        found = _OPERATION.match(line)
        if found is None:
            raise Unsupported(f"a line that is no operation: {line[:60]}")
        rest, regions, closing = found["rest"], [], ""
        while line.endswith("{"):
            blocks, line = self._region()
            regions.append(blocks)
            line, own = self._without_place(line)
            place, closing = own or place, line
        text, types = _split(rest.rstrip("{( "))
        if closing.startswith("})"):
            types += closing[2:]
        results = tuple(each for one in (found["results"] or "").split(", ") if one for each in _numbered(one.strip()))
        operands = tuple(re.findall(_NAME, text))
        return Operation(found["name"], results, operands, text, types_in(types), place, tuple(regions))

    def _without_place(self, line: str) -> tuple[str, str]:
        found = _LOCATION.search(line)
        return (line[: found.start()], self._places.get(found[1], "")) if found else (line, "")


def _numbered(name: str) -> Iterator[str]:
    """``%a`` alone; ``%a#0`` and ``%a#1`` of ``%a:2``."""
    base, _, count = name.partition(":")
    if not count:
        yield base
    else:
        yield from (f"{base}#{number}" for number in range(int(count)))


def _split(rest: str) -> tuple[str, str]:
    """What stands before the types, and the types: after the last colon with spaces around it that no bracket holds, or
    after ``->`` of an operation that has results of a region."""
    depth = 0
    for at, sign in enumerate(rest):
        depth += (sign in "{[(<") - (sign in "}])>" and rest[at - 1] != "-")
        if depth == 0 and (rest.startswith(" : ", at) or rest.startswith("-> ", at)):
            return rest[:at].strip(), rest[at + 2 :]
    return rest.strip(), ""


def _arguments(text: str) -> tuple[tuple[str, Type], ...]:
    """``%a: i32, %b: !tt.ptr<f16> {tt.divisibility = 16 : i32}``."""
    parts = re.split(r"(?:^|, )(%[\w$.-]+): ", text)[1:]
    return tuple((name, parse_type(kind)) for name, kind in zip(parts[::2], parts[1::2], strict=True))


def _places(text: str) -> dict[str, str]:
    """Alias of a location → ``path:line`` of the user's code."""
    defined = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))
    found: dict[str, str] = {}

    def place(alias: str) -> str:
        if alias not in found:
            found[alias] = ""  # a location does not name itself
            found[alias] = _resolved(defined.get(alias, ""), place)
        return found[alias]

    for alias in defined:
        place(alias)
    return found


def _resolved(text: str, place: Callable[[str], str]) -> str:
    called = re.match(r"callsite\((#loc\d*) at (#loc\d*)\)", text)
    if called:
        inner = place(called[1])
        return inner if inner and not _LIBRARY.search(inner) else place(called[2])
    at = re.match(r'"(.*)":(\d+):\d+$', text)
    if at:
        return f"{at[1]}:{at[2]}"
    named = re.search(r"\((#loc\d*)\)$", text)
    return place(named[1]) if named else ""
