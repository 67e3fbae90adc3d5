"""CUDA's autocast policy on tensors that have no autocast of their own.

``meta`` tensors carry no autocast key and a CPU build disables ``torch.autocast("cuda")``; so the AutocastCPU key is
enabled for them, with CUDA's lists. The lists are as in ATen/autocast_mode.h (torch 2.11 to 2.13).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch

from memwall.core import compat
from memwall.hardware.torch_versions import TorchVersion

#: convolutions that pad by a word reach "convolution" on CUDA; the CPU has autocast kernels of their own for them
_LOWER_PRECISION = (
    "conv1d.padding", "conv2d.padding", "conv3d.padding",
    "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input",
    "convolution", "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear",
    "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot", "lstm_cell", "gru_cell", "rnn_tanh_cell",
    "rnn_relu_cell", "scaled_dot_product_attention", "lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input",
    "lstm.data", "gru.data", "rnn_tanh.data", "rnn_relu.data",
)  # fmt: skip

_FP32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss",
    "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss",
    "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d",
    "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)  # fmt: skip

#: In fp32 only when the caller gave no dtype.
_FP32_UNLESS_DTYPE = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
)  # fmt: skip

#: In the widest dtype among their arguments.
_PROMOTE = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
)  # fmt: skip

#: Joined the fp32 list in 2.12.
_FP32_LATER, _LATER = ("rms_norm",), (2, 12)

#: Devices whose autocast flags mirror CUDA's while the context is open.
_MIRRORS = ("cpu", "cuda")

_AUTOCAST = torch.amp.autocast_mode.autocast
_KEY = compat.DispatchKey.AutocastCPU
_KEYS = compat.DispatchKeySet(_KEY)


class CudaAutocast:
    """Context manager: while open, every ``torch.autocast`` acts as CUDA's would; :meth:`region` opens one itself.

    It stays open through backward, where a checkpoint runs its modules again in the regions that it remembers.

    Args:
        version: the version of torch that it acts as.
    """

    def __init__(self, version: TorchVersion) -> None:
        self._fp32 = _FP32 + (_FP32_LATER if version.number >= _LATER else ())
        self._library: torch.library.Library | None = None
        self._cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._stack: list[torch.dtype | None] = []
        self._cached: list[bool] = []
        self._flags: list[tuple[str, bool, torch.dtype]] = []
        self._patch: Any = None

    @property
    def state(self) -> torch.dtype | None:
        """The dtype that autocast is casting to now, or None."""
        return self._stack[-1] if self._stack else None

    def __enter__(self) -> CudaAutocast:
        policy = self

        def init(
            region: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None
        ) -> None:
            # torch's own would clear ``enabled`` where there is no GPU, and refuse the device type "meta"
            region.device = device_type
            setattr(region, compat.name_of("autocast_enabled"), enabled)
            setattr(region, compat.name_of("autocast_cache_enabled"), cache_enabled is not False)
            region.fast_dtype = dtype or (torch.bfloat16 if device_type == "cpu" else torch.float16)

        def enter(region: Any) -> Any:
            again = compat.backward_task() != -1
            if region.device == "cpu" and not again:  # says nothing about the GPU's tensors
                policy.push(policy.state)
            else:  # a checkpoint in backward knows no autocast of "meta", and restores what stood for the CPU
                fast_dtype = region.fast_dtype if compat.autocast_enabled(region) else None
                policy.push(fast_dtype, compat.autocast_cache_enabled(region))
            return region

        def leave(region: Any, *exc: Any) -> None:
            policy.pop()

        self._flags = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _MIRRORS]
        self._switch()
        self._patch = patch.multiple(_AUTOCAST, __init__=init, __enter__=enter, __exit__=leave)
        self._patch.start()
        return self

    def __exit__(self, *exc: object) -> None:
        while self._stack:
            self.pop()
        self._patch.stop()
        for device, enabled, dtype in self._flags:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        if self._library is not None:
            compat.destroy_library(self._library)
            self._library = None

    @contextlib.contextmanager
    def region(self, dtype: torch.dtype | None) -> Iterator[None]:
        """Run the body under autocast to ``dtype``; None leaves it to the model's own regions."""
        if dtype is not None:
            self.push(dtype)
        try:
            yield
        finally:
            if dtype is not None:
                self.pop()

    def push(self, dtype: torch.dtype | None, cached: bool = True) -> None:
        """Open a region that casts to ``dtype``, each weight once if ``cached``; None: one where autocast is off."""
        if dtype is not None and self._library is None:
            self._register()
        self._stack.append(dtype)
        self._cached.append(cached)
        self._switch()

    def pop(self) -> None:
        """Close the innermost region; the casts of weights are forgotten with the outermost, as torch does."""
        self._stack.pop()
        self._cached.pop()
        if not self._stack:
            self._cache.clear()
        self._switch()

    def _switch(self) -> None:
        """Set torch's flags to the current state, for code that queries them: a checkpoint, a model."""
        on = self.state is not None
        for device, _, dtype in self._flags:
            torch.set_autocast_enabled(device, on)
            torch.set_autocast_dtype(device, self.state or dtype)
        compat.include_dispatch_key(_KEY, on)

    def _register(self) -> None:
        library: Any = torch.library.Library("aten", "IMPL")
        self._library = library
        rules: list[tuple[tuple[str, ...], Callable[..., Any]]] = [
            (_LOWER_PRECISION, self._lower),
            (self._fp32, lambda op, args, kwargs: op(*_map(args, _to_fp32), **_map(kwargs, _to_fp32))),
            (_FP32_UNLESS_DTYPE, self._widen_unless_dtype),
            (_PROMOTE, self._promote),
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that CPU's own autocast kernels are overridden
            for names, rule in rules:
                for name in names:
                    kernel = _bind(name, rule)
                    if kernel is not None:
                        library.m.impl(name, "AutocastCPU", kernel, False)

    def _lower(self, op: Any, args: tuple, kwargs: dict, dtype: torch.dtype | None = None) -> Any:
        dtype = dtype or self.state or torch.float16
        return op(*_map(args, lambda t: self._cast(t, dtype)), **_map(kwargs, lambda t: self._cast(t, dtype)))

    def _widen_unless_dtype(self, op: Any, args: tuple, kwargs: dict) -> Any:
        given = kwargs.get("dtype") is not None or any(isinstance(a, torch.dtype) for a in args)
        tensor = args[0]
        if given or not (tensor.is_floating_point() and tensor.dtype in (torch.float16, torch.bfloat16)):
            return op(*args, **kwargs)
        return op(*args, **{**kwargs, "dtype": torch.float32})

    def _promote(self, op: Any, args: tuple, kwargs: dict) -> Any:
        seen: list[torch.dtype] = []
        _map((args, kwargs), lambda t: seen.append(t.dtype))
        return self._lower(op, args, kwargs, torch.float32 if torch.float32 in seen else None)

    def _cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if not tensor.is_floating_point() or tensor.dtype in (dtype, torch.float64):
            return tensor
        weight = tensor.is_leaf and tensor.requires_grad and tensor.dtype is torch.float32
        if not weight or not self._cached[-1]:
            return tensor.to(dtype)
        if id(tensor) not in self._cache:
            self._cache[id(tensor)] = (tensor, tensor.to(dtype))
        return self._cache[id(tensor)][1]


def _bind(name: str, rule: Callable[..., Any]) -> Callable[..., Any] | None:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
    if op is None:
        return None

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with compat.ExcludeDispatchKeyGuard(_KEYS):
            return rule(op, args, kwargs)

    return kernel


def _to_fp32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() and tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _map(tree: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)(_map(item, change) for item in tree)
    if isinstance(tree, dict):
        return {key: _map(item, change) for key, item in tree.items()}
    return tree
