"""A matrix product with its prologue and epilogue → one kernel from one template.

Elementwise ops on an operand run as its tiles are loaded, ops on the result while it is in registers; between them
is ``tl.dot`` with sums in float32. Thread blocks visit tiles in groups of rows, so that the tiles that they share
are in L2. :mod:`memwall.codegen.lowering` writes what an op computes, as for every other kernel; the product itself is
a tensor that is known only at the position of the current tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from memwall.codegen.blocks import RANDOM_SHAPES, SCALAR_SHAPES, SHAPES, VECTOR_BYTES, VECTOR_SHAPES, Shape, tiles
from memwall.codegen.index import AffineIndex, Variable, offset, unravel
from memwall.codegen.kernel import Kernel, NotGenerated
from memwall.codegen.lowering import Lowering, is_given, locate, packet_of
from memwall.codegen.ops.base import broadcast
from memwall.codegen.tensors import (
    Body,
    Indices,
    Tensor,
    TensorReduction,
    Writer,
    compute_dtype,
    indented,
    triton_dtype,
)
from memwall.codegen.writing import INT32_LIMIT, File
from memwall.core.flow import Flow
from memwall.core.graph import ITEMSIZE, Graph, Op, TensorSpec, Value
from memwall.fusion import Group
from memwall.fusion.rules import aligned
from memwall.hardware.lookup import Gpu
from memwall.ops.loops import is_random
from memwall.ops.registry import find_row

#: the products that the template does; their rows in :mod:`memwall.ops` say which argument is what
PRODUCTS = frozenset(("mm", "bmm", "addmm", "baddbmm", "linear"))
#: multiples of these sizes need no mask for any tile
_WHOLE_TILE, _WHOLE_DEPTH = 256, 64
MAX_BATCH = 65535

_HEAD = """import os

{imports}

#: Triton's interpreter cannot multiply bfloat16
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")

"""


def _operands(op: Op) -> tuple[str, ...]:
    """The arguments that are multiplied, and the one that may be added."""
    row = find_row(op.name)
    return row.operands if row else ()


class _Misplaced(NotGenerated):
    """The product is needed at another position than the current tile's."""


class _ProductNest(Lowering):
    """Lowers a group whose product is known only at the position of the current tile.

    It is ``batch`` matrices of m × n, sums over k: ``k_left`` along the left operand's columns, ``k_right`` along the
    right one's rows.
    """

    def __init__(self, graph: Graph, flow: Flow, op_ids: Sequence[int], product: Op) -> None:
        self.product = product
        self.views: set[TensorSpec] = set()
        super().__init__(graph, flow, op_ids)

    def _op(self, op: Op, position: int) -> None:
        if op.id != self.product.id:
            super()._op(op, position)
            return
        packet, given = packet_of(op.name), dict(self._given(op))
        left, right, *added = _operands(op)
        self._place(given[left], given[right], packet == "linear")
        addend = given.get(added[0]) if added else None
        spec = self.graph.values[op.outputs[0]].spec
        ((value_id, version),) = self.flow.writes[op.id]
        self.made[version] = Tensor(spec.shape, spec.dtype, lambda body, i: self._element(body, i, addend)), value_id

    def _place(self, left: Tensor, right: Tensor, is_linear: bool) -> None:
        """Sizes, the index of the tile's elements in the result, and both operands with the index of their tile."""
        self.n, self.k = right.shape if is_linear else (right.shape[-1], right.shape[-2])
        self.has_batch = not is_linear and len(left.shape) == 3
        self.batch, lead = (left.shape[0], left.shape[1:2]) if self.has_batch else (1, left.shape[:-1])
        self.m = math.prod(lead)
        names = {"m": self.m, "n": self.n, "k_left": self.k, "k_right": self.k}
        row, column, k_left, k_right = (AffineIndex.of(Variable(n, size, frozenset((n,)))) for n, size in names.items())
        matrix = (AffineIndex.of(Variable("batch", self.batch, frozenset())),) if self.has_batch else ()
        self.place = (*matrix, *unravel(row, lead), column)
        self.flat = row * self.n + column
        if matrix:
            self.flat += matrix[0] * (self.m * self.n)
        self.left = left, (*matrix, *unravel(row, lead), k_left)
        self.right = right, ((column, k_right) if is_linear else (*matrix, k_right, column))

    def view(self, value_id: int, version: int) -> Tensor:
        if self.flow.writer[version] == self.product.id:
            self.views.add(self.graph.values[value_id].spec)
        return super().view(value_id, version)

    def _element(self, body: Body, indices: Indices, addend: Tensor | None) -> str:
        """The sum over the depth, and what the op adds to it."""
        if tuple(indices) != self.place:
            raise _Misplaced("the matmul is read in another order than its tiles have")
        alpha, beta = (float(self.product.attributes.get(name, 1)) for name in ("alpha", "beta"))
        text = "total" if alpha == 1 else f"{alpha!r} * total"
        if addend is None or beta == 0:
            return text
        added = addend.at(body, broadcast(addend, indices))
        return f"{text} + {added}" if beta == 1 else f"{text} + {beta!r} * {added}"


