"""Where measured rows of others may lie: beside the repository, or where MEMWALL_SHARED says. They are not shipped."""

import os
from pathlib import Path

_FOLDERS = (
    os.environ.get("MEMWALL_SHARED"),
    Path(__file__).parents[2] / "shared",
    Path(__file__).parents[3] / "shared",
)


def truth(name: str) -> Path | None:
    """The file of that name, or None where it is not here."""
    candidates = (Path(folder) / "truth" / name for folder in _FOLDERS if folder)
    return next((path for path in candidates if path.exists()), None)
