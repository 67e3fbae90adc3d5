"""Small questions about tensors, and plain values for what a graph keeps of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from memwall.core import compat
from memwall.core.errors import UsageError
from memwall.core.graph import is_channels_last

#: what ``__torch_dispatch__`` is of a class whose tensors stand for themselves
_PLAIN_DISPATCH = (compat.plain_torch_dispatch, torch.Tensor.__torch_dispatch__)


def flat_tensors(tree: Any) -> list[torch.Tensor]:
    """All tensors in nested lists and tuples, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree] if tree.layout is torch.strided else sparse_parts(tree)
    if isinstance(tree, (list, tuple)):
        return [t for item in tree for t in flat_tensors(item)]
    return []


@cache
def is_wrapper(kind: Any) -> bool:
    """Whether tensors of a class stand for others: quantised, distributed or nested ones; a compiler's fake tensors are
    themselves."""
    dispatch: Any = getattr(kind, "__torch_dispatch__", None)
    return dispatch not in _PLAIN_DISPATCH and not issubclass(kind, compat.FakeTensor)


def plain_parts(tensor: Any) -> list[torch.Tensor]:
    """The tensors that hold the data of a wrapper or a sparse tensor; a plain tensor itself. A UsageError for a wrapper
    that does not say what it holds."""
    kind: Any = type(tensor)
    if not is_wrapper(kind):
        return [tensor] if tensor.layout is torch.strided else sparse_parts(tensor)
    if not hasattr(kind, "__tensor_flatten__"):
        name = kind.__name__
        raise UsageError(
            f"a {name} is a tensor subclass that does not say what it holds: give {name} __tensor_flatten__ and"
            " __tensor_unflatten__"
        )
    held = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    return [part for item in held if isinstance(item, torch.Tensor) for part in plain_parts(item)]


