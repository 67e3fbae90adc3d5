"""A group of ops run one by one by PyTorch, on memory addressed by value: as in eager, or in float64.

In float64 every floating value is kept that wide from op to op, casts between floats included; casts to integers and
booleans are real. Ops that torch has no call for here are run by formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from memwall.bench.kernels.arena import Arena, WideMemory, widened
from memwall.bench.kernels.numerics import FLOATS, UNIT_FLOAT32, UNIT_TF32
from memwall.core import compat
from memwall.core.errors import Unsupported
from memwall.core.graph import Graph, Op
from memwall.fusion import Group
from memwall.ops.evaluate import EvaluatedCall, Operators, evaluate


def run_group(
    graph: Graph,
    group: Group,
    memory: Arena | WideMemory,
    operators: Operators,
    kept: Mapping[int, Tensor] | None = None,
    noise: torch.Generator | None = None,
) -> None:
    """Run the ops of a group on ``memory``, in place.

    Args:
        kept: values that are not drawn at random but taken as given, by id: the masks of dropouts.
        noise: in float64 only: rounds what an op reads as the dtypes of the graph would.

    Raises:
        Unsupported: an op is no operator of torch's, or has no kernel on this device.
    """
    run = _GroupRun(graph, group, memory, dict(kept or {}), noise)
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if run.wide else torch.float32)  # integers divided give this dtype
    try:
        with torch.no_grad():
            evaluate(graph, sorted((*group.op_ids, *group.recomputes)), run, run.op, operators)
    finally:
        torch.set_default_dtype(dtype)


class _GroupRun:
    """One run of a group's ops."""

    def __init__(
        self,
        graph: Graph,
        group: Group,
        memory: Arena | WideMemory,
        kept: dict[int, Tensor],
        noise: torch.Generator | None,
    ) -> None:
        self.graph, self.group, self.memory, self.kept, self.noise = graph, group, memory, kept, noise
        self.wide = isinstance(memory, WideMemory)
        self.device = memory.arena.device if isinstance(memory, WideMemory) else memory.device
        #: storages that the group has written
        self.written: set[int] = set()
        #: of the current op: what it overwrites, how many numbers it adds up, and whether it may round them to TF32
        self._into: Sequence[int] = ()
        self._terms = 1
        self._tf32 = False

    def begin(self, op: Op, into: Sequence[int]) -> None:
        """Start an op: rounding depends on what it does."""
        self._into, self._terms = into, _terms_of(self.graph, op)
        self._tf32 = bool(op.attributes.get("allow_tf32"))

    def tensor(self, value_id: int) -> Tensor:
        """The tensor of a value; where it is rounded at random, each element times 1 + u · amplitude, u uniform in ±1:
        zeros, infinities and NaN stay what they are."""
        found = self.memory[value_id]
        if self.noise is None or not found.is_floating_point():
            return found
        value = self.graph.values[value_id]
        amplitude = UNIT_FLOAT32 * math.sqrt(self._terms)
        if self._tf32 and value.spec.dtype == "float32":
            amplitude += UNIT_TF32
        if value.storage in self.written:
            amplitude += FLOATS.get(value.spec.dtype, 0.0)
        drawn = torch.rand(found.shape, dtype=found.dtype, device=found.device, generator=self.noise)
        noisy = found * drawn.mul_(2).sub_(1).mul_(amplitude).add_(1)
        return found.copy_(noisy) if value_id in self._into else noisy

    def op(self, call: EvaluatedCall) -> None:
        """Run an op and keep its results."""
        results = _FORMULAS.get(call.op.name, _GroupRun.call)(self, call)
        for value_id, result in zip(call.made, results, strict=False):
            destination = self.memory[value_id]
            if destination.shape == result.shape:
                destination.copy_(result)
            elif value_id not in left_undefined(call.op):
                raise Unsupported(f"{call.op.name} gives {[*result.shape]} here, not {[*destination.shape]}")
        self.written.update(self.graph.values[i].storage for i in call.op.outputs)

    def call(self, call: EvaluatedCall) -> list[Tensor]:
        """The operator's results in order, without results that it overwrites."""
        function = call.target.function
        try:
            positional, keywords = call.arguments()
            if self.wide:
                positional = [_wide_argument(a) for a in positional]
                keywords = {name: _wide_argument(a) for name, a in keywords.items()}
            result = function(*positional, **keywords)
        except (Unsupported, RuntimeError, IndexError, TypeError, ValueError) as error:
            said = next(iter(str(error).splitlines()), type(error).__name__)
            raise Unsupported(f"{call.op.name}: {said}") from error
        returns = compat.schema(function).returns
        if not returns:  # _foreach_add_ and its kin
            return []
        listed = result if isinstance(result, (tuple, list)) and len(returns) > 1 else [result]
        declared = [r.alias_info and r.alias_info.is_write for r in returns]
        return list(_tensors([r for r, written in zip(listed, declared, strict=True) if not written]))


