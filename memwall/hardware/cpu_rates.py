"""What a CPU's kernels reach: rates that no datasheet states and ``memwall calibrate`` measures.

One core has no other threads to hide latency: a kernel that evaluates a function on each element is limited by that
function long before it is limited by memory, and a convolution runs in another library than a matrix product.
:mod:`memwall.perfmodel.cpu` says which ops each name covers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: data caches, the nearest first
CACHES = ("l1", "l2", "l3")

#: products that do not run as a plain matrix product: rates in FLOP/s, of float32. A pointwise convolution has a
#: kernel of one element and stride 1, ``_batched`` from 16 images on, where torch hands it to oneDNN
#: (aten/src/ATen/native/Convolution.cpp, ``use_mkldnn``); a window is larger, strided by more than 1
PRODUCTS = (
    "pointwise_convolution", "pointwise_convolution_batched", "window_convolution", "strided_convolution",
    "depthwise_convolution", "attention",
)  # fmt: skip

#: kernels that evaluate more than an add or a multiply per element: rates in elements/s, of float32. What counts as
#: an element is said in :mod:`memwall.perfmodel.cpu`
KERNELS = (
    "exp", "log", "sqrt", "rsqrt", "sin", "pow", "erf", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh", "compare",
    "where", "dropout", "softmax", "log_softmax", "layer_norm", "batch_norm", "batch_norm_training", "variance",
    "max_pool", "gelu_backward", "softmax_backward", "layer_norm_backward", "batch_norm_backward",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cpu:
    """One CPU, as eager PyTorch uses ``threads`` of its cores."""

    threads: int
    #: bytes, and bytes/s of a triad that fits, by name of :data:`CACHES`
    cache_bytes: Mapping[str, int]
    cache_bytes_per_s: Mapping[str, float]
    #: FLOP/s by name of :data:`PRODUCTS`
    flop_per_s: Mapping[str, float]
    #: elements/s by name of :data:`KERNELS`
    elements_per_s: Mapping[str, float]
    #: extra seconds of a matrix product for operands in DRAM rather than in a cache, over the seconds in which DRAM
    #: delivers them: 0 where arithmetic hides all traffic, 1 where it hides none
    exposed_traffic: float = 0.0

    def rate_for(self, nbytes: int) -> float | None:
        """Bytes/s of the nearest cache that holds ``nbytes``; None where none does or its rate is unknown."""
        for name in CACHES:
            if nbytes <= self.cache_bytes.get(name, 0) and name in self.cache_bytes_per_s:
                return self.cache_bytes_per_s[name]
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, the tables in the order of the names above."""
        return {
            "threads": self.threads,
            "exposed_traffic": self.exposed_traffic,
            "cache_bytes": _ordered(self.cache_bytes, CACHES),
            "cache_bytes_per_s": _ordered(self.cache_bytes_per_s, CACHES),
            "flop_per_s": _ordered(self.flop_per_s, PRODUCTS),
            "elements_per_s": _ordered(self.elements_per_s, KERNELS),
        }


def _ordered(table: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: table[name] for name in names if name in table}
