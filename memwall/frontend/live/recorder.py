"""A recorder of running code, for :mod:`memwall.frontend.live.trace`.

Parameters are those of the modules that are called, leaves that require a gradient, and what an optimizer updates;
inputs are in memory before they are first read; outputs are still alive at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.multiprocessing.reductions import StorageWeakRef

from memwall.core.errors import UsageError
from memwall.core.graph import Graph, Op
from memwall.frontend.torch.recorder import Recorder
from memwall.frontend.torch.tensors import flat_tensors


class LiveRecorder(Recorder):
    """A recorder that keeps no data alive and finds the roles of tensors by itself."""

    supports_higher_order_operators = True

    def __init__(self, classify: Callable[[str], str], *, device: str, max_ops: int) -> None:
        super().__init__(classify, device=device, max_ops=max_ops)
        #: parameters by id, kept alive so that the id stays theirs
        self.parameters: dict[int, torch.Tensor] = {}
        #: an optimizer is stepping that counts its steps on the host
        self.counts_on_host = False
        self._alive: dict[int, StorageWeakRef] = {}

    def bind(self, tensor: torch.Tensor, storage: int) -> None:
        """Bind a tensor to a storage; its address stays reserved, its data may be freed."""
        raw = tensor.untyped_storage()
        self._alive[storage] = StorageWeakRef(raw)
        self._storage_ids[raw._cdata] = storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, HigherOrderOperator):
            raise UsageError(
                f"a trace cannot record {func.name()}, an operator that takes Python functions; write it out in plain"
                " PyTorch, or leave it outside the block"
            )
        if args and isinstance(args[0], torch.Tensor):  # a view of a leaf is not a leaf
            self._meet(args[0])
        return super().__torch_dispatch__(func, types, args, kwargs)

    def emit(
        self, name: str, names: Iterable[str], inputs: Iterable[torch.Tensor], outputs: Iterable[torch.Tensor],
        attributes: Iterable[tuple[str, Any]] = (),
    ) -> None:  # fmt: skip
        """Record one call; what it reads but nothing has written existed before."""
        if name.startswith("prims.") and self.device == "meta":
            return  # forward-mode derivatives: ATen asks for a shape, and nothing runs
        read = list(inputs)
        for tensor in read:
            if not self._meet(tensor) and tensor.device.type == self.device and self.knows(tensor) is None:
                self.storage(tensor, "input")
        super().emit(name, names, read, outputs, attributes)

    def _meet(self, tensor: torch.Tensor) -> bool:
        """Note a leaf that requires a gradient; whether it is one."""
        if not (tensor.requires_grad and tensor.is_leaf and tensor.device.type == self.device):
            return False
        if id(tensor) not in self.parameters and self.knows(tensor) is None:
            self.take(tensor, "")
        return True

    def take(self, tensor: torch.Tensor, name: str, path: str = "") -> None:
        """Register a parameter by its name."""
        if tensor.device.type == self.device and id(tensor) not in self.parameters:
            self.parameters[id(tensor)] = tensor
            self.set_role(tensor, "parameter", name)
            self.own(tensor, path)

    def _is_host_call(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
        counts = self.counts_on_host and not any(t.dim() for t in (*inputs, *outputs))
        return counts or super()._is_host_call(inputs, outputs)

    def finished(self, attention: str, roots: Counter[str]) -> Graph:
        """The graph of what was recorded, modules named by :func:`plain_name`."""
        for tensor in self.parameters.values():
            for part in flat_tensors(tensor.grad):
                if self.knows(part) is not None:
                    name = self.storages[self.storage(tensor)].name
                    self.set_role(part, "gradient", name)
        roles = [storage.role for storage in self.storages]
        first: dict[int, int] = {}
        for value in self.values:
            first.setdefault(value.storage, value.id)
        graph = self.graph(
            [i for storage, i in first.items() if roles[storage] == "input"],
            [first[self.storage(t)] for t in self.parameters.values() if self.storage(t) in first],
            self._outputs(),
            attention,
        )
        return replace(graph, ops=tuple(_renamed(op, roots) for op in graph.ops))

    def _outputs(self) -> list[int]:
        """The last value written into each live storage; if there is none, into each storage that nothing reads."""
        read = {self.values[i].storage for op in self.ops for i in op.inputs}
        written = {self.values[i].storage: i for op in self.ops for i in op.outputs}
        results = {storage: value for storage, value in written.items() if self.storages[storage].role == "activation"}
        alive = [value for storage, value in results.items() if not self._alive[storage].expired()]
        return alive or [value for storage, value in results.items() if storage not in read]


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """What torch.func's wrappers (``vmap``, ``grad``) hold: the tensor that has the storage."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def plain_name(path: str, roots: Counter[str]) -> str:
    """``Net.0.up`` is ``Net.up`` where one ``Net`` was called; of several each keeps its number."""
    name, _, rest = path.partition(".")
    if roots[name] != 1:
        return path
    return name + rest.removeprefix("0")


def _renamed(op: Op, roots: Counter[str]) -> Op:
    return replace(op, module=plain_name(op.module, roots)) if op.module else op
