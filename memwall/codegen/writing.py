"""The text of a kernel: functions with their pointers, constants and launches, and the ``run()`` around them."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

from memwall.codegen.kernel import TRITON_TYPES, Kernel, NotGenerated, TritonLaunch
from memwall.core.graph import Graph, TensorSpec

#: offsets from here on need 64 bits; the last block of a kernel reaches beyond its last element
INT32_LIMIT = 2**31 - 2**17
#: what a function that draws random numbers calls
_DRAW = '''@triton.jit
def draw(seed, place, AXIS: tl.constexpr):
    """Uniform numbers of Philox 4x32: number n is word n % 4 of counter n // 4.

    Along a tile's first axis (AXIS 0) or its last (1) four neighbours are numbers 4q to 4q + 3: they share a counter.
    """
    if AXIS >= 0 and place.shape[0 if AXIS == 0 else -1] % 4 == 0:
        turns: tl.constexpr = AXIS == 0 and len(place.shape) == 2
        lanes = tl.trans(place) if turns else place
        even, _ = tl.split(tl.reshape(lanes, [lanes.numel // 4, 2, 2]))
        first, _ = tl.split(even)
        a, b, c, d = tl.rand4x(seed, first // 4)
        drawn = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), lanes.shape)
        drawn = tl.trans(drawn) if turns else drawn
    else:
        a, b, c, d = tl.rand4x(seed, place // 4)
        word = place % 4
        drawn = tl.where(word < 2, tl.where(word == 0, a, b), tl.where(word == 2, c, d))
    return drawn

'''
#: what stands in a grid's expression
_TRITON = SimpleNamespace(cdiv=lambda a, b: -(-a // b))


@dataclass(frozen=True)
class Pointer:
    """A pointer parameter of a kernel: its name, there and in ``run()``, and the dtype of its elements."""

    name: str
    dtype: str
    note: str = ""


@dataclass(frozen=True)
class Touch:
    """A read or a write of a value in memory: which version of its storage, and the element as an expression."""

    value_id: int
    version: int
    place: str


@dataclass
class Function:
    """One ``@triton.jit`` function and its launch.

    ``constants`` are its block sizes by name; ``fixed`` ones may not be assigned. ``grid`` are expressions in
    numbers and constants, such as ``triton.cdiv(4096, XBLOCK)``.
    """

    name: str
    pointers: dict[str, Pointer] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    constants: dict[str, int] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    grid: tuple[str, ...] = ()
    num_warps: int = 4
    schedule: str = ""
    doc: str = ""
    counter: int = 0
    reads: list[Touch] = field(default_factory=list)
    writes: list[Touch] = field(default_factory=list)

    def unique(self) -> str:
        """A name that is not taken."""
        self.counter += 1
        return f"t{self.counter - 1}"

    @property
    def draws(self) -> bool:
        """Whether it uses the seed."""
        return any("draw(" in line for line in self.lines)

    def text(self) -> str:
        """The function as source."""
        parameters = [f"    {p.name},{f'  # {p.note}' if p.note else ''}" for p in self.pointers.values()]
        parameters += ["    seed,"] if self.draws else []
        parameters += [f"    {name}: tl.constexpr," for name in self.constants]
        doc = f'    """{self.doc}"""\n' if self.doc else ""
        body = "\n".join(f"    {line}" for line in self.lines)
        return "\n".join(["@triton.jit", f"def {self.name}(", *parameters, "):", doc + body]) + "\n"

    def launch(self) -> TritonLaunch:
        """What a compiler needs to know, for the chosen constants."""
        arguments = [(p.name, f"*{TRITON_TYPES[p.dtype]}") for p in self.pointers.values()]
        arguments += [("seed", "i32")] if self.draws else []
        names = {"__builtins__": {}, "triton": _TRITON, **self.constants}
        grid = tuple(int(eval(text, names)) for text in self.grid)
        return TritonLaunch(self.name, tuple(arguments), dict(self.constants), grid, self.num_warps)


@dataclass
class Scratch:
    """Memory between two launches: ``count`` is an expression of elements; ``zero`` clears it before."""

    name: str
    dtype: str
    count: str
    zero: bool = False


class File:
    """Collects functions, scratch memory and outputs of one kernel file."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.functions: list[Function] = []
        self.scratch: list[Scratch] = []
        self.inputs: dict[int, str] = {}
        #: fresh storage -> its outputs
        self.fresh: dict[int, list[tuple[int, str]]] = {}
        self.outputs: dict[int, str] = {}
        #: the versions of their storages that values are written as; values that the trace omits come last
        self.versions: defaultdict[int, int] = defaultdict(lambda: sys.maxsize)
        #: outputs that are accumulated, and so start as zeros
        self.zeroed: set[int] = set()

    def take(self, value_id: int) -> str:
        """The name under which ``run()`` is given a value."""
        return self.inputs.setdefault(value_id, f"in{len(self.inputs)}")

    def make(self, value_id: int) -> str:
        """The name of an output in new memory."""
        if value_id not in self.outputs:
            name = self.outputs[value_id] = f"out{len(self.outputs)}"
            self.fresh.setdefault(self.graph.values[value_id].storage, []).append((value_id, name))
        return self.outputs[value_id]

    def new_scratch(self, dtype: str, count: str, zero: bool = False) -> str:
        """The name of memory between two launches."""
        name = f"scratch{len(self.scratch)}"
        self.scratch.append(Scratch(name, dtype, count, zero))
        return name

    def note(self, value_id: int) -> str:
        """The description of a value for a comment."""
        value = self.graph.values[value_id]
        spec, storage = value.spec, self.graph.storages[value.storage]
        strides = "" if spec.is_contiguous else f" strides {[*spec.strides]}"
        return f"{spec.dtype}{[*spec.shape]}{strides} {storage.role}"

    # -- the file ----------------------------------------------------------------------------------------------------

    def constants(self) -> dict[str, int]:
        """All block sizes by the names that they have in the file."""
        found = {}
        for number, function in enumerate(self.functions):
            for name, value in function.constants.items():
                if name not in function.fixed:
                    found[_suffixed(name, number)] = value
            found[_suffixed("NUM_WARPS", number)] = function.num_warps
        return found

    def kernel(self, name: str, schedule: str, op_ids: Sequence[int], writes: Sequence[int]) -> Kernel:
        """The kernel of the file; ``writes`` are the values that ``run()`` returns."""
        source, config = self._text(writes), self.constants()
        return Kernel(
            name,
            source,
            tuple(self.inputs),
            tuple(writes),
            tuple(op_ids),
            tuple(f.launch() for f in self.functions),
            schedule,
            config,
            is_random=any(f.draws for f in self.functions),
        )

    def _text(self, writes: Sequence[int]) -> str:
        constants = "\n".join(f"{name} = {value}" for name, value in self.constants().items())
        drawing = [_DRAW] if any(function.draws for function in self.functions) else []
        functions = "\n\n".join([*drawing, *(function.text() for function in self.functions)])
        imports = "import torch\nimport triton\nimport triton.language as tl\n"
        blocks = f"#: may be assigned before run()\n{constants}\n" if constants else ""
        return "\n".join([imports, blocks, f"\n{functions}\n" if functions else "", self._run(writes)])

    def _run(self, writes: Sequence[int]) -> str:
        lines = []
        if self.fresh or self.scratch:
            lines.append(f"device = {next(iter(self.inputs.values()))}.device" if self.inputs else "device = DEVICE")
        for storage_id, outputs in self.fresh.items():
            lines += self._allocate(storage_id, outputs)
        lines += [f"{self.outputs[value_id]}.zero_()" for value_id in sorted(self.zeroed)]
        for scratch in self.scratch:
            lines.append(
                f"{scratch.name} = empty(({scratch.count},), (1,), dtype=torch.{scratch.dtype}, device=device)"
            )
            if scratch.zero:
                lines.append(f"{scratch.name}.zero_()")
        lines += [self._call(number, function) for number, function in enumerate(self.functions)]
        results = [self.outputs.get(i) or self.take(i) for i in writes]
        lines.append(f"return ({', '.join(results)}{',' * (len(results) == 1)})")
        parameters = [f"    {name},  # {self.note(value_id)}" for value_id, name in self.inputs.items()]
        signature = ["def run(", *parameters, "    *,", "    seed=0,", "    empty=torch.empty_strided,", "):"]
        head = [] if self.inputs else ['DEVICE = "cuda"\n\n']
        return "\n".join([*head, *signature, *(f"    {line}" for line in lines)]) + "\n"

    def _allocate(self, storage_id: int, outputs: list[tuple[int, str]]) -> list[str]:
        """The lines that make the memory of a storage; several outputs in it are views of one run."""
        storage, first = self.graph.storages[storage_id], self.graph.values[outputs[0][0]]
        spec = first.spec
        if len(outputs) == 1 and first.offset == 0 and spec.span * spec.itemsize == storage.nbytes:
            return [f"{outputs[0][1]} = {_empty(spec)}"]
        flat = f"memory{storage_id}" if len(self.fresh) > 1 else "memory"
        lines = [f"{flat} = {_empty(TensorSpec((storage.nbytes // spec.itemsize,), (1,), spec.dtype))}"]
        for value_id, name in outputs:
            value = self.graph.values[value_id]
            if value.spec.dtype != spec.dtype:
                raise NotGenerated("one storage written as two dtypes")
            shape, strides = [*value.spec.shape], [*value.spec.strides]
            lines.append(f"{name} = {flat}[{value.offset}:].as_strided({shape}, {strides})")
        return lines

    def _call(self, number: int, function: Function) -> str:
        """The line that launches a function."""
        known = {
            name: str(value) if name in function.fixed else _suffixed(name, number)
            for name, value in function.constants.items()
        }
        grid = ", ".join(function.grid)
        for name, text in known.items():
            grid = grid.replace(name, text)
        arguments = [*function.pointers, *(["seed"] if function.draws else [])]
        keywords = [f"{name}={text}" for name, text in known.items()]
        keywords.append(f"num_warps={_suffixed('NUM_WARPS', number)}")
        return f"{function.name}[({grid},)]({', '.join([*arguments, *keywords])})"


def _suffixed(name: str, number: int) -> str:
    return f"{name}_{number}" if number else name


def _empty(spec: TensorSpec) -> str:
    return f"empty({tuple(spec.shape)}, {tuple(spec.strides)}, dtype=torch.{spec.dtype}, device=device)"
