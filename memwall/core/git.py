"""What git says of a folder; none of a repository's hooks runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from memwall.core.errors import UsageError

#: variables that git sets for its hooks: they would make it use the hook's repository and index
_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR")


def git(folder: str | os.PathLike[str], *arguments: str, given: str = "", **variables: str) -> tuple[int, str]:
    """Exit code and output of a git command, of a failed one what it said. ``given`` is what it reads. Raises
    ``UsageError``: git is not installed."""
    environment = {key: value for key, value in os.environ.items() if key not in _HOOK} | variables
    try:
        done = subprocess.run(
            ["git", "-c", f"core.hooksPath={os.devnull}", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            input=given,
            env={**environment, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise UsageError(f"git {arguments[0]} in {folder}: git is not installed, or there is no such folder") from None
    except ValueError:
        raise UsageError(f"git {arguments[0]}: a NUL stands in what it is asked") from None
    except NotADirectoryError:
        raise UsageError(f"git {arguments[0]}: {folder} is no folder") from None
    return done.returncode, (done.stdout if done.returncode == 0 else done.stderr).rstrip()


def head_of(folder: str | os.PathLike[str], file: Path | None = None) -> tuple[str, bool] | None:
    """The commit that a folder is at, and whether files that git tracks differ from it, or ``file`` is in no commit;
    None where there is no commit, no repository or no git."""
    try:
        code, commit = git(folder, "rev-parse", "--verify", "--quiet", "HEAD")
        if code:
            return None
        changed = bool(git(folder, "status", "--porcelain", "--untracked-files=no", "--", ":/")[1])
        unknown = file is not None and git(folder, "ls-files", "--error-unmatch", "--", str(file))[0] != 0
    except UsageError:
        return None
    return commit, changed or unknown
