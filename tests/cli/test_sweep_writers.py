"""Sweeps that are cut off: traces that several processes write at once, a full disk, and Ctrl-C."""

import hashlib
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from memwall import trace_cache as traces
from tests.unit.commands import MODEL
from tests.unit.processes import HANGS_S

SPAWN = multiprocessing.get_context("spawn")
ASKED = ("model", "nothing", ("batch", 1))


def value(seed):
    """A megabyte with its own digest."""
    data = hashlib.sha256(str(seed).encode()).hexdigest() * (1 << 14)
    return data, hashlib.sha256(data.encode()).hexdigest()


def is_whole(made):
    data, digest = made
    return hashlib.sha256(data.encode()).hexdigest() == digest


def write_often(folder, seed, started, seconds):
    """Write the entry of one question again and again, as processes do that find it missing."""
    started.wait()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        traces._write(traces._entry(folder, ASKED), value(seed), [])


def write_half(folder):
    """Die by SIGKILL when half of the entry is written."""
    import tempfile

    make = tempfile.NamedTemporaryFile

    def half(**options):
        handle = make(**options)

        def writelines(pieces):
            whole = b"".join(pieces)
            handle.write(whole[: len(whole) // 2])
            handle.flush()
            os.kill(os.getpid(), signal.SIGKILL)

        handle.writelines = writelines
        return handle

    tempfile.NamedTemporaryFile = half
    traces._write(traces._entry(folder, ASKED), value("half"), [])


def test_nobody_reads_half_an_entry_that_others_write_or_die_over(tmp_path):
    """Two processes write the same entry all the time, a third is killed in the middle of its write; a reader finds a
    whole value of one of them, always."""
    started = SPAWN.Event()
    writers = [SPAWN.Process(target=write_often, args=(tmp_path, seed, started, 2.0)) for seed in (1, 2)]
    killed = SPAWN.Process(target=write_half, args=(tmp_path,))
    for process in (*writers, killed):
        process.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()  # the half is there, under another name
    assert left.name.startswith(".") and left.stat().st_size > 0
    made = traces._kept(tmp_path, ASKED, lambda: value(0))
    assert made == value(0)
    started.set()
    read, seen = 0, set()
    while any(process.is_alive() for process in writers):
        found = traces._kept(tmp_path, ASKED, lambda: pytest.fail("the entry is missing or is not whole"))
        assert is_whole(found)
        read, seen = read + 1, seen | {found[1]}
    assert read > 10 and seen <= {value(seed)[1] for seed in (0, 1, 2)} and len(seen) > 1
    assert [process.exitcode for process in writers] == [0, 0]


def test_an_entry_that_is_cut_off_is_made_again(tmp_path):
    for size in (0, 1, 20, 1 << 10, 1 << 19):
        traces._kept(tmp_path, ASKED, lambda: value(1))
        path = traces._entry(tmp_path, ASKED)
        path.write_bytes(path.read_bytes()[:size])
        assert traces._kept(tmp_path, ASKED, lambda: value(2)) == value(2)
        assert traces._kept(tmp_path, ASKED, lambda: value(3)) == value(2)
        path.unlink()


# -- the command, cut off ----------------------------------------------------------------------------------------------


#: a model that is not made for the most points, the last, while there is a file of this name
HELD = MODEL.replace(
    "    return (torch.randn",
    """\
    import pathlib, time
    while batch == 3 and pathlib.Path(__file__).with_name("hold").exists():
        time.sleep(0.05)
    return (torch.randn""",
)


@pytest.fixture
def sweeping(tmp_path, forks):
    """Starts ``memwall sweep`` of three models, of 1, 2 and 32 points, that keeps them in a folder; the words that it
    was given are a list, and what it says comes back by ``communicate``."""
    (tmp_path / "mlp.py").write_text(HELD, encoding="utf-8")
    (tmp_path / "s.toml").write_text(
        """best = "time_s"
[workloads.one]
target = "mlp.py"
vary = ["batch=1", "gpu=h100"]
[workloads.two]
target = "mlp.py"
vary = ["batch=2", "gpu=h100,a100"]
[workloads.many]
target = "mlp.py"
vary = ["batch=3", "gpu=h100,a100,l40s,t4,v100,a10g,b200,l4", "policy=eager,memwall", "cuda_graph=yes,no"]
""",
        encoding="utf-8",
    )

    def start(keep, *words, **options):
        command = ("sweep", "s.toml", "--keep", str(tmp_path / keep), "-q", *words)
        environment = {**os.environ, "MEMWALL_CACHE": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
        if not options:
            return forks.start(*command, folder=tmp_path, environment=environment)
        return subprocess.Popen([sys.executable, "-m", "memwall", *command], cwd=tmp_path, env=environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # fmt: skip

    return start


def ended(process, code):
    """The lines of standard error of a process that ends with a code."""
    said = process.communicate()[1]
    assert process.returncode == code, said
    return said.splitlines()


def parts(folder):
    return {path.name: path.read_bytes() for path in folder.glob("part-*")}


@pytest.mark.skipif(sys.platform != "linux", reason="the size of files is limited as Linux does")
def test_a_full_disk_keeps_what_is_finished_and_the_rest_is_resumed(sweeping, tmp_path):
    """No file may be as large as that of the 32 points: the others are kept, and one line says what happened."""
    ended(sweeping("whole", "--workers", "0"), 0)
    whole = parts(tmp_path / "whole")
    largest = max(whole, key=lambda name: len(whole[name]))
    most = len(whole[largest]) - 1
    assert len(whole) == 3 and all(len(data) < most for name, data in whole.items() if name != largest)
    limits = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))}
    (line,) = ended(sweeping("kept", "--workers", "0", **limits), 2)
    assert "cannot write" in line and "File too large" in line and "--resume" in line
    assert {**parts(tmp_path / "kept"), largest: whole[largest]} == whole and len(parts(tmp_path / "kept")) == 2
    ended(sweeping("kept", "--workers", "0", "--resume"), 0)
    assert parts(tmp_path / "kept") == whole


def test_an_interrupt_keeps_what_is_finished_and_leaves_no_process(sweeping, tmp_path):
    """Ctrl-C when the first file is there: exit code 130, whole files, and workers that are gone."""
    import psutil

    (tmp_path / "hold").touch()
    process = sweeping("kept", "--workers", "1")
    while not parts(tmp_path / "kept"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert len(ended(process, 130)) <= 1
    assert not psutil.wait_procs(workers, timeout=HANGS_S)[1]
    (tmp_path / "hold").unlink()
    before = parts(tmp_path / "kept")
    ended(sweeping("kept", "--workers", "0", "--resume"), 0)
    ended(sweeping("whole", "--workers", "0"), 0)
    assert before.items() <= parts(tmp_path / "kept").items() and parts(tmp_path / "kept") == parts(tmp_path / "whole")
