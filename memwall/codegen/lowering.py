"""Group → tensors as functions: every op of a group by its rule, views between them as index arithmetic."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from memwall.codegen.index import AffineIndex, offset
from memwall.codegen.kernel import NotGenerated
from memwall.codegen.ops import RULES
from memwall.codegen.ops.base import OpRule, OpView, Waiting
from memwall.codegen.ops.elementwise import point
from memwall.codegen.tensors import Body, Indices, Scatter, Tensor, compute_dtype
from memwall.core.flow import Flow
from memwall.core.graph import Graph, Op, TensorSpec
from memwall.ops.registry import find_row


class Lowering:
    """The ops of a group as tensors; ``made`` by version, ``updates`` by the value that an unseen write overwrites."""

    def __init__(self, graph: Graph, flow: Flow, op_ids: Sequence[int]) -> None:
        self.graph, self.flow = graph, flow
        self.made: dict[int, tuple[Tensor | Scatter, int]] = {}
        self.stored: dict[int, Tensor] = {}
        self.updates: dict[int, Tensor] = {}
        self.loads: dict[tuple[int, int], Tensor] = {}
        self.inside = frozenset(op_ids)
        for position, op_id in enumerate(sorted(op_ids)):
            self._op(graph.ops[op_id], position)

    def _op(self, op: Op, position: int) -> None:
        packet, rule = _packet(op.name), rule_of(op.name)
        if rule is None:
            raise NotGenerated(f"no rule for {op.name}")
        if op.op_class == "normalization" and "float64" in {spec.dtype for spec in self.graph.specs(op.inputs)}:
            raise NotGenerated("statistics of float64")
        view = OpView(op, packet, tuple(self._given(op)), self.graph.specs(op.outputs), position)
        results = rule(view)
        if len(results) < len(op.outputs):
            raise NotGenerated(f"{op.name} makes {len(op.outputs)} tensors, its rule {len(results)}")
        for (value_id, version), result in zip(self.flow.writes[op.id], results, strict=False):
            self.made[version] = (result, value_id)
        for argument, tensor in view.updates.items():
            value_id = next(i for name, i in zip(op.arguments, op.inputs, strict=True) if name == argument)
            self.updates[value_id] = tensor

    def _given(self, op: Op) -> Iterator[tuple[str, Tensor]]:
        """The tensors that an op takes, by argument."""
        for argument, (value_id, version) in zip(op.arguments, self.flow.reads[op.id], strict=True):
            made = self.flow.writer[version] in self.inside
            yield argument, self.view(value_id, version) if made else self.load(value_id, version)

    def load(self, value_id: int, version: int) -> Tensor:
        """A value in memory, at a version of its storage."""
        if (value_id, version) not in self.loads:
            spec = self.graph.values[value_id].spec
            compute_dtype(spec.dtype)
            self.loads[value_id, version] = Tensor(
                spec.shape, spec.dtype, lambda body, i: body.load(value_id, version, offset(i, spec.strides))
            )
        return self.loads[value_id, version]

    def view(self, value_id: int, version: int) -> Tensor:
        """A value that an op of the group made, perhaps through another view of its storage."""
        made, written_id = self.made[version]
        read, written = self.graph.values[value_id], self.graph.values[written_id]
        source = self._whole(version, made)
        if (read.spec, read.offset) == (written.spec, written.offset):
            return source
        if self.flow.carries[version] >= 0:
            raise NotGenerated("a tensor written in part is read as a whole")
        if read.spec.dtype != written.spec.dtype:
            raise NotGenerated(f"{written.spec.dtype} read as {read.spec.dtype}")

        def rule(body: Body, i: Indices) -> str:
            place = offset(i, read.spec.strides) + (read.offset - written.offset)
            return source.at(body, locate(place, written.spec))

        return Tensor(read.spec.shape, read.spec.dtype, rule)

    def _whole(self, version: int, made: Tensor | Scatter) -> Tensor:
        """The tensor, or its copy in memory once that is whole (:attr:`stored`): a scatter can be read only there."""

        def rule(body: Body, indices: Indices) -> str:
            whole = self.stored.get(version, made)
            if isinstance(whole, Scatter):
                raise Waiting
            return whole.at(body, indices)

        return Tensor(made.shape, made.dtype, rule)


def is_given(graph: Graph, flow: Flow, value_id: int, op_ids: Collection[int]) -> bool:
    """Whether a value's memory is there before some ops run."""
    storage = graph.storages[graph.values[value_id].storage]
    return storage.is_persistent or flow.writer[flow.first[storage.id]] not in op_ids


def rule_of(name: str) -> OpRule | None:
    """The rule that computes an op's results from its arguments; None where nothing is generated for it."""
    row = find_row(name)
    return RULES.get(_packet(name)) or (point if row and row.expression else None)


def locate(place: AffineIndex, spec: TensorSpec) -> Indices:
    """The indices of a dense tensor's element at an offset.

    Raises:
        NotGenerated: its elements overlap or leave gaps.
    """
    order = sorted((i for i, size in enumerate(spec.shape) if size > 1), key=lambda i: -spec.strides[i])
    expected, found = 1, [AffineIndex()] * len(spec.shape)
    for axis in reversed(order):
        if spec.strides[axis] != expected:
            raise NotGenerated("a view of a tensor that is not dense")
        expected *= spec.shape[axis]
    for axis in order:
        found[axis], place = place.divmod(spec.strides[axis])
    return tuple(found)


def packet_of(name: str) -> str:
    """An op's name without library and overload: ``add_`` of ``aten.add_.Tensor``; names of other libraries whole."""
    library, _, rest = name.partition(".")
    return rest.partition(".")[0] if library == "aten" else name


def _packet(name: str) -> str:
    """The packet, the same for an in-place op as for its functional form."""
    packet = packet_of(name)
    return packet[:-1] if packet.endswith("_") and not packet.endswith("__") else packet
