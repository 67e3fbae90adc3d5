"""Where things lie: the checkout, a browser, and the measured rows and traces of others, which are not shipped."""

import os
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
#: the reference workloads with a forward of their own; a server's have steps
REFERENCE = {
    path.parent.name: path for path in sorted(ROOT.glob("profiles/*/model.py"))
    if path.parent.name != "llama3_8b_served" and "torch.distributed" not in path.read_text()
}  # fmt: skip
#: where MEMWALL_SHARED says, or in or next to the checkout
_SHARED = (os.environ.get("MEMWALL_SHARED"), ROOT / "shared", ROOT.parent / "shared")


def shared(name: str) -> Path | None:
    """The shared file or folder of that name, or None where it is not here."""
    candidates = (Path(folder) / name for folder in _SHARED if folder)
    return next((path for path in candidates if path.exists()), None)


def truth(name: str) -> Path | None:
    """The file of measured rows of that name, or None where it is not here."""
    return shared(f"truth/{name}")


def is_whole(request: Any) -> bool:
    """Whether every row of a large table of measured times is looked at: with --whole. Else it is every n-th, which
    tells the errors of a family of kernels as well, and not that one row alone is off."""
    return bool(request.config.getoption("--whole"))


def part_of(path: Path, every: int, folder: Path) -> Path:
    """A table with every n-th of another's rows; comments before its head stay."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if not line.startswith("#")) + 1
    part = folder / path.name
    part.write_text("".join(lines[:first] + lines[first::every]), encoding="utf-8")
    return part
