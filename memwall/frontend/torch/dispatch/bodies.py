"""Operators with a Python body that PyTorch understands: recorded as the calls that they make, not as one call.

Those are ``torch.library.triton_op``, whose contract is that a compiler may look into it, the ops that torch writes so
itself (``torch.nn.attention.varlen``), and the launch of a Triton kernel as TorchDynamo captures it. Any other
``custom_op`` stays one call: its body may be anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memwall.core import compat
from memwall.ops.registry import find_row

#: the operator as which TorchDynamo captures the launch of a Triton kernel
_CAPTURED = "triton_kernel_wrapper_mutation"
#: namespaces of the ops that torch defines in Python for its users
_OF_TORCH = ("torch_attn",)


def body_of(operator: Any) -> Callable[..., Any] | None:
    """The function of an operator that is recorded as the calls that it makes; None: it is one call, or has a cost of
    its own (``@register_cost``)."""
    if operator is compat.out_dtype:
        return _typed
    if isinstance(operator, compat.HigherOrderOperator) and operator.name() == _CAPTURED:
        launch: Callable[..., Any] = compat.triton_kernel_wrapper_mutation_dense
        return launch
    if isinstance(operator, compat.HigherOrderOperator) or operator.namespace in ("aten", "prims"):
        return None
    name = compat.schema(operator).name
    if operator.namespace not in _OF_TORCH and name not in compat.triton_ops_to_kernels:
        return None
    definition = compat.OPDEFS.get(name)
    if definition is None or find_row(str(operator).removesuffix(".default")) is not None:
        return None
    return compat.init_fn(definition)


def _typed(operator: Any, dtype: torch.dtype, *args: Any) -> Any:
    """``out_dtype`` as on a GPU, where a product of int8 matrices is one kernel; all else casts what it is given."""
    mm = torch.ops.aten.mm.default
    if operator is mm and dtype is torch.int32 and all(tensor.dtype is torch.int8 for tensor in args):
        return compat.int_mm(*args)
    return compat.out_dtype_fallback(operator, dtype, *args)
