"""Kernels compiled ahead of time for a GPU that need not be present: registers, spills, shared memory, occupancy.

Child processes compile, two at a time: Triton compiles nothing where ``TRITON_INTERPRET`` was set when it was imported,
and a compiler that fails, crashes or takes too long should lose only that kernel. The results of a launch are cached in
a folder of small files, named by the hash of all that they depend on: the functions' text, the launch, the architecture
and Triton's version.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from itertools import zip_longest
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any

from memwall.codegen.kernel import Kernel, TritonLaunch
from memwall.codegen.occupancy import occupancy
from memwall.core.cache import cache_folder, keep, kept
from memwall.core.errors import MissingError, install
from memwall.core.process import Child, Lost, environment
from memwall.core.progress import CountedLine, tell
from memwall.core.sources import load_source, source_hash
from memwall.frontend.triton.launch import triton_target

#: seconds that the compiler may take for one launch; a kernel with many spills takes minutes
LIMIT_S = 120.0
#: concurrent compilers
WORKERS = 2
#: incremented when the results change: older ones are then ignored
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of one launch on an architecture: registers, spills and stack of a thread, shared memory of a block.

    ``spilled_bytes`` are registers written to local memory and read back. ``occupancy`` is the share of the warps that
    a multiprocessor can hold, ``limited_by`` what limits it. ``status`` is ``ok``, ``failed``, or ``vendor library``
    where a contraction is left to it; ``reason`` says why.
    """

    function: str
    architecture: str
    num_warps: int
    registers: int = 0
    spilled_bytes: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0
    occupancy: float = 0.0
    limited_by: str = ""
    status: str = "ok"
    reason: str = ""


def compile_all(
    pairs: Sequence[tuple[Kernel, str]], *, cache: Path | None = None, workers: int = WORKERS, limit_s: float = LIMIT_S
) -> list[tuple[Resources, ...]]:
    """Resources of each launch of some kernels, each on an architecture.

    Args:
        cache: folder of earlier results; None takes :func:`default_cache`.
        workers: concurrent compilers.
        limit_s: seconds that one launch may take.

    Raises:
        MissingError: Triton is not installed.
    """
    version = triton_version()
    folder = default_cache() if cache is None else cache
    jobs: dict[str, tuple[Kernel, TritonLaunch, str]] = {}
    keys: list[list[str]] = []
    for kernel, architecture in pairs:
        own = [] if _is_vendors(kernel, architecture) else list(kernel.launches)
        keys.append([_key(kernel, launch, architecture, version) for launch in own])
        jobs.update(zip(keys[-1], ((kernel, launch, architecture) for launch in own), strict=True))
    answers = {key: found for key in jobs if (found := _cached(folder, key)) is not None}
    missing = [key for key in jobs if key not in answers]
    for number, (key, answer) in enumerate(_answers(missing, jobs, workers, limit_s), start=1):
        answers[key] = answer
        if "error" not in answer:
            keep(folder / f"{key}.kept", json.dumps(answer, sort_keys=True))
        kernel, _, architecture = jobs[key]
        tell(CountedLine(f"compiling {kernel.name} for {architecture}", number, len(missing)))
    return [
        tuple(
            _resources(launch, architecture, answers[key] if key else None)
            for launch, key in zip_longest(kernel.launches, own)
        )
        for (kernel, architecture), own in zip(pairs, keys, strict=True)
    ]


def _is_vendors(kernel: Kernel, architecture: str) -> bool:
    """Whether a kernel is a contraction on an architecture whose tensor cores Triton does not use."""
    number = architecture.removeprefix("sm_")
    return "matmul" in kernel.schedule and number.isdigit() and int(number) < 80


def default_cache() -> Path:
    """The folder of cached results."""
    return cache_folder() / "compiled"


def triton_version() -> str:
    """The version of Triton.

    Raises:
        MissingError: it is not installed.
    """
    if importlib.util.find_spec("triton") is None:
        raise MissingError(f"kernels are compiled by Triton, which is not installed: {install('triton')}")
    return importlib.metadata.version("triton")


