"""Scans of transformers' models that go over time in Python, where only the shapes of their results are asked for.

What the step of a model with a state finds is left by a first call with as many tokens as the cache shall hold, of
which no op is recorded: a state has one shape whatever the tokens, so a few steps give it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest.mock import patch

import torch

from memwall.core import compat
from memwall.frontend.torch.process.loaded import modules_below

#: function of a model's module, or method of a class in it → the axis of time of the tensors that it takes and returns
_SCANS: Mapping[str, int] = {
    "mamba_selective_scan": 2, f"RecurrentGemmaRglru.{compat.name_of('recurrent_gemma_scan')}": 1
}  # fmt: skip
#: steps that are run in place of all; a single one would be a decoder's
_FEW = 2


@contextlib.contextmanager
def few_steps() -> Iterator[None]:
    """While open, a scan runs its first steps alone, and its result has room for all."""
    with contextlib.ExitStack() as stack:
        for module in modules_below("transformers.models"):
            for path, axis in _SCANS.items():
                owner, _, key = path.rpartition(".")
                holder = getattr(module, owner, None) if owner else module
                if holder is not None and key in vars(holder):
                    stack.enter_context(patch.object(holder, key, _shortened(vars(holder)[key], axis)))
        yield


def _shortened(scan: Callable[..., Any], axis: int) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        given = [each for each in (*args, *kwargs.values()) if _has_time(each)]
        steps = given[0].shape[axis]
        if steps <= _FEW:
            return scan(*args, **kwargs)

        def cut(value: Any) -> Any:
            return value.narrow(axis, 0, _FEW) if _has_time(value) and value.shape[axis] == steps else value

        found = scan(*map(cut, args), **{name: cut(value) for name, value in kwargs.items()})
        some, *state = found if isinstance(found, tuple) else (found,)
        whole = some.new_empty([*some.shape[:axis], steps, *some.shape[axis + 1 :]])
        return (whole, *state) if isinstance(found, tuple) else whole

    return run


def _has_time(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 3
