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

from memwall.frontend.torch.recorder import Recorder
from memwall.frontend.torch.tensors import freeze


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

    with patch.object(JITFunction, "run", run), patch.object(Autotuner, "run", tune):
        yield


def _record(recorder: Recorder, kernel: Any, given: dict[str, Any]) -> None:
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
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

    A variable carries the pointers that its expression names; what ``tl.load`` returns is data and carries none. A
    pointer that goes into an atomic or into another function counts as both read and written.
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
            used = _pointers(node.args[0], carried) if node.args else set()
            if name == "load":
                reads |= used
            elif name == "store":
                writes |= used
            elif name.startswith("atomic") or not isinstance(node.func, ast.Attribute):
                used = {p for argument in node.args for p in _pointers(argument, carried)}
                reads |= used
                writes |= used
    return reads, writes


def _pointers(node: ast.AST, carried: dict[str, set[str]]) -> set[str]:
    """The pointers that an expression carries."""
    if isinstance(node, ast.Call) and (_called(node) == "load" or _called(node).startswith("atomic")):
        return set()
    if isinstance(node, ast.Name):
        return set(carried.get(node.id, ()))
    return {p for child in ast.iter_child_nodes(node) for p in _pointers(child, carried)}


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
