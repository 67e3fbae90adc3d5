"""Importing the user's code: by path as a fresh module, with its folder importable, leaving no ``.pyc`` behind."""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar
from unittest.mock import patch

from memwall.core.errors import UsageError
from memwall.frontend.targets.blame import blame, users_code
from memwall.frontend.targets.seeds import seed

P = ParamSpec("P")
T = TypeVar("T")

_numbers = itertools.count(1)
#: what JAX reads when it is first imported: no GPU is looked for, and no TPU, whose library only one process may load
_NO_DEVICES = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
#: variable that keeps XLA from saying that it finds no GPU
_QUIET = "TF_CPP_MIN_LOG_LEVEL"
#: Names in ``sys.modules`` that came from the folders of loaded files; dropped before the next file is loaded, so that
#: two files may each have their own ``layers.py``.
_siblings: set[str] = set()


def load_file(path: Path) -> ModuleType:
    """Run a Python file as a new module; a UsageError that names the user's line where it cannot be read or raises."""
    import torch  # noqa: F401  before the user's file, so that the import is not run without .pyc

    seed()
    if _mentions(path, b"jax"):
        start_jax()
    for name in _siblings:
        sys.modules.pop(name, None)
    _siblings.clear()
    name = f"memwall_target_{next(_numbers)}_{path.stem}"
    loader = importlib.machinery.SourceFileLoader(name, str(path.absolute()))
    spec = importlib.util.spec_from_file_location(name, loader.path, loader=loader)
    if spec is None:
        raise UsageError(f"cannot load {path}: it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    before = set(sys.modules)
    sys.modules[name] = module
    try:
        with importable(path.resolve().parent), without_devices(), users_code():
            loader.exec_module(module)
    except BaseException as error:
        _forget(before)
        if isinstance(error, OSError) and error.filename == loader.path:
            raise UsageError(f"cannot read {path}: {error.strerror}") from None
        if isinstance(error, (Exception, SystemExit)):
            raise blame(error, f"loading {path}") from error
        raise
    return module


def load_module(name: str) -> ModuleType:
    """Import an installed package's module, or one of the current folder. Raises ``UsageError``: no such module,
    or importing it fails."""
    import torch  # noqa: F401

    seed()
    try:
        with importable(Path.cwd()), without_devices(), users_code():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(f"there is no module {error.name!r}, neither in this folder nor installed") from None
        raise blame(error, f"importing {name}") from error
    except (Exception, SystemExit) as error:
        raise blame(error, f"importing {name}") from error


@contextmanager
def without_devices() -> Iterator[None]:
    """JAX that is imported here looks for no devices, unless the user says otherwise, and says nothing of it."""
    os.environ.setdefault(_QUIET, "2")
    with patch.dict(os.environ, {name: os.environ.get(name, said) for name, said in _NO_DEVICES.items()}):
        yield


def _mentions(path: Path, word: bytes) -> bool:
    with suppress(OSError):
        return word in path.read_bytes()
    return False


def start_triton(path: Path) -> None:
    """Import Triton where a file mentions it, so that its driver can be asked while the file is loaded."""
    if _mentions(path, b"triton"):
        with suppress(ImportError):
            importlib.import_module("triton")


def start_jax() -> None:
    """Import JAX and start its CPU, with no word of the plugins of devices that are not there; nothing where the
    process has JAX, or it is not installed."""
    if "jax" not in sys.modules:
        with suppress(Exception), without_devices(), _silenced():
            importlib.import_module("jax").devices()


@contextmanager
def _silenced() -> Iterator[None]:
    """Nothing that libraries write to the process's standard error is seen."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def importable(folder: Path) -> AbstractContextManager[None]:
    """Put a folder first on ``sys.path``, and behind it the home of its package where nothing else has that package;
    write no bytecode, and remember which modules came from there."""
    return _importable(_entries(folder))


def _entries(folder: Path) -> Sequence[Path]:
    home = home_of(folder)
    if home == folder or importlib.util.find_spec(folder.relative_to(home).parts[0]) is not None:
        return (folder,)
    return folder, home


@contextmanager
def _importable(entries: Sequence[Path]) -> Iterator[None]:
    """What Dynamo captures too, around the user's function: no file is asked for here."""
    before, wrote = set(sys.modules), sys.dont_write_bytecode
    sys.path[:0] = map(str, entries)
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = wrote
        for entry in map(str, entries):
            if entry in sys.path:
                sys.path.remove(entry)
        new = set(sys.modules) - before
        _siblings.update(name for name in new if any(_lies_in(name, entry) for entry in entries))
        _siblings.update(name for name in new if name.partition(".")[0] in _siblings)


def home_of(folder: Path) -> Path:
    """The folder that a folder's package is imported from: the nearest one without ``__init__.py``, which may be the
    folder itself."""
    return next(place for place in (folder, *folder.parents) if not (place / "__init__.py").is_file())


def at_home(function: Callable[P, T], folder: Path) -> Callable[P, T]:
    """A function of the user's that still finds its neighbours when it imports them late."""
    entries = _entries(folder)

    @functools.wraps(function, updated=())
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with _importable(entries):
            return function(*args, **kwargs)

    return call


def _lies_in(name: str, folder: Path) -> bool:
    top = name.partition(".")[0]
    if top == "memwall":
        return False
    module: Any = sys.modules.get(top)
    file = getattr(module, "__file__", None)
    if file:
        path = Path(file)
        return (path.parent.parent if path.name == "__init__.py" else path.parent) == folder
    return any(Path(entry).parent == folder for entry in getattr(module, "__path__", ()))


def _forget(before: set[str]) -> None:
    """Drop the half-loaded module and its imports from its folder; installed packages stay loaded."""
    for name in set(sys.modules) - before:
        if name.startswith("memwall_target_") or name in _siblings:
            del sys.modules[name]
    _siblings.intersection_update(before)
