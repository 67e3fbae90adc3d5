"""Blocks that repeat are traced once and replayed, backward too.

The first call of a block becomes a template: its ops, with every storage known as an argument, a parameter or buffer of
the block, or made inside. Another block of equal structure, called with the same kinds of arguments, copies those ops
with its own storages, and returns tensors that represent them. In backward the first replayed block reached reruns its
forward, unrecorded, with its tensors bound to the copied storages, and then its real backward, recorded; the others
copy that. The result equals the full trace op for op. A block that does something that a copy cannot (writes its
arguments, reads outside tensors, is called twice) is traced separately, or the whole model again in full
(:class:`ReplayMismatch`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from memwall.core import compat
from memwall.frontend.blocks.known import give_values, marks, values_given, values_of
from memwall.frontend.blocks.structure import Structures, ties, watch_numbers
from memwall.frontend.blocks.template import (
    BackwardTemplate,
    GradientCapture,
    Handed,
    Instance,
    ReplayedBlock,
    ReplayMismatch,
    Segment,
    StandIns,
    StoragePlace,
    Template,
)
from memwall.frontend.torch.dispatch.attention import allowed_order
from memwall.frontend.torch.dispatch.autocast import CudaAutocast
from memwall.frontend.torch.dispatch.recorder import Recorder

#: Where the recorder stood when a segment began: its ops, storages and free calls.
Watch = tuple[int, int, Counter[str]]

_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


class Replayer:
    """Replaces module calls (:mod:`memwall.frontend.torch.dispatch.origin`) and replays calls that repeat."""

    def __init__(self, root: nn.Module, recorder: Recorder, autocast: CudaAutocast) -> None:
        self.recorder = recorder
        self.autocast = autocast
        self.structures = Structures(root)
        self._templates: dict[Any, Template | None] = {}
        #: the replayed blocks
        self.instances: list[Instance] = []
        #: module id -> whether its call was replayed
        self._called: dict[int, bool] = {}
        self._tensors_of: dict[int, list[torch.Tensor]] = {}
        self._busy = False
        self._original: Callable[..., Any] = nn.Module.__call__
        # An argument of a block that is used again later gets part of its gradient before the block's backward runs;
        # the full trace would add that part up inside the block, a replay only after it.
        recorder.closed_nodes = frozenset(("ReplayedBlockBackward",))

    # -- forward ---------------------------------------------------------------------------------------------------

    def call(self, original: Callable[..., Any], module: nn.Module, args: tuple, kwargs: dict) -> Any:
        """Call a module: for real, as a template, or as a replay; a ReplayMismatch where a replayed block is called
        again."""
        if self._busy or id(module) not in self.structures.repeated or compat.are_functorch_transforms_active():
            return original(module, *args, **kwargs)
        # not a plain forward: a checkpoint that recomputes in backward, or hooks on saved tensors
        hooks: Any = compat.saved_tensors_hooks(False)
        if compat.backward_task() != -1 or hooks is not None:
            return original(module, *args, **kwargs)
        if id(module) in self._called:
            if self._called[id(module)] or torch.is_grad_enabled():
                raise ReplayMismatch(f"{self.recorder.modules.path} is called more than once")
            return original(module, *args, **kwargs)
        self._called[id(module)] = False
        self._original = original
        leaves, tree = compat.tree_flatten((args, kwargs))
        signature = self._signature(leaves)
        number = None if signature is None else self.structures.number(module)
        if number is None:
            return original(module, *args, **kwargs)
        state = torch.is_grad_enabled(), self.autocast.state, allowed_order()
        key = (number, signature, str(tree), *state, ties(module))
        if key not in self._templates:
            return self._record(key, module, args, kwargs, leaves)
        template = self._templates[key]
        if template is None:
            return original(module, *args, **kwargs)
        if template.given is not None:
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            if template.given != values_given(self.recorder, [*tensors, *self._held(module)]):
                return original(module, *args, **kwargs)
        return self._replay(template, module, leaves, tree)

    def _signature(self, leaves: Sequence[Any]) -> Any:
        """The kinds of the arguments and how they alias; None when a replay cannot represent them."""
        parts: list[Any] = []
        first: dict[int, tuple[int, int]] = {}
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                strided = leaf.layout is torch.strided and leaf.device.type == self.recorder.device
                storage = self.recorder.knows(leaf) if strided else None
                if storage is None:
                    return None
                origin, offset = first.setdefault(storage, (index, int(leaf.storage_offset())))
                kind = (leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad)
                parts.append((*kind, origin, leaf.storage_offset() - offset))
            elif isinstance(leaf, _PLAIN):
                parts.append((type(leaf), leaf))
            else:
                return None
        return tuple(parts)

    def _record(self, key: Any, module: nn.Module, args: tuple, kwargs: dict, leaves: Sequence[Any]) -> Any:
        recorder = self.recorder
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._called.update((id(part), False) for part in module.modules())
        watch = self._watch()
        before = values_given(recorder, [*tensors, *self._held(module)]), marks(recorder)
        self._busy = True
        try:
            with watch_numbers(module) as asked:
                output = self._original(module, *args, **kwargs)
        finally:
            self._busy = False
        self._templates[key] = None
        if asked or marks(recorder)[1:] != before[1][1:]:
            return output
        known = self._places("own", self._held(module)) | self._places("argument", tensors)
        bases = {StoragePlace("argument", i): int(t.storage_offset()) for i, t in enumerate(tensors)}
        segment = self._segment(watch, known, recorder.modules.path, bases)
        if segment is not None and self.structures.number(module) == key[0]:
            flat, tree = compat.tree_flatten(output)
            outputs = [self._handed(leaf, segment, tensors) for leaf in flat]
            made = [h.value.storage for h in outputs if h is not None and h.value is not None]
            if all(h is not None for h in outputs) and len(set(made)) == len(made):
                handed = tuple(h for h in outputs if h is not None)
                kept = [leaf for leaf, h in zip(flat, handed, strict=True) if h.place is not None]
                values = values_of(recorder, kept)
                depends = marks(recorder) != before[1] or any(value is not None for value in values)
                if not (depends and recorder.known is not None and recorder.known.by_module):
                    written, given = self._written(segment), before[0] if depends else None
                    self._templates[key] = Template(segment, handed, tree, written, values, given)
        return output

    def _written(self, segment: Segment) -> tuple[int, ...]:
        """The numbers of a block's own tensors that it writes."""
        recorder = self.recorder
        written = {i for op in recorder.ops[segment.start : segment.stop] for i in op.outputs}
        places = {segment.places[recorder.values[i].storage] for i in written}
        return tuple(sorted(place.number for place in places if place.kind == "own"))

    def _replay(self, template: Template, module: nn.Module, leaves: list[Any], tree: compat.TreeSpec) -> Any:
        recorder = self.recorder
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        stand_ins = self._stand_ins(self._held(module), "own") | self._stand_ins(tensors, "argument")
        start, path = len(recorder.ops), recorder.modules.path
        self._copy(template.forward, stand_ins, path)
        if recorder.known is not None:
            recorder.known.forget([self._held(module)[i] for i in template.written])
        self._called[id(module)] = True
        instance = Instance(
            module, path, template, tensors, leaves, tree, self.autocast.state, stand_ins, start, len(recorder.ops)
        )
        made = [handed for handed in template.outputs if handed.place is not None]
        self.instances.append(instance)
        # what is written into a view has a backward of its own, which a replayed output would not have
        recorder.guarded.update(stand_ins[h.place][0] for h in made if h.place and h.is_view and h.requires_grad)
        if any(handed.requires_grad for handed in made):
            with self.recorder.unrecorded():
                anchor = torch.empty((), device=recorder.device, requires_grad=True)
            given: Sequence[torch.Tensor] = ReplayedBlock.apply(self, instance, anchor, *tensors)
        else:
            given = [self._tensor(handed, stand_ins, tensors) for handed in made]
        give_values(recorder, given, template.values)
        results = iter(given)
        flat = [
            tensors[handed.passed]
            if handed.passed is not None
            else next(results)
            if handed.place is not None
            else handed.plain
            for handed in template.outputs
        ]
        return compat.tree_unflatten(flat, template.tree)

    def check(self) -> None:
        """A ReplayMismatch where not only a replayed block has read its parameters: a gradient or a cast is shared
        then."""
        owner = {
            self.recorder.storage(t): instance for instance in self.instances for t in self._parameters(instance.module)
        }
        values = self.recorder.values
        for op in self.recorder.ops:
            for i in op.inputs:
                instance = owner.get(values[i].storage)
                if instance is not None and not instance.start <= op.id < instance.stop:
                    raise ReplayMismatch(f"{instance.path}: its parameters are used by {op.module or 'the model'} too")

    # -- backward --------------------------------------------------------------------------------------------------

    def backward(self, instance: Instance, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Run a replayed block backward: the gradients of its arguments; its parameters get theirs in ``.grad``."""
        parameters = self._parameters(instance.module)
        present = [g for g in gradients if g is not None]
        for gradient in present:
            self.recorder.storage(gradient)
        signature = self._signature(gradients)
        key = (signature, tuple([p.grad is None for p in parameters]))
        templates = instance.template.backward
        if signature is None or any(p.grad is not None for p in parameters) or templates.get(key, ...) is None:
            return self._run_backward(instance, gradients, None)
        if key not in templates:
            return self._run_backward(instance, gradients, key)
        template = templates[key]
        assert template is not None
        stand_ins = {
            StoragePlace("forward", p.number) if p.kind == "made" else p: at for p, at in instance.stand_ins.items()
        }
        stand_ins |= self._stand_ins(present, "gradient")
        self._copy(template.segment, stand_ins, instance.path)
        with self.recorder.unrecorded():
            for parameter, handed in zip(parameters, template.parameters, strict=True):
                if handed is not None:
                    parameter.grad = self._tensor(handed, stand_ins, present)
            return [h and self._tensor(h, stand_ins, present) for h in template.arguments]

    def _run_backward(
        self, instance: Instance, gradients: Sequence[torch.Tensor | None], key: Any
    ) -> list[torch.Tensor | None]:
        """Rerun the block, unrecorded, bound to its copied storages; then run its real backward."""
        captured: dict[int, torch.Tensor] = {}
        outputs = self._run_again(instance, captured)
        made = [o for o, h in zip(outputs, instance.template.outputs, strict=True) if h.place is not None]
        roots = [(o, g) for o, g in zip(made, gradients, strict=True) if g is not None]
        watch = self._watch()
        self._busy = True
        try:
            torch.autograd.backward([o for o, _ in roots], [g for _, g in roots])
        finally:
            self._busy = False
        results = [captured.get(i) for i in range(len(instance.tensors))]
        if key is not None:
            present = [g for g in gradients if g is not None]
            instance.template.backward[key] = self._backward_template(instance, watch, present, results)
        return results

    def _run_again(self, instance: Instance, captured: dict[int, torch.Tensor]) -> list[Any]:
        """The block's forward with its tensors bound to the storages of its copied ops; its outputs, flattened."""
        recorder = self.recorder
        with self.recorder.unrecorded(), torch.enable_grad():  # backward runs with gradients off
            tensors = iter(
                [
                    GradientCapture.apply(t.detach().requires_grad_(), captured, i) if t.requires_grad else t.detach()
                    for i, t in enumerate(instance.tensors)
                ]
            )
        leaves = [next(tensors) if isinstance(leaf, torch.Tensor) else leaf for leaf in instance.leaves]
        args, kwargs = compat.tree_unflatten(leaves, instance.tree)
        previous = recorder.modules.enter(instance.path)
        phase, recorder.phase = recorder.phase, "forward"
        recorder.rebinding = iter(recorder.ops[instance.start : instance.stop])
        self._busy = True
        self.autocast.push(instance.autocast)
        try:
            with torch.enable_grad():
                output = self._original(instance.module, *args, **kwargs)
            if next(recorder.rebinding, None) is not None:
                raise LookupError("fewer ops than were recorded")
        except LookupError as error:
            raise ReplayMismatch(f"{instance.path}: {error}") from None
        finally:
            self.autocast.pop()
            self._busy = False
            recorder.rebinding = None
            recorder.phase = phase
            recorder.modules.leave(previous)
        return list(compat.tree_flatten(output)[0])

    def _backward_template(
        self, instance: Instance, watch: Watch, gradients: list[torch.Tensor], results: list[torch.Tensor | None]
    ) -> BackwardTemplate | None:
        known = {at[0]: StoragePlace("forward", p.number) for p, at in instance.stand_ins.items() if p.kind == "made"}
        known |= self._places("own", self._held(instance.module)) | self._places("argument", instance.tensors)
        known |= self._places("gradient", gradients)
        bases = {StoragePlace("argument", i): int(t.storage_offset()) for i, t in enumerate(instance.tensors)}
        bases |= {StoragePlace("gradient", i): int(g.storage_offset()) for i, g in enumerate(gradients)}
        segment = self._segment(watch, known, instance.path, bases)
        if segment is None:
            return None
        grads = [p.grad for p in self._parameters(instance.module)]
        handed = [None if t is None else self._handed(t, segment, gradients) for t in (*results, *grads)]
        if any(h is None and t is not None for h, t in zip(handed, (*results, *grads), strict=True)):
            return None
        return BackwardTemplate(segment, tuple(handed[: len(results)]), tuple(handed[len(results) :]))

    # -- segments --------------------------------------------------------------------------------------------------

    def _watch(self) -> Watch:
        return len(self.recorder.ops), len(self.recorder.storages), Counter(self.recorder.free_calls)

    def _held(self, module: nn.Module) -> list[torch.Tensor]:
        if id(module) not in self._tensors_of:
            self._tensors_of[id(module)] = [*module.parameters(), *module.buffers()]
        return self._tensors_of[id(module)]

    def _parameters(self, module: nn.Module) -> list[torch.Tensor]:
        return [t for t in self._held(module) if isinstance(t, nn.Parameter)]

    def _places(self, kind: str, tensors: Sequence[torch.Tensor]) -> dict[int, StoragePlace]:
        return {self.recorder.storage(t): StoragePlace(kind, i) for i, t in reversed(list(enumerate(tensors)))}

    def _stand_ins(self, tensors: Sequence[torch.Tensor], kind: str) -> StandIns:
        storage = self.recorder.storage
        return {StoragePlace(kind, i): (storage(t), int(t.storage_offset())) for i, t in enumerate(tensors)}

    def _segment(
        self, watch: Watch, known: dict[int, StoragePlace], prefix: str, bases: dict[StoragePlace, int]
    ) -> Segment | None:
        """The ops since ``watch``; None when a copy cannot represent them: they touch a storage that is neither
        ``known`` nor made since, write an argument, or belong to a module outside the block."""
        recorder = self.recorder
        start, storages, free_calls = watch
        made = range(storages, len(recorder.storages))
        places = {storage: StoragePlace("made", storage - made.start) for storage in made} | known
        stop = len(recorder.ops)
        for op in recorder.ops[start:stop]:
            touched = [places.get(recorder.values[i].storage) for i in (*op.inputs, *op.outputs)]
            writes_outside = any(p is not None and p.kind not in ("own", "made") for p in touched[len(op.inputs) :])
            if None in touched or writes_outside or not op.module.startswith(prefix):
                return None
        calls = Counter(recorder.free_calls)
        calls.subtract(free_calls)
        return Segment(start, stop, prefix, places, bases, +calls)

    def _handed(self, leaf: Any, segment: Segment, passable: Sequence[torch.Tensor]) -> Handed | None:
        """How to return a tensor like ``leaf``; None when a copy cannot."""
        if not isinstance(leaf, torch.Tensor):
            return Handed(plain=leaf) if isinstance(leaf, _PLAIN) else None
        passed = next((i for i, tensor in enumerate(passable) if tensor is leaf), None)
        if passed is not None:
            return Handed(passed=passed)
        storage = self.recorder.knows(leaf) if leaf.layout is torch.strided else None
        place = None if storage is None else segment.places.get(storage)
        if storage is None or place is None or place.kind not in ("made", "gradient"):
            return None
        return Handed(place, self.recorder.look(leaf, storage), leaf.requires_grad, is_view=compat.is_view(leaf))

    def _copy(self, segment: Segment, stand_ins: StandIns, path: str) -> None:
        """Append the segment's ops with other storages in place; storages made inside are added to ``stand_ins``."""
        recorder = self.recorder
        values, storages, cut = recorder.values, recorder.storages, len(segment.prefix)
        places, bases = segment.places, segment.bases
        new_ids: dict[int, int] = {}
        later = len(recorder.ops) - segment.start

        def stand_in(number: int) -> int:
            value = values[number]
            place = places[value.storage]
            if place not in stand_ins:
                stand_ins[place] = (recorder.new_storage(storages[value.storage].nbytes), 0)
            storage, base = stand_ins[place]
            new_ids[number] = new = recorder.value_of_spec(
                storage, value.offset - bases.get(place, 0) + base, value.spec
            )
            return new

        for op in recorder.ops[segment.start : segment.stop]:
            copy = replace(
                op,
                module=path + op.module[cut:],
                inputs=tuple([new_ids[i] if i in new_ids else stand_in(i) for i in op.inputs]),
                outputs=tuple([new_ids[i] if i in new_ids else stand_in(i) for i in op.outputs]),
                waits=tuple([i + later for i in op.waits if i >= segment.start]),
            )
            recorder.append(copy, copied=True)
        recorder.free_calls.update(segment.free_calls)

    def _tensor(self, handed: Handed, stand_ins: StandIns, passable: Sequence[torch.Tensor]) -> torch.Tensor:
        """A tensor that represents what the template returned."""
        if handed.passed is not None:
            return passable[handed.passed]
        assert handed.place is not None and handed.value is not None
        recorder, spec = self.recorder, handed.value.spec
        storage, base = stand_ins[handed.place]
        with self.recorder.unrecorded():
            dtype = getattr(torch, spec.dtype)
            raw = torch.empty(recorder.storages[storage].nbytes // spec.itemsize, dtype=dtype, device=recorder.device)
            tensor = torch.empty(0, dtype=dtype, device=recorder.device)
            tensor.set_(raw.untyped_storage(), handed.value.offset + base, spec.shape, spec.strides)
            recorder.bind(tensor, storage)
        return tensor
