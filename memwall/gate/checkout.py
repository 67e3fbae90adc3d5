"""A commit in a temporary worktree, with what git leaves out of one where this clone has it: submodules, Git LFS
objects, and the files that git ignores and the head reads."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from memwall.core.errors import UsageError
from memwall.core.git import git
from memwall.core.scratch import scratch
from memwall.core.units import few
from memwall.gate.tracing import TraceOutcome

#: the first line of the text that stands for a file of Git LFS
_POINTER = b"version https://git-lfs.github.com/spec/v1"
_OBJECT = re.compile(rb"^oid sha256:([0-9a-f]{64})$", re.MULTILINE)
#: bytes beyond which a file is linked and not copied
_LARGE = 256 << 20


@dataclass(frozen=True)
class Checkout:
    """A commit in a temporary worktree: ``folder`` is the counterpart of the folder that the gate runs in. ``absent``
    are its files of Git LFS whose contents this clone does not have."""

    commit: str
    top: Path
    folder: Path
    head_top: Path
    notes: tuple[str, ...]
    absent: tuple[str, ...] = ()
    #: the head's files that the base was given
    lent: list[str] = field(default_factory=list)

    def lend(self, heads: Mapping[str, TraceOutcome]) -> None:
        """Give the base the files that the heads have read and that git ignores, which no commit can have changed."""
        read = sorted({path for row in heads.values() for path in self._only_ours(row)})
        for path in _ignored(self.head_top, read):
            there, here = self.top / path, self.head_top / path
            with contextlib.suppress(OSError):
                there.parent.mkdir(parents=True, exist_ok=True)
                _put(here, there)
                self.lent.append(path)

    def borrowed(self) -> list[str]:
        """A note of the files that the base was given."""
        return [f"the base reads the working tree's {few(self.lent)}, which git ignores"] if self.lent else []

    def _only_ours(self, head: TraceOutcome) -> list[str]:
        """What a head has read that the base does not have."""
        return [path for path in head.read if not (self.top / path).exists()]

    def untracked(self, head: TraceOutcome) -> list[str]:
        """A note of the files that a head has read, git does not know and the base does not have."""
        read = self._only_ours(head)
        known = set(git(self.head_top, "ls-files", "-z", "--recurse-submodules")[1].split("\0")) if read else set()
        own = [path for path in read if path not in known]
        return [f"it reads {few(own)}, which git does not track: part of the change"] if own else []

    def lacks(self, head: TraceOutcome) -> str:
        """What to do where the base fails for want of a file that the head has; empty where it has them all."""
        missing = [f"{path} is not in the base {self.commit[:12]}" for path in self._only_ours(head)]
        missing += [
            f"{path} is a pointer of Git LFS there, and this clone has no contents for it: git lfs fetch origin"
            f" {self.commit[:12]}"
            for path in self.absent
        ]
        way = (
            "or compare with a record of it: memwall profile -o base.json there, memwall gate --baseline base.json here"
        )
        return "; ".join(["", *missing[:3], way]) if missing else ""


def place_in_repository(folder: Path) -> str:
    """A folder as seen from the top of its git repository, empty at the top and outside of any."""
    try:
        code, prefix = git(folder, "rev-parse", "--show-prefix")
    except UsageError:
        return ""
    return "" if code else prefix.rstrip("/")


def _find_commit(folder: Path, ref: str) -> tuple[str, tuple[str, ...]]:
    """The commit to compare with: where the head's history and ``ref`` parted, so that what others did since is not
    taken for the head's doing; and what the user should know about it."""
    code, said = git(folder, "rev-parse", "--show-toplevel")
    if code and "not a git repository" not in said:
        raise UsageError(f"--baseline-ref {ref}: git says {said.splitlines()[0] if said else 'nothing'}")
    if code:
        raise UsageError(f"--baseline-ref {ref}: {folder.name or folder} is in no git repository; use --baseline FILE")
    if ref.startswith("-"):
        raise UsageError(f"--baseline-ref {ref!r} is no commit, branch or tag")
    code, tip = git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    shallow = git(folder, "rev-parse", "--is-shallow-repository")[1] == "true"
    deeper = "this clone is shallow: git fetch --unshallow (fetch-depth: 0 in actions/checkout)"
    if code:
        hint = deeper if shallow else "git fetch it first, or name another (git branch --all lists them)"
        raise UsageError(f"--baseline-ref: there is no commit {ref!r} here; {hint}")
    code, base = git(folder, "merge-base", tip, "HEAD")
    if code and shallow:
        raise UsageError(f"--baseline-ref {ref}: no common commit with HEAD; {deeper}")
    if code:
        raise UsageError(f"--baseline-ref {ref}: it has no common commit with HEAD; name one that has")
    if git(folder, "status", "--porcelain", "--untracked-files=no")[1]:
        return base, ("the head is the working tree with its uncommitted changes",)
    if base == git(folder, "rev-parse", "HEAD")[1]:
        return base, ("the base is the head's own commit: nothing can differ",)
    return base, ()


