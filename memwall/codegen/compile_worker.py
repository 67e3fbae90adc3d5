"""What the child process does that compiles ahead of time: an answer for each job.

It is a process of its own because Triton compiles nothing where ``TRITON_INTERPRET`` was set when it was imported, and
because a compiler that crashes or hangs should cost one kernel. A job is an object with ``source`` (the path of a
kernel's file), ``function``, ``arguments``, ``constants``, ``num_warps``, ``num_stages``, ``backend``,
``architecture`` and ``warp_size``; the answer has either ``registers``, ``spilled_bytes``, ``stack_bytes`` and
``shared_bytes``, all of one thread but the last, or ``error``, a line.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from memwall.codegen.load import load_source

#: what pointers are divisible by: torch's allocations are aligned to it, and Triton asks for no more
ALIGNMENT_BYTES = 16
#: a 32-bit register
REGISTER_BYTES = 4


def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """What a launch takes, or what its compiler said."""
    try:
        return compile_job(job)
    except Exception as error:  # whatever a compiler raises, it is an answer about one kernel
        return {"error": f"{type(error).__name__}: {_essence(str(error))}"}


def compile_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """Compile one function of a generated file, and read back what it takes."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(_module(job["source"]), job["function"])
    types = dict(job["arguments"]) | dict.fromkeys(job["constants"], "constexpr")
    signature = {name: types[name] for name in function.arg_names}
    aligned = [["tt.divisibility", ALIGNMENT_BYTES]]
    attributes = {(n,): aligned for n, kind in enumerate(signature.values()) if kind.startswith("*")}
    source = ASTSource(function, signature=signature, constexprs=job["constants"], attrs=attributes)
    number = job["architecture"].removeprefix("sm_")
    target = GPUTarget(job["backend"], int(number) if number.isdigit() else number, job["warp_size"])
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        compiled = triton.compile(
            source, target=target, options={"num_warps": job["num_warps"], "num_stages": job["num_stages"]}
        )
    read = READERS[job["backend"]]
    return read(said.getvalue(), compiled.asm) | {"shared_bytes": compiled.metadata.shared}


@cache
def _module(path: str) -> ModuleType:
    source = Path(path)
    return load_source(source.read_text(encoding="utf-8"), source.parent)


def read_ptxas(log: str, _: Mapping[str, Any]) -> dict[str, int]:
    """What ``ptxas -v`` says of a kernel.

    Raises:
        ValueError: it says nothing of registers.
    """
    return {
        "registers": _number(r"Used (\d+) registers", log),
        "spilled_bytes": max(_number(r"(\d+) bytes spill stores", log), _number(r"(\d+) bytes spill loads", log)),
        "stack_bytes": _number(r"(\d+) bytes stack frame", log),
    }


def read_amdgcn(_: str, assembly: Mapping[str, Any]) -> dict[str, int]:
    """What the metadata of AMD's assembly say of a kernel; accumulation registers are among the vector registers."""
    text = assembly["amdgcn"]
    return {
        "registers": _number(r"\.vgpr_count:\s+(\d+)", text),
        "spilled_bytes": REGISTER_BYTES * _number(r"\.vgpr_spill_count:\s+(\d+)", text),
        "stack_bytes": _number(r"\.private_segment_fixed_size:\s+(\d+)", text),
    }


#: backend -> what reads the resources back from the compiler's log and its assembly
READERS: Mapping[str, Callable[[str, Mapping[str, Any]], dict[str, int]]] = {"cuda": read_ptxas, "hip": read_amdgcn}


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"the compiler says nothing that fits {pattern}")
    return int(found.group(1))


def _essence(message: str) -> str:
    """One line of a compiler's message: the first error that ptxas names, else the last line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    named = (line for line in lines if re.match(r"ptxas\b.*\b(error|fatal)\s*:", line))
    return next(named, lines[-1] if lines else "")[:300]
