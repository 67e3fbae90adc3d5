"""Loop nests: how a group's tensors become functions over a tile.

Three nests serve all groups. *Pointwise*: a thread block computes a run of elements. *Rows*: a thread block holds rows
in one tile (persistent) or loops over them (looped); sums over the rows are accumulated on the way, one partial sum per
thread block, and finished in a second launch. *Split*: thread blocks share a reduction, one stripe each; a second
launch combines the partial results, in a fixed order. Later nests read the results of a reduction from memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from memwall.codegen.blocks import bytes_in_flight, column_blocks, next_power_of_2, pointwise_block, row_blocks
from memwall.codegen.index import AffineIndex, Variable, ravel, unravel
from memwall.codegen.kernel import NotGenerated
from memwall.codegen.kinds import KINDS, accumulate, know
from memwall.codegen.tensors import Body, R, Store, TensorReduction, Writer, X, indented
from memwall.core.graph import ITEMSIZE
from memwall.hardware.lookup import Gpu

#: registers of a row kernel that hold elements other than loaded ones
SPARE_ELEMENTS = 2


@dataclass
class Partial:
    """A reduction whose stripes wait in scratch memory to be combined."""

    reduction: TensorReduction
    names: list[str]
    stripes: str
    #: elements of stripe ``s``, as an expression, where the kind counts them
    count: str = ""


def _loads(body: Body, mask: str = "") -> int:
    return sum("tl.load(" in line and mask in line for line in body.lines)


def write_pointwise(writer: Writer, stores: Sequence[Store], gpu: Gpu) -> None:
    """A function that computes each element of every store (all of one size) independently."""
    numel = stores[0].numel
    writer.x = Variable("x", numel, X)
    writer.masks = {"x": "x_mask"}
    function = writer.function
    body = Body(writer, X)
    for store in stores:
        writer.store(body, store, unravel(AffineIndex.of(writer.x), store.tensor.shape), X)
    itemsize = max((ITEMSIZE[p.dtype] for p in function.pointers.values()), default=4)
    block, function.num_warps = pointwise_block(numel, itemsize, _loads(body), gpu)
    function.constants = {"XBLOCK": block}
    function.grid = (f"triton.cdiv({numel}, XBLOCK)",)
    function.lines = [f"x = {writer.program(0)} * XBLOCK + tl.arange(0, XBLOCK)", f"x_mask = x < {numel}", *body.lines]
    function.schedule = "pointwise"


# -- reductions shared by thread blocks --------------------------------------------------------------------------------


def write_split(
    writer: Writer, reductions: Sequence[TensorReduction], stores: Sequence[Store], gpu: Gpu
) -> list[Partial]:
    """A function in which thread blocks share reductions over one space, with stores of its elements on the way."""
    first = reductions[0]
    kept, reduced = first.sizes
    writer.x = Variable("x", kept, X)
    writer.masks = {"x": "x_mask", "r": "r_mask"}
    x, r = AffineIndex.of(writer.x), AffineIndex.of(Variable("r", reduced, R))
    at = first.source_indices(unravel(x, first.kept), unravel(r, first.reduced))
    main = ravel(at, first.source.shape)
    top = Body(writer, X)
    body = Body(writer, X | R, top)
    lanes = accumulate(top, body, reductions, lambda one: one.source.at(body, at))
    for store in stores:
        writer.store(body, store, unravel(main, store.tensor.shape), X | R)
    live = _loads(body) + sum(len(names) for _, names in lanes)
    contiguous = kept > 1 and not (first.dims and first.dims[-1] == len(first.source.shape) - 1)
    across, down, stripes, warps = column_blocks(kept, reduced, live, contiguous, gpu)
    function = writer.function
    function.constants = {"XBLOCK": across, "RBLOCK": down, "STRIPES": stripes}
    function.fixed = frozenset(("STRIPES",))
    function.num_warps = warps
    function.grid = (f"triton.cdiv({kept}, XBLOCK)", "STRIPES")
    function.schedule = "split"
    end = Body(writer, X)
    partials = [_partial(end, reduction, names) for reduction, names in lanes]
    if any(partial.count for partial in partials):
        function.fixed |= {"RBLOCK"}
    loop = [f"r = r0 + tl.arange(0, RBLOCK)[None, :]{writer.long}", f"r_mask = r < {reduced}", *body.lines]
    function.lines = [
        f"x = {writer.program(0)} * XBLOCK + tl.arange(0, XBLOCK)[:, None]",
        f"x_mask = x < {kept}",
        f"STRIPE: tl.constexpr = (({reduced} + STRIPES - 1) // STRIPES + RBLOCK - 1) // RBLOCK * RBLOCK",
        f"start = {writer.program(1)} * STRIPE",
        *top.lines,
        "for r0 in range(start, start + STRIPE, RBLOCK):",
        *indented(loop),
        *end.lines,
    ]
    return partials


def _partial(end: Body, reduction: TensorReduction, lanes: Sequence[str]) -> Partial:
    """Combine and store the lanes of a stripe; for moments, return the number of elements of each stripe."""
    writer, kind = end.writer, KINDS[reduction.kind]
    kept, reduced = reduction.sizes
    names = []
    for text in kind.join(end, lanes)[: kind.results]:
        names.append(writer.new_scratch(reduction.dtype, f"STRIPES * {kept}"))
        end.lines.append(f"tl.store({names[-1]} + {writer.program(1)} * {kept} + x, {end.name(text)}, x_mask)")
    count = ""
    if reduction.kind == "moments":
        down = writer.function.constants["RBLOCK"]
        stripe = f"(({reduced} + STRIPES - 1) // STRIPES + {down} - 1) // {down} * {down}"
        count = f"tl.maximum(tl.minimum({reduced} - r * ({stripe}), {stripe}), 0).to(tl.float32)"
    return Partial(reduction, names, "STRIPES", count)


def write_finish(
    writer: Writer, partials: Sequence[Partial], stores: Sequence[Store], keep: Sequence[TensorReduction], stripes: int
) -> dict[tuple[int, int], tuple[str, str]]:
    """A function that combines the stripes of reductions of one size, and computes what depends on them.

    Args:
        keep: reductions whose results go to scratch memory for later functions.
        stripes: how many there are.

    Returns:
        locations of those results: (reduction, component) → name and dtype.
    """
    name, (kept, _) = partials[0].stripes, partials[0].reduction.sizes
    writer.x = Variable("x", kept, X)
    writer.masks = {"x": "x_mask"}
    body = Body(writer, X)
    for partial in partials:
        kind = KINDS[partial.reduction.kind]
        lanes = []
        for scratch, identity in zip(partial.names, kind.identities, strict=False):
            writer.point(scratch, partial.reduction.dtype)
            loaded = f"tl.load({scratch} + r * {kept} + x, x_mask & r_mask, other=0)"
            if identity != "0":
                loaded = f"tl.where(x_mask & r_mask, {loaded}, {identity})"
            lanes.append(body.name(loaded))
        if partial.count:
            lanes.append(body.name(f"tl.where(x_mask & r_mask, {partial.count}, 0)"))
        know(body, partial.reduction, kind.join(body, lanes))
    for store in stores:
        writer.store(body, store, unravel(AffineIndex.of(writer.x), store.tensor.shape), X)
    found = {}
    for reduction in keep:
        for component in range(KINDS[reduction.kind].results):
            scratch = writer.new_scratch(reduction.dtype, str(kept))
            body.lines.append(f"tl.store({scratch} + x, {writer.local[id(reduction), component]}, x_mask)")
            found[id(reduction), component] = (scratch, reduction.dtype)
    wide = next_power_of_2(stripes)
    function = writer.function
    tall = max(1, min(next_power_of_2(kept), 4096 // wide, 64))
    function.constants = {"XBLOCK": tall, "RBLOCK": wide, name: stripes}
    function.fixed = frozenset(("RBLOCK", name))
    function.grid = (f"triton.cdiv({kept}, XBLOCK)",)
    function.schedule = "finish"
    function.lines = [
        f"x = {writer.program(0)} * XBLOCK + tl.arange(0, XBLOCK)[:, None]",
        f"x_mask = x < {kept}",
        f"r = tl.arange(0, RBLOCK)[None, :]{writer.long}",
        f"r_mask = r < {name}",
        *body.lines,
    ]
    return found


# -- rows --------------------------------------------------------------------------------------------------------------


class NestRows:
    """What a row nest has to do: reductions along the row by level, sums over rows, stores."""

    def __init__(
        self,
        writer: Writer,
        sizes: tuple[int, int],
        levels: list[list[TensorReduction]],
        late: list[TensorReduction],
        stores: list[Store],
        gpu: Gpu,
    ) -> None:
        self.writer, self.levels, self.late, self.stores, self.gpu = writer, levels, late, stores, gpu
        self.rows, self.cols = sizes
        writer.x = Variable("x", self.rows, X)
        writer.masks = {"x": "x_mask", "r": "r_mask"}
        writer.hoists = self.rows > 1  # with one row, indices do not show which values need the row's results
        self.x, self.r = AffineIndex.of(writer.x), AffineIndex.of(Variable("r", self.cols, R))
        #: row-major position of (x, r) in the tensor that the first reduction reads
        self.main = self.x * self.cols + self.r
        if levels:
            first = levels[0][0]
            at = first.source_indices(unravel(self.x, first.kept), unravel(self.r, first.reduced))
            self.main = ravel(at, first.source.shape)
        #: sums over rows: their tiles, and their partial results for a second launch
        self.sums: dict[int, str] = {}
        self.partials: list[Partial] = []

    def write(self, persistent: bool | None) -> list[Partial]:
        """Write the function; returns the sums over rows that a second launch has to finish.

        Args:
            persistent: rows in one tile, or in a loop; None lets the block sizes decide.
        """
        blocks = row_blocks(self.rows, self.cols, self._live(), self.gpu)
        self.persistent = blocks.persistent if persistent is None else persistent
        if self.persistent != blocks.persistent:
            wide = next_power_of_2(self.cols)
            blocks = type(blocks)(1, wide if persistent else min(wide, 1024), 8 if persistent else 4, self.persistent)
        function = self.writer.function
        function.constants = {"XBLOCK": blocks.rows, "RBLOCK": blocks.cols}
        function.fixed = frozenset(("RBLOCK",)) if self.persistent else frozenset()
        if not self.persistent and self.late:
            function.fixed |= {"XBLOCK"}
        function.num_warps = blocks.warps
        function.schedule = ("persistent" if self.persistent else "looped") + " + split" * bool(self.late)
        self._lines()
        return self.partials

    def _live(self) -> int:
        """Elements of each position that are live at once: loaded ones, accumulators, and a few intermediates."""
        trial = Writer(self.writer.file, "trial")
        trial.x, trial.masks, trial.scratch = self.writer.x, self.writer.masks, self.writer.scratch
        trial.hoists = self.writer.hoists
        body = Body(trial, X | R)
        for level in self.levels:
            for reduction in level:
                self._value(body, reduction)
                know(body, reduction, ["0"] * KINDS[reduction.kind].results)
        for reduction in self.late:
            if reduction.sizes[0] > 1:
                self._value(body, reduction)
        for store in self.stores:
            self._store(body, body, store)
        columns = sum(r.sizes[0] == self.cols for r in self.late)
        return max(_loads(body, "r_mask") + columns + SPARE_ELEMENTS, 3)

    def _lines(self) -> None:
        writer, function = self.writer, self.writer.function
        top = Body(writer, R if self.persistent else frozenset())
        if self.persistent:
            top.lines += [f"r = tl.arange(0, RBLOCK)[None, :]{writer.long}", f"r_mask = r < {self.cols}"]
        row = Body(writer, X | R if self.persistent else X, top)
        self._accumulators(top)
        for level in self.levels:
            self._level(row, level)
        body = row if self.persistent else Body(writer, X | R, row)
        for reduction in self.late:
            self._gather(body, row, reduction)
        for store in self.stores:
            self._store(body, row, store)
        if not self.persistent and body.lines:
            row.lines += self._loop(body)
        if not self.persistent and any(id(r) not in self.sums for r in self.late):
            row.lines.append("tl.debug_barrier()")  # other threads may have written the sums to which the next row adds
        start = "x0" if self.late else f"{writer.program(0)} * XBLOCK"
        lines = [f"x = {start} + tl.arange(0, XBLOCK)[:, None]", f"x_mask = x < {self.rows}", *row.lines]
        if self.late:
            step = f"range({writer.program(0)} * XBLOCK, {self.rows}, PROGRAMS * XBLOCK)"
            lines = [f"for x0 in {step}:", *indented(lines)]
            function.constants["PROGRAMS"] = self._thread_blocks()
            function.fixed |= {"PROGRAMS"}
            function.grid = ("PROGRAMS",)
        else:
            function.grid = (f"triton.cdiv({self.rows}, XBLOCK)",)
        function.lines = [*top.lines, *lines, *self._write_partials()]

    def _loop(self, body: Body) -> list[str]:
        head = [f"r = r0 + tl.arange(0, RBLOCK)[None, :]{self.writer.long}", f"r_mask = r < {self.cols}"]
        return [f"for r0 in range(0, {self.cols}, RBLOCK):", *indented([*head, *body.lines])]

    def _value(self, body: Body, reduction: TensorReduction) -> str:
        """An element of what is reduced, at (x, r)."""
        kept, reduced = reduction.sizes
        across, along = (AffineIndex(),) * len(reduction.kept), self.main
        if (kept, reduced) == (self.rows, self.cols) and reduction not in self.late:
            across, along = unravel(self.x, reduction.kept), self.r
        elif (kept, reduced) == (self.cols, self.rows):
            across, along = unravel(self.r, reduction.kept), self.x
        elif kept == 1 and reduced == self.rows:
            along = self.x
        return reduction.source.at(body, reduction.source_indices(across, unravel(along, reduction.reduced)))

    def _level(self, row: Body, level: Sequence[TensorReduction]) -> None:
        """The reductions along the row that depend on reductions before."""
        if self.persistent:
            for reduction in level:
                value = self._value(row, reduction)
                know(row, reduction, KINDS[reduction.kind].tile(row, value, "x_mask & r_mask", self.cols))
            return
        body = Body(self.writer, X | R, row)
        lanes = accumulate(row, body, level, lambda reduction: self._value(body, reduction))
        row.lines += self._loop(body)
        for reduction, names in lanes:
            know(row, reduction, KINDS[reduction.kind].join(row, names))

    def _store(self, body: Body, row: Body, store: Store) -> None:
        """Store what belongs to a row or to its elements."""
        if store.copied is not None:
            store = Store(store.value_id, store.copied.source, store.copied)
        shape, numel = store.tensor.shape, store.numel
        if numel == self.rows * self.cols:
            body.writer.store(body, store, unravel(self.main, shape), X | R)
        elif numel == self.rows:
            row.writer.store(row, store, unravel(self.x, shape), X)
        else:
            raise NotGenerated("a tensor of another size than the rows")

    # -- sums over rows ----------------------------------------------------------------------------------------------

    def _thread_blocks(self) -> int:
        """Thread blocks that loop over the rows: enough on each multiprocessor for its bandwidth."""
        function = self.writer.function
        tile_rows = function.constants["XBLOCK"]
        read = sum(ITEMSIZE[p.dtype] for p in function.pointers.values() if p.name.startswith("in"))
        row_bytes = tile_rows * self.cols * read
        each = math.ceil(2 * bytes_in_flight(self.gpu) / max(min(row_bytes, 64 * 1024), 1))
        each = max(1, min(each, 32 // function.num_warps, 8))
        return max(1, min(each * self.gpu.sm_count, -(-self.rows // tile_rows)))

    def _accumulators(self, top: Body) -> None:
        """A tile of sums for each reduction; looped rows have the sums of whole columns in scratch memory."""
        for reduction in self.late:
            wide = reduction.sizes[0] > 1
            if wide and not self.persistent:
                continue
            name = self.sums[id(reduction)] = self.writer.unique()
            shape = "[XBLOCK, RBLOCK]" if wide else "[XBLOCK, 1]"
            top.lines.append(f"{name} = tl.zeros({shape}, tl.{reduction.dtype})")

    def _gather(self, body: Body, row: Body, reduction: TensorReduction) -> None:
        kept, reduced = reduction.sizes
        if kept == 1 and reduced == self.rows:
            text = f"tl.where(x_mask, {self._value(row, reduction)}, 0)"
            row.lines.append(f"{self.sums[id(reduction)]} += {text}")
            return
        text = f"tl.where(x_mask & r_mask, {self._value(body, reduction)}, 0)"
        if kept == 1:
            body.lines.append(f"{self.sums[id(reduction)]} += tl.sum({text}, axis=1)[:, None]")
        elif self.persistent:
            body.lines.append(f"{self.sums[id(reduction)]} += {text}")
        else:
            place = f"{self._scratch(reduction)} + {self.writer.program(0)} * {self.cols} + r"
            is_later = "(x0 > tl.program_id(0) * XBLOCK)"
            before = body.name(f"tl.load({place}, r_mask & {is_later}, other=0)")
            body.lines.append(f"tl.store({place}, {before} + {text}, r_mask)")

    def _scratch(self, reduction: TensorReduction) -> str:
        """Memory for the partial sums of a reduction, one run per thread block."""
        known = next((p for p in self.partials if p.reduction is reduction), None)
        if known is None:
            name = self.writer.new_scratch(reduction.dtype, f"PROGRAMS * {reduction.sizes[0]}")
            known = Partial(reduction, [name], "PROGRAMS")
            self.partials.append(known)
        return known.names[0]

    def _write_partials(self) -> list[str]:
        lines = []
        for reduction in self.late:
            name, sums = self._scratch(reduction), self.sums.get(id(reduction))
            if sums is None:
                continue
            total = f"tl.sum({sums}, axis=0)[None, :]"
            if reduction.sizes[0] > 1:
                lines.append(f"tl.store({name} + {self.writer.program(0)} * {self.cols} + r, {total}, r_mask)")
            else:
                lines.append(f"tl.store({name} + tl.program_id(0) + tl.zeros([1, 1], tl.int32), {total})")
        return lines
