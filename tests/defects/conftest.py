"""What the tests of defects share. They use the command line and memwall's public names alone, so that they can also
run at the commit that had the defects (``tools/defects.py``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MODEL = """\
import torch

def model():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))

def inputs(batch=4):
    return (torch.randn(batch, 64),)
"""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty folder that is the current one, with a small model ``net.py`` in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL, encoding="utf-8")
    return tmp_path


@pytest.fixture
def run(folder, capfd) -> Run:
    """``run("profile", "net.py")``: the command line in this process."""
    from memwall.cli import main

    def go(*args: object) -> Result:
        capfd.readouterr()
        code = main([str(arg) for arg in args])
        return Result(code, *capfd.readouterr())

    return go


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
