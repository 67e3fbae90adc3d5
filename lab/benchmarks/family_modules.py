"""The modules that ``lab/benchmarks/families.py`` times: small ones, of the families that time models are made for.

Each is an expression (``nn.Conv2d(64, 128, 3)``), the shapes of its inputs and a mode. Sizes are products of the lists
below, thinned to a fixed number for each family by a seeded draw; none is a size of KernelBench. Each is a target too:
``memwall profile lab/benchmarks/family_modules.py:NAME``.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from memwall import Workload

#: the family, then eight digits
_IS_NAME = re.compile(r"[a-z0-9]+_[0-9a-f]{8}")
#: elements of the largest input: 1 GiB of float32
MOST_ELEMENTS = 1 << 28

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One module: ``expression`` makes it, ``shapes`` are its inputs'. Integer inputs (indices, targets) name
    their bound: ``"int:1000"`` in ``kinds``; ``mode`` is ``forward`` or ``training`` (forward and backward)."""

    family: str
    expression: str
    shapes: tuple[Shape, ...]
    mode: str = "forward"
    dtype: str = "float32"
    kinds: tuple[str, ...] = ()
    memory: str = "contiguous"

    @property
    def name(self) -> str:
        """``conv2d_1a2b3c4d``: the family and a hash of all that is measured."""
        text = repr((self.expression, self.shapes, self.mode, self.dtype, self.kinds, self.memory))
        return f"{self.family}_{zlib.crc32(text.encode()):08x}"

    def workload(self) -> Workload:
        """What a step of it runs."""
        return Workload(self.module, self.inputs, optimizer=None, name=self.name)

    def module(self) -> nn.Module:
        """The module, in training form: as it was made. To be trained it holds its inputs, whose gradients are then
        made anew in every step."""
        names = {"nn": nn, "torch": torch, "F": nn.functional, "Call": Call}
        module: nn.Module = eval(self.expression, names).to(getattr(torch, self.dtype))
        if self.memory == "channels_last":
            module = module.to(memory_format=torch.channels_last)
        return Fed(module, self._tensors()) if self.mode == "training" else module

    def inputs(self) -> tuple[Tensor, ...]:
        """What the module is called with: random numbers, or random indices below their bound."""
        return () if self.mode == "training" else tuple(self._tensors())

    def _tensors(self) -> Iterator[Tensor]:
        for shape, kind in zip(self.shapes, self.kinds or ("float",) * len(self.shapes), strict=True):
            if kind.startswith("int:"):
                yield torch.randint(int(kind[4:]), shape)
                continue
            made = torch.rand(shape, dtype=getattr(torch, self.dtype))
            yield made.contiguous(memory_format=torch.channels_last) if self.memory == "channels_last" else made


class Fed(nn.Module):
    """A module with its inputs: floating ones as parameters, the others as buffers."""

    def __init__(self, module: nn.Module, inputs: Iterator[Tensor]) -> None:
        super().__init__()
        self.module = module
        self._count = 0
        for self._count, tensor in enumerate(inputs, 1):
            name = f"input_{self._count}"
            if tensor.is_floating_point():
                self.register_parameter(name, nn.Parameter(tensor))
            else:
                self.register_buffer(name, tensor)

    def forward(self) -> Any:
        return self.module(*(getattr(self, f"input_{n}") for n in range(1, self._count + 1)))


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        super().__init__()
        self._call = function, arguments, options

    def forward(self, *inputs: Tensor) -> Any:
        function, arguments, options = self._call
        return function(*inputs, *arguments, **options)


def __getattr__(name: str) -> Workload:
    """The workload of the module of that name."""
    found = {case.name: case for case in cases()}.get(name) if _IS_NAME.fullmatch(name) else None
    if found is None:
        raise AttributeError(name)
    return found.workload()


@cache
def cases() -> list[Case]:
    """All modules, no two of a name, in an order in which every start of the list holds all families."""
    drawn = [
        (position / len(chosen), case)
        for family, (count, made) in FAMILIES.items()
        for chosen in [_thinned(family, count, list(made()))]
        for position, case in enumerate(chosen)
    ]
    return [case for _, case in sorted(drawn, key=lambda item: item[0])]


def _thinned(family: str, count: int, made: list[Case]) -> list[Case]:
    fitting = [case for case in dict.fromkeys(made) if all(_elements(shape) <= MOST_ELEMENTS for shape in case.shapes)]
    draw = random.Random(family)
    return draw.sample(fitting, min(count, len(fitting)))


