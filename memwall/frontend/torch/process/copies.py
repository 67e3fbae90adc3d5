"""Deep copies of a caller's objects whose tensors lie on the traced device, wherever they hide.

A cache of keys and values may be any object, and a module may hold one. What ``copy.deepcopy`` would reach is copied;
besides, functions whose closures hold tensors or modules. What cannot be copied (locks, files, process groups) is
shared with the caller. A module that ``torch.compile`` wrapped becomes the module, a compiled function the function.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from memwall.core import compat
from memwall.frontend.torch.dispatch.tensors import accumulator_hooks, is_wrapper, plain_parts
from memwall.frontend.torch.ranks.data_parallel import is_data_parallel, is_sharded, keep_state, remade
from memwall.frontend.torch.ranks.distributed import is_of_process
from memwall.frontend.torch.ranks.flat_shards import is_flat_sharded, refuse_unmodeled

#: Moves a tensor to the traced device, as a new leaf; it may be a buffer, an input or the data of a parameter.
Place = Callable[[torch.Tensor], torch.Tensor]

_PLAIN = frozenset((bool, int, float, str, bytes, type(None), torch.dtype, torch.device, torch.Size))
_CONTAINERS = frozenset((dict, set, list, collections.OrderedDict))
_LAZY = (nn.UninitializedParameter, nn.UninitializedBuffer)
COMPILED = "torch.compile is left out, eager ops are recorded: --policy inductor shows what compiling fuses"
_UNUSED = "find_unused_parameters of DistributedDataParallel is left out: its search needs data"
_OF_COMPILED = compat.name_of("dynamo_eval_frame")
_HELD = tuple(compat.name_of(held) for held in ("parameters", "buffers", "submodules"))


def _called_by_node(hook: Callable[..., Any], parameter: torch.Tensor) -> None:
    """Call a hook as the node does that adds up a parameter's gradient: with what it makes, and with what it got."""
    hook((), (parameter.grad,))


