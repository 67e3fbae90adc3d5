"""Operators that take Python functions, as the plain PyTorch that eager execution runs in their place: ``torch.cond``,
``while_loop``, ``scan``, ``map``, ``associative_scan`` and ``flex_attention``, which compiled code runs as one kernel
of the blocks that its mask keeps."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.attention import flex_attention

from memwall.core import compat
from memwall.frontend.torch.dispatch.cuda_forms import Opaque, OpaqueCall
from memwall.frontend.torch.dispatch.recorder import Recorder
from memwall.frontend.torch.process import cuda_answers
from memwall.ops.flex import FLEX


def _dense(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """An operator as it runs without a compiler."""
    return operator.py_kernels[compat.DispatchKey.CompositeExplicitAutograd](*args, **kwargs)


def _scan(operator: Any, combine_fn: Any, init: Any, xs: Any, additional_inputs: Any = ()) -> Any:
    """As ``_dense``, which checks that no mode watches."""
    return compat.generic_scan(combine_fn, init, xs, additional_inputs=additional_inputs)


#: operators that repeat a function → the Python loop that they are
_LOOPS = {
    type(operator): _dense for operator in (compat.while_loop_op, compat.map_impl, compat.associative_scan_op)
} | {type(compat.scan_op): _scan}


@contextlib.contextmanager
def plain_forms(
    warn: Callable[[str], None],
    recorder: Recorder | None = None,
    note: Callable[[str], None] = lambda assumed: None,
    compiled: bool = False,
) -> Iterator[None]:
    """While open, ``torch.cond`` calls a branch, loops are loops and ``flex_attention`` computes whole scores, as
    without ``torch.compile``; ``warn`` is called once with what either assumes. With a ``recorder`` a call of
    ``flex_attention`` from compiled code, or any where all is ``compiled``, is recorded as its kernel; ``note`` is
    called with what that assumes."""
    say, note = cache(warn), cache(note)

    def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
        return true_fn(*operands) if pred else false_fn(*operands)

    def flex(query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, scale: float, options: Any) -> Any:
        if recorder is not None and (compiled or is_compiled()):
            return record_flex(recorder, note, (query, key, value), block_mask, options)
        say(
            "flex_attention is counted as eager PyTorch runs it: unfused, all scores computed, masked or not; compile"
            " the model or the function, or profile with --policy inductor alone"
        )
        found = compat.math_attention(query, key, value, score_mod, block_mask, scale, options)
        return (*found, None)[:3]

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(torch, "cond", cond))
        for kind, plain in _LOOPS.items():
            stack.enter_context(patch.object(kind, "__call__", plain))
        forms: dict[str, Any] = {
            compat.name_of("flex_validate_device"): lambda *tensors: None,
            "flex_attention_hop": flex,
            compat.name_of("flex_compile_debug"): True,
        }
        stack.enter_context(patch.multiple(flex_attention, **forms))
        yield


# -- flex_attention as torch.compile makes it --------------------------------------------------------------------------

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