def _elements(shape: Shape) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


# -- convolutions ------------------------------------------------------------------------------------------------------

#: sides of a place, by the number of its dimensions
_SIDES = {1: (512, 4096, 65536), 2: (14, 28, 56, 120, 224), 3: (12, 24, 48)}


def _places(dims: int) -> Iterator[Shape]:
    for side in _SIDES[dims]:
        yield (side,) * dims


def _convolutions(dims: int, transposed: bool = False) -> Iterator[Case]:
    kind = f"nn.Conv{'Transpose' * transposed}{dims}d"
    ways = [("", 1), (", stride=2", 1), (", dilation=2", 1), (", groups=4", 1)]
    for place, batch, c_in, c_out, window, (way, _), mode in product(
        _places(dims), (1, 8, 24), (3, 20, 32, 64, 144, 256), (8, 32, 96, 128, 512), (1, 3, 4, 5, 7), ways,
        ("forward", "forward", "training"),
    ):  # fmt: skip
        if ("groups" in way and (c_in % 4 or c_out % 4)) or window > min(place) or (window == 1 and "dilation" in way):
            continue
        flops = 2 * batch * c_in * c_out * window**dims * _elements(place)
        if not 1e7 <= flops <= 4e12 or batch * max(c_in, c_out) * _elements(place) > MOST_ELEMENTS // 2:
            continue
        expression = f"{kind}({c_in}, {c_out}, {window}, padding={window // 2}{way})"
        yield Case(f"conv{'transposed' * transposed}{dims}d", expression, ((batch, c_in, *place),), mode)


def _typed_convolutions() -> Iterator[Case]:
    for case, dtype, memory in product(
        _convolutions(2), ("float16", "bfloat16", "float32"), ("contiguous", "channels_last")
    ):
        if (dtype, memory) != ("float32", "contiguous"):
            yield Case("conv2dtyped", case.expression, case.shapes, case.mode, dtype, (), memory)


def _asymmetric() -> Iterator[Case]:
    for (rows, columns), batch, c_in, c_out, side in product(
        ((1, 7), (7, 1), (3, 1), (2, 5), (1, 15)), (2, 16), (16, 64, 192), (32, 128), (28, 64, 160)
    ):
        expression = f"nn.Conv2d({c_in}, {c_out}, ({rows}, {columns}), padding=({rows // 2}, {columns // 2}))"
        yield Case("convasymmetric", expression, ((batch, c_in, side, side),))


def _depthwise() -> Iterator[Case]:
    for channels, window, stride, side, batch, dtype, memory, mode in product(
        (24, 96, 320, 960), (3, 5, 7), (1, 2), (14, 56, 112), (2, 32), ("float32", "float16"),
        ("contiguous", "channels_last"), ("forward", "training"),
    ):  # fmt: skip
        expression = f"nn.Conv2d({channels}, {channels}, {window}, {stride}, {window // 2}, groups={channels})"
        yield Case("convdepthwise", expression, ((batch, channels, side, side),), mode, dtype, (), memory)


# -- pooling, upsampling, norms ----------------------------------------------------------------------------------------


def _pools() -> Iterator[Case]:
    for dims, (kind, window, stride), batch, channels, mode in product(
        (1, 2, 3),
        (("MaxPool", 2, 2), ("MaxPool", 3, 2), ("MaxPool", 5, 1), ("AvgPool", 2, 2), ("AvgPool", 3, 1),
         ("AvgPool", 7, 3), ("AdaptiveAvgPool", 1, 0), ("AdaptiveAvgPool", 7, 0), ("AdaptiveMaxPool", 5, 0)),
        (4, 32), (16, 48, 192), ("forward", "forward", "training"),
    ):  # fmt: skip
        for place in _places(dims):
            options = f"{window}, stride={stride}" if stride else f"{window}"
            yield Case("pool", f"nn.{kind}{dims}d({options})", ((batch, channels, *place),), mode)


def _upsampling() -> Iterator[Case]:
    for (dims, how), scale, batch, channels, mode in product(
        ((2, "nearest"), (2, "bilinear"), (2, "bicubic"), (1, "linear"), (3, "trilinear")), (2, 3), (2, 16), (8, 64),
        ("forward", "training"),
    ):  # fmt: skip
        for place in _places(dims):
            yield Case(
                "upsample", f"nn.Upsample(scale_factor={scale}, mode={how!r})", ((batch, channels, *place),), mode
            )


