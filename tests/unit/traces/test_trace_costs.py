"""A trace's ops as costs: FLOPs, bytes and results by hand, against torch, and against what real GPUs measured."""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from memwall.core.errors import Unsupported
from memwall.hardware.lookup import load_gpu
from memwall.ops.schemas import parse_value
from memwall.perfmodel.roofline import WALLS
from memwall.report.kinds import render
from memwall.traces.analysing import analyse
from memwall.traces.analysis import UNKNOWN, TraceAnalysis
from memwall.traces.attained import TraceRow
from memwall.traces.calls import Hints, list_dtype, read_call
from memwall.traces.costs import LINK
from memwall.traces.page import TraceReport
from memwall.traces.reading import gpu_name, read_trace
from memwall.traces.records import TracedOp
from memwall.traces.triton import flops_per_element
from tests.unit.traces_fixture import Event, annotation, call, kernel, op, real_trace, real_traces, write

A100 = load_gpu("a100-80gb-sxm")  # 312 TFLOP/s float16, 2.039 TB/s, 40 MiB of L2 at 7.22 TB/s
BF16, F32, I64 = "c10::BFloat16", "float", "long int"
TRACES = real_traces()


def analysed(tmp_path: Path, events: list[Event], gpu: Any = A100) -> TraceAnalysis:
    return analyse(read_trace(write(tmp_path, events)), gpu)


@cache
def real(path: Path) -> TraceAnalysis:
    """A real trace on the GPU that it names."""
    trace = real_trace(path)
    return analyse(trace, load_gpu(gpu_name(trace) or ""))


def lone(
    tmp_path: Path, name: str, dims: list, types: list, concrete: list | None = None, strides: list | None = None,
    kernels: tuple[str, ...] = ("k",), dur: float = 1000.5, grid: list | None = None, **args: Any,
) -> TraceRow:  # fmt: skip
    """The row of one op that launches these kernels."""
    recorded: dict[str, Any] = {"Input__Dims": dims, "Input__type": types, **args}
    if concrete is not None:
        recorded["Concrete__Inputs"] = concrete
    if strides is not None:
        recorded["Input__Strides"] = strides
    events = [op(name, 0, 100, **recorded)]
    for i, kernel_name in enumerate(kernels):
        events.append(call("cudaLaunchKernel", 1 + i, 0.5, 100 + i))
        events.append(kernel(kernel_name, 10 + 2000 * i, dur, 100 + i, grid=grid or [1, 1, 1]))
    (row,) = analysed(tmp_path, events).rows
    return row


def scalars(*values: str) -> list[str]:
    return list(values)


