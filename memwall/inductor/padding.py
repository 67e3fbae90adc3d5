"""Which products Inductor pads, told by the model of the GPU (torch/_inductor/fx_passes/pad_mm.py).

Inductor pads the sizes of ``mm``, ``addmm`` and ``bmm`` to multiples of 16 bytes where that is quicker: it times the
product as it is, and eager copies of its operands with zeros added, then the larger product. The result is a view of
what that wrote. Which products it may pad, which it times and which copies it leaves out, as the kernel that makes an
operand could write it padded, is torch's own code here; the seconds are the model's. In deterministic mode nothing is
timed: torch then has decision trees for A100, H100 and H200, which its developers' timings of ``mm`` taught.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import torch

from memwall.core.compat import AutoHeuristic, pad_mm_operations, pad_mm_precondition
from memwall.core.compat import inductor_config as config
from memwall.core.compat import inductor_pad_mm as pad_mm
from memwall.core.graph import Graph, TensorSpec, contiguous
from memwall.frontend.torch.dispatch.tensors import dtype_name
from memwall.hardware.lookup import Gpu
from memwall.inductor.origins import op_of
from memwall.ops.base import Cost
from memwall.ops.launches import Stream
from memwall.ops.table_calls import cost
from memwall.perfmodel.roofline import predict_cost

#: how much quicker the padded product must be (``is_padded_faster``)
_MARGIN = 1.1
#: the answer of torch's trees for a product to pad
_PAD = "pad"


@contextlib.contextmanager
def modeled_padding(graph: Graph, gpu: Gpu) -> Iterator[None]:
    """While open, Inductor's pass asks the model of the GPU instead of timing. The tensors may be on the CPU."""

    def should_pad(match: Any, left: Any, right: Any, op: Any, **more: Any) -> bool:
        addend = more.get("input")
        if len(match.nodes) > 1 or not pad_mm.can_pad(left, right, op, addend):
            return False  # a product with its gradients is three, each asked about by itself
        *_, m, k = left.shape
        if config.force_shape_pad:
            return True
        if not pad_mm.is_mm_compute_bound(m, k, right.shape[-1], left.dtype):
            return False
        made_before = tuple(pad_mm.should_exclude_padding_time(match, name) for name in ("mat1", "mat2"))
        if (
            config.use_autoheuristic("pad_mm")
            and op is torch.ops.aten.mm
            and (known := learned(left, right, made_before))
        ):
            return known == _PAD
        if config.deterministic:
            return False
        number = op_of(match.nodes[0])
        attributes = {} if number is None else graph.ops[number].attributes
        given = [_spec(tensor) for tensor in (left, right, addend) if tensor is not None]
        plain_s, padded_s = seconds(given, made_before, attributes, gpu)
        return plain_s > _MARGIN * padded_s

    with patch.object(pad_mm, "check_device", lambda left, right: True), patch.object(pad_mm, "should_pad", should_pad):
        yield


def learned(left: torch.Tensor, right: torch.Tensor, made_before: Sequence[bool]) -> str:
    """What torch's decision tree for the GPU says of a product, ``pad`` or ``orig``; empty where it has none or is not
    sure. The arguments are as of :func:`seconds`, and tensors on any device."""
    sizes = (left.shape[0], left.shape[1], right.shape[1])
    added = [pad_mm.get_padded_length(size, pad_mm.get_alignment_size(left)) for size in sizes]
    tree = AutoHeuristic(
        fallback=str,
        choices=["orig", _PAD],
        feedback=None,
        name="pad_mm",
        precondition=pad_mm_precondition,
        context=pad_mm.get_context(left, right, *made_before, *added),
        augment_context=pad_mm_operations(),
    )
    return tree.get_choice()


def seconds(
    given: Sequence[TensorSpec], made_before: Sequence[bool], attributes: Mapping[str, Any], gpu: Gpu
) -> tuple[float, float]:
    """What Inductor would time: the product as it is, and what its padding makes of it.

    Args:
        given: the left and the right operand, and the addend of ``addmm``.
        made_before: of each operand, whether the kernel that makes it could write it padded; then only a strip of zeros
            is timed.
        attributes: the product's, which name its pipe.
    """
    padded = [_padded(spec) for spec in given]
    copies = [
        _strip(*pair) if before else _copy(*pair)
        for *pair, before in zip(given, padded, (*made_before, False), strict=False)
        if pair[0].shape != pair[1].shape
    ]
    larger = sum(copies, Cost(launches=())) + _product(padded, attributes)
    return predict_cost(_product(given, attributes), gpu).time_s, predict_cost(larger, gpu).time_s


def _spec(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), tuple(tensor.stride()), dtype_name(tensor.dtype))


def _padded(spec: TensorSpec) -> TensorSpec:
    """A matrix, or a vector, with its sizes padded; the copy is contiguous."""
    step = pad_mm.get_alignment_size_dtype(getattr(torch, spec.dtype))
    batch, sides = spec.shape[:-2], spec.shape[-2:]
    sizes = (*batch, *(size + pad_mm.get_padded_length(size, step) for size in sides))
    return spec if sizes == spec.shape else contiguous(sizes, spec.dtype)


def _copy(given: TensorSpec, padded: TensorSpec) -> Cost:
    """``constant_pad_nd`` of torch: zeros, then what was given."""
    pad = [n for i in (-1, -2)[: len(given.shape)] for n in (0, padded.shape[i] - given.shape[i])]
    return cost("aten.constant_pad_nd.default", (("self", given),), [padded], pad=pad)


def _strip(given: TensorSpec, padded: TensorSpec) -> Cost:
    """The zeros of a padded operand that is there already: where both sides are padded Inductor fills the corner."""
    sides = (b - a or b for a, b in zip(given.shape[-2:], padded.shape[-2:], strict=True))
    nbytes = math.prod((*padded.shape[:-2], *sides)) * padded.itemsize
    return Cost(write_bytes=nbytes, launches=(Stream(write_bytes=nbytes, elements=nbytes // padded.itemsize),))


def _product(operands: Sequence[TensorSpec], attributes: Mapping[str, Any]) -> Cost:
    left, right = operands[:2]
    made = contiguous((*left.shape[:-1], right.shape[-1]), left.dtype)
    for addend in operands[2:]:
        return cost("aten.addmm.default", (("self", addend), ("mat1", left), ("mat2", right)), [made], **attributes)
    name = "aten.mm.default" if len(left.shape) == 2 else "aten.bmm.default"
    return cost(name, (("self", left), ("mat2", right)), [made], **attributes)
