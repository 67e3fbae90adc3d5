"""A matrix product with its prologue and epilogue → one kernel from one template.

Elementwise ops on an operand run as its tiles are loaded, those on the result while it is in registers; between them
is ``tl.dot`` with sums in float32. Thread blocks visit tiles in groups of rows, so that the tiles that they share
are in L2. :mod:`memwall.codegen.lowering` writes what an op computes, as for every other kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memwall.codegen.blocks import RANDOM_SHAPES, SCALAR_SHAPES, SHAPES, VECTOR_SHAPES, Shape, tiles
from memwall.codegen.index import Index, offset, unravel
from memwall.codegen.kernel import Kernel, NotGenerated
from memwall.codegen.lowering import locate, packet_of
from memwall.codegen.product import PRODUCTS, Misplaced, Product
from memwall.codegen.tensors import Body, Indices, Reduction, Tensor, compute_dtype, triton_dtype
from memwall.codegen.writer import Writer
from memwall.codegen.writing import INT32_LIMIT, File
from memwall.core.flow import Flow
from memwall.core.graph import ITEMSIZE, Graph, Value
from memwall.fusion import Group
from memwall.fusion.rules import aligned
from memwall.hardware.lookup import Gpu
from memwall.ops.loops import is_random

#: multiples of these sizes need no mask for any tile
_WHOLE_TILE, _WHOLE_DEPTH = 256, 64
MAX_BATCH = 65535


#: of the widest load
VECTOR_BYTES = 16


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
            raise NotGenerated(f"{len(products)} products in one kernel")
        if packet_of(products[0].name) not in PRODUCTS:
            raise NotGenerated(f"no template for {products[0].name}")
        self.product = products[0]
        self.dtype = self._operand_dtype()
        self.made = Product(graph, flow, op_ids, self.product)
        super().__init__(File(graph), self.made, "matmul", False)
        self.space = self.made.space
        if self.space.batch > MAX_BATCH:
            raise NotGenerated(f"{self.space.batch} matrices in one launch")
        tf32 = bool(self.product.attributes.get("allow_tf32"))
        self.precision = {"float32": "tf32" if tf32 else "ieee"}.get(self.dtype, "")
        self.tiles = tiles(self.space, ITEMSIZE[self.dtype], self._shapes(), gpu)
        self.function.constants, self.function.num_warps = self.tiles[0].constants(), self.tiles[0].warps

    def _operand_dtype(self) -> str:
        names = PRODUCTS[packet_of(self.product.name)]
        pairs = zip(self.product.arguments, self.product.inputs, strict=True)
        dtypes = {self.graph.values[i].spec.dtype for name, i in pairs if name in names}
        if len(dtypes) != 1 or not dtypes <= {"float16", "bfloat16", "float32"}:
            raise NotGenerated(f"a product of {' and '.join(sorted(dtypes))}")
        return dtypes.pop()

    def _shapes(self) -> Sequence[Shape]:
        """The tiles that fit the units that multiply and the alignment of the operands."""
        if self.precision == "ieee":
            return VECTOR_SHAPES
        if any(is_random(self.graph.ops[i]) for i in self.group.op_ids):
            return RANDOM_SHAPES
        operands = {id(tensor) for tensor, _ in self.made.operands()}
        values = [self.graph.values[i] for (i, _), tensor in self.lowering.loads.items() if id(tensor) in operands]
        steps = [(s * v.spec.itemsize for s in (*v.spec.strides, v.offset) if s != 1) for v in values]
        return SHAPES if all(step % VECTOR_BYTES == 0 for some in steps for step in some) else SCALAR_SHAPES

    def kernel(self) -> Kernel:
        """The kernel: the file and its description."""
        outer = Body(self, frozenset("mn"))
        inner = Body(self, frozenset(("m", "n", "k_left", "k_right")), outer)
        (left, left_place), (right, right_place) = self.made.operands()
        left_tile = self._operand(inner, left, left_place, ("m", "k_left"))
        right_tile = self._operand(inner, right, right_place, ("k_right", "n"))
        operand_reads = set(self.file.inputs)
        epilogue = Body(self, frozenset("mn"))
        stores = [self._store(epilogue, value_id) for value_id in self.group.writes]
        self._refuse_races(operand_reads)
        self.function.lines = [
            *self._places(), *outer.lines, *self._loop(inner.lines, left_tile, right_tile), *epilogue.lines, *stores,
        ]  # fmt: skip
        self.function.doc = self._doc()
        space = self.space
        tiles_text = f"triton.cdiv({space.m}, BLOCK_M) * triton.cdiv({space.n}, BLOCK_N)"
        self.function.grid = (tiles_text, str(space.batch)) if space.has_batch else (tiles_text,)
        source = self.file_text()
        names = [packet_of(self.graph.ops[i].name).strip("_") for i in sorted(self.group.op_ids)]
        return Kernel(
            name="_".join(names),
            source=source,
            inputs=tuple(self.file.inputs),
            outputs=self.group.writes,
            op_ids=self.group.op_ids,
            launches=self.file.launches(),
            schedule="matmul",
            config=self.file.constants(),
            configs=tuple({**tile.constants(), "NUM_WARPS": tile.warps} for tile in self.tiles),
            is_random=self.function.draws,
        )

    def file_text(self) -> str:
        """The source; bfloat16 tiles are multiplied as float32 where Triton's interpreter runs them."""
        self.file.functions = [self.function]
        text = self.file.text(self.group.writes)
        if self.dtype != "bfloat16":
            return text
        head, _, rest = text.partition("\n\n")
        return (
            f"import os\n\n{head}\n\n#: Triton's interpreter cannot multiply bfloat16\n"
            'INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")\n\n' + rest
        )

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _doc(self) -> str:
        space = self.space
        matrices = f"{space.batch} x " if space.has_batch else ""
        return f"{matrices}[{space.m}, {space.k}] x [{space.k}, {space.n}] in {self.dtype}."

    def _places(self) -> list[str]:
        """The lines that select the thread block's tile."""
        space = self.space
        wide = ".to(tl.int64)" if self._is_wide() else ""
        return [
            "program = tl.program_id(0)",
            f"tiles_m = tl.cdiv({space.m}, BLOCK_M)",
            f"tiles_n = tl.cdiv({space.n}, BLOCK_N)",
            "first = program // (GROUP_M * tiles_n) * GROUP_M",
            "rows = tl.minimum(tiles_m - first, GROUP_M)",
            "tile = program % (GROUP_M * tiles_n)",
            f"m = ((first + tile % rows) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]{wide}",
            f"n = (tile // rows * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]{wide}",
            *([f"batch = tl.program_id(1){wide}"] if space.has_batch else []),
        ]

    def _is_wide(self) -> bool:
        """Whether an offset needs 64 bits."""
        ids = (*self.group.reads, *self.group.writes, *self.product.inputs)
        values = [self.graph.values[i] for i in ids]
        return any(v.byte_range[1] // v.spec.itemsize >= INT32_LIMIT for v in values)

    def _loop(self, lines: Sequence[str], left: str, right: str) -> list[str]:
        precision = f', input_precision="{self.precision}"' if self.precision else ""
        if self.dtype == "bfloat16":
            dot = [
                "    if INTERPRETED:",
                f"        total = tl.dot({left}.to(tl.float32), {right}.to(tl.float32), total)",
                "    else:",
                f"        total = tl.dot({left}, {right}, total)",
            ]
        else:
            dot = [f"    total = tl.dot({left}, {right}, total{precision})"]
        return [
            "total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)",
            f"for start in tl.range(0, {self.space.k}, BLOCK_K, num_stages=STAGES):",
            "    k_left = (start + tl.arange(0, BLOCK_K))[None, :]",
            "    k_right = (start + tl.arange(0, BLOCK_K))[:, None]",
            *(f"    {line}" for line in lines),
            *dot,
        ]

    def _operand(self, body: Body, tensor: Tensor, place: Indices, axes: tuple[str, str]) -> str:
        """The name of a tile of an operand: loaded as it is, or computed and rounded to the operands' dtype."""
        sizes = {"m": "BLOCK_M", "n": "BLOCK_N", "k_left": "BLOCK_K", "k_right": "BLOCK_K"}
        for (value_id, _), loaded in self.lowering.loads.items():
            if loaded is tensor:
                where = body.spread(offset(place, self.graph.values[value_id].spec.strides), frozenset(axes))
                masks = self.mask(frozenset(axes))
                mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
                return body.name(f"tl.load({self.pointer(value_id)} + {where}{mask})")
        text = f"{tensor.at(body, place)}.to({triton_dtype(self.dtype)})"
        beyond = self.mask(frozenset(axes) & {"k_left", "k_right"})
        text = f"tl.where({beyond[0]}, {text}, 0)" if beyond else text
        return body.name(f"tl.broadcast_to({text}, {', '.join(sizes[axis] for axis in axes)})")

    def _store(self, body: Body, value_id: int) -> str:
        """The line that writes a result of the group."""
        value = self.graph.values[value_id]
        if value.spec.numel != self.space.batch * self.space.m * self.space.n:
            raise NotGenerated("a result of another size than the product's")
        version = self._version(value_id)
        tensor = self.lowering.view(value_id, version)
        for place in self._orders(value):
            before = len(body.lines), dict(body.known)
            try:
                text = tensor.at(body, place)
                break
            except Misplaced:
                del body.lines[before[0] :]
                body.known = before[1]
        else:
            raise NotGenerated("a result in another order than the product's")
        dtype = value.spec.dtype
        cast = "" if compute_dtype(dtype) == dtype else f".to({triton_dtype(dtype)})"
        where = body.spread(offset(place, value.spec.strides), frozenset("mn"))
        masks = self.mask(frozenset("mn"))
        mask = f", mask={' & '.join(masks)}" if masks else ""
        return f"tl.store({self._pointer_to(value)} + {where}, {text}{cast}{mask})"

    def _version(self, value_id: int) -> int:
        """The last version of a value that the group makes."""
        versions = (
            version
            for op_id in sorted(self.group.op_ids, reverse=True)
            for i, version in self.flow.writes[op_id]
            if i == value_id
        )
        return next(versions)

    def _orders(self, value: Value) -> Iterator[Indices]:
        """Possible orders of a result's elements: the product's in memory, or its views'."""
        flat, spec = self.space.flat, value.spec
        yield unravel(flat, spec.shape)
        for read in (spec, *sorted(self.made.views, key=repr)):
            if read.shape == spec.shape:
                try:
                    yield locate(flat, read)
                except NotGenerated:
                    continue

    def _pointer_to(self, value: Value) -> str:
        """The pointer to what is written: given memory where the storage existed before, else new."""
        storage = self.graph.storages[value.storage]
        was_there = self.flow.writer[self.flow.first[value.storage]] not in self.group.op_ids
        if was_there or storage.is_persistent:
            return self.pointer(value.id)
        self.file.make(value.id)
        return self.pointer(value.id)

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

    def reduced(self, body: Body, reduction: Reduction, kept: Index, component: int) -> str:
        """Refused: the product is the only reduction."""
        raise NotGenerated("a reduction next to a product")

    def mask(self, axes: frozenset[str]) -> list[str]:
        """The mask along these axes; empty where every tile is whole."""
        limits = {"m": (self.space.m, _WHOLE_TILE), "n": (self.space.n, _WHOLE_TILE),
                  "k_left": (self.space.k, _WHOLE_DEPTH), "k_right": (self.space.k, _WHOLE_DEPTH)}  # fmt: skip
        return [f"({name} < {size})" for name, (size, tile) in limits.items() if name in axes and size % tile]