@contextlib.contextmanager
def checked_out(folder: Path, ref: str) -> Iterator[Checkout]:
    """The base commit of ``ref`` in a temporary worktree, taken away at the end. The user's tree is not touched. Raises
    ``UsageError``: no repository, no such ref, a shallow clone that lacks the common commit, or a commit without the
    folder."""
    commit, notes = _find_commit(folder, ref)
    top = Path(git(folder, "rev-parse", "--show-toplevel")[1]).resolve()
    with scratch("base", _unregister) as place:
        tree = place / top.name
        # contents of Git LFS come from this clone alone: the filter might ask a server for each
        words = ("worktree", "add", "--detach", "--quiet", str(tree), commit)
        code, message = git(folder, *words, GIT_LFS_SKIP_SMUDGE="1")
        if code:
            said = message.splitlines()[-1] if message else "git failed"
            raise UsageError(f"cannot check out {commit[:12]}: {said}")
        notes += tuple(_submodules(top, tree, commit))
        absent = tuple(_large_files(top, tree))
        inside = tree / folder.resolve().relative_to(top)
        if not inside.is_dir():
            raise UsageError(f"the commit {commit[:12]} has no folder {folder.resolve().relative_to(top)}")
        yield Checkout(commit, tree, inside, top, notes, absent)


def _unregister(place: Path) -> None:
    """Have the repository of the worktree in a temporary folder forget it."""
    for link in place.glob("*/.git"):
        with contextlib.suppress(OSError):
            admin = Path(link.read_text(encoding="utf-8").removeprefix("gitdir: ").strip())  # .git/worktrees/NAME
            git(admin.parents[1], "worktree", "remove", "--force", "--force", str(link.parent))


def _submodules(ours: Path, theirs: Path, commit: str) -> Iterator[str]:
    """Fill a worktree's submodules from this clone's; a note for each whose commit it does not have."""
    code, listed = git(ours, "ls-tree", "-r", "-z", commit)
    for row in [] if code else listed.split("\0"):
        what, _, path = row.partition("\t")
        if not what.startswith("160000"):
            continue
        inner = what.split()[2]
        with tempfile.TemporaryDirectory() as place:
            index = {"GIT_INDEX_FILE": str(Path(place, "index"))}
            here, there = ours / path, theirs / path
            fills = (("read-tree", inner), ("checkout-index", "--all", "--force", f"--prefix={there}/"))
            if (here / ".git").exists() and not any(git(here, *words, **index)[0] for words in fills):
                yield from _submodules(here, there, inner)
                continue
        yield (
            f"the base lacks its submodule {path} at {inner[:12]}, which this clone does not have:"
            " git submodule update --init --recursive, then git fetch in it"
        )


def _large_files(ours: Path, theirs: Path) -> Iterator[str]:
    """Put the contents of Git LFS's files in place of their pointers, from this clone's store or from an equal file of
    the working tree; yields files that it has neither of."""
    _, listed = git(theirs, "ls-files", "-z", ":(top,attr:filter=lfs)")
    store = Path(git(ours, "rev-parse", "--path-format=absolute", "--git-common-dir")[1], "lfs", "objects")
    for path in filter(None, listed.split("\0")):
        there, here = theirs / path, ours / path
        with contextlib.suppress(OSError), there.open("rb") as handle:
            text = handle.read(1024)
            found = _OBJECT.search(text) if text.startswith(_POINTER) else None
            if found is None:
                continue
            name = found[1].decode()
            kept = store / name[:2] / name[2:4] / name
            source = kept if kept.is_file() else here if here.is_file() and _sha256(here) == name else None
            if source is None:
                yield path
            else:
                _put(source, there)


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _put(here: Path, there: Path) -> None:
    """Copy a file, or link one that is large."""
    there.unlink(missing_ok=True)
    if here.stat().st_size > _LARGE:
        there.symlink_to(here)
    else:
        shutil.copyfile(here, there)


def _ignored(top: Path, paths: list[str]) -> list[str]:
    """The paths, of some, that git ignores, none of them in a submodule."""
    if not paths:
        return []
    code, found = git(top, "check-ignore", "-z", "--stdin", given="\0".join(paths))
    if code > 1 and len(paths) > 1:  # git answers for none if one is in a submodule
        half = len(paths) // 2
        return _ignored(top, paths[:half]) + _ignored(top, paths[half:])
    return [] if code else [path for path in found.split("\0") if path]
