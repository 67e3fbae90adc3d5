"""A group of ops run one by one by PyTorch, on memory addressed by value: as in eager, or in float64.

In float64 every floating value is kept that wide from op to op, casts between floats included; casts to integers and
booleans are real.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from memwall.bench.kernels.arena import Arena, WideMemory, widened
from memwall.bench.kernels.forms import FORMULAS
from memwall.bench.kernels.numerics import FLOATS, UNIT_FLOAT32, unit
from memwall.core.errors import Unsupported
from memwall.core.graph import Graph, Op
from memwall.fusion import Group
from memwall.ops.evaluate import Call, Operators, evaluate


class Noise:
    """Random rounding of a value: each element times 1 + u · amplitude, u uniform in ±1."""

    def __init__(self, seed: int, device: str) -> None:
        self.generator = torch.Generator(device).manual_seed(seed)

    def on(self, tensor: Tensor, amplitude: float) -> Tensor:
        """A copy with noise; zeros, infinities and NaN stay what they are."""
        drawn = torch.rand(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=self.generator)
        return tensor * drawn.mul_(2).sub_(1).mul_(amplitude).add_(1)


def run_group(
    graph: Graph,
    group: Group,
    memory: Arena | WideMemory,
    operators: Operators,
    kept: Mapping[int, Tensor] | None = None,
    noise: Noise | None = None,
) -> None:
    """Run the ops of a group on ``memory``, in place.

    Args:
        kept: values that are not drawn at random but taken as given, by id: the masks of dropouts.
        noise: in float64 only: rounds what an op reads as the dtypes of the graph would.

    Raises:
        Unsupported: an op is no operator of torch's, or has no kernel on this device.
    """
    GroupRun(graph, group, memory, operators, dict(kept or {}), noise).run()


class GroupRun:
    """One run of a group's ops."""

    def __init__(
        self, graph: Graph, group: Group, memory: Arena | WideMemory, operators: Operators,
        kept: dict[int, Tensor], noise: Noise | None,
    ) -> None:  # fmt: skip
        self.graph, self.group, self.memory, self.operators = graph, group, memory, operators
        self.kept, self.noise = kept, noise
        self.wide = isinstance(memory, WideMemory)
        self.device = memory.arena.device if isinstance(memory, WideMemory) else memory.device
        #: storages that the group has written
        self.written: set[int] = set()
        #: of the current op: what it overwrites, and how many numbers it adds up
        self._into: Sequence[int] = ()
        self._terms = 1

    def run(self) -> None:
        with torch.no_grad(), _default_dtype(torch.float64 if self.wide else torch.float32):
            evaluate(self.graph, sorted((*self.group.op_ids, *self.group.recomputes)), self, self._op, self.operators)

    def begin(self, op: Op, into: Sequence[int]) -> None:
        """Start an op: rounding depends on what it does."""
        self._into, self._terms = into, terms_of(self.graph, op)

    def tensor(self, value_id: int) -> Tensor:
        """The tensor of a value, with noise where it is rounded at random."""
        found = self.memory[value_id]
        if self.noise is None or not found.is_floating_point():
            return found
        value = self.graph.values[value_id]
        amplitude = UNIT_FLOAT32 * math.sqrt(self._terms)
        if value.storage in self.written:
            amplitude += unit(value.spec.dtype)
        noisy = self.noise.on(found, amplitude)
        return found.copy_(noisy) if value_id in self._into else noisy

    def _op(self, call: Call) -> None:
        results = FORMULAS.get(call.op.name, GroupRun.call)(self, call)
        for value_id, result in zip(call.made, results, strict=False):
            self._store(call.op, value_id, result)
        self.written.update(self.graph.values[i].storage for i in call.op.outputs)

    def call(self, call: Call) -> list[Tensor]:
        """The operator's results in order, without those that it overwrites."""
        if call.operator is None:
            raise Unsupported(f"torch has no operator {call.op.name} here")
        function = call.operator.function
        try:
            positional, keywords = call.arguments()
            if self.wide:
                positional = [_wide_argument(a) for a in positional]
                keywords = {name: _wide_argument(a) for name, a in keywords.items()}
            result = function(*positional, **keywords)
        except (Unsupported, RuntimeError, IndexError, TypeError, ValueError) as error:
            said = next(iter(str(error).splitlines()), type(error).__name__)
            raise Unsupported(f"{call.op.name}: {said}") from error
        returns = function._schema.returns
        if not returns:  # _foreach_add_ and its kin
            return []
        listed = result if isinstance(result, (tuple, list)) and len(returns) > 1 else [result]
        declared = [r.alias_info and r.alias_info.is_write for r in returns]
        return list(_tensors([r for r, written in zip(listed, declared, strict=True) if not written]))

    def _store(self, op: Op, value_id: int, result: Tensor) -> None:
        destination = self.memory[value_id]
        if destination.shape == result.shape:
            destination.copy_(result)
        elif value_id in self.group.writes:  # else nobody reads it: statistics of a batch norm in inference
            raise Unsupported(f"{op.name} gives {[*result.shape]} here, not {[*destination.shape]}")


def terms_of(graph: Graph, op: Op) -> int:
    """How many numbers an op adds up for one element of a result, or more."""
    if op.op_class not in _ADDING_CLASSES and _packet(op.name) not in _ADDING:
        return 1
    read = [spec for spec in graph.specs(op.inputs) if spec.dtype in FLOATS]
    largest = max(read, key=lambda spec: spec.numel, default=None)
    if largest is None:
        return 1
    smallest = min((spec.numel for spec in graph.specs(op.outputs)), default=1)
    return max(largest.numel // max(smallest, 1), *largest.shape, 1)


_ADDING_CLASSES = frozenset(("reduction", "normalization", "contraction", "convolution"))
_ADDING = frozenset(("embedding_dense_backward", "index_put", "index_put_", "index_add", "_embedding_bag"))


def _wide_argument(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return widened(value)
    if isinstance(value, Tensor) and value.dtype != widened(value.dtype):  # a stand-in that no value gave
        return value.to(widened(value.dtype))
    return value


def _tensors(results: Sequence[Any]) -> Iterator[Tensor]:
    """The tensors of some results, lists opened, a sparse one as its indices and values."""
    for result in results:
        if isinstance(result, (list, tuple)):
            yield from _tensors(result)
        elif isinstance(result, Tensor) and result.is_sparse:
            yield from (result._indices(), result._values())
        elif result is not None:
            yield result


def _packet(name: str) -> str:
    return name.split(".")[1] if "." in name else name


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Integers divided give this dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
