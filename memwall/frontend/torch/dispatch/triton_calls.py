"""Triton kernels that a model launches itself: recorded as ``triton.NAME`` instead of being compiled and run.

What they do is read from their IR (:mod:`memwall.frontend.triton`). Of a kernel that has no such reading its Python
source says which tensors it reads and writes, and its cost may be given with ``@register_cost("triton::NAME")``.
"""

from __future__ import annotations

import ast
import contextlib
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from memwall.core import compat
from memwall.core.errors import Unsupported, UsageError
from memwall.frontend.torch.dispatch.recorder import Recorder
from memwall.frontend.torch.dispatch.tensors import freeze
from memwall.frontend.torch.values.assumptions import Assumptions, Basis
from memwall.frontend.triton.launch import launch_of, target_of_gpu
from memwall.frontend.triton.work import remember, rooms_of, work_of_launch
from memwall.hardware.lookup import DEFAULT_GPU, Gpu, load_gpu
from memwall.ops.triton import WORK, KernelWork
from memwall.wings import part


@contextlib.contextmanager
def triton_calls(recorder: Recorder, note: Callable[[str], Any], gpu: Gpu | None = None) -> Iterator[None]:
    """While open, launching a Triton kernel records it. Does nothing where the model did not import triton.

    Args:
        note: called with what was assumed of a kernel.
        gpu: for which Triton writes the IR; None: the default one.
    """
    if "triton" not in sys.modules:
        yield
        return
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    launches = _Launches(recorder, note, gpu or load_gpu(DEFAULT_GPU))
    plain = compat.set_wrap_triton_enabled(False)  # wrap_triton(kernel) launches the kernel, as outside a compiler
    run, tune = (lambda it, *args, **kwargs: launches.run(it, args, kwargs)), launches.tune
    with (
        plain,
        patch.object(JITFunction, "run", run),
        patch.object(JITFunction, "__call__", run),
        patch.object(Autotuner, "run", lambda it, *args, **kwargs: tune(it, args, kwargs)),
    ):
        yield


@dataclass
class _Launches:
    """What launches record; ``known`` are kernels that were read already, by their launch."""

    recorder: Recorder
    note: Callable[[str], Any]
    gpu: Gpu
    known: dict[Any, KernelWork | None] = field(default_factory=dict)

    @property
    def assumptions(self) -> Assumptions | None:
        """What the user assumes, where the trace follows values."""
        return self.recorder.known.assumptions if self.recorder.known is not None else None

    def tune(self, tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The configuration that the user names, else the first that the kernel's own rules leave: which is fastest
        only timing says."""
        chosen = dict[str, Any]()
        if tuner.configs:
            tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
            config = self.configuration(tuner, kwargs)
            chosen = config.all_kwargs()
            if config.pre_hook is not None:
                config.pre_hook({**tuner.nargs, **kwargs, **chosen})
        tuner.fn.run(*args, **{**kwargs, **chosen})

    def configuration(self, tuner: Any, kwargs: Mapping[str, Any]) -> Any:
        """A configuration of an autotuned kernel. Raises ``UsageError``: it has none that is asked for."""
        name, configs = f"triton.{getattr(tuner.base_fn, '__name__', 'a kernel')}", list(tuner.configs)
        asked, basis = self.assumptions.unasked("config") if self.assumptions is not None else (None, Basis(""))
        if asked is None:
            with contextlib.suppress(Exception):  # rules that ask a device
                configs = list(tuner.prune_configs(kwargs)) or configs
            if len(configs) > 1:
                self.note(
                    f"{name} is autotuned: the first of its {len(configs)} configurations is taken"
                    " (--assume config=N for another)"
                )
            return configs[0]
        assert self.assumptions is not None  # it was asked
        self.assumptions.note(basis.text)
        if isinstance(asked, int):
            found = configs[asked - 1 : asked]
        else:
            settings = [(each, each.all_kwargs()) for each in configs]
            found = [each for each, has in settings if all(str(has.get(k)) == v for k, v in asked.items())]
        if not found:
            shown = "; ".join(map(str, configs[:_SHOWN]))
            raise UsageError(f"--assume {basis.text}: {name} has {len(configs)} configurations: {shown}")
        return found[0]

    def run(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a launch of a kernel; what ``warmup()`` compiles is compiled, and returned."""
        grid, warmup = kwargs.pop("grid", None), kwargs.pop("warmup", False)
        given = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
        own = {name: given[name] for name in kernel.arg_names if name in given}
        bases = {name: getattr(value, "base", value) for name, value in own.items()}  # of descriptors of the host
        tensors = {name: value for name, value in bases.items() if isinstance(value, torch.Tensor)}
        work = self.work(kernel, grid, args, kwargs, tensors)
        if warmup:
            return None if work is None else WarmKernel(kernel, kwargs, part("codegen.built_kernel")(work, self.gpu))
        if work is None:
            reads, writes = pointer_use(kernel.src, frozenset(tensors))
        else:
            reads, writes = ({each.argument.partition(".")[0] for each in work.accesses if each.what in whats}
                             for whats in (("read", "atomic"), ("write", "atomic")))  # fmt: skip
        scalars = [(name, freeze(value)) for name, value in own.items() if name not in tensors]
        if work is not None:
            scalars += [(WORK, work.attribute()), ("op_class", work.op_class)]
        written = [tensor for name, tensor in tensors.items() if name in writes]
        recorder = self.recorder
        if recorder.known is not None:
            recorder.known.forget(written)
        if not recorder.paused:
            read = {name: tensor for name, tensor in tensors.items() if name in reads}
            recorder.emit(f"triton.{kernel.__name__}", read, read.values(), written, scalars)
        return None

    def work(
        self, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], tensors: Mapping[str, Any]
    ) -> KernelWork | None:
        """What a launch does; None where its IR has what the reader does not know."""
        name = f"triton.{kernel.__name__}"
        if kernel.is_gluon():
            self.note(f"{name} is written in Gluon, whose IR is not read: its tensors are counted")
            return None
        try:
            launch = launch_of(kernel, grid, args, kwargs, target_of_gpu(self.gpu))
        except UsageError as error:
            where = self.recorder.lines.here()
            raise UsageError(f"{error} (launched at {where})" if where else str(error)) from error
        rooms = rooms_of(tensors)
        trips = self.assumptions.unasked("trips")[0] if self.assumptions is not None else 1
        key = launch, tuple(rooms.items()), trips
        if key not in self.known:
            try:
                self.known[key] = made = work_of_launch(launch, rooms, trips)
                remember(launch.name, made)
            except Unsupported as error:
                self.known[key] = None
                self.note(f"{name} could not be read: {error}; its tensors are counted")
            for said in getattr(self.known[key], "notes", ()):
                self.note(f"{name}: {said}")
        return self.known[key]


