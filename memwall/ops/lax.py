"""Primitives of JAX (``jax.lax``), as which StableHLO and HLO are read too: ``lax.dot_general``, ``lax.reduce_sum``.

A primitive that does what an op of PyTorch does is costed as that one, in the terms of that one: :data:`_TWINS` says
how its operands and parameters are called there. What has no twin has a formula here.

- ``dot_general``: 2 FLOP for each of batch x m x n x k. float32 runs in TF32 where its ``precision`` is the default or
  high, in full precision at the highest (``jax.lax.Precision``).
- ``conv_general_dilated``: 2 FLOP for each pair of a weight and a place that meet, padding counted as if it were data;
  of the two sides, the result's places and the operand's, the one with fewer pairs: zeros between the places of a
  dilated operand, as the gradient of a strided convolution has them, are no work.
- Counts per element are as in :mod:`memwall.ops.elementwise`: an ``integer_pow`` is one FLOP, as a power is.
- A primitive that only rearranges (``reshape``, ``transpose``, ``broadcast_in_dim``, ``slice`` ...) is in a graph as an
  op that writes nothing and has the attribute ``view``: its result is a view. A run without a compiler copies instead,
  which is the cost of the op; a compiled one runs nothing (:attr:`memwall.core.graph.Op.is_view`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from memwall.core.graph import Pipe, contiguous
from memwall.ops import loops
from memwall.ops.base import Call, Cost, fetched_bytes, touched_bytes
from memwall.ops.contraction import launch, product_flops, product_pipe
from memwall.ops.indexing import gather as gathered
from memwall.ops.launches import Launch, Stream
from memwall.ops.loops import Loop
from memwall.ops.movement import one_pass
from memwall.ops.passes import launched, looped, pass_over, stream_of, streamed, vector_flops
from memwall.ops.product_launches import Convolution
from memwall.ops.registry import OpRow, cost_of, define, find_row, formula

# -- primitives that have a twin ---------------------------------------------------------------------------------------


def _dims(parameter: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """The axes of a reduction, or the one of a scan or a sort, as ``dim``."""

    def found(attributes: Mapping[str, Any]) -> dict[str, Any]:
        axes = attributes.get(parameter)
        return {"dim": list(axes) if isinstance(axes, list | tuple) else axes}

    return found


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {}


#: precisions at which float32 is multiplied in full (jax.lax.Precision, jax.lax.DotAlgorithmPreset)
_FULL = frozenset(("HIGHEST", "highest", "float32", "F32_F32_F32"))


def _tf32(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Whether float32 may be multiplied in TF32, as ``precision`` says."""
    precision = attributes.get("precision") or ()
    listed = [precision] if isinstance(precision, str) else precision
    return {"allow_tf32": not any(each in _FULL for each in listed)}


@dataclass(frozen=True)
class _Twin:
    """The op of PyTorch that does what a primitive does, its arguments in order, and its attributes."""

    op: str
    arguments: tuple[str, ...] = ("self", "other")
    attributes: Callable[[Mapping[str, Any]], dict[str, Any]] = _plain

    @property
    def row(self) -> OpRow:
        found = find_row(f"aten.{self.op}")
        assert found is not None, self.op
        return found

    def call(self, call: Call) -> Call:
        """A call of the primitive as one of the twin."""
        names = (*self.arguments, *("",) * len(call.inputs))[: len(call.inputs)]
        return replace(call, name=f"aten.{self.op}", arguments=names, attributes=self.attributes(call.attributes))

    def cost(self, call: Call) -> Cost:
        return cost_of(self.call(call))

    def loop(self, call: Call) -> Loop:
        rule = self.row.loop or loops.point
        return rule(self.call(call))


def _pointwise(names: str) -> dict[str, _Twin]:
    """Primitives by the names of their twins where they differ: ``max=maximum``."""
    pairs = (name.partition("=") for name in names.split())
    return {name: _Twin(twin or name) for name, _, twin in pairs}


_REDUCED = {"sum": "sum", "max": "amax", "min": "amin", "prod": "prod", "and": "all", "or": "any", "xor": "any"}

