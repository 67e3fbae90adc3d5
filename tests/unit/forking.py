"""Commands and lines of Python in processes of their own, each a fork of one that has imported torch, which takes
seconds.

For what a process alone can show: signals, crashes, exit codes, variables that a library reads once. Where the start of
Python itself is the subject, such as its options and what it imports, a test starts Python.
"""

import contextlib
import gc
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.unit.places import ROOT
from tests.unit.processes import HANGS_S

_MODEL = "import torch\ndef model():\n    return torch.nn.ReLU()\ndef inputs():\n    return (torch.zeros(2),)\n"


class Command:
    """A command that runs: ``returncode`` as of :class:`subprocess.Popen`."""

    def __init__(
        self, forks: "Forks", words: tuple[str, ...], folder: Path, environment: Mapping[str, str], code: str = ""
    ) -> None:
        self._forks, self._files = forks, tempfile.TemporaryDirectory()
        self._said = [Path(self._files.name) / name for name in ("out", "err")]
        self.returncode: int | None = None
        self.pid = forks.ask(words=words, folder=str(folder), environment=dict(environment), code=code,
                             said=[str(path) for path in self._said])  # fmt: skip

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._forks.ask(ended=self.pid)
        return self.returncode

    def communicate(self, timeout: float = HANGS_S) -> tuple[str, str]:
        """Standard output and error, once it has ended.

        Raises:
            TimeoutExpired: it takes longer; it is killed.
        """
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise subprocess.TimeoutExpired("memwall", timeout)
            time.sleep(0.02)
        out, err = (path.read_text(encoding="utf-8", errors="replace") for path in self._said)
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it and what it has started, and forget what it said."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._files.cleanup()


class Forks:
    """The process that forks, started with the first command."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def start(self, *words: object, folder: Path, environment: Mapping[str, str] = os.environ) -> Command:
        """``memwall WORDS`` in a folder, with these variables and no others."""
        return Command(self, tuple(map(str, words)), folder, environment)

    def python(self, code: str, *words: object, folder: Path = ROOT, **variables: object) -> Command:
        """These lines of Python, with ``sys.argv[1:]`` and some more variables, in the checkout or another folder."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)} | {name: str(value) for name, value in variables.items()}
        return Command(self, tuple(map(str, words)), folder, environment, code)

    def printed(self, code: str, *words: object, folder: Path = ROOT, **variables: object) -> str:
        """What such lines print; that they end well is asserted."""
        ran = self.python(code, *words, folder=folder, **variables)
        out, err = ran.communicate()
        assert ran.returncode == 0, err[-3000:]
        return out

    def ask(self, **request: Any) -> Any:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from tests.unit.forking import serve; serve()"], cwd=ROOT, text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        assert self._process.stdin and self._process.stdout
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def stop(self) -> None:
        if self._process is not None:
            self._process.communicate()


# -- in the process that forks -----------------------------------------------------------------------------------------


def serve() -> None:
    """Start a command, or say how one has ended, for each line of standard input."""
    from memwall.cli import main

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        (Path(folder) / "net.py").write_text(_MODEL, encoding="utf-8")
        main(["profile", str(Path(folder) / "net.py"), "-q"])
    for name in ("SIGHUP", "SIGINT", "SIGTERM"):  # which the command line has set
        signal.signal(getattr(signal, name), signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)
    gc.collect()
    gc.freeze()  # a fork searches nothing of this process, whose pages it would copy
    for line in sys.stdin:
        request = json.loads(line)
        if pid := request.get("ended"):
            ended, status = os.waitpid(pid, os.WNOHANG)
            print(os.waitstatus_to_exitcode(status) if ended else "null", flush=True)
        else:
            pid = os.fork()
            if not pid:
                _run(**request)
            print(pid, flush=True)


def _run(words: list[str], folder: str, environment: dict[str, str], said: list[str], code: str) -> None:
    ended = 70
    try:
        os.setsid()
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None  # where they lie is a variable
        for descriptor, path in enumerate((os.devnull, *said)):
            opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.dup2(opened, descriptor)
            os.close(opened)
        sys.argv = ["memwall", *words]
        if code:
            exec(compile(textwrap.dedent(code), "<a test>", "exec"), {"__name__": "__main__"})
            ended = 0
        else:
            from memwall.cli import main

            ended = main()
        sys.stdout.flush()
    except Exception:
        traceback.print_exc()
        ended = 1
    finally:
        sys.stderr.flush()
        os._exit(ended)
