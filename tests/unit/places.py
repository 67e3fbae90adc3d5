"""Where things lie: the checkout, a browser, and the measured rows and traces of others, which are not shipped."""

import os
import shutil
from pathlib import Path

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
