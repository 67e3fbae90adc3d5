"""Loop nests: how a group's tensors become functions over a tile.

Three nests serve all groups. *Pointwise*: a thread block computes a run of elements. *Rows*: a thread block holds rows
in one tile (persistent) or loops over them (looped); sums over the rows are accumulated on the way, one partial sum per
thread block, and finished in a second launch. *Split*: thread blocks share a reduction, one stripe each; a second
launch combines the partial results, in a fixed order. Later nests read the results of a reduction from memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from memwall.codegen.blocks import column_blocks, pointwise_block
from memwall.codegen.index import Index, Variable, ravel, unravel
from memwall.codegen.kinds import KINDS, RESULTS, filled
from memwall.codegen.tensors import Body, Reduction, compute_dtype
from memwall.codegen.writer import Partial, R, Store, Writer, X, indented
from memwall.codegen.writing import next_power_of_2
from memwall.core.graph import ITEMSIZE
from memwall.hardware.lookup import Gpu


def write_pointwise(writer: Writer, stores: Sequence[Store], gpu: Gpu) -> None:
    """A function that computes each element of every store (all of one size) independently."""
    numel = stores[0].numel
    writer.x = Variable("x", numel, X)
    writer.masks = {"x": "x_mask"}
    function = writer.function
    body = Body(writer, X)
    for store in stores:
        writer.store(body, store, unravel(Index.of(writer.x), store.tensor.shape), X)
    loads = sum("tl.load(" in line for line in body.lines)
    itemsize = max((ITEMSIZE[p.dtype] for p in function.pointers.values()), default=4)
    block, function.num_warps = pointwise_block(numel, itemsize, loads, gpu)
    function.constants = {"XBLOCK": block}
    function.grid = (f"triton.cdiv({numel}, XBLOCK)",)
    function.lines = [
        f"x = {writer.program(0)} * XBLOCK + tl.arange(0, XBLOCK)", f"x_mask = x < {numel}", *body.lines,
    ]  # fmt: skip
    function.schedule = "pointwise"


def write_split(writer: Writer, reductions: Sequence[Reduction], stores: Sequence[Store], gpu: Gpu) -> list[Partial]:
    """A function in which thread blocks share reductions over one space, with stores of its elements on the way."""
    first = reductions[0]
    kept, reduced = math.prod(first.kept), math.prod(first.reduced)
    writer.x = Variable("x", kept, X)
    r_variable = Variable("r", reduced, R)
    writer.masks = {"x": "x_mask", "r": "r_mask"}
    x, r = Index.of(writer.x), Index.of(r_variable)
    at = first.source_indices(unravel(x, first.kept), unravel(r, first.reduced))
    main = ravel(at, first.source.shape)
    top = Body(writer, X)
    body = Body(writer, X | R, top)
    ends = []
    for reduction in reductions:
        kind = KINDS[reduction.kind]
        lanes = [writer.unique() for _ in kind.identities]
        dtype = compute_dtype(reduction.source.dtype)
        top.lines += [f"{n} = {filled(i, dtype)}" for n, i in zip(lanes, kind.identities, strict=True)]
        value = reduction.source.at(
            body, reduction.source_indices(unravel(x, reduction.kept), unravel(r, reduction.reduced))
        )
        after = kind.step(body, lanes, value, "x_mask & r_mask")
        ends.append((reduction, lanes, [body.name(text) for text in after]))
    body.lines += [f"{n} = {new}" for _, lanes, after in ends for n, new in zip(lanes, after, strict=True)]
    for store in stores:
        writer.store(body, store, unravel(main, store.tensor.shape), X | R)
    live = sum("tl.load(" in line for line in body.lines) + sum(len(lanes) for _, lanes, _ in ends)
    contiguous = kept > 1 and not (first.dims and first.dims[-1] == len(first.source.shape) - 1)
    across, down, stripes, warps = column_blocks(kept, reduced, live, contiguous, gpu)
    function = writer.function
    function.constants = {"XBLOCK": across, "RBLOCK": down, "STRIPES": stripes}
    function.fixed = frozenset(("STRIPES",))
    function.num_warps = warps
    function.grid = (f"triton.cdiv({kept}, XBLOCK)", "STRIPES")
    function.schedule = "split"
    head = [
        f"x = {writer.program(0)} * XBLOCK + tl.arange(0, XBLOCK)[:, None]", f"x_mask = x < {kept}",
        f"STRIPE: tl.constexpr = (({reduced} + STRIPES - 1) // STRIPES + RBLOCK - 1) // RBLOCK * RBLOCK",
        f"start = {writer.program(1)} * STRIPE",
    ]  # fmt: skip
    loop = [
        f"r = r0 + tl.arange(0, RBLOCK)[None, :]{writer.long}", f"r_mask = r < {reduced}", *body.lines,
    ]  # fmt: skip
    lines = [*head, *top.lines, "for r0 in range(start, start + STRIPE, RBLOCK):", *indented(loop)]
    end = Body(writer, X)
    partials = [_partial(writer, end, reduction, lanes) for reduction, lanes, _ in ends]
    if any(partial.count for partial in partials):
        function.fixed |= {"RBLOCK"}
    function.lines = [*lines, *end.lines]
    return partials


def _partial(writer: Writer, end: Body, reduction: Reduction, lanes: Sequence[str]) -> Partial:
    """Combine and store the lanes of a stripe; for moments, return the number of elements of each stripe."""
    kept, reduced = math.prod(reduction.kept), math.prod(reduction.reduced)
    dtype = compute_dtype(reduction.source.dtype)
    names = []
    for text in KINDS[reduction.kind].join(end, lanes)[: RESULTS[reduction.kind]]:
        name = writer.file.new_scratch(dtype, f"STRIPES * {kept}")
        writer.point(name, name, dtype)
        end.lines.append(f"tl.store({name} + {writer.program(1)} * {kept} + x, {end.name(text)}, x_mask)")
        names.append(name)
    count = ""
    if reduction.kind == "moments":
        down = writer.function.constants["RBLOCK"]
        stripe = f"(({reduced} + STRIPES - 1) // STRIPES + {down} - 1) // {down} * {down}"
        count = f"tl.maximum(tl.minimum({reduced} - r * ({stripe}), {stripe}), 0).to(tl.float32)"
    return Partial(reduction, names, "STRIPES", count)


def write_finish(
    writer: Writer, partials: Sequence[Partial], stores: Sequence[Store], keep: Sequence[Reduction],
    stripes: tuple[str, int],
) -> dict[tuple[int, int], tuple[str, str]]:  # fmt: skip
    """A function that combines the stripes of reductions of one size, and computes what depends on them.

    Args:
        keep: reductions whose results go to scratch memory for later functions.
        stripes: name and value of the number of stripes.

    Returns:
        locations of those results: (reduction, component) → name and dtype.
    """
    kept = math.prod(partials[0].reduction.kept)
    name, number = stripes
    writer.x = Variable("x", kept, X)
    writer.masks = {"x": "x_mask"}
    body = Body(writer, X)
    for partial in partials:
        kind, dtype = KINDS[partial.reduction.kind], compute_dtype(partial.reduction.source.dtype)
        lanes = []
        for scratch, identity in zip(partial.names, kind.identities, strict=False):
            writer.point(scratch, scratch, dtype)
            loaded = f"tl.load({scratch} + r * {kept} + x, x_mask & r_mask, other=0)"
            if identity != "0":
                loaded = f"tl.where(x_mask & r_mask, {loaded}, {identity})"
            lanes.append(body.name(loaded))
        if partial.count:
            lanes.append(body.name(f"tl.where(x_mask & r_mask, {partial.count}, 0)"))
        for component, text in enumerate(kind.join(body, lanes)[: RESULTS[partial.reduction.kind]]):
            writer.local[(id(partial.reduction), component)] = body.name(text)
    for store in stores:
        writer.store(body, store, unravel(Index.of(writer.x), store.tensor.shape), X)
    found = {}
    for reduction in keep:
        dtype = compute_dtype(reduction.source.dtype)
        for component in range(RESULTS[reduction.kind]):
            scratch = writer.file.new_scratch(dtype, str(kept))
            writer.point(scratch, scratch, dtype)
            body.lines.append(f"tl.store({scratch} + x, {writer.local[(id(reduction), component)]}, x_mask)")
            found[(id(reduction), component)] = (scratch, dtype)
    wide = next_power_of_2(number)
    function = writer.function
    tall = max(1, min(next_power_of_2(kept), 4096 // wide, 64))
    function.constants = {"XBLOCK": tall, "RBLOCK": wide, name: number}
    function.fixed = frozenset(("RBLOCK", name))
    function.num_warps = 4
    function.grid = (f"triton.cdiv({kept}, XBLOCK)",)
    function.schedule = "finish"
    function.lines = [
        f"x = {writer.program(0)} * XBLOCK + tl.arange(0, XBLOCK)[:, None]", f"x_mask = x < {kept}",
        f"r = tl.arange(0, RBLOCK)[None, :]{writer.long}", f"r_mask = r < {name}", *body.lines,
    ]  # fmt: skip
    return found