_TWINS: Mapping[str, _Twin] = {
    **_pointwise(
        "abs acos acosh add add_any=add and=bitwise_and asin asinh atan atan2 atanh ceil clamp complex"
        " conj=conj_physical convert_element_type=_to_copy cos cosh digamma div eq erf erfc erf_inv=erfinv exp exp2"
        " expm1 floor ge gt igamma igammac is_finite=isfinite le lgamma log log1p logistic=sigmoid lt max=maximum"
        " min=minimum mul ne neg nextafter not=bitwise_not or=bitwise_or pow integer_pow=pow cbrt=pow polygamma"
        " reduce_precision=round rem=fmod round rsqrt shift_left=bitwise_left_shift"
        " shift_right_logical=bitwise_right_shift shift_right_arithmetic=bitwise_right_shift sign sin sinh sqrt square"
        " sub tan tanh xor=bitwise_xor real imag bessel_i0e=special_i0e bessel_i1e=special_i1e"
        " population_count=bitwise_not clz=bitwise_not eq_to=eq le_to=le lt_to=lt"
    ),
    "select_n": _Twin("where", ("condition", "self", "other")),
    **{
        f"reduce_{name}": _Twin(twin, ("self",), _dims("axes"))
        for name, twin in _REDUCED.items()
    },
    **{name: _Twin(name, ("self",), _dims("axes")) for name in ("argmax", "argmin")},
    **{name: _Twin(name, ("self",), _dims("axis")) for name in ("cumsum", "cumprod", "cummax", "cummin")},
    "cumlogsumexp": _Twin("logcumsumexp", ("self",), _dims("axis")),
    "sort": _Twin("sort", ("self",), _dims("dimension")),
    **{
        name: _Twin("topk", ("self",), lambda attributes: {"dim": -1, "k": attributes.get("k", 1)})
        for name in ("top_k", "approx_top_k")
    },
    "ragged_dot_general": _Twin("_grouped_mm", ("self", "mat2", "offs"), _tf32),
    "cholesky": _Twin("cholesky", ("self",)),
    "lu": _Twin("linalg_lu_factor_ex", ("A",)),
    "triangular_solve": _Twin("triangular_solve", ("A", "self")),
    "geqrf": _Twin("geqrf", ("self",)),
    "householder_product": _Twin("linalg_householder_product", ("input", "tau")),
    "qr": _Twin("linalg_qr", ("A",)),
    "eigh": _Twin("_linalg_eigh", ("A",)),
    "svd": _Twin("_linalg_svd", ("A",)),
    "copy": _Twin("clone", ("self",)),
    "iota": _Twin("arange", ()),
    "full": _Twin("full", ()),
    "concatenate": _Twin("cat", ("tensors",)),
    "stack": _Twin("stack", ("tensors",)),
    "rev": _Twin("flip", ("self",)),
}  # fmt: skip


def _define_twins() -> None:
    for name, twin in _TWINS.items():
        row = twin.row
        kept = {
            field: getattr(row, field)
            for field in ("op_class", "flops", "integers", "launch_kind", "moves", "preserves", "cpu_rate")
        }
        has_loop = row.loop is not None or row.op_class == "elementwise"
        define(f"lax::{name}", cost=twin.cost, loop=twin.loop if has_loop else None, **kept)


_define_twins()


def _lax(op_class: str, names: str, **stages: Any) -> Callable[[Callable[[Call], Cost]], Callable[[Call], Cost]]:
    return formula(op_class, " ".join(f"lax::{name}" for name in names.split()), **stages)


# -- matmuls and convolutions ------------------------------------------------------------------------------------------


def _arithmetic(call: Call) -> Call:
    """The call with ``allow_tf32`` as its precision says."""
    return replace(call, attributes={**call.attributes, **_tf32(call.attributes)})


