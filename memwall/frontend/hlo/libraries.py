"""Calls of libraries: products of cuBLAS, convolutions and attention of cuDNN, sorts, and a program's own kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memwall.frontend.hlo.convolutions import Window, product_numbers
from memwall.frontend.hlo.module import HloArray, HloInstruction
from memwall.frontend.hlo.sheet import Node
from memwall.frontend.hlo.step import HloStep
from memwall.frontend.jax.views import transposed

#: what is done to a product by the library that computes it
_EPILOGUES = {"RELU": "max", "GELU": "erf", "SILU": "logistic", "kRelu": "max", "kElu": "exp", "kSigmoid": "logistic"}


def _library_dot(step: HloStep) -> Node:
    config = step.one.backend_config.get("gemm_backend_config", {})
    return _library(step, "dot_general", [0, 1], product_numbers(step.one), str(config.get("epilogue", "")))


def _library_convolution(step: HloStep) -> Node:
    config = step.one.backend_config.get("cudnn_conv_backend_config", {})
    of = {"Input": "input", "Filter": "weight"}
    backward = next((kind for mark, kind in of.items() if f"Backward{mark}" in target_of_call(step.one)), "")
    forward = {"": (0, 1, -1), "input": (-1, 1, 0), "weight": (0, -1, 1)}[backward]
    three = [step.results[0] if number < 0 else step.array(number) for number in forward]
    window = Window.of(step.one, three)
    if backward:
        window, order = window.backward(backward)
        operands = [forward[number] for number in order]
        return _library(step, "conv_general_dilated", operands, window.attributes(), "")
    activation = str(config.get("activation_mode", ""))
    return _library(step, "conv_general_dilated", [0, 1], window.attributes(), activation)


def _library(step: HloStep, name: str, operands: Sequence[int], attributes: Mapping[str, Any], epilogue: str) -> Node:
    """A library's product, with what it adds to it and does to the sum, which it may keep too (``AUX``). Its scratch
    memory is not written, and a factor is no operand of a sum."""
    result, *scratch = step.results
    made = step.write(name, step.values(operands), ("lhs", "rhs"), attributes, [result])
    for number in range(2, len(step.operands)):
        if isinstance(node := step.operands[number], int) and isinstance(made, int) and step.array(number).shape:
            made = step.write("add", [made, node], ("x", "y"), results=[result])
    kept: list[Node] = []
    if "AUX" in epilogue and isinstance(made, int):
        kept = [step.write("copy", [made], ("x",), results=[scratch.pop(0)])]
    for mark, activation in _EPILOGUES.items():
        if mark in epilogue and isinstance(made, int):
            made = step.write(activation, [made], ("x",), results=[result])
    if isinstance(step.one.shape, HloArray):
        return made
    unwritten = [step.to.new(array) for array in scratch]
    step.to.left.update(unwritten)
    return (made, *kept, *unwritten)


#: operands of a gradient of attention, before its bias and forward's result
_GRADIENT = ("query", "key", "value", "logsumexp", "grad_out")


def _attention(step: HloStep) -> Node:
    """Attention by cuDNN, or its gradient: operands are [batch, length, heads, size], or with heads before length."""
    config = step.one.backend_config.get("cudnn_fmha_backend_config", {})
    numbers = config.get("bmm1_dot_dimension_numbers") or config["bmm2_grad_gemm2_dot_dimension_numbers"]
    heads = int(numbers["lhs_batch_dimensions"][1])
    is_backward = "Backward" in target_of_call(step.one)
    values, names = [], []
    for number, node in enumerate(step.operands):
        if not isinstance(node, int):
            continue
        array = step.array(number)
        is_like_query = len(array.shape) == 4 and heads == 2 and (number < 3 or array.shape == step.array(0).shape)
        view = transposed(step.to.spec(node), (0, 2, 1, 3)) if is_like_query else None
        values.append(step.to.view(node, *view) if view else node)
        known = _GRADIENT if is_backward else _GRADIENT[:3]
        is_out = is_backward and array.shape == step.array(0).shape
        names.append(known[number] if number < len(known) else "out" if is_out else "attn_bias")
    *results, scratch = step.results
    made = [step.to.new(array) for array in results]
    said: dict[str, Any] = {"is_causal": "CAUSAL" in str(config.get("mask_type", ""))}
    if window := int(config.get("sliding_window_length", 0)):
        said["window_size_left"] = window - 1
    name = f"aten._scaled_dot_product_cudnn_attention{'_backward' * is_backward}"
    step.to.op(name, values, made, arguments=names, attributes=said)
    unwritten = step.to.new(scratch)
    step.to.left.add(unwritten)
    return (*made, unwritten)


def target_of_call(one: HloInstruction) -> str:
    """The function that a custom call names."""
    return one.attributes.get("custom_call_target", "").strip('"')


def top_k(step: HloStep) -> Node:
    """The largest of each row, and their places."""
    return step.write("top_k", step.values([0]), ("operand",), {"k": step.results[0].shape[-1]})


#: targets of a program's own kernels
OWN = frozenset(("tpu_custom_call", "__gpu$xla.gpu.triton", "triton_kernel_call", "mosaic_gpu_v2", "mosaic_gpu"))
#: beginning of a target → its rule
LIBRARIES: Mapping[str, Callable[[HloStep], Node]] = {
    "ConcatBitcast": lambda step: step.write("concatenate", step.values(), ("operands",) * 64),
    "__cublas$": _library_dot,
    "__cudnn$conv": _library_convolution,
    "__cudnn$fmha": _attention,
    "__cub$DeviceRadixSort": lambda step: step.write("sort", step.values(), ("operand",) * 8, {"dimension": -1}),
    "__gpu$TopK": top_k,
    "TopK": top_k,
}