#: name, dims, types, concrete values, kernels -> FLOPs, bytes read, bytes written; counted by hand
COUNTED = {
    "addmm": (
        "aten::addmm", [[32], [64, 16], [16, 32], [], []], [BF16] * 3 + ["Scalar"] * 2, ["", "", "", "1", "1"], ["k"],
        2 * 64 * 32 * 16, 2 * (32 + 64 * 16 + 16 * 32), 2 * 64 * 32,
    ),
    "addmm, beta 0: the addend is not read": (
        "aten::addmm", [[32], [64, 16], [16, 32], [], []], [BF16] * 3 + ["Scalar"] * 2, ["", "", "", "0", "1"], ["k"],
        2 * 64 * 32 * 16, 2 * (64 * 16 + 16 * 32), 2 * 64 * 32,
    ),
    "mm into a given result": ("aten::mm", [[64, 16], [16, 32], [64, 32]], [BF16] * 3, ["", "", ""], ["k"],
        2 * 64 * 32 * 16, 2 * (64 * 16 + 16 * 32), 2 * 64 * 32),
    "bmm": ("aten::bmm", [[4, 8, 16], [4, 16, 2]], [F32] * 2, None, ["k"],
        2 * 4 * 8 * 16 * 2, 4 * (4 * 8 * 16 + 4 * 16 * 2), 4 * 4 * 8 * 2),
    "scaled fp8 product with a bfloat16 result": ("aten::_scaled_mm", [[64, 16], [16, 32], [], [], [], [], [], []],
        ["c10::Float8_e4m3fn"] * 2 + [F32] * 2 + ["", "", "Scalar", "Scalar"],
        ["", "", "", "", "", "", "15", "False"], ["k"],
        2 * 64 * 32 * 16, 64 * 16 + 16 * 32 + 8, 2 * 64 * 32),
    "convolution, stride 2": ("aten::cudnn_convolution", [[8, 3, 32, 32], [16, 3, 3, 3], [], [], [], [], [], [], []],
        [BF16, BF16, *["ScalarList"] * 3, *["Scalar"] * 4],
        ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1", "False", "False", "True"], ["k"],
        2 * 8 * 16 * 16 * 16 * 27, 2 * (8 * 3 * 32 * 32 + 16 * 27), 2 * 8 * 16 * 16 * 16),
    "1x1 convolution, stride 2: three of four places are not met": (
        "aten::cudnn_convolution", [[8, 4, 32, 32], [16, 4, 1, 1], [], [], [], [], [], [], []],
        [BF16, BF16, *["ScalarList"] * 3, *["Scalar"] * 4],
        ["", "", "[0, 0]", "[2, 2]", "[1, 1]", "1", "False", "False", "True"], ["k"],
        2 * 8 * 16 * 16 * 16 * 4, 2 * (8 * 4 * 31 * 31 + 16 * 4) - 2 * 8 * 4 * (31 * 31 - 16 * 16),
        2 * 8 * 16 * 16 * 16,
    ),
    "gradient of a convolution, of the weight alone": (
        "aten::convolution_backward", [[8, 16, 16, 16], [8, 3, 32, 32], [16, 3, 3, 3]] + [[]] * 8,
        [BF16] * 3 + ["ScalarList"] * 4 + ["Scalar", "ScalarList", "Scalar", "ScalarList"],
        ["", "", "", "[0]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[False, True, False]"], ["a", "b"],
        2 * 8 * 16 * 16 * 16 * 27, 2 * (8 * 16 * 16 * 16 + 8 * 3 * 32 * 32), 2 * 16 * 27,
    ),
    "causal attention, 3 queries of 3 keys: 6 pairs": ("aten::_flash_attention_forward", [[2, 3, 4, 8]] * 3 + [[]] * 12,
        [BF16] * 3 + ["", "", *["Scalar"] * 6, "", "", "", ""],
        ["", "", "", "", "", "3", "3", "0.", "True", "False", "0.125", "", "", "", ""], ["k"],
        2 * 2 * 4 * 6 * (8 + 8), 2 * 3 * 2 * 3 * 4 * 8, 2 * 2 * 3 * 4 * 8 + 4 * 2 * 4 * 3),
    "flash_attn's own op": ("flash_attn::_flash_attn_forward", [[2, 3, 4, 8]] * 3 + [[]] * 8,
        [BF16] * 3 + ["Scalar"] * 6 + ["", "Scalar"],
        ["", "", "", "0.", "0.125", "False", "-1", "-1", "0.", "", "False"], ["k"],
        2 * 2 * 4 * 9 * (8 + 8), 2 * 3 * 2 * 3 * 4 * 8, 2 * 2 * 3 * 4 * 8 + 4 * 2 * 4 * 3),
    "layer norm: 7 an element, two moments a row": (
        "aten::native_layer_norm", [[6, 8], [], [8], [8], []], [BF16, "ScalarList", BF16, BF16, "Scalar"],
        ["", "[8]", "", "", "1e-05"], ["k"], 7 * 48, 2 * (48 + 16), 2 * 48 + 2 * 4 * 6,
    ),
    "softmax": (
        "aten::_softmax", [[6, 8], [], []], [F32, "Scalar", "Scalar"], ["", "-1", "False"], ["k"], 240, 192, 192,
    ),
    "a broadcast sum": (
        "aten::add", [[6, 8], [8], []], [F32, F32, "Scalar"], ["", "", "1"], ["k"], 48, 4 * (48 + 8), 4 * 48,
    ),
    "in place, by a number": ("aten::mul_", [[6, 8], []], [F32, "Scalar"], ["", "0.5"], ["k"], 48, 192, 192),
    "a comparison: no FLOP, a byte each": ("aten::gt", [[6, 8], []], [F32, "Scalar"], ["", "0"], ["k"], 0, 192, 48),
    "a cast": ("aten::copy_", [[6, 8], [6, 8], []], [BF16, F32, "Scalar"], ["", "", "False"], ["k"], 0, 192, 96),
    "rows of an embedding": (
        "aten::embedding", [[1000, 8], [2, 3], [], [], []], [BF16, I64, "Scalar", "Scalar", "Scalar"],
        ["", "", "-1", "False", "False"], ["k"], 0, 2 * 6 * 8 + 8 * 6, 2 * 6 * 8,
    ),
    "a list, its dtype from the kernel": ("aten::cat", [[[4, 8], [2, 8]], []], ["TensorList", "Scalar"], ["", "0"],
        ["void at::native::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 2>(x)"],
        0, 2 * 48, 2 * 48),
    "a multi-tensor step": (
        "aten::_foreach_add_", [[[4, 8], [3]], [[4, 8], [3]], []], ["TensorList", "TensorList", "Scalar"],
        ["", "", "-0.1"], ["multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor<float, 2, 2> >"],
        2 * 35, 2 * 4 * 35, 4 * 35,
    ),
    "indices that were not recorded: at least 2 blocks and an element": (
        "aten::index", [[5000, 8], []], [F32, ""], ["", ""],
        ["void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<x>>(long)"],
        0, 4 * 1025, 4 * 1025,
    ),
    "a sum over one axis": (
        "aten::sum", [[6, 8], [], [], []], [F32, "ScalarList", "Scalar", ""], ["", "[1]", "False", ""], ["k"],
        48, 192, 24,
    ),
    "vLLM's RMS norm into a given result": (
        "_C::rms_norm", [[6, 8], [6, 8], [8], []], [BF16, BF16, BF16, "Scalar"], ["", "", "", "1e-06"], ["k"],
        4 * 48, 2 * (48 + 8), 2 * 48,
    ),
    "vLLM's gate: exp, add, divide, multiply; and the product": (
        "_C::silu_and_mul", [[6, 8], [6, 16]], [BF16, BF16], ["", ""], ["k"], (4 + 1) * 48, 2 * 96, 2 * 48,
    ),
    "the same by gelu's tanh: 9, and the product": (
        "_C::gelu_tanh_and_mul", [[6, 8], [6, 16]], [BF16, BF16], ["", ""], ["k"], (9 + 1) * 48, 2 * 96, 2 * 48,
    ),
    "gelu by erf: 5, and the product": (
        "sgl_kernel::gelu_and_mul", [[6, 8], [6, 16]], [BF16, BF16], ["", ""], ["k"], (5 + 1) * 48, 2 * 96, 2 * 48,
    ),
    "the gate of gpt-oss: alpha x, sigmoid 3, x by it, up + 1, the product": (
        "_C::swigluoai_and_mul", [[6, 8], [6, 16], [], []], [BF16, BF16, "Scalar", "Scalar"],
        ["", "", "1.702", "7.0"], ["k"], (1 + 3 + 1 + 1 + 1) * 48, 2 * 96, 2 * 48,
    ),
    "an activation by itself: 1.702 x, sigmoid 3, the product": (
        "_C::gelu_quick", [[6, 8], [6, 8]], [BF16, BF16], ["", ""], ["k"], (1 + 3 + 1) * 48, 2 * 48, 2 * 48,
    ),
    "rotary embedding, in place": (
        "_C::rotary_embedding", [[6], [6, 32], [6, 8], [], [100, 8], []], [I64, BF16, BF16, "Scalar", BF16, "Scalar"],
        ["", "", "", "8", "", "True"], ["k"], 3 * 6 * 40, 8 * 6 + 2 * 6 * 40, 2 * 6 * 40,
    ),
    "a range into a given result": (
        "aten::arange", [[], [], [], [10]], ["Scalar"] * 3 + [I64], ["0", "10", "1", ""], ["k"], 0, 0, 80,
    ),
    # by chance 4 (1 - (1/2)^6) = 3.9 of the experts are chosen: all 4 are read
    "a mixture of experts: 6 tokens to 2 of 4": (
        "vllm::outplace_fused_experts", [[6, 8], [4, 32, 8], [4, 8, 16], [6, 2], [6, 2]],
        [BF16, BF16, BF16, F32, "int"], ["", "", "", "", ""], ["up", "act", "down"],
        2 * 12 * (32 * 8 + 8 * 16), 2 * 48 + 2 * 4 * (32 * 8 + 8 * 16) + 4 * 12, 2 * 48,
    ),
    "aiter's fp8 product, [m, k] x [n, k]": ("aiter::gemm_a8w8", [[64, 16], [32, 16], [64, 1], [1, 32], []],
        ["c10::Float8_e4m3fnuz"] * 2 + [F32] * 2 + [""], ["", "", "", "", ""], ["k"],
        2 * 64 * 32 * 16, 96 * 16, 2 * 64 * 32),
    "torch's own names of dtypes, sizes of the tensors alone": (
        "aten::convolution", [[4, 8, 8, 8], [8, 16, 4, 4]], ["Float", "Float"],
        ["", "", "", "(2,2)", "(1,1)", "(1,1)", "True", "(0,0)", "1"], ["igemm_bwd_data_gtcx_nhwc_fp32"],
        2 * 4 * 8 * 64 * 16 * 16, 4 * (4 * 8 * 64 + 8 * 16 * 16), 4 * 4 * 16 * 16 * 16,
    ),
    "aiter's mixture, its experts not recorded": (
        "vllm::rocm_aiter_fused_moe", [[6, 8], [4, 32, 8], [4, 8, 16], [6, 2]], ["BFloat16"] * 3 + ["Float"],
        ["", "", "", ""], ["k"],
        2 * 12 * (32 * 8 + 8 * 16), 2 * 48 + 2 * 4 * (32 * 8 + 8 * 16) + 4 * 12, 2 * 48,
    ),
    "a product on ROCm with a bias": (
        "_rocm_C::wvSplitK", [[32, 16], [4, 16], [32], []], [BF16] * 3 + ["Scalar"], ["", "", "", "304"], ["k"],
        2 * 4 * 32 * 16, 2 * (32 * 16 + 4 * 16), 2 * 4 * 32,
    ),
    "the same before it took one": (
        "_rocm_C::wvSplitK", [[32, 16], [4, 16], []], [BF16] * 2 + ["Scalar"], ["", "", "304"], ["k"],
        2 * 4 * 32 * 16, 2 * (32 * 16 + 4 * 16), 2 * 4 * 32,
    ),
    "weights of 4 bits, 8 in a word": (
        "_C::awq_gemm", [[4, 64], [64, 4], [2, 32], [2, 4], []], ["c10::Half", "int", "c10::Half", "int", "Scalar"],
        ["", "", "", "", "8"], ["k"], 2 * 4 * 32 * 64, 2 * 4 * 64 + 4 * 64 * 4 + 2 * 64, 2 * 4 * 32,
    ),
    "weights of 4 bits, 2 in a byte": (
        "bitsandbytes::gemv_4bit", [[1, 64], [1024, 1], [], [32], [16], []], [BF16, "unsigned char", "", F32, F32, ""],
        ["", "", "[32, 64]", "", "", "64"], ["k"], 2 * 32 * 64, 2 * 64 + 1024 + 4 * 32 + 4 * 16, 2 * 32,
    ),
    "those weights unpacked": (
        "bitsandbytes::dequantize_4bit", [[1024, 1], [32], [], [], [], []], ["unsigned char", F32, "", "", "", ""],
        ["", "", "64", "nf4", "[32, 64]", "15"], ["k"], 2048, 1024 + 4 * 32, 2 * 2048,
    ),
    "rows quantised to 8 bits": (
        "fbgemm::quantize_fp8_per_row", [[6, 8], [], [], [], []], [BF16, "", "", "", ""], [""] * 5, ["k"],
        2 * 48, 2 * 48, 48,
    ),
    "FBGEMM's product of fp8": (
        "fbgemm::f8f8bf16_rowwise", [[4, 64], [32, 64], [4], [32], [], []],
        ["c10::Float8_e4m3fn", "c10::Float8_e4m3fn", F32, F32, "", "Scalar"], [""] * 5 + ["True"], ["k"],
        2 * 4 * 32 * 64, 4 * 64 + 32 * 64, 2 * 4 * 32,
    ),
    "xformers' flash attention": (
        "xformers_flash::flash_fwd", [[1, 16, 2, 8]] * 3 + [[]] * 12, [BF16] * 3 + [""] * 12,
        ["", "", "", "", "", "", "16", "16", "0.", "0.35", "False", "-1", "-1", "False", ""], ["flash_fwd"],
        4 * 2 * 16 * 16 * 8, 3 * 2 * 16 * 2 * 8, 2 * 16 * 2 * 8 + 4 * 2 * 16,
    ),
    "a norm to fp8 that adds the residual in place": (
        "_C::fused_add_rms_norm_static_fp8_quant", [[6, 8], [6, 8], [6, 8], [8], [1], []],
        ["c10::Float8_e4m3fn", BF16, BF16, BF16, F32, "Scalar"], [""] * 5 + ["1e-06"], ["k"],
        4 * (48 + 48), 2 * (48 + 48 + 8), 48 + 2 * 48,
    ),
    "groups of 4 to fp8": ("sgl_kernel::sgl_per_token_group_quant_fp8", [[6, 8], [6, 8], [6, 2], [], [], [], [], []],
        [BF16, "c10::Float8_e4m3fn", F32] + ["Scalar"] * 5, [""] * 3 + ["4", "1e-10", "-448.", "448.", "False"], ["k"],
        2 * (48 + 12), 2 * 48, 48 + 4 * 12),
    "the latent of a cache, to fp8": ("_C_cache_ops::concat_and_cache_mla", [[6, 16], [6, 4], [99, 2, 20], [6], [], []],
        [BF16, BF16, "unsigned char", I64, "", F32], [""] * 4 + ["fp8", ""], ["k"], 0, 2 * 6 * 20, 6 * 20),
    "aiter's attention on sequences of 3 and 3, causal: 2 * 6 pairs": (
        "aiter::mha_varlen_fwd", [[6, 4, 8], [6, 4, 8], [6, 4, 8], [3], [3], *[[]] * 17],
        [BF16] * 3 + ["int"] * 2 + ["Scalar"] * 12 + [""] * 5,
        ["", "", "", "", "", "3", "3", "0", "0.", "0.1", "0.", "False", "True", "-1", "-1", "True", "False"] + [""] * 5,
        ["k"], 2 * 2 * 4 * 6 * (8 + 8), 2 * 3 * 6 * 4 * 8 + 2 * 4 * 3, 2 * 6 * 4 * 8 + 4 * 4 * 6,
    ),
    "aiter's norm that adds the residual": (
        "aiter::rmsnorm2d_fwd_with_add", [[6, 8], [6, 8], [6, 8], [6, 8], [8], []], [BF16] * 5 + ["Scalar"],
        [""] * 5 + ["1e-06"], ["k"], 4 * (48 + 48), 2 * (48 + 48 + 8), 2 * (48 + 48),
    ),
    # by chance 8 (1 - (3/4)^6) = 6.6 of the 8 are chosen, a quarter of them here: 2 are read
    "2 of 8 experts: a quarter of the tokens' products": (
        "vllm::rocm_aiter_fused_moe", [[6, 8], [2, 32, 8], [2, 8, 16], [6, 2], [6, 2], [8]],
        [BF16] * 3 + [F32, "int", "int"], [""] * 6, ["k"],
        2 * 12 * (32 * 8 + 8 * 16) // 4, 2 * 48 + 2 * 2 * (32 * 8 + 8 * 16) + 4 * 12, 2 * 48,
    ),
    "apex's layer norm": ("FusedLayerNormAffineFunction", [[6, 8], [8], [8], [], []], [BF16, BF16, BF16, "", "Scalar"],
        ["", "", "", "", "1e-05"], ["k"], 5 * 48, 2 * (48 + 16), 2 * 48),
    "a matmul of Transformer Engine, in FP8: [32, 16] transposed with [6, 16], and a bias": (
        "tex_ts::te_gemm_ts", [[32, 16], [3], [], [], [], [6, 16], [3], [], [], [], [6, 32], [0], [], [0], [32], [],
         [0], [], [4096], [], [], []],
        ["unsigned char", F32, *["Scalar"] * 3, "unsigned char", F32, *["Scalar"] * 3, BF16, F32, "Scalar", F32, BF16,
         "Scalar", BF16, "Scalar", "unsigned char", *["Scalar"] * 3],
        ["", "", "1", "7", "1", "", "", "0", "7", "0", "", "", "6", "", "", "6", "", "0", "", "4096", "0", "1"], ["k"],
        2 * 6 * 32 * 16, 32 * 16 + 6 * 16 + 2 * 32, 2 * 6 * 32),
    "its gradient of a weight, summed into what is there: [6, 16] with [32, 6], and the bias's": (
        "tex_ts::te_gemm_ts", [[6, 16], [0], [], [], [], [6, 32], [0], [], [], [], [32, 16], [0], [], [0], [32], [],
         [0], [], [4096], [], [], []],
        [BF16, F32, *["Scalar"] * 3, BF16, F32, *["Scalar"] * 3, F32, F32, "Scalar", F32, BF16, "Scalar", BF16,
         "Scalar", "unsigned char", *["Scalar"] * 3],
        ["", "", "0", "6", "0", "", "", "0", "6", "1", "", "", "4", "", "", "6", "", "1", "", "4096", "1", "0"], ["k"],
        2 * 6 * 32 * 16, 2 * 6 * 48 + 4 * 512, 4 * 512 + 2 * 32),
    "its layer norm to FP8": ("tex_ts::layernorm_fwd_fp8_inf_ts", [[6, 8], [8], [8], [], [3], [1, 3], [3], [], []],
        [BF16] * 3 + ["Scalar"] + [F32] * 3 + ["Scalar"] * 2, ["", "", "", "1e-05", "", "", "", "0", "7"], ["k"],
        7 * 48, 2 * (48 + 16), 48),
    "linear attention's gated delta rule: chunks of 64 and 36 tokens, of 2080 and 666 pairs": (
        "ChunkGatedDeltaRuleFunction", [*[[1, 100, 2, 8]] * 2, [1, 100, 2, 16], [1, 100, 2], [1, 100, 2], *[[]] * 5],
        [BF16] * 3 + [F32, BF16, "Scalar", "", "Scalar", "", "Scalar"], [""] * 5 + ["0.35", "", "False", "", "True"],
        ["k"], 2 * (2 * 2746 * (3 * 8 + 2 * 16) + 3 * 200 * 8 * 16), 2 * (1600 + 1600 + 3200) + 4 * 200 + 2 * 200,
        2 * 3200),
    "the same in pairs alone": ("ChunkGLAFunction", [*[[1, 3, 2, 8]] * 2, [1, 3, 2, 16], [1, 3, 2, 8], *[[]] * 4],
        [BF16] * 3 + [F32, "Scalar", "", "Scalar", ""], [""] * 4 + ["0.35", "", "False", ""], ["k"],
        2 * (2 * 6 * (8 + 16) + 2 * 6 * 8 * 16), 2 * (48 + 48 + 96) + 4 * 48, 2 * 96),
    "a step of the gated delta rule: 7 FLOP for each of 2 x 8 x 16 elements of the state": (
        "FusedRecurrentFunction", [*[[1, 1, 2, 8]] * 2, [1, 1, 2, 16], [1, 1, 2], [1, 1, 2], [], [1, 2, 8, 16], [], [],
         []], [BF16] * 3 + [F32, BF16, "Scalar", F32, "Scalar", "", "Scalar"],
        [""] * 5 + ["0.35", "", "True", "", "True"], ["k"], 7 * 2 * 8 * 16,
        2 * (16 + 16 + 32) + 4 * 2 + 2 * 2 + 4 * 256, 2 * 32 + 4 * 256),
    "and of gated linear attention, whose gates are for each key": (
        "FusedRecurrentFunction", [*[[1, 1, 2, 8]] * 2, [1, 1, 2, 16], [], [1, 1, 2, 8], *[[]] * 6],
        [BF16] * 3 + ["", F32, "", "Scalar", "", "Scalar", "Scalar", ""],
        [""] * 6 + ["0.35", "", "False", "False", ""], ["k"], 5 * 2 * 8 * 16, 2 * (16 + 16 + 32) + 4 * 16, 2 * 32),
}  # fmt: skip


