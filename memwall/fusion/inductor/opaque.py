"""Ops that torch cannot call here (another library's, sparse ones, whole recurrent layers): kept by name and shape.

To a compiler each is a kernel of a library that it knows nothing of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from memwall.core.graph import TensorSpec


class Opaque:
    """Context manager: while open, there is an operator that stands for any kernel, given the specs of its results."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._specs: list[tuple[TensorSpec, ...]] = []
        self._library: Any = None

    def __enter__(self) -> Opaque:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def call(
        self, name: str, inputs: Sequence[torch.Tensor], specs: Sequence[TensorSpec], device: str
    ) -> list[torch.Tensor]:
        """Tensors of the given specs that depend on the inputs."""
        if self._library is None:
            self._library = torch.library.Library("memwall", "DEF")
            self._library.define("opaque(Tensor[] inputs, int number) -> Tensor[]")
            for key in ("Meta", "CPU"):
                self._library.impl("opaque", self._results, key)
        self.names.append(name)
        self._specs.append(tuple(specs))
        given = list(inputs) or [torch.zeros((), device=device)]
        result: list[torch.Tensor] = torch.ops.memwall.opaque(given, len(self.names) - 1)
        return result

    def _results(self, inputs: list[torch.Tensor], number: int) -> list[torch.Tensor]:
        return [
            torch.empty_strided(spec.shape, spec.strides, dtype=getattr(torch, spec.dtype), device=inputs[0].device)
            for spec in self._specs[number]
        ]
