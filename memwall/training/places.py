"""Where the ops of a traced training step are: before the repeated layers, in one of them, or after them; which are of
attention's core, which are collectives, and which all ranks compute alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from memwall.core.errors import UsageError
from memwall.core.graph import Graph, Op, Value
from memwall.core.ranks import read_ranks

#: part of a collective's name -> its name in :mod:`memwall.perfmodel.collectives`
_COLLECTIVES: Mapping[str, str] = {
    "allreduce": "all_reduce", "all_reduce": "all_reduce", "allgather": "all_gather", "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all", "all_to_all": "all_to_all", "recv": "send_recv",
}  # fmt: skip
#: collectives that leave each rank a part of its own
_PARTING = ("reduce_scatter", "all_to_all")
#: where an op is: before the layers, in one, or after them
BEFORE, AFTER = -1, 1 << 30


def places_of(graph: Graph) -> list[int]:
    """Where each op is: the number of its layer in the longest list; other ops by their neighbours."""
    prefix, modules = _list_of_layers(graph), {op.module for op in graph.ops}
    of_module = {module: _number(module, prefix) for module in modules}
    numbers = [of_module[op.module] for op in graph.ops]
    count = len({number for number in numbers if number is not None})
    found, last = [], {"forward": BEFORE, "backward": AFTER, "optimizer": AFTER}
    seen: Counter[str] = Counter()
    ends = {"forward": _last(graph, numbers, "forward"), "backward": _last(graph, numbers, "backward")}
    for op, number in zip(graph.ops, numbers, strict=True):
        if number is not None:
            seen[op.phase] += 1
            last[op.phase] = number
        elif count and seen[op.phase] and op.id > ends.get(op.phase, op.id):
            last[op.phase] = AFTER if op.phase == "forward" else BEFORE
        found.append(last[op.phase])
    return found


def _last(graph: Graph, numbers: list[int | None], phase: str) -> int:
    """The last op of a phase that is in a layer."""
    own = zip(graph.ops, numbers, strict=True)
    return max((op.id for op, number in own if op.phase == phase and number is not None), default=-1)


def _list_of_layers(graph: Graph) -> str:
    """The path of the list with the most layers, of lists that have half of the ops in modules with numbers."""
    ops: Counter[str] = Counter()
    layers: defaultdict[str, set[str]] = defaultdict(set)
    for module, count in Counter(op.module for op in graph.ops).items():
        parts = module.split(".")
        for at in (i for i, part in enumerate(parts) if part.isdecimal()):
            ops[".".join(parts[:at])] += count
            layers[".".join(parts[:at])].add(parts[at])
    most = max(ops.values(), default=0)
    lists = [prefix for prefix in ops if len(layers[prefix]) > 1 and 2 * ops[prefix] >= most]
    if not lists:
        raise UsageError("the model has no list of layers (nn.ModuleList, nn.Sequential), by which a layout divides it")
    return max(lists, key=lambda prefix: (len(layers[prefix]), prefix))


def _number(module: str, prefix: str) -> int | None:
    if prefix and not module.startswith(f"{prefix}."):
        return None
    number = module[len(prefix) :].lstrip(".").partition(".")[0]
    return int(number) if number.isdecimal() else None


def core_ops(graph: Graph, places: list[int]) -> dict[int, int]:
    """Ops of attention's core, and the layer of each: from the first matmul of activations in a layer's forward pass
    to the last."""
    products: defaultdict[int, list[int]] = defaultdict(list)
    for op in graph.ops:
        if op.phase == "forward" and op.op_class in ("contraction", "attention"):
            roles = {graph.storages[graph.values[i].storage].role for i in op.inputs}
            if places[op.id] not in (BEFORE, AFTER) and "parameter" not in roles:
                products[places[op.id]].append(op.id)
    return {op: place for place, ops in products.items() for op in range(ops[0], ops[-1] + 1)}


def collective_of(op: Op) -> str:
    """The name in :mod:`memwall.perfmodel.collectives`; empty if it is no collective or counted at its other end."""
    if op.op_class != "communication":
        return ""
    return next((name for key, name in _COLLECTIVES.items() if key in op.name), "")


def repeated_ops(graph: Graph, shares: Collection[str]) -> frozenset[int]:
    """Ops that every rank that shares matmuls computes alike: nothing that they read or make follows from a rank's own
    part of a parameter (``shares``, by name) or of the sequence. All-reduces and all-gathers make it whole again."""
    fixed = {each.id for each in graph.storages if each.role in ("parameter", "gradient") and each.name in shares}
    if not fixed:
        return frozenset()
    parts, names = set(fixed), [collective_of(op) for op in graph.ops]
    along = {
        len(read_ranks(str(op.attributes["group"])))
        for op, name in zip(graph.ops, names, strict=True)
        if name == "reduce_scatter"
    }
    found = set[int]()

    def is_part(value: Value) -> bool:
        nbytes = graph.storages[value.storage].nbytes
        return value.storage in parts or any(value.spec.nbytes * ranks == nbytes for ranks in along)

    for op, name in zip(graph.ops, names, strict=True):
        made = {graph.values[i].storage for i in op.outputs}
        if name in ("all_reduce", "all_gather"):
            parts -= made - fixed
        elif name in _PARTING or made & fixed or any(is_part(graph.values[i]) for i in op.inputs):
            parts |= made
        else:
            found.add(op.id)
    return frozenset(found)