@pytest.mark.parametrize("what", COUNTED)
def test_flops_and_bytes_by_hand(tmp_path: Path, what: str) -> None:
    name, dims, types, concrete, kernels, flops, read, write_ = COUNTED[what]
    grid = [3, 1, 1] if "index" in name else None
    row = lone(tmp_path, name, dims, types, concrete, kernels=tuple(kernels), grid=grid)
    assert (row.flops, row.read_bytes, row.write_bytes) == (flops, read, write_), row.reason
    assert row.wall in WALLS
    assert len(row.kernels) == len(kernels), "FLOPs count once for all kernels of an op"


def test_a_broadcast_input_counts_once_where_strides_were_recorded(tmp_path: Path) -> None:
    dims, types = [[1000, 8], [1000, 8], []], [F32, F32, "Scalar"]
    row = lone(tmp_path, "aten::mul", dims, types, ["", "", ""], [[8, 1], [0, 1], []])
    assert row.read_bytes == 4 * (8000 + 8)


def test_what_is_not_recorded_is_unknown_and_never_zero(tmp_path: Path) -> None:
    cases = {
        "aten::mm": ([], [], "shapes were not recorded"),
        "aten::add": ([[4, 4], [4, 4]], ["c10::qint8", "c10::qint8"], "dtype"),
        "aten::cat": ([[[4, 4], [4, 4]], []], ["TensorList", "Scalar"], "list"),
        "aten::mul": ([[4, 3], [4, 5]], [F32, F32], "broadcast"),
    }
    for name, (dims, types, why) in cases.items():
        row = lone(tmp_path, name, dims, types)
        assert (row.flops, row.read_bytes, row.bytes, row.bound_s, row.modeled_s) == (None,) * 5, name
        assert row.wall == UNKNOWN
        assert why in row.reason, (name, row.reason)


