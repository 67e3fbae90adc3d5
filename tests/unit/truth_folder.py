"""Where measured rows and traces of others may lie, not shipped: by the repository, or where MEMWALL_SHARED says."""

import os
from pathlib import Path

_PARENTS = Path(__file__).parents
_FOLDERS = (os.environ.get("MEMWALL_SHARED"), _PARENTS[2] / "shared", _PARENTS[3] / "shared")


def shared(name: str) -> Path | None:
    """The shared file or folder of that name, or None where it is not here."""
    candidates = (Path(folder) / name for folder in _FOLDERS if folder)
    return next((path for path in candidates if path.exists()), None)


def truth(name: str) -> Path | None:
    """The file of measured rows of that name, or None where it is not here."""
    return shared(f"truth/{name}")
