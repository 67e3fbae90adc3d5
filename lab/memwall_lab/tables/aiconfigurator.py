"""aiconfigurator's tables (ai-dynamo/aiconfigurator): TensorRT-LLM kernels replayed in a CUDA graph.

The linear layers cycle through several copies of their weights, at most five: weights are cold unless all copies fit in
L2, activations warm. Rows of fp8 include the quantisation of the activations in three launches (clear a scale, find the
largest value, convert): the shortest rows take 9.5 to 12 us more than the shortest of bf16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from memwall.bench.accuracy.kinds import Record, Skip
from memwall.core.graph import ITEMSIZE
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost, served_calls
from memwall.ops import table_calls as calls
from memwall.ops.product_launches import FusedAttention
from memwall.ops.quantised import SCHEMES, product_of_stored, quantised_product
from memwall.perfmodel.roofline import launch_floor_s
from memwall.perfmodel.stream import round_trip_s
from memwall_lab.tables.base import Call, Table, count, gpu_named, known, size

#: dtype of the table -> dtype of the operands
_OPERANDS = {"bfloat16": "bfloat16", "float16": "float16", "fp8": "float8_e4m3fn"}

#: most copies of the weights in rotation (aiconfigurator's collect_gemm.py)
_COPIES = 5
#: the same of each engine's collector; one copy for vLLM's 4-bit weights fits no better
_ENGINE_COPIES = {"trtllm": _COPIES, "sglang": 6, "vllm": 6}
#: architecture -> least seconds of the three launches of the quantisation, from the shortest rows: none of them can
#: start before the last block of the one before has stored
_QUANTISE_S = {"hopper": 9.6e-6, "ada": 10.2e-6, "blackwell": 11.2e-6}
#: integer instructions of its kernels for each element, from the longest rows of H100, H200 and B200
_INSTRUCTIONS = 16


#: engine and dtype of the table -> scheme, and whether the row includes the quantisation of activations; TensorRT-LLM's
#: 8-bit floats are as in the other table
_TIMED: Mapping[tuple[str, str], tuple[str, bool]] = {
    ("trtllm", "int4_wo"): ("int4_wo", True), ("trtllm", "int8_wo"): ("int8_wo", True), ("trtllm", "sq"): ("sq", True),
    ("trtllm", "fp8_block"): ("fp8_block", True), ("sglang", "fp8_block"): ("fp8_block", True),
    ("trtllm", "nvfp4"): ("nvfp4", True), ("sglang", "nvfp4"): ("nvfp4", True), ("vllm", "nvfp4"): ("nvfp4", True),
    ("sglang", "fp8"): ("fp8", True), ("vllm", "fp8"): ("fp8_static", True), ("sglang", "fp8_static"): ("fp8", False),
}  # fmt: skip
#: rows that time something else than the kernels
_NOT_KERNELS = {
    ("vllm", "fp8_block"): "eager calls of vLLM's block-scaled products: 0.06 to 0.3 ms are the host's",
    ("sglang", "int8_wo"): "SGLang's int8_wo multiplies int8 activations that seven of PyTorch's ops quantise",
}
#: the version whose collector makes a cache of kind SELFKONLY (collect_attn.py). Of its grouped decode rows 66 would
#: move up to 1.8 times what DRAM can, were keys and values two tensors, and none does where they are one: an inference
_ONE_CACHE, _LARGEST_GROUP = "trtllm_1.0.0", 32


def _gemm(record: Record) -> Call:
    gpu, dtype = gpu_named(record["gpu"]), record["dtype"]
    operands = known(_OPERANDS, dtype, "dtype")
    m, n, k = (size(record, name) for name in "mnk")
    cost = calls.product(m, n, k, operands, out="bfloat16")
    warm = _warm_bytes(cost, gpu, n * k * ITEMSIZE[operands])
    if dtype == "fp8":
        cost = _quantised(cost, m * k, gpu)
    return Call(op_class="gemm", dtype=dtype, shape=f"m={m},n={n},k={k}", cost=cost, warm=warm, split=f"{m}x{n}x{k}")


def _warm_bytes(cost: Cost, gpu: Gpu, weights: int, most_copies: int = _COPIES) -> int:
    """Bytes that a product finds in L2: its activations if all it touches fits, its weights if all copies do."""
    if cost.bytes > gpu.l2_bytes:
        return 0
    copies = min(most_copies, -(-gpu.l2_bytes // weights))
    held = (1.1 if gpu.architecture == "ada" else 0.9) * gpu.l2_bytes
    return cost.read_bytes - (0 if cost.bytes + (copies - 1) * weights <= held else weights)


def _quantised(product: Cost, elements: int, gpu: Gpu) -> Cost:
    """The product after its left operand was converted from bfloat16 to one byte per element."""
    least_s = _QUANTISE_S.get(gpu.architecture, min(_QUANTISE_S.values()))
    waits = max(round((least_s - 3 * launch_floor_s(gpu)) / round_trip_s(gpu)), 0)
    largest = calls.stream(2 * elements, 0, elements, instructions=_INSTRUCTIONS, round_trips=waits)
    converted = calls.stream(2 * elements, elements, elements, instructions=_INSTRUCTIONS)
    # The product comes first: its bytes in L2 are known, and the others find what all of them touch.
    launches = (*product.launches, replace(largest.launches[0], count=2), *converted.launches)
    return replace(product, read_bytes=product.read_bytes + elements, launches=launches)


def _quantised_gemm(record: Record) -> Call:
    gpu, engine, name = gpu_named(record["gpu"]), record["framework"], record["gemm_dtype"]
    if why := _NOT_KERNELS.get((engine, name)):
        raise Skip(why)
    if engine == "trtllm" and name in ("fp8", "fp8_static"):
        return replace(_gemm({**record, "dtype": "fp8"}), dtype=f"{name} {engine}")
    scheme, converts = known(_TIMED, (engine, name), "engine and dtype")
    m, n, k = (size(record, axis) for axis in "mnk")
    cost = (quantised_product if converts else product_of_stored)(m, n, k, scheme, engine=engine)
    warm = _warm_bytes(cost, gpu, SCHEMES[scheme].weights.nbytes(n, k), _ENGINE_COPIES[engine])
    shape = f"m={m},n={n},k={k}"
    return Call(op_class="gemm", dtype=f"{name} {engine}", shape=shape, cost=cost, warm=warm, split=f"{m}x{n}x{k}")


def _attention(record: Record) -> Call:
    gpu, phase = gpu_named(record["gpu"]), record["phase"]
    batch, heads, kv_heads = (size(record, name) for name in ("batch", "heads", "kv_heads"))
    if heads % kv_heads:
        raise ValueError(f"heads is {heads}, which {kv_heads} kv_heads cannot share")
    if phase == "decode":
        queries, keys = 1, count(record, "step") + 1
    elif phase == "prefill":
        queries = size(record, "isl")
        keys = queries + count(record, "step")
    else:
        raise Skip(f"phase {phase[:40]!r} is not known")
    width, dtype = size(record, "head_dim"), record["dtype"]
    known({"bfloat16": 2, "float16": 2}, dtype, "dtype")
    cost = served_calls.served_attention(batch, heads, kv_heads, queries, keys, width, dtype)
    if phase == "decode" and record.get("framework") == _ONE_CACHE and 1 < heads // kv_heads <= _LARGEST_GROUP:
        cost = _keys_alone(cost)
    shape = f"b={batch},h={heads},kv={kv_heads},q={queries},k={keys},d={width}"
    warm = cost.read_bytes if cost.bytes <= gpu.l2_bytes else 0
    return Call(op_class=phase, dtype=dtype, shape=f"{phase} {shape}", cost=cost, warm=warm)


def _keys_alone(cost: Cost) -> Cost:
    """The same where keys and values share one place."""
    work = cost.launches[0]
    assert isinstance(work, FusedAttention)
    once = (work.read_bytes - work.query_bytes) // 2
    work = replace(work, read_bytes=work.read_bytes - once)
    return replace(cost, read_bytes=cost.read_bytes - once, launches=(work,))


GEMM = Table("aiconfigurator_gemm", "gpu framework dtype m n k latency_ms", _gemm)
QUANTISED = Table(
    "aiconfigurator_quant_gemm", "gpu framework kernel_source gemm_dtype m n k latency_ms", _quantised_gemm
)
ATTENTION = Table(
    "aiconfigurator_attention", "gpu phase batch isl step heads kv_heads head_dim dtype latency_ms", _attention
)
