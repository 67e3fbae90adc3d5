"""Tables of rates that benchmarks reached: streams of 1 GiB arrays, and products of a stated shape."""

from __future__ import annotations

import re

from memwall.analysis.accuracy.tables.base import Call, Record, Skip, Table, gpu_named, known, positive, size
from memwall.ops import table_calls as calls

_ARRAY_BYTES = 1 << 30
#: word in a benchmark's name -> arrays read and written (BabelStream, gpu-benches)
_STREAMS = {
    "triad": (2, 1), "copy": (1, 1), "mul": (1, 1), "scale": (1, 1), "add": (2, 1), "dot": (2, 0), "read": (1, 0),
}  # fmt: skip
_OPERANDS = {
    "bf16": "bfloat16", "fp16": "float16", "fp16_tensorcore": "float16", "fp8": "float8_e4m3fn", "fp32": "float32",
}  # fmt: skip


def _bandwidth(record: Record) -> Call:
    name = str(record["benchmark"])
    if "threshold" in name:
        raise Skip("it is a vendor's threshold, not a measurement")
    words = re.findall(r"[a-z]+", name.lower())
    known = [word for word in words if word in _STREAMS]
    if not known or not {"stream", "babelstream"} & set(words):
        raise Skip(f"what the benchmark {name[:40]!r} reads and writes is not stated")
    gpu_named(record["gpu"])
    read, written = (_ARRAY_BYTES * arrays for arrays in _STREAMS[known[0]])
    cost = calls.stream(read, written, _ARRAY_BYTES // 8)
    took_s = (read + written) / (positive(record, "measured_GBps") * 1e9)
    return Call(op_class="stream", dtype="float64", shape=name, cost=cost, warm=0, measured_s=took_s)


def _product(record: Record) -> Call:
    sizes = re.fullmatch(r"(\d{1,15})x(\d{1,15})x(\d{1,15})", str(record["shape_mnk"]).strip())
    if not sizes:
        raise Skip("no shape is stated")
    name = str(record["dtype"]).partition(" ")[0].partition("(")[0]
    operands = known(_OPERANDS, name, "dtype")
    gpu_named(record["gpu"])
    m, n, k = (size({"shape_mnk": side}, "shape_mnk") for side in sizes.groups())
    out = "bfloat16" if name == "fp8" else ""
    cost = calls.product(m, n, k, operands, out=out)
    took_s = 2 * m * n * k / (positive(record, "measured_tflops") * 1e12)
    return Call(op_class="gemm", dtype=name, shape=f"m={m},n={n},k={k}", cost=cost, warm=0, measured_s=took_s)


BANDWIDTH = Table("bandwidth_measured", "gpu benchmark measured_GBps", _bandwidth)
PRODUCTS = Table("gemm_peak_measured", "gpu dtype measured_tflops shape_mnk", _product)
