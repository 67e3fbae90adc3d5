"""``memwall gate`` as CI runs it: seeded regressions, git in all its states, broken models, broken baselines."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memwall.hardware.lookup import load_gpu
from memwall.record.profile import Profile
from tests.unit import gate_repo
from tests.unit.commands import Result, in_process
from tests.unit.gate_repo import REGRESSIONS, commit, git, only_tree
from tests.unit.places import ROOT
from tests.unit.report_fixture import make_profile

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

NET = """\
import torch
def model():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
def inputs():
    return (torch.randn(4, 64),)
"""
SLOWER = NET.replace("torch.nn.ReLU()", "torch.nn.ReLU(), torch.nn.ReLU()")


@pytest.fixture(scope="module")
def gate(gates) -> Callable[..., Result]:
    """``gate(folder, "net.py")``: ``memwall gate`` in this process, with the servers that all tests share."""

    def go(folder: Path, *words: str, **variables: str) -> Result:
        return Result(*gates(folder, "-q", *words, **{"COLUMNS": "200", **variables}))

    return go


def alone(folder: Path, *args: str, home: Path = ROOT, **env: str) -> Result:
    """``memwall gate`` in a process of its own, with its own servers."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment |= {"PYTHONPATH": str(home), "COLUMNS": "200", **env}
    done = subprocess.run([sys.executable, "-m", "memwall", "gate", "-q", *args], cwd=folder, capture_output=True,
                          text=True, check=False, env=environment, stdin=subprocess.DEVNULL)  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return Result(done.returncode, done.stdout, done.stderr)


def verdicts(result: Result) -> dict[tuple[str, str], str]:
    """(workload, quantity) → the worst verdict of a JSON result."""
    worst = ("pass", "inconclusive", "fail")
    found: dict[tuple[str, str], str] = {}
    for check in json.loads(result.out)["checks"]:
        key = check["workload"], check["quantity"]
        found[key] = max(found.get(key, "pass"), check["verdict"], key=worst.index)
    return found


# -- regressions -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broken(gate, tmp_path_factory) -> tuple[Path, Result]:
    """A repository in which every regression is in the working tree, and what the gate says of it."""
    folder = tmp_path_factory.mktemp("gate") / "work tree é"
    gate_repo.make_repository(folder)
    gate_repo.break_everything(folder)
    return folder, gate(folder, "--baseline-ref", "main", "--json")


def test_every_seeded_regression_fails(broken):
    folder, result = broken
    assert result.code == 1
    assert json.loads(result.out)["verdict"] == "fail"
    assert only_tree(folder)


@pytest.mark.parametrize("name", REGRESSIONS)
def test_a_seeded_regression_is_named_by_op_module_and_line(broken, name):
    folder, result = broken
    regression = REGRESSIONS[name]
    failed = [c for c in json.loads(result.out)["checks"] if c["workload"] == name and c["verdict"] == "fail"]
    (check,) = [c for c in failed if c["quantity"] == regression.quantity]
    text = (folder / "models" / f"{name}.py").read_text().splitlines()
    lines = [i for i, line in enumerate(text, 1) if regression.line and line.strip() == regression.line]
    assert bool(lines) == bool(regression.line)
    named = [
        c for c in check["causes"]
        if c["kind"] == regression.kind and regression.op in c["op"]
        and (not regression.module or c["module"] == regression.module)
        and (not lines or c["source"] == f"models/{name}.py:{lines[0]}")
    ]  # fmt: skip
    assert named, check["causes"]


def test_a_model_that_begins_to_read_its_data_is_compared_with_a_base_that_is_traced_alike(broken):
    """Real tensors on one side alone would show kernels that are no doing of the change."""
    _, result = broken
    (check,) = [c for c in json.loads(result.out)["checks"] if (c["workload"], c["quantity"]) == ("item", "kernels")]
    assert {c["op"] for c in check["causes"]} == {"max", "mul"}
    assert check["value"] - check["baseline"] == 2


