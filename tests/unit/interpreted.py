"""Triton's interpreter, in forks of a process that has imported torch: it has to be asked for before Triton is."""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.forking import Forks

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")

_CHILD = """
import sys, warnings
warnings.simplefilter("ignore")
from tests.unit import {module}
{module}.main(*sys.argv[1:])
"""


def by_name(forks: Forks, what: str, names: Sequence[str], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The results of ``cases`` or ``planted`` by name. One that takes its process down is lost alone."""
    found: dict[str, list[dict[str, Any]]] = {}
    left = list(names)
    while left:
        results, signal = lines(forks, folder, what, *left)
        for result in results:
            found.setdefault(result["name"], []).append(result)
        if not signal:
            break
        lost = next(name for name in left if name not in found)
        found[lost] = [{"name": lost, "status": "died", "schedule": "", "message": f"signal {signal}"}]
        left = left[left.index(lost) + 1 :]
    return found


def lines(forks: Forks, *words: object, module: str = "generated_child") -> tuple[list[dict[str, Any]], int]:
    """The lines that :mod:`tests.unit.generated_child`, or another, printed, and the signal that ended it, or 0."""
    ran = forks.python(_CHILD.format(module=module), *words, TRITON_INTERPRET="1")
    out, err = ran.communicate()
    assert ran.returncode is not None and ran.returncode <= 0, err[-2000:]
    return [json.loads(line) for line in out.splitlines()], -ran.returncode


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


def run(forks: Forks, cases: dict[str, dict[str, Any]], folder: Path) -> dict[str, dict[str, Any]]:
    """Run sources on their ``tensors`` in one interpreter; the tensors as they are afterwards, and the ``result``."""
    import torch

    torch.save(cases, folder / "cases.pt")
    forks.printed(_RUN, folder, TRITON_INTERPRET="1")
    done: dict[str, dict[str, Any]] = torch.load(folder / "results.pt")
    return done
