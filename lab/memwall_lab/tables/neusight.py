"""NeuSight's tables (sitar-lab/NeuSight): float32 ops without TF32, events around one eager call on warm inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memwall.bench.accuracy.kinds import Record
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.ops import table_calls as calls
from memwall_lab.tables.base import Call, Table, count, gpu_named, known, size

_DTYPE = "float32"


def _sizes(record: Record) -> list[int]:
    return [size(record, name) for name in "bmnk"]


def _linear(record: Record) -> Cost:
    b, m, n, k = _sizes(record)
    return calls.product(b * m, n, k, _DTYPE, bias=True)


def _vector(record: Record) -> tuple[int, int]:
    return size(record, "b"), size(record, "h")


def _elementwise(name: str, operands: int) -> Callable[[Record], Cost]:
    return lambda record: calls.elementwise(name, _vector(record), _DTYPE, operands)


#: op of the table -> what it is scored as, and its cost
_OPS: Mapping[str, tuple[str, Callable[[Record], Cost]]] = {
    "linear": ("linear", _linear),
    "bmm": ("bmm", lambda record: calls.batched_product(*_sizes(record), _DTYPE)),
    "add": ("elementwise", _elementwise("aten.add.Tensor", 2)),
    "mul": ("elementwise", _elementwise("aten.mul.Tensor", 2)),
    "sub": ("elementwise", _elementwise("aten.sub.Tensor", 2)),
    "div": ("elementwise", _elementwise("aten.div.Tensor", 2)),
    "elementwise_binary": ("elementwise", _elementwise("aten.add.Tensor", 2)),
    "relu": ("elementwise", _elementwise("aten.relu.default", 1)),
    "gelu": ("elementwise", _elementwise("aten.gelu.default", 1)),
    "tanh": ("elementwise", _elementwise("aten.tanh.default", 1)),
    "elementwise_unary": ("elementwise", _elementwise("aten.relu.default", 1)),
    "softmax": ("softmax", lambda record: calls.softmax(_vector(record), _DTYPE)),
    "ln": ("layernorm", lambda record: calls.layer_norm(_vector(record), _DTYPE)),
    "layernorm": ("layernorm", lambda record: calls.layer_norm(_vector(record), _DTYPE)),
}


def _op(record: Record) -> Call:
    op = str(record["op"]).strip().lower()
    op_class, build = known(_OPS, op, "op")
    gpu, cost = gpu_named(record["gpu"]), build(record)
    cells = {name: str(record.get(name, "")).strip().removesuffix(".0") for name in "bmknh"}
    shape = f"{op} {','.join(f'{name}={cell}' for name, cell in cells.items() if cell)}"
    return Call(op_class=op_class, dtype=_DTYPE, shape=shape, cost=cost, split=_split(record, op, op_class, gpu))


def _split(record: Record, op: str, op_class: str, gpu: Gpu) -> str:
    """The key of a row's half when the constants were fitted: the product, or rows and columns; for softmax and layer
    norm on NVIDIA GPUs the whole shape."""
    if op_class in ("linear", "bmm"):
        b, m, n, k = _sizes(record)
        b, m = (1, b * m) if op == "linear" else (b, m)
        return f"{op}:{b}x{m}x{n}x{k}"
    if op_class == "elementwise" or gpu.vendor == "AMD":
        return "{}x{}".format(*_vector(record))
    return ""


def _conv(record: Record) -> Call:
    gpu_named(record["gpu"])
    n, cin, cout, window, hw, stride = (size(record, name) for name in ("n", "cin", "cout", "ksize", "hw", "stride"))
    pad = count(record, "padding")
    if hw + 2 * pad < window:
        raise ValueError(f"ksize is {window}, more than the padded input has")
    cost = calls.convolution((n, cin, hw, hw), (cout, cin, window, window), (stride, stride), (pad, pad), _DTYPE)
    shape = f"{n}x{cin}x{hw}x{hw} * {cout}x{window}x{window} /{stride} +{pad}"
    return Call(op_class="conv2d", dtype=_DTYPE, shape=shape, cost=cost)


OPS = Table("neusight_ops", "op gpu b m k n h latency_ms", _op, "call")
CONV = Table("neusight_conv", "gpu n cin cout ksize hw stride padding latency_ms", _conv, "call")
