"""Shapes of results for ops that torch has kernels but no shape functions for.

While :class:`ShapeFunctions` is open they stand under the dispatcher's Meta key, so that they also serve a compiler's
fake tensors. Sizes that depend on data are not made up here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch import Tensor

from memwall.core import compat
from memwall.core.errors import Unsupported
from memwall.core.graph import TensorSpec
from memwall.frontend.torch.dispatch.tensors import dtype_name, sparse_of, sparse_parts
from memwall.ops.recorded import Recorded
from memwall.ops.registry import find_row
from memwall.ops.schemas import Schema, library_schemas

Shape = Callable[..., Any]


class SparseCopies(ExitStack):
    """Context manager: while open, casts and transposes of sparse tensors on ``meta`` store as much as these."""

    def __enter__(self) -> Self:
        self._implement({("aten", key): _SPARSE_COPIES for key in _SPARSE_KEYS})
        return self

    def _implement(self, tables: Mapping[tuple[str, str], Mapping[str, Shape]]) -> None:
        for (space, key), functions in tables.items():
            library: Any = torch.library.Library(space, "IMPL")
            self.callback(compat.destroy_library, library)
            for packet, shape in functions.items():
                if packet == "_grouped_mm" or _lacks(f"{space}::{packet}", key):
                    library.m.impl(packet, key, shape, False)


class ExactShapes(SparseCopies):
    """Context manager: while open, the ops whose results' shapes follow from their arguments' have shape functions; a
    module is built so."""

    def __enter__(self) -> Self:
        self._implement({("aten", "Meta"): _ATEN})
        return super().__enter__()


class ShapeFunctions(SparseCopies):
    """Context manager: while open, the ops of this module have shape functions."""

    def __enter__(self) -> Self:
        tables: dict[tuple[str, str], dict[str, Shape]] = {("aten", "Meta"): {**_ATEN, **_CHECKS}, **_SPARSE}
        for name, shape in _library_functions().items():
            space, _, packet = name.partition("::")
            tables.setdefault((space, "Meta"), {})[packet] = shape
        self._implement(tables)
        return self


def _lacks(name: str, key: str) -> bool:
    """Whether an operator exists and has no shape function."""
    return _exists(name) and not compat.has_kernel(name, key)


def _exists(name: str) -> bool:
    packet, _, overload = name.partition(".")
    return any(schema.overload_name == overload for schema in compat.schemas_of_operator(packet))


# -- results like an input ---------------------------------------------------------------------------------------------


def _out(*args: Any, out: Any, **kwargs: Any) -> Any:
    return out


def _like(*places: int) -> Shape:
    """Results in the shapes and dtypes of the arguments at these places."""

    def shape(*args: Any, **kwargs: Any) -> Any:
        results = tuple(torch.empty_like(args[place]) for place in places)
        return results if len(results) > 1 else results[0]

    return shape


def _with_mask(data: Tensor, *others: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(data), torch.empty_like(data, dtype=torch.bool)


# -- losses ------------------------------------------------------------------------------------------------------------


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """The losses and the lattice [batch, time, 2 * longest target + 1]; of lengths on the device the longest is that of
    the padded targets, of targets in one row the mean."""
    steps, batch = log_probs.shape[:2]
    on_device = isinstance(target_lengths, Tensor) and target_lengths.is_meta
    if not on_device:
        longest = max((int(n) for n in target_lengths), default=0)
    else:
        longest = targets.shape[1] if targets.dim() == 2 else -(-targets.numel() // max(batch, 1))
    return log_probs.new_empty([batch]), log_probs.new_empty([batch, steps, 2 * longest + 1])


def ctc_loss_of_lists(
    note: Callable[[str], None],
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """With lengths as lists, which a GPU's run copies to the host; unknown lengths are the padded ones, which
    ``note`` is told."""
    longest = targets.shape[1] if targets.dim() == 2 else targets.numel() // max(target_lengths.numel(), 1)
    lists = []
    for what, lengths, padded in (("steps", input_lengths, log_probs.shape[0]), ("targets", target_lengths, longest)):
        try:
            lists.append([int(n) for n in lengths.tolist()])
        except (RuntimeError, NotImplementedError):
            note(f"each sample has as many {what} for CTC as the padded batch, {padded}")
            lists.append([padded] * lengths.numel())
    return torch.ops.aten.ctc_loss.IntList(log_probs, targets, *lists, blank, reduction, zero_infinity)


# -- linear algebra ----------------------------------------------------------------------------------------------------


def _least_squares(
    data: Tensor, rhs: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """CUDA's driver is ``gels``: no rank and no singular values; residuals where the system is overdetermined."""
    m, n = data.shape[-2:]
    is_vector = rhs.dim() == data.dim() - 1 and rhs.shape == data.shape[:-1]
    columns = [] if is_vector else [rhs.shape[-1]]
    batch = list(torch.broadcast_shapes(data.shape[:-2], rhs.shape[: rhs.dim() - 1 - len(columns)]))
    residuals = data.new_empty([*batch, *columns]) if m > n else data.new_empty([0])
    return (
        data.new_empty([*batch, n, *columns]),
        residuals,
        data.new_empty([0], dtype=torch.int64),
        data.new_empty([0]),
    )


