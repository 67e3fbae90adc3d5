"""A graph, written call by call: what PyTorch's recorder and the readers of jaxprs, StableHLO, HLO and ONNX write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memwall.core.errors import UsageError
from memwall.core.graph import Graph, Op, Storage, TensorSpec, Value, contiguous
from memwall.ops.registry import classify

#: ops of a graph unless another limit is given
MAX_OPS = 200_000


class GraphWriter:
    """Values, storages and ops in call order; each method returns the id of what it wrote.

    ``max_ops`` stops a loop that is written out too often. ``module``, ``source``, ``phase`` and ``again`` are of
    the ops that follow, where a call gives no others.
    """

    def __init__(self, max_ops: int = MAX_OPS) -> None:
        self.values: list[Value] = []
        self.storages: list[Storage] = []
        self.ops: list[Op] = []
        self.free_calls: Counter[str] = Counter()
        self.module, self.source, self.phase, self.again = "", "", "forward", False
        self._max_ops = max_ops
        #: ops that were there when the last trip began, and trips since then that have written none
        self._written, self._idle = 0, 0
        self._specs: dict[TensorSpec, TensorSpec] = {}

    def array(self, shape: Sequence[int], dtype: str, role: str = "activation", name: str = "") -> int:
        """A value that fills a new storage, row by row.

        Args:
            shape: in elements.
            dtype: a name of :data:`memwall.core.graph.ITEMSIZE`.
            role: one of :data:`memwall.core.graph.ROLES`.
        """
        spec = contiguous(shape, dtype)
        self.storages.append(Storage(len(self.storages), spec.nbytes, role, name))
        return self._value(spec, len(self.storages) - 1, 0)

    def view(
        self, source: int, shape: Sequence[int], strides: Sequence[int], offset: int = 0, dtype: str | None = None
    ) -> int:
        """Another view of a value's storage; moves nothing.

        Args:
            shape, strides: in elements.
            offset: elements from the value's first.
            dtype: another one of the same size.
        """
        value = self.values[source]
        spec = TensorSpec(tuple(shape), tuple(strides), dtype or value.spec.dtype)
        return self._value(spec, value.storage, value.offset + offset)

    def op(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        *,
        arguments: Sequence[str] = (),
        attributes: Mapping[str, Any] | None = None,
        **said: Any,
    ) -> int:
        """A call that reads and writes some values; ``said`` are further fields of :class:`memwall.core.graph.Op`.

        Raises:
            UsageError: there are more ops than allowed.
        """
        self._check(len(self.ops))
        place = {"module": self.module, "source": self.source, "phase": self.phase, "again": self.again}
        own = {**place, **said}
        self.ops.append(
            Op(
                len(self.ops),
                name,
                classify(name, own["phase"]),
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                arguments=tuple(arguments),
                attributes=attributes or {},
                **own,
            )
        )
        return len(self.ops) - 1

    def trip(self) -> None:
        """A trip of a loop that is written out begins.

        Raises:
            UsageError: there are more that write no op, one after another, than ops are allowed.
        """
        before, self._written = self._written, len(self.ops)
        self._idle = self._idle + 1 if before == self._written else 0
        self._check(self._idle)

    def _check(self, written: int) -> None:
        if written >= self._max_ops:
            raise UsageError(
                f"the program has more than {self._max_ops:,} ops, loops written out (--max-ops allows more); profile"
                " fewer iterations"
            )

    def free(self, name: str) -> None:
        """A call that launches nothing under any policy."""
        self.free_calls[name] += 1

    def spec(self, value: int) -> TensorSpec:
        """Shape, strides and dtype of a value."""
        return self.values[value].spec

    def graph(
        self, inputs: Iterable[int] = (), parameters: Iterable[int] = (), outputs: Iterable[int] = (), **said: Any
    ) -> Graph:
        """What was written; ``said`` are further fields of :class:`memwall.core.graph.Graph`."""
        return Graph(
            tuple(self.values),
            tuple(self.storages),
            tuple(self.ops),
            tuple(inputs),
            tuple(parameters),
            tuple(outputs),
            dict(self.free_calls),
            **said,
        )

    def _value(self, spec: TensorSpec, storage: int, offset: int) -> int:
        self.values.append(Value(len(self.values), self._specs.setdefault(spec, spec), storage, offset))
        return len(self.values) - 1


def reshape_strides(spec: TensorSpec, shape: Sequence[int]) -> tuple[int, ...] | None:
    """The strides with which a tensor is seen in another shape of as many elements; None where it must be copied
    (``computeStride`` of ATen's TensorUtils.cpp)."""
    if 0 in spec.shape:
        return contiguous(shape, spec.dtype).strides
    if not spec.shape:
        return (1,) * len(shape)
    strides, axis, made = [1] * len(shape), len(shape) - 1, 1
    step, run = spec.strides[-1], 1  # of the axes that lie as one, from the last on
    for i in reversed(range(len(spec.shape))):
        run *= spec.shape[i]
        if i and (spec.shape[i - 1] == 1 or spec.strides[i - 1] == run * step):
            continue
        while axis >= 0 and (made < run or shape[axis] == 1):
            strides[axis] = made * step
            made *= shape[axis]
            axis -= 1
        if made != run:
            return None
        if i:
            step, run, made = spec.strides[i - 1], 1, 1
    return tuple(strides) if axis < 0 else None
