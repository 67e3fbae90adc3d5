"""The optimized HLO of the programs of a trace.

It stands in the XSpace (``/host:metadata``, one ``HloProto`` for each program, which JAX prints), or in a dump: files
``*after_optimizations.txt`` of ``--xla_dump_to``.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from memwall.core.errors import UsageError, install
from memwall.core.files import read_text
from memwall.core.process import Child, Lost, environment
from memwall.frontend.hlo import HloComputation, HloInstruction, HloModule, parse
from memwall.traces.xla.space import XPlane
from memwall.traces.xla.wire import Piece, fields

#: files of a dump that hold optimized programs
_DUMPED = "*after_optimizations.txt"
#: bytes of one at most
_MAX_BYTES = 1 << 30
#: seconds to print a program at most, and characters of what is said of a damaged one
LIMIT_S, _SHOWN = 60.0, 300
_NUMBERED = re.compile(r"(.*?)\((\d+)\)$")
_FILE_NUMBER = re.compile(r"module_(\d+)\.")
_HEAD = re.compile(r"\s*HloModule ([\w.\-]+)")
#: instructions that run others, each of which launches its own kernels
_AROUND = ("while", "conditional", "call")


@dataclass(frozen=True)
class TracedProgram:
    """A program: its name, its number in the run (-1: not known), and its optimized HLO, read when it is asked for."""

    name: str
    number: int
    text: Callable[[], str] = field(repr=False, compare=False)

    @cached_property
    def module(self) -> HloModule:
        """What the text says. Raises ``UsageError``: it is no HLO, or cannot be read."""
        return parse(self.text(), self.name)

    @cached_property
    def _instructions(self) -> Mapping[str, tuple[HloComputation, HloInstruction]]:
        """Instructions that may launch something, by name."""
        found: dict[str, tuple[HloComputation, HloInstruction]] = {}
        waiting = [self.module.entry]
        while waiting:
            computation = waiting.pop()
            for one in computation.instructions:
                if one.opcode in _AROUND:
                    waiting += [self.module.computations[name] for name in one.called]
                else:
                    found[one.name] = computation, one
        return found

    @cached_property
    def _by_kernel(self) -> Mapping[str, str]:
        """Name of a kernel that XLA has generated → name of the instruction, of which there is but one."""
        counts = Counter(map(kernel_name, self._instructions))
        return {kernel: name for name in self._instructions if counts[kernel := kernel_name(name)] == 1}

    def find(self, instruction: str, kernel: str = "") -> tuple[HloComputation, HloInstruction] | None:
        """An instruction by its name, else by its kernel's, with the computation in which it stands."""
        return self._instructions.get(instruction) or self._instructions.get(self._by_kernel.get(kernel, ""))


def kernel_name(instruction: str) -> str:
    """The name that XLA gives to a kernel of an instruction: ``loop_add_fusion_3`` of ``loop_add_fusion.3``."""
    return re.sub(r"\W", "_", instruction)


def numbered(name: str) -> tuple[str, int]:
    """``("jit_step", 8)`` of ``"jit_step(8)"``; -1 for no number."""
    match = _NUMBERED.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, -1)


def programs_of(planes: Sequence[XPlane]) -> Iterator[TracedProgram]:
    """The programs that an XSpace holds."""
    printer = _Printer()
    for plane in planes:
        if plane.name != "/host:metadata":
            continue
        for kind in plane.kinds():
            proto = kind.stats.get("Hlo Proto")
            if proto is not None:
                yield TracedProgram(*numbered(kind.name), partial(printer.text, proto))


class _Printer:
    """Prints programs in a process of its own, which starts with the first of them: on a damaged one the library may
    end its process, or not end at all."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def text(self, proto: Piece) -> str:
        """The text of an ``HloProto``. Raises ``UsageError``: it cannot be read, or JAX, which prints it, is not
        there."""
        if self._child is None:
            quiet = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
            self._child = Child("memwall.traces.xla.programs:printed", environment() | quiet)
            weakref.finalize(self, self._child.stop)
        try:
            module = next((value for place, value in fields(proto) if place == 1 and not isinstance(value, int)), b"")
            return str(self._child.ask(LIMIT_S, bytes(module)))
        except Lost as lost:
            self._child.stop()
            self._child = None
            raise UsageError(f"its HLO in the profile cannot be read: {lost}") from None
        except ValueError as error:
            raise UsageError(f"its HLO in the profile cannot be read: {error}") from None


def printed(module: bytes) -> str:
    """The text of an ``HloModuleProto``; runs in the child. Raises ``UsageError``: JAX is not there, or refuses it."""
    try:
        from jaxlib.xla_client import XlaComputation
    except ImportError:
        raise UsageError(f"its HLO in the profile is read by JAX: {install('jax')}") from None
    try:
        return str(XlaComputation(module).get_hlo_module().to_string())
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"its HLO in the profile cannot be read: {' '.join(str(error).split())[:_SHOWN]}") from None


def dumped(path: Path) -> list[TracedProgram]:
    """The programs of a dump: of a file, or all optimized ones of a folder.

    Raises:
        UsageError: the folder holds no program, or the file is not HLO.
    """
    files = sorted(path.glob(_DUMPED)) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path} has no {_DUMPED}: dump the programs with XLA_FLAGS=--xla_dump_to={path}")
    return [_dumped(file) for file in files]


def dumped_beside(path: Path) -> list[TracedProgram]:
    """The programs of a dump in the folder of a trace, if there is one."""
    return [_dumped(file) for file in sorted(path.parent.glob(_DUMPED))]


def _dumped(file: Path) -> TracedProgram:
    def text() -> str:
        return read_text(str(file), _MAX_BYTES, "dump of XLA", errors="replace")

    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            head = opened.read(1 << 10)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from None
    name = _HEAD.match(head)
    if name is None:
        raise UsageError(f"{file} is no HLO, which begins with HloModule")
    number = _FILE_NUMBER.match(file.name)
    return TracedProgram(name[1], int(number[1]) if number else -1, text)