def _geqrf(data: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(data), data.new_empty([*data.shape[:-2], min(data.shape[-2:])])


def _grouped_mm(a: Tensor, b: Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Tensor:
    """The shape of a grouped product: torch's own shape function refuses all but bfloat16, CUDA takes float16 and
    float32 too (GroupedBlas.cpp, there one product per group)."""
    if a.dtype is torch.bfloat16 and b.dtype is torch.bfloat16:
        known: Tensor = compat.meta_grouped_mm(a, b, offs=offs, bias=bias, out_dtype=out_dtype)
        return known
    if a.dtype is not b.dtype or a.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise RuntimeError(f"_grouped_mm: operands of {a.dtype} and {b.dtype} do not go together")
    if a.shape[-1] != b.shape[-2]:
        raise RuntimeError(f"_grouped_mm: contraction of {tuple(a.shape)} and {tuple(b.shape)}")
    shape = [a.shape[-2], b.shape[-1]]
    if a.dim() == b.dim():
        shape.insert(0, a.shape[0] if a.dim() == 3 else offs.shape[0])
    return torch.empty(shape, dtype=out_dtype or a.dtype, device=a.device)


def _packed_int4(weight: Tensor, inner_k_tiles: int) -> Tensor:
    """Rows of 8, columns of 16 times the inner tiles, 8 numbers in each int32 (int4mm.cu)."""
    n, k = weight.shape[0], 2 * weight.shape[1]
    return weight.new_empty([n // 8, k // (inner_k_tiles * 16), 32, inner_k_tiles // 2], dtype=torch.int32)


# -- recurrent cells ---------------------------------------------------------------------------------------------------


def _gru_cell(gates: Tensor, hidden_gates: Tensor, state: Tensor, *biases: Any) -> tuple[Tensor, Tensor]:
    """The new state, and five values of each of its elements that the gradient needs."""
    return torch.empty_like(state), state.new_empty([state.shape[0], 5 * state.shape[1]])


def _gru_cell_backward(grad: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Any, ...]:
    rows, hidden = grad.shape
    biases = [grad.new_empty([3 * hidden]) for _ in range(2)] if has_bias else [None, None]
    return (grad.new_empty([rows, 3 * hidden]), grad.new_empty([rows, 3 * hidden]), torch.empty_like(grad), *biases)


# -- batch norm over several GPUs --------------------------------------------------------------------------------------


def _per_channel(count: int) -> Shape:
    """So many numbers for each channel, in float32 at least."""

    def shape(data: Tensor, *others: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        dtype = torch.float64 if data.dtype is torch.float64 else torch.float32
        return tuple(data.new_empty([data.shape[1]], dtype=dtype) for _ in range(count))

    return shape


def _batch_norm_sums(
    grad: Tensor, data: Tensor, mean: Tensor, invstd: Tensor, weight: Any, input_g: bool, weight_g: bool, bias_g: bool
) -> tuple[Any, ...]:
    sums = [torch.empty_like(mean) if input_g else None for _ in range(2)]
    channels = [
        grad.new_empty([data.shape[1]], dtype=weight.dtype if weight is not None else mean.dtype) if wanted else None
        for wanted in (weight_g, bias_g)
    ]
    return (*sums, *channels)


# -- sparse matrices ---------------------------------------------------------------------------------------------------


SPARSE_TWICE = "a matmul of two sparse matrices has as many elements as its data says"


def _sparse_product(added: Tensor, left: Tensor, right: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """``addmm`` with a sparse matrix: dense."""
    dense = right if left.layout is not torch.strided else left
    return torch.empty([left.shape[0], right.shape[1]], dtype=dense.dtype, device="meta")


def _sparse_product_into(
    added: Tensor, left: Tensor, right: Tensor, *, beta: Any = 1, alpha: Any = 1, out: Tensor
) -> Tensor:
    if torch.strided not in (left.layout, right.layout):
        raise RuntimeError(SPARSE_TWICE)
    return out.resize_([left.shape[0], right.shape[1]])


def _densified(data: Tensor, dtype: Any = None, masked_grad: Any = None) -> Tensor:
    return torch.empty(data.shape, dtype=dtype or data.dtype, device="meta")


def _sparse_mm(left: Tensor, right: Tensor) -> Tensor:
    if torch.strided not in (left.layout, right.layout):
        raise RuntimeError(SPARSE_TWICE)
    return torch.empty([left.shape[0], right.shape[1]], dtype=left.dtype, device="meta")


def _sparse_vector_product(
    added: Tensor, matrix: Tensor, vector: Tensor, *, beta: Any = 1, alpha: Any = 1, out: Tensor | None = None
) -> Tensor:
    return added if out is None else out.resize_([matrix.shape[0]])


def _with_values(data: Tensor, like: Tensor, coalesced: bool) -> Tensor:
    """A sparse tensor with the places of ``data`` and fresh values like ``like``."""
    values = torch.empty_like(like)
    if data.layout is torch.sparse_coo:
        places = torch.empty_like(compat.sparse_indices(data))
        return torch.sparse_coo_tensor(places, values, data.shape, is_coalesced=coalesced, check_invariants=False)
    if data.layout not in (torch.sparse_csr, torch.sparse_bsr):
        raise RuntimeError(f"a {data.layout} tensor has no shape function here")
    return torch.sparse_compressed_tensor(
        data.crow_indices(), data.col_indices(), values, data.shape, layout=data.layout, check_invariants=False
    )


def _coalesced(data: Tensor) -> Tensor:
    """As many elements as there were: how many are of one place is in the data."""
    return _with_values(data, compat.sparse_values(data), True)


def _same_places(data: Tensor, *others: Any, **kwargs: Any) -> Tensor:
    values = compat.sparse_values(data) if data.layout is torch.sparse_coo else data.values()
    return _with_values(data, values, data.layout is torch.sparse_coo and data.is_coalesced())


def _row_bounds(data: Tensor, dense_dim: int | None = None) -> Tensor:
    """A coalesced COO matrix in CSR: as many elements."""
    if data.layout is not torch.sparse_coo or compat.sparse_indices(data).shape[0] != 2:
        raise RuntimeError(f"a {data.layout} tensor of this shape has no shape function for CSR here")
    rows, columns = compat.sparse_indices(data)
    bounds = rows.new_empty([data.shape[0] + 1])
    values = torch.empty_like(compat.sparse_values(data))
    return torch.sparse_csr_tensor(bounds, torch.empty_like(columns), values, data.shape, check_invariants=False)


def _masked_by(data: Tensor, mask: Tensor) -> Tensor:
    """The elements of a dense tensor at the places of a sparse one."""
    return _same_places(mask)


def _cast(data: Tensor, *, dtype: Any = None, **options: Any) -> Tensor:
    """The same places, values in another dtype."""
    *places, values = sparse_parts(data)
    return sparse_of(data, [*map(torch.empty_like, places), torch.empty_like(values, dtype=dtype or data.dtype)])


# -- jagged tensors ----------------------------------------------------------------------------------------------------


def _padded(values: Tensor, offsets: Sequence[Tensor], max_lengths: Sequence[int], padding: float = 0.0) -> Tensor:
    return values.new_empty([offsets[0].shape[0] - 1, *max_lengths, *values.shape[1:]])


def _unpadded(dense: Tensor, offsets: Sequence[Tensor], rows: int | None = None, **kwargs: Any) -> Tensor:
    rows = kwargs.get("total_L", rows)
    if rows is None:
        raise RuntimeError("how many rows a padded tensor holds is in its offsets")
    return dense.new_empty([rows, *dense.shape[1 + len(offsets) :]])


# -- the tables --------------------------------------------------------------------------------------------------------


def _no(*args: Any, **kwargs: Any) -> bool:
    return False


#: ATen's own checks (``is_scalar_tensor_true``): of a window that adds up to zero, of weights below zero.
_CHECKS: dict[str, Shape] = {"equal": _no, "_use_cudnn_ctc_loss": _no, "_use_cudnn_ctc_loss.Tensor": _no}
_ATEN: dict[str, Shape] = {
    "_ctc_loss": _ctc_loss, "_ctc_loss.Tensor": _ctc_loss,
    "_ctc_loss_backward": _like(1), "_ctc_loss_backward.Tensor": _like(1),
    "multi_margin_loss_backward": _like(1), "multilabel_margin_loss_backward": _like(1),
    "fractional_max_pool3d_backward": _like(1),
    "linalg_lstsq": _least_squares, "geqrf": _geqrf,
    "_scaled_mm.out": _out, "_grouped_mm": _grouped_mm, "_convert_weight_to_int4pack": _packed_int4,
    "_thnn_fused_gru_cell": _gru_cell, "_thnn_fused_gru_cell_backward": _gru_cell_backward,
    "fake_quantize_per_tensor_affine_cachemask": _with_mask,
    "fake_quantize_per_channel_affine_cachemask": _with_mask,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": _with_mask,
    "_fake_quantize_learnable_per_tensor_affine": _like(0),
    "_fake_quantize_learnable_per_channel_affine": _like(0),
    "_fake_quantize_learnable_per_tensor_affine_backward": _like(0, 2, 3),
    "_fake_quantize_learnable_per_channel_affine_backward": _like(0, 2, 3),
    "_jagged_to_padded_dense_forward": _padded, "_padded_dense_to_jagged_forward": _unpadded,
    "_sample_dirichlet": _like(0), "_dirichlet_grad": _like(0), "binomial": _like(0), "_standard_gamma_grad": _like(0),
    "batch_norm_stats": _per_channel(2), "batch_norm_update_stats": _per_channel(2),
    "batch_norm_gather_stats": _per_channel(2), "batch_norm_gather_stats_with_counts": _per_channel(2),
    "batch_norm_elemt": _like(0), "batch_norm_backward_reduce": _batch_norm_sums, "batch_norm_backward_elemt": _like(0),
}  # fmt: skip

_SPARSE_KEYS = ("SparseMeta", "SparseCsrMeta")
_SPARSE_COPIES: Mapping[str, Shape] = {"_to_copy": _cast, "clone": _same_places}
_OF_SPARSE: dict[str, Shape] = {
    **_SPARSE_COPIES,
    "addmm": _sparse_product, "addmm.out": _sparse_product_into, "_to_dense": _densified, "mm": _sparse_mm,
    "addmv_": _sparse_vector_product, "addmv.out": _sparse_vector_product, "_coalesce": _coalesced,
    "_sparse_softmax": _same_places, "_sparse_log_softmax": _same_places, "sparse_sampled_addmm": _same_places,
    "sparse_mask": _masked_by, "_to_sparse_csr": _row_bounds,
}  # fmt: skip
_SPARSE: Mapping[tuple[str, str], dict[str, Shape]] = {("aten", key): _OF_SPARSE for key in _SPARSE_KEYS}


# -- other libraries ---------------------------------------------------------------------------------------------------


def _transducer(logits: Tensor, *others: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    return logits.new_empty([logits.shape[0]]), torch.empty_like(logits)


def _aligned(log_probs: Tensor, targets: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    path = log_probs.shape[:2]
    return targets.new_empty(path), log_probs.new_empty(path)


_LIBRARIES: Mapping[str, Shape] = {
    "torchaudio::rnnt_loss_forward": _transducer, "torchaudio::forced_align": _aligned,
}  # fmt: skip


def _library_functions() -> dict[str, Shape]:
    """Shape functions of other libraries' ops that are loaded and have none: of ops that only write their arguments,
    and of ops whose results a trace's reader derives too."""
    found = {}
    for name, versions in library_schemas().items():
        if name.startswith(("aten::", "autograd_function::")) or not _lacks(name, "Meta"):
            continue
        row = find_row(name.replace("::", "."))
        if name in _LIBRARIES:
            found[name] = _LIBRARIES[name]
        elif row is not None and row.results is not None:
            found[name] = _derived(name, versions[0], row.results)
        elif not compat.schema_with_overload(name, "").returns:
            found[name] = _nothing
    return found


def _nothing(*args: Any, **kwargs: Any) -> None:
    """The result of an op that only writes its arguments."""


def _derived(name: str, schema: Schema, rule: Callable[[Recorded], Sequence[TensorSpec]]) -> Shape:
    """Results as they are derived from a recorded call."""

    def shape(*args: Any, **kwargs: Any) -> Any:
        values = dict(zip((argument.name for argument in schema.arguments), args, strict=False))
        given = {key: (_spec(item),) for key, item in values.items() if isinstance(item, Tensor)}
        plain = {key: item for key, item in values.items() if not isinstance(item, Tensor)}
        call = Recorded(
            name=f"{name.replace('::', '.')}.default",
            recorded_name=name,
            given=given,
            arguments=tuple(values),
            values=plain,
            defaults=plain,
            results=schema.results,
        )
        try:
            specs = rule(call)
        except Unsupported as error:
            raise RuntimeError(f"{name}: {error}") from error
        made = tuple(torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta") for spec in specs)
        return made if len(compat.schema_with_overload(name, "").returns) > 1 else made[0] if made else None

    return shape


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), tuple(tensor.stride()), dtype_name(tensor.dtype))