@_lax("contraction", "dot_general", operands=("lhs", "rhs"))
def dot_general(call: Call) -> Cost:
    """``lhs`` and ``rhs`` summed over the axes that ``dimension_numbers`` contract, for each index of the axes that are
    a batch: 2 x batch x m x n x k, in the wider of two dtypes, to which XLA converts the other."""
    call = _arithmetic(call)
    left, right = call.need("lhs"), call.need("rhs")
    (contracted, _), (batched, _) = call.attributes["dimension_numbers"]
    k = math.prod(left.shape[axis] for axis in contracted)
    batch = math.prod(left.shape[axis] for axis in batched)
    m = left.numel // max(k * batch, 1)
    n = right.numel // max(k * batch, 1)
    narrow, wide = sorted((left, right), key=lambda spec: spec.itemsize)
    flops = {product_pipe(wide.dtype, call.attributes): product_flops(batch * m * n * k, wide.dtype)}
    if k == 1 or m * n == 1:
        return streamed(call.cost(flops), max(batch * m * n, k))
    return call.cost(flops, launches=(launch(call, wide, (batch, m, n, k), narrow),))


@dataclass(frozen=True)
class _Axes:
    """The axes of an operand of a convolution: the first two, batch and feature or output and input feature, and the
    places."""

    shape: tuple[int, ...]
    spec: tuple[int, ...]

    @property
    def places(self) -> tuple[int, ...]:
        return tuple(self.shape[axis] for axis in self.spec[2:])

    def __getitem__(self, number: int) -> int:
        return self.shape[self.spec[number]]


