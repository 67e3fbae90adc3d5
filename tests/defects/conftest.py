"""What the tests of defects share. They use the command line and memwall's public names alone, so that they can also
run at the commit that had the defects (``tools/defects.py``)."""

from pathlib import Path

import pytest

from tests.unit.commands import Result, Run
from tests.unit.places import ROOT


@pytest.fixture
def shell(folder, forks) -> Run:
    """``shell("gpus", timeout=HANGS_S)``: the command line in a process of its own."""

    def go(*args: object, timeout: float = 120, cwd: Path = folder) -> Result:
        ran = forks.start(*args, folder=cwd)
        out, err = ran.communicate(timeout)
        return Result(ran.returncode, out, err)

    return go


@pytest.fixture
def models() -> Path:
    """The reference workloads: ``profiles/NAME/model.py``."""
    return ROOT / "profiles"
