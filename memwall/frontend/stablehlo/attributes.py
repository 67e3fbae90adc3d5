"""Operations of StableHLO and CHLO → primitives of JAX and their parameters: tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from memwall.frontend.hlo.names import COMBINED, ELEMENTWISE, SCANS, extreme_of, scanned_axis

#: element types of MLIR, as :data:`memwall.core.graph.ITEMSIZE` has them
DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i1": "bool",
    "complex<f32>": "complex64", "complex<f64>": "complex128", "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2",
    "f8E4M3FNUZ": "float8_e4m3fnuz", "f8E5M2FNUZ": "float8_e5m2fnuz", "f8E8M0FNU": "float8_e8m0fnu",
    "f4E2M1FN": "float4_e2m1fn_x2", **{f"i{bits}": f"int{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (2, 4, 8, 16, 32, 64)},
}  # fmt: skip

Parameters = Callable[[Any], dict[str, Any]]


def plain(attribute: Any) -> Any:
    """An attribute as plain JSON types: lists, numbers, the last word of an enumeration."""
    if isinstance(attribute, ir.DenseI64ArrayAttr | ir.DenseBoolArrayAttr | ir.DenseI32ArrayAttr):
        return list(attribute)
    if isinstance(attribute, ir.DenseIntElementsAttr):
        return np.array(attribute).tolist()
    if isinstance(attribute, ir.ArrayAttr):
        return [plain(each) for each in attribute]
    if isinstance(attribute, ir.IntegerAttr | ir.FloatAttr | ir.BoolAttr | ir.StringAttr):
        return attribute.value
    return str(attribute).removeprefix("#").rstrip(">").split()[-1].removeprefix("@")


def said(op: Any, name: str, default: Any = None) -> Any:
    """An attribute of an operation as plain types; ``default`` where it has none."""
    return plain(op.attributes[name]) if name in op.attributes else default


def _taking(**names: str) -> Parameters:
    """Parameters by the names of the attributes that hold them."""
    return lambda op: {name: said(op, of) for name, of in names.items() if of in op.attributes}


def _dot(op: Any) -> dict[str, Any]:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    contracted = [list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)]
    batched = [list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)]
    return {"dimension_numbers": [contracted, batched], "precision": said(op, "precision_config", [])}


def _vectors(op: Any) -> dict[str, Any]:
    """``stablehlo.dot``: the last axis by the first."""
    last = len(op.operands[0].type.shape) - 1
    return {"dimension_numbers": [[[last], [0]], [[], []]], "precision": said(op, "precision_config", [])}


def _convolution(op: Any) -> dict[str, Any]:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    places = len(numbers.input_spatial_dimensions)
    return {
        "dimension_numbers": [
            [numbers.input_batch_dimension, numbers.input_feature_dimension, *numbers.input_spatial_dimensions],
            [
                numbers.kernel_output_feature_dimension,
                numbers.kernel_input_feature_dimension,
                *numbers.kernel_spatial_dimensions,
            ],
            [numbers.output_batch_dimension, numbers.output_feature_dimension, *numbers.output_spatial_dimensions],
        ],
        "window_strides": said(op, "window_strides", [1] * places),
        "padding": said(op, "padding", [[0, 0]] * places),
        "lhs_dilation": said(op, "lhs_dilation", [1] * places),
        "rhs_dilation": said(op, "rhs_dilation", [1] * places),
        "feature_group_count": said(op, "feature_group_count", 1),
        "batch_group_count": said(op, "batch_group_count", 1),
        "precision": said(op, "precision_config", []),
    }


def _nothing(op: Any) -> dict[str, Any]:
    return {}


#: operation → primitive and its parameters
OPERATIONS: Mapping[str, tuple[str, Parameters]] = {
    **{name: (primitive, _nothing) for name, primitive in ELEMENTWISE.items()},
    **{name: (name, _nothing) for name in ("conj", "erf_inv", "polygamma", "square", "bessel_i1e")},
    "next_after": ("nextafter", _nothing),
    "dot_general": ("dot_general", _dot),
    "dot": ("dot_general", _vectors),
    "convolution": ("conv_general_dilated", _convolution),
    "reshape": ("reshape", _nothing),
    "transpose": ("transpose", _taking(permutation="permutation")),
    "broadcast_in_dim": ("broadcast_in_dim", _taking(broadcast_dimensions="broadcast_dimensions")),
    "slice": ("slice", _taking(start_indices="start_indices", limit_indices="limit_indices", strides="strides")),
    "concatenate": ("concatenate", _taking(dimension="dimension")),
    "reverse": ("rev", _taking(dimensions="dimensions")),
    "iota": ("iota", _taking(dimension="iota_dimension")),
    "pad": ("pad", _taking(low="edge_padding_low", high="edge_padding_high", interior="interior_padding")),
    "gather": ("gather", _taking(slice_sizes="slice_sizes")),
    "dynamic_gather": ("gather", _nothing),
    "sort": ("sort", _taking(dimension="dimension")),
    "top_k": ("top_k", _taking(k="k")),
    "fft": ("fft", _taking(fft_lengths="fft_length", kind="fft_type")),
    "rng_bit_generator": ("rng_bit_generator", _nothing),
    "rng": ("rng_uniform", _nothing),
    "cholesky": ("cholesky", _nothing),
    "triangular_solve": ("triangular_solve", _nothing),
}  # fmt: skip

#: operations that send messages to other devices
COLLECTIVES = frozenset((
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute", "collective_broadcast",
))  # fmt: skip
#: operations that launch nothing and pass their operands on
FREE = frozenset(("optimization_barrier", "after_all", "create_token", "sharding_constraint"))
#: targets of custom calls that are free
FREE_CALLS = frozenset((
    "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement", "LayoutConstraint",
    "xla.sdy.FuncResultSharding", "AssumeGatherIndicesInBound",
))  # fmt: skip

#: the one operation of a body → what scatters by it
SCATTERS = {"add": "scatter_add", "maximum": "scatter_max", "minimum": "scatter_min", "multiply": "scatter_mul"}


def operations_of(region: Any) -> list[str]:
    """The names of the operations of a body, without their dialect and without what it returns."""
    names = [op.operation.name.partition(".")[2] for op in region.blocks[0].operations]
    return names[:-1]


def reduction_of(op: Any) -> str:
    """The primitive of a ``reduce``: by one operation, the place of an extreme, or the program's own function."""
    body = op.regions[0]
    names = operations_of(body)
    if len(names) == 1 and names[0] in COMBINED:
        return f"reduce_{COMBINED[names[0]]}"
    compares = (each.operation for each in body.blocks[0].operations if each.operation.name.endswith("compare"))
    directions = [said(each, "comparison_direction") for each in compares]
    return (extreme_of(names, directions) if len(op.results) == 2 else "") or "reduce"


def window_of(op: Any) -> tuple[str, dict[str, Any]]:
    """The primitive of a ``reduce_window`` and its parameters; a window over all before a place is a scan."""
    names = operations_of(op.regions[0])
    kind = COMBINED.get(names[0], "") if len(names) == 1 else ""
    sizes = said(op, "window_dimensions")
    steps = said(op, "window_strides", [1] * len(sizes))
    padding = said(op, "padding", [[0, 0]] * len(sizes))
    axis = scanned_axis(sizes, steps, padding, list(op.operands[0].type.shape))
    scan = SCANS.get(kind) or ("cumlogsumexp" if {"exponential", "maximum"} <= {*names} else "")
    if axis >= 0 and scan:
        return scan, {"axis": axis}
    primitive = f"reduce_window_{kind}" if kind in ("sum", "max", "min") else "reduce_window"
    return primitive, {"window_dimensions": sizes, "window_strides": steps, "padding": padding}


def scatter_of(op: Any) -> str:
    """The primitive of a ``scatter``."""
    names = operations_of(op.regions[0])
    return SCATTERS.get(names[0], "scatter") if len(names) == 1 else "scatter"
