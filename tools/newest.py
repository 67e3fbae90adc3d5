"""Write constraints-newest.txt anew from the package index, and say what changed: ``python tools/newest.py``.

torch stays at the newest version that has a CPU build (a local version, ``+cpu``) in the configured indexes; where none
has one, at what the file says.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "constraints-newest.txt"


def versions(name: str) -> list[str]:
    """The versions of a package that the configured indexes have for this Python, the newest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", name, "--disable-pip-version-check"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"^Available versions: (.+)$", said, re.MULTILINE)
    assert found is not None, said
    return found[1].split(", ")


def newest(name: str, now: str, known: Sequence[str]) -> str:
    """The version to take of those that there are."""
    if name == "torch":
        return next((each.removesuffix("+cpu") for each in known if each.endswith("+cpu")), now)
    return known[0]


def resolved(text: str, of: Callable[[str], Sequence[str]] = versions) -> tuple[str, list[str]]:
    """The file with the newest versions, and a line for each that changed."""
    lines, changed = [], []
    for line in text.splitlines():
        name, pinned, now = line.partition("==")
        took = newest(name, now, of(name)) if pinned and not line.startswith("#") else now
        lines.append(f"{name}{pinned}{took}")
        changed += [f"{name} {now} -> {took}"] if took != now else []
    return "\n".join(lines) + "\n", changed


def main() -> int:
    text, changed = resolved(FILE.read_text(encoding="utf-8"))
    FILE.write_text(text, encoding="utf-8")
    print("\n".join(changed) or f"{FILE.name} has the newest versions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
