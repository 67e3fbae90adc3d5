"""The user's own Triton kernel compiled for a GPU that need not be present: registers, spills, shared memory,
occupancy, and which instructions its PTX has. A child compiles the IR that a trace kept; results are cached."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from memwall.codegen.compiling import (
    LIMIT_S,
    compiler_variables,
    default_cache,
    message_of_compiler,
    read_amdgcn,
    read_ptxas,
    triton_version,
)
from memwall.codegen.occupancy import architecture_of, occupancy
from memwall.core import compat
from memwall.core.cache import keep, kept
from memwall.core.errors import UsageError
from memwall.core.process import Child, Lost
from memwall.frontend.triton.launch import triton_target
from memwall.frontend.triton.work import kept_ir
from memwall.hardware.lookup import Gpu
from memwall.ops.triton import KernelWork

#: incremented when the results change: older ones are then ignored
FORMAT = 2


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A launch as compiled for a GPU: registers, spills and stack of a thread, shared memory of a block.

    ``blocks`` are resident on a multiprocessor at once, ``occupancy`` is the share of the warps that it can hold, and
    ``limited_by`` what limits them. ``waves``: programs of the grid over all that are resident at once.
    ``tensor_instruction`` is the one of tensor cores in its PTX, empty without any; ``load_bytes`` are the widths of
    its loads from global memory by a thread, ``copies`` how it copies into shared memory: ``cp.async``, ``TMA`` or
    empty.
    """

    architecture: str
    registers: int
    spilled_bytes: int
    stack_bytes: int
    shared_bytes: int
    num_warps: int
    blocks: int
    occupancy: float
    limited_by: str
    waves: float
    tensor_instruction: str
    load_bytes: tuple[int, ...]
    copies: str


def built_kernel(work: KernelWork, gpu: Gpu, limit_s: float = LIMIT_S) -> CompiledKernel:
    """A launch compiled for a GPU.

    Raises:
        UsageError: Triton makes no code for the GPU, refuses the kernel or takes too long, or the kernel does not fit.
        MissingError: Triton is not installed.
    """
    architecture = architecture_of(gpu)
    options = *((name, getattr(work, name)) for name in ("num_warps", "num_stages", "num_ctas")), *work.options
    said = dict(_compiled(kept_ir(work.ir), architecture, options, limit_s))
    if "error" in said:
        raise UsageError(f"Triton does not compile the kernel for {gpu.name}: {said['error']}")
    warps = said.pop("num_warps")
    found = occupancy(architecture, warps, said["registers"], said["shared_bytes"])
    if not found.blocks:
        raise UsageError(f"the kernel does not fit {gpu.name}: a block takes more {found.limited_by} than it may")
    return CompiledKernel(
        **{**said, "load_bytes": tuple(said["load_bytes"])},
        architecture=architecture,
        num_warps=warps,
        blocks=found.blocks,
        occupancy=found.share,
        limited_by=found.limited_by,
        waves=work.programs / (found.blocks * gpu.sm_count),
    )


@lru_cache(maxsize=256)
def _compiled(ir: str, architecture: str, options: tuple[tuple[str, Any], ...], limit_s: float) -> Mapping[str, Any]:
    """The facts of a kernel's IR on an architecture, from the cache or a child that compiles it."""
    job = {"ir": ir, "architecture": architecture, "options": dict(options)}
    asked = json.dumps({**job, "format": FORMAT, "triton": triton_version()}, sort_keys=True)
    path = default_cache() / f"{hashlib.sha256(asked.encode()).hexdigest()[:32]}.kept"
    found = kept(path)
    if found is not None:
        return dict(json.loads(found))
    with tempfile.TemporaryDirectory(prefix="memwall-", ignore_cleanup_errors=True) as folder:
        child = Child("memwall.codegen.user_kernels:answer_ir", compiler_variables(Path(folder)))
        try:
            said: dict[str, Any] = child.ask(limit_s, job, folder)
        except Lost as lost:
            late = f"not compiled within {limit_s:.0f} s"
            said = {"error": late if lost.status == "timeout" else f"the compiler ended (exit {lost.code})"}
        finally:
            child.stop()
    if "error" not in said:
        keep(path, json.dumps(said, sort_keys=True))
    return said


# -- in the child ------------------------------------------------------------------------------------------------------


def answer_ir(job: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """The facts of a kernel's IR, or ``error``, its compiler's message."""
    try:
        return _built(job, Path(folder))
    except Exception as error:  # any exception of a compiler is an answer about one kernel
        return {"error": message_of_compiler(error)}


def _built(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import Language

    target, given = triton_target(job["architecture"]), job["options"]
    is_amd, backend = target.backend == "hip", compat.make_backend(target)
    options, stages = backend.parse_options(given), dict[str, Any]()
    backend.add_stages(stages, options, Language.TRITON)
    context = compat.triton_ir.context()
    compat.triton_ir.load_dialects(context)
    backend.load_dialects(context)
    path = folder / "kernel.ttir"
    path.write_text(job["ir"], encoding="utf-8")
    module = compat.triton_ir.parse_mlir_module(str(path), context)
    module.context = context
    path.write_text(str(stages["ttir"](module, {})), encoding="utf-8")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        compiled = triton.compile(str(path), target=target, options=given)
    read = read_amdgcn if is_amd else read_ptxas
    facts = read(said.getvalue(), compiled.asm)
    return {**facts, "shared_bytes": compiled.metadata.shared, "num_warps": compiled.metadata.num_warps,
            **instructions_of(compiled.asm["amdgcn" if is_amd else "ptx"])}  # fmt: skip


#: instructions of tensor cores: NVIDIA's PTX (PTX ISA 9.0) and AMD's matrix cores (CDNA ISA)
_TENSOR = re.compile(r"\b(wgmma\.mma_async|tcgen05\.mma|mma\.sync|v_s?mfma_\w+|v_wmma_\w+)")
_LOAD = re.compile(r"\bld\.global(?:\.\w+)*?(?:\.v(\d))?\.[a-z](\d+)\s")
_COPIES = (("TMA", r"cp\.async\.bulk\.tensor"), ("cp.async", r"cp\.async\.c[ag]"))
_BYTE_BITS = 8


def instructions_of(assembly: str) -> dict[str, Any]:
    """Which instructions a kernel's PTX has: of tensor cores, the widths of its loads in bytes, and its copies into
    shared memory; of AMD's assembly the first alone."""
    tensor = _TENSOR.search(assembly)
    widths = {int(lanes or 1) * int(bits) // _BYTE_BITS for lanes, bits in _LOAD.findall(assembly)}
    copies = next((name for name, pattern in _COPIES if re.search(pattern, assembly)), "")
    return {"tensor_instruction": tensor[1] if tensor else "", "load_bytes": sorted(widths), "copies": copies}
