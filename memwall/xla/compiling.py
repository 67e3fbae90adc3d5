"""Programs compiled by XLA in a child process, for a device that need not be there; results are cached.

A compiler that fails, crashes or takes too long loses only its process. What it leaves in a temporary folder goes with
it. A result is kept under a hash of all that it depends on: the program, the target, the versions of the libraries, and
the variables that XLA reads.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from memwall.core.cache import cache_folder, keep, kept
from memwall.core.errors import MissingError, UsageError, install
from memwall.core.process import Child, Lost, environment
from memwall.core.scratch import scratch
from memwall.xla.target import XlaTarget

#: seconds that the compiler may take
LIMIT_S = 600.0
#: incremented when the results change: older ones are then ignored
FORMAT = 2
#: platform → modules, one of which brings its compiler, and the extra that brings it
_NEEDED = {"cuda": (("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"), "xla-cuda"), "tpu": (("libtpu",), "xla-tpu")}
#: packages that a result depends on
_VERSIONS = ("jax", "jaxlib", "jax-cuda12-pjrt", "jax-cuda13-pjrt", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvcc",
             "libtpu")  # fmt: skip
#: variables that XLA reads
_READ = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
#: folders of CUDA's compiler in wheels, the one first that knows the oldest GPUs
_TOOLKITS = ("nvidia/cuda_nvcc", "nvidia/cu13")


@dataclass(frozen=True, slots=True)
class Executable:
    """An optimized program of one device: its HLO, the devices that run it together, and bytes of its buffers.
    ``only_libraries``: products are calls of a library, since XLA found no tiles of its own."""

    text: str
    devices: int
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    only_libraries: bool = False

    @property
    def peak_bytes(self) -> int:
        """Bytes of the buffer assignment: arguments, results and temporaries; what shares memory counts once."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes


def compile_program(artifact: bytes, target: XlaTarget, limit_s: float = LIMIT_S) -> Executable:
    """Compile what ``jax.export`` serialized for a target, or find the result that was kept.

    Raises:
        UsageError: the compiler fails, or takes longer than its limit.
    """
    asked = (FORMAT, target.platform, target.description, *_versions(), *(os.environ.get(name) for name in _READ))
    digest = hashlib.sha256(json.dumps(asked).encode() + artifact).hexdigest()[:32]
    path = cache_folder() / "xla" / f"{digest}.kept"
    found = kept(path)
    if found is not None:
        return Executable(**json.loads(found))
    made = _compile(artifact, target, limit_s)
    keep(path, json.dumps(asdict(made)))
    return made


def _compile(artifact: bytes, target: XlaTarget, limit_s: float) -> Executable:
    with scratch("xla") as folder:
        child = Child("memwall.xla.child:compiled", _variables(folder))
        try:
            return Executable(**child.ask(limit_s, artifact, target))
        except Lost as lost:
            raise UsageError(f"XLA's compiler for {target.platform}: {lost}") from None
        finally:
            child.stop()


def _variables(folder: Path) -> dict[str, str]:
    """The variables of the child: no device is looked for, and nothing is left outside of the folder."""
    own = environment()
    own |= {
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "1",  # arguments keep their types
        "JAX_ENABLE_COMPILATION_CACHE": "0",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # the lock is for a device, of which there is none
        "TPU_LOG_DIR": str(folder),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TMPDIR": str(folder),
    }
    toolkit = next(_toolkits(), None)
    if toolkit is not None:
        own["PATH"] = os.pathsep.join(filter(None, (str(toolkit / "bin"), own.get("PATH"))))
        own["XLA_FLAGS"] = f"{own.get('XLA_FLAGS', '')} --xla_gpu_cuda_data_dir={toolkit}".strip()
    return own


def _toolkits() -> Iterator[Path]:
    """The folders of wheels with a ``ptxas``."""
    with suppress(ModuleNotFoundError):
        found = importlib.util.find_spec("nvidia")
        for place in (found.submodule_search_locations or ()) if found else ():
            for name in _TOOLKITS:
                if (folder := Path(place).parent / name).joinpath("bin", "ptxas").is_file():
                    yield folder


def check_installed(target: XlaTarget) -> None:
    """Raises ``MissingError`` where JAX, or its compiler for a target, is not installed: says which extra brings it."""
    modules, extra = _NEEDED[target.platform]
    if not _has("jax") or not any(map(_has, modules)):
        brought = "jax" if not _has("jax") else f"XLA's compiler for {target.platform}"
        raise MissingError(f"this needs {brought}, which is not installed: {install(extra)}")
    if not _has("flatbuffers"):
        raise MissingError(f"this needs flatbuffers, which is not installed: {install(extra)}")


def _has(module: str) -> bool:
    with suppress(ModuleNotFoundError):
        return importlib.util.find_spec(module) is not None
    return False


def _versions() -> Iterator[str]:
    for name in _VERSIONS:
        with suppress(importlib.metadata.PackageNotFoundError):
            yield f"{name} {importlib.metadata.version(name)}"