def left_undefined(op: Op) -> tuple[int, ...]:
    """The outputs in which no kernel leaves anything: the statistics that a batch norm in inference saves are empty on
    the CPU and by cuDNN, and memory that nobody has written by PyTorch's own kernels."""
    is_given = "native_batch_norm" in op.name and op.attributes.get("training") is False
    return op.outputs[1:] if is_given else ()


_ADDING_CLASSES = frozenset(("reduction", "normalization", "contraction", "convolution"))
_ADDING = frozenset(("embedding_dense_backward", "index_put", "index_put_", "index_add", "_embedding_bag"))


def _terms_of(graph: Graph, op: Op) -> int:
    """How many numbers an op adds up for one element of a result, or more."""
    if op.op_class not in _ADDING_CLASSES and op.name.partition(".")[2].partition(".")[0] not in _ADDING:
        return 1
    read = [spec for spec in graph.specs(op.inputs) if spec.dtype in FLOATS]
    largest = max(read, key=lambda spec: spec.numel, default=None)
    if largest is None:
        return 1
    smallest = min((spec.numel for spec in graph.specs(op.outputs)), default=1)
    return max(largest.numel // max(smallest, 1), *largest.shape, 1)


def _wide_argument(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return widened(value)
    if isinstance(value, Tensor) and value.dtype != widened(value.dtype):  # a stand-in that no value gave
        return value.to(widened(value.dtype))
    return value


def _tensors(results: Sequence[Any]) -> Iterator[Tensor]:
    """The tensors of some results, lists opened, a sparse one as its indices and values; numbers are left out."""
    for result in results:
        if isinstance(result, (list, tuple)):
            yield from _tensors(result)
        elif isinstance(result, Tensor):
            yield from (compat.sparse_indices(result), compat.sparse_values(result)) if result.is_sparse else (result,)


# -- formulas ----------------------------------------------------------------------------------------------------------


def _arguments(run: _GroupRun, op: Op) -> dict[str, Tensor]:
    return {name: run.tensor(i) for name, i in zip(op.arguments, op.inputs, strict=True)}


def _dropout(run: _GroupRun, call: EvaluatedCall) -> list[Tensor]:
    """Dropout by the mask that was kept, or by a new one if no mask was kept."""
    mask = run.kept.get(call.op.outputs[1]) if len(call.op.outputs) > 1 else None
    if mask is None:
        if run.wide:
            raise Unsupported("the mask of a dropout is not known")
        return run.call(call)
    kept = 1.0 - call.op.attributes["p"]
    scale = 1.0 / kept if kept else 0.0
    return [run.tensor(call.op.inputs[0]) * mask * scale, mask]


def _rms_norm(run: _GroupRun, call: EvaluatedCall) -> list[Tensor]:
    """y = x · rstd · w; without an epsilon it is float32's, whatever the dtype that it is computed in here."""
    given = _arguments(run, call.op)
    dims = tuple(range(-len(call.op.attributes["normalized_shape"]), 0))
    eps = call.op.attributes.get("eps")
    x = given["input"].to(torch.promote_types(given["input"].dtype, torch.float32))
    rstd = (x.pow(2).mean(dims, keepdim=True) + (2.0**-23 if eps is None else eps)).rsqrt()
    return [x * rstd * given.get("weight", 1.0), rstd]


def _rms_norm_backward(run: _GroupRun, call: EvaluatedCall) -> list[Tensor]:
    given = _arguments(run, call.op)
    columns = len(call.op.attributes["normalized_shape"])
    of_x, of_weight = rms_norm_gradients(given["grad_out"], given["input"], columns, given["rstd"], given.get("weight"))
    return [of_x] if of_weight is None else [of_x, of_weight]


def _sparse_add(run: _GroupRun, call: EvaluatedCall) -> list[Tensor]:
    """Rows added to a table in place: other is given as its indices and its rows."""
    table, indices, rows = map(run.tensor, call.op.inputs)
    table.index_add_(0, indices.reshape(-1), rows.to(table.dtype), alpha=call.op.attributes.get("alpha", 1))
    return []


def _embedding_bag(run: _GroupRun, call: EvaluatedCall) -> list[Tensor]:
    """Sums of rows, and the bookkeeping as GPUs write it: each index's bag, the size of each bag, nothing."""
    given = _arguments(run, call.op)
    if call.op.attributes.get("mode") or "per_sample_weights" in given:
        return run.call(call)
    table, indices, starts = given["weight"], given["indices"], given["offsets"]
    places = torch.arange(indices.numel(), device=indices.device)
    bags = torch.searchsorted(starts, places, right=True) - 1
    sums = table.new_zeros(starts.numel(), table.shape[1]).index_add_(0, bags, table[indices])
    sizes = torch.bincount(bags, minlength=starts.numel())
    return [sums, bags.to(indices.dtype), sizes.to(indices.dtype), indices.new_empty(0)]


_FORMULAS: Mapping[str, Callable[[_GroupRun, EvaluatedCall], list[Tensor]]] = {
    "aten.native_dropout": _dropout,
    "aten._embedding_bag": _embedding_bag,
    "aten._fused_rms_norm": _rms_norm,
    "aten._fused_rms_norm_backward": _rms_norm_backward,
    "sparse.add_.Tensor": _sparse_add,
}


# -- CUDA's operators on the CPU: a graph names a GPU's kernels, and some have no other --------------------------------

_ATEN = torch.ops.aten


class CpuForms:
    """While one lives, a CUDA operator called on CPU tensors runs the CPU's own kernel for the same thing."""

    def __init__(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        for name, form in _FORMS.items():
            if hasattr(_ATEN, name):  # each version of torch has its own
                self._library.impl(name, form, "CPU")


def _attention(q: Any, k: Any, v: Any, p: float, causal: bool, bias: Any, scale: Any) -> Any:
    if p:
        raise NotImplementedError("attention with dropout")
    return _ATEN._scaled_dot_product_flash_attention_for_cpu(q, k, v, p, causal, attn_mask=bias, scale=scale)


def _attention_backward(
    grad: Any, q: Any, k: Any, v: Any, output: Any, logsumexp: Any, p: float, causal: bool, bias: Any, scale: Any
) -> Any:
    if p:
        raise NotImplementedError("attention with dropout")
    return _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, output, logsumexp, p, causal, attn_mask=bias, scale=scale
    )


def _flash(
    q: Any, k: Any, v: Any, p: float = 0.0, causal: bool = False, mask: bool = False, *, scale: Any = None
) -> Any:
    output, logsumexp = _attention(q, k, v, p, causal, None, scale)
    seed, place = torch.zeros(2, dtype=torch.int64), torch.zeros((), dtype=torch.int64)
    return output, logsumexp, None, None, q.size(2), k.size(2), seed, place, q.new_empty(0)


def _flash_backward(
    grad: Any,
    q: Any,
    k: Any,
    v: Any,
    output: Any,
    logsumexp: Any,
    cum_q: Any,
    cum_k: Any,
    max_q: int,
    max_k: int,
    p: float,
    causal: bool,
    seed: Any,
    offset: Any,
    *,
    scale: Any = None,
) -> Any:
    return _attention_backward(grad, q, k, v, output, logsumexp, p, causal, None, scale)


def _efficient(
    q: Any, k: Any, v: Any, bias: Any, logsumexp_too: bool, p: float = 0.0, causal: bool = False, *, scale: Any = None
) -> Any:
    seed = torch.zeros((), dtype=torch.int64)
    return *_attention(q, k, v, p, causal, bias, scale), seed, seed.clone()


def _efficient_backward(
    grad: Any,
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    output: Any,
    logsumexp: Any,
    seed: Any,
    offset: Any,
    p: float,
    wanted: Any,
    causal: bool = False,
    *,
    scale: Any = None,
) -> Any:
    return *_attention_backward(grad, q, k, v, output, logsumexp, p, causal, bias, scale), None


def _rms_norm_backward_form(grad: Any, x: Any, shape: Any, rstd: Any, weight: Any, wanted: Any) -> Any:
    of_x, of_weight = rms_norm_gradients(grad, x, len(shape), rstd, weight)
    return of_x.to(x.dtype), None if of_weight is None else of_weight.to(weight.dtype)


def rms_norm_gradients(
    gradient: Tensor, x: Tensor, columns: int, rstd: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Gradients of y = x · rstd · w, in float32 at least: CPUs have no kernel for it. ``columns``: axes of a row."""
    wide = torch.promote_types(rstd.dtype, torch.float32)
    gradient, x = gradient.to(wide), x.to(wide)
    normalized = x * rstd
    weighted = gradient if weight is None else gradient * weight
    inner = (weighted * normalized).mean(tuple(range(-columns, 0)), keepdim=True)
    rows = tuple(range(gradient.dim() - columns))
    product = gradient * normalized
    of_weight = None if weight is None else (product.sum(rows) if rows else product)
    return rstd * (weighted - normalized * inner), of_weight


#: operator → what represents it on the CPU
_FORMS = {
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention": _efficient,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_fused_rms_norm_backward": _rms_norm_backward_form,
}
