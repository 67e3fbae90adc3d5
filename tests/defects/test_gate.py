"""Gates that must not raise an alert, or sleep: what leaks from one workload to the next, what cannot be compared."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.commands import Result
from tests.unit.gate_repo import commit, git

NET = """\
import torch

def model():
    return torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.Linear(2048, 2048))

def inputs():
    return (torch.randn(2048, 2048),)
"""


Gate = Callable[..., tuple[Result, dict[str, Any]]]


@pytest.fixture
def gate(gates, folder) -> Gate:
    """``gate("a.py")``: against the commit before; the result and its record."""

    def go(*words: str, ref: str = "HEAD~1", cwd: Path = folder) -> tuple[Result, dict[str, Any]]:
        result = Result(*gates(cwd, *words, "--baseline-ref", ref, "--json", "-q"))
        return result, json.loads(result.out or "{}")

    return go


def times(record: dict[str, Any], workload: str) -> list[tuple[float, float]]:
    """Head and base of each check of the time."""
    checks = [c for c in record["checks"] if c["workload"] == workload and c["quantity"] == "time_s"]
    assert checks
    return [(check["value"], check["baseline"]) for check in checks]


#: what a model file may do to its process: TF32 for all, bfloat16 for each new layer, another folder, a variable
LEAKS = """\
import os
torch.set_float32_matmul_precision('high')
torch.backends.cuda.matmul.allow_tf32 = True
torch.nn.Linear.__init__.__defaults__ = (True, None, torch.bfloat16)
os.makedirs('inner', exist_ok=True)
os.chdir('inner')
os.environ['WIDE'] = '1'
"""
#: one that notices all of them
WITNESS = """\
import os
import torch

def model():
    layers = [torch.nn.Linear(2048, 2048)] * (1 + os.path.basename(os.getcwd()).count("inner"))
    return torch.nn.Sequential(*layers, *[torch.nn.ReLU()] * len(os.environ.get("WIDE", "")))

def inputs():
    weight = torch.nn.Linear(1, 1).weight
    return (torch.randn(2048, 2048, dtype=weight.dtype),)
"""


def test_b15_state_of_a_neighbour(gate, folder):
    """State leaked from one workload to the next in the child: a neighbour's TF32 raised an alert on unchanged code.

    The head's neighbour no longer does to the process what the base's did.
    """
    config = "[gate]\nworkloads = ['a.py', 'b.py']\ntime_s = '+0.5%'\n"
    commit(folder, a=NET + LEAKS, b=WITNESS, **{"memwall.toml": config})
    commit(folder, a=NET)
    _, record = gate()
    assert all(head == base for head, base in times(record, "b"))


def test_b15_state_that_hides_a_regression(gate, folder):
    """State leaked from one workload to the next in the child: a neighbour's TF32 hid that a model gave it up."""
    high = NET + "torch.set_float32_matmul_precision('high')\n"
    config = "[gate]\nworkloads = ['a.py', 'b.py']\ntime_s = '+0.5%'\n"
    commit(folder, a=high, b=high, **{"memwall.toml": config})
    commit(folder, b=NET)
    result, record = gate()
    assert result.code == 1
    assert all(head > 2 * base for head, base in times(record, "b"))


ENDS = {
    "interrupts": "    raise KeyboardInterrupt\n",
    "exits": "    raise SystemExit(0)\n",
    "generator": "    raise GeneratorExit\n",
    "own": "    class Stop(BaseException): pass\n    raise Stop('now')\n",
    "leaves": "    import os\n    os._exit(0)\n",
    "crashes": "    import os, signal\n    os.kill(os.getpid(), signal.SIGSEGV)\n",
    "signalled": "    import os, signal\n    os.kill(os.getpid(), signal.SIGRTMIN + 6)\n",  # one without a name
    "killed": "    import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)\n",
    "recurses": "    return model()\n",
}


def test_b19_a_model_that_ends_its_process(gate, folder):
    """A model that exits, crashes or is killed gave exit code 1, as if a limit had failed."""
    files = {f"{name}.py": NET.replace("def model():\n", "def model():\n" + body) for name, body in ENDS.items()}
    commit(folder, **files, **{"memwall.toml": "[gate]\nkernels = '+0'\nworkloads = ['*.py']\n", "ok.py": NET})
    result, record = gate(ref="HEAD")
    assert result.code == 4
    assert {check["verdict"] for check in record["checks"] if check["workload"] == "ok"} == {"pass"}
    assert {p["workload"] for p in record["problems"]} == {*ENDS}
    assert {p["verdict"] for p in record["problems"]} == {"inconclusive"}
    assert all("\n" not in p["message"] and len(p["message"]) > 30 for p in record["problems"])


