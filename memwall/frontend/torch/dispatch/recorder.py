"""The recorder: a dispatch mode that records every call that does work, as values in storages.

Device tensors are ``meta`` tensors (or, with ``--real``, CPU tensors): shapes without data. Calls on host tensors while
tracing on meta run on the CPU next to the GPU, and are not recorded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from memwall.core import compat
from memwall.core.errors import TooManyOps, UsageError
from memwall.core.graph import HELD, Graph, Op, Storage, TensorSpec, Value
from memwall.core.progress import CountedLine, tell
from memwall.frontend.torch.dispatch.bodies import body_of
from memwall.frontend.torch.dispatch.origin import ModuleTimeline, Passes, SourceLines
from memwall.frontend.torch.dispatch.rebinding import rebind
from memwall.frontend.torch.dispatch.streams import Streams
from memwall.frontend.torch.dispatch.tensors import (
    adds_sparse,
    check_product,
    check_stored,
    dtype_name,
    flat_tensors,
    freeze,
    in_cudnn_layout,
    is_wrapper,
    same_view,
    sparse_parts,
    stolen_gradient,
    tf32_allowed,
)
from memwall.frontend.torch.ranks.distributed import BARRIER, GROUPS, HANDED_ON, handed_on, sending
from memwall.frontend.torch.values.carrying import with_places
from memwall.frontend.torch.values.known import KnownValues
from memwall.frontend.torch.values.value_rules import COPIES, INDEXED, NONZERO
from memwall.frontend.writing import GraphWriter
from memwall.ops import classify
from memwall.ops.registry import find_row
from memwall.ops.signatures import DROPPED_ATTRIBUTES, Signature, signature_of

#: ops between two lines of progress
_TOLD = 50
_BACKENDS = {"meta": compat.DispatchKey.Meta, "cpu": compat.DispatchKey.CPU}


class UnexpectedCall(Exception):
    """The autograd engine accumulated gradients in a node that should make all its calls itself."""


class Recorder(compat.TorchDispatchMode):
    """Records ops as they are dispatched; :meth:`graph` is the result. ``device`` is the type of the tensors that
    represent the GPU's: ``meta``, with ``known`` values, or ``cpu`` with real data. Beyond ``max_ops`` it stops with
    an error; ``warn`` is called before."""

    supports_higher_order_operators = True

    def __init__(
        self, *, device: str, max_ops: int, warn: Callable[[str], None] | None = None, known: KnownValues | None = None
    ) -> None:
        super().__init__()
        self.device = device
        self.known = known
        self.max_ops = max_ops
        self.warn = warn
        self.phase = "forward"
        self.paused = False
        #: every number that is read from the device is 1
        self.reads_one = False
        #: wrappers have been met
        self._unwraps = False
        #: the call is made by the body of another
        self._in_body = False
        self.rebinding: Iterator[Op] | None = None
        self.closed_nodes: frozenset[str] = frozenset()
        self.guarded: set[int] = set()
        self.modules = ModuleTimeline()
        self.passes = Passes()
        self.lines = SourceLines()
        self.streams = Streams()
        self._writer = GraphWriter()
        self.ops, self.values, self.storages = self._writer.ops, self._writer.values, self._writer.storages
        self.free_calls = self._writer.free_calls
        self._kept: list[Any] = []
        self._storage_ids: dict[int, int] = {}
        self._value_ids: dict[tuple, int] = {}
        self._specs: dict[tuple, TensorSpec] = {}
        self._signatures: dict[Any, Signature] = {}
        self._attributes: dict[tuple, Mapping[str, Any]] = {}
        self._parameter_modules: dict[int, str] = {}

    def __enter__(self) -> Any:
        self.passes.__enter__()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self.passes.__exit__(*raised)

    @contextlib.contextmanager
    def unrecorded(self) -> Iterator[None]:
        """The body is not recorded."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    def place(self) -> tuple[str, str]:
        """The module and the user's line of the call that is made."""
        return self.modules.path, self.lines.here()

    # -- tensors ---------------------------------------------------------------------------------------------------

    def value(self, tensor: torch.Tensor) -> int:
        """The id of the value that a tensor is."""
        shape, strides, dtype = tensor.shape, tensor.stride(), tensor.dtype
        key = (self.storage(tensor), int(tensor.storage_offset()), shape, strides, dtype)
        known = self._value_ids.get(key)
        if known is not None:
            return known
        spec = self._specs.get((shape, strides, dtype))
        if spec is None:
            spec = self._specs[shape, strides, dtype] = self._spec(tensor)
        number = self._value_ids[key] = self.value_of_spec(key[0], key[1], spec)
        return number

    def _spec(self, tensor: torch.Tensor) -> TensorSpec:
        spec = TensorSpec(tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride())), dtype_name(tensor.dtype))
        return self._specs.setdefault((spec.shape, spec.strides, spec.dtype), spec)

    def value_of_spec(self, storage: int, offset: int, spec: TensorSpec) -> int:
        """The id of the value with an interned spec."""
        identity = (storage, offset, spec)
        number = self._value_ids.get(identity)
        if number is None:
            number = len(self.values)
            self.values.append(Value(number, spec, storage, offset))
            self._value_ids[identity] = number
        return number

    def storage(self, tensor: torch.Tensor, role: str = "activation", name: str = "") -> int:
        """The id of a tensor's storage. The storage is kept alive, so that its address is not reused."""
        raw = tensor.untyped_storage()
        known = self._storage_ids.get(compat.cdata(raw))
        if known is None:
            known = self.new_storage(raw.nbytes(), role, name)
            self.bind(tensor, known)
        return known

    def new_storage(self, nbytes: int, role: str = "activation", name: str = "") -> int:
        """Number a new storage."""
        self.storages.append(Storage(len(self.storages), nbytes, role, name))
        return len(self.storages) - 1

    def bind(self, tensor: torch.Tensor, storage: int) -> None:
        """Bind a tensor to a storage that already has a number."""
        raw = tensor.untyped_storage()
        self._kept.append(raw)
        self._storage_ids[compat.cdata(raw)] = storage

    def knows(self, tensor: torch.Tensor) -> int | None:
        """The storage id of a tensor, or None when it has not been seen."""
        return self._storage_ids.get(compat.cdata(tensor.untyped_storage()))

    def release(self, storage: torch.UntypedStorage) -> None:
        """Memory that is freed: what the storage holds from now on is new."""
        number = self._storage_ids.pop(compat.cdata(storage), None)
        if number is not None and self.phase == "backward" and self.storages[number].role == "activation":
            touched = (
                op for op in reversed(self.ops) for i in (*op.inputs, *op.outputs) if self.values[i].storage == number
            )
            if (last := next(touched, None)) is not None and last.phase == "forward":
                self.storages[number] = replace(self.storages[number], name=HELD)

    def set_role(self, tensor: torch.Tensor, role: str, name: str = "") -> None:
        """Set the role of a recorded storage."""
        known = self.storage(tensor, role, name)
        self.storages[known] = Storage(known, self.storages[known].nbytes, role, name)

    def forget_unused(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count tensors that no op touches as no memory of the device: they may be the host's."""
        touched = {self.values[i].storage for op in self.ops for i in (*op.inputs, *op.outputs)}
        for tensor in tensors:
            known = self.storage(tensor)
            if known not in touched:
                self.storages[known] = replace(self.storages[known], role="activation")

    def own(self, tensor: torch.Tensor, path: str) -> None:
        """Remember which module a parameter belongs to, for the accumulation of its gradient."""
        self._parameter_modules[id(tensor)] = path

    def look(self, tensor: torch.Tensor, storage: int) -> Value:
        """A tensor's view of its storage, without numbering it."""
        return Value(-1, self._spec(tensor), storage, int(tensor.storage_offset()))

    # -- calls -----------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and any(map(is_wrapper, types)):
            self._unwraps = True
            return NotImplemented  # a wrapper first runs the calls that it stands for, which come here again
        kwargs = kwargs or {}
        signature = self._signatures.get(func)
        if signature is None:
            if (body := body_of(func)) is not None:
                with self, patch.object(self, "_in_body", True):
                    return body(*args, **kwargs)
            if isinstance(func, compat.HigherOrderOperator):
                raise UsageError(
                    f"a trace cannot record {func.name()}, an operator that takes Python functions (in"
                    f" {self.modules.path or 'the model'}); write it in plain PyTorch: a Python loop for while_loop,"
                    " scan and map, if for cond"
                )
            signature = self._signatures[func] = signature_of(func)
        if signature.composite and (self._unwraps or self._in_body):  # below autograd, which would have split it
            key = _BACKENDS[self.device]
            with self:
                if self._in_body and compat.has_kernel(func.name(), key):
                    return compat.op_with_key(func, key, *args, **kwargs)  # what a GPU runs in its stead
                return func.decompose(*args, **kwargs)
        # of primitives a forward-mode derivative asks the shapes of zeros, and nothing runs
        if signature.skipped or (func.namespace == "prims" and self.device == "meta"):
            return func(*args, **kwargs)
        if signature.name == "aten.clone" and args[0].layout is torch.sparse_coo and args[0].is_meta:
            return stolen_gradient(args[0])
        if signature.name in HANDED_ON:
            return handed_on(self, signature.name, args[0])
        if self.reads_one and signature.name == "aten._local_scalar_dense" and args[0].is_meta:
            return 1.0 if args[0].is_floating_point() else 1
        if self.known is not None and signature.name == "aten.equal":
            return self._equal(*args)
        if signature.name in INDEXED:
            of = self.known.of if self.known is not None else lambda mask: mask
            args = with_places(of, args, partial(self.__torch_dispatch__, NONZERO, ()))
        if signature.arguments and signature.arguments[0].written and adds_sparse(args):
            out = args[0]
        elif self.known is not None:
            out = self.known.call(signature, args, kwargs, guess=not self.paused)
        elif signature.updates and self.device == "meta" and args[0] and args[0][0].is_meta:
            out = None
        else:
            out = func(*args, **kwargs)
        if signature.name == "aten.convolution" and isinstance(out, torch.Tensor) and out.is_meta:
            out = in_cudnn_layout(out, args[0], args[1])
        if isinstance(out, torch.Tensor) and out.layout is not torch.strided:
            check_stored(signature.name, out, args)
        if self.paused:
            return out
        if signature.free:
            if self.rebinding is None:
                self.free_calls[signature.name] += 1
            if self.phase == "forward" or self.rebinding is not None:
                self._mark_line()
            return out
        self._record(signature, args, kwargs, out)
        return out

    def _equal(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        """``torch.equal``, by the calls that it makes on a GPU."""
        if a.shape != b.shape:
            return False
        with self:
            same = (a == b).all()
            is_check = not a.shape and a.dtype is b.dtype is torch.bool  # ATen's is_scalar_tensor_true asks so:
            if is_check and self.known is not None and self.known.of(same) is None:
                return False  # is a window's sum zero, is a weight negative; of a model that runs they are not
            return bool(torch.ops.aten._local_scalar_dense(same))

    def _record(self, signature: Signature, args: tuple, kwargs: dict[str, Any], out: Any) -> None:
        tensors: list[torch.Tensor] = []
        names: list[str] = []
        written: list[torch.Tensor] = []
        scalars: list[tuple[str, Any]] = []
        sparse = False
        count = len(args)
        for i, (name, _, _, default, writes, unread) in enumerate(signature.arguments):
            value = args[i] if i < count else kwargs.get(name, default)
            found: Iterable[torch.Tensor] = ()
            if isinstance(value, torch.Tensor):
                found = (value,) if value.layout is torch.strided else sparse_parts(value)
                sparse = sparse or value.layout is not torch.strided
            elif isinstance(value, (list, tuple)) and (held := flat_tensors(value)):
                found = held
                if any(v is None for v in value):  # x[:, index]: which axes are indexed
                    scalars.append((f"{name}_given", tuple([v is not None for v in value])))
            elif name in GROUPS and signature.sends:
                scalars.append((name, value))
            elif name not in DROPPED_ATTRIBUTES:
                scalars.append((name, freeze(value)))
            for tensor in found:
                if writes:
                    written.append(tensor)
                if not unread:
                    tensors.append(tensor)
                    names.append(name)
        outputs = [*flat_tensors(out), *written]
        if signature.name == BARRIER:  # whose number is on the device under NCCL
            tensors, names = [], []
        elif self._is_host_call(tensors, outputs):
            return
        if outputs and not any(t.numel() for t in outputs):
            return
        if signature.name == "aten.copy_" and same_view(args[0], args[1]):
            return  # x[:4] += 1 ends so: ATen sees that it would copy a view onto itself and returns
        if signature.name in COPIES and outputs and outputs[0].device.type != self.device:
            self.free_calls[signature.name] += 1  # to the host
            return
        if not sparse and (row := find_row(signature.name)) and row.operands:
            check_product(row.operands[:2], names, tensors)
        name = f"sparse.{signature.name.removeprefix('aten.')}" if sparse else signature.name
        with sending(self.streams, signature, out, scalars):
            self.emit(name, names, tensors, outputs, scalars)

    def _is_host_call(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
        """Whether a call reads and writes the host alone, or picks there by what a model made without a device."""
        of_host = [[t.device.type != self.device for t in tensors] for tensors in (inputs, outputs)]
        return all(of_host[1]) and (all(of_host[0]) or (bool(outputs) and any(of_host[0])))

    def emit(
        self,
        name: str,
        names: Iterable[str],
        inputs: Iterable[torch.Tensor],
        outputs: Iterable[torch.Tensor],
        attributes: Iterable[tuple[str, Any]] = (),
    ) -> None:
        """Record one call. Host tensors among the inputs are left out (a copy from the host reads no device memory)."""
        pairs = [(n, t) for n, t in zip(names, inputs, strict=True) if t.device.type == self.device]
        if self.rebinding is not None:
            self._mark_line()
            rebind(self, name, [t for _, t in pairs], outputs)
            return
        scalars = tuple(attributes)
        row = find_row(name)
        if row and row.tf32_switch and pairs and pairs[0][1].dtype is torch.float32:
            scalars += (("allow_tf32", tf32_allowed(row.tf32_switch)),)
        if torch.backends.cudnn.benchmark and name.startswith("aten.convolution"):
            scalars += (("benchmark", True),)
        if self.known is not None and (touched := self.known.slices(name, pairs)):
            scalars += (("slices", touched),)
        key = (name, scalars)
        mapping = self._attributes.get(key)
        if mapping is None:
            mapping = self._attributes[key] = {n: v for n, v in scalars if v is not None}
        read = tuple([self.value(t) for _, t in pairs])
        written = tuple(dict.fromkeys(self.value(t) for t in outputs if t.device.type == self.device))
        if self.guarded and not self.guarded.isdisjoint([self.values[i].storage for i in written]):
            raise UnexpectedCall(f"{name} writes into a view that a replayed block handed out")
        node = compat.backward_node()
        phase, module = self._where(node)
        line = self._line(node)
        again = phase == "backward" and self.passes.computes_again()
        arguments = tuple([n for n, _ in pairs])
        kind = mapping.get("op_class") or classify(name, phase)
        self.append(Op(0, name, kind, phase, module, read, written, arguments, mapping, line, again=again))

    def append(self, op: Op, copied: bool = False) -> None:
        """Add an op to the list, under the next number: on the current stream, or on the op's own and with its waits
        where it is a copy of another."""
        number, known = len(self.ops), (op.stream, op.waits) if copied else None
        stream, waits = self.streams.issue(self.values, op.inputs, op.outputs, known)
        self.ops.append(replace(op, id=number, stream=stream, waits=waits))
        if not number % _TOLD:
            self.told(number)
        if number + 1 >= self.max_ops // 4:
            self._watch_length(number + 1)

    def told(self, count: int) -> None:
        """Say how many ops there are; how many there will be nobody knows."""
        tell(CountedLine(f"tracing {self.phase} ops", count))

    def _watch_length(self, count: int) -> None:
        if count > self.max_ops:
            raise TooManyOps(
                f"the trace passed {self.max_ops:,} ops in {self.modules.path or 'the model'}: a Python loop, over "
                "time steps perhaps; shorten the sequence (--seq, --prompt or --context), use a fused op (nn.LSTM, a"
                " scan), or raise max_ops (--max-ops of memwall profile)"
            )
        if count == max(self.max_ops // 4, 1) and self.warn:
            self.warn(
                f"{count:,} ops so far, now in {self.modules.path or 'the model'}: this looks like a Python loop; "
                f"the trace stops at --max-ops {self.max_ops:,}"
            )

    def _mark_line(self) -> str:
        """The user's line of the call that is being recorded, which the newest autograd node remembers."""
        self.lines.mark(compat.next_sequence_number() - 1, line := self.lines.here())
        return line

    def _line(self, node: Any) -> str:
        """The user's line of the call that is being recorded, for backward the line of its forward call."""
        line = self._mark_line() if node is None and self.phase == "forward" else self.lines.here()
        if line or node is None or self.phase == "optimizer" or node.name() == "torch::autograd::AccumulateGrad":
            return line
        return self.lines.at(compat.sequence_number(node))

    def _where(self, node: Any) -> tuple[str, str]:
        """Phase and module of the call that is being recorded, from the autograd node that makes it."""
        if node is None or self.phase == "optimizer":
            return self.phase, self.modules.path
        if self.modules.path:  # a checkpoint that runs its modules again
            return "backward", self.modules.path
        name = node.name()
        if name == "torch::autograd::AccumulateGrad":
            return "backward", self._parameter_modules.get(id(node.variable), "")
        if name in self.closed_nodes:
            raise UnexpectedCall(self.modules.at(compat.sequence_number(node)))
        return "backward", self.modules.at(compat.sequence_number(node))

    def graph(self, inputs: Iterable[int], parameters: Iterable[int], outputs: Iterable[int], attention: str) -> Graph:
        """What was recorded."""
        return self._writer.graph(inputs, parameters, outputs, attention=attention)