def test_a_commit_of_the_docs_has_no_alert_and_one_text(gate, broken, tmp_path):
    """Byte-identical on two hash seeds of the parent, from another folder, in every format."""
    folder = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(broken[0]), str(folder))
    (folder / "README.md").write_text("Other words.\n")
    git(folder, "commit", "-qam", "docs")
    outputs = []
    for go, where, seed in ((gate, folder, {}), (alone, folder / "models", {"PYTHONHASHSEED": "4321"})):
        files = [tmp_path / f"{len(seed)}.{suffix}" for suffix in ("xml", "json", "sarif")]
        options = [word for file in files for word in ("-o", str(file))]
        result = go(where, "lost_fusion", "--baseline-ref", "HEAD~1", *options, **seed)
        assert result.code == 0, result
        outputs.append([result.out, *[file.read_text() for file in files]])
    assert outputs[0] == outputs[1]
    record = json.loads(outputs[0][2])
    assert {c["verdict"] for c in record["checks"]} == {"pass"}
    assert all(c["value"] == c["baseline"] for c in record["checks"] if c["baseline"] is not None)
    assert record["problems"] == []
    assert str(tmp_path) not in "".join(outputs[0])


@pytest.mark.whole
def test_a_wheel_says_what_the_checkout_says(gate, tmp_path):
    import zipfile

    pytest.importorskip("setuptools", minversion="77", reason="setuptools 77 is not installed")
    source = tmp_path / "source"
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("memwall", "hardware_specs"):
        shutil.copytree(ROOT / name, source / name, ignore=skip)
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, source / name)
    words = ("-m", "pip", "-q", "wheel", str(source), "--no-deps", "--no-build-isolation", "-w", str(tmp_path))
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    repo = tmp_path / "repo"
    commit(repo, net=NET)
    (repo / "net.py").write_text(SLOWER)
    words = ("net.py", "--baseline-ref", "HEAD", "--json")
    runs = [gate(repo, *words), alone(repo, *words, home=tmp_path / "site")]
    assert runs[0] == runs[1]
    assert runs[0].code == 1


# -- which code runs ---------------------------------------------------------------------------------------------------


def test_what_others_did_on_main_is_not_flagged(gate, tmp_path):
    base = commit(tmp_path, net=SLOWER)
    git(tmp_path, "checkout", "-q", "-b", "feature")
    commit(tmp_path, README="mine")
    git(tmp_path, "checkout", "-q", "main")
    commit(tmp_path, net=NET)  # faster: against main's tip the branch would have one kernel more
    git(tmp_path, "checkout", "-q", "--detach", "feature")
    result = gate(tmp_path, "net.py", "--baseline-ref", "main", "--json", "--limit", "kernels=+0", "--policy", "eager")
    assert result.code == 0, result
    record = json.loads(result.out)
    assert record["baseline"]["commit"] == base
    assert {(c["value"], c["baseline"]) for c in record["checks"] if c["quantity"] == "kernels"} == {(3, 3)}


LAYER = """\
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
"""
USER = """\
import torch
from {package}.layer import Net
def model():
    return Net()
def inputs():
    return (torch.randn(4, 64),)
"""


def test_the_base_runs_the_code_of_the_base(tmp_path):
    """Packages of the repository: in src, on a path that leads to the head, and where nobody would look. What a model
    prints is no part of the result."""
    commit(tmp_path, **{
        "src/ours/__init__.py": "", "src/ours/layer.py": LAYER, "src/ours/net.py": WORKLOAD,
        "python/theirs/__init__.py": "", "python/theirs/layer.py": LAYER,
        "a.py": "print('noise')\n" + USER.format(package="ours"), "c.py": USER.format(package="theirs"),
        "memwall.toml": "[gate]\nworkloads = ['a.py', 'ours.net:workload', 'c.py']\nkernels = '+0'\n",
    })  # fmt: skip
    for place in ("src/ours", "python/theirs"):
        path = tmp_path / place / "layer.py"
        path.write_text(LAYER.replace("torch.relu(x)", "torch.relu(x) + 1"))
    head = os.pathsep.join([str(ROOT), str(tmp_path / "src"), str(tmp_path / "python")])  # as an editable install has
    result = alone(tmp_path, "--baseline-ref", "HEAD", "--json", PYTHONPATH=head)
    assert "noise" in result.err
    found = verdicts(result)
    assert (found["a", "kernels"], found["ours.net.workload", "kernels"]) == ("fail", "fail")
    assert found["c", "kernels"] == "inconclusive"  # never the head compared with itself
    check, _ = [c for c in json.loads(result.out)["checks"] if (c["workload"], c["quantity"]) == ("c", "kernels")]
    assert "would run the working tree's python/theirs/__init__.py, python/theirs/layer.py" in check["message"]
    check, _ = [c for c in json.loads(result.out)["checks"] if (c["workload"], c["quantity"]) == ("a", "kernels")]
    assert [(c["op"], c["source"]) for c in check["causes"]] == [("add", "src/ours/layer.py:4")]


