"""What of its inputs a fusion touches: XLA computes of each element inside what a result asks for, and no more.

A slice or a gather of what other ops of the fusion compute makes these compute the part alone. Going from the results
back, each op is asked for a share of its elements, and asks for the same share of its operands; a gather asks for as
many elements as it returns, and a sum over windows for as many times more as a window has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from memwall.core.graph import Pipe, TensorSpec, distinct_bytes, union_bytes
from memwall.fusion.plan import Group
from memwall.fusion.pricing import Pricer

#: ops that read elements of their first operand at places that another one names
_PICKING = ("lax.gather", "lax.dynamic_slice")


@dataclass(frozen=True)
class Demand:
    """Bytes of the inputs of a kernel that it touches, by storage; what it reads of results that it updates; and FLOPs
    that it does, by pipe."""

    reads: Mapping[int, int]
    updated_bytes: int
    flops: Mapping[Pipe, int]

    @property
    def read_bytes(self) -> int:
        """All that it reads."""
        return sum(self.reads.values()) + self.updated_bytes


#: a view of what is read → elements of it that are asked for: the same ones, where several ops read the same view
Asked = dict[tuple[int, TensorSpec], int]


def demand_of(pricer: Pricer, group: Group) -> Demand:
    """What the results of a group ask for."""
    graph, flow = pricer.graph, pricer.flow
    values, written = graph.values, set(group.writes)
    inside = {version for i in group.op_ids for _, version in flow.writes[i]}
    asked: dict[int, Asked] = {}  # by version that is made inside
    touched: dict[int, Asked] = {}  # by storage from outside
    flops: Counter[Pipe] = Counter()
    beyond = 0
    for i in reversed(group.op_ids):
        op, cost = graph.ops[i], pricer.costs[i]
        share = max(
            1.0 if value in written else _share(asked.get(version, {}), values[value].spec)
            for value, version in flow.writes[i]
        )
        for pipe, count in cost.flops.items():
            flops[pipe] += round(share * count)
        results = sum(spec.numel for spec in graph.specs(op.outputs))
        for number, (value, version) in enumerate(flow.reads[i]):
            read = values[value]
            elements = read.spec.distinct_elements
            if number == 0 and op.name in _PICKING:
                elements = min(elements, results)
            of_it = asked.setdefault(version, {}) if version in inside else touched.setdefault(read.storage, {})
            view = read.offset, read.spec
            asks = min(share * prod(op.attributes.get("window_dimensions", ())), 1.0)
            of_it[view] = max(of_it.get(view, 0), round(asks * elements))
        beyond += max(cost.read_bytes - distinct_bytes([values[v] for v in op.inputs]), 0)
    return Demand({storage: _bytes(views) for storage, views in touched.items()}, beyond, flops)


def _share(asked: Asked, whole: TensorSpec) -> float:
    return min(sum(asked.values()) / whole.numel, 1.0) if whole.numel else 1.0


def _bytes(asked: Asked) -> int:
    """Bytes of views of one storage, no more than these have together."""
    spans = [(offset * spec.itemsize, (offset + spec.span) * spec.itemsize, spec.nbytes) for offset, spec in asked]
    return min(sum(count * spec.itemsize for (_, spec), count in asked.items()), union_bytes(spans))