@pytest.mark.parametrize("name", ["interrupts", "own", "leaves", "crashes", "signalled", "killed"])
def test_b19_a_model_that_ends_a_command(shell, folder, name):
    """A model that exits, crashes or is killed ended a command with any exit code, and without a word."""
    (folder / "net.py").write_text(NET.replace("def model():\n", "def model():\n" + ENDS[name]))
    result = shell("profile", "net.py", "-q")
    assert (result.code, result.out) == (2, "")
    assert len(result.err.strip().splitlines()) == 1
    assert result.err.startswith("memwall: ")


#: structure that is another in every process, and how many layers it makes
CHANCE = {
    "random": ("import random", "random.randrange(1, 60)"),
    "numpy": ("import numpy", "numpy.random.randint(1, 60)"),
    "torch": ("", "int(torch.randint(1, 60, ()).item())"),
    "sets": ("", "1 + [*map(str, {str(i) for i in range(60)})].index('7')"),
    "urandom": ("import os", "1 + int.from_bytes(os.urandom(4), 'big') % 60"),
    "process": ("import os", "1 + os.getpid() % 60"),
}
SEEDED = {"random", "numpy", "torch", "sets"}
LAYERS = """\
{imports}
import torch
COUNT = {count}

def model():
    return torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(COUNT)])

def inputs():
    return (torch.randn(8, 8),)
"""


def test_b16_unseeded_structure(gate, gates, folder, monkeypatch):
    """Structure from unseeded random numbers raised an alert on a commit of the docs, or passed at any figure."""
    monkeypatch.setattr(gates, "again", 2)
    files = {f"m_{name}.py": LAYERS.format(imports=imports, count=count) for name, (imports, count) in CHANCE.items()}
    config = "[gate]\nkernels = '+0'\nworkloads = ['*.py']\n"
    (folder / "net.py").unlink()
    commit(folder, **{**files, "memwall.toml": config})
    commit(folder, **{"README.md": "words"})
    result, record = gate()
    assert result.code == 4
    for name in CHANCE:
        checks = [c for c in record["checks"] if c["workload"] == f"m_{name}" and c["quantity"] == "kernels"]
        assert checks
        for check in checks:
            if name in SEEDED:
                assert (check["verdict"], check["value"]) == ("pass", check["baseline"]), name
            elif check["value"] != check["baseline"]:  # two of 60 may be equal
                assert check["verdict"] == "inconclusive", name
                assert "two traces of the same commit differ" in check["message"], name
                assert re.search(r"first at addmm in \d+", check["message"]), check["message"]


def sized(read: str) -> str:
    """A model as wide as the number that ``read`` gives."""
    return f"""\
import json, pathlib
import torch
HERE = pathlib.Path(__file__).parent
WIDTH = {read}

def model():
    return torch.nn.Linear(WIDTH, WIDTH)

def inputs():
    return (torch.randn(4, WIDTH),)
"""


def test_b17_a_submodule(gate, folder):
    """Workloads in or over a submodule were always inconclusive, as the base was checked out without it."""
    commit(folder / "inner", **{"width.json": "64"})
    repo = folder / "repo"
    commit(repo, net=sized("json.loads((HERE / 'part/width.json').read_text())"))
    git(repo, "submodule", "add", "-q", str(folder / "inner"), "part")
    commit(repo)
    commit(repo, **{"README.md": "words"})
    result, record = gate("net.py", cwd=repo)
    assert result.code == 0, result
    commit(repo / "part", **{"width.json": "128"})  # and the base has its own commit of it
    commit(repo)
    result, record = gate("net.py", cwd=repo)
    assert result.code == 1
    assert {c["value"] / c["baseline"] for c in record["checks"] if c["quantity"] == "flops"} == {4}


def test_b17_an_ignored_file(gate, folder):
    """Workloads that read a file which git ignores were always inconclusive."""
    commit(folder, **{".gitignore": "data/\n", "net.py": sized("json.loads((HERE / 'data/width.json').read_text())")})
    commit(folder, **{"README.md": "words", "data/width.json": "64"})
    result, record = gate("net.py")
    assert result.code == 0, result
    assert any("data/width.json" in note for note in record["baseline"]["notes"])


def test_b17_lfs_without_its_server(gate, folder):
    """A base whose Git LFS objects only this clone's store holds was compared as a pointer, or not at all."""
    import hashlib

    text = json.dumps(64)
    name = hashlib.sha256(text.encode()).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{name}\nsize {len(text)}\n"
    commit(folder, **{"width.json": pointer, "net.py": sized("json.loads((HERE / 'width.json').read_text())")})
    commit(folder, **{".gitattributes": "*.json filter=lfs\n"})
    commit(folder, **{"README.md": "words"})
    git(folder, "config", "filter.lfs.clean", f"echo '{pointer}'")
    git(folder, "config", "filter.lfs.smudge", "cat")  # as with GIT_LFS_SKIP_SMUDGE
    kept = folder / ".git/lfs/objects" / name[:2] / name[2:4] / name
    kept.parent.mkdir(parents=True)
    kept.write_text(text)
    (folder / "width.json").write_text(text)
    result, _ = gate("net.py")
    assert result.code == 0, result