WORKLOAD = """\
import torch, memwall
from ours.layer import Net
workload = memwall.Workload(Net, (torch.randn(4, 64),))
"""


BROKEN = {
    "raises": NET.replace("def model():", "def model():\n    raise ValueError('no weights here')"),
    "exits": "import sys\nsys.exit(0)\n",
    "leaves": NET.replace("def model():", "def model():\n    raise SystemExit(0)"),
    "asks": NET.replace("def model():", "def model():\n    input('name? ')"),
    "unmodeled": NET.replace("torch.nn.ReLU()", "Odd()") + (
        "class Odd(torch.nn.Module):\n    def forward(self, x):\n"
        "        return torch.special.shifted_chebyshev_polynomial_t(x, x)\n"),
    "syntax": "def model(:\n",
    "sets": NET + "torch.set_default_dtype(torch.float64)\n",
    "good": NET,
    "killed": "import os, signal\nprint('x', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n",
    "later": NET,
}  # fmt: skip


def test_a_model_that_breaks_never_passes_and_spoils_no_other(gate, tmp_path):
    """Also: a base that is fine, and one that breaks where the head does not."""
    names = ["was_broken", "new", "moved", *BROKEN]
    config = f"[gate]\nkernels = '+0'\ndram_bytes = '+0'\nworkloads = {[f'{name}.py' for name in names]}\n"
    commit(tmp_path, **dict.fromkeys((*BROKEN, "old_name"), NET), was_broken="1 / 0\n", **{"memwall.toml": config})
    for name, text in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(text)
    for name in ("was_broken", "new"):
        (tmp_path / f"{name}.py").write_text(NET)
    (tmp_path / "old_name.py").rename(tmp_path / "moved.py")
    result = gate(tmp_path, "--baseline-ref", "main", "--json")
    assert result.code == 1
    problems = {p["workload"]: p["message"] for p in json.loads(result.out)["problems"]}
    assert set(problems) == {"raises", "exits", "leaves", "asks", "syntax", "killed"}
    for name, text in {
        "raises": "ValueError: no weights here (at raises.py:3", "exits": "SystemExit",
        "leaves": "SystemExit", "asks": "EOFError",
        "syntax": "syntax.py:1: ", "killed": "killed by signal 9 (out of memory?)",
    }.items():  # fmt: skip
        assert problems[name].startswith("cannot be profiled: "), problems
        assert text in problems[name], problems[name]
        assert "\n" not in problems[name]
    found = verdicts(result)
    assert {v for (name, _), v in found.items() if name in ("good", "later")} == {"pass"}
    assert found["sets", "dram_bytes"] == "fail"  # and "good", behind it, is what it was
    assert found["unmodeled", "coverage"] == "fail"
    (check,) = [c for c in json.loads(result.out)["checks"] if (c["workload"], c["verdict"], c["quantity"])
                == ("unmodeled", "fail", "coverage")]  # fmt: skip
    assert "special_shifted_chebyshev_polynomial_t" in check["message"]
    for name, text in (("was_broken", "the base cannot be profiled: loading was_broken.py: ZeroDivisionError"),
                       ("new", "no such file: new.py"), ("moved", "no such file: moved.py")):  # fmt: skip
        rows = [c for c in json.loads(result.out)["checks"] if c["workload"] == name and c["quantity"] != "coverage"]
        assert {c["verdict"] for c in rows} == {"inconclusive"}, name
        assert all(text in c["message"] for c in rows), rows
    assert only_tree(tmp_path)


def test_a_new_workload_passes_where_that_is_allowed(gate, tmp_path):
    commit(tmp_path, other="")
    (tmp_path / "new.py").write_text(NET)
    (tmp_path / "other.py").write_text(NET.replace("def model", "def late"))
    targets = ("new.py", "other.py:late", "--baseline-ref", "main", "--input", "f32[4,64]", "--limit", "kernels=+0")
    result = gate(tmp_path, *targets, "--json")
    assert result.code == 4, result
    assert "--allow-new lets a new workload pass" in result.out
    allowed = gate(tmp_path, *targets, "--allow-new")
    assert allowed.code == 0, allowed


