"""Grouped matmuls: one traced op, which torch runs as one kernel or as a loop over the groups.

The choice is as in ``ATen/native/cuda/GroupedBlas.cpp`` (``_grouped_mm_cuda``), the same in all versions of
:data:`memwall.hardware.torch_versions.TORCH`: on compute capability 9.0 and 10.x bfloat16 is one kernel of CUTLASS. All
else, float16 on an H100 and AMD's GPUs included, is ``_grouped_mm_fallback`` (``GroupedMMUtils.h``): the ends of the
groups are copied to the host, which waits for them, and a matmul is called for each group. cuBLASLt's kernel of float16
needs CUDA 13.3, which no wheel of these versions has. transformers has the same loop in Python
(``integrations/moe.py``) for GPUs below compute capability 8.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memwall.core.graph import Graph, Op, Storage, TensorSpec, Value
from memwall.hardware.chips import CHIPS
from memwall.hardware.torch_versions import TorchVersion
from memwall.ops.sdpa import Backends

#: how grouped matmuls run, in words
CHOICES = {"grouped": "grouped matmuls in one kernel", "looped": "grouped matmuls as loops over the groups"}
#: instructions of a multiprocessor for which CUTLASS's kernel is built: compute capability 9.0 and 10.x
_BUILT_FOR = ("wgmma", "tcgen05")


@dataclass(frozen=True, slots=True)
class GroupedCall:
    """One call: the traced op, and the specs of what it reads and writes."""

    op: Op
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, graph: Graph, op: Op) -> GroupedCall:
        """The call that a traced op is."""
        return cls(op, graph.specs(op.inputs), graph.specs(op.outputs))

    def backend(self, backends: Backends) -> str:
        """How it runs on a chip, one of :data:`CHOICES`."""
        tensors = (*self.inputs[:2], self.outputs[0])
        fast = backends.chip.products in _BUILT_FOR and {spec.dtype for spec in tensors} == {"bfloat16"}
        return "grouped" if fast and self.op.name == "aten._grouped_mm" else "looped"

    def backends(self, torch: TorchVersion, preferred: str = "") -> tuple[str, ...]:
        """How it runs on some chip, each once."""
        return tuple(dict.fromkeys(self.backend(Backends(chip, torch, preferred)) for chip in CHIPS.values()))

    def form(self, choice: str) -> Graph:
        """What a choice launches, from the call's inputs to its results. A loop is a copy of the ends to the host, and
        the op, whose formula has a launch for each group; a batch without ends is a batched matmul anyway."""
        specs = [*self.inputs, *self.outputs]
        given, made = tuple(range(len(self.inputs))), tuple(range(len(self.inputs), len(specs)))
        ops, attributes = list[Op](), dict[str, Any](self.op.attributes)
        if choice == "looped" and "offs" in self.op.arguments:
            ends = self.op.arguments.index("offs")
            specs.append(specs[ends])
            on_host: Mapping[str, Any] = {"to_host": True}
            ops.append(_op(0, "aten._to_copy", "movement", (ends,), (len(specs) - 1,), ("self",), on_host))
            attributes["looped"] = True
        ops.append(_op(len(ops), self.op.name, self.op.op_class, given, made, self.op.arguments, attributes))
        return Graph(
            tuple(Value(i, spec, i, 0) for i, spec in enumerate(specs)),
            tuple(Storage(i, spec.nbytes, "activation") for i, spec in enumerate(specs)),
            tuple(ops),
            inputs=given,
            outputs=made,
        )


def _op(number: int, name: str, op_class: str, inputs: tuple[int, ...], outputs: tuple[int, ...], *named: Any) -> Op:
    return Op(number, name, op_class, "forward", "", inputs, outputs, *named)