def _norms() -> Iterator[Case]:
    for dims, kind, batch, channels, mode in product(
        (1, 2, 3), ("BatchNorm{d}d({c})", "InstanceNorm{d}d({c})", "InstanceNorm{d}d({c}, affine=True)",
                    "GroupNorm(8, {c})", "GroupNorm({c}, {c})"),
        (2, 20), (16, 72, 256), ("forward", "forward", "training"),
    ):  # fmt: skip
        for place in _places(dims):
            yield Case("norm", "nn." + kind.format(d=dims, c=channels), ((batch, channels, *place),), mode)


def _row_norms() -> Iterator[Case]:
    for kind, rows, columns, mode in product(
        ("nn.LayerNorm({n})", "nn.RMSNorm({n})", "nn.Softmax(-1)", "nn.LogSoftmax(-1)", "Call(F.normalize, dim=-1)"),
        (96, 3000, 50000), (100, 1024, 5000, 33000), ("forward", "training"),
    ):  # fmt: skip
        yield Case("rows", kind.format(n=columns), ((rows, columns),), mode)
    for sizes, dim in product(((64, 500, 300), (12, 2000, 900)), (0, 1)):
        yield Case("rows", f"nn.Softmax({dim})", (sizes,))


# -- reductions, scans, sorts, indices ---------------------------------------------------------------------------------

_SHAPES = ((100, 700, 300), (16, 3000, 1100), (9000, 2500), (128, 60000), (3_000_000, 7), (8, 40_000_000))


def _over_dimensions(family: str, expressions: tuple[str, ...], shapes: tuple[Shape, ...] = _SHAPES) -> Iterator[Case]:
    for expression, shape in product(expressions, shapes):
        for dim in range(len(shape)):
            yield Case(family, expression.format(d=dim), (shape,))


def _reductions() -> Iterator[Case]:
    yield from _over_dimensions("reduction", (
        "Call(torch.sum, {d})", "Call(torch.mean, {d})", "Call(torch.amax, {d})", "Call(torch.max, {d})",
        "Call(torch.argmin, {d})", "Call(torch.var, {d})", "Call(torch.prod, {d})", "Call(torch.logsumexp, {d})",
        "Call(torch.linalg.vector_norm, 2, {d})", "Call(torch.linalg.vector_norm, 1, {d})", "Call(torch.any, {d})",
    ))  # fmt: skip
    for function, shape in product(("sum", "mean", "std", "argmax", "max", "norm"), _SHAPES):
        yield Case("reduction", f"Call(torch.{function})", (shape,))


def _scans() -> Iterator[Case]:
    functions = ("cumsum", "cumprod", "cummax", "logcumsumexp")
    yield from _over_dimensions("scan", tuple(f"Call(torch.{name}, {{d}})" for name in functions), _SHAPES[:4])


def _sorts() -> Iterator[Case]:
    for function, (rows, columns) in product(
        ("torch.sort", "torch.argsort", "torch.topk, 8", "torch.topk, 100", "torch.median, -1", "torch.unique"),
        ((64, 200), (5000, 1000), (100, 50000), (3, 3_000_000)),
    ):
        yield Case("sort", f"Call({function})", ((rows, columns),))


def _losses() -> Iterator[Case]:
    for (name, target), (rows, classes), mode in product(
        (("CrossEntropyLoss", "class"), ("NLLLoss", "class"), ("MSELoss", "same"), ("SmoothL1Loss", "same"),
         ("BCEWithLogitsLoss", "same"), ("KLDivLoss", "same"), ("L1Loss", "same"), ("MultiMarginLoss", "class"),
         ("CosineEmbeddingLoss", "cosine")),
        ((500, 30), (4000, 1000), (9000, 32000), (60000, 512)), ("forward", "training"),
    ):  # fmt: skip
        shapes: tuple[Shape, ...] = ((rows, classes), (rows,) if target == "class" else (rows, classes))
        kinds = ("float", f"int:{classes}" if target == "class" else "float")
        if target == "cosine":
            shapes, kinds = (*shapes, (rows,)), (*kinds, "float")
        yield Case("loss", f"nn.{name}()", shapes, mode, "float32", kinds)


