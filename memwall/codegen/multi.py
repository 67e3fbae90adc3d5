"""Ops over lists of tensors (multi-tensor optimizers) → one launch that walks over every tensor of the lists.

Every list value at one position goes through the whole chain of ops in registers, in float32 (float64 where a tensor
is), and only what the group writes is stored. A table holds the addresses, one row per tensor; a second one says
which chunk of which tensor each program works on. Positions that need other code (other dtypes) get a launch of their
own. The tensors of a position must hold their elements in one order of memory without gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memwall.codegen.kernel import Kernel, Launch, NotGenerated
from memwall.codegen.multi_fused import FUSED
from memwall.codegen.multi_rows import Column, Lists, Row, packet_of, refuse_races
from memwall.codegen.multi_text import Operand, Variant, source_of
from memwall.core.flow import Flow
from memwall.core.graph import Graph
from memwall.fusion import Group
from memwall.hardware.lookup import Gpu
from memwall.ops.registry import find_row

#: elements that a thread handles in one pass: a load of 16 bytes where they are of 2 bytes
_PER_THREAD = 8
#: programs for each multiprocessor, so that none idles at the end, and the most elements of one program
_PROGRAMS_PER_SM, _MAX_CHUNK = 64, 16384


def multi_kernel(graph: Graph, flow: Flow, group: Group, gpu: Gpu) -> Kernel:
    """The kernel of a group of ``aten._foreach_*`` ops, or of one optimizer step (``aten._fused_adamw_`` and the like).

    Raises:
        NotGenerated: an op without a rule, tensors of one position laid out differently, or other than floats.
    """
    lists = Lists(graph, flow, group)
    variants = _variants(lists.rows())
    places: dict[int, int] = {}
    for value_id in (i for variant in variants for ids in variant.inputs for i in ids):
        places.setdefault(value_id, len(places))
    config = _config(sum(sum(variant.sizes) for variant in variants), gpu)
    return Kernel(
        name=f"lists_{'_'.join(packet_of(op.name) for op in lists.ops)}",
        source=source_of(variants, places, config),
        inputs=tuple(places),
        outputs=tuple(i for variant in variants for ids in variant.outputs for i in ids),
        op_ids=group.op_ids,
        launches=tuple(_launch(variant, config) for variant in variants),
        schedule="tensor list",
        config=config,
        configs=_configs(config),
    )


def covers(name: str) -> bool:
    """Whether an op over lists of tensors has a rule."""
    packet = packet_of(name)
    if not name.startswith("aten._foreach_"):
        return packet in FUSED
    row = find_row(f"aten.{packet}")
    return packet == "zero" or (row is not None and row.expression is not None)


# -- blocks ----------------------------------------------------------------------------------------------------------


def _config(elements: int, gpu: Gpu) -> dict[str, int]:
    warps = 4
    block = _PER_THREAD * warps * (64 if (gpu.compute_capability or "").startswith("gfx") else 32)
    chunk = block
    while chunk < _MAX_CHUNK and elements > chunk * _PROGRAMS_PER_SM * gpu.sm_count:
        chunk *= 2
    return {"BLOCK": block, "CHUNK": chunk, "NUM_WARPS": warps}


def _configs(chosen: dict[str, int]) -> tuple[dict[str, int], ...]:
    """The chosen one, twice the threads, and twice the threads for as many elements."""
    block, warps = 2 * chosen["BLOCK"], 2 * chosen["NUM_WARPS"]
    wide = {"BLOCK": block, "CHUNK": max(chosen["CHUNK"], block), "NUM_WARPS": warps}
    return chosen, wide, {**chosen, "NUM_WARPS": warps}


def _launch(variant: Variant, config: dict[str, int]) -> Launch:
    chunks = sum(-(-n // config["CHUNK"]) for n in variant.sizes)
    numbers = (("numbers", "*fp64"),) if variant.numbers else ()
    return Launch(
        variant.function,
        (("rows", "*i64"), ("blocks", "*i32"), *numbers),
        {"BLOCK": config["BLOCK"], "CHUNK": config["CHUNK"]},
        (chunks,),
        config["NUM_WARPS"],
    )


# -- variants --------------------------------------------------------------------------------------------------------


def _variants(rows: Sequence[Row]) -> list[Variant]:
    """Rows that run the same code, together."""
    refuse_races(rows)
    classes: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if not any(column.stored for column in row.columns):
            raise NotGenerated("nothing is written")
        operands = tuple(_operand(row, column) for column in row.columns)
        classes.setdefault((row.dtype, operands, tuple(row.before), tuple(row.lines)), []).append(row)
    several = len(classes) > 1
    return [
        Variant(
            function=f"update_{n}" if several else "update",
            dtype=key[0],
            operands=key[1],
            before=key[2],
            lines=key[3],
            sizes=tuple(row.elements for row in same),
            inputs=_ids(same, "value"),
            outputs=_ids(same, "output"),
            numbers=tuple(tuple(row.numbers) for row in same) if same[0].numbers else (),
        )
        for n, (key, same) in enumerate(classes.items())
    ]


def _operand(row: Row, column: Column) -> Operand:
    spec = column.value.spec
    like = -1
    if not column.is_given:
        shapes = [(c.value.spec.shape, c.value.spec.strides) if c.is_given else None for c in row.columns]
        if (spec.shape, spec.strides) not in shapes:
            raise NotGenerated("a new tensor is laid out unlike all that are read")
        like = shapes.index((spec.shape, spec.strides))
    return Operand(spec.dtype, column.is_number, column.is_loaded, column.stored, column.output >= 0, like)


def _ids(rows: Sequence[Row], which: str) -> tuple[tuple[int, ...], ...]:
    """For each column that is given, or handed on, the values of all rows."""
    columns = range(len(rows[0].columns))
    if which == "value":
        kept = [n for n in columns if rows[0].columns[n].is_given]
        return tuple(tuple(row.columns[n].value.id for row in rows) for n in kept)
    kept = [n for n in columns if rows[0].columns[n].output >= 0]
    return tuple(tuple(row.columns[n].output for row in rows) for n in kept)