HEADS = [[6, 4, 8]] * 3
#: attention whose sequences' lengths nobody recorded: name, dims, types, concrete values
WITHOUT_LENGTHS = {
    "vllm, which keeps the cache": ("vllm::unified_attention_with_output", [[6, 4, 8], [6, 1, 8], [6, 1, 8], [6, 4, 8]],
                                    [BF16] * 4, [""] * 4),
    "a paged cache": (
        "_rocm_C::paged_attention", [[3, 4, 8], [3, 4, 1], [3, 4, 1], [3, 4, 1, 8], [3, 4, 8], [99, 4, 1, 16, 8],
         [99, 4, 8, 16], [], [], [3, 7], [3]],
        [BF16, F32, F32, BF16, BF16, BF16, BF16, "Scalar", "Scalar", "int", "int"], [""] * 7 + ["4", "0.1", "", ""]),
    "a paged cache in flash_attn": (
        "flash_attn::_flash_attn_varlen_forward",
        [[3, 4, 8], [999, 16, 4, 8], [999, 16, 4, 8], [3], [3], *[[]] * 10, [2, 50]],
        [BF16] * 3 + ["int"] * 2 + ["Scalar"] * 6 + ["", "Scalar", "", "", "int"],
        ["", "", "", "", "", "2", "40", "0.", "0.1", "True", "-1", "-1", "0.", "", "False", ""]),
    "two packed sequences, of 4 and 2": (
        "aiter::mha_varlen_fwd", [*HEADS, [3], [3], *[[]] * 17], [BF16] * 3 + ["int"] * 2 + ["Scalar"] * 12 + [""] * 5,
        [*[""] * 5, "4", "4", "0", "0.", "0.1", "0.", "False", "True", "-1", "-1", "True", "False", *[""] * 5]),
    "and their gradient": (
        "flash_attn::_flash_attn_varlen_backward", [*HEADS * 2, *HEADS, [3], [3], *[[]] * 7],
        [BF16] * 9 + ["int"] * 2 + ["Scalar"] * 7, [""] * 11 + ["4", "4", "0.", "0.1", "True", "-1", "-1"]),
    "packed, and not even how many": ("_vllm_fa2_C::varlen_fwd", HEADS, [BF16] * 3, [""] * 3),
}  # fmt: skip


@pytest.mark.defect("22")
@pytest.mark.parametrize("what", WITHOUT_LENGTHS)
def test_attention_without_lengths_has_no_figures(tmp_path: Path, what: str) -> None:
    """Attention on a cache or on packed sequences was counted as if each query met one key, or as sequences of equal
    length, and printed as a number beside a note.

    The products grow with the square of each length: 4 and 2 make 4 * 4 + 2 * 2 = 20 pairs, 3 and 3 only 18."""
    name, dims, types, concrete = WITHOUT_LENGTHS[what]
    row = lone(tmp_path, name, dims, types, concrete)
    assert (row.op_class, row.flops, row.bytes, row.bound_s, row.modeled_s) == ("attention", *[None] * 4)
    assert "lengths" in row.reason


@pytest.mark.defect("23")
def test_figures_of_a_class_are_of_one_measured_time(tmp_path: Path) -> None:
    """A class's bound and prediction were those of its ops with figures, printed beside the measured time of all its
    ops.

    60 us of 600 have figures; 100.66 MB at 2.039 TB/s take 49.37 us, 82 % of the 60."""
    dims = {"Input__Dims": [[4096, 4096], [4096, 4096], []], "Input__type": [BF16, BF16, "Scalar"]}
    events = [
        op("aten::add", 0, 100, **dims, Concrete__Inputs=["", "", "1"]), call("cudaLaunchKernel", 10, 3, 1),
        kernel("vectorized_elementwise_kernel", 50, 60.5, 1),
        op("triton_poi_fused_add_0", 200, 100), call("cuLaunchKernel", 210, 3, 2), kernel("triton_", 300, 540.0, 2),
    ]  # fmt: skip
    analysis = analysed(tmp_path, events)
    (group,) = analysis.groups("class")
    assert (group.measured_s, group.bounded_s) == (pytest.approx(600.5e-6), pytest.approx(60.5e-6))
    assert group.of_roof == pytest.approx(6 * 4096**2 / 2.039e12 / 60.5e-6)
    assert analysis.to_dict()["by_class_with_figures_s"] == {"elementwise": pytest.approx(60.5e-6)}


# ---- kernels and ops


MM = {"Input__Dims": [[64, 16], [16, 32]], "Input__type": [F32, F32]}


def test_an_op_takes_in_the_ops_that_it_calls_itself(tmp_path: Path) -> None:
    """A product that first copies an operand is one row; ``aten::linear``, which only calls it, has none."""
    events = [
        op("aten::linear", 0, 100, Input__Dims=[[64, 16], [32, 16]], Input__type=[F32, F32]),
        op("aten::mm", 5, 90, **MM),
        op("aten::copy_", 10, 10, Input__Dims=[[64, 16], [64, 16], []], Input__type=[F32, F32, "Bool"]),
        call("cudaLaunchKernel", 12, 1, 1),
        call("cudaLaunchKernel", 40, 1, 2),
        call("cudaLaunchKernel", 50, 1, 3),
        kernel("copy", 20, 3.5, 1),
        kernel("gemm", 60, 10.5, 2),
        kernel("splitKreduce_kernel", 80, 2.5, 3),
    ]
    (row,) = analysed(tmp_path, events).rows
    assert (row.name, len(row.kernels), row.flops) == ("aten::mm", 3, 2 * 64 * 32 * 16)
    assert row.measured_s == pytest.approx(16.5e-6)


