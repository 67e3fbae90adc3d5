"""The kinds of calls of a traced graph that are lowered: of attention what each backend launches is traced on tensors
like the call's."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import torch

from memwall.core.graph import Graph, Op, TensorSpec
from memwall.frontend.torch.dispatch.attention import attend
from memwall.frontend.torch.dispatch.cuda_forms import CudaForms
from memwall.frontend.torch.dispatch.recorder import Recorder
from memwall.hardware.torch_versions import FLASH
from memwall.ops.grouped import GroupedCall
from memwall.ops.lowering import CallKind, LowerableGraph, call_of, kinds_of
from memwall.ops.sdpa import GENERATIONS, AttentionCall, Backends


def lowered(graph: Graph, backends: Backends, *, forms_open: bool = False) -> tuple[Graph, LowerableGraph | None]:
    """A traced graph as a GPU runs it, and what other GPUs need; None where it has no such calls.
    ``forms_open``: calls on ``meta`` take their CUDA form already."""
    first = kinds_of(graph)
    if not first:
        return graph, None
    plain = backends._replace(chip=GENERATIONS["math"])
    forms = contextlib.nullcontext() if forms_open else CudaForms(Recorder(device="meta", max_ops=0), plain)
    with forms:
        kinds = tuple(_kind(graph, *ops, backends) for ops in first)
    attention = LowerableGraph(graph, kinds, backends.torch, backends.preferred)
    return attention.lower(attention.backends(backends.chip), backends.label), attention


def _kind(graph: Graph, forward: int, backward: int | None, backends: Backends) -> CallKind:
    """What each backend launches that some chip takes by itself, or where the user's is preferred."""
    call = call_of(graph, graph.ops[forward])
    last = None if backward is None else graph.ops[backward]
    names = dict.fromkeys((*call.backends(backends.torch), *call.backends(backends.torch, backends.preferred)))
    if isinstance(call, GroupedCall):
        return CallKind(forward, None, {name: call.form(name) for name in names})
    return CallKind(forward, backward, {name: _form(graph, call, graph.ops[forward], last, name) for name in names})


def _form(graph: Graph, call: AttentionCall, forward: Op, backward: Op | None, backend: str) -> Graph:
    """What a backend launches; results in another layout than the traced ones end in a copy, as reshaping them would
    (the traced ones have the layout in which the model wants them, more often than not)."""
    recorder, wanted = Recorder(device="meta", max_ops=1000), call.attributes.get("gradients", ())
    with recorder, torch.set_grad_enabled(bool(wanted)):
        with recorder.unrecorded():
            tensors = {name: _like(spec).requires_grad_(name in wanted) for name, spec in call.tensors.items()}
        inputs = [recorder.value(tensor) for tensor in tensors.values()]
        given = (tensors.get(name) for name in ("query", "key", "value", "attn_bias"))
        result = attend(call, "flash" if backend in FLASH else backend, *given)
        outputs = [_laid_out(recorder, result, graph.values[forward.outputs[0]].spec)]
        if backward is not None:
            recorder.phase = "backward"
            with recorder.unrecorded():
                gradient = _like(graph.values[backward.inputs[backward.arguments.index("grad_out")]].spec)
            inputs.append(recorder.value(gradient))
            found = torch.autograd.grad(result, [tensors[name] for name in wanted], gradient)
            specs = graph.specs(backward.outputs)
            outputs += [_laid_out(recorder, tensor, spec) for tensor, spec in zip(found, specs, strict=True)]
    made = recorder.graph(inputs, (), outputs, "")
    if backend not in FLASH:
        return made
    fused = [
        replace(op, attributes={**op.attributes, "implementation": backend}) for op in made.ops if "flash" in op.name
    ]
    named = {op.id: op for op in fused}
    return replace(made, ops=tuple(named.get(op.id, op) for op in made.ops))


def _like(spec: TensorSpec) -> torch.Tensor:
    dtype: Any = getattr(torch, spec.dtype)
    return torch.empty_strided(spec.shape, spec.strides, dtype=dtype, device="meta")


def _laid_out(recorder: Recorder, tensor: torch.Tensor, spec: TensorSpec) -> int:
    """The value of a result, copied where it lies otherwise than ``spec`` at the start of its storage."""
    with recorder.unrecorded():
        tensor = tensor.detach()
    strides = zip(tensor.shape, tensor.stride(), spec.strides, strict=True)
    lies_so = all(size == 1 or one == other for size, one, other in strides)
    if lies_so and tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == spec.nbytes:
        return recorder.value(tensor)
    with recorder.unrecorded():
        copy = _like(spec)
        axes = sorted(range(copy.dim()), key=copy.stride, reverse=True)
        source, target = tensor.permute(axes), copy.permute(axes)
    recorder.emit("aten.clone", ["self"], [source], [target])
    return recorder.value(copy)
