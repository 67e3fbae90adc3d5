"""Loop nests: how a group's tensors become functions over a tile.

Three nests serve all groups. *Pointwise*: a program computes a run of elements. *Rows*: a program holds rows in one
tile (persistent) or walks along them (looped); sums over the rows are gathered on the way, one partial sum of each
program, and finished in a second launch. *Split*: programs share a reduction, each takes a stripe of it; the partial
results are joined by a second launch, in a fixed order. What a reduction gave is then read from memory by later nests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from memwall.codegen.blocks import bytes_in_flight, column_blocks, pointwise_block, row_blocks
from memwall.codegen.index import Index, Variable, offset, ravel, unravel
from memwall.codegen.kernel import NotGenerated
from memwall.codegen.kinds import KINDS, RESULTS, filled
from memwall.codegen.lowering import Lowering
from memwall.codegen.ops.base import Scatter
from memwall.codegen.tensors import Body, Indices, Reduction, Tensor, cast, compute_dtype
from memwall.codegen.writing import File, Function, Pointer, Touch, next_power_of_2
from memwall.hardware import Gpu

X, R = frozenset("x"), frozenset("r")
#: registers of a row kernel that hold elements beside those loaded
SPARE_ELEMENTS = 2


@dataclass(eq=False)
class Store:
    """A tensor that goes to memory: as a value of the graph, or a scatter into one."""

    value_id: int
    tensor: Tensor
    scatter: Scatter | None = None
    #: scratch that a scatter adds into, empty where it writes to its output
    target: str = ""

    @property
    def numel(self) -> int:
        return self.tensor.numel


@dataclass
class Partial:
    """A reduction whose stripes wait in scratch memory to be joined."""

    reduction: Reduction
    names: list[str]
    stripes: str
    #: elements of stripe ``s``, as an expression, where the kind counts them
    count: str = ""


class Missing(Exception):
    """A reduction is needed that is not there yet."""

    def __init__(self, reduction: Reduction) -> None:
        super().__init__("a reduction is needed first")
        self.reduction = reduction


class Writer:
    """Writes one function; the :class:`~memwall.codegen.tensors.Memory` of its bodies."""

    def __init__(self, file: File, lowering: Lowering, name: str, is_large: bool) -> None:
        self.file, self.lowering, self.is_large = file, lowering, is_large
        self.function = Function(name)
        self.local: dict[tuple[int, int], str] = {}
        self.scratch: dict[tuple[int, int], tuple[str, str]] = {}
        self.x = Variable("x", 1, X)
        self.masks: dict[str, str] = {}
        self.hoists = True

    # -- the protocol of bodies --------------------------------------------------------------------------------------

    def pointer(self, value_id: int) -> str:
        name = self.file.outputs.get(value_id) or self.file.take(value_id)
        return self.point(name, name, self.spec_dtype(value_id), self.file.note(value_id))

    def point(self, name: str, argument: str, dtype: str, note: str = "") -> str:
        """A parameter that points to something."""
        self.function.pointers.setdefault(name, Pointer(name, argument, dtype, note))
        return name

    def spec_dtype(self, value_id: int) -> str:
        return self.file.graph.values[value_id].spec.dtype

    def is_empty(self, value_id: int) -> bool:
        return self.file.graph.values[value_id].spec.numel == 0

    def reduced(self, body: Body, reduction: Reduction, kept: Index, component: int) -> str:
        key = (id(reduction), component)
        if key in self.local:
            if kept != Index.of(self.x):
                raise NotGenerated("a row's result is used at another row")
            return self.local[key]
        if key in self.scratch:
            name, dtype = self.scratch[key]
            return body.load_scratch(self.point(name, name, dtype), kept)
        raise Missing(reduction)

    def mask(self, axes: frozenset[str]) -> list[str]:
        return [self.masks[axis] for axis in sorted(axes, reverse=True) if axis in self.masks]

    def unique(self) -> str:
        return self.function.unique()

    # -- pieces of text ----------------------------------------------------------------------------------------------

    def program(self, axis: int) -> str:
        """Number of the program along an axis of the grid."""
        return f"tl.program_id({axis}){self.long}"

    @property
    def long(self) -> str:
        """What makes a number of 32 bits one of 64, where offsets need them."""
        return ".to(tl.int64)" if self.is_large else ""

    def store(self, body: Body, store: Store, indices: Indices, axes: frozenset[str]) -> None:
        """One element of a tensor to memory; ``axes`` are those along which the elements lie."""
        if store.scatter is not None:
            self._scatter(body, store, store.scatter, indices, axes)
            return
        value = self.file.graph.values[store.value_id]
        text = body.name(cast(store.tensor.at(body, indices), store.tensor.dtype, value.spec.dtype))
        place = offset(indices, value.spec.strides)
        is_read = any(read.value_id == store.value_id for read in self.function.reads)
        if is_read and "r" in self.masks and "r" not in place.axes:
            body.lines.append("tl.debug_barrier()")  # every warp holds a copy of what one of them writes over
        self._put(body, store, "store", place, text, [], place.axes | X)

    def _target(self, store: Store) -> str:
        if store.target:
            return self.point(store.target, store.target, "float32")
        return self.pointer(store.value_id)

    def _scatter(
        self, body: Body, store: Store, scatter: Scatter, indices: Indices, axes: frozenset[str]
    ) -> None:
        place, tests = scatter.place(body, indices)
        dtype = "float32" if store.target else scatter.dtype
        text = body.name(cast(scatter.source.at(body, indices), scatter.source.dtype, dtype))
        how = "atomic_add" if scatter.accumulate else "store"
        self._put(body, store, how, place, text, tests, axes)

    def _put(
        self,
        body: Body,
        store: Store,
        how: str,
        place: Index,
        text: str,
        tests: list[str],
        axes: frozenset[str],
    ) -> None:
        masks = [*self.mask(axes), *tests]
        where = f"{self._target(store)} + {body.spread(place, axes)}"
        if not store.target:
            self.function.writes.append(Touch(store.value_id, self.file.versions[store.value_id], place.text))
        order = ['sem="relaxed"'] if how == "atomic_add" else []
        given = [where, text, *([" & ".join(masks)] if masks else []), *order]
        body.lines.append(f"tl.{how}({', '.join(given)})")


def indented(lines: Iterable[str]) -> list[str]:
    """Lines of a loop's body."""
    return [f"    {line}" for line in lines]