# -- git, over saved profiles: no torch, no time -----------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path, monkeypatch) -> Path:
    """A repository with a saved profile that is gated, and its config, in a sub-folder; the current folder."""
    folder = tmp_path / "a répo" / "sub folder"
    folder.mkdir(parents=True)
    make_profile().save(folder / "saved.json")
    (folder / "memwall.toml").write_text("[gate]\ntarget = 'saved.json'\nkernels = '+0'\ncoverage = '90 %'\n")
    commit(folder.parent)
    monkeypatch.chdir(folder)
    for name in [n for n in os.environ if n.startswith("GIT_")]:
        monkeypatch.delenv(name)
    return folder


@pytest.fixture
def run(saved, capfd, gates) -> Iterator[Callable[..., Result]]:
    """``memwall gate`` in this process, in the repository."""
    with gates.shared():
        yield in_process(capfd, "gate")


def test_the_ref_is_found_from_a_folder_inside(saved, run):
    result = run("--baseline-ref", "main", "-q")
    assert result.code == 0, result
    assert "nothing can differ" in result.out
    assert only_tree(saved)
    make_profile(blocks=3).save(saved / "saved.json")
    result = run("--baseline-ref", "main", "-q")
    assert result.code == 1
    assert "uncommitted changes" in result.out
    assert (
        run(str(saved / "saved.json"), "--baseline-ref", "main", "-q", "--limit", "kernels=+0", "coverage=90 %").code
        == 1
    )


def test_a_hook_of_git_changes_nothing(gate, saved, tmp_path):
    """Git sets the repository and the index for its hooks; here they are another's."""
    other = tmp_path / "other"
    other.mkdir()
    commit(other, x="")
    git(saved, "checkout", "-q", "--detach")
    before = (other / ".git" / "index").read_bytes()
    result = gate(saved, "--baseline-ref", "main", GIT_DIR=str(other / ".git"), GIT_WORK_TREE=str(other),
                  GIT_INDEX_FILE=str(other / ".git" / "index"), GIT_PREFIX="x/")  # fmt: skip
    assert result.code == 0, result
    assert "nothing can differ" in result.out
    assert (other / ".git" / "index").read_bytes() == before


def test_hooks_of_the_repository_do_not_run(saved, run):
    hooks = saved.parent / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    (hooks / "post-checkout").write_text(f"#!/bin/sh\ntouch '{saved}/ran'\n")
    (hooks / "post-checkout").chmod(0o755)
    assert run("--baseline-ref", "main", "-q").code == 0
    assert not (saved / "ran").exists()
    git(saved, "checkout", "-q", "-b", "other")  # as git itself runs it
    assert (saved / "ran").exists()


@pytest.mark.parametrize("ref", ["nope", "origin/main", "--all", "", "main:saved.json", "HEAD~9", "-", "a b", "@{1}"])
def test_a_ref_that_is_none_is_said(run, ref):
    result = run("--baseline-ref", ref)
    assert result.code == 2
    assert "--baseline-ref" in result.error


def test_a_folder_without_git_is_said(saved, run, tmp_path):
    shutil.rmtree(saved.parent / ".git")
    assert run("--baseline-ref", "main").error == (
        "--baseline-ref main: sub folder is in no git repository; use --baseline FILE"
    )


def test_a_shallow_clone_says_how_to_fetch_more(saved, tmp_path, monkeypatch, run):
    git(saved, "checkout", "-q", "-b", "feature")
    commit(saved.parent, x="1")
    commit(saved.parent, x="2")
    for branch, words in (("feature", "there is no commit 'main' here"), ("both", "no common commit with HEAD")):
        clone = tmp_path / branch
        git(tmp_path, "clone", "-q", "--depth", "1", "--branch", "feature", f"file://{saved.parent}", str(clone))
        if branch == "both":
            git(clone, "fetch", "-q", "--depth", "1", "origin", "main:main")
        monkeypatch.chdir(clone / "sub folder")
        error = run("--baseline-ref", "main").error
        assert words in error
        assert "git fetch --unshallow (fetch-depth: 0 in actions/checkout)" in error


def test_histories_that_never_met_are_said(saved, run):
    git(saved, "checkout", "-q", "--orphan", "alone")
    git(saved, "commit", "-q", "-m", "alone")
    assert "no common commit with HEAD" in run("--baseline-ref", "main").error


