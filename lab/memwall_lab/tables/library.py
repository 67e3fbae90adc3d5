"""Benchmarks of vendors' libraries.

DeepBench (baidu-research/DeepBench): loops of cuBLAS and cuDNN calls on warm operands, 1 us resolution. Rates that
benchmarks reached: streams of 1 GiB arrays, and products of a stated shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from memwall.bench.accuracy.kinds import Record, Skip
from memwall.ops import table_calls as calls
from memwall_lab.tables.base import Call, Table, count, gpu_named, known, positive, size

#: precision of the table -> dtype of the operands
_OPERANDS = {"fp32": "float32", "fp16_tensorcore": "float16", "pseudo_fp16": "float16"}
_RESOLUTION_S = 1e-6
#: column of a time -> the result that the pass computes
_PASSES = {"fwd_ms": "forward", "bwd_input_ms": "input", "bwd_weight_ms": "weight"}


def _precision(record: Record) -> tuple[str, str]:
    gpu_named(record["gpu"])
    name = str(record["precision"]).partition("(")[0].strip()
    return name, known(_OPERANDS, name, "precision")


def _gemm(record: Record) -> Call:
    precision, dtype = _precision(record)
    m, n, k = (size(record, name) for name in "mnk")
    cost = calls.in_aligned_rows(calls.product(m, n, k, dtype))  # it pads its matrices (PAD_KERNELS)
    if precision == "pseudo_fp16":  # half precision in memory, float32 arithmetic
        cost = calls.in_float32(cost)
    shape = f"m={m},n={n},k={k},{record['transA']}{record['transB']}"
    return Call(op_class="gemm", dtype=precision, shape=shape, cost=cost, split=f"{m}x{n}x{k}")


def _conv(record: Record) -> Iterator[Call]:
    precision, dtype = _precision(record)
    n, c, h, w, k, fh, fw = (size(record, name) for name in ("N", "C", "H", "W", "K", "fh", "fw"))
    stride = size(record, "stride_h"), size(record, "stride_w")
    padding = count(record, "pad_h"), count(record, "pad_w")
    if h + 2 * padding[0] < fh or w + 2 * padding[1] < fw:
        raise ValueError(f"the filter {fh}x{fw} is larger than the padded input")
    shape = f"{n}x{c}x{h}x{w} * {k}x{fh}x{fw} /{stride} +{padding}"
    for column, role in _PASSES.items():
        if str(record[column]).startswith("N/A"):
            continue
        # Of pseudo_fp16 seven rows of a P100 reach 11 to 16 TFLOP/s, more than its float32 units have: convolutions
        # compute in half precision.
        cost = calls.convolution((n, c, h, w), (k, c, fh, fw), stride, padding, dtype, role)
        yield Call(op_class=f"conv {role}", dtype=precision, shape=f"{role} {shape}", cost=cost, time=column)


GEMM = Table("deepbench_gemm", "gpu precision m n k transA transB latency_ms", _gemm, resolution_s=_RESOLUTION_S)
CONV = Table(
    "deepbench_conv", f"gpu precision W H C N K fw fh pad_w pad_h stride_w stride_h {' '.join(_PASSES)}", _conv,
    resolution_s=_RESOLUTION_S,
)  # fmt: skip


_ARRAY_BYTES = 1 << 30
#: word in a benchmark's name -> arrays read and written (BabelStream, gpu-benches)
_STREAMS = {
    "triad": (2, 1), "copy": (1, 1), "mul": (1, 1), "scale": (1, 1), "add": (2, 1), "dot": (2, 0), "read": (1, 0),
}  # fmt: skip
_RATE_OPERANDS = {
    "bf16": "bfloat16", "fp16": "float16", "fp16_tensorcore": "float16", "fp8": "float8_e4m3fn", "fp32": "float32",
}  # fmt: skip


def _bandwidth(record: Record) -> Call:
    name = str(record["benchmark"])
    if "threshold" in name:
        raise Skip("it is a vendor's threshold, not a measurement")
    words = re.findall(r"[a-z]+", name.lower())
    named = [word for word in words if word in _STREAMS]
    if not named or not {"stream", "babelstream"} & set(words):
        raise Skip(f"what the benchmark {name[:40]!r} reads and writes is not stated")
    gpu_named(record["gpu"])
    read, written = (_ARRAY_BYTES * arrays for arrays in _STREAMS[named[0]])
    cost = calls.stream(read, written, _ARRAY_BYTES // 8)
    took_s = (read + written) / (positive(record, "measured_GBps") * 1e9)
    return Call(op_class="stream", dtype="float64", shape=name, cost=cost, warm=0, measured_s=took_s)


def _product(record: Record) -> Call:
    sizes = re.fullmatch(r"(\d{1,15})x(\d{1,15})x(\d{1,15})", str(record["shape_mnk"]).strip())
    if not sizes:
        raise Skip("no shape is stated")
    name = str(record["dtype"]).partition(" ")[0].partition("(")[0]
    operands = known(_RATE_OPERANDS, name, "dtype")
    gpu_named(record["gpu"])
    m, n, k = (size({"shape_mnk": side}, "shape_mnk") for side in sizes.groups())
    out = "bfloat16" if name == "fp8" else ""
    cost = calls.product(m, n, k, operands, out=out)
    took_s = 2 * m * n * k / (positive(record, "measured_tflops") * 1e12)
    return Call(op_class="gemm", dtype=name, shape=f"m={m},n={n},k={k}", cost=cost, warm=0, measured_s=took_s)


BANDWIDTH = Table("bandwidth_measured", "gpu benchmark measured_GBps", _bandwidth)
PRODUCTS = Table("gemm_peak_measured", "gpu dtype measured_tflops shape_mnk", _product)