class Copies:
    """Copies objects, each once: what two of them share, their copies share. ``found`` is every tensor's copy with the
    path of keys and attributes on which it was met first."""

    def __init__(self, place: Place, device: str) -> None:
        self.found: list[tuple[str, torch.Tensor]] = []
        #: what of the original its copy leaves out, a line each
        self.notes: dict[str, None] = {}
        self._place = place
        self._device = torch.device(device)
        self._memo: dict[int, Any] = {}
        self._path: list[str] = []

    def of(self, thing: Any, name: str = "") -> Any:
        """The copy of an object, named ``name`` in the paths."""
        tensor_copier = lambda tensor, memo: self._copied(tensor)  # noqa: E731
        kinds = (torch.Tensor, nn.Parameter)
        with (
            patch.object(kinds[0], "__deepcopy__", tensor_copier),
            patch.object(kinds[1], "__deepcopy__", tensor_copier),
        ):
            return self._at(name, thing)

    def _at(self, name: str, thing: Any) -> Any:
        if type(thing) in _PLAIN:
            return thing
        self._path.append(name)
        try:
            return self._copied(thing)
        finally:
            self._path.pop()

    def _copied(self, thing: Any, memo: Any = None) -> Any:
        kind = type(thing)
        if kind in _PLAIN:
            return thing
        if id(thing) in self._memo:
            return self._memo[id(thing)]
        made = self._made(thing, kind)
        if made is not thing:
            self._memo[id(thing)] = made
            self._memo.setdefault(id(self._memo), []).append(thing)  # as deepcopy does, so that ids stay theirs
        return made

    def _made(self, thing: Any, kind: type) -> Any:
        if isinstance(thing, torch.Tensor):
            return self._tensor(thing)
        if isinstance(thing, nn.Module):
            return self._module(thing, kind)
        if kind is list:
            made = self._memo[id(thing)] = []
            made.extend(self._at(str(i), item) for i, item in enumerate(thing))
            return made
        if kind is tuple:
            items = [self._at(str(i), item) for i, item in enumerate(thing)]
            return thing if all(a is b for a, b in zip(items, thing, strict=True)) else tuple(items)
        if kind is dict:
            table = self._memo[id(thing)] = {}
            for key, item in thing.items():
                # a cache notes where its tensors are
                moved = key == "device" and isinstance(item, torch.device)
                table[self._copied(key)] = self._device if moved else self._at(str(key), item)
            return table
        if isinstance(thing, weakref.ref) and isinstance(thing(), nn.Module):
            return weakref.ref(self._copied(thing()))
        if isinstance(thing, (FunctionType, MethodType, functools.partial)):
            return self._function(thing)
        return self._object(thing, kind)

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, _LAZY):
            kind: Any = type(tensor)
            return kind(tensor.requires_grad, device=self._device, dtype=tensor.data.dtype)
        made = self._memo[id(tensor)] = self._like(tensor)
        for name, value in tensor.__dict__.items():
            made.__dict__.setdefault(name, self._at(name, value))
        before, after = compat.backward_hooks(tensor), compat.post_accumulate_grad_hooks(tensor)
        if (before or after) and tensor.is_leaf:  # which views of memory that was let go cannot say
            for hook in (before or {}).values():
                made.register_hook(self._copied(hook))
            for hook in (after or {}).values():
                made.register_post_accumulate_grad_hook(self._copied(hook))
        for hook in accumulator_hooks(tensor):
            made.register_post_accumulate_grad_hook(functools.partial(_called_by_node, self._copied(hook)))
        return made

    def _like(self, tensor: Any) -> torch.Tensor:
        """A tensor of the same class on the traced device; what a wrapper holds is placed in its stead."""
        kind: Any = type(tensor)
        if is_wrapper(kind) and plain_parts(tensor):
            names, context = tensor.__tensor_flatten__()
            held = {name: getattr(tensor, name) for name in names}  # tensors, and a mesh of devices
            parts = {n: self._at(n, item) if isinstance(item, torch.Tensor) else item for n, item in held.items()}
            wrapper = kind.__tensor_unflatten__(parts, context, tensor.shape, tensor.stride())
            return nn.Parameter(wrapper, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else wrapper
        made = self._place(tensor)
        if kind is not torch.Tensor:
            made = compat.make_subclass(kind, made.detach(), tensor.requires_grad)
        self.found.append((".".join(filter(None, self._path)), made))
        return made

    def _module(self, module: nn.Module, kind: Any) -> Any:
        """What ``copy.deepcopy`` does for a module, faster: most of its fields are plain or empty."""
        if kind.__module__ == _OF_COMPILED:  # torch.compile(m): eager execution is what is traced
            self.notes[COMPILED] = None
            return self._copied(compat.orig_mod(module))
        if isinstance(module, torch.jit.ScriptModule):
            return self._scripted(module)
        if is_flat_sharded(module):
            refuse_unmodeled(module, self._device.type)
        if is_data_parallel(module):
            if module.find_unused_parameters:
                self.notes[_UNUSED] = None
            return remade(module, self._copied(module.module))
        sharded = is_sharded(module)  # whose class makes modules that are not, and refuses copies
        own_way = hasattr(kind, "__deepcopy__") or getattr(kind, "__reduce_ex__", None) is not object.__reduce_ex__
        if own_way and not sharded:
            return self._object(module, kind)
        made = self._memo[id(module)] = (object if sharded else kind).__new__(kind)
        fields = made.__dict__
        for name, value in module.__dict__.items():
            if type(value) in _PLAIN:
                fields[name] = value
            elif name in _HELD:
                fields[name] = type(value)((key, self._at(key, item)) for key, item in value.items())
            elif type(value) in _CONTAINERS and not value:
                # which other modules, or the handle of a hook, may share
                fields[name] = self._memo.setdefault(id(value), type(value)())
            else:
                fields[name] = self._at(name, value)
        setattr(made, compat.name_of("compiled_call"), None)
        if sharded:
            keep_state(module, made, self._copied)
        return made

    def _scripted(self, module: torch.jit.ScriptModule) -> Any:
        """A copy of compiled code, whose tensors alone can be set."""
        made: Any = copy.deepcopy(module)
        for old, new in zip(module.modules(), made.modules(), strict=True):
            for held in (old.named_parameters(recurse=False), old.named_buffers(recurse=False)):
                for name, tensor in held:
                    setattr(new, name, self._at(name, tensor))
        return made

    def _function(self, function: Any) -> Any:
        """A function, bound method or partial whose tensors and modules are copies; itself where it holds none."""
        inner = getattr(function, compat.name_of("orig_callable"), None)
        if inner is not None:
            self.notes[COMPILED] = None
            return self._copied(inner)
        if isinstance(function, MethodType):
            return MethodType(self._copied(function.__func__), self._copied(function.__self__))
        if not _holds(function, set()):
            return function
        if isinstance(function, functools.partial):
            return self._object(function, type(function))
        cells = [type(cell)() for cell in function.__closure__ or ()]
        made = self._memo[id(function)] = FunctionType(
            function.__code__, function.__globals__, function.__name__, None, tuple(cells)
        )
        made.__kwdefaults__ = function.__kwdefaults__
        made.__defaults__ = self._copied(function.__defaults__)
        functools.update_wrapper(made, function, updated=())
        made.__dict__.update({name: self._copied(value) for name, value in vars(function).items()})
        for name, cell, old in zip(function.__code__.co_freevars, cells, function.__closure__ or (), strict=True):
            for value in _content(old):
                cell.cell_contents = self._at(name, value)
        return made

    def _object(self, thing: Any, kind: type) -> Any:
        """Any other object, copied as its class says; itself where its class says that it cannot be."""
        atomic = compat.deepcopy_dispatch.get(kind) or issubclass(kind, type)
        if atomic or is_of_process(thing):
            return thing
        try:
            if hasattr(kind, "__deepcopy__"):
                return thing.__deepcopy__(self._memo)
            recipe = copy.dispatch_table.get(kind, kind.__reduce_ex__)  # type: ignore[attr-defined]
            parts = recipe(thing) if kind in copy.dispatch_table else recipe(thing, 4)  # type: ignore[attr-defined]
        except Exception:
            if isinstance(thing, nn.Module):
                raise
            return thing
        if isinstance(parts, str):
            return thing
        return compat.copy_reconstruct(thing, self._memo, *parts, deepcopy=self._copied)


def is_lazy(module: nn.Module) -> bool:
    """Whether a parameter or buffer has no shape before the module's first call."""
    return any(isinstance(tensor, _LAZY) for tensor in itertools.chain(module.parameters(), module.buffers()))


@contextlib.contextmanager
def shaping(module: nn.Module, copied: nn.Module) -> Iterator[None]:
    """While open, a call of the ``copied`` module makes the lazy parameters and buffers of the ``module`` too."""
    for lazy, twin in zip(module.modules(), copied.modules(), strict=True):
        if isinstance(lazy, LazyModuleMixin):
            infer = functools.partial(_infer, lazy)
            twin.register_forward_pre_hook(infer, prepend=True, with_kwargs=True)
    yield
    made = {**dict(copied.named_parameters()), **dict(copied.named_buffers())}
    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        if isinstance(tensor, _LAZY) and not isinstance(made[name], _LAZY):  # a lazy module of another library's
            tensor.materialize(made[name].shape)


def _infer(lazy: Any, twin: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
    if hasattr(lazy, compat.name_of("initialize_hook")):
        compat.infer_parameters(lazy, lazy, args, kwargs)


def _content(cell: Any) -> Iterator[Any]:
    try:
        yield cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return


def _holds(thing: Any, seen: set[int]) -> bool:
    """Whether a tensor or a module hides in a value: in a container, or in what a function was given or closes over."""
    if isinstance(thing, (torch.Tensor, nn.Module)):
        return True
    if id(thing) in seen:
        return False
    seen.add(id(thing))
    inner: Iterable[Any] = ()
    if isinstance(thing, FunctionType):
        cells = itertools.chain.from_iterable(map(_content, thing.__closure__ or ()))
        inner = itertools.chain(cells, thing.__defaults__ or (), vars(thing).values())
    elif isinstance(thing, MethodType):
        inner = (thing.__self__, thing.__func__, *getattr(thing.__self__, "__dict__", {}).values())
    elif isinstance(thing, functools.partial):
        inner = (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, (list, tuple)):
        inner = thing
    elif isinstance(thing, dict):
        inner = thing.values()
    return any(_holds(item, seen) for item in inner)
