"""The nest over rows: in one tile (persistent) or in a loop (looped), sums over the rows accumulated on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from memwall.codegen.blocks import bytes_in_flight, row_blocks
from memwall.codegen.index import Index, Variable, ravel, unravel
from memwall.codegen.kernel import NotGenerated
from memwall.codegen.kinds import KINDS, RESULTS, filled
from memwall.codegen.tensors import Body, Reduction, compute_dtype
from memwall.codegen.writer import Partial, R, Store, Writer, X, indented
from memwall.codegen.writing import next_power_of_2
from memwall.core.graph import ITEMSIZE
from memwall.hardware.lookup import Gpu

#: registers of a row kernel that hold elements other than those loaded
SPARE_ELEMENTS = 2


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
        writer.hoists = work.rows > 1  # with one row, indices do not show which values need the row's results
        first = next(iter(work.levels), [None])[0]
        self.main = self._place(first)
        self.live = 0
        self.forced = persistent

    def _place(self, reduction: Reduction | None) -> Index:
        """Row-major position of (x, r) in the tensor that the first reduction reads."""
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
            blocks = type(blocks)(1, wide if persistent else min(wide, 1024), 8 if persistent else 4, persistent)
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
        """Elements of each position that are live at once: those loaded, accumulators, and a few intermediates."""
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
            function.constants["PROGRAMS"] = self._thread_blocks()
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
            at = reduction.source_indices((Index(),) * len(reduction.kept), unravel(self.main, reduction.reduced))
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
        body.lines += [f"{n} = {new}" for _, lanes, after in ends for n, new in zip(lanes, after, strict=True)]
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

    def _thread_blocks(self) -> int:
        """Thread blocks that loop over the rows: enough on each multiprocessor for its bandwidth."""
        function, work = self.writer.function, self.work
        tile_rows = function.constants["XBLOCK"]
        row_bytes = tile_rows * work.cols * sum(
            ITEMSIZE[p.dtype] for p in function.pointers.values() if p.name.startswith("in")
        )  # fmt: skip
        each = math.ceil(2 * bytes_in_flight(self.gpu) / max(min(row_bytes, 64 * 1024), 1))
        each = max(1, min(each, 32 // function.num_warps, 8))
        return max(1, min(each * self.gpu.sm_count, -(-work.rows // tile_rows)))

    def _accumulators(self, top: Body, persistent: bool) -> dict[int, str]:
        """A tile of sums for each reduction, in scratch memory for looped rows."""
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

    def _gather(self, body: Body, row: Body, reduction: Reduction, sums: dict[int, str], persistent: bool) -> None:
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
            row.lines.append("tl.debug_barrier()")  # other threads may have written the sums to which the next row adds

    def _scratch(self, reduction: Reduction) -> str:
        """Memory for the partial sums of a reduction, one run per thread block."""
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
                lines.append(f"tl.store({name} + {self.writer.program(0)} * {self.work.cols} + r, {total}, r_mask)")
            else:
                lines.append(f"tl.store({name} + tl.program_id(0) + tl.zeros([1, 1], tl.int32), {total})")
        return lines


def _accumulator(reduction: Reduction) -> str:
    return f"tl.{compute_dtype(reduction.source.dtype)}"
