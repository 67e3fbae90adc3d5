"""A group of ops on one CPU core: seconds of arithmetic and of memory traffic, from the rates of its spec.

Assumptions, each with a constant that ``memwall calibrate`` measures on a benchmark of its own::

    compute_s  = FLOPs at the rate of the library that runs them (matmul, convolution, attention), or elements
                 at the rate of a kernel that evaluates functions, whichever is longer,
                 + the traffic of a matmul that its arithmetic does not hide
    memory_s   = bytes at the rate of the cache that holds all that the kernel touches, or of DRAM

A read hits a cache if no more bytes than the cache holds have moved since the last touch. A write goes to the cache
that holds what the kernel touches: the allocator reuses the memory that was freed last. CUDA kernels' extra FLOPs
(three TF32 matmuls for a float32 one) do not apply; second passes over rows hit a cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from memwall.core.graph import Graph, Op, TensorSpec
from memwall.hardware.constants import Constants
from memwall.hardware.gpu import Cpu
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.ops.registry import find_row
from memwall.perfmodel.roofline import Prediction, bound_s

#: images of a batch from which torch hands pointwise convolutions to oneDNN (Convolution.cpp, ``use_mkldnn``)
BATCHED = 16


#: rates that do not count the output's elements but the input's, or the output's times the window's
_COUNTS: Mapping[str, str] = {"variance": "input", "max_pool": "window"}


def predict_on_cpu(
    graph: Graph, op_ids: Sequence[int], cost: Cost, gpu: Gpu, reuse: Sequence[tuple[int, int]]
) -> Prediction:
    """The prediction of a group on a CPU, with :func:`kernel_time_s`'s arguments. Its interval is the
    widest one of GPUs without rows of their own."""
    compute, memory = kernel_time_s(graph, op_ids, cost, gpu, reuse)
    bound = bound_s(cost, gpu)
    memory = max(memory, bound)
    floor_s = cost.latencies * gpu.launch_overhead_s
    time_s, around = max(compute, memory) + floor_s, Constants.UNKNOWN
    return Prediction(
        bound_s=bound,
        compute_s=compute,
        memory_s=memory,
        overhead_s=floor_s,
        low_s=max(time_s * around[0], bound),
        high_s=time_s * around[1],
    )


def kernel_time_s(
    graph: Graph, op_ids: Sequence[int], cost: Cost, gpu: Gpu, reuse: Sequence[tuple[int, int]]
) -> tuple[float, float]:
    """(seconds of arithmetic, seconds of memory traffic) of a group on a CPU.

    Args:
        reuse: (bytes, distance) of every read that was touched before, as
            :func:`memwall.simulate.memory.reuse_distances` gives it.
    """
    cpu = gpu.cpu
    if cpu is None:
        raise ValueError(f"{gpu.name} is no CPU: its spec has no [cpu]")
    ops = [graph.ops[i] for i in op_ids]
    rates = [cpu.flop_per_s[name] for op in ops if (name := product_name(graph, op)) in cpu.flop_per_s and name]
    flops_s = sum((n / (gpu.peak(p) * gpu.achievable_fraction(p)) for p, n in cost.flops.items()), 0.0)
    compute = max(cost.total_flops / rates[0] if rates else flops_s, sum(_elements_s(graph, op, cpu) for op in ops))
    dram_bytes_per_s = gpu.dram_bytes_per_s * gpu.achievable["dram"]
    resident = sum(nbytes for nbytes, distance in reuse if distance <= gpu.l2_bytes)
    if any(op.op_class == "contraction" for op in ops):  # the reads that no cache holds
        compute += cpu.exposed_traffic * (max(cost.read_bytes - resident, 0) / dram_bytes_per_s)
    moved, cached = cost.bytes + cost.extra_bytes, 0
    rate = cpu.rate_for(cost.bytes)
    if rate is not None:
        cached = min(moved, min(resident, cost.read_bytes) + cost.write_bytes + cost.extra_bytes)
    return compute, (moved - cached) / dram_bytes_per_s + (cached / rate if rate else 0.0)


def _elements_s(graph: Graph, op: Op, cpu: Cpu) -> float:
    name = kernel_name(op)
    rate = cpu.elements_per_s.get(name) if name else None
    return _elements(graph, op, _COUNTS.get(name, "output")) / rate if name and rate else 0.0


def kernel_name(op: Op) -> str | None:
    """Which rate of :data:`memwall.hardware.gpu.KERNELS` an op runs at; None where bytes alone set its time."""
    row = find_row(op.name)
    name = row.cpu_rate if row else ""
    if name == "gelu" and op.attributes.get("approximate") == "tanh":
        return "gelu_tanh"
    if name == "batch_norm_training" and not op.attributes.get("training", True):
        return "batch_norm"
    return name or None


def _elements(graph: Graph, op: Op, counts: str) -> int:
    """Elements of a kernel, counted as :data:`_COUNTS` says."""
    if counts == "input":
        return _spec(graph, op.inputs[0]).numel
    count = _spec(graph, op.outputs[0]).numel
    if counts == "window":
        size = op.attributes["kernel_size"]
        count *= size**2 if isinstance(size, int) else math.prod(size) ** (2 // len(size))
    return count


def product_name(graph: Graph, op: Op) -> str | None:
    """Which rate of :data:`memwall.hardware.gpu.PRODUCTS` a float32 op runs at; None of all others."""
    if op.op_class not in ("attention", "convolution") or not op.inputs:
        return None
    if _spec(graph, op.inputs[0]).dtype != "float32" or "backward" in op.name:
        return None
    if op.op_class == "attention":
        return "attention"
    specs = {name: _spec(graph, i) for name, i in zip(op.arguments, op.inputs, strict=False)}
    weight = specs.get("weight")
    return None if weight is None else _convolution_name(op, _spec(graph, op.inputs[0]), weight)


def _convolution_name(op: Op, images: TensorSpec, weight: TensorSpec) -> str:
    groups = op.attributes.get("groups", 1)
    if groups > 1 and weight.shape[1] == 1:
        return "depthwise_convolution"
    stride = op.attributes.get("stride", 1)
    if max(stride if isinstance(stride, Sequence) else (stride,)) > 1:
        return "strided_convolution"
    if max(weight.shape[2:], default=1) > 1:
        return "window_convolution"
    return "pointwise_convolution_batched" if images.shape[0] >= BATCHED else "pointwise_convolution"


def _spec(graph: Graph, value_id: int) -> TensorSpec:
    return graph.values[value_id].spec
