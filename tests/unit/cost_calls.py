"""Builds calls for the cost tests without torch: every tensor lies in a storage of its own."""

from memwall.core.graph import Pipe, TensorSpec, contiguous
from memwall.ops.base import Call, Cost
from memwall.ops.registry import cost_of

TENSOR_BF16 = Pipe("tensor", "bfloat16")
TF32 = Pipe("tensor", "tf32")
TENSOR_FP32 = Pipe("tensor", "float32")  # the vector engine everywhere but on AMD
VECTOR = Pipe("vector", "float32")


def spec(*shape, dtype="bfloat16"):
    return contiguous(shape, dtype)


def expanded(shape, strides, dtype="bfloat16"):
    return TensorSpec(tuple(shape), tuple(strides), dtype)


def call(name, inputs, outputs, **attributes):
    """``inputs``: schema arguments in schema order, each with a spec or a list of specs, as pairs or a dict."""
    pairs = inputs.items() if isinstance(inputs, dict) else inputs
    flat = [(name, s) for name, given in pairs for s in (given if isinstance(given, list) else [given])]
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    specs = tuple(s for _, s in flat)
    return Call(name, specs, tuple(n for n, _ in flat), tuple(outputs), attributes, sum(s.nbytes for s in specs),
                sum(s.nbytes for s in outputs))  # fmt: skip


def cost(name, inputs, outputs, **attributes) -> Cost:
    return cost_of(call(name, inputs, outputs, **attributes))
