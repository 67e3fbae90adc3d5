"""Generated Python: named by its text, written to a folder and imported from there."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from memwall.core.errors import MissingError, install


def source_hash(source: str) -> str:
    """Sixteen digits that identify a text."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def load_source(source: str, folder: Path) -> ModuleType:
    """Import a generated file; its ``run()`` is ready to be called.

    Args:
        folder: where the file is written, under a name made of its text's hash.

    Raises:
        MissingError: Triton is not installed.
    """
    if importlib.util.find_spec("triton") is None:
        raise MissingError(f"generated kernels need Triton: {install('triton')}")
    path = folder / f"kernel_{source_hash(source)}.py"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # Triton finds a function's globals by its module
    spec.loader.exec_module(module)
    return module
