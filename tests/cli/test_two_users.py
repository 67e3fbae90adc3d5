"""Two users on one machine: the other can neither run code in memwall's processes nor change what it answers."""

import contextlib
import hashlib
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.commands import MODEL

pytestmark = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only the administrator can act as another user"
)
OTHER = 65534


@pytest.fixture
def place(monkeypatch):
    """A folder that the other user can enter; those of pytest are closed to all."""
    folder = Path(tempfile.mkdtemp(prefix="two-users-"))
    folder.chmod(0o755)
    (folder / "mlp.py").write_text(MODEL, encoding="utf-8")
    monkeypatch.setenv("MEMWALL_CACHE", str(folder / "cache"))
    yield folder
    shutil.rmtree(folder)


def as_other(act: Callable[[], object]) -> bool:
    """Whether something succeeds for the other user."""
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            code = 0 if act() is not False else 1
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def memwall(*words: str) -> str:
    command = [sys.executable, "-m", "memwall", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class _Code:
    """What runs when it is unpickled."""

    def __init__(self, ran: Path) -> None:
        self.ran = ran

    def __reduce__(self):
        return Path.touch, (self.ran,)


def poison(cache: Path, ran: Path) -> None:
    """Put code in the place of what each file of the cache holds, behind the line that vouches for it, and with the
    digest that memwall would write."""
    evil = pickle.dumps(_Code(ran))
    for path in [path for path in cache.rglob("*") if path.is_file()]:
        head, _, _ = path.read_bytes().partition(b"\n")
        path.unlink()
        path.write_bytes(head + b"\n" + evil)
        text = ran.name
        (path.parent / f"{path.stem}.kept").write_text(f"{hashlib.blake2b(text.encode()).hexdigest()}\n{text}")


@pytest.mark.defect("46")
@pytest.mark.parametrize("words", [("gpus", "h100-sxm"), ("sweep", "mlp.py", "--vary", "gpu=h100", "--workers", "0")])
def test_a_cache_that_the_other_may_write_runs_none_of_their_code(words, place, monkeypatch):
    """Caches were pickles that were loaded without a look at their owner, so a file that somebody else planted in a
    shared folder ran."""
    monkeypatch.chdir(place)
    first = memwall(*words)
    cache, ran = place / "cache", place / "ran"
    for path in (place, cache, *cache.rglob("*")):  # a folder for all
        path.chmod(0o777)
    assert as_other(lambda: poison(cache, ran))
    again = memwall(*words)
    assert not ran.exists()
    assert without_seconds(again) == without_seconds(first)


def without_seconds(text: str) -> list[str]:
    return [line for line in text.splitlines() if "evaluated in" not in line]


WAITING = (
    MODEL
    + """

import pathlib, time
pathlib.Path(__file__).with_name("started").touch()
while not pathlib.Path(__file__).with_name("go").exists():
    time.sleep(0.05)
"""
)


def can_run_code(port: int, ran: Path) -> bool:
    """Whether a scheduler or a worker of Dask behind a port does what somebody without a key asks."""
    import distributed

    with distributed.Client(f"tcp://127.0.0.1:{port}", timeout=5, set_as_default=False) as client:
        client.run_on_scheduler(ran.touch)
    return True


def answers_http(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.settimeout(5)
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return connection.recv(4) == b"HTTP"


@pytest.mark.slow
@pytest.mark.defect("45")
def test_a_cluster_of_this_machine_answers_nobody_else(place):
    """A cluster that a sweep opens on this machine listened without authentication, so that every user of the machine
    could run code in memwall's process, and an HTTP server answered although no dashboard was asked for."""
    pytest.importorskip("distributed", reason="Dask is not installed")
    pytest.importorskip("cryptography", reason="cryptography, which makes the cluster's key, is not installed")
    import psutil

    (place / "waiting.py").write_text(WAITING, encoding="utf-8")
    command = [sys.executable, "-m", "memwall", "sweep", "waiting.py", "--vary", "gpu=h100", "--engine", "dask",
               "--workers", "1"]  # fmt: skip
    process = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not (place / "started").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        every = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        ports = {each.laddr.port for one in every for each in connections(one) if each.status == psutil.CONN_LISTEN}
        assert ports
        place.chmod(0o777)
        assert not any(as_other(lambda port=port: answers_http(port)) for port in ports)
        assert not any(as_other(lambda port=port: can_run_code(port, place / "ran")) for port in ports)
        assert not (place / "ran").exists()
        (place / "go").touch()
        printed, said = process.communicate()
        assert process.returncode == 0, said
        assert "h100" in printed
    finally:
        process.kill()
        process.wait()


def connections(process):
    import psutil

    with contextlib.suppress(psutil.Error):
        return getattr(process, "net_connections", getattr(process, "connections", None))()
    return []