def test_b17_ignored_files_next_to_a_submodule(gate, folder):
    """A file of a submodule that the base does not have kept every ignored file from it, and each file had a note."""
    commit(folder / "inner", **{"width.json": "64"})
    repo = folder / "repo"
    read = "json.loads([path.read_text() for path in sorted(HERE.rglob('*.json'))][0])"
    commit(repo, **{".gitignore": "data/\n", "net.py": sized(read)})
    git(repo, "submodule", "add", "-q", str(folder / "inner"), "part")
    commit(repo)
    commit(repo, **{"README.md": "words", **{f"data/{i}.json": "64" for i in range(9)}, "part/new.json": "64"})
    result, record = gate("net.py", cwd=repo)
    assert result.code == 0, result
    notes = record["baseline"]["notes"]
    assert (
        "the base reads the working tree's data/0.json, data/1.json, data/2.json and 6 more, which git ignores" in notes
    )
    assert "net: it reads part/new.json, which git does not track: part of the change" in notes


def test_b17_lfs_given_up(gate, folder):
    """A base whose Git LFS contents only the head's files hold was compared as a pointer."""
    import hashlib

    contents = bytes(range(128, 192))  # no text
    oid = hashlib.sha256(contents).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize 64\n"
    sizes = {".gitattributes": "*.bin filter=lfs\n", "width.bin": pointer}
    commit(folder, **{**sizes, "net.py": sized("len((HERE / 'width.bin').read_bytes())")})
    (folder / "width.bin").write_bytes(contents)
    commit(folder, **{".gitattributes": "\n"})
    result, record = gate("net.py")
    assert result.code == 0, result
    assert {c["value"] / c["baseline"] for c in record["checks"] if c["quantity"] == "flops"} == {1}


def test_b17_an_untracked_helper_is_named_once(gates, folder):
    """A base that lacks an untracked helper gave eleven equal messages, none of which said how to compare."""
    commit(folder, net=sized("__import__('helper').WIDTH"))
    (folder / "helper.py").write_text("WIDTH = 64\n")
    result = Result(*gates(folder, "net.py", "--baseline-ref", "HEAD", "-q"))
    assert result.code == 4
    assert result.out.count("the base cannot be profiled") == 1
    assert "helper.py is not in the base" in result.out
    assert "--baseline base.json" in result.out


CONVOLUTIONS = """\
import torch

def model():
    layers = [torch.nn.Conv2d(3, 64, 3, padding=1)]
    for _ in range(5):
        layers += [torch.nn.BatchNorm2d(64), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3, padding=1)]
    return torch.nn.Sequential(*layers).half().to(memory_format=torch.channels_last)

def inputs():
    return (torch.randn(64, 3, 64, 64).half().contiguous(memory_format=torch.channels_last),)
"""


WEIGHTS, DATA = 5 * 64 * 64 * 9 * 2 + 3 * 64 * 9 * 2, 64 * 3 * 64 * 64 * 2
HIDDEN = 64 * 64 * 64 * 64 * 2
#: what is given up -> the bytes that then are NCHW: all; those of the weights; those of the input
GIVEN_UP = {"both": WEIGHTS + DATA + 11 * HIDDEN, "model": WEIGHTS, "input": DATA}


@pytest.mark.parametrize("what", GIVEN_UP)
def test_b18_channels_last_given_up(gate, folder, what):
    """A model, or its input, that gave up channels_last passed: a trace lost the layout behind the first convolution.

    cuDNN takes NHWC where the data or the weight is, and gives NHWC on.
    """
    commit(folder, net=CONVOLUTIONS)
    text = CONVOLUTIONS
    if what != "input":
        text = text.replace(".to(memory_format=torch.channels_last)", "")
    if what != "model":
        text = text.replace(".contiguous(memory_format=torch.channels_last)", "")
    commit(folder, net=text)
    # without a limit of the caller's the gate limits all that it knows, graph breaks too, which take it a second
    limits = () if what == "both" else ("--limit", "nchw_bytes=+0")
    result, record = gate("net.py", *limits)
    assert result.code == 1
    (check,) = [c for c in record["checks"] if c["quantity"] == "nchw_bytes"]
    assert (check["verdict"], check["value"], check["baseline"]) == ("fail", GIVEN_UP[what], 0)
    assert check["causes"]
    assert all("NCHW" in cause["detail"] and cause["op"] == "convolution" for cause in check["causes"])
    slower = [c for c in record["checks"] if c["quantity"] == "time_s" and c["verdict"] == "fail"]
    assert what != "both" or len(slower) == 2