@_lax("convolution", "conv_general_dilated", operands=("lhs", "rhs"))
def convolution(call: Call) -> Cost:
    """A convolution, or the gradient of one by its operand or its weight, which are convolutions too: of a dilated
    operand, and of one with a window as large as the places of the result's gradient."""
    call = _arithmetic(call)
    specs = call.attributes["dimension_numbers"]
    lhs, rhs, out = (
        _Axes(spec.shape, tuple(axes))
        for spec, axes in zip((call.need("lhs"), call.need("rhs"), call.outputs[0]), specs, strict=True)
    )
    groups, batch_groups = call.attributes["feature_group_count"], call.attributes["batch_group_count"]
    window = math.prod(rhs.places)
    of_result = call.outputs[0].numel * rhs[1] * window
    of_operand = call.need("lhs").numel * (rhs[0] // max(groups * batch_groups, 1)) * window
    dtype = call.need("rhs").dtype
    depthwise = groups > 1 and rhs[1] == 1
    pipe = Pipe("vector", "float64" if dtype == "float64" else "float32") if depthwise else _pipe(call, dtype)
    read = call.read_bytes - _skipped_bytes(call, lhs, rhs, out)
    work = replace(_convolution(call, lhs, rhs, out, pipe), read_bytes=read)
    return call.cost({pipe: product_flops(min(of_result, of_operand), dtype)}, read_bytes=read, launches=(work,))


def _skipped_bytes(call: Call, lhs: _Axes, rhs: _Axes, out: _Axes) -> int:
    """Bytes of the operand between the windows, in none of them."""
    attributes = call.attributes
    if max(attributes["window_strides"], default=1) == 1 or max(attributes["lhs_dilation"], default=1) > 1:
        return 0
    operand = call.need("lhs")
    placed = contiguous((lhs[0], lhs[1], *lhs.places), operand.dtype)
    steps, taps = attributes["window_strides"], attributes["rhs_dilation"]
    ahead = [low for low, _ in attributes.get("padding") or [(0, 0)] * len(taps)]
    return placed.nbytes - touched_bytes(placed, rhs.places, out.places, steps, ahead, taps)


def _pipe(call: Call, dtype: str) -> Pipe:
    return product_pipe(dtype, call.attributes)


def _convolution(call: Call, lhs: _Axes, rhs: _Axes, out: _Axes, pipe: Pipe) -> Launch:
    """The library's kernel. XLA lays out the tensors of 16-bit convolutions channels last, and times the library's
    engines."""
    attributes = call.attributes
    strides, dilated = tuple(attributes["window_strides"]), tuple(attributes["lhs_dilation"])
    taps, groups = tuple(attributes["rhs_dilation"]), attributes["feature_group_count"]
    said: dict[str, Any] = {
        "read_bytes": call.read_bytes,
        "write_bytes": call.write_bytes,
        "pipe": pipe,
        "itemsize": call.need("rhs").itemsize,
        "searched": True,
        "channels_last": call.need("rhs").itemsize == 2,
    }
    of_weight = attributes["batch_group_count"] > 1 or math.prod(rhs.places) > math.prod(out.places)
    if of_weight:
        groups = max(groups, attributes["batch_group_count"])
        said |= {"role": "weight", "images": lhs[1] // max(attributes["feature_group_count"], 1), "groups": groups}
        said |= {"channels_in": max(lhs[0] // groups, 1), "channels_out": max(rhs[0] // groups, 1)}
        said |= {"places_in": lhs.places, "places_out": rhs.places, "kernel": out.places, "stride": taps}
        return Convolution(dilation=strides, **said)
    said |= {"images": lhs[0], "groups": groups, "kernel": rhs.places, "dilation": taps}
    if any(step > 1 for step in dilated):
        said |= {"role": "input", "channels_in": out[1] // groups, "channels_out": lhs[1] // groups}
        return Convolution(places_in=out.places, places_out=lhs.places, stride=dilated, **said)
    said |= {"role": "forward", "channels_in": lhs[1] // groups, "channels_out": out[1] // groups}
    return Convolution(places_in=lhs.places, places_out=out.places, stride=strides, **said)


# -- views, copies, places ---------------------------------------------------------------------------------------------


@_lax("movement", "reshape transpose broadcast_in_dim slice squeeze expand_dims split unstack bitcast_convert_type"
      " dynamic_slice tile lu_pivots_to_permutation", loop=loops.point)  # fmt: skip
def rearranged(call: Call) -> Cost:
    """A copy: it reads what it is given, no more than it returns, and writes that. Where the result is a view
    (``view``: its shape), a run without a compiler makes the copy."""
    if not call.outputs:
        written = math.prod(call.attributes["view"]) * call.inputs[0].itemsize
        read = min(call.read_bytes, written)
        return streamed(call.cost(read_bytes=read, write_bytes=written), written // call.inputs[0].itemsize)
    returned = sum(spec.nbytes for spec in call.outputs)
    return one_pass(call.cost(read_bytes=min(call.read_bytes, returned)), call)


@_lax("movement", "pad", loop=loops.point)
def pad(call: Call) -> Cost:
    """Reads what of the operand is kept, and writes the result."""
    output = call.outputs[0]
    return one_pass(call.cost(read_bytes=min(call.read_bytes, output.nbytes)), call)


@_lax("movement", "dynamic_update_slice", loop=loops.point)
def dynamic_update_slice(call: Call) -> Cost:
    """The operand copied with the update in a part of it; in place, where the result is a part of the operand's
    storage, the update alone."""
    update, output = call.need("update"), call.outputs[0]
    if call.arg("operand") is None:
        return streamed(call.cost(), update.numel)
    kept = max(output.nbytes - update.nbytes, 0)
    return streamed(call.cost(read_bytes=kept + call.bytes_except("operand")), output.numel)


@_lax("movement", "gather", loop=loops.gather)
def gather(call: Call) -> Cost:
    """Slices of the operand at places that ``indices`` name."""
    return gathered(replace(call, arguments=tuple("self" if n == "operand" else n for n in call.arguments)))


@_lax("movement", "scatter scatter_min scatter_max scatter_mul", loop=loops.scatter)
@_lax("reduction", "scatter_add scatter_sub", loop=loops.scatter)
def scatter(call: Call) -> Cost:
    """A copy of the operand, then the updates at the places that ``indices`` name; an add for each of their elements
    where they are added. In place, where the operand is the result, the updates alone."""
    operand, updates = call.arg("operand"), call.arg("updates") or contiguous((), call.outputs[0].dtype)  # a number
    adds = updates.numel * call.name.endswith(("_add", "_sub", "_mul"))
    touched = fetched_bytes(operand or call.outputs[0], updates.numel)
    if operand is None:
        read = call.read_bytes + touched * (call.name != "lax.scatter")
        cost = call.cost(vector_flops(updates, adds), read_bytes=read, write_bytes=touched)
        return launched(cost, stream_of(cost, updates.numel))
    cost = call.cost(vector_flops(updates, adds))
    placed = Stream(
        read_bytes=call.bytes_except("operand") + touched,
        write_bytes=touched,
        elements=updates.numel,
        about="at places",
    )
    return launched(cost, pass_over(operand.nbytes, operand.nbytes, operand.numel), placed)


# -- windows, random numbers, libraries --------------------------------------------------------------------------------


@_lax("reduction", "reduce_window reduce_window_sum reduce_window_max reduce_window_min", loop=loops.window)
def reduce_window(call: Call) -> Cost:
    """An add for each element of each window where they are summed; a maximum costs none."""
    output, size = call.outputs[0], math.prod(call.attributes["window_dimensions"])
    adds = 0 if call.name.endswith(("_max", "_min")) else output.numel * size
    about = f"a thread goes over a window of {size}"
    return looped(call.cost(vector_flops(output, adds)), output.numel, output.numel, size, about)


@_lax("reduction", "select_and_scatter_add select_and_gather_add", loop=loops.opaque)
def select_and_scatter(call: Call) -> Cost:
    """The gradient of a maximum over windows: each goes to the place that had it, an add each."""
    source, output = call.inputs[0], call.outputs[0]
    cost = call.cost(vector_flops(source, source.numel))
    return launched(cost, pass_over(0, output.nbytes, output.numel), stream_of(cost, output.numel))


@_lax("reduction", "reduce", loop=loops.opaque)
def reduce(call: Call) -> Cost:
    """A reduction by the program's own function: an operation for each element."""
    data = call.inputs[0]
    return streamed(call.cost(vector_flops(data, data.numel)), data.numel, kind="reduction")


#: integer instructions for a word of Threefry-2x32: 20 rounds of an add, a rotation (two shifts and an or) and an
#: exclusive or, 5 injections of keys of 3 adds, for two words (Salmon and others, 2011; jax/_src/prng.py)
_THREEFRY = (20 * 5 + 5 * 3) / 2


@_lax("elementwise", "random_bits threefry2x32", is_random=True)
@_lax("elementwise", "rng_bit_generator rng_uniform", is_random=True)
def random_bits(call: Call) -> Cost:
    """Words of a counter-based generator, written once: no FLOP, but integer instructions."""
    words = sum(spec.nbytes for spec in call.outputs) / 4
    return streamed(call.cost(), call.outputs[-1].numel, instructions=int(_THREEFRY * words))


@_lax("elementwise", "random_seed random_fold_in random_split", is_random=True)
def random_keys(call: Call) -> Cost:
    """A few words."""
    return streamed(call.cost(), max(spec.numel for spec in call.outputs))


@_lax("other", "fft")
def fourier(call: Call) -> Cost:
    """``5 n log2 n`` for a complex transform of n points, half where one side is real (FFTW's convention)."""
    sides = call.inputs[0], call.outputs[0]
    real = [side for side in sides if not side.dtype.startswith("complex")]
    side = real[0] if real else sides[0]
    points = math.prod(call.attributes["fft_lengths"])
    flops = side.numel * math.log2(max(points, 1)) * (2.5 if real else 5)
    pipe = Pipe("vector", "float64" if side.dtype in ("complex128", "float64") else "float32")
    return streamed(call.cost({pipe: round(flops)}), side.numel)


@_lax("other", "pallas_call", loop=loops.opaque)
def pallas(call: Call) -> Cost:
    """The user's own kernel, as its ``cost_estimate`` says, in the dtype of its largest operand; without one its
    operands and results are charged, and its FLOPs are unknown."""
    said = call.attributes.get("cost_estimate")
    if not said:
        raise LookupError("no estimate")
    moved = int(said["bytes_accessed"]) or call.read_bytes + call.write_bytes
    written = min(call.write_bytes, moved)
    largest = max((*call.inputs, *call.outputs), key=lambda spec: spec.nbytes)
    pipe = product_pipe(largest.dtype, {"allow_tf32": True})
    return call.cost({pipe: int(said["flops"])}, read_bytes=moved - written, write_bytes=written)