def test_a_joined_list_has_the_dtype_of_what_the_next_op_reads(tmp_path: Path) -> None:
    events = [
        op("aten::cat", 0, 9, Input__Dims=[[[4, 8], [2, 8]], []], Input__type=["TensorList", "Scalar"],
           Concrete__Inputs=["", "0"]), call("hipLaunchKernel", 1, 1, 1), kernel("cat", 20, 3.5, 1),
        op("aten::neg", 20, 9, Input__Dims=[[6, 8]], Input__type=[BF16]),
        call("hipLaunchKernel", 21, 1, 2), kernel("neg", 30, 3.5, 2),
    ]  # fmt: skip
    assert [row.bytes for row in analysed(tmp_path, events).rows] == [2 * 2 * 48] * 2
    alone = analysed(tmp_path, events[:3]).rows[0]
    assert (alone.bytes, alone.reason[:26]) == (None, "the dtype of a tensor list")


def test_an_unknown_kernel_inside_a_known_op_counts_for_it(tmp_path: Path) -> None:
    events = [
        op("aten::linear", 0, 100, Input__Dims=[[64, 16], [32, 16], []], Input__type=[F32, F32, ""]),
        op("mylib::tuned", 5, 50, Input__Dims=[[64, 16]], Input__type=[F32]),
        call("hipModuleLaunchKernel", 12, 1, 1),
        kernel("Cijk_x", 20, 3.5, 1),
    ]
    (row,) = analysed(tmp_path, events).rows
    assert (row.name, row.flops) == ("aten::linear", 2 * 64 * 32 * 16)


def test_what_no_call_owns_stands_alone_by_its_name(tmp_path: Path) -> None:
    events = [
        annotation("Optimizer.step#FusedAdam.step", 0, 100),
        call("cudaLaunchKernel", 12, 1, 1),
        kernel("multi_tensor_apply_kernel", 20, 3.5, 1),
        kernel("stray", 30, 1.5, 99),
    ]
    step, stray = analysed(tmp_path, events).rows
    assert (step.name, step.matched, step.shaped, step.wall) == ("multi_tensor_apply_kernel", False, False, UNKNOWN)
    assert (stray.name, stray.matched, "no op" in stray.reason) == ("stray", False, True)


@pytest.mark.defect("24")
def test_an_unknown_op_has_the_bytes_of_its_arguments(tmp_path: Path) -> None:
    """An op of a server that no formula knows had nothing in a trace, although its shapes were recorded and an unknown
    op of a traced model has its bytes.

    4 * 4 floats, and a list of 2 and 3 of them: 64 + 20 bytes."""
    row = lone(tmp_path, "mylib::magic", [[4, 4], [[2], [3]]], [F32, "TensorList"])
    assert (row.bytes, row.flops, row.bound_s, row.modeled_s, row.wall) == (84, None, None, None, UNKNOWN)
    assert row.reason == "no cost formula for mylib::magic: the bytes of its arguments alone"
    other = lone(tmp_path, "sgl_kernel::rotary_embedding", [[4], [4, 8], [4, 2], [4, 4], [2, 2]], [F32] * 5)
    assert (other.bytes, other.flops) == (4 * (4 + 32 + 8 + 16 + 4), None)  # no version has such arguments


#: ops of servers: dims, dtypes -> bytes read and written, by hand; tokens of 8 numbers of two bytes
SERVER_OPS = {
    "aiter::rmsnorm": ([[6, 8], [6, 8], [8], []], [BF16] * 3 + ["Scalar"], 2 * (48 + 8), 2 * 48),
    "aiter::add_rmsnorm": ([[6, 8]] * 4 + [[8], []], [BF16] * 5 + ["Scalar"], 2 * (48 + 48 + 8), 2 * (48 + 48)),
    "flashinfer::rmsnorm": ([[6, 8], [6, 8], [8], [], []], [BF16] * 3 + ["Scalar"] * 2, 2 * (48 + 8), 2 * 48),
    "flashinfer::fused_add_rmsnorm": (
        [[6, 8], [6, 8], [8], [], []], [BF16] * 3 + ["Scalar"] * 2, 2 * (48 + 48 + 8), 2 * (48 + 48)),
    "flashinfer::silu_and_mul": ([[6, 8], [6, 16], []], [BF16] * 2 + ["Scalar"], 2 * 96, 2 * 48),
    # positions of 8 bytes, queries and a key head; of the table of angles only rows are read
    "sgl_kernel::rotary_embedding": (
        [[6], [6, 8], [6, 2], [], [999, 2], []], [I64, BF16, BF16, "Scalar", BF16, "Scalar"],
        6 * 8 + 2 * (48 + 12), 2 * (48 + 12)),
    "sglang::store_cache": ([[6, 8], [6, 8], [999, 8], [999, 8], [6]], [BF16] * 4 + [I64], 2 * 96, 2 * 96),
}  # fmt: skip


@pytest.mark.defect("24")
@pytest.mark.parametrize("name", SERVER_OPS)
def test_ops_of_servers_by_hand(tmp_path: Path, name: str) -> None:
    """Norms, rotations and cache writes of aiter, flashinfer and SGLang had no line in the table of library ops."""
    dims, types, read, written = SERVER_OPS[name]
    row = lone(tmp_path, name, dims, types)
    assert (row.read_bytes, row.write_bytes) == (read, written)
    assert row.flops is not None and row.modeled_s is not None


@pytest.mark.defect("26")
@pytest.mark.parametrize(("name", "op_class"), [
    ("aten::_foreach_copy_", "movement"), ("aten::_foreach_norm", "reduction"), ("aten::_foreach_mul_", "elementwise"),
])  # fmt: skip
def test_ops_on_lists_are_the_optimizers_in_its_step_alone(tmp_path: Path, name: str, op_class: str) -> None:
    """Every op on a list of tensors was classed as the optimizer's: a server's copies, the norms of clipped
    gradients."""
    shapes = {"Input__Dims": [[[32], [32]], [[32], [32]], []], "Input__type": ["TensorList", "TensorList", "Scalar"]}
    events = [op(name, 1, 98, **shapes), call("cudaLaunchKernel", 10, 3, 1), kernel("k<float>", 50, 6.5, 1)]
    (row,) = analysed(tmp_path, events).rows
    assert row.op_class == op_class
    (row,) = analysed(tmp_path, [annotation("Optimizer.step#AdamW.step", 0, 100), *events]).rows
    assert row.op_class == "optimizer"


#: ops as torch 1.8 recorded them, without dtypes -> FLOPs: a product, one with a bias, a sum
UNTYPED = {
    "aten::mm": ([[64, 16], [16, 32]], 2 * 64 * 16 * 32),
    "aten::addmm": ([[32], [64, 16], [16, 32], [], []], 2 * 64 * 16 * 32),
    "aten::add": ([[64, 16], [16], []], 64 * 16),
}


@pytest.mark.defect("27")
@pytest.mark.parametrize("name", UNTYPED)
def test_flops_need_no_dtype(tmp_path: Path, name: str) -> None:
    """Shapes without dtypes, as torch 1.8 recorded them, counted as recorded in one sentence and as not recorded in
    another, and gave no FLOPs."""
    dims, flops = UNTYPED[name]
    events = [op(name, 0, 100, Input__dims=dims), call("cudaLaunchKernel", 10, 3, 1), kernel("k", 50, 6.5, 1)]
    analysis = analysed(tmp_path, events)
    (row,) = analysis.rows
    assert (row.flops, row.bytes, row.bound_s, row.wall) == (flops, None, None, UNKNOWN)
    assert row.reason == "the dtypes of its arguments were not recorded: FLOPs alone"
    assert (analysis.shaped_share, analysis.costed_share, analysis.partly_share) == (1.0, 0.0, 1.0)


