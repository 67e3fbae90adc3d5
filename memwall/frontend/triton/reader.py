"""A kernel's IR read over all programs at once: what it loads, stores and computes.

Integers are followed exactly (:mod:`memwall.frontend.triton.values`), a loop is one more axis and a branch one more
condition. Where programs have to be told apart to say what they touch, they are read in parts. Data is not known:

- an index that is loaded names as many different elements as it has values, at most all of the tensor;
- a condition of data holds, and of a branch that depends on data both ways are counted;
- a loop whose trips depend on data runs as often as is asked for.

Where the addresses of very many programs follow no pattern, they are not followed either, as if data decided them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from memwall.core.errors import Unsupported
from memwall.core.graph import Pipe
from memwall.frontend.triton import loops, memory
from memwall.frontend.triton.ir import Operation, Type
from memwall.frontend.triton.ledger import DotCount, Ledger
from memwall.frontend.triton.reading import LaunchRead, Reading, Structure, result_types
from memwall.frontend.triton.rules import FLOPS, unknown
from memwall.frontend.triton.values import Apart, Array, Known, number, part_by, same_base, whole

#: parts in which the programs of a launch are read at most, parts in which all is written out, and programs that are
#: read together and in all at most
PARTS, WRITTEN_OUT, TOGETHER, PROGRAMS = 96, 8, 1 << 20, 1 << 24
_AXES = {"x": 0, "y": 1, "z": 2}


def read(asked: LaunchRead) -> Ledger:
    """What all programs of a launch do.

    Raises:
        Unsupported: the kernel has what this reader does not know.
    """
    count = math.prod(asked.grid)
    if count > PROGRAMS:
        raise Unsupported(f"a grid of {count:,} programs, of which {PROGRAMS:,} are followed at most")
    total, read_parts, written_out = Ledger(), 0, 0
    left = [np.arange(at, min(at + TOGETHER, count)) for at in range(0, count, TOGETHER)]
    while left:
        programs = left.pop()
        reading = Reading(asked, programs, STRUCTURES, rough=read_parts + len(left) > PARTS)
        try:
            reading.run()
        except Apart as split:
            read_parts += 1
            fine = [programs[part] for part in split.parts if len(part)]
            written_out += len(fine) * split.pieces
            if len(fine) > 1 and len(fine) + len(left) <= PARTS and written_out <= WRITTEN_OUT:
                left += fine
                continue
            reading = Reading(asked, programs, STRUCTURES, rough=True)
            reading.run()
        total.merge(reading.ledger)
    return total


# -- operations that are more than a rule ------------------------------------------------------------------------------


def _program_id(reading: Reading, op: Operation) -> Sequence[Known]:
    axis = _AXES[op.text[0]]
    found = reading.program[axis].reshape((-1,) + (1,) * (reading.depth - 1))
    return [Known(op.types[-1], (found if found.any() or len(found) == 1 else found[:1],))]


def _program_count(reading: Reading, op: Operation) -> Sequence[Known]:
    return [number(op.types[-1], reading.grid[_AXES[op.text[0]]], reading.depth)]


#: element of an operand of a product → the pipe that multiplies it
_PIPES = {"f16": "float16", "bf16": "bfloat16", "i8": "int8", "f64": "float64"}


#: ``inputPrecision`` of a product of float32 → the pipe of tensor cores, and products on it that it is the sum of
_PRECISIONS = {"tf32": ("tf32", 1), "tf32x3": ("tf32", 3), "bf16x3": ("bfloat16", 3), "bf16x6": ("bfloat16", 6)}


def _pipe(op: Operation, kind: Type) -> tuple[Pipe, int]:
    """The pipe of a product, and how many products there it takes: float32 runs on tensor cores where less than full
    precision is asked for."""
    if kind.element in _PIPES:
        return Pipe("tensor", _PIPES[kind.element]), 1
    if kind.element.startswith("f8"):
        return Pipe("tensor", "fp8"), 1
    asked = op.text.partition("inputPrecision = ")[2].partition(",")[0].strip().lower()
    if asked in _PRECISIONS:
        dtype, passes = _PRECISIONS[asked]
        return Pipe("tensor", dtype), passes
    return Pipe("vector", "float32"), 1


def _dot(reading: Reading, op: Operation) -> Sequence[Known]:
    pipe, passes = _pipe(op, reading.get(op.operands[0]).kind)
    return _product(reading, op, pipe, passes=passes)


#: how ``tt.dot_scaled`` names what it multiplies, and elements in a byte of it
_SCALED = {"e2m1": ("fp4", 2), "e4m3": ("fp8", 1), "e5m2": ("fp8", 1), "bf16": ("bfloat16", 1), "fp16": ("float16", 1)}


def _dot_scaled(reading: Reading, op: Operation) -> Sequence[Known]:
    """Operands with a scale for each 32 or 16 elements of k; of two formats the wider one decides the pipe."""
    named = [word for word in op.text.replace("=", " ").replace(",", " ").split() if word in _SCALED]
    kinds = [_SCALED[word] for word in named[:2]] or [("fp8", 1)]
    pipe = max(kinds, key=lambda kind: ("fp4", "fp8", "bfloat16", "float16").index(kind[0]))[0]
    packed = kinds[0][1] if "lhs_k_pack = false" not in op.text else 1
    return _product(reading, op, Pipe("tensor", pipe), packed)


def _product(reading: Reading, op: Operation, pipe: Pipe, packed: int = 1, passes: int = 1) -> Sequence[Known]:
    (a, b), kind = reading.operands(op)[:2], op.types[-1]
    (*batch, m, k), n = a.kind.shape, kind.shape[-1]
    k *= packed
    if reading.counting:
        box = [*batch, m, n, k]
        both = [np.expand_dims(array, -2) for array in a.live if packed == 1]
        if packed == 1 and b.kind.shape[-2] == k:
            both += [np.expand_dims(np.swapaxes(array, -1, -2), -3) for array in b.live]
        loaded, every = passes * reading.times(both, box), passes * reading.times((), box)
        size = op.types[0].element
        width = {"f32": 4.0, "f64": 8.0, "f16": 2.0, "bf16": 2.0}.get(size, 1.0) / packed
        dot = reading.ledger.dots.setdefault(id(op), DotCount(m, n, k, pipe, width))
        dot.runs += passes * reading.times((), batch)
        dot.multiply_adds += loaded
        reading.ledger.flops["dot", pipe] += 2 * loaded
        reading.ledger.block_flops[pipe] += 2 * every
    return [Known(kind, vague=True)]


def _reduced(reading: Reading, op: Operation) -> Sequence[Known]:
    """A reduction or a scan: the FLOPs of its function for each element that it is given."""
    given = reading.operands(op)
    axis, is_scan = op.integer("axis"), op.name == "tt.scan"
    source = given[0]
    each = sum(FLOPS[inner.name][1] for block in op.regions[0] for inner in block.ops
               if inner.name in FLOPS and inner.types and inner.types[-1].is_float)  # fmt: skip
    kind = next((value.kind for value in given if value.kind.is_float), source.kind)
    reading.spend("scan" if is_scan else "reduction", kind, each, _shared(given))
    results = result_types(op)
    if is_scan:
        return [Known(other, vague=True, live=value.live) for other, value in zip(results, given, strict=False)]
    made = []
    for other, value in zip(results, given, strict=False):
        live = tuple(np.any(array, axis=reading.depth + axis) for array in value.live)
        made.append(_extreme_of(op, other, value, reading.depth + axis, live))
    return made


def _shared(given: Sequence[Known]) -> list[Array]:
    return list({id(array): array for value in given for array in value.live}.values())


def _extreme_of(op: Operation, kind: Type, value: Known, axis: int, live: tuple[Array, ...]) -> Known:
    """The sum, the least or the most of known integers; of anything else nothing is known."""
    functions: dict[str, Callable[..., Any]] = {"arith.addi": np.sum, "arith.maxsi": np.max, "arith.minsi": np.min,
                                                "arith.maxui": np.max, "arith.minui": np.min}  # fmt: skip
    inner = [each for block in op.regions[0] for each in block.ops]
    known = value.is_known and value.late is None and not kind.is_float and len(inner) == 2
    if not known or inner[0].name not in functions or not value.terms:
        return Known(kind, vague=True, live=live)
    full = whole(value.terms)
    size = value.kind.shape[axis - (full.ndim - len(value.kind.shape))]
    if full.shape[axis] == 1 and inner[0].name == "arith.addi":
        full = full * size
    return Known(kind, (functions[inner[0].name](full, axis=axis),))


def _if(reading: Reading, op: Operation) -> Sequence[Known]:
    yes, no = reading.conditions(reading.get(op.operands[0]))
    results: list[Sequence[Known] | None] = []
    for conditions, region in zip((yes, no), op.regions, strict=False):
        if conditions and not conditions[0].any():
            results.append(None)
            continue
        before, was = reading.active, reading.by_data
        reading.by_data |= not conditions
        if conditions and not conditions[0].all():
            reading.active = (*before, *conditions)
        for block in region:
            reading.block(block)
        reading.active, reading.by_data = before, was
        last = region[-1].ops[-1] if region and region[-1].ops else None
        results.append(reading.operands(last) if last is not None and last.name == "scf.yield" else [])
    taken = [made for made in results if made is not None]
    kinds = result_types(op)
    if not kinds:
        return ()
    if len(taken) == 1:
        return taken[0]
    return [_chosen(kind, yes, a, b) for kind, a, b in zip(kinds, taken[0], taken[1], strict=True)]


def _chosen(kind: Type, yes: tuple[Array, ...], a: Known, b: Known) -> Known:
    """The one value or the other, by a condition of the programs."""
    a, b = a.resolved(), b.resolved()
    if yes and a.base != b.base:
        part_by(yes[0])
    if not (a.is_known and b.is_known and yes) or kind.is_float or a.base != b.base:
        return replace(unknown(kind, (a, b)), live=(), base=same_base(a, b))
    condition = yes[0].reshape(yes[0].shape + (1,) * len(kind.shape))
    differ = [term for term in a.terms if not any(term is other for other in b.terms)]
    others = [term for term in b.terms if not any(term is other for other in a.terms)]
    same = tuple(term for term in a.terms if any(term is other for other in b.terms))
    zero = np.zeros((1,) * condition.ndim, np.int64)
    chosen = np.where(condition, whole(differ or [zero]), whole(others or [zero]))
    return Known(kind, (*same, chosen), base=a.base)


def _assembly(reading: Reading, op: Operation) -> Sequence[Known]:
    reading.note("inline assembly is not read: none of its FLOPs are counted")
    return [unknown(kind, reading.operands(op)) for kind in result_types(op)]


def _nothing(reading: Reading, op: Operation) -> Sequence[Known]:
    return ()


def _called(reading: Reading, op: Operation) -> Sequence[Known]:
    raise Unsupported("a function that is not written out into the kernel (noinline)")


STRUCTURES: Mapping[str, Structure] = {
    "tt.get_program_id": _program_id,
    "tt.get_num_programs": _program_count,
    "tt.load": memory.load,
    "tt.store": memory.store,
    "tt.atomic_rmw": memory.atomic,
    "tt.atomic_cas": memory.atomic,
    "tt.dot": _dot,
    "tt.dot_scaled": _dot_scaled,
    "tt.reduce": _reduced,
    "tt.scan": _reduced,
    "scf.if": _if,
    "scf.for": loops.counted_loop,
    "scf.while": loops.while_loop,
    "tt.call": _called,
    "tt.elementwise_inline_asm": _assembly,
    **dict.fromkeys(("tt.return", "tt.print", "tt.assert", "scf.yield", "scf.condition", "cf.br", "cf.cond_br",
                     "ub.poison", "llvm.intr.assume"), _nothing),
}  # fmt: skip
