"""Loop nests: how a group's tensors become functions over a tile.

Three nests serve all groups. *Pointwise*: a program computes a run of elements. *Rows*: a program holds rows in one
tile (persistent) or walks along them (looped); sums over the rows are gathered on the way, one partial sum of each
program, and finished in a second launch. *Split*: programs share a reduction, each takes a stripe of it; the partial
results are joined by a second launch, in a fixed order. What a reduction gave is then read from memory by later nests.
"""

from __future__ import annotations

from collections.abc import Sequence

from memwall.codegen.blocks import pointwise_block
from memwall.codegen.index import Index, Variable, unravel
from memwall.codegen.tensors import Body
from memwall.codegen.writer import Store, Writer, X
from memwall.core.graph import ITEMSIZE
from memwall.hardware.lookup import Gpu


def write_pointwise(writer: Writer, stores: Sequence[Store], gpu: Gpu) -> None:
    """A function in which each element of every store (all of one size) is computed by itself."""
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
