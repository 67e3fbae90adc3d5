"""Traces that sweeps share: in this process, and in the user's cache folder across processes and days.

An entry of the folder is named by what was asked: the target's file by its contents, options, and the versions of
memwall, of Python and of the libraries that models are written with. It lists every file of the user's that the trace
has read or imported, with a digest of its contents, and is used only where all of them are as they were. Files are
written whole, so any number of a user's processes may share the folder.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from memwall.core.cache import cache_folder, keep, kept
from memwall.core.packed import pack, unpack
from memwall.frontend.targets.target import split_target
from memwall.hardware.lookup import load_gpu
from memwall.pipeline import of_another_gpu, profile
from memwall.record.profile import Profile

_PACKAGE = Path(__file__).resolve().parent
#: files of a configuration's folder that are read as text of the model
_SMALL_BYTES = 1 << 20


def trace_folder() -> Path:
    """Where traces are kept."""
    return cache_folder() / "traces"


class Traces:
    """The traces of a sweep. ``folder`` keeps them for others too; None: this object alone does."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._known: dict[tuple[Any, ...], Any] = {}

    def __len__(self) -> int:
        return len(self._known)

    def profile(self, target: str, gpu: str, options: Mapping[str, Any]) -> Profile:
        """The profile of a target, traced for any GPU unless the model asks for it. Errors as of
        :func:`memwall.profile`."""
        return self.of_any_gpu("profile", target, gpu, options, lambda: profile(target, gpu=gpu, **options))

    def of_any_gpu(
        self, kind: str, target: str, gpu: str, options: Mapping[str, Any], make: Callable[[], Profile]
    ) -> Profile:
        """A profile that is made for any GPU unless the model asks for it."""
        made: Profile = self.shared(kind, target, options, make)
        if of_another_gpu(made, [load_gpu(gpu)]):
            made = self.shared(kind, target, {**options, "gpu": gpu}, make)
        return made

    def shared(self, kind: str, target: str, options: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """What ``make`` makes of a target with some options, once."""
        asked = (kind, target, *sorted(options.items()))
        if asked not in self._known:
            self._known[asked] = make() if self.folder is None else _kept(self.folder, asked, make)
        return self._known[asked]


def digest_of(value: Any) -> str:
    """A name for a value of plain types, the same in every process; files that it names count by their contents."""
    return hashlib.sha256(json.dumps(value, default=str, sort_keys=True).encode()).hexdigest()[:32]


def _kept(folder: Path, asked: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """What the entry of a question holds, if the files that it was made of are as they were; else what is made, and
    kept there."""
    path = _entry(folder, asked)
    found = kept(path)
    if found is not None:
        head, _, packed = found.partition("\n")
        if all(file_digest(name) == digest for name, digest in json.loads(head)["files"].items()):
            return unpack(packed)
    with _files_read() as names:
        made = make()
    with suppress(TypeError):  # what cannot be packed is made each time
        _write(path, made, names)
    return made


def _entry(folder: Path, asked: tuple[Any, ...]) -> Path:
    """The file of a question."""
    return folder / f"{digest_of([asked, contents_of(asked[1]), *_versions()])}.kept"


def _write(path: Path, made: Any, names: Iterable[str]) -> None:
    head = json.dumps({"files": {name: file_digest(name) for name in sorted(names)}})
    keep(path, f"{head}\n{pack(made)}")


def file_digest(name: str | Path) -> str:
    """A digest of a file's contents; empty where it cannot be read."""
    try:
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()[:32]
    except OSError:
        return ""


def contents_of(target: str) -> str:
    """The contents of the file that a target names, or of the small files of its folder."""
    parts = split_target(target)
    place = Path(parts.place)
    if parts.kind == "hf" and place.is_dir():
        small = (each for each in sorted(place.iterdir()) if each.suffix in (".json", ".py"))
        return digest_of([(each.name, file_digest(each)) for each in small if each.stat().st_size < _SMALL_BYTES])
    return file_digest(place) if place.is_file() else ""


@functools.cache
def _versions() -> tuple[str, ...]:
    """Of all that makes a trace: memwall as its files are, packages and Python."""
    files = [*_PACKAGE.rglob("*.py"), *_PACKAGE.parent.glob("hardware_specs/**/*.toml")]
    own = digest_of(sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files))
    found = [own, sys.version]
    for name in ("torch", "transformers", "jax", "jaxlib", "flax", "dm-haiku", "equinox", "optax", "onnx"):
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return tuple(found)


# -- which files a trace has read --------------------------------------------------------------------------------------

_reading: list[set[str]] = []


@functools.cache
def _watch_files() -> None:
    """Note what this process opens to read, wherever somebody asks; a hook cannot be removed."""

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if _reading and event == "open" and isinstance(arguments[0], str) and str(arguments[1] or "r")[0] == "r":
            path = os.path.abspath(arguments[0])  # noqa: PTH100  a Path would be slow
            for names in _reading:
                names.add(path)

    sys.addaudithook(note)


@contextmanager
def _files_read() -> Iterator[set[str]]:
    """The user's files that are read within, and files of modules of the user's that are loaded already."""
    _watch_files()
    names: set[str] = set()
    _reading.append(names)
    try:
        yield names
    finally:
        _reading.remove(names)
        modules = [
            getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if name != "__main__"
        ]
        names.update(file for file in modules if isinstance(file, str))
        names.intersection_update([name for name in names if _is_users(name)])


def _is_users(name: str) -> bool:
    """Whether a file is neither installed nor memwall's nor the system's."""
    path = Path(name)
    if {"site-packages", "dist-packages"} & {*path.parts}:
        return False
    return path.suffix != ".pyc" and path.is_file() and not any(map(path.is_relative_to, _installed()))


@functools.cache
def _installed() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    places = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")} | {sys.prefix, sys.base_prefix}
    system = ("/proc", "/sys", "/dev", "/etc", "/usr")
    return (*map(Path, sorted(places)), _PACKAGE, cache_folder(), *map(Path, system))
