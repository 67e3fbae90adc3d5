"""How the process of a command ends: by signals, beside forks, threads and handlers of the model, without streams."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.unit.commands import MODEL
from tests.unit.gate_repo import commit, only_tree
from tests.unit.places import ROOT
from tests.unit.processes import is_alive, wait_for

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")

#: a model that is at work until somebody ends it
ENDLESS = """\
import os, pathlib, time
pathlib.Path(os.environ["MARK"]).write_text(str(os.getpid()))
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def start(tmp_path, forks):
    """Starts a command in a folder whose temporary files are its own; it is ended in any case."""
    started = []
    (tmp_path / "temporary").mkdir()

    def begin(*words):
        own = {**os.environ, "TMPDIR": str(tmp_path / "temporary"), "MARK": str(tmp_path / "mark")}
        started.append(forks.start(*words, folder=tmp_path, environment=own))
        return started[-1]

    yield begin
    for process in started:
        process.kill()


def at_work(process, mark):
    """Wait until the model of a command runs: the process that it runs in."""
    while not (mark.exists() and mark.read_text()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return int(mark.read_text())


def left(folder):
    return [path.name for path in (folder / "temporary").iterdir() if path.name.startswith("memwall-")]


# -- what a model does -------------------------------------------------------------------------------------------------


@pytest.mark.defect("43")
def test_a_model_that_forks_gets_one_report(start, tmp_path):
    """A process that the model had forked went on behind the model's code and printed a report of its own."""
    forks = MODEL.replace("def model():", "import os\nos.fork()\ndef model():\n    os.fork()")
    (tmp_path / "forks.py").write_text(forks, encoding="utf-8")
    process = start("profile", "forks.py", "--gpu", "h100", "--json", "-q")
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert json.loads(out)["workload"]["name"] == "forks"


LATE = """
import os, threading, time
def late():
    threading.main_thread().join()
    time.sleep(20)
    os.write(2, b"still here")
threading.Thread(target=late).start()
"""


@pytest.mark.defect("43")
def test_a_thread_of_the_model_keeps_no_finished_command_alive(start, tmp_path):
    """Python waits in the end for every thread that is no daemon, and so the process of a finished command waited for
    those of the model."""
    (tmp_path / "late.py").write_text(LATE + MODEL, encoding="utf-8")
    process = start("profile", "late.py", "--gpu", "h100", "-q")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "h100-sxm" in out


@pytest.mark.defect("44d")
def test_a_handler_at_exit_of_the_model_does_not_decide_the_exit_code(start, tmp_path):
    """Handlers that the model registered for the end of Python ran behind a complete result, and one that ended the
    process gave its own exit code, which reads as a gate that failed."""
    (tmp_path / "exits.py").write_text("import atexit, os\natexit.register(os._exit, 1)\n" + MODEL, encoding="utf-8")
    process = start("profile", "exits.py", "--gpu", "h100", "-q")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "h100-sxm" in out


@pytest.mark.defect("44d")
def test_a_model_that_closes_descriptors_is_told_of_no_exit(start, tmp_path):
    """That a command was complete was told through a pipe, which a model can close like standard output; Python's
    complaint in the end, exit code 120, then passed for the model's."""
    (tmp_path / "closes.py").write_text(MODEL + "import os\nos.close(1)\nos.closerange(3, 256)\n", encoding="utf-8")
    process = start("profile", "closes.py", "--gpu", "h100", "-q")
    out, err = process.communicate()
    assert (process.returncode, out, err) == (2, "", "memwall: cannot write the result: Bad file descriptor\n")


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_closed_streams_are_as_if_nobody_listened(closed, tmp_path):
    shut = "".join(f" {fd}{'<' if fd == 0 else '>'}&-" for fd in closed)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = f'"{sys.executable}" -m memwall gpus h100{shut}'
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert ("h100-sxm" in done.stdout) == (1 not in closed)


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.mark.defect("42")
@pytest.mark.parametrize(
    ("words", "number"),
    [
        (("profile", "endless.py"), signal.SIGTERM),
        (("profile", "endless.py"), signal.SIGHUP),
        (("sweep", "endless.py", "--no-cache", "--workers", "0", "--vary", "gpu=h100"), signal.SIGTERM),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value.name,
)
def test_a_signal_ends_a_command_with_one_line(words, number, start, tmp_path):
    """SIGTERM and SIGHUP had their default, which ends a process without a line and without removing its temporary
    folders."""
    (tmp_path / "endless.py").write_text(ENDLESS, encoding="utf-8")
    process = start(*words)
    at_work(process, tmp_path / "mark")
    process.send_signal(number)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (128 + number, "", f"memwall: ended by {number.name}\n")
    assert left(tmp_path) == []


@pytest.mark.slow
@pytest.mark.defect("42")
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL], ids=lambda number: number.name)
def test_a_gate_that_was_ended_leaves_nothing_for_long(number, start, tmp_path):
    """The worktree of a gate's base was removed by the process that made it alone; one that was killed, or that a
    closed terminal ended, left folder and registration for good."""
    commit(tmp_path, net=ENDLESS)
    words = ("gate", "net.py", "--baseline-ref", "main", "--limit", "kernels=+0")
    process = start(*words)
    at_work(process, tmp_path / "mark")
    process.send_signal(number)
    process.communicate()
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 128 + number)
    if number == signal.SIGKILL:
        assert len(left(tmp_path)) == 1  # what the next gate finds
        (tmp_path / "mark").unlink()
        process = start(*words)
        child = at_work(process, tmp_path / "mark")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert (process.returncode, out) == (130, "") and err.endswith("memwall: interrupted\n"), err
        assert "Traceback" not in err
        wait_for(lambda: not is_alive(child))
    assert left(tmp_path) == []
    assert only_tree(tmp_path)