def _indexed() -> Iterator[Case]:
    for rows, width, count, mode in product((5000, 400_000), (32, 128, 1000), (2000, 100_000), ("forward", "training")):
        yield Case("index", f"nn.Embedding({rows}, {width})", ((count,),), mode, "float32", (f"int:{rows}",))
        bags = f"nn.EmbeddingBag({rows}, {width}, mode='sum')"
        yield Case("index", bags, ((count // 20, 20),), mode, "float32", (f"int:{rows}",))
    for rows, width, count in product((3000, 200_000), (16, 300), (4000, 150_000)):
        table, lines, wide = (rows, width), (count,), (count, width)
        for expression, shapes in (
            ("lambda x, i: x[i]", (table, lines)),
            ("lambda x, i: x.gather(0, i)", (table, wide)),
            ("lambda x, i, y: x.index_add(0, i, y)", (table, lines, wide)),
            ("lambda x, i, y: x.scatter_add(0, i, y)", (table, wide, wide)),
        ):
            kinds = ("float", f"int:{rows}", "float")[: len(shapes)]
            yield Case("index", f"Call({expression})", shapes, "forward", "float32", kinds)


# -- elementwise, products, recurrent nets -----------------------------------------------------------------------------


def _elementwise() -> Iterator[Case]:
    for expression, shape in product(
        ("nn.ReLU()", "nn.GELU()", "nn.SiLU()", "nn.Softplus()", "nn.Hardswish()", "nn.ELU()", "Call(torch.tanh)",
         "nn.Dropout(0.1)", "Call(torch.tril)", "Call(lambda x: x.transpose(0, 1).contiguous())", "Call(torch.sign)",
         "Call(lambda x: torch.cat([x, x], 0))", "Call(lambda x: F.glu(x, -1))"),
        ((300, 500), (4000, 3000), (60000, 2048), (33, 5_000_002)),
    ):  # fmt: skip
        yield Case("elementwise", expression, (shape,))


def _products() -> Iterator[Case]:
    for (m, n, k), dtype in product(
        ((31000, 40, 40), (300, 300, 200_000), (5000, 3, 5000), (1, 9000, 9000), (6000, 6000, 6000), (1500, 900, 2100),
         (20000, 20000, 24), (777, 1333, 2999)),
        ("float32", "float16", "bfloat16"),
    ):  # fmt: skip
        yield Case("product", "Call(torch.mm)", ((m, k), (k, n)), "forward", dtype)
        yield Case("product", "Call(lambda a, b: a.t() @ b.t())", ((k, m), (n, k)), "forward", dtype)
    for batch, m, n, k in ((2000, 30, 30, 90), (96, 700, 64, 700), (16, 2048, 2048, 80)):
        yield Case("product", "Call(torch.bmm)", ((batch, m, k), (batch, k, n)))


def _recurrent() -> Iterator[Case]:
    for kind, width, hidden, layers, both, (steps, batch), mode in product(
        ("LSTM", "GRU", "RNN"), (64, 300), (128, 500, 1024), (1, 3, 6), (False, True), ((60, 8), (400, 16), (128, 64)),
        ("forward", "training"),
    ):  # fmt: skip
        more = ", bidirectional=True" if both else ""
        yield Case("recurrent", f"nn.{kind}({width}, {hidden}, {layers}{more})", ((steps, batch, width),), mode)
    for projected, layers in product((32, 64), (1, 2)):
        expression = f"nn.LSTM(128, 256, {layers}, proj_size={projected})"
        yield Case("recurrent", expression, ((100, 16, 128),))


#: family -> how many of its modules are timed, and all of them
FAMILIES: dict[str, tuple[int, Callable[[], Iterator[Case]]]] = {
    "conv2d": (60, lambda: _convolutions(2)),
    "conv1d": (20, lambda: _convolutions(1)),
    "conv3d": (24, lambda: _convolutions(3)),
    "convtransposed1d": (12, lambda: _convolutions(1, transposed=True)),
    "convtransposed2d": (30, lambda: _convolutions(2, transposed=True)),
    "convtransposed3d": (16, lambda: _convolutions(3, transposed=True)),
    "conv2dtyped": (36, _typed_convolutions),
    "convasymmetric": (10, _asymmetric),
    "convdepthwise": (30, _depthwise),
    "pool": (40, _pools),
    "upsample": (16, _upsampling),
    "norm": (40, _norms),
    "rows": (16, _row_norms),
    "reduction": (30, _reductions),
    "scan": (14, _scans),
    "sort": (14, _sorts),
    "loss": (18, _losses),
    "index": (24, _indexed),
    "elementwise": (24, _elementwise),
    "product": (14, _products),
    "recurrent": (24, _recurrent),
}
