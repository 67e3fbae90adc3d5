"""Starts :mod:`tests.unit.generated_child` and reads what it found."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.places import ROOT

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


def workloads(mode: str, folder: Path, every: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """The results of every n-th distinct kernel of some reference workloads."""
    found, signal = _run(folder, "workloads", mode, str(every), *names)
    assert not signal, f"killed by signal {signal} after {len(found)} kernels"
    return found


def by_name(what: str, names: Sequence[str], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The results of ``cases`` or ``planted`` by name. One that takes its process down is lost alone."""
    found: dict[str, list[dict[str, Any]]] = {}
    left = list(names)
    while left:
        results, signal = _run(folder, what, *left)
        for result in results:
            found.setdefault(result["name"], []).append(result)
        if not signal:
            break
        lost = next(name for name in left if name not in found)
        found[lost] = [{"name": lost, "status": "died", "schedule": "", "message": f"signal {signal}"}]
        left = left[left.index(lost) + 1 :]
    return found


def _run(folder: Path, *arguments: str) -> tuple[list[dict[str, Any]], int]:
    """The lines that the child printed, and the signal that ended it, 0 where none did."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-m", "tests.unit.generated_child", str(folder), *arguments],
                          cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
                          check=False)  # fmt: skip
    assert done.returncode <= 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()], -done.returncode


_RUN = """
import sys, torch
from pathlib import Path
from memwall.core.sources import load_source
folder = Path(sys.argv[1])
cases = torch.load(folder / "cases.pt")
for case in cases.values():
    case["result"] = load_source(case["source"], folder).run(*case["tensors"], seed=3)
torch.save(cases, folder / "results.pt")
"""


def run(cases: dict[str, dict[str, Any]], folder: Path) -> dict[str, dict[str, Any]]:
    """Run sources on their ``tensors`` in one interpreter; the tensors as they are afterwards, and the ``result``."""
    import torch

    torch.save(cases, folder / "cases.pt")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", _RUN, str(folder)], env=environment, check=True)
    done: dict[str, dict[str, Any]] = torch.load(folder / "results.pt")
    return done