def gemm_kernel(graph: Graph, flow: Flow, group: Group, gpu: Gpu) -> Kernel:
    """The kernel of a group of one product and elementwise ops on its operands and its result.

    Raises:
        NotGenerated: no or several products, other ops, a result in another order, or a GPU whose matrix units Triton
            does not use.
    """
    return _Gemm(graph, flow, group, gpu).kernel()


class _Gemm(Writer):
    """Writes the only function of the file."""

    def __init__(self, graph: Graph, flow: Flow, group: Group, gpu: Gpu) -> None:
        self.graph, self.flow, self.group = graph, flow, group
        op_ids = (*group.op_ids, *group.recomputes)
        products = [graph.ops[i] for i in op_ids if graph.ops[i].op_class == "contraction"]
        if len(products) != 1:
            raise NotGenerated(f"{len(products)} matmuls in one kernel")
        product = products[0]
        if packet_of(product.name) not in PRODUCTS:
            raise NotGenerated(f"no template for {product.name}")
        operands = _operands(product)[:2]
        pairs = zip(product.arguments, product.inputs, strict=True)
        dtypes = {graph.values[i].spec.dtype for name, i in pairs if name in operands}
        if len(dtypes) != 1 or not dtypes <= {"float16", "bfloat16", "float32"}:
            raise NotGenerated(f"a matmul of {' and '.join(sorted(dtypes))}")
        self.dtype = dtypes.pop()
        made = _ProductNest(graph, flow, op_ids, product)
        super().__init__(File(graph), "matmul")
        self.lowering = made
        if made.batch > MAX_BATCH:
            raise NotGenerated(f"{made.batch} matrices in one launch")
        tf32 = bool(product.attributes.get("allow_tf32"))
        self.precision = {"float32": "tf32" if tf32 else "ieee"}.get(self.dtype, "")
        self.tiles = tiles((made.batch, made.m, made.n), ITEMSIZE[self.dtype], self._shapes(), gpu)
        self.function.constants, self.function.num_warps = self.tiles[0].constants(), self.tiles[0].warps
        limits = {
            "m": (made.m, _WHOLE_TILE),
            "n": (made.n, _WHOLE_TILE),
            "k_left": (made.k, _WHOLE_DEPTH),
            "k_right": (made.k, _WHOLE_DEPTH),
        }
        #: axis → its mask; none where every tile is whole
        self.masks = {name: f"({name} < {size})" for name, (size, tile) in limits.items() if size % tile}

    def _shapes(self) -> Sequence[Shape]:
        """The tiles that fit the units that multiply and the alignment of the operands."""
        if self.precision == "ieee":
            return VECTOR_SHAPES
        if any(is_random(self.graph.ops[i]) for i in self.group.op_ids):
            return RANDOM_SHAPES
        operands = {id(tensor) for tensor, _ in (self.lowering.left, self.lowering.right)}
        values = [self.graph.values[i] for (i, _), tensor in self.lowering.loads.items() if id(tensor) in operands]
        steps = [s * v.spec.itemsize for v in values for s in (*v.spec.strides, v.offset) if s != 1]
        return SHAPES if all(step % VECTOR_BYTES == 0 for step in steps) else SCALAR_SHAPES

    def kernel(self) -> Kernel:
        """The kernel: the file and its description."""
        made, function = self.lowering, self.function
        outer = Body(self, frozenset("mn"))
        inner = Body(self, frozenset(("m", "n", "k_left", "k_right")), outer)
        left_tile = self._operand(inner, *made.left, ("m", "k_left"))
        right_tile = self._operand(inner, *made.right, ("k_right", "n"))
        operand_reads = set(self.file.inputs)
        epilogue = Body(self, frozenset("mn"))
        stores = [self._store_line(epilogue, value_id) for value_id in self.group.writes]
        self._refuse_races(operand_reads)
        function.lines = [
            *self._places(),
            *outer.lines,
            *self._loop(inner.lines, left_tile, right_tile),
            *epilogue.lines,
            *stores,
        ]
        matrices = f"{made.batch} x " if made.has_batch else ""
        function.doc = f"{matrices}[{made.m}, {made.k}] x [{made.k}, {made.n}] in {self.dtype}."
        tiles_text = f"triton.cdiv({made.m}, BLOCK_M) * triton.cdiv({made.n}, BLOCK_N)"
        function.grid = (tiles_text, str(made.batch)) if made.has_batch else (tiles_text,)
        self.file.functions = [function]
        names = [packet_of(self.graph.ops[i].name).strip("_") for i in sorted(self.group.op_ids)]
        kernel = self.file.kernel("_".join(names), "matmul", self.group.op_ids, self.group.writes)
        if self.dtype == "bfloat16":
            head, _, rest = kernel.source.partition("\n\n")
            kernel = replace(kernel, source=_HEAD.format(imports=head) + rest)
        return replace(kernel, configs=tuple({**tile.constants(), "NUM_WARPS": tile.warps} for tile in self.tiles))

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _places(self) -> list[str]:
        """The lines that select the thread block's tile; offsets beyond 31 bits are counted in 64."""
        made = self.lowering
        values = [self.graph.values[i] for i in (*self.group.reads, *self.group.writes, *made.product.inputs)]
        wide = ".to(tl.int64)" if any(v.byte_range[1] // v.spec.itemsize >= INT32_LIMIT for v in values) else ""
        return [
            "program = tl.program_id(0)",
            f"tiles_m = tl.cdiv({made.m}, BLOCK_M)",
            f"tiles_n = tl.cdiv({made.n}, BLOCK_N)",
            "first = program // (GROUP_M * tiles_n) * GROUP_M",
            "rows = tl.minimum(tiles_m - first, GROUP_M)",
            "tile = program % (GROUP_M * tiles_n)",
            f"m = ((first + tile % rows) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]{wide}",
            f"n = (tile // rows * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]{wide}",
            *([f"batch = tl.program_id(1){wide}"] if made.has_batch else []),
        ]

    def _loop(self, lines: Sequence[str], left: str, right: str) -> list[str]:
        precision = f', input_precision="{self.precision}"' if self.precision else ""
        dot = [f"total = tl.dot({left}, {right}, total{precision})"]
        if self.dtype == "bfloat16":
            widened = f"    total = tl.dot({left}.to(tl.float32), {right}.to(tl.float32), total)"
            dot = ["if INTERPRETED:", widened, "else:", *indented(dot)]
        return [
            "total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)",
            f"for start in tl.range(0, {self.lowering.k}, BLOCK_K, num_stages=STAGES):",
            "    k_left = (start + tl.arange(0, BLOCK_K))[None, :]",
            "    k_right = (start + tl.arange(0, BLOCK_K))[:, None]",
            *indented([*lines, *dot]),
        ]

    def _operand(self, body: Body, tensor: Tensor, place: Indices, axes: tuple[str, str]) -> str:
        """The name of a tile of an operand: loaded as it is, or computed and rounded to the operands' dtype."""
        for (value_id, _), loaded in self.lowering.loads.items():
            if loaded is tensor:
                where = body.spread(offset(place, self.graph.values[value_id].spec.strides), frozenset(axes))
                masks = self.mask(frozenset(axes))
                mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
                return body.name(f"tl.load({self.pointer(value_id)} + {where}{mask})")
        text = f"{tensor.at(body, place)}.to({triton_dtype(self.dtype)})"
        beyond = self.mask(frozenset(axes) & {"k_left", "k_right"})
        text = f"tl.where({beyond[0]}, {text}, 0)" if beyond else text
        sizes = ", ".join(f"BLOCK_{axis[0].upper()}" for axis in axes)
        return body.name(f"tl.broadcast_to({text}, {sizes})")

    def _store_line(self, body: Body, value_id: int) -> str:
        """The line that writes a result of the group."""
        value, made = self.graph.values[value_id], self.lowering
        if value.spec.numel != made.batch * made.m * made.n:
            raise NotGenerated("a result of another size than the matmul's")
        last = {v: version for i in sorted(self.group.op_ids) for v, version in self.flow.writes[i]}
        tensor = made.view(value_id, last[value_id])
        for place in self._orders(value):
            before = len(body.lines), dict(body.known)
            try:
                text = tensor.at(body, place)
                break
            except _Misplaced:
                del body.lines[before[0] :]
                body.known = before[1]
        else:
            raise NotGenerated("a result in another order than the matmul's")
        dtype = value.spec.dtype
        cast = "" if compute_dtype(dtype) == dtype else f".to({triton_dtype(dtype)})"
        where = body.spread(offset(place, value.spec.strides), frozenset("mn"))
        masks = self.mask(frozenset("mn"))
        mask = f", mask={' & '.join(masks)}" if masks else ""
        if not is_given(self.graph, self.flow, value_id, self.group.op_ids):
            self.file.make(value_id)
        return f"tl.store({self.pointer(value_id)} + {where}, {text}{cast}{mask})"

    def _orders(self, value: Value) -> Iterator[Indices]:
        """Possible orders of a result's elements: the product's in memory, or its views'."""
        flat, spec = self.lowering.flat, value.spec
        yield unravel(flat, spec.shape)
        for read in (spec, *sorted(self.lowering.views, key=repr)):
            if read.shape == spec.shape:
                try:
                    yield locate(flat, read)
                except NotGenerated:
                    continue

    def _refuse_races(self, operand_reads: set[int]) -> None:
        """Refuse reads of an overwritten tensor at other positions, or by an operand."""
        values = self.graph.values
        for written in (values[i] for i in self.group.writes if i in self.file.inputs):
            for read in (values[i] for i in self.file.inputs):
                if read.storage != written.storage or (read.id == written.id and read.id not in operand_reads):
                    continue
                if read.id in operand_reads or not aligned(read, written) or read.spec.numel != written.spec.numel:
                    raise NotGenerated("a tensor is written over that is also read at other places")

    # -- Memory --------------------------------------------------------------------------------------------------------

    def reduced(self, body: Body, reduction: TensorReduction, kept: AffineIndex, component: int) -> str:
        """Refused: the product is the only reduction."""
        raise NotGenerated("a reduction next to a matmul")

    def mask(self, axes: frozenset[str]) -> list[str]:
        return [text for name, text in self.masks.items() if name in axes]
