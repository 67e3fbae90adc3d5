"""Triton kernels that a model launches itself: recorded as ``triton.NAME`` instead of being compiled and run.

The kernel's Python source says which tensors it reads and writes: compiling it instead would need a device.
A cost is given with ``@register_cost("triton::NAME")``.
"""

from __future__ import annotations

import ast
import contextlib
import sys
import textwrap
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch

from memwall.core import compat
from memwall.frontend.torch.dispatch.recorder import Recorder
from memwall.frontend.torch.dispatch.tensors import freeze


@contextlib.contextmanager
def triton_calls(recorder: Recorder) -> Iterator[None]:
    """While open, launching a Triton kernel records it. Does nothing where the model did not import triton."""
    if "triton" not in sys.modules:
        yield
        return
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    def run(kernel: Any, *args: Any, **kwargs: Any) -> None:
        given = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
        _record(recorder, kernel, {name: given[name] for name in kernel.arg_names if name in given})

    def tune(tuner: Any, *args: Any, **kwargs: Any) -> None:
        tuner.fn.run(*args, **{**kwargs, **(tuner.configs[0].kwargs if tuner.configs else {})})

    plain = compat.set_wrap_triton_enabled(False)  # wrap_triton(kernel) launches the kernel, as outside a compiler
    with plain, patch.object(JITFunction, "run", run), patch.object(Autotuner, "run", tune):
        yield


def _record(recorder: Recorder, kernel: Any, given: dict[str, Any]) -> None:
    bases = {name: getattr(value, "base", value) for name, value in given.items()}  # of descriptors that the host makes
    tensors = {name: value for name, value in bases.items() if isinstance(value, torch.Tensor)}
    reads, writes = pointer_use(kernel.src, frozenset(tensors))
    scalars = [(name, freeze(value)) for name, value in given.items() if name not in tensors]
    written = [tensor for name, tensor in tensors.items() if name in writes]
    if recorder.known is not None:
        recorder.known.forget(written)
    if not recorder.paused:
        read = {name: tensor for name, tensor in tensors.items() if name in reads}
        recorder.emit(f"triton.{kernel.__name__}", read, read.values(), written, scalars)


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
