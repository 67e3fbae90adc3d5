"""Whether torch.compile can compile here: which program is missing is known before anything is run."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

from memwall.core.errors import MissingError


def need_compiler(kind: str) -> None:
    """See that torch.compile has what it needs on a device (``cpu`` or ``cuda``).

    Raises:
        MissingError: no C++ compiler (CPU), no C compiler or no Triton (CUDA); names the program and the way out.
    """
    if kind == "cuda":
        if find_spec("triton") is None:
            raise MissingError("torch.compile needs Triton on a GPU: pip install 'memwall[triton]'")
        _need("CC", ("gcc", "clang", "cc"), "a C compiler, which Triton builds its launcher with")
    else:
        _need("CXX", ("g++", "clang++"), "a C++ compiler")


def _need(variable: str, names: tuple[str, ...], what: str) -> None:
    own = os.environ.get(variable)
    tried = (own,) if own else names
    if not any(shutil.which(name) for name in tried):
        missing = " or ".join(tried) + (f" (from {variable})" if own else "")
        raise MissingError(
            f"torch.compile needs {what} and found no {missing}; install one or leave the executor inductor out"
        )
