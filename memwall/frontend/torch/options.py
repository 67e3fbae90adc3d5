"""What only torch's front end says of a trace: dtypes that a model can be cast to."""

from __future__ import annotations

import torch

from memwall.core.errors import UsageError
from memwall.frontend.program import NEWEST_BACKENDS, TraceOptions, TraceResult
from memwall.frontend.targets.inputs import SHORT_DTYPES

__all__ = ["DTYPES", "NEWEST_BACKENDS", "TraceOptions", "TraceResult", "parse_dtype"]

#: dtypes that a model can be cast to
DTYPES = ("float32", "bfloat16", "float16", "float64")


def parse_dtype(name: str) -> torch.dtype:
    """The dtype of a name such as ``bf16``.

    Raises:
        UsageError: no such dtype.
    """
    key = name.lower().removeprefix("torch.")
    key = SHORT_DTYPES.get(key, key)
    if key not in DTYPES:
        raise UsageError(f"no floating dtype named {name!r}; want float32, bfloat16, float16 or float64")
    dtype: torch.dtype = getattr(torch, key)
    return dtype
