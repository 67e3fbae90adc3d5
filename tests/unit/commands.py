"""The command line as tests run it: a small model in an empty folder, in this process. It takes nothing of memwall but
its command line, so that the tests of defects also run with older packages."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

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
    """An empty folder that is the current one, with a small model ``net.py`` in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL, encoding="utf-8")
    return tmp_path


def in_process(capfd, *command: str) -> Run:
    """The command line in this process, after some first words; standard output and error as a user sees them."""
    from memwall.cli import main

    def go(*args: object) -> Result:
        capfd.readouterr()
        code = main([*command, *map(str, args)])
        return Result(code, *capfd.readouterr())

    return go


@pytest.fixture
def run(folder, capfd) -> Run:
    """``run("profile", "net.py")`` in this process."""
    return in_process(capfd)