@pytest.mark.defect("21")
def test_a_range_is_no_op_in_any_sentence(tmp_path: Path) -> None:
    """A range that a program marked counted as an op in the share that is linked and in the kernels that are not, and
    not in the reasons."""
    events = [annotation("combine(B)", 0, 100), call("cudaLaunchKernel", 10, 3, 1), kernel("combine", 50, 900.5, 1)]
    analysis = analysed(tmp_path, events)
    (row,) = analysis.rows
    assert (analysis.matched_share, row.matched, row.reason) == (0.0, False, "launched outside of any recorded op")
    assert any("were launched outside any op" in note for note in analysis.notes)


@pytest.mark.defect("21")
def test_an_autograd_function_is_an_op(tmp_path: Path) -> None:
    """An autograd.Function has no namespace, and what it launched was called launched outside of any op, its recorded
    shapes notwithstanding."""
    events = [
        op("MaskedSoftmax", 0, 100, Input__Dims=[[32, 64]], Input__type=[BF16]),
        *(call("cudaLaunchKernel", 10 + i, 0.5, 1 + i) for i in range(2)),
        *(kernel(f"masked_softmax_{i}", 50 + 20 * i, 9.5, 1 + i) for i in range(2)),
    ]
    (row,) = analysed(tmp_path, events).rows
    assert (row.name, row.matched, row.shaped, len(row.kernels)) == ("MaskedSoftmax", True, True, 2)
    assert row.reason == "no cost formula for MaskedSoftmax"


def copy(name: str, category: str, moved: int, dur: float) -> list[Event]:
    event = kernel(name, 20, dur, 1, bytes=moved)
    return [op("aten::copy_", 0, 10), call("cudaMemcpyAsync", 1, 1, 1), {**event, "cat": category}]


def test_copies_move_what_the_profiler_says(tmp_path: Path) -> None:
    over = copy("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 30_000_000, 2000.5)
    (row,) = analysed(tmp_path, over).rows
    assert (row.link_bytes, row.bytes, row.wall) == (30_000_000, 0, LINK)
    assert row.bound_s == pytest.approx(30e6 / 300e9)  # half of 600 GB/s: one direction
    (row,) = analysed(tmp_path, copy("Memcpy DtoD (Device -> Device)", "gpu_memcpy", 500_000_000, 2000.5)).rows
    assert (row.read_bytes, row.write_bytes, row.wall) == (500_000_000, 500_000_000, "bandwidth")
    assert row.bound_s == pytest.approx(1e9 / A100.dram_bytes_per_s)
    (row,) = analysed(tmp_path, copy("Memset (Device)", "gpu_memset", 1000, 2.5)).rows
    assert (row.read_bytes, row.write_bytes) == (0, 1000)


def test_a_collective_sends_its_share_over_the_link(tmp_path: Path) -> None:
    args = {"In__msg__nelems": 8_000_000, "Out__msg__nelems": 8_000_000, "dtype": "BFloat16", "Group__size": 4}
    events = [
        op("record_param_comms", 0, 50, Collective__name="allreduce", **args),
        call("cudaLaunchKernelExC", 5, 1, 1),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 20, 900.5, 1),
    ]
    (row,) = analysed(tmp_path, events).rows
    assert (row.op_class, row.wall, row.link_bytes) == ("communication", LINK, 12_000_000)  # 3/4 of 16 MB
    assert row.bound_s == pytest.approx(12e6 / 300e9)


def test_an_attention_function_and_its_gradient(tmp_path: Path) -> None:
    """flash-attn's ``autograd.Function``: the node of its gradient recorded one tensor, the rest is the forward's."""
    q = {"Input__Dims": [[2, 3, 4, 8]] * 3 + [[], [], []], "Input__type": [BF16] * 3 + ["Scalar", "", "Scalar"],
         "Concrete__Inputs": ["", "", "", "0.", "", "False"], "Sequence__number": 7}  # fmt: skip
    events = [
        op("FlashAttnFunc", 0, 20, **q), call("cudaLaunchKernel", 5, 1, 1), kernel("flash_fwd", 30, 5.5, 1),
        op("autograd::engine::evaluate_function: FlashAttnFuncBackward", 100, 50, tid=2, Sequence__number=7,
           Fwd__thread__id=1),
        op("FlashAttnFuncBackward", 101, 40, tid=2, Sequence__number=7, Fwd__thread__id=1,
           Input__Dims=[[2, 3, 4, 8]], Input__type=[BF16]),
        call("cudaLaunchKernel", 105, 1, 2, tid=2), kernel("flash_bwd", 130, 9.5, 2),
    ]  # fmt: skip
    forward, backward = analysed(tmp_path, events).rows
    assert forward.flops == 2 * 2 * 4 * 9 * (8 + 8)
    assert backward.flops == 2 * (forward.flops or 0)
    size = 2 * 2 * 3 * 4 * 8
    assert (backward.read_bytes, backward.write_bytes) == (5 * size + 4 * 2 * 4 * 3, 3 * size)


# ---- the roof


def add(dur: float, elements: int = 100_000_000, **how: Any) -> dict[str, Any]:
    """``x + y`` of as many floats: 3 * 4 bytes each."""
    return {"dims": [[elements], [elements], []], "types": [F32, F32, "Scalar"], "concrete": ["", "", "1"],
            "strides": [[1], [1], []], "dur": dur, **how}  # fmt: skip


def test_the_bound_is_the_plain_one_unless_the_time_disproves_it(tmp_path: Path) -> None:
    rate = A100.dram_bytes_per_s
    plain_us, twins_us = 1.2e9 / rate * 1e6, 0.8e9 / rate * 1e6
    row = lone(tmp_path, "aten::add", **add(plain_us * 1.25))
    assert (row.assumed, row.of_roof) == ("", pytest.approx(0.8))
    row = lone(tmp_path, "aten::add", **add(plain_us * 0.8))  # x + x: 0.4 GB read, 0.4 GB written
    assert row.assumed == "inputs that look alike are one tensor"
    assert row.bound_s == pytest.approx(twins_us * 1e-6)
    assert row.of_roof <= 1
    # 15 M floats: 180 MB plain, 120 MB as twins; with 40 MiB of L2 on either side 18.06 MB each way in DRAM
    row = lone(tmp_path, "aten::add", **add(40.5, 15_000_000))
    assert row.assumed == "inputs in L2"
    assert row.bound_s == pytest.approx(2 * (60e6 - 40 * 2**20) / rate)


def test_what_no_reading_explains_is_over_the_roof(tmp_path: Path) -> None:
    """A product in half of the time that its FLOPs need: no reading of bytes may hide it."""
    side = 8192
    least_us = 2 * side**3 / 312e12 * 1e6
    dims, types = [[side, side], [side, side]], [BF16, BF16]
    fast = lone(tmp_path, "aten::mm", dims, types, ["", ""], dur=least_us / 2)
    assert fast.of_roof == pytest.approx(2.0)
    slow = lone(tmp_path, "aten::mm", dims, types, ["", ""], dur=least_us * 2)
    assert slow.of_roof <= 1


def test_strides_that_were_not_recorded_may_be_those_of_a_broadcast(tmp_path: Path) -> None:
    how = add(0.45e9 / A100.dram_bytes_per_s * 1e6 + 0.25)
    how["strides"] = None
    row = lone(tmp_path, "aten::add", **how)
    assert row.assumed == "inputs are broadcast, or read in part"
    how["strides"] = [[1], [1], []]
    assert lone(tmp_path, "aten::add", **how).of_roof > 1


def test_a_kernel_without_length_has_no_percentage(tmp_path: Path) -> None:
    events = [op("aten::mm", 0, 10, **MM), call("cudaLaunchKernel", 1, 1, 1), kernel("gemm", 20, 0, 1),
              op("aten::mm", 20, 10, **MM), call("cudaLaunchKernel", 21, 1, 2), kernel("gemm", 30, 2.5, 2)]  # fmt: skip
    analysis = analysed(tmp_path, events)
    assert analysis.rows[0].of_roof is None
    assert not list(analysis.over_roof)
    json.dumps(analysis.to_dict(), allow_nan=False)