class WarmKernel:
    """What ``kernel.warmup()`` returns: its registers and shared memory on the GPU, and a way to launch it. ``built``
    is what the wing of kernels says of it."""

    def __init__(self, kernel: Any, options: Mapping[str, Any], built: Any) -> None:
        self._kernel, self._options = kernel, {name: options[name] for name in _SETTINGS if name in options}
        self.n_regs, self.n_spills = built.registers, built.stack_bytes // _REGISTER_BYTES
        self.metadata = SimpleNamespace(shared=built.shared_bytes, num_warps=built.num_warps, name=kernel.__name__)

    def _init_handles(self) -> None:
        """There are no handles: nothing is loaded."""

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._kernel.run(*args, grid=grid, warmup=False, **{**self._options, **kwargs})


#: configurations that a message names
_SHOWN = 4
#: options of a launch that a compiled kernel keeps, and bytes of a register
_SETTINGS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_REGISTER_BYTES = 4


def pointer_use(source: str, pointers: frozenset[str]) -> tuple[set[str], set[str]]:
    """Which of a kernel's pointer arguments it loads from and which it stores to, according to its source.

    A variable carries the pointers that its expression names, a tensor descriptor among them; what ``tl.load`` returns
    is data and carries none. A pointer that goes into an atomic or into another function counts as both read and
    written.
    """
    carried: dict[str, set[str]] = {name: {name} for name in pointers}
    reads: set[str] = set()
    writes: set[str] = set()
    tree = ast.parse(textwrap.dedent(source))
    for _ in range(2):  # a second pass carries what loops assign at their end
        for node in ast.walk(tree):
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    for name in (n.id for n in ast.walk(target) if isinstance(n, ast.Name)):
                        carried.setdefault(name, set()).update(_pointers(node.value, carried))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = _called(node)
            given = [*node.args[:1], *(item.value for item in node.keywords if item.arg in ("pointer", "desc"))]
            if isinstance(node.func, ast.Attribute):  # descriptor.load(offsets)
                given.append(node.func.value)
            used = {p for argument in given for p in _pointers(argument, carried)}
            if name in _LOADS:
                reads |= used
            elif name in _STORES:
                writes |= used
            elif name.startswith("atomic") or _is_helper(node.func, carried):
                passed = [*node.args, *(item.value for item in node.keywords)]
                used |= {p for argument in passed for p in _pointers(argument, carried)}
                reads |= used
                writes |= used
    return reads, writes


#: functions of triton.language and methods of tensor descriptors
_LOADS = frozenset(("load", "gather", "load_tensor_descriptor", "_experimental_descriptor_load"))
_STORES = frozenset(("store", "scatter", "store_tensor_descriptor", "_experimental_descriptor_store"))


def _is_helper(function: ast.expr, carried: dict[str, set[str]]) -> bool:
    """Whether a call is of a function of the author's, not one of triton.language or a method of a pointer."""
    while isinstance(function, ast.Attribute):
        function = function.value
        if isinstance(function, ast.Name):
            return function.id not in ("tl", "triton", "language") and not carried.get(function.id)
    return isinstance(function, ast.Name)


def _pointers(node: ast.AST, carried: dict[str, set[str]]) -> set[str]:
    """The pointers that an expression carries."""
    if isinstance(node, ast.Call) and (_called(node) in _LOADS or _called(node).startswith("atomic")):
        return set()
    if isinstance(node, ast.Name):
        return set(carried.get(node.id, ()))
    return {p for child in ast.iter_child_nodes(node) for p in _pointers(child, carried)}


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
