"""An exception from the user's code in one line that points to the user's own line."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from memwall.core.errors import MemwallError, UsageError, message_of
from memwall.core.process import end_if_forked

_PACKAGE = __name__.partition(".")[0]
_INSIDE = f"{_PACKAGE}."
_MESSAGE_CHARS = 300
_LINE_CHARS = 100
_PACKAGES = frozenset(("site-packages", "dist-packages"))
#: installed packages whose lines are not the user's
_MACHINERY = ("torch", "triton", "click", "memwall", "jax", "jaxlib", "flax", "optax", "equinox", "haiku")


#: Part of a message of torch's → how to fix it.
_FIXES = {
    **{
        f"'{name}'": "torchrun sets it: start the program as one of its ranks, with --cluster NAME --world N"
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
    },
    "has no attribute 'ProcessGroupNCCL'": "NCCL is not there: leave its options out where the program is traced",
    "nll_loss_backward.default got mixed torch.Tensor and DTensor": (
        "loss_parallel holds in backward too, which memwall runs: enter it in model(), with loss_parallel().__enter__()"
    ),
    "must be >= the product of mesh_shape": "say how many devices there are with --world N, and --cluster NAME",
    "no ranks along an axis of the mesh": "there are fewer than the program divides: start it with a larger --world",
    "more than 1 value per channel when training": (
        "a batch norm in training needs two samples: make inputs of two (--batch 2 where the target takes a batch)"
    ),
}


@contextmanager
def users_code() -> Iterator[None]:
    """Around what runs the user's code: a process that it forks ends here, and memwall's own modules are there behind
    it as before. Raises ``UsageError``: it took some of them away."""
    before = sys.modules.copy()
    try:
        yield
    finally:
        end_if_forked()
        if any(map(_is_ours, before.keys() - sys.modules.keys())):
            sys.modules.update({name: module for name, module in before.items() if _is_ours(name)})
            raise UsageError("the model takes memwall's own modules out of sys.modules; leave them there")


def _is_ours(name: str) -> bool:
    return name.startswith(_INSIDE) or name == _PACKAGE


def blame(error: BaseException, doing: str) -> MemwallError:
    """Turn an exception into one line: type, message, and the last frame of the user's own code.

    ``doing`` names the activity, as in ``"loading model.py"``. An error of memwall's is returned as it is.
    """
    if isinstance(error, MemwallError):
        return error
    if isinstance(error, SyntaxError) and error.filename:
        text = f" in {_clip(error.text.strip(), _LINE_CHARS)!r}" if error.text else ""
        return UsageError(f"{doing}: {_shown(error.filename)}:{error.lineno}: {error.msg}{text}")
    message = first_line(error) or ("no ranks along an axis of the mesh" if _is_of_mesh(error) else "")
    what = type(error).__name__ + (f": {message}" if message else "")
    where = user_frame(error)
    fix = next((f"; {fix}" for part, fix in _FIXES.items() if part in message), "")
    return UsageError(f"{doing}: {what}" + (f" (at {where})" if where else "") + fix)


def cause_of(error: BaseException) -> BaseException:
    """What the user's code raised where torch has wrapped it in an error of its own, as schedules of a pipeline do."""
    while isinstance(error.__cause__, Exception) and user_frame(error.__cause__):
        *_, (raising, _) = traceback.walk_tb(error.__traceback__)
        if not is_machinery(raising.f_code.co_filename):
            break
        error = error.__cause__
    return error


def _is_of_mesh(error: BaseException) -> bool:
    """Whether a mesh of devices was being made, whose axes torch asserts without a word to have ranks."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, AssertionError) and any(frame.name == "init_device_mesh" for frame in frames)


def first_line(error: BaseException) -> str:
    """The first meaningful line of an exception's message (after a colon, two), cut to a readable length."""
    said = ""
    for line in filter(None, map(str.strip, message_of(error).splitlines())):
        said = f"{said} {line}" if said else line
        if not said.endswith(":"):
            break
    return _clip(said, _MESSAGE_CHARS)


def user_frame(error: BaseException) -> str:
    """``file:line in function: source`` of the last frame outside torch, memwall, installed packages and the library.

    Where the whole model is an installed package, the last frame of that package; empty when there is neither.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    for is_own in (is_user_file, lambda filename: not is_machinery(filename)):
        found = [(frame, line) for frame, line in frames if is_own(frame.f_code.co_filename)]
        if found:
            frame, line = found[-1]
            code = frame.f_code
            source = linecache.getline(code.co_filename, line, frame.f_globals).strip()
            at = f"{_shown(code.co_filename)}:{line} in {code.co_name}"
            return f"{at}: {_clip(source, _LINE_CHARS)}" if source else at
    return ""


def library_frame(error: BaseException) -> str:
    """``file:line in function`` of the innermost frame outside torch and memwall where that is of an installed package,
    which the user does not rewrite; empty where it is the user's own."""
    frames = [(f, line) for f, line in traceback.walk_tb(error.__traceback__) if not is_machinery(f.f_code.co_filename)]
    if not frames or not _is_installed(frames[-1][0].f_code.co_filename):
        return ""
    code, line = frames[-1][0].f_code, frames[-1][1]
    return f"{portable(code.co_filename)}:{line} in {code.co_name}"


def is_user_file(filename: str) -> bool:
    """Whether a source file is the user's own: not torch, memwall, an installed package or the standard library."""
    return not is_machinery(filename) and not _is_installed(filename)


def _is_installed(filename: str) -> bool:
    return not _PACKAGES.isdisjoint(Path(filename).parts)


def is_machinery(filename: str) -> bool:
    """Whether a source file is memwall's, of a library that models are written with, or the standard library's, or no
    file at all."""
    if filename.startswith("<"):
        return True
    if _is_installed(filename):
        return any(f"-packages/{name}/" in Path(filename).as_posix() for name in _MACHINERY)
    return any(Path(filename).is_relative_to(folder) for folder in _machinery_folders())


@cache
def _machinery_folders() -> tuple[Path, ...]:
    folders = [Path(__file__).parents[2]]
    torch = sys.modules.get("torch")
    if torch is not None and torch.__file__:  # a build from source is outside site-packages
        folders.append(Path(torch.__file__).parent)
    library = [Path(sysconfig.get_path(key)) for key in ("stdlib", "platstdlib")]
    return (*folders, *library, *(path.resolve() for path in library))


def portable(filename: str) -> str:
    """A file as every machine names it: in its package, from the current folder, upwards too where both are of one git
    repository, else by its bare name."""
    path, here = Path(filename), Path.cwd()
    for place, part in enumerate(path.parts):
        if part in _PACKAGES:
            return Path(*path.parts[place + 1 :]).as_posix()
    if not path.is_relative_to(top_of(here) or here):
        return path.name
    return Path(os.path.relpath(path, here)).as_posix()


@cache
def top_of(folder: Path) -> Path | None:
    """The top of the git repository, or worktree, that a folder is in."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)


def _shown(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
