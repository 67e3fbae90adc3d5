"""What the head is compared with: saved profiles, or a commit profiled in a temporary worktree by this memwall."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from memwall.core.errors import UsageError
from memwall.core.files import write_whole
from memwall.core.version import __version__
from memwall.record.profile import Profile

#: suffixes of a saved profile, the one written first
SUFFIXES = (".json.gz", ".json")


# -- files -------------------------------------------------------------------------------------------------------------


def baseline_path(place: Path, name: str, *, several: bool) -> Path:
    """Where the baseline of a workload is: the file itself, or ``NAME.json.gz`` (or ``.json``) in a folder.

    Raises:
        UsageError: one file for several workloads.
    """
    if place.name.endswith(SUFFIXES):
        if several:
            raise UsageError(f"{place} is one file, and there are several workloads; name a folder")
        return place
    paths = [place / f"{name}{suffix}" for suffix in SUFFIXES]
    return next((path for path in paths if path.is_file()), paths[0])


def read_baseline(path: Path) -> Profile | None:
    """The saved profile; None where there is no file.

    Raises:
        UsageError: it is damaged, or of a newer schema.
    """
    return Profile.load(path) if path.is_file() else None


def other_version(baseline: Profile) -> str:
    """Why a saved profile must not be compared with this memwall's figures; empty where it may."""
    if baseline.memwall_version != __version__:
        return (
            f"the baseline was made by memwall {baseline.memwall_version[:40]}, this is {__version__}: their figures "
            "are not comparable; --update it, or compare with --baseline-ref"
        )
    return ""


def write_baselines(profiles: Mapping[Path, Profile]) -> None:
    """Write each profile whole, making the folder.

    Raises:
        UsageError: one cannot be written.
    """
    for path, profile in profiles.items():
        with contextlib.suppress(FileExistsError):
            try:
                path.parent.mkdir(parents=True)
            except OSError as error:
                if not isinstance(error, FileExistsError):
                    raise UsageError(f"cannot make {path.parent}: {error.strerror or error}") from None
        if path.name.endswith(".gz"):
            import gzip

            write_whole(path, gzip.compress(profile.to_json().encode(), mtime=0))
        else:
            profile.save(path)


# -- git ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkout:
    """A commit in a temporary worktree: ``folder`` stands there for the folder that the gate runs in."""

    commit: str
    top: Path
    folder: Path
    head_top: Path
    notes: tuple[str, ...]


#: what git sets for its hooks, which would make it take the hook's repository and index for ours
_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR")


def _git(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a git command, of a failed one what it said; runs none of the repository's hooks."""
    environment = {key: value for key, value in os.environ.items() if key not in _HOOK}
    try:
        done = subprocess.run(
            ["git", "-c", f"core.hooksPath={os.devnull}", *arguments], cwd=folder, capture_output=True, text=True,
            errors="replace", stdin=subprocess.DEVNULL, env={**environment, "LC_ALL": "C"},
        )  # fmt: skip
    except FileNotFoundError:
        raise UsageError("--baseline-ref needs git, which is not installed; use --baseline FILE") from None
    return done.returncode, (done.stdout if done.returncode == 0 else done.stderr).strip()


def place_in_repository(folder: Path) -> str:
    """A folder as seen from the top of its git repository, empty at the top and outside of any."""
    try:
        code, prefix = _git(folder, "rev-parse", "--show-prefix")
    except UsageError:
        return ""
    return "" if code else prefix.rstrip("/")


def find_commit(folder: Path, ref: str) -> tuple[str, tuple[str, ...]]:
    """The commit to compare with: where the head's history and ``ref`` parted, so that what others did since is not
    taken for the head's doing; and what the user should know about it.

    Raises:
        UsageError: no repository, no such ref, or a shallow clone that lacks the common commit.
    """
    code, said = _git(folder, "rev-parse", "--show-toplevel")
    if code and "not a git repository" not in said:
        raise UsageError(f"--baseline-ref {ref}: git says {said.splitlines()[0] if said else 'nothing'}")
    if code:
        raise UsageError(f"--baseline-ref {ref}: {folder.name or folder} is in no git repository; use --baseline FILE")
    if ref.startswith("-"):
        raise UsageError(f"--baseline-ref {ref!r} is no commit, branch or tag")
    code, tip = _git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    shallow = _git(folder, "rev-parse", "--is-shallow-repository")[1] == "true"
    deeper = "this clone is shallow: git fetch --unshallow (fetch-depth: 0 in actions/checkout)"
    if code:
        hint = deeper if shallow else "git fetch it first, or name another (git branch --all lists them)"
        raise UsageError(f"--baseline-ref: there is no commit {ref!r} here; {hint}")
    code, base = _git(folder, "merge-base", tip, "HEAD")
    if code:
        if shallow:
            raise UsageError(f"--baseline-ref {ref}: no common commit with HEAD; {deeper}")
        raise UsageError(f"--baseline-ref {ref}: it has no common commit with HEAD; name one that has")
    notes = []
    dirty = bool(_git(folder, "status", "--porcelain", "--untracked-files=no")[1])
    if dirty:
        notes.append("the head is the working tree with its uncommitted changes")
    elif base == _git(folder, "rev-parse", "HEAD")[1]:
        notes.append("the base is the head's own commit: nothing can differ")
    return base, tuple(notes)


@contextlib.contextmanager
def checked_out(folder: Path, ref: str) -> Iterator[Checkout]:
    """The base commit of ``ref`` in a temporary worktree, taken away at the end. The user's tree is not touched.

    Raises:
        UsageError: as :func:`find_commit`, or the folder is not in that commit.
    """
    commit, notes = find_commit(folder, ref)
    top = Path(_git(folder, "rev-parse", "--show-toplevel")[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="memwall-base-") as place:
        tree = Path(place).resolve() / top.name
        try:
            code, message = _git(folder, "worktree", "add", "--detach", "--quiet", str(tree), commit)
            if code:
                raise UsageError(
                    f"cannot check out {commit[:12]}: {message.splitlines()[-1] if message else 'git failed'}"
                )
            if (tree / ".gitmodules").is_file():
                notes += ("the base is checked out without its submodules",)
            inside = tree / folder.resolve().relative_to(top)
            if not inside.is_dir():
                raise UsageError(f"the commit {commit[:12]} has no folder {folder.resolve().relative_to(top)}")
            yield Checkout(commit, tree, inside, top, notes)
        finally:
            _git(folder, "worktree", "remove", "--force", str(tree))
