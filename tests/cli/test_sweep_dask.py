"""Sweeps on a real Dask scheduler with workers on loopback, which are killed; and a disk that fills."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import memwall
from memwall.core.errors import UsageError
from memwall.sweeping import dataset
from tests.unit.commands import MODEL
from tests.unit.configs import SHORT_LLAMA, target_of

VARY = {"batch": [1, 2, 3, 4, 5, 6], "gpu": ["a100", "h100"]}
needs_dask = pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", "import distributed"], capture_output=True, check=False).returncode != 0,
    reason="Dask is not installed",
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMWALL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def mlp(tmp_path):
    (tmp_path / "mlp.py").write_text(MODEL, encoding="utf-8")
    return str(tmp_path / "mlp.py")


@pytest.fixture
def start(tmp_path):
    """Starts a scheduler with workers: its address, and the processes, the scheduler first."""
    processes = []

    def cluster(workers):
        file = tmp_path / "scheduler.json"
        lone = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        own = [spawn("dask_scheduler", *lone, "--scheduler-file", file)]
        plain = ("--nthreads", "1", "--no-nanny", "--no-dashboard")
        own += [spawn("dask_worker", "--scheduler-file", file, *plain) for _ in range(workers)]
        while not file.exists() or not file.read_text(encoding="utf-8").strip():
            assert own[0].poll() is None  # however long it takes
            time.sleep(0.1)
        return json.loads(file.read_text(encoding="utf-8"))["address"], own

    def spawn(name, *words):
        command = [sys.executable, "-m", f"distributed.cli.{name}", *map(str, words)]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        processes.append(process)
        return process

    yield cluster
    for process in processes:
        process.kill()
        process.wait()


def kills(process, said):
    """A callback of progress that kills a process after the first finished points, and keeps what is said."""

    def progress(message):
        said.append(message)
        if " points" in message and not message.startswith("sweeping 0 ") and process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()

    return progress


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.versions
@needs_dask
def test_a_killed_worker_loses_nothing_and_nothing_comes_twice(mlp, tmp_path, start):
    (address, (_, worker, _)), said = start(2), []
    kill = kills(worker, said)
    frame = memwall.sweep(mlp, VARY, engine="dask", scheduler=address, keep=tmp_path / "dask", progress=kill)
    assert [line for line in said if "is not encrypted" in line] == [
        f"the Dask scheduler {address} is not encrypted: whoever reaches its port can run code as you, here and on its"
        " workers; a tls:// address with keys (distributed.comm.tls of its settings) lets nobody else in"
    ]
    assert worker.poll() is not None and len(frame) == 12 and frame["id"].is_unique
    assert frame.equals(memwall.sweep(mlp, VARY, workers=0, keep=tmp_path / "here"))
    assert files(tmp_path / "dask") == files(tmp_path / "here")


SCHEDULER_LOST = """
import os, signal, sys
import memwall
def kill(message):
    if " points" in message and not message.startswith("sweeping 0 ") and sys.argv[3:]:
        os.kill(int(sys.argv.pop()), signal.SIGKILL)
try:
    memwall.sweep(sys.argv[1], {"batch": [*range(1, 7)], "gpu": ["a100", "h100"]}, engine="dask",
                  scheduler=sys.argv[2], keep="kept", progress=kill)
except memwall.MemwallError as error:
    print(error)
"""


@needs_dask
@pytest.mark.defect("44")
def test_a_lost_scheduler_is_one_line_and_what_is_finished_is_kept(mlp, start, tmp_path):
    """Dask logs the traceback of a lost connection on standard error, ahead of the line that says what to do.

    Another engine does the rest."""
    address, (scheduler, _) = start(1)
    command = [sys.executable, "-c", SCHEDULER_LOST, mlp, address, str(scheduler.pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.startswith(f"the Dask scheduler {address} is lost; with --keep FOLDER")
    assert done.stderr == "", done.stderr
    before = files(tmp_path / "kept")
    assert 0 < len(before) < 6
    frame = memwall.sweep(mlp, VARY, workers=0, keep=tmp_path / "kept", resume=True)
    assert len(frame) == 12 and frame["id"].is_unique and (frame["error"] == "").all()
    assert len(files(tmp_path / "kept")) == 6 and before.items() <= files(tmp_path / "kept").items()


@needs_dask
def test_no_scheduler_answers(mlp, monkeypatch):
    monkeypatch.setattr("memwall.sweeping.engines._ANSWERS_S", 1)
    with pytest.raises(UsageError, match=r"no Dask scheduler answers at tcp://127.0.0.1:9: "):
        memwall.sweep(mlp, VARY, engine="dask", scheduler="tcp://127.0.0.1:9")


def test_a_disk_that_fills_keeps_what_is_finished(mlp, tmp_path, monkeypatch):
    """The fourth file is the first that has no room; half of it is written."""
    written = dataset.write_whole

    def full(path, content):
        if len(list(path.parent.iterdir())) == 3:
            raise UsageError(f"cannot write {path}: No space left on device")
        written(path, content)

    monkeypatch.setattr(dataset, "write_whole", full)
    with pytest.raises(UsageError, match="No space left on device"):
        memwall.sweep(mlp, VARY, workers=0, keep=tmp_path / "kept")
    monkeypatch.setattr(dataset, "write_whole", written)
    before = files(tmp_path / "kept")
    assert len(before) == 3
    frame = memwall.sweep(mlp, VARY, workers=0, keep=tmp_path / "kept", resume=True)
    assert frame.equals(memwall.sweep(mlp, VARY, workers=0, keep=tmp_path / "here"))
    assert files(tmp_path / "kept") == files(tmp_path / "here") and before.items() <= files(tmp_path / "kept").items()


def test_one_broken_configuration_in_a_hundred_is_reported_and_the_others_finish(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    steps = [(batch, 1024) for batch in range(1, 101)]
    steps[50] = 51, 10**6
    frame = memwall.sweep(target_of(tmp_path, SHORT_LLAMA), {"gpu": ["h100"], ("batch", "context"): steps}, workers=0)
    broken = frame[frame["error"] != ""]
    assert broken.index.tolist() == [50] and "are beyond the 8,192 positions of the model" in broken["error"].item()
    assert (frame.drop(50)["time_s"] > 0).all()
