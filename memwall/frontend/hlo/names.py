"""XLA's names → names of ``jax.lax``, and of a program's own names what they say: module, phase, recomputation.

Operations are named as in HLO, with ``_`` for ``-``, which is mostly as in StableHLO too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

#: operation on each element → primitive
ELEMENTWISE: Mapping[str, str] = {
    **{name: name for name in (
        "abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atan2", "atanh", "bitcast_convert_type", "cbrt",
        "ceil", "clamp", "complex", "copy", "cosh", "digamma", "erf", "erfc", "floor", "igamma", "is_finite", "lgamma",
        "log", "logistic", "not", "or", "real", "imag", "reduce_precision", "rsqrt", "shift_left",
        "shift_right_arithmetic", "shift_right_logical", "sign", "sinh", "sqrt", "tan", "tanh", "xor",
    )},
    "bitcast_convert": "bitcast_convert_type",
    "convert": "convert_element_type",
    "stochastic_convert": "convert_element_type",
    "cosine": "cos",
    "count_leading_zeros": "clz",
    "divide": "div",
    "exponential": "exp",
    "exponential_minus_one": "expm1",
    "log_plus_one": "log1p",
    "maximum": "max",
    "minimum": "min",
    "multiply": "mul",
    "negate": "neg",
    "popcnt": "population_count",
    "power": "pow",
    "remainder": "rem",
    "round_nearest_afz": "round",
    "round_nearest_even": "round",
    "select": "select_n",
    "sine": "sin",
    "subtract": "sub",
}  # fmt: skip
#: operation that rearranges → primitive
REARRANGED: Mapping[str, str] = {
    "bitcast": "reshape", "broadcast": "broadcast_in_dim", "dynamic-slice": "dynamic_slice", "reshape": "reshape",
    "slice": "slice", "transpose": "transpose",
}  # fmt: skip
#: what a reduction, a window, a scatter or a collective does with two elements → how primitives call it
COMBINED: Mapping[str, str] = {
    "add": "sum", "maximum": "max", "minimum": "min", "multiply": "prod", "and": "and", "or": "or",
}  # fmt: skip
#: what goes over windows with two elements → the scan that it is where a window has all before a place
SCANS: Mapping[str, str] = {"sum": "cumsum", "max": "cummax", "min": "cummin", "prod": "cumprod"}
#: target of a custom call → primitive
KNOWN_CALLS = {
    "mhlo.topk": "top_k", "TopK": "top_k", "ApproxTopK": "approx_top_k", "mhlo.erf": "erf",
    "__cusolver$cholesky": "cholesky",
    "cu_threefry2x32": "threefry2x32", "cu_threefry2x32_ffi": "threefry2x32", "cu_lu_pivots_to_permutation": "copy",
}  # fmt: skip

#: routines of cuSOLVER, hipSOLVER and LAPACK → primitives; the letter of a type stands before LAPACK's
_ROUTINE = re.compile(r"(?:(?:cusolver|hipsolver|cublas|hipblas)_|(?:lapack|blas)_[sdcz])(\w+?)(?:_ffi)?")
_ROUTINES = {
    "potrf": "cholesky", "getrf": "lu", "getrf_batched": "lu", "geqrf": "geqrf", "geqrf_batched": "geqrf",
    **dict.fromkeys(("orgqr", "ungqr"), "householder_product"),
    **dict.fromkeys(("syevd", "heevd", "syevj"), "eigh"),
    **dict.fromkeys(("gesdd", "gesvd", "gesvdj", "gesvdp"), "svd"),
    **dict.fromkeys(("trsm", "trsm_batched"), "triangular_solve"),
}  # fmt: skip


def known_call(target: str) -> str:
    """The primitive that a custom call is; empty of others."""
    routine = _ROUTINE.fullmatch(target)
    return KNOWN_CALLS.get(target) or (_ROUTINES.get(routine[1], "") if routine else "")


def extreme_of(operations: Sequence[str], directions: Collection[str]) -> str:
    """``argmax`` or ``argmin``, where a reduction of elements and their places does these operations with two of them,
    of which the comparisons have these directions (``GT``); else empty."""
    if not directions or operations.count("select") != 2:
        return ""
    return "argmin" if {"GT", "GE"}.isdisjoint(directions) else "argmax"


def scanned_axis(
    sizes: Sequence[int], steps: Sequence[int], pads: Sequence[Sequence[int]], shape: Sequence[int]
) -> int:
    """The axis along which each window has all elements before a place, or all behind it; -1 for other windows."""
    wide = [axis for axis, size in enumerate(sizes) if size > 1]
    if len(wide) != 1 or max(steps) > 1:
        return -1
    (axis,) = wide
    is_whole = sizes[axis] == shape[axis] and sorted(pads[axis]) == [0, shape[axis] - 1]
    return axis if is_whole else -1


#: parts of a name that say how a primitive was called, not where
_CALLS = re.compile(
    r"(?:jit|pjit|xla_call)\(.*\)|call_exported|while|body|cond|scan|closed_call|core_call|custom_jvp_call\w*"
    r"|custom_vjp_call\w*|custom_lin|remat\w*|checkpoint|rematted_computation|branch_\d+_fun|shard_map|pallas_call"
)
#: what wraps a part while it is differentiated or batched
_WRAPPED = re.compile(r"^(?:jvp|transpose|vmap|linearize|vjp)\((.*)\)$")


def module_of(op_name: str) -> str:
    """``GPT.layers_0`` of ``jit(step)/jit(main)/transpose(jvp(GPT))/layers_0/dot_general``: the program's own names."""
    parts = []
    for part in _parts(op_name.partition(";")[0])[:-1]:
        while wrapped := _WRAPPED.match(part):
            part = wrapped[1]
        parts += [each for each in part.split("/") if each and not _CALLS.fullmatch(each)]
    return ".".join(parts)


def _parts(op_name: str) -> list[str]:
    """The parts between slashes that stand in no parentheses."""
    found, depth = [""], 0
    for character in op_name:
        depth += (character == "(") - (character == ")")
        if character == "/" and depth <= 0:
            found.append("")
        else:
            found[-1] += character
    return found


def phase_of(op_name: str) -> str:
    """``backward`` where JAX transposed what it linearized."""
    return "backward" if "transpose(" in op_name else "forward"


def is_again(op_name: str) -> bool:
    """Whether backward computes again what ``jax.checkpoint`` did not keep."""
    return "rematted_computation" in op_name