def test_durations_in_whole_microseconds_may_have_lost_one(tmp_path: Path) -> None:
    """1.5 us of work at the bandwidth of L2, recorded as 1 us, and as 1.001 us."""
    dims, types = [[int(1.5e-6 * A100.l2_bytes_per_s / 8)]], [F32]
    row = lone(tmp_path, "aten::neg", dims, types, [""], dur=1)
    assert (row.measured_s, row.longest_s) == (1e-6, 2e-6)
    assert row.of_roof == pytest.approx(0.75, rel=1e-3)
    assert row.of_roof <= 1
    assert lone(tmp_path, "aten::neg", dims, types, [""], [[1]], dur=1.001).of_roof > 1


def test_float32_products_are_tf32_unless_a_kernel_says_otherwise(tmp_path: Path) -> None:
    dims, types = [[4096, 4096], [4096, 4096]], [F32, F32]
    work = 2 * 4096**3
    tf32 = lone(tmp_path, "aten::mm", dims, types, kernels=("cutlass_80_tensorop_s1688gemm_128x128",), dur=5000.5)
    full = lone(tmp_path, "aten::mm", dims, types, kernels=("ampere_sgemm_128x128_nn",), dur=9000.5)
    assert tf32.bound_s == pytest.approx(work / 156e12)
    assert full.bound_s == pytest.approx(work / 19.5e12)


# ---- Triton


def triton(tmp_path: Path, name: str, dims: list, concrete: list, **args: Any) -> TraceRow:
    types = [F32 if shape else "Scalar" for shape in dims]
    return lone(tmp_path, name, dims, types, concrete, kernel_backend="triton", kernels=(name,), **args)


def test_a_fused_kernel_moves_each_argument_once(tmp_path: Path) -> None:
    row = triton(tmp_path, "triton_poi_fused_add_cos_sin_0", [[10, 10]] * 3 + [[]], ["", "", "", "100"])
    assert (row.flops, row.read_bytes, row.write_bytes) == (300, 800, 400)
    assert row.op_class == "elementwise"
    # a table of 1000 rows of which the kernel, of 6 * 8 elements, cannot touch more
    row = triton(tmp_path, "triton_poi_fused_embedding_0", [[1000, 8], [6, 8], []], ["", "", "48"])
    assert row.bytes == 2 * 48 * 4
    row = triton(tmp_path, "triton_red_fused_mean_mul_1", [[64, 512], [512], [64], [], []], ["", "", "", "64", "512"],
                 kernel_kwargs="XBLOCK=1,R0_BLOCK=512")  # fmt: skip
    assert (row.op_class, row.bytes, row.flops) == ("reduction", 4 * (64 * 512 + 512 + 64), 2 * 64 * 512)


def test_a_triton_kernel_of_ones_own_is_not_guessed(tmp_path: Path) -> None:
    row = triton(tmp_path, "triton_my_softmax", [[10, 10]], [""])
    assert (row.flops, row.bytes, row.reason) == (None, None, "a Triton kernel of no known kind")


@pytest.mark.parametrize(
    ("names", "flops"),
    [("_unsafe_view_mul_silu", 5), ("add_mean_mul_pow_rsqrt", 5), ("_to_copy_native_layer_norm", 7), ("clone", 0),
     ("gelu_backward", 11), ("_softmax_masked_fill", 5), ("my_add", 1)],
)  # fmt: skip
def test_flops_of_a_kernels_name(names: str, flops: int) -> None:
    assert flops_per_element(names) == flops


# ---- values and dtypes


@pytest.mark.parametrize(
    ("text", "value"),
    [("", None), ("None", None), ("[1, 2]", [1, 2]), ("0.", 0.0), ("True", True), ("mean", "mean"), ("nan", None),
     ("9.9999999999999998e-13", 1e-12), ("[" * 100_000, None), ("__import__('os')", "__import__('os')"),
     ("9" * 300, int("9" * 300))],
)  # fmt: skip
def test_recorded_values(text: str, value: Any) -> None:
    assert parse_value(text) == (pytest.approx(value) if isinstance(value, float) else value)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("void multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor<c10::BFloat16, 2>, float>()",
      "bfloat16"),
     ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 4, 64, 64>(float*)", "float32"),
     ("CatArrayBatchedCopy_contig<at::native::(anonymous namespace)::OpaqueType<4u>, unsigned int>", "float32"),
     ("ampere_sgemm_128x64_nn", "")],
)  # fmt: skip
def test_a_lists_dtype_from_its_kernel(name: str, dtype: str) -> None:
    assert list_dtype([name]) == dtype


def test_hostile_shapes_are_refused_one_by_one(tmp_path: Path) -> None:
    for dims in ([[-1, 4], [4, 4]], [["x", 4], [4, 4]], [[[4]], [4, 4]], [[10**400, 4], [4, 10**400]]):
        row = lone(tmp_path, "aten::mm", dims, [BF16, BF16])
        assert row.measured_s > 0
        assert row.bound_s is None, dims
    conv = [[8, 4, 2**20, 32], [16, 4, 2**20, 3], [], [], [], [], [], [], []]
    types = [BF16, BF16, *["ScalarList"] * 3, *["Scalar"] * 4]
    for steps in ("[0, 0]", "['a']", "[2, 2]", "{}", "10000000000000000000000000"):
        row = lone(tmp_path, "aten::cudnn_convolution", conv, types, ["", "", "[0, 0]", steps, "[3, 3]", *["1"] * 4])
        assert row.bound_s is None, steps


def test_what_crosses_a_link_is_not_in_the_prediction(tmp_path: Path) -> None:
    """Of a copy to the host only the bandwidth is known, and of a collective not how long it waited."""
    events = [op("aten::mm", 20, 9, **MM), call("cudaLaunchKernel", 21, 1, 7), kernel("gemm", 2000, 20.5, 7)]
    copied = analysed(tmp_path, [*copy("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", 10**6, 500.0), *events])
    kept = next(row for row in copied.rows if row.wall != LINK)
    assert (copied.modeled_s, copied.modeled_of_s) == (kept.modeled_s, kept.measured_s)
    assert len(copied.rows) == 2


@pytest.mark.parametrize(("start", "is_said"), [(60, False), (1000, True)])
def test_a_gpu_that_mostly_waits_is_said(tmp_path: Path, start: int, is_said: bool) -> None:
    """Two kernels of 20 us each, from 20 us on; the later one begins at 60 us or at 1000 us: 2/3 or 4 % busy."""
    events = []
    for i, at in enumerate((20, start)):
        events += [
            op("aten::mm", 20 * i, 9, **MM),
            call("cudaLaunchKernel", 20 * i + 1, 1, i + 1),
            kernel("gemm", at, 20.0, i + 1),
        ]
    assert any("ran 4.0 % of the time" in note for note in analysed(tmp_path, events).notes) is is_said


@pytest.mark.parametrize(("name", "board_name", "is_older"), [
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64>(x)", "h100-sxm", True),
    ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", "h100-sxm", True),
    ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32", "b200", True),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64", "h100-sxm", False),
    ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", "h100-sxm", False),
    ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", "a100-80gb-sxm", False),
    ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", "rtx-4090", False),
    ("ampere_sgemm_128x64_nn", "h100-sxm", False),
    ("Cijk_Alik_Bljk_BBS_BH_MT256x192x64_MI16x16x1", "mi300x", False),
])  # fmt: skip
def test_products_in_kernels_of_an_earlier_generation(
    tmp_path: Path, name: str, board_name: str, is_older: bool
) -> None:
    shapes = {"Input__Dims": [[64, 64]] * 2, "Input__type": [BF16] * 2}
    events = [op("aten::mm", 0, 9, **shapes), call("cudaLaunchKernel", 1, 1, 1), kernel(name, 20, 7.5, 1)]
    notes = analysed(tmp_path, events, load_gpu(board_name)).notes
    assert any("1 kernel of an earlier GPU generation" in note for note in notes) is is_older


# ---- against torch


