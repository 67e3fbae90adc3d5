"""``flex_attention`` in a trace, recorded as the kernel that ``torch.compile`` makes of it, with the blocks that its
mask keeps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from memwall.core import compat
from memwall.frontend.torch.dispatch.cuda_forms import Opaque, OpaqueCall
from memwall.frontend.torch.dispatch.recorder import Recorder
from memwall.frontend.torch.process import cuda_answers
from memwall.ops.flex import FLEX

#: fewer queries than this run in the kernel for decoding (_use_flex_decoding)
_DECODING = 128
#: rows of blocks of which a mask without known numbers of blocks is computed
_SAMPLES = 64
_UNKNOWN = "flex_attention computes all blocks of its mask: which it keeps follows from values that are not known"


def is_compiled() -> bool:
    """Whether the call comes from a function that ``torch.compile`` has made, which runs eagerly in a trace."""
    frame, homes = sys._getframe(1), (compat.name_of("dynamo_eval_frame"), cuda_answers.__name__)
    while frame is not None and not (
        frame.f_code.co_name == "compile_wrapper" and frame.f_globals.get("__name__") in homes
    ):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def record_flex(
    recorder: Recorder, note: Callable[[str], None], tensors: Sequence[torch.Tensor], mask: Any, options: Any
) -> tuple[torch.Tensor | None, ...]:
    """The results of a compiled call: attention, the logarithms of the sums, and the maxima where they are asked for.

    Args:
        note: called with what is assumed of a mask.
        tensors: query [b, h, s, d], key [b, hk, t, d] and value [b, hk, t, dv].
        mask: ``BlockMask.as_tuple()``.
        options: ``kernel_options``.
    """
    query, key, value = tensors
    lengths = int(query.shape[2]), int(key.shape[2])
    pairs = computed_pairs(recorder, mask, *lengths)
    if pairs is None:
        note(_UNKNOWN)
    group = int(query.shape[1]) // int(key.shape[1])
    decoding = lengths[0] < _DECODING and group & (group - 1) == 0 and not options.get("FORCE_USE_FLEX_ATTENTION")
    rows, dtype = list(query.shape[:3]), query.dtype
    # the result lies as the query does (_permute_strides), the size of a head innermost
    axes = [*sorted(range(3), key=query.stride, reverse=True), 3]
    shape = [*rows, int(value.shape[3])]
    call = OpaqueCall(
        FLEX,
        (
            ("pairs", lengths[0] * lengths[1] if pairs is None else pairs),
            ("implementation", "flash4" if options.get("BACKEND") == "FLASH" else "triton"),
            *((("decoding", True),) if decoding else ()),
        ),
        ("query", "key", "value"),
        (([shape[axis] for axis in axes], dtype), (rows, torch.float32)),
        saved=(0, 1, 2),
        saved_outputs=((0, "out"), (1, "logsumexp")),
        gradient="grad_out",
    )
    made, sums = Opaque.apply(recorder, call, query, key, value)
    maxima = torch.empty_like(sums) if options.get("OUTPUT_MAX") else None
    return made.permute(*[axes.index(axis) for axis in range(4)]), sums, maxima


def computed_pairs(recorder: Recorder, mask: Any, queries: int, keys: int) -> int | None:
    """The pairs of a head in blocks that are computed, in the mean of all heads; None where it is not known."""
    kept, block = mask[2], (int(mask[-3]), int(mask[-2]))
    if block[0] >= queries and block[1] >= keys:
        return queries * keys
    counts = [tensor for tensor in (kept, mask[4]) if tensor is not None]
    values = [_known(recorder, tensor) for tensor in counts]
    sums = [int(each.sum()) for each in values if each is not None]
    found: float | None = sum(sums) / (kept.shape[0] * kept.shape[1])
    if len(sums) < len(counts):
        found = _sampled(recorder, mask[-1], block, (int(kept.shape[0]), int(kept.shape[1]), queries, keys))
    return None if found is None else min(round(found * block[0] * block[1]), queries * keys)


def _known(recorder: Recorder, tensor: torch.Tensor) -> torch.Tensor | None:
    """The values of a tensor where they are known and nothing is assumed for them."""
    if recorder.known is None:
        return None if tensor.is_meta else tensor
    value = None if recorder.known.assumed(tensor) else recorder.known.of(tensor)
    return None if value is None or value.is_meta else value


def _sampled(
    recorder: Recorder, mask_mod: Callable[..., Any], block: tuple[int, int], sizes: tuple[int, int, int, int]
) -> float | None:
    """The blocks of a head that a mask keeps, of rows of blocks that lie evenly over all; None where it asks for what
    is not known."""
    if recorder.known is None:
        return None
    batch, heads, queries, keys = sizes
    rows = -(-queries // block[0])
    total = batch * heads * rows
    chosen = range(total) if total <= _SAMPLES else [int((i + 0.5) * total / _SAMPLES) for i in range(_SAMPLES)]
    kept = 0
    with recorder.unrecorded(), torch.no_grad():
        key = torch.arange(keys, device=recorder.device)
        for number in chosen:
            sample, row = divmod(number, rows)
            query = torch.arange(row * block[0], min((row + 1) * block[0], queries), device=recorder.device)
            where = (torch.tensor(i, device=recorder.device) for i in divmod(sample, heads))
            seen = mask_mod(*where, query[:, None], key[None, :]).expand(len(query), keys)
            value = _known(recorder, seen)
            if value is None:
                return None
            kept += sum(int(part.any()) for part in value.split(block[1], 1))
    return kept * rows / len(chosen)
