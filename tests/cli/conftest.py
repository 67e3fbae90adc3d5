"""Running the command line: in this process for most tests, in a process of its own where that is the point."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.commands import Result, Run
from tests.unit.places import ROOT
from tests.unit.report_fixture import make_profile


@pytest.fixture
def shell(folder, forks) -> Run:
    """``shell("gpus")`` in a process of its own, from the checkout: a fork, unless the start of Python (``fresh``) or
    what it starts with (further options of :func:`subprocess.run`) is the subject."""

    def go(*args: str, fresh: bool = False, **options) -> Result:
        if not (fresh or options):
            ran = forks.start(*args, folder=folder)
            out, err = ran.communicate()
            return Result(ran.returncode, out, err)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
        done = subprocess.run(
            [sys.executable, "-m", "memwall", *map(str, args)],
            **{"capture_output": True, "text": True, "cwd": folder, "env": environment, "timeout": 300, **options},
            check=False,
        )
        return Result(done.returncode, done.stdout or "", done.stderr or "")

    return go


@pytest.fixture
def record(folder) -> Path:
    """A saved profile of a made-up step on two made-up GPUs."""
    path = folder / "saved.json"
    make_profile().save(path)
    return path