def test_results_are_those_of_torch(tmp_path: Path) -> None:
    """What torch returns on the CPU, from what its own profiler records of the call."""
    torch = pytest.importorskip("torch")
    aten, x, y = torch.ops.aten, torch.randn(6, 8), torch.randn(8, 5)
    image, weight, q = torch.randn(2, 3, 16, 16), torch.randn(4, 3, 3, 3), torch.randn(2, 4, 6, 8)
    index, half = torch.tensor([1, 3, 5]), torch.randn(6, 8, dtype=torch.bfloat16)
    calls = [
        (aten.mm.default, x, y), (aten.addmm.default, torch.randn(5), x, y), (aten.bmm.default, q[0], q[0].mT),
        (aten.convolution.default, image, weight, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1),
        (aten.convolution.default, image, torch.randn(3, 4, 3, 3), None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1),
        (aten.max_pool2d_with_indices.default, image, [3, 3], [2, 2], [1, 1], [1, 1], True),
        (aten._adaptive_avg_pool2d.default, image, [5, 7]), (aten.avg_pool2d.default, image, [3, 3], [2, 2]),
        (aten.upsample_bilinear2d.default, image, [20, 24], False), (aten._softmax.default, x, -1, False),
        (aten.native_layer_norm.default, x, [8], None, None, 1e-5),
        (aten.native_group_norm.default, image, None, None, 2, 3, 256, 3, 1e-5),
        (aten.add.Tensor, x, half), (aten.mul.Tensor, half, 2.0), (aten.gt.Scalar, x, 0),
        (aten.where.self, x > 0, x, x),
        (aten.div.Tensor, index, 2), (aten.sum.dim_IntList, x, [1], True), (aten.mean.dim, x, [-1]),
        (aten.var_mean.correction, x, [1]), (aten.max.dim, x, 1), (aten.argmax.default, x, 0),
        (aten.any.default, x > 0),
        (aten.cumsum.default, index, 0), (aten.topk.default, x, 3), (aten.sort.default, x),
        (aten.cat.default, [x, x], 1),
        (aten.stack.default, [x, x]), (aten.index_select.default, x, 0, index), (aten.embedding.default, x, index),
        (aten.gather.default, x, 1, torch.zeros(6, 2, dtype=torch.int64)), (aten.repeat.default, x, [2, 3]),
        (aten.constant_pad_nd.default, x, [1, 2]), (aten._to_copy.default, x, ),
        (aten.native_dropout.default, x, 0.5, True),
        (aten.nll_loss_forward.default, x, torch.zeros(6, dtype=torch.int64), None, 1, -100),
        (aten.arange.start_step, 0, 10, 3), (aten.full.default, [3, 4], 1.5), (aten._foreach_norm.Scalar, [x, y]),
        (aten._fft_r2c.default, x, [1], 0, True), (aten.gelu.default, half), (aten.tril.default, x),
    ]  # fmt: skip
    expected = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        for function, *arguments in calls:
            made = function(*arguments)
            outputs = [t for t in (made if isinstance(made, (tuple, list)) else [made]) if isinstance(t, torch.Tensor)]
            expected.append([(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in outputs])
    path = tmp_path / "real.json"
    profiler.export_chrome_trace(str(path))
    events = iter(e for e in json.loads(path.read_text())["traceEvents"] if e.get("cat") == "cpu_op")
    for (function, *_), wanted in zip(calls, expected, strict=True):
        name = function.name().partition(".")[0]
        event = next(e for e in events if e["name"] == name)
        found = read_call(recorded(event), Hints(list_dtype="float32")).call.outputs
        assert sum(s.nbytes for s in found) == sum(s.nbytes for s in as_specs(wanted)), (name, found, wanted)
        if name not in ("aten::cat", "aten::stack", "aten::native_layer_norm"):  # as long, in another shape
            assert [(s.shape, s.dtype) for s in found] == wanted, name


def recorded(event: dict[str, Any]) -> TracedOp:
    args = event["args"]

    def tuples(value: Any) -> Any:
        return tuple(map(tuples, value)) if isinstance(value, list) else value

    return TracedOp(0, event["name"], ("1", "1"), 0.0, 1.0, tuples(args["Input Dims"]), tuple(args["Input type"]),
                    tuples(args["Input Strides"]), tuple(args["Concrete Inputs"]))  # fmt: skip


def as_specs(shapes: list[tuple[tuple[int, ...], str]]) -> list[Any]:
    from memwall.core.graph import contiguous

    return [contiguous(shape, dtype) for shape, dtype in shapes]


def test_an_op_without_a_schema_says_so() -> None:
    with pytest.raises(Unsupported, match="no schema"):
        read_call(TracedOp(0, "mylib::magic", ("1", "1"), 0.0, 1.0, ((4,),), ("float",)), Hints())


# ---- real traces


@pytest.mark.skipif(not TRACES, reason="needs ../shared/traces, real profiler traces")
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_real_traces(path: Path) -> None:
    trace, analysis = real_trace(path), real(path)
    assert analysis.over_roof == ()
    if analysis.shaped_share:
        assert analysis.costed_of_shaped >= 0.95
    total_s = sum(kernel.dur_us for kernel in trace.kernels) * 1e-6
    assert analysis.measured_s == pytest.approx(total_s), "every kernel is in one row"
    assert sum(len(row.kernels) for row in analysis.rows) == len(trace.kernels)


def _trace(name: str) -> Path:
    found = next((path for path in TRACES if name in path.name), None)
    if found is None:
        pytest.skip("needs ../shared/traces, real profiler traces")
    return found


def test_a_resnet_of_2021_has_the_flops_of_the_paper() -> None:
    """ResNet-50 takes 4.087e9 multiply-adds in convolutions for an image of 224 x 224; no gradient of the image is
    made, so the first convolution (112 * 112 * 64 * 147) counts twice and not three times. 6 steps of 32 images."""
    analysis = real(_trace("v100_resnet50"))
    flops = sum(row.flops or 0 for row in analysis.rows if row.op_class == "convolution")
    assert flops / (6 * 32) == pytest.approx(3 * 2 * 4.087e9 - 2 * 112 * 112 * 64 * 147, rel=2e-3)


@pytest.mark.defect("27")
def test_a_resnet_without_dtypes_has_the_flops_of_the_same_with_them(tmp_path: Path) -> None:
    """Shapes without dtypes gave no FLOPs, also where the next op's shapes say what a convolution made."""
    path = _trace("v100_resnet50_tb_2021.json.gz")
    recorded = json.loads(gzip.decompress(path.read_bytes()))
    for event in recorded["traceEvents"]:
        event.get("args", {}).pop("Input type", None)
    bare = tmp_path / "trace.json"
    bare.write_text(json.dumps(recorded), encoding="utf-8")
    found = analyse(read_trace(bare), load_gpu("v100-sxm2-32gb")).totals().flops
    assert found == real(path).totals().flops > 4e12


def test_a_small_bert_has_the_flops_of_its_layers() -> None:
    """141 tokens, 4 layers of 512: 4 products of 512 x 512 and two of 512 x 2048 each, and the head."""
    analysis = real(_trace("h100_bert"))
    flops = sum(row.flops or 0 for row in analysis.rows if row.op_class == "contraction")
    layer = 4 * 512 * 512 + 2 * 512 * 2048
    assert flops == 2 * 141 * (4 * layer + 512 * 512 + 512 * 30522)
    attention = sum(row.flops or 0 for row in analysis.rows if row.op_class == "attention")
    assert attention == 4 * 8 * 141 * 141 * 2 * (64 + 64)


def test_two_gpus_are_busy_for_no_more_than_the_span_of_both(tmp_path: Path) -> None:
    """From 0 to 100 us one GPU runs for 90 and the other for 60: 150 of 200, with one gap of 10 and 40 around."""
    events = [kernel("a", 0, 50, 1), kernel("b", 60, 40, 2), kernel("c", 20, 60, 3, device=1)]
    found = analysed(tmp_path, events)
    assert (found.devices_s, found.busy_s, found.gap_s, found.around_s) == pytest.approx((200e-6, 150e-6, 10e-6, 40e-6))
    assert "2 GPUs are busy for 150.00 us of 200.00 us (75.0 %)" in render(TraceReport(found), "md")
