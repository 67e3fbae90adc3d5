"""cudnn-frontend's tables (NVIDIA/cudnn-frontend): fused attention and norms, the device's time with L2 flushed."""

from __future__ import annotations

from memwall.bench.accuracy.kinds import Record, Skip
from memwall.ops import table_calls as calls
from memwall_lab.tables.base import Call, Table, known, size

#: table's mask → whether it is causal, aligned at the top left
_MASKS = {"top_left": True, "no_mask": False}
#: table's dtype → dtype of queries, keys and values; mxfp8 adds a scale for each 32 numbers
_DTYPES = {"bfloat16": "bfloat16", "fp8": "float8_e4m3fn", "mxfp8": "float8_e4m3fn"}


def _attention(record: Record) -> Call:
    batch, queries, keys = (size(record, name) for name in ("batch", "q_len", "kv_len"))
    heads, kv_heads, width, value = (size(record, name) for name in ("q_heads", "kv_heads", "d_qk", "d_v"))
    dtype, causal = known(_DTYPES, record["dtype"], "dtype"), known(_MASKS, record["mask"], "mask")
    backward = known({"fwd": False, "bwd": True}, record["phase"], "phase")
    if causal and queries != keys:
        raise Skip("a causal mask that is aligned at the top left, of queries and keys that differ in number")
    if record["backend"] != "cudnn":
        raise Skip(f"the kernel of {record['backend'][:40]}")
    if backward and record["deterministic"] == "True":
        raise Skip("a deterministic backward kernel")
    cost = calls.fused_attention(
        "cudnn_mxfp8" if record["dtype"] == "mxfp8" else "cudnn",
        batch,
        (heads, kv_heads),
        (queries, keys),
        (width, value),
        dtype,
        causal=causal,
        window=int(float(record["window"])) if record["window"] else None,
        backward=backward,
    )
    sizes = f"b={batch},h={heads}/{kv_heads},q={queries},k={keys},d={width}/{value}"
    shape = f"{record['phase']} {sizes},{record['mask']},{record['window']}"
    return Call(op_class=f"attention {record['phase']}", dtype=record["dtype"], shape=shape, cost=cost, warm=0)


def _norm(record: Record) -> Call:
    rows, columns, phase = size(record, "N"), size(record, "C"), record["phase"]
    if record["backend"] != "pytorch":
        raise Skip(f"the kernel of {record['backend'][:40]}")
    known({"bfloat16": 2}, record["dtype"], "dtype")
    cost = known(_NORMS, (record["norm"], phase), "norm and phase")((rows, columns), record["dtype"])
    shape = f"{record['norm']} {phase} {rows}x{columns}"
    return Call(op_class=f"norm {phase}", dtype=record["dtype"], shape=shape, cost=cost, warm=0)


_NORMS = {
    ("rms_norm", "fwd"): calls.rms_norm, ("rms_norm", "bwd"): calls.rms_norm_backward,
    ("layer_norm", "fwd"): calls.layer_norm, ("layer_norm", "bwd"): calls.layer_norm_backward,
}  # fmt: skip

ATTENTION = Table(
    "cudnn_sdpa",
    "gpu backend dtype mask batch q_len kv_len q_heads kv_heads d_qk d_v window deterministic phase time_ms",
    _attention, launch="kernel", time="time_ms",
)  # fmt: skip
NORMS = Table(
    "cudnn_norms", "gpu norm backend dtype N C bias phase time_ms", _norm, launch="kernel", time="time_ms",
    resolution_s=1e-6,
)  # fmt: skip
