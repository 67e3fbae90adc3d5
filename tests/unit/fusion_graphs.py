"""Builds small graphs for the fusion tests without torch, and a GPU with round numbers to plan them for."""

import math
from dataclasses import replace

from memwall.core.graph import Graph, Op, Pipe, Storage, TensorSpec, Value, contiguous
from memwall.fusion import Plan, plan_graph
from memwall.hardware.host import Host
from memwall.hardware.lookup import Gpu
from memwall.ops import classify, graph_costs


class Builder:
    """Tensors and ops in call order; every method returns value ids."""

    def __init__(self, phase: str = "forward") -> None:
        self.values: list[Value] = []
        self.storages: list[Storage] = []
        self.ops: list[Op] = []
        self.phase = phase

    def tensor(self, *shape: int, dtype: str = "float32", role: str = "activation") -> int:
        """A row-major tensor on a storage of its own."""
        spec = contiguous(shape, dtype)
        self.storages.append(Storage(len(self.storages), math.prod(shape) * spec.itemsize, role))
        return self._value(spec, len(self.storages) - 1, 0)

    def given(self, *shape: int, dtype: str = "float32", role: str = "input") -> int:
        """A tensor that is there before the first op."""
        return self.tensor(*shape, dtype=dtype, role=role)

    def view(self, of: int, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> int:
        """Another view of the storage of a value; ``offset`` in elements, from the start of that value."""
        old = self.values[of]
        return self._value(TensorSpec(shape, strides, old.spec.dtype), old.storage, old.offset + offset)

    def _value(self, spec: TensorSpec, storage: int, offset: int) -> int:
        self.values.append(Value(len(self.values), spec, storage, offset))
        return len(self.values) - 1

    def op(self, name: str, inputs, outputs, **attributes) -> int:
        """An op of the current phase. ``inputs``: value ids, or (argument, value id) pairs."""
        pairs = [item if isinstance(item, tuple) else (f"arg{n}", item) for n, item in enumerate(inputs)]
        op_id = len(self.ops)
        self.ops.append(Op(
            op_id, name, classify(name), self.phase, "", tuple(v for _, v in pairs), tuple(outputs),
            tuple(a for a, _ in pairs), attributes,
        ))  # fmt: skip
        return op_id

    def call(self, name: str, inputs, *shape: int, dtype: str = "float32", **attributes) -> int:
        """An op with one new result of that shape (scalar where none is given)."""
        out = self.tensor(*shape, dtype=dtype)
        self.op(name, inputs, [out], **attributes)
        return out

    def like(self, name: str, *inputs, **attributes) -> int:
        """An op whose result is as its first input, row-major."""
        first = inputs[0][1] if isinstance(inputs[0], tuple) else inputs[0]
        spec = self.values[first].spec
        return self.call(name, inputs, *spec.shape, dtype=spec.dtype, **attributes)

    def graph(self, *outputs: int) -> Graph:
        inputs = tuple(v.id for v in self.values if self.storages[v.storage].role == "input")
        return Graph(tuple(self.values), tuple(self.storages), tuple(self.ops), inputs, (), outputs)


def round_gpu(**changes) -> Gpu:
    """100 multiprocessors, 1 TB/s, 2 us a launch, no L2, all of it achievable; ``dispatch_s`` for an op on its host."""
    spec = {
        "name": "round", "full_name": "Round Numbers", "vendor": "none", "architecture": "test",
        "compute_capability": "9.0", "release": "2020-01", "aliases": (), "sm_count": 100, "boost_clock_hz": 1e9,
        "peak_flop_per_s": {Pipe("tensor", "float16"): 1e15, Pipe("vector", "float32"): 1e14},
        "dram_bytes_per_s": 1e12, "dram_bytes": 16_000_000_000, "l2_bytes": 0, "l2_bytes_per_s": 10e12,
        "link_bytes_per_s": 0.0, "tdp_w": 100.0, "launch_overhead_s": 2e-6,
        "achievable": {"dram": 1.0, "tensor.float16": 1.0, "vector.float32": 1.0}, "sources": {},
        "calibration": "datasheet", "host": Host.uniform(changes.pop("dispatch_s", 0.0)),
    }  # fmt: skip
    return Gpu(**{**spec, **changes})


def without_cache(gpu: Gpu) -> Gpu:
    """The GPU without L2 residency and with a host that is never late."""
    return replace(gpu, l2_bytes=0, host=Host.uniform(0.0))


def plan(policy: str, graph: Graph, gpu: Gpu | None = None, regions=None) -> Plan:
    return plan_graph(policy, graph, graph_costs(graph), gpu or round_gpu(), regions)


def moved(plan: Plan) -> int:
    """DRAM bytes of a plan."""
    return sum(group.cost.bytes for group in plan.groups)


def groups_of(plan: Plan) -> list[tuple[int, ...]]:
    """The op ids of each group, in the order of their first ops."""
    return sorted(group.op_ids for group in plan.groups)