def _resources(launch: TritonLaunch, architecture: str, answer: Mapping[str, Any] | None) -> Resources:
    """What a compiler's answer means; None where the vendor's library takes the launch."""
    plain = Resources(launch.function, architecture, launch.num_warps)
    if answer is None:
        reason = f"Triton has no tensor-core path for {architecture}"
        return replace(plain, status="vendor library", reason=reason)
    if "error" in answer:
        return replace(plain, status="failed", reason=answer["error"])
    found = occupancy(architecture, launch.num_warps, answer["registers"], answer["shared_bytes"])
    made = replace(plain, **answer, occupancy=found.share, limited_by=found.limited_by)
    if found.blocks:
        return made
    return replace(made, status="failed", reason=f"a block takes more {found.limited_by} than it may")


# -- results that are kept ---------------------------------------------------------------------------------------------


def _key(kernel: Kernel, launch: TritonLaunch, architecture: str, version: str) -> str:
    depends = {
        **asdict(launch),
        "grid": None,
        "source": source_hash(_compiled_text(kernel.source)),
        "format": FORMAT,
        "architecture": architecture,
        "triton": version,
    }
    return hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()[:32]


@lru_cache(maxsize=256)
def _compiled_text(source: str) -> str:
    """A kernel's file without comments, docstrings and ``run()``, which no compiler sees."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source
    tree.body = [node for node in tree.body if getattr(node, "name", "") != "run"]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _cached(folder: Path, key: str) -> dict[str, Any] | None:
    found = kept(folder / f"{key}.kept")
    return None if found is None else dict(json.loads(found))


# -- compilers in children ---------------------------------------------------------------------------------------------


def _answers(
    keys: Sequence[str], jobs: Mapping[str, tuple[Kernel, TritonLaunch, str]], workers: int, limit_s: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The answers to some jobs, in order of completion."""
    count = min(workers, len(keys))
    with tempfile.TemporaryDirectory(prefix="memwall-", ignore_cleanup_errors=True) as scratch:
        pool = [_Compiler(Path(scratch) / str(number), limit_s) for number in range(count)]
        free: SimpleQueue[_Compiler] = SimpleQueue()
        for compiler in pool:
            free.put(compiler)

        def answer(key: str) -> dict[str, Any]:
            compiler = free.get()
            try:
                return compiler.compile(*jobs[key])
            finally:
                free.put(compiler)

        threads = ThreadPoolExecutor(max(count, 1))
        try:
            futures = {threads.submit(answer, key): key for key in keys}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:  # interrupted or done: start nothing more, and end what runs
            threads.shutdown(wait=False, cancel_futures=True)
            for compiler in pool:
                compiler.close()


def compiler_variables(scratch: Path) -> dict[str, str]:
    """The variables of a child that compiles: it leaves nothing outside of a folder, and says what ptxas says."""
    variables = {key: value for key, value in environment().items() if key != "TRITON_INTERPRET"}
    variables |= {"TRITON_CACHE_DIR": str(scratch / "triton"), "TRITON_ALWAYS_COMPILE": "1"}
    return variables | {"TRITON_DUMP_PTXAS_LOG": "1"}


class _Compiler:
    """One child process with its own folder, started on demand and restarted when lost."""

    def __init__(self, scratch: Path, limit_s: float) -> None:
        self.scratch, self.limit_s = scratch, limit_s
        self.process: Child | None = None

    def compile(self, kernel: Kernel, launch: TritonLaunch, architecture: str) -> dict[str, Any]:
        self.scratch.mkdir(exist_ok=True)
        path = self.scratch / f"{source_hash(kernel.source)}.py"
        path.write_text(kernel.source, encoding="utf-8")
        job = {
            "source": str(path),
            "function": launch.function,
            "arguments": launch.arguments,
            "constants": dict(launch.constants),
            "num_warps": launch.num_warps,
            "num_stages": launch.num_stages,
            "architecture": architecture,
        }
        if self.process is None:
            self.process = Child(answer, compiler_variables(self.scratch))
        try:
            said: dict[str, Any] = self.process.ask(self.limit_s, job)
            return said
        except Lost as lost:
            self.close()
            if lost.status == "timeout":
                return {"error": f"not compiled within {self.limit_s:.0f} s"}
            return {"error": f"the compiler ended (exit {lost.code})"}

    def close(self) -> None:
        """End the child and the processes that it started."""
        process, self.process = self.process, None
        if process is not None:
            process.stop()


