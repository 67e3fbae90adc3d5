"""Running the command line: in this process for most tests, in a process of its own where that is the point."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.places import ROOT
from tests.unit.report_fixture import make_profile

MODEL = """\
import torch

def model():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))

def inputs(batch=4):
    return (torch.randn(batch, 64),)
"""


@dataclass(frozen=True)
class Result:
    """What a run left behind."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of a failed run that printed no result."""
        assert self.code != 0, self
        assert self.out == "", self.out
        assert "Traceback" not in self.err, self.err
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("memwall: "), self.err
        return lines[0].removeprefix("memwall: ")


Run = Callable[..., Result]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty folder that is the current one, with a small model in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL, encoding="utf-8")
    return tmp_path


def in_process(capfd, *command: str) -> Run:
    """The command line in this process, after some first words; standard output and error as a user sees them."""
    from memwall.cli import main

    def go(*args: str) -> Result:
        capfd.readouterr()
        code = main([*command, *map(str, args)])
        return Result(code, *capfd.readouterr())

    return go


@pytest.fixture
def run(folder, capfd) -> Run:
    """``run("profile", "net.py")`` in this process."""
    return in_process(capfd)


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
