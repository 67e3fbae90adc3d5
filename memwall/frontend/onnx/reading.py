"""A file → its :class:`OnnxModel`: opset, sizes of symbolic dimensions, functions inlined. Weights stay on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memwall.core.errors import MissingError, UsageError

#: opsets of ai.onnx that are read; the newest is the installed package's
OLDEST_OPSET = 13

#: names of ai.onnx's element types, as :data:`memwall.core.graph.ITEMSIZE` has them
DTYPES: Mapping[int, str] = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4_e2m1fn_x2", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2",
}  # fmt: skip
ELEMENT_TYPES: Mapping[str, int] = {name: number for number, name in DTYPES.items()}

#: domain → domain of its ops' names here
DOMAINS = {"": "onnx", "ai.onnx": "onnx", "com.microsoft": "microsoft"}


def domain_of(node: Any) -> str:
    """The first part of the name of a node's op: ``onnx``, ``microsoft``, or the last part of another domain."""
    domain: str = node.domain
    return DOMAINS.get(domain, domain.rpartition(".")[2])


@dataclass(frozen=True)
class OnnxModel:
    """A model whose inputs have sizes. ``inputs``: name → shape and dtype; ``is_static``: no size was given."""

    proto: Any
    inputs: Mapping[str, tuple[tuple[int, ...], str]]
    opset: int
    is_static: bool


def read_model(path: Path, dims: Mapping[str, int]) -> OnnxModel:
    """The model of a file, its symbolic sizes from ``dims``.

    Raises:
        UsageError: it is no ONNX file, its opset is too old or too new, or a symbol has no size.
        MissingError: the package onnx is not installed.
    """
    onnx = _package()
    proto = _loaded(onnx, path)
    versions = {item.domain: item.version for item in proto.opset_import}
    opset = versions.get("", versions.get("ai.onnx", 0))
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST_OPSET <= opset <= newest:
        way = (
            f"onnx {onnx.__version__} knows up to {newest}: install a newer onnx"
            if opset > newest
            else f"opsets from {OLDEST_OPSET} on are read: convert it with onnx.version_converter.convert_version"
        )
        raise UsageError(f"{path} has opset {opset}; {way}")
    if proto.functions:
        try:
            proto = onnx.inliner.inline_local_functions(proto)
        except onnx.checker.ValidationError as error:
            raise UsageError(f"{path}: {str(error).splitlines()[0]}") from error
    return OnnxModel(proto, _sized(proto.graph, path, dims), opset, not dims)


def _package() -> Any:
    try:
        import onnx
        import onnx.inliner
        import onnx.reference
        import onnx.shape_inference
    except ImportError as error:
        raise MissingError("an .onnx file needs the package onnx: pip install 'memwall-roofline[onnx]'") from error
    return onnx


def _loaded(onnx: Any, path: Path) -> Any:
    from google.protobuf.message import DecodeError

    try:
        proto = onnx.load(path, load_external_data=False)
    except DecodeError as error:
        raise UsageError(f"{path} is no ONNX file, or is cut short: {error}") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    if not proto.graph.node or not proto.opset_import:
        raise UsageError(f"{path} is no ONNX file, or is cut short: it has no graph of nodes")
    for node in proto.graph.node:
        words = (node.op_type, node.name, node.domain, *node.input, *node.output, *(a.name for a in node.attribute))
        if not all(isinstance(word, str) for word in words):
            raise UsageError(f"{path} is damaged: names in it are no text")
    return proto


def _sized(graph: Any, path: Path, dims: Mapping[str, int]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Each input's shape and dtype, symbols replaced. Raises ``UsageError``: a symbol has no size, or a size no symbol;
    an input is no tensor."""
    weights = {item.name for item in graph.initializer}
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    missing: dict[str, str] = {}
    symbols: dict[str, None] = {}
    for item in graph.input:
        if item.name in weights:
            continue
        kind = item.type.WhichOneof("value")
        if kind != "tensor_type" or item.type.tensor_type.elem_type not in DTYPES:
            kind = "a tensor of text" if kind == "tensor_type" else kind or "no type"
            raise UsageError(f"{path}: the input {item.name!r} is no tensor of numbers ({kind})")
        if not item.type.tensor_type.HasField("shape"):
            raise UsageError(f"{path}: the input {item.name!r} has no shape; export the model with the ranks of inputs")
        shape = []
        for size, symbol in _axes(item):
            if symbol:
                symbols[symbol] = None
                if symbol not in dims:
                    missing.setdefault(symbol, item.name)
                size = dims.get(symbol, 1)
            shape.append(size)
        found[item.name] = (tuple(shape), DTYPES[item.type.tensor_type.elem_type])
    if missing:
        what = ", ".join(f"{symbol!r} of input {name!r}" for symbol, name in missing.items())
        how = " ".join(f"--dim {symbol}=N" for symbol in missing)
        raise UsageError(f"{path} leaves sizes open: {what}; give {how}")
    if unknown := [name for name in dims if name not in symbols]:
        raise UsageError(f"{path} has no symbolic size {unknown[0]!r}; it has {', '.join(symbols) or 'none'}")
    return found


def _axes(item: Any) -> Iterator[tuple[int, str]]:
    """Size and symbol of each axis of an input; one without either is named for its place, ``input.0``."""
    for i, axis in enumerate(item.type.tensor_type.shape.dim):
        known = axis.WhichOneof("value")
        if known == "dim_value" and axis.dim_value >= 0:
            yield axis.dim_value, ""
        else:
            yield 0, axis.dim_param if axis.dim_param.strip("?") else f"{item.name}.{i}"