def is_freed(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory was let go, as gathered parameters' is."""
    return bool(tensor.numel()) and not tensor.untyped_storage().nbytes()


def accumulator_hooks(tensor: torch.Tensor) -> list[Callable[..., Any]]:
    """What a program wants to be called when a leaf's gradient is added up, by hooks on the node that adds it
    (``p.expand_as(p).grad_fn.next_functions[0][0].register_hook``). A node tells its hooks to one more."""
    adds_up = tensor.requires_grad and not is_wrapper(type(tensor)) and not is_freed(tensor)
    if not adds_up or compat.is_view(tensor) or not tensor.is_leaf or tensor.is_inference():
        return []  # a tensor made under inference mode has no node
    node = torch.autograd.graph.get_gradient_edge(tensor).node
    own = node.register_hook(lambda *gradients: None)
    known = [hook for number, hook in (own.hooks_dict_ref() or {}).items() if number != own.id]
    own.remove()
    return known


def same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are the same elements of the same storage."""
    return (
        compat.cdata(a.untyped_storage()) == compat.cdata(b.untyped_storage())
        and a.storage_offset() == b.storage_offset()
        and (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
    )


def in_cudnn_layout(made: torch.Tensor, data: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A convolution's result as cuDNN lays it out, which ``meta`` does not: in channels_last where the data or the
    weight is (``cudnn_conv_suggest_memory_format`` in ATen's ConvUtils.h)."""
    if not (made.dim() in _LAST and any(is_channels_last(t.shape, t.stride()) for t in (data, weight))):
        return made
    return torch.empty(made.shape, dtype=made.dtype, device="meta", memory_format=_LAST[made.dim()])


_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def batch_norm(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *options: Any
) -> torch.Tensor:
    """``torch.batch_norm`` as on CUDA: cuDNN takes data in one piece, so that what is strided is copied first
    (``_batch_norm_impl_index`` in ATen's Normalization.cpp)."""
    by_cudnn = x.dim() >= 3 and weight is not None and bias is not None and x.dtype is not torch.bfloat16
    by_cudnn = by_cudnn and (x.dtype is not torch.float16 or weight.dtype is torch.float32)
    if by_cudnn and x.shape[0] <= (880_801 if training else 65_535):
        last = x.dim() in _LAST and x.is_contiguous(memory_format=_LAST[x.dim()])
        x = x if last else x.contiguous()
    made: torch.Tensor = compat.batch_norm_impl_index(x, weight, bias, mean, var, training, *options)[0]
    return made


def sparse_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that a sparse one is made of: what a kernel really touches."""
    if tensor.layout is torch.sparse_coo:
        return [compat.sparse_indices(tensor), compat.sparse_values(tensor)]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    raise UsageError(f"the model makes a {tensor.layout} tensor, which memwall cannot trace")


def sparse_of(tensor: torch.Tensor, parts: list[Any]) -> torch.Tensor:
    """A sparse tensor on ``meta`` like another one, made of its parts there."""
    options: dict[str, Any] = {"size": tensor.shape, "check_invariants": False}
    made: torch.Tensor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse_csr is in beta state
        if tensor.layout is torch.sparse_coo:
            made = torch.sparse_coo_tensor(*parts, is_coalesced=tensor.is_coalesced(), **options)
        else:
            made = torch.sparse_compressed_tensor(*parts, layout=tensor.layout, **options)
    return made


def check_stored(name: str, out: Any, args: tuple) -> None:
    """A UsageError for a sparse result on ``meta`` that stores nothing, of a tensor that does: torch's kernels there
    lose how much is stored."""
    if not out.is_meta or name.split(".")[1].endswith("_like") or _stored(out):
        return
    given = [t for t in args if isinstance(t, torch.Tensor) and t is not out and t.layout in _SPARSE]
    if any(map(_stored, given)):
        raise UsageError(
            f"{name} of a sparse tensor cannot be traced: torch does not say how many elements the result stores; call"
            " it where the inputs are made, or trace real tensors with --real"
        )


_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def _stored(tensor: torch.Tensor) -> bool:
    return bool(sparse_parts(tensor)[-1].numel())


def adds_sparse(args: tuple) -> bool:
    """Whether a sparse tensor goes into a dense one on ``meta``, which has no kernel to coalesce it first."""
    sparse = any(isinstance(t, torch.Tensor) and t.layout is torch.sparse_coo for t in args[1:])
    return sparse and args[0].is_meta


def stolen_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """A sparse gradient as ``.grad`` gets it: the same parts. A dispatch mode makes autograd clone it instead, and a
    clone on ``meta`` forgets how many elements there are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.11 says that it does not check invariants
        return torch.sparse_coo_tensor(
            compat.sparse_indices(tensor), compat.sparse_values(tensor), tensor.shape, check_invariants=False
        )


def check_product(operands: tuple[str, ...], names: list[str], tensors: list[torch.Tensor]) -> None:
    """A RuntimeError, as on a device, for a product that no CUDA kernel takes: its operands differ in dtype, or are
    neither floating nor complex."""
    left, right = (next((t for n, t in zip(names, tensors, strict=True) if n == wanted), None) for wanted in operands)
    if left is None or right is None:
        return
    a, b = dtype_name(left.dtype), dtype_name(right.dtype)
    if a != b:
        raise RuntimeError(  # a TypeError would vanish inside the @ operator
            f"{operands[0]} is {a} and {operands[1]} is {b}: the operands of a matmul must have one dtype"
        )
    if not (left.is_floating_point() or left.is_complex()) or a.startswith("float8"):
        raise RuntimeError(f"CUDA has no matmul or convolution of {a} tensors")


def dtype_name(dtype: torch.dtype | str) -> str:
    """``float16`` for ``torch.float16``."""
    return str(dtype).removeprefix("torch.")


def tf32_allowed(switch: str) -> bool:
    """Whether fp32 products may run in TF32, by torch's own switches (off for matmul, on for cuDNN by default)."""
    if switch == "matmul":
        return bool(torch.backends.cuda.matmul.allow_tf32)
    return bool(torch.backends.cudnn.allow_tf32)


def freeze(value: Any) -> Any:
    """An attribute as JSON can hold it: numbers, strings, tuples of them; what is not finite becomes text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, (int, torch.SymInt)):
        return int(value)
    if isinstance(value, (float, torch.SymFloat)):
        number = float(value)
        return number if math.isfinite(number) else str(number)
    if isinstance(value, (list, tuple)):
        return tuple([freeze(v) for v in value])
    return str(value)
