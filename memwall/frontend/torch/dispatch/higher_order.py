"""Operators that take Python functions, as the plain PyTorch that eager execution runs in their place: ``torch.cond``,
``while_loop``, ``scan``, ``map``, ``associative_scan`` and ``flex_attention``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.attention import flex_attention

from memwall.core import compat
from memwall.frontend.torch.dispatch.flex import is_compiled, record_flex
from memwall.frontend.torch.dispatch.recorder import Recorder


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
