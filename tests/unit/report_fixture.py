"""A small training step on two made-up GPUs with round numbers, so that a reader can check each figure by hand.

Two blocks of: a 1024x1024 fp16 product, a GELU, a layer norm; then flash attention (causal), an op without a formula
and an op with a hostile name; one backward product per block; one fused optimizer step.
"""

from memwall.core.graph import Graph, Op, Pipe, Storage, Value, contiguous
from memwall.frontend.facts import WorkloadInfo
from memwall.fusion import eager_plan
from memwall.hardware.host import Host
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.ops.launches import Plain
from memwall.record.profile import Profile
from memwall.simulate.schedule import simulate

TENSOR, VECTOR = Pipe("tensor", "float16"), Pipe("vector", "float32")

HOSTILE = "mylib::<script>alert(1)</script>"
HOSTILE_MODULE = "a|b.`c`[red]\x1b[31mx\ny$1$"


def make_gpu(name: str = "old", scale: float = 1.0, **changes) -> Gpu:
    """100 TFLOP/s tensor, 10 TFLOP/s vector, 1 TB/s, 16 GB; every fraction 1; ``scale`` times the tensor peak."""
    fields = {
        "name": name, "full_name": f"Maker {name} 16GB", "vendor": "Maker", "architecture": "made-up",
        "compute_capability": "8.0", "release": "2016-06", "aliases": (), "sm_count": 100, "boost_clock_hz": 1e9,
        "peak_flop_per_s": {TENSOR: 100e12 * scale, VECTOR: 10e12}, "dram_bytes_per_s": 1e12,
        "dram_bytes": 16_000_000_000, "l2_bytes": 0, "l2_bytes_per_s": 4e12, "link_bytes_per_s": 300e9, "tdp_w": 300.0,
        "launch_overhead_s": 1e-6,
        "achievable": {"dram": 1.0, "tensor.float16": 1.0, "vector.float32": 1.0},
        "sources": {"memory.dram_bytes_per_s": "made up for tests", "power.tdp_w": "made | up"},
        "calibration": "datasheet", "host": Host.uniform(changes.pop("dispatch_s", 0.0)),
    }  # fmt: skip
    return Gpu(**{**fields, **changes})


OLD = make_gpu()
NEW = make_gpu("new", 10.0, dram_bytes_per_s=2e12, dram_bytes=80_000_000_000, release="2022-09", tdp_w=700.0)


class Builder:
    """Adds ops one by one."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.storages: list[Storage] = []
        self.ops: list[Op] = []
        self.costs: list[Cost] = []

    def value(self, shape: tuple[int, ...], role: str = "activation", dtype: str = "float16", name: str = "") -> int:
        spec = contiguous(shape, dtype)
        number = len(self.storages)
        self.storages.append(Storage(number, spec.nbytes, role, name))
        self.values.append(Value(number, spec, number, 0))
        return number

    def op(self, name, op_class, phase, module, inputs, outputs, flops=None, extra_bytes=0, kernels=1, **extra) -> None:
        reads = sum(self.values[i].spec.nbytes for i in inputs)
        writes = sum(self.values[i].spec.nbytes for i in outputs)
        unnamed = ("",) * len(inputs)
        self.ops.append(Op(len(self.ops), name, op_class, phase, module, tuple(inputs), tuple(outputs), unnamed))
        whole = Plain(read_bytes=reads + extra_bytes, write_bytes=writes, flops=flops or {}, count=kernels)
        self.costs.append(Cost(flops or {}, reads, writes, launches=(whole,), **extra))


def make_profile(gpus=(OLD, NEW), blocks: int = 2, name: str = "tiny", tokens: int | None = 1024) -> Profile:
    """The profile described above. One 1024^3 product is 2^31 FLOP and moves 3 x 2 MiB."""
    b, n = Builder(), 1024
    x = b.value((n, n), "input")
    weights = [b.value((n, n), "parameter", name=f"blocks.{i}.proj.weight") for i in range(blocks)]
    mm = {TENSOR: 2 * n**3}
    first = x
    for i, weight in enumerate(weights):
        y, z, x = b.value((n, n)), b.value((n, n)), b.value((n, n))
        b.op("aten.mm", "contraction", "forward", f"blocks.{i}.proj", (first if i == 0 else x - 3, weight), (y,), mm)
        b.op("aten.gelu", "elementwise", "forward", f"blocks.{i}.act", (y,), (z,), {VECTOR: 8 * n * n})
        b.op("aten.native_layer_norm", "normalization", "forward", f"blocks.{i}.norm", (z,), (x,), {VECTOR: 5 * n * n},
             extra_bytes=2 * n * n)  # fmt: skip
    out = b.value((n, n))
    b.op("aten._scaled_dot_product_flash_attention", "attention", "forward", "attn", (x, x, x), (out,),
         {TENSOR: 2**31}, dense_flops=2**32)  # fmt: skip
    mystery, odd = b.value((n, n)), b.value((4,))
    b.op("mylib.mystery", "other", "forward", "", (out,), (mystery,), modeled=False)
    b.op(HOSTILE, "elementwise", "forward", HOSTILE_MODULE, (odd,), (odd,), {VECTOR: 4})
    for i, weight in reversed(list(enumerate(weights))):
        grad = b.value((n, n), "gradient", name=f"blocks.{i}.proj.weight")
        b.op("aten.mm", "contraction", "backward", f"blocks.{i}.proj", (mystery, weight), (grad,), mm)
    state = b.value((2 * blocks, n, n), "optimizer_state", "float32")
    b.op("aten._fused_adamw_", "optimizer", "optimizer", "", (state, *weights), (state, *weights),
         {VECTOR: 12 * blocks * n * n}, kernels=2)  # fmt: skip
    graph = Graph(tuple(b.values), tuple(b.storages), tuple(b.ops), (0,), tuple(weights), (mystery,))
    costs = tuple(b.costs)
    workload = WorkloadInfo(name, "tiny.py", "training", "float16", ({"shape": [n, n], "dtype": "float16"},),
                            blocks * n * n, samples=8, tokens=tokens, optimizer="adamw")  # fmt: skip
    plan = eager_plan(graph, costs)
    return Profile(workload, (graph,), (costs,), tuple(simulate(graph, plan, gpu) for gpu in gpus))
