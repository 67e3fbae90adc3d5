"""Torchvision and torchaudio imported where their compiled libraries cannot be loaded.

A wheel built for CUDA does not load next to a CPU build of torch, and importing the package then fails. Shapes are all
that a trace needs: torchvision brings its own shape functions, and the schemas and gradients of its ops stand here
(torchvision/csrc/ops/*.cpp, 0.28). The models of torchaudio need none of its compiled ops.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

_ROI = "Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SIZES = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_DEFORM = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w,"
    " SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups,"
    " bool use_mask"
)
_SCHEMAS = (
    "_cuda_version() -> int",
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align(Tensor input, {_ROI}, int sampling_ratio, bool aligned) -> Tensor",
    f"qroi_align(Tensor input, {_ROI}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool(Tensor input, {_ROI}) -> (Tensor, Tensor)",
    f"ps_roi_align(Tensor input, {_ROI}, int sampling_ratio) -> (Tensor, Tensor)",
    f"ps_roi_pool(Tensor input, {_ROI}) -> (Tensor, Tensor)",
    f"_roi_align_backward(Tensor grad, {_ROI}, {_SIZES}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_pool_backward(Tensor grad, {_ROI.replace('rois,', 'rois, Tensor argmax,')}, {_SIZES}) -> Tensor",
    f"_ps_roi_align_backward(Tensor grad, {_ROI.replace('rois,', 'rois, Tensor channel_mapping,')},"
    f" int sampling_ratio, {_SIZES}) -> Tensor",
    f"_ps_roi_pool_backward(Tensor grad, {_ROI.replace('rois,', 'rois, Tensor channel_mapping,')}, {_SIZES}) -> Tensor",
    f"deform_conv2d({_DEFORM}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_DEFORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
_KEPT: list[torch.library.Library] = []


def import_compiled() -> None:
    """Import torchvision and torchaudio, whether or not their compiled libraries can be loaded."""
    load, find, failed = torch.ops.load_library, Path.glob, []

    def tolerant(path: Any) -> None:
        try:
            load(path)
        except OSError:
            if not failed:
                _define()
            failed.append(path)

    def without_compiled(folder: Path, pattern: str, *more: Any, **options: Any) -> Any:
        return () if pattern.startswith("_torchaudio") else find(folder, pattern, *more, **options)

    with patch.object(torch.ops, "load_library", tolerant):
        import torchvision  # noqa: F401
    if failed:
        for name, (backward, setup) in _GRADIENTS.items():
            with warnings.catch_warnings():  # torch warns that an empty gradient is replaced
                warnings.simplefilter("ignore")
                torch.library.register_autograd(f"torchvision::{name}", backward, setup_context=setup)
    with patch.object(Path, "glob", without_compiled) if failed else nullcontext():
        import torchaudio  # noqa: F401


def _define() -> None:
    """Torchvision's schemas."""
    library = torch.library.Library("torchvision", "DEF")
    _KEPT.append(library)
    for schema in _SCHEMAS:
        library.define(schema)
    library.impl("_cuda_version", lambda: -1, "CompositeExplicitAutograd")
    library.impl("nms", _nms, "CPU")
    library.impl("roi_align", _roi_align, "CPU")


def _nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """The boxes that overlap none of a higher score by more than the threshold, best first."""
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    waiting, kept = scores.argsort(descending=True).tolist(), []
    while waiting:
        best, *waiting = waiting
        kept.append(best)
        others = boxes[waiting]
        corners = torch.maximum(boxes[best, :2], others[:, :2]), torch.minimum(boxes[best, 2:], others[:, 2:])
        common = (corners[1] - corners[0]).clamp(min=0).prod(1)
        apart = common / (areas[best] + areas[waiting] - common) <= iou_threshold
        waiting = [box for box, keeps in zip(waiting, apart.tolist(), strict=True) if keeps]
    return torch.tensor(kept, dtype=torch.int64)


def _roi_align(
    data: torch.Tensor, rois: torch.Tensor, scale: float, height: int, width: int, samples: int, aligned: bool
) -> torch.Tensor:
    """Torchvision's own form in Python."""
    from torchvision.ops.roi_align import _roi_align as align

    return align(data, rois, scale, height, width, samples, aligned)


def _keep_roi(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    data, rois, *options = inputs
    extra = () if isinstance(output, torch.Tensor) else (output[1],)
    if extra:
        ctx.mark_non_differentiable(*extra)
    ctx.save_for_backward(rois, *extra)
    ctx.options, ctx.sizes = options, data.shape


def _roi_backward(name: str) -> Any:
    def backward(ctx: Any, gradient: torch.Tensor, *others: Any) -> tuple[Any, ...]:
        op = getattr(torch.ops.torchvision, name)
        scale, height, width, *rest = ctx.options
        between, after = ((), rest) if name == "_roi_align_backward" else (rest, ())
        found = op(gradient, *ctx.saved_tensors, scale, height, width, *between, *ctx.sizes, *after)
        return (found, *[None] * (1 + len(ctx.options)))

    return backward


def _keep_deform(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.options = inputs[5:]


def _deform_backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    found = torch.ops.torchvision._deform_conv2d_backward(gradient, *ctx.saved_tensors, *ctx.options)
    return (*found, *[None] * len(ctx.options))


_GRADIENTS = {
    **{name: (_roi_backward(f"_{name}_backward"), _keep_roi)
       for name in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool")},
    "deform_conv2d": (_deform_backward, _keep_deform),
}  # fmt: skip
