"""Kernels written out: run one after another they compute what the model computes; folders are whole or not at all."""

import json

import pytest
import torch
from torch import nn

import memwall
from memwall.codegen.emit import check_folder, write_folder
from memwall.core.errors import UsageError
from memwall.report.json_schema import schema_text
from tests.unit.emitted_child import CASES, GPU, Tokens, written_out
from tests.unit.report_fixture import HOSTILE_MODULE, make_profile


def test_the_kernels_compute_what_the_model_computes(forks):
    """Loss, gradients and running statistics of a real eager step against the files, run in launch order."""
    code = "import sys; from tests.unit.emitted_child import check; [check(name) for name in sys.argv[1:]]"
    forks.printed(code, *CASES, TRITON_INTERPRET="1")


def test_the_index_keeps_its_schema():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(schema_text("emit"))
    profile = memwall.profile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (torch.ones(2, 8),), gpu=GPU)
    index = json.loads(written_out(profile)[1]["index.json"])
    jsonschema.validate(index, schema)
    assert index["sets"][0]["kernels"] and index["sets"][0]["order"]
    parts = {"EmittedSet": index["sets"], "EmittedKernel": index["sets"][0]["kernels"],
             "EmittedLaunch": index["sets"][0]["order"]}  # fmt: skip
    assert {part: {*row} for part, (row, *_) in parts.items()} == {
        part: {*schema["$defs"][part]["properties"]} for part in parts
    }


def test_repeated_kernels_are_one_file_that_says_how_often():
    module, inputs = Tokens(), (torch.randint(0, 11, (2, 6)),)
    profile = memwall.profile(module, inputs, gpu=GPU, mode="inference")
    plan, files = written_out(profile)
    index = json.loads(files["index.json"])["sets"][0]
    assert len(index["order"]) == len(plan.groups)
    assert sum(kernel["repeats"] for kernel in index["kernels"]) == len(plan.groups)
    twice = [kernel for kernel in index["kernels"] if kernel["repeats"] == 2]  # two blocks
    assert twice
    head = files[twice[0]["file"]].partition("import torch")[0]
    assert "# repeats  2 a step, 1 launch each" in head
    assert "blocks.*" in head
    assert all(line.startswith("#") for line in head.splitlines() if line)
    names = [name for name in files if name.endswith(".py")]
    assert [name[:3] for name in names] == [f"{i:03d}" for i in range(len(names))]
    assert json.loads(files["index.json"])["files"] == sorted(files)


def test_the_head_adds_up():
    profile = memwall.profile(nn.Sequential(nn.GELU(), nn.ReLU()), (torch.randn(1000, 1000),), gpu=GPU)
    _, files = written_out(profile)
    (name,) = (name for name in files if name.endswith(".py"))
    assert name == "000_gelu_relu.py"
    assert "# DRAM     4.00 MB read, 4.00 MB written\n" in files[name]  # float32, in and out once
    assert "#       0  aten.gelu  0\n#       1  aten.relu  1\n" in files[name]


def test_names_of_a_model_cannot_leave_the_comment():
    profile = make_profile()
    _, files = written_out(profile)
    for name, text in files.items():
        if name.endswith(".py"):
            compile(text, name, "exec")
            assert "\x1b" not in text
    assert any(HOSTILE_MODULE.split("\x1b")[0] in text for text in files.values())


def test_a_policy_without_kernels_is_refused():
    with pytest.raises(UsageError, match="ideal has none of its own"):
        written_out(make_profile(), "ideal")


FILES = {
    "index.json": '{"schema": "memwall.emit/1", "files": ["a.py", "b/c.py", "index.json"]}',
    "a.py": "1",
    "b/c.py": "2",
}


def test_a_folder_is_written_and_replaced(tmp_path):
    folder = tmp_path / "out"
    write_folder(folder, FILES)
    assert (folder / "b" / "c.py").read_text() == "2"
    write_folder(folder, {"index.json": '{"schema": "memwall.emit/1", "files": ["index.json"]}'})
    assert [p.name for p in folder.iterdir()] == ["index.json"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]  # nothing is left of the old one


def test_an_empty_folder_will_do(tmp_path):
    write_folder(tmp_path / "out", FILES)
    (tmp_path / "empty").mkdir()
    write_folder(tmp_path / "empty", FILES)
    assert (tmp_path / "empty" / "a.py").is_file()


@pytest.mark.parametrize("stranger", ["notes.txt", "b/notes.txt"])
def test_a_folder_with_something_else_in_it_is_refused(tmp_path, stranger):
    folder = tmp_path / "out"
    write_folder(folder, FILES)
    (folder / stranger).write_text("mine")
    with pytest.raises(UsageError, match=r"holds .*notes.txt, which memwall did not write"):
        write_folder(folder, FILES)
    assert (folder / stranger).read_text() == "mine"


@pytest.mark.parametrize("index", ["{}", "not json", '{"schema": "other/1", "files": ["index.json"]}', "[]"])
def test_an_index_of_somebody_else_is_none(tmp_path, index):
    (tmp_path / "index.json").write_text(index)
    with pytest.raises(UsageError, match=r"index.json, which memwall did not write"):
        check_folder(tmp_path)


def test_a_file_and_a_missing_parent_are_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="it is no folder"):
        check_folder(tmp_path / "file")
    with pytest.raises(UsageError, match="there is no folder"):
        check_folder(tmp_path / "none" / "out")


def test_a_failure_leaves_what_was_there(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    write_folder(folder, FILES)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(UsageError, match="No space left on device; nothing was written"):
        write_folder(folder, {"a.py": "3"})
    assert (folder / "a.py").read_text() == "1"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
