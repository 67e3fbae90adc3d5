"""Liger-Kernel's tables: layers as one Triton kernel each, timed with L2 cleared (triton.testing.do_bench).

Forward passes of one Liger kernel, or of one or two PyTorch ops, are scored: their bytes follow from the table alone.
The others are modules to be traced: lab/benchmarks/liger_pairs.py compares them with the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from memwall.bench.accuracy.kinds import Record, Skip
from memwall.core.graph import ITEMSIZE
from memwall.ops import Cost
from memwall.ops import table_calls as calls
from memwall_lab.tables.base import Call, Table, gpu_named, size

_DTYPES = {"torch.bfloat16": "bfloat16", "torch.float16": "float16", "torch.float32": "float32"}
_Config = Mapping[str, Any]


def _streamed(read: int, written: int) -> Callable[[_Config, int, str], Cost]:
    """A Triton kernel that keeps its row on chip: each tensor of ``[M, x]`` is read or written once."""

    def build(config: _Config, x: int, dtype: str) -> Cost:
        elements = config["M"] * x
        return calls.stream(read * elements * ITEMSIZE[dtype], written * elements * ITEMSIZE[dtype], elements)

    return build


def _relu_squared(config: _Config, x: int, dtype: str) -> Cost:
    names = ("aten.relu.default", "aten.pow.Tensor_Scalar")
    relu, squared = (calls.elementwise(name, (config["M"], x), dtype, 1) for name in names)
    return relu + squared


#: (kernel, provider) -> the cost of its forward pass from (config, x, dtype)
_FORWARD: Mapping[tuple[str, str], Callable[[_Config, int, str], Cost]] = {
    ("rms_norm", "liger"): _streamed(1, 1),
    ("layer_norm", "liger"): _streamed(1, 1),
    ("fused_add_rms_norm", "liger_fused_add_rms_norm"): _streamed(2, 2),
    ("softmax", "liger"): _streamed(1, 1),
    # logits are read for their sum, and again for the gradient that overwrites them
    ("cross_entropy", "liger"): lambda c, x, dtype: calls.rows("softmax_block", (c["B"] * c["T"], x), dtype, 1, 1),
    ("cross_entropy", "huggingface"): lambda c, x, dtype: calls.cross_entropy(c["B"] * c["T"], x, dtype, 32),
    ("layer_norm", "huggingface"): lambda c, x, dtype: calls.layer_norm((c["M"], x), dtype),
    ("softmax", "torch"): lambda c, x, dtype: calls.softmax((c["M"], x), dtype),
    ("relu_squared", "torch"): _relu_squared,
}


def _op(record: Record) -> Call:
    if record["metric_name"] != "speed":
        raise Skip("it is a size in memory, not a time")
    return _call(record, record["kernel_provider"])


def _call(record: Record, provider: str) -> Call:
    kernel, mode = record["kernel_name"], record["kernel_operation_mode"]
    if mode != "forward" or (kernel, provider) not in _FORWARD:
        raise Skip(
            "a backward pass, a module or another kernel: lab/benchmarks/liger_pairs.py traces what it can of them"
        )
    gpu_named(record["gpu_name"])
    x = size(record, "x_value")
    try:
        config = json.loads(record["config"])
        sizes = {name: size(config, name) for name in ("B", "M", "T") if name in config}
        dtype = _DTYPES[config.get("dtype", "torch.float32")]
        cost = _FORWARD[kernel, provider](config | sizes, x, dtype)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise Skip("its config states no shape that is known") from None
    op_class = f"{kernel} {'fused' if provider.startswith('liger') else 'eager'}"
    shape = f"{kernel} {provider} {record.get('x_name', 'x')}={record['x_value']} {record['config']}"
    return Call(op_class=op_class, dtype=dtype, shape=shape, cost=cost, warm=0)


OPS = Table(
    "liger_fused_vs_unfused",
    "kernel_name kernel_provider kernel_operation_mode metric_name x_value median config gpu_name",
    _op, gpu="gpu_name", time="median",
)  # fmt: skip
PAIRS = Table(
    "liger_pairs",
    "kernel_name kernel_operation_mode gpu_name x_value config kernel_provider_fused median_fused",
    lambda record: _call(record, record["kernel_provider_fused"]), gpu="gpu_name", time="median_fused",
)  # fmt: skip
