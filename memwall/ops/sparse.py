"""Products with sparse matrices, sampled products, conversions: by the elements that are stored.

A recorded sparse tensor is its parts (indices and values, or row bounds, columns and values), under the argument's
name. FLOPs are of stored elements alone (cuSPARSE). A sparse operand's rows of the dense one are read as often as they
are met, no more than the whole: min(met, whole).
"""

from __future__ import annotations

from functools import partial

from memwall.core.graph import TensorSpec
from memwall.ops.base import Call, Cost, fetched_bytes
from memwall.ops.passes import launched, pass_over, per_element, stream_of, streamed, vector_flops
from memwall.ops.registry import formula

op = partial(formula, "contraction")


def stored_values(call: Call) -> TensorSpec:
    """The values of the first sparse argument: of its parts the last (indices are integers)."""
    floats = [spec for spec in call.inputs if not spec.dtype.startswith("int")]
    for argument in dict.fromkeys(call.arguments):
        parts = call.args(argument)
        if len(parts) > 1:
            return parts[-1]
    return floats[0]


def _is_sparse(call: Call, argument: str) -> bool:
    return len(call.args(argument)) > 1


@op("sparse::mm sparse::_sparse_mm sparse::addmm sparse::_sparse_addmm sparse::mv sparse::addmv sparse::addmv_"
    " sparse::bmm sparse::matmul sparse::hspmm sparse::_sparse_mm_reduce_impl")  # fmt: skip
def sparse_product(call: Call) -> Cost:
    """Stored elements x columns of the dense operand, 2 FLOP each; a row of the dense operand for each element."""
    values, out = stored_values(call), call.outputs[0]
    if len(call.outputs) > 1:
        return sparse_times_sparse(call)
    dense = [spec for name, spec in zip(call.arguments, call.inputs, strict=True) if not _is_sparse(call, name)][-1]
    columns = dense.shape[-1] if len(dense.shape) > 1 else 1
    met = fetched_bytes(dense, values.numel * columns)
    read = call.read_bytes - dense.nbytes + met
    cost = call.cost(vector_flops(values, 2 * values.numel * columns), read_bytes=read)
    return streamed(cost, out.numel)


#: an element of the result is one product at least, and one addition, which is what is counted
sparse_times_sparse = op("sparse::_sparse_sparse_matmul")(per_element(lambda call: call.outputs[-1], 2))


@op("sparse::sparse_sampled_addmm")
def sampled_product(call: Call) -> Cost:
    """A dot product of length k for each stored element."""
    values, left, right = stored_values(call), call.need("mat1"), call.need("mat2")
    depth = left.shape[-1]
    met = [fetched_bytes(dense, values.numel * depth) for dense in (left, right)]
    read = call.read_bytes - left.nbytes - right.nbytes + sum(met)
    return streamed(call.cost(vector_flops(values, 2 * values.numel * depth), read_bytes=read), values.numel)


# 5 per stored element (max, subtract, exp, sum, divide), after its rows are found by sorting; 4 backward; one add
formula("normalization", "sparse::_sparse_softmax sparse::_sparse_log_softmax")(per_element(stored_values, 5))
formula("normalization", "sparse::_sparse_softmax_backward_data sparse::_sparse_log_softmax_backward_data")(
    per_element(stored_values, 4)
)
formula("reduction", "sparse::_sparse_sum sparse::sum")(per_element(stored_values, 1))


@formula("movement", "sparse::_to_dense sparse::to_dense")
def to_dense(call: Call) -> Cost:
    """Zeros, and one add per stored element."""
    values = stored_values(call)
    cost = call.cost(vector_flops(values, values.numel))
    return launched(cost, pass_over(0, cost.write_bytes), stream_of(cost, values.numel))


#: launches of a sort of the indices and of the sums of equal ones (SparseCUDATensor.cu)
_COALESCE_KERNELS = 8


@formula("movement", "sparse::sparse_mask")
def masked(call: Call) -> Cost:
    """The elements of a dense tensor that a sparse one stores."""
    values, data = stored_values(call), call.need("self")
    read = call.bytes_except("self") - values.nbytes + min(values.nbytes, data.nbytes)
    return streamed(call.cost(read_bytes=read), values.numel)


@formula("movement", "sparse::_coalesce sparse::_to_sparse sparse::_to_sparse_csr sparse::index_select"
         " sparse::_convert_indices_from_coo_to_csr sparse::_convert_indices_from_csr_to_coo")  # fmt: skip
def rearranged(call: Call) -> Cost:
    """Indices sorted and equal ones' values added, or converted or selected: what is stored, in several kernels."""
    values = stored_values(call) if call.inputs else call.outputs[0]
    adds = values.numel if "coalesce" in call.name else 0
    kernels = _COALESCE_KERNELS if "coalesce" in call.name else 1
    cost = call.cost(vector_flops(values, adds), kernels=kernels)
    return streamed(cost, values.numel)


@formula("elementwise", "sparse::mul sparse::div sparse::neg sparse::abs sparse::pow sparse::sqrt sparse::relu")
def stored_elements(call: Call) -> Cost:
    """One FLOP per stored element, as of a dense tensor; a change of sign and a selection are none."""
    values = stored_values(call)
    name = call.name.split(".")[1]
    flops = 0 if name in ("neg", "abs", "relu") else values.numel
    return streamed(call.cost(vector_flops(values, flops)), values.numel)
