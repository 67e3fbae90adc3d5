"""The operators that choose a library, in place of the kernels that a trace names.

A trace on ``meta`` names PyTorch's own kernels where eager PyTorch on a GPU asks what the tensors are and may call a
library: ``batch_norm`` and ``grid_sampler`` (``_batch_norm_impl_index`` in ATen's Normalization.cpp, ``grid_sampler``
in GridSampler.cpp). A call by the traced name would run, and time, a kernel that no model runs. Each form here takes
what the traced operator takes, chooses as eager does and returns the same results.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_ATEN: Any = torch.ops.aten
#: bilinear, zeros outside, corners aligned; and the most channels: what cuDNN samples
_SAMPLED, _SAMPLED_CHANNELS = (0, 0, True), 1024
#: what a text calls its object for the gradients of batch norms
_GRADIENT = "eager_batch_norm_backward"


def as_eager(source: str) -> str:
    """A reference's text (:mod:`memwall.fusion.reference`) with these forms where it has one. What a gradient keeps of
    its forward pass lives as long as the module that is made of the text."""
    made = _CALL.sub(lambda call: f"{FORMS[call[1]]}(" if call[1] in FORMS else call[0], source)
    if made == source:
        return source
    kept = f"{_GRADIENT} = eager_forms.BatchNormBackward()\n" if f"{_GRADIENT}(" in made else ""
    head = f"import torch\n\nfrom memwall.bench.kernels import eager_forms\n\n{kept}"
    return made.replace("import torch\n", head, 1)


def batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    """The result, and the mean and the inverse deviation of each channel. Running statistics are updated in place."""
    enabled = torch.backends.cudnn.enabled
    made = _ATEN._batch_norm_impl_index(x, weight, bias, mean, var, training, momentum, eps, enabled)
    return tuple(made[:3])


def batch_norm_without_statistics(
    x: Tensor, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    """The same of a layer that keeps no running statistics."""
    return batch_norm(x, weight, bias, None, None, training, momentum, eps)


class BatchNormBackward:
    """The gradients of data, weight and bias, by the library that the forward pass chose.

    That pass runs before the first call on some tensors, for what it leaves to the gradient, and never while a CUDA
    graph is captured; what it left is kept, for each shape of a call.
    """

    def __init__(self) -> None:
        #: shapes of a call -> the addresses of its tensors, the library chosen, and what that left
        self._left: dict[Any, tuple[Any, int, Tensor]] = {}

    def __call__(
        self,
        grad: Tensor,
        x: Tensor,
        weight: Any,
        mean: Any,
        var: Any,
        saved_mean: Any,
        saved_deviation: Any,
        train: bool,
        eps: float,
        wanted: Sequence[bool],
    ) -> tuple[Any, ...]:
        index, reserve = self._forward(grad, x, weight, eps) if train else (0, x.new_empty(0, dtype=torch.uint8))
        made: tuple[Any, ...] = _ATEN._batch_norm_impl_index_backward(
            index, x, grad, weight, mean, var, saved_mean, saved_deviation, train, eps, wanted, reserve
        )
        return made

    def _forward(self, grad: Tensor, x: Tensor, weight: Any, eps: float) -> tuple[int, Tensor]:
        key = (x.shape, x.stride(), x.dtype, x.device, None if weight is None else weight.dtype, eps)
        places, known = (grad.data_ptr(), x.data_ptr()), self._left.get(key)
        captures = x.is_cuda and torch.cuda.is_current_stream_capturing()
        if known is None or (known[0] != places and not captures):
            bias = None if weight is None else torch.zeros_like(weight)
            enabled = torch.backends.cudnn.enabled
            *_, reserve, index = _ATEN._batch_norm_impl_index(x, weight, bias, None, None, True, 0.0, eps, enabled)
            known = self._left[key] = (places, index, reserve)
        return known[1], known[2]


def grid_sampler(x: Tensor, grid: Tensor, mode: int, padding: int, aligned: bool) -> Tensor:
    """The values of the data at the places of the grid."""
    made: Tensor = _ATEN.grid_sampler(x, grid, mode, padding, aligned)
    return made


def grid_sampler_backward(
    grad: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, aligned: bool, wanted: Sequence[bool]
) -> tuple[Any, ...]:
    """The gradients of data and grid."""
    fits = (mode, padding, aligned) == _SAMPLED and x.shape[1] <= _SAMPLED_CHANNELS
    made: tuple[Any, ...]
    if fits and torch.backends.cudnn.is_acceptable(x) and torch.backends.cudnn.is_acceptable(grid):
        made = _ATEN.cudnn_grid_sampler_backward(x, grid, grad)
    else:
        made = _ATEN.grid_sampler_2d_backward(grad, x, grid, mode, padding, aligned, wanted)
    return made


_CALL = re.compile(r"torch\.ops\.(aten\.\w+\.\w+)\(")
#: operator -> the form that chooses for it, as a reference's text names it
FORMS = {
    "aten._native_batch_norm_legit.default": "eager_forms.batch_norm",
    "aten._native_batch_norm_legit.no_stats": "eager_forms.batch_norm_without_statistics",
    "aten.native_batch_norm_backward.default": _GRADIENT,
    "aten.grid_sampler_2d.default": "eager_forms.grid_sampler",
    "aten.grid_sampler_2d_backward.default": "eager_forms.grid_sampler_backward",
}