# -- pointwise ---------------------------------------------------------------------------------------------------------


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
    itemsize = max((_itemsize(p.dtype) for p in function.pointers.values()), default=4)
    block, function.num_warps = pointwise_block(numel, itemsize, loads, gpu)
    function.constants = {"XBLOCK": block}
    function.grid = (f"triton.cdiv({numel}, XBLOCK)",)
    function.lines = [
        f"x = {writer.program(0)} * XBLOCK + tl.arange(0, XBLOCK)", f"x_mask = x < {numel}", *body.lines,
    ]  # fmt: skip
    function.schedule = "pointwise"


def _itemsize(dtype: str) -> int:
    return {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}.get(
        dtype, 1
    )


# -- rows --------------------------------------------------------------------------------------------------------------


@dataclass
class Rows:
    """What a row nest has to do: reductions along the row by level, sums over rows, stores."""

    rows: int
    cols: int
    levels: list[list[Reduction]]
    late: list[Reduction] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)


def write_rows(writer: Writer, work: Rows, gpu: Gpu, persistent: bool | None = None) -> list[Partial]:
    """A function over rows; gives the sums over rows that a second launch has to finish."""
    return _RowNest(writer, work, gpu, persistent).write()


class _RowNest:
    def __init__(self, writer: Writer, work: Rows, gpu: Gpu, persistent: bool | None) -> None:
        self.writer, self.work, self.gpu = writer, work, gpu
        writer.x = Variable("x", work.rows, X)
        self.r = Variable("r", work.cols, R)
        writer.masks = {"x": "x_mask", "r": "r_mask"}
        writer.hoists = work.rows > 1  # of one row, nothing says that it needs the row's results
        first = next(iter(work.levels), [None])[0]
        self.main = self._place(first)
        self.live = 0
        self.forced = persistent

    def _place(self, reduction: Reduction | None) -> Index:
        """Where (x, r) lies in the tensor that the first reduction reads, in row-major order."""
        x, r = Index.of(self.writer.x), Index.of(self.r)
        if reduction is None:
            return x * self.work.cols + r
        at = reduction.source_indices(unravel(x, reduction.kept), unravel(r, reduction.reduced))
        return ravel(at, reduction.source.shape)

    def write(self) -> list[Partial]:
        work, writer = self.work, self.writer
        tiles = self._count_live()
        blocks = row_blocks(work.rows, work.cols, tiles, self.gpu)
        persistent = blocks.persistent if self.forced is None else self.forced
        if persistent != blocks.persistent:
            wide = next_power_of_2(max(work.cols, 1))
            blocks = type(blocks)(
                1, wide if persistent else min(wide, 1024), 8 if persistent else 4, persistent
            )
        function = writer.function
        function.constants = {"XBLOCK": blocks.rows, "RBLOCK": blocks.cols}
        function.fixed = frozenset(("RBLOCK",)) if persistent else frozenset()
        if not persistent and work.late:
            function.fixed |= {"XBLOCK"}
        function.num_warps = blocks.warps
        function.schedule = "persistent" if persistent else "looped"
        if work.late:
            function.schedule += " + split"
        self._lines(persistent)
        return self.partials

    def _count_live(self) -> int:
        """Elements of each place that are held at once: those loaded, those summed up, and a few between."""
        trial = Writer(self.writer.file, self.writer.lowering, "trial", False)
        trial.x, trial.masks, trial.scratch = self.writer.x, self.writer.masks, self.writer.scratch
        trial.hoists = self.writer.hoists
        body = Body(trial, X | R)
        for level in self.work.levels:
            for reduction in level:
                self._value(body, reduction)
                trial.local.update(((id(reduction), n), "0") for n in range(RESULTS[reduction.kind]))
        for reduction in self.work.late:
            if math.prod(reduction.kept) > 1:
                self._value(body, reduction)
        for store in self.work.stores:
            self._attempt(trial, body, body, store)
        loads = sum("tl.load(" in line and "r_mask" in line for line in body.lines)
        columns = sum(math.prod(r.kept) == self.work.cols for r in self.work.late)
        return max(loads + columns + SPARE_ELEMENTS, 3)

    def _lines(self, persistent: bool) -> None:
        writer, work = self.writer, self.work
        function = writer.function
        self.partials: list[Partial] = []
        walks = bool(work.late)
        top = Body(writer, R if persistent else frozenset())
        if persistent:
            top.lines += [f"r = tl.arange(0, RBLOCK)[None, :]{writer.long}", f"r_mask = r < {work.cols}"]
        row = Body(writer, X | R if persistent else X, top)
        sums = self._accumulators(top, persistent) if walks else {}
        for level in work.levels:
            self._level(row, level, persistent)
        body = row if persistent else Body(writer, X | R, row)
        for reduction in work.late:
            self._gather(body, row, reduction, sums, persistent)
        for store in work.stores:
            self._attempt(writer, body, row, store)
        if not persistent and body.lines:
            row.lines += self._loop(body)
        if walks:
            self._finish_row(row, sums, persistent)
        start = "x0" if walks else f"{writer.program(0)} * XBLOCK"
        lines = [f"x = {start} + tl.arange(0, XBLOCK)[:, None]", f"x_mask = x < {work.rows}", *row.lines]
        if walks:
            step = f"range({writer.program(0)} * XBLOCK, {work.rows}, PROGRAMS * XBLOCK)"
            lines = [f"for x0 in {step}:", *indented(lines)]
            function.constants["PROGRAMS"] = self._programs()
            function.fixed |= {"PROGRAMS"}
            function.grid = ("PROGRAMS",)
        else:
            function.grid = (f"triton.cdiv({work.rows}, XBLOCK)",)
        function.lines = [*top.lines, *lines, *self._write_partials(sums, persistent)]

    def _loop(self, body: Body) -> list[str]:
        r = f"r0 + tl.arange(0, RBLOCK)[None, :]{self.writer.long}"
        head = [f"r = {r}", f"r_mask = r < {self.work.cols}"]
        return [f"for r0 in range(0, {self.work.cols}, RBLOCK):", *indented([*head, *body.lines])]

    def _value(self, body: Body, reduction: Reduction) -> str:
        """An element of what is reduced, at (x, r)."""
        x, r = Index.of(self.writer.x), Index.of(self.r)
        kept, reduced = math.prod(reduction.kept), math.prod(reduction.reduced)
        work = self.work
        if (kept, reduced) == (work.rows, work.cols) and reduction not in work.late:
            at = reduction.source_indices(unravel(x, reduction.kept), unravel(r, reduction.reduced))
        elif (kept, reduced) == (work.cols, work.rows):
            at = reduction.source_indices(unravel(r, reduction.kept), unravel(x, reduction.reduced))
        elif kept == 1 and reduced == work.rows:
            at = reduction.source_indices((Index(),) * len(reduction.kept), unravel(x, reduction.reduced))
        else:
            at = reduction.source_indices(
                (Index(),) * len(reduction.kept), unravel(self.main, reduction.reduced)
            )
        return reduction.source.at(body, at)

    def _level(self, row: Body, level: Sequence[Reduction], persistent: bool) -> None:
        """The reductions along the row that depend on those before."""
        writer = self.writer
        if persistent:
            for reduction in level:
                value = self._value(row, reduction)
                results = KINDS[reduction.kind].tile(row, value, "x_mask & r_mask", self.work.cols)
                self._know(row, reduction, results)
            return
        body = Body(writer, X | R, row)
        ends = []
        for reduction in level:
            kind = KINDS[reduction.kind]
            dtype = compute_dtype(reduction.source.dtype)
            lanes = [writer.unique() for _ in kind.identities]
            row.lines += [f"{n} = {filled(i, dtype)}" for n, i in zip(lanes, kind.identities, strict=True)]
            after = kind.step(body, lanes, self._value(body, reduction), "x_mask & r_mask")
            ends.append((reduction, lanes, [body.name(text) for text in after]))
        body.lines += [
            f"{n} = {new}" for _, lanes, after in ends for n, new in zip(lanes, after, strict=True)
        ]
        row.lines += self._loop(body)
        for reduction, lanes, _ in ends:
            self._know(row, reduction, KINDS[reduction.kind].join(row, lanes))

    def _know(self, row: Body, reduction: Reduction, results: Sequence[str]) -> None:
        for component, text in enumerate(results[: RESULTS[reduction.kind]]):
            self.writer.local[(id(reduction), component)] = row.name(text)

    def _attempt(self, writer: Writer, body: Body, row: Body, store: Store) -> None:
        """Store what belongs to a row or to its elements."""
        tensor = store.tensor
        if tensor.numel == self.work.rows * self.work.cols:
            writer.store(body, store, unravel(self.main, tensor.shape), X | R)
        elif tensor.numel == self.work.rows:
            writer.store(row, store, unravel(Index.of(writer.x), tensor.shape), X)
        else:
            raise NotGenerated("a tensor of another size than the rows")

    # -- sums over rows ----------------------------------------------------------------------------------------------

    def _programs(self) -> int:
        """Programs that walk over the rows: enough of them on each multiprocessor for its bandwidth."""
        function, work = self.writer.function, self.work
        tile_rows = function.constants["XBLOCK"]
        row_bytes = tile_rows * work.cols * sum(
            _itemsize(p.dtype) for p in function.pointers.values() if p.name.startswith("in")
        )  # fmt: skip
        each = math.ceil(2 * bytes_in_flight(self.gpu) / max(min(row_bytes, 64 * 1024), 1))
        each = max(1, min(each, 32 // function.num_warps, 8))
        return max(1, min(each * self.gpu.sm_count, -(-work.rows // tile_rows)))

    def _accumulators(self, top: Body, persistent: bool) -> dict[int, str]:
        """A tile of sums for each reduction; those of a looped row lie in scratch memory."""
        found = {}
        for reduction in self.work.late:
            wide = math.prod(reduction.kept) > 1
            if wide and not persistent:
                continue
            name = self.writer.unique()
            shape = "[XBLOCK, RBLOCK]" if wide else "[XBLOCK, 1]"
            top.lines.append(f"{name} = tl.zeros({shape}, {_accumulator(reduction)})")
            found[id(reduction)] = name
        return found

    def _gather(
        self, body: Body, row: Body, reduction: Reduction, sums: dict[int, str], persistent: bool
    ) -> None:
        work = self.work
        wide = math.prod(reduction.kept) > 1
        if not wide and math.prod(reduction.reduced) == work.rows:
            text = f"tl.where(x_mask, {self._value(row, reduction)}, 0)"
            row.lines.append(f"{sums[id(reduction)]} += {text}")
            return
        value = self._value(body, reduction)
        text = f"tl.where(x_mask & r_mask, {value}, 0)"
        if not wide:
            body.lines.append(f"{sums[id(reduction)]} += tl.sum({text}, axis=1)[:, None]")
        elif persistent:
            body.lines.append(f"{sums[id(reduction)]} += {text}")
        else:
            name = self._scratch(reduction)
            place = f"{name} + {self.writer.program(0)} * {work.cols} + r"
            is_later = "(x0 > tl.program_id(0) * XBLOCK)"
            before = body.name(f"tl.load({place}, r_mask & {is_later}, other=0)")
            body.lines.append(f"tl.store({place}, {before} + {text}, r_mask)")

    def _finish_row(self, row: Body, sums: dict[int, str], persistent: bool) -> None:
        if not persistent and any(id(r) not in sums for r in self.work.late):
            row.lines.append(
                "tl.debug_barrier()"
            )  # the next row adds to sums that other threads may have written

    def _scratch(self, reduction: Reduction) -> str:
        """Memory for the partial sums of a reduction, one run of them for each program."""
        dtype = compute_dtype(reduction.source.dtype)
        known = next((p for p in self.partials if p.reduction is reduction), None)
        if known is None:
            name = self.writer.file.new_scratch(dtype, f"PROGRAMS * {math.prod(reduction.kept)}")
            self.writer.point(name, name, dtype)
            known = Partial(reduction, [name], "PROGRAMS")
            self.partials.append(known)
        return known.names[0]

    def _write_partials(self, sums: dict[int, str], persistent: bool) -> list[str]:
        lines = []
        for reduction in self.work.late:
            name = self._scratch(reduction)
            if id(reduction) not in sums:
                continue
            total = f"tl.sum({sums[id(reduction)]}, axis=0)[None, :]"
            if math.prod(reduction.kept) > 1:
                lines.append(
                    f"tl.store({name} + {self.writer.program(0)} * {self.work.cols} + r, {total}, r_mask)"
                )
            else:
                lines.append(f"tl.store({name} + tl.program_id(0) + tl.zeros([1, 1], tl.int32), {total})")
        return lines


def _accumulator(reduction: Reduction) -> str:
    return f"tl.{compute_dtype(reduction.source.dtype)}"


# -- split -------------------------------------------------------------------------------------------------------------


def write_split(
    writer: Writer, reductions: Sequence[Reduction], stores: Sequence[Store], gpu: Gpu
) -> list[Partial]:
    """A function in which programs share reductions of one space, with stores of its elements on the way."""
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
    """The lanes of a stripe put together and stored; of moments, how many elements each stripe has."""
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
    """A function that joins the stripes of reductions of one size, and does what follows from them.

    Args:
        keep: reductions whose results go to scratch memory for later functions.
        stripes: name and value of the number of stripes.

    Returns:
        where those results lie: (reduction, component) → name and dtype.
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
