"""Commands on a system that lacks what Linux has: its C functions, its signals, what its kernel says in files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.places import ROOT

HERE = Path(__file__).parent / "elsewhere"
GATE = '[gate]\ngpu = "h100"\nkernels = "4"\n\n[gate.workloads.net]\ntarget = "net.py"\n'


def memwall(like: str, *command: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, as on such a system."""
    environment = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{ROOT}", "MEMWALL_LIKE": like}
    return subprocess.run([sys.executable, "-m", "memwall", *command], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["os.sched_getaffinity", "os.fork", "signal.SIGHUP", "os.geteuid", "fcntl", "prctl"])
def test_it_is_hidden(name):
    """What the other tests do without is not there for them."""
    asked = {
        "fcntl": "import fcntl", "prctl": "import ctypes; ctypes.CDLL(None).prctl",
        "os.fork": "import os; os.fork", "os.geteuid": "import os; os.geteuid",
        "signal.SIGHUP": "import signal; signal.SIGHUP", "os.sched_getaffinity": "import os; os.sched_getaffinity",
    }  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(HERE), "MEMWALL_LIKE": "windows"}
    done = subprocess.run([sys.executable, "-c", asked[name]], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "has no attribute" in done.stderr or "import of fcntl halted" in done.stderr or "prctl" in done.stderr


def test_a_profile_is_the_same(shell, folder):
    words = ("profile", "net.py", "--gpu", "h100", "-q", "-o")
    done = memwall("windows", *words, "there.json", "-o", "page.html")
    assert (done.returncode, done.stderr) == (0, "")
    assert shell(*words, "here.json", fresh=True).code == 0  # its callers are in a record where no line of a model is
    assert Path("there.json").read_bytes() == Path("here.json").read_bytes()


def test_a_gate_passes(folder):
    (folder / "memwall.toml").write_text(GATE, encoding="utf-8")
    done = memwall("macos", "gate", "-q")
    assert done.returncode == 0, done.stderr


def test_a_process_of_its_own_is_refused_in_a_line(folder):
    (folder / "memwall.toml").write_text(GATE, encoding="utf-8")
    done = memwall("windows", "gate", "-q")
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("\n") == 1 and "needs Linux or macOS; use WSL here" in done.stderr


def test_a_sweep_has_workers(folder):
    done = memwall("macos", "sweep", "net.py", "--vary", "gpu=h100,a100", "batch=4,8", "--workers", "1", "-q")
    assert done.returncode == 0, done.stderr
    best = done.stdout.partition("Walls and memory")[0]
    rows = [line.split()[0] for line in best.splitlines() if line.strip()]
    assert rows.count("h100-sxm") == rows.count("a100-80gb-sxm") == 2


def test_memory_is_known_where_the_system_does_not_say_what_is_free():
    """16 KiB pages, a million of them: 16 GiB."""
    code = (
        "import os; known = {'SC_PAGE_SIZE': 16384, 'SC_PHYS_PAGES': 1 << 20}\n"
        "def sysconf(name):\n"
        "    if name not in known: raise ValueError(name)\n"
        "    return known[name]\n"
        "os.sysconf = sysconf\n"
        "from memwall.bench.machine import available_bytes; print(available_bytes())"
    )
    environment = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{ROOT}", "MEMWALL_LIKE": "macos"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(16 << 30)