# -- in the child ------------------------------------------------------------------------------------------------------

#: divisor of pointers: torch's allocations are aligned to it, and Triton needs no more
ALIGNMENT_BYTES = 16
#: a 32-bit register
REGISTER_BYTES = 4


def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """Resources of a launch, or its compiler's message.

    A job has ``source`` (the path of a kernel's file), ``function``, ``arguments``, ``constants``, ``num_warps``,
    ``num_stages`` and ``architecture``; the answer has either ``registers``, ``spilled_bytes``, ``stack_bytes`` and
    ``shared_bytes``, all of one thread but the last, or ``error``, a line.
    """
    try:
        return _compile(job)
    except Exception as error:  # any exception of a compiler is an answer about one kernel
        return {"error": message_of_compiler(error)}


def message_of_compiler(error: Exception) -> str:
    """What a compiler says, in one line: ptxas's own where it is among them."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = (line for line in lines if re.match(r"ptxas\b.*\b(error|fatal)\s*:", line))
    return f"{type(error).__name__}: {next(named, lines[-1] if lines else '')[:300]}"


def _compile(job: Mapping[str, Any]) -> dict[str, Any]:
    """Compile one function of a generated file, and read its resources."""
    import triton
    from triton.compiler import ASTSource

    function = getattr(_module(job["source"]), job["function"])
    types = dict(job["arguments"]) | dict.fromkeys(job["constants"], "constexpr")
    signature = {name: types[name] for name in function.arg_names}
    aligned = [["tt.divisibility", ALIGNMENT_BYTES]]
    attributes = {(n,): aligned for n, kind in enumerate(signature.values()) if kind.startswith("*")}
    source = ASTSource(function, signature=signature, constexprs=job["constants"], attrs=attributes)
    target = triton_target(job["architecture"])
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        options = {name: job[name] for name in ("num_warps", "num_stages")}
        compiled = triton.compile(source, target=target, options=options)
    read = read_amdgcn if target.backend == "hip" else read_ptxas
    return read(said.getvalue(), compiled.asm) | {"shared_bytes": compiled.metadata.shared}


@cache
def _module(path: str) -> ModuleType:
    source = Path(path)
    return load_source(source.read_text(encoding="utf-8"), source.parent)


def read_ptxas(log: str, _: Mapping[str, Any]) -> dict[str, int]:
    """A kernel's resources from ``ptxas -v``.

    Raises:
        ValueError: it does not state registers.
    """
    return {
        "registers": _number(r"Used (\d+) registers", log),
        "spilled_bytes": max(_number(r"(\d+) bytes spill stores", log), _number(r"(\d+) bytes spill loads", log)),
        "stack_bytes": _number(r"(\d+) bytes stack frame", log),
    }


def read_amdgcn(_: str, assembly: Mapping[str, Any]) -> dict[str, int]:
    """A kernel's resources from the metadata of AMD's assembly; vector registers include accumulation registers."""
    text = assembly["amdgcn"]
    return {
        "registers": _number(r"\.vgpr_count:\s+(\d+)", text),
        "spilled_bytes": REGISTER_BYTES * _number(r"\.vgpr_spill_count:\s+(\d+)", text),
        "stack_bytes": _number(r"\.private_segment_fixed_size:\s+(\d+)", text),
    }


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"the compiler says nothing that fits {pattern}")
    return int(found.group(1))