def test_a_repository_that_takes_no_worktree_is_said(saved, run):
    (saved.parent / ".git" / "worktrees").write_text("in the way")  # as a read-only checkout would be
    error = run("--baseline-ref", "main").error
    assert error.startswith("cannot check out ")


def test_a_worktree_goes_also_when_the_base_has_no_such_folder(saved, run, monkeypatch):
    folder = saved.parent / "later"
    folder.mkdir()
    shutil.copy(saved / "saved.json", folder)
    monkeypatch.chdir(folder)
    assert "has no folder later" in run("saved.json", "--baseline-ref", "main").error
    assert only_tree(saved)


def test_submodules_of_the_base_are_said_to_be_missing(saved, run, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    commit(inner, x="1")
    git(saved.parent, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "part")
    commit(saved.parent)
    result = run("--baseline-ref", "main", "-q")
    assert result.code == 0
    assert "submodule" not in result.out
    git(saved.parent, "submodule", "deinit", "-q", "-f", "part")
    result = run("--baseline-ref", "main", "-q")
    assert result.code == 0
    assert "the base lacks its submodule part" in result.out
    assert only_tree(saved)


def test_a_file_outside_of_the_repository_is_never_compared_with_itself(saved, run, tmp_path):
    place = tmp_path / "outside.json"
    make_profile().save(place)
    result = run(str(place), "--baseline-ref", "main", "-q", "--limit", "kernels=+0", "coverage=90 %")
    assert result.code == 4
    assert "is not in the repository" in " ".join(result.out.split())


def test_a_base_that_was_saved_by_another_version_is_not_compared(saved, run):
    old = (saved / "saved.json").read_text()
    record = json.loads(old)
    (saved / "saved.json").write_text(json.dumps({**record, "memwall_version": "0.0.1"}))
    commit(saved.parent)
    (saved / "saved.json").write_text(old)
    result = run("--baseline-ref", "main", "-q")
    assert result.code == 4
    assert "made by memwall 0.0.1" in result.out


def test_what_the_configuration_itself_lets_pass_is_said(saved, run):
    """A workload that was dropped, and a limit that was loosened, in the change that is gated."""
    config = "[gate.workloads.one]\ntarget = 'saved.json'\nkernels = '+0'\ncoverage = '90 %'\n"
    (saved / "memwall.toml").write_text(config + config.replace("one", "two"))
    commit(saved.parent)
    (saved / "memwall.toml").write_text(config.replace("+0", "+9"))
    result = run("--baseline-ref", "main", "-q")
    assert result.code == 0
    assert "gated no longer: two" in result.out
    assert "gated otherwise than in the base's configuration: one" in result.out
    assert "gated" not in run("one", "--baseline-ref", "main", "-q", "--config", "memwall.toml").out.partition("two")[1]


# -- baselines in files ------------------------------------------------------------------------------------------------


def test_update_writes_prints_and_is_stable(saved, run):
    first = run("--baseline", "base", "--update")
    assert first.code == 0, first
    (file,) = (saved / "base").iterdir()
    assert file.name == "saved.json.gz"
    data = file.read_bytes()
    assert data[4:8] == bytes(4)  # gzip's time stamp
    assert Profile.load(file).graph == Profile.load(saved / "saved.json").graph
    assert run("--baseline", "base", "--update").code == 0
    assert file.read_bytes() == data
    make_profile(blocks=3).save(saved / "saved.json")
    assert run("--baseline", "base", "-q").code == 1
    assert file.read_bytes() == data
    update = run("--baseline", "base", "--update")
    assert update.code == 0
    assert "Against the baseline before" in update.err
    assert "FAIL  kernels" in update.err
    assert file.read_bytes() != data
    assert run("--baseline", "base", "-q").code == 0
    # a budget fails still
    assert run("--baseline", "base", "--update", "--limit", "kernels=1", "-q").code == 1


def test_nothing_is_written_where_a_head_fails(saved, run):
    (saved / "bad.py").write_text("1 / 0\n")
    (saved / "memwall.toml").write_text("[gate]\nworkloads = ['saved.json', 'bad.py']\n")
    result = run("--baseline", "base", "--update")
    assert result.code == 1
    assert "the baseline is not updated: bad" in result.err
    assert not (saved / "base").exists()


@pytest.mark.defect("32")
def test_a_baseline_that_is_not_there(saved, run):
    """Exit code 3 meant both that a device or a dependency is missing and that a gate could not judge."""
    assert run("--baseline", "none").error == "no such baseline: none; --update writes it"
    assert "no such baseline" in run("--baseline", "none.json").error
    (saved / "base").mkdir()
    result = run("--baseline", "base", "-q")
    assert result.code == 4
    assert "there is no baseline of this workload" in result.out
    assert run("--baseline", "base", "-q", "--allow-new").code == 0
    assert "neither a folder nor a saved profile" in run("--baseline", "memwall.toml").error


@pytest.mark.parametrize(("damage", "words"), [
    (lambda data: gzip.compress(data)[:-400], "base.json.gz"),
    (lambda data: gzip.compress(data[:-400]), "base.json.gz"),
    (lambda data: b"", "base.json.gz"),
    (lambda data: gzip.compress(b"[]"), "base.json.gz"),
    (lambda data: gzip.compress(data.replace(b"memwall.profile/1", b"memwall.profile/9", 1)), "profile/9"),
    (lambda data: gzip.compress(data.replace(b'"simulations"', b'"simulation"', 1)), "simulations"),
])  # fmt: skip
def test_a_damaged_or_newer_baseline_is_said(saved, run, damage, words):
    (saved / "base.json.gz").write_bytes(damage((saved / "saved.json").read_bytes()))
    assert words in run("--baseline", "base.json.gz").error


def test_a_baseline_of_other_figures_is_never_compared_in_silence(saved, run):
    record = json.loads((saved / "saved.json").read_text())
    (saved / "other.json").write_text(json.dumps({**record, "memwall_version": "9.9.9"}))
    result = run("--baseline", "other.json", "-q")
    assert result.code == 4
    assert "made by memwall 9.9.9" in result.out
    assert "--update it" in result.out
    # the same name, other numbers
    assert run("--baseline", "new.json", "--update", "-q").code == 0
    record = json.loads((saved / "new.json").read_text())
    for gpu in record["gpus"].values():
        gpu["dram_bytes_per_s"] *= 2
    (saved / "new.json").write_text(json.dumps(record))
    result = run("--baseline", "new.json", "-q")
    assert result.code == 4
    assert "of the same numbers" in result.out
    # another GPU, another policy
    assert run("--baseline", "saved.json", "--gpu", "l4", "-q").code == 4


def test_a_profile_that_is_in_the_baseline_alone_is_said(saved, run):
    run("--baseline", "base", "--update", "-q")
    shutil.copy(saved / "base" / "saved.json.gz", saved / "base" / "dropped.json.gz")
    result = run("--baseline", "base", "-q")
    assert result.code == 0
    assert "not gated, but in the baseline: dropped" in result.out


# -- several teams in one repository ----------------------------------------------------------------------------------

BLOCKS = """\
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        return self.layer(x)
"""
OF_A_TEAM = """\
import sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import torch
from shared.blocks import Block

def model():
    return torch.nn.Sequential(Block(), Block())

def inputs():
    return (torch.randn(4, 64),)
"""


@pytest.fixture(scope="module")
def teams(gate, tmp_path_factory) -> tuple[Path, Result]:
    """A repository in which a line of shared/blocks.py has changed, and what the gate of teams/text says of it."""
    folder = tmp_path_factory.mktemp("teams")
    toml = "[gate]\ntarget = 'net.py'\ngpu = ['h100', 'a100']\nbaseline_ref = 'main'\n"
    commit(folder, **{"shared/blocks.py": BLOCKS, "teams/text/net.py": OF_A_TEAM, "teams/text/memwall.toml": toml})
    (folder / "shared/blocks.py").write_text(BLOCKS.replace("self.layer(x)", "self.layer(x).relu()"))
    files = ("-o", "a.sarif", "-o", "a.gitlab.json", "-o", "a.md", "--github")
    return folder, gate(folder / "teams/text", *files)


@pytest.mark.defect("28")
def test_what_forges_read_names_the_file_from_the_repositorys_root(teams):
    """A file outside of the folder in which the gate ran was named by its bare name, and so was placed in that
    folder."""
    folder, result = teams
    assert result.code == 1
    annotations = re.findall(r"^::error file=([^,]*),line=(\d+)", result.out, re.MULTILINE)
    assert set(annotations) == {("shared/blocks.py", "9")}
    (run,) = json.loads((folder / "teams/text/a.sarif").read_text())["runs"]
    places = [row["locations"][0]["physicalLocation"] for row in run["results"]]
    assert {place["artifactLocation"]["uri"] for place in places} == {"shared/blocks.py"}
    rows = json.loads((folder / "teams/text/a.gitlab.json").read_text())
    assert {row["location"]["path"] for row in rows} == {"shared/blocks.py"}


@pytest.mark.defect("29")
def test_a_cause_is_said_once_with_all_that_it_moves(teams):
    """The same causes were listed below each GPU, policy and set of checks that they move."""
    _, result = teams
    table = result.out.partition("memwall gate: FAIL")[2]
    assert table.count("relu in ") == 1
    said = " ".join(table.split())
    assert "+2 kernels" in said  # each of two blocks runs one more
    moved = re.search(r"moves ([\w, ]+) on h100-sxm and a100-80gb-sxm, eager and memwall", said)
    assert moved and {"kernels", "dram_bytes", "time_s"} <= set(moved[1].split(", "))
    assert len(table.splitlines()) < 40  # 20 checks, each a row, and the causes


@pytest.mark.defect("29")
def test_a_cause_is_said_once_in_markdown_and_to_github(teams):
    """Markdown had a table of the same causes for each GPU and policy, and GitHub an annotation for each check."""
    folder, result = teams
    page = (folder / "teams/text/a.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith(("- ", "| ")) and "relu" in line]
    assert len(rows) == 1 and "on h100-sxm and a100-80gb-sxm, eager and memwall" in rows[0]
    (annotation,) = re.findall(r"^::error .*$", result.out, re.MULTILINE)
    assert annotation.count("relu in ") == 1 and "on h100-sxm and a100-80gb-sxm, eager and memwall" in annotation


@pytest.mark.defect("28")
def test_a_folder_without_a_gate_names_those_below(gate, tmp_path):
    """Nobody looked below the current folder for files that say what to gate."""
    for team in ("text", "vision"):
        (tmp_path / "teams" / team).mkdir(parents=True)
        (tmp_path / "teams" / team / "memwall.toml").write_text("[gate]\ntarget = 'net.py'\n")
    result = gate(tmp_path)
    assert result.code == 1
    said = " ".join(result.out.split())
    assert (
        "teams/text/memwall.toml, teams/vision/memwall.toml: run memwall gate --config teams/text/memwall.toml" in said
    )


@pytest.mark.defect("28")
def test_init_writes_a_small_gate_for_the_models_that_are_there(gate, tmp_path):
    """There was no way to a first configuration but to write it by hand."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/net.py").write_text(NET)
    (tmp_path / "helper.py").write_text("def model():\n    return None\n")  # no inputs: no model file
    assert gate(tmp_path, "--init").code == 0
    file = tmp_path / "memwall.toml"
    assert 'target = "a/net.py"' in file.read_text() and "helper" not in file.read_text()
    assert gate(tmp_path, "--update").code == 0
    assert gate(tmp_path).code == 0
    (tmp_path / "a/net.py").write_text(SLOWER)
    assert gate(tmp_path).code == 1  # what was written checks something
    again = gate(tmp_path, "--init")
    assert (again.code, "memwall.toml is there already" in again.err) == (2, True)


def test_init_gates_the_packages_of_a_repository_of_many(gate, tmp_path):
    """Neither package is installed, and a file of each imports its own package by name."""
    for name in ("text", "vision"):
        package = tmp_path / "packages" / name / "src" / f"{name}_nets"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "layers.py").write_text("WIDTH = 4\n")
        (package / "net.py").write_text(f"from {name}_nets.layers import WIDTH\n{NET}")
    (tmp_path / "env").mkdir()
    (tmp_path / "env/pyvenv.cfg").touch()
    (tmp_path / "env/net.py").write_text(NET)  # of a virtual environment
    assert gate(tmp_path, "--init").code == 0
    found = tomllib.loads((tmp_path / "memwall.toml").read_text(encoding="utf-8"))["gate"]["workloads"]
    assert [*found] == ["packages_text_src_text_nets_net", "packages_vision_src_vision_nets_net"]
    assert gate(tmp_path, "--update").code == 0
    (tmp_path / "packages/text/src/text_nets/net.py").write_text(f"from text_nets.layers import WIDTH\n{SLOWER}")
    assert gate(tmp_path).code == 1
    assert gate(tmp_path / "packages/vision", "src/vision_nets/net.py", "--limit", "kernels=99").code == 0


@pytest.mark.defect("29")
def test_an_update_says_what_it_wrote_and_no_verdict_on_it(saved, run):
    """An update judged the heads by the baseline that it had just made of them, and printed that they pass."""
    told = run("--baseline", "base", "--update")
    assert (told.code, told.out) == (0, "")
    assert "wrote 1 baseline to base" in told.err
    quiet = run("--baseline", "base", "--update", "-q")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


# -- nothing to check --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("config", "words"), [
    ("[gate]\n", "no workload to gate"),
    ("[gate]\nworkloads = []\n", "no workload to gate"),
    ("[gate]\ntarget = 'saved.json'\n", "nothing is limited"),
    ("[gate]\ntarget = 'saved.json'\nmeasured_s = '+5%'\n", "nothing is limited"),
    ("[gate]\ntarget = 'saved.json'\n[gate.modules.nowhere]\nkernels = 3\n", "no kernel belongs to the modules"),
])  # fmt: skip
def test_a_gate_that_checks_nothing_fails(saved, run, config, words):
    (saved / "memwall.toml").write_text(config)
    result = run("-q")
    assert result.code == 1
    assert words in result.out


def test_mistakes_are_misuse(saved, run):
    assert "say where with --baseline PATH" in run("--update").error
    assert "two baselines" in run("--baseline", "x", "--baseline-ref", "main").error
    assert "no workload 'savd'" in run("savd").error
    assert "no such file" in run("--config", "none.toml").error
    assert "no such file" in run("none.json", "--limit", "kernels=3").error
    assert "did you mean kernels" in run("--limit", "kernles=3").error
    (saved / "memwall.toml").write_text("[gate]\nkernles = 3\n")
    assert "memwall.toml: [tool.memwall.gate]: no setting or quantity 'kernles'" in run().error


def test_a_configuration_elsewhere_counts_from_its_own_folder(saved, run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = run("--config", saved / "memwall.toml", "--limit", "kernels=1000", "coverage=90 %", "-q")
    assert result.code == 0, result
    gpu = load_gpu("h100-sxm").name
    assert (
        gpu
        in run("--config", saved / "memwall.toml", "--gpu", gpu, "--limit", "kernels=1000", "coverage=90 %", "-q").out
    )


def test_a_profile_of_memwall_profile_is_a_baseline(gate, forks, tmp_path):
    """Its GPU is taken where none is named, and a policy that it was not simulated under is from its graph."""
    (tmp_path / "net.py").write_text(NET)
    made = forks.start("profile", "net.py", "--gpu", "a100-80gb-sxm", "-q", "-o", "base.json", folder=tmp_path)
    assert made.communicate()[1] == ""
    same = gate(tmp_path, "net.py", "--baseline", "base.json", "--json", "--limit", "kernels=+0")
    assert same.code == 0, same
    checks = [c for c in json.loads(same.out)["checks"] if c["quantity"] == "kernels"]
    assert [(c["gpu"], c["policy"], c["value"] == c["baseline"]) for c in checks] == [
        ("a100-80gb-sxm", "eager", True), ("a100-80gb-sxm", "memwall", True),
    ]  # fmt: skip
    (tmp_path / "net.py").write_text(SLOWER)
    worse = gate(tmp_path, "net.py", "--baseline", "base.json", "--json", "--limit", "kernels=+0")
    assert worse.code == 1
    assert verdicts(worse)["net", "kernels"] == "fail"


# -- the docs ----------------------------------------------------------------------------------------------------------


def test_what_the_docs_show_is_what_comes_out(gate, tmp_path):
    """Its example is the copy in the attention of the model of these tests."""
    regression = REGRESSIONS["contiguous"]
    commit(tmp_path, model=gate_repo.MODEL)
    (tmp_path / "model.py").write_text(gate_repo.MODEL.replace(regression.old, regression.new))
    command = "memwall gate model.py --baseline-ref main"
    (shown,) = re.findall(
        rf"```\n\$ {command}\n(.*?)\n```", (ROOT / "docs/gate.md").read_text(encoding="utf-8"), re.DOTALL
    )
    result = gate(tmp_path, *command.split()[2:], COLUMNS="114")
    assert result.code == 1
    assert re.sub(r"main at [0-9a-f]{12}", "main at 04f55b7d4a0e", result.out).rstrip() == shown
