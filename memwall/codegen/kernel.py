"""The generated kernel: a Python file with ``@triton.jit`` functions and a ``run()`` that launches them.

What a compiler or a device runner needs to know is stored next to the text, so neither has to read it. Triton reads a
function's text from its file: a source is written to a folder and imported from there
(:mod:`memwall.core.sources`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from memwall.ops.expressions import NotGenerated

__all__ = ["TRITON_TYPES", "Kernel", "NotGenerated", "TritonLaunch"]

#: Triton's names of the dtypes that kernels load and store
TRITON_TYPES: Mapping[str, str] = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "i1",
}  # fmt: skip


@dataclass(frozen=True)
class TritonLaunch:
    """One launch of a ``@triton.jit`` function of a kernel's source.

    ``arguments`` are names and Triton types in the order of the signature: pointers ``*bf16``, numbers ``i64``.
    ``constants`` are the constexprs by name.
    """

    function: str
    arguments: tuple[tuple[str, str], ...]
    constants: Mapping[str, int]
    grid: tuple[int, ...]
    num_warps: int
    num_stages: int = 1


@dataclass(frozen=True)
class Kernel:
    """A group of ops as Triton source.

    ``source`` is a whole Python file. Its ``run(*inputs, seed=0, empty=torch.empty_strided)`` takes the tensors of
    the values ``inputs`` (views of one storage as such views), writes in place what the group
    overwrites, allocates all else with ``empty`` and returns the tensors of the values ``outputs``. ``seed`` is in the
    signature whether or not the group draws random numbers; the n-th op of the group draws Philox's numbers of
    ``seed + n`` (number i is word i % 4 of counter i // 4), so seeds of kernels of one step must differ by more than
    their number of ops.

    ``schedule`` names the path taken: ``pointwise``, ``persistent``, ``looped``, ``split``, ``tensor list``,
    ``matmul`` and their combinations with `` + ``. ``config`` are the file's constants (block sizes, warps) that may
    be assigned before ``run()``; ``configs`` the few worth trying on a device, the chosen one first.
    """

    name: str
    source: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    op_ids: tuple[int, ...]
    launches: tuple[TritonLaunch, ...]
    schedule: str
    config: Mapping[str, int] = field(default_factory=dict)
    configs: tuple[Mapping[str, int], ...] = ()
    is_random: bool = False
    #: inputs that are overwritten though the trace does not say so: running statistics of a batch norm
    updates: tuple[int, ...] = ()
