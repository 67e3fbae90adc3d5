"""Other processes, and what is waited for until they have done it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: beyond what any machine takes for what a test waits for: it hangs
HANGS_S = 600.0


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended may wait for its new parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(read: Callable[[], Any], limit_s: float = HANGS_S) -> Any:
    """What a function gives once it gives something."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            found = read()
        except OSError:
            found = None
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"nothing came within {limit_s} s")
