"""Kernels written out: run one after another they compute what the model computes; folders are whole or not at all."""

from __future__ import annotations

import inspect
import json

import pytest
import torch
from torch import nn
from torch.nn import functional

import memwall
from memwall.emit import check_folder, kernel_files, write_folder
from memwall.errors import UsageError
from memwall.fusion import plan_graph
from memwall.hardware import load_gpu
from memwall.simulate import simulate
from tests.unit.report_fixture import HOSTILE_MODULE, make_profile

GPU = load_gpu("h100-sxm")


class Attention(nn.Module):
    """Spelled-out attention: views of one product, a mask that is filled in place, transposed products."""

    def __init__(self, width: int = 16, heads: int = 2):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * 0.5
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill_(mask, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))


class Root(nn.Module):
    """A norm by the root of the mean square, spelled out."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Block(nn.Module):
    def __init__(self, width: int = 16):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), Root(width)
        self.attention = Attention(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        gate, value = self.up(self.norm2(x)).chunk(2, -1)
        hidden = torch.cat([functional.silu(gate) * value, functional.relu_(value * 1.5)], -1)
        return x + self.down(hidden)


class Tokens(nn.Module):
    """Embedding, two blocks, a loss over shifted targets."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(16, 11)

    def forward(self, ids):
        logits = self.head(self.blocks(self.embedding(ids)))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class Pictures(nn.Module):
    """Convolution, batch norm with running statistics, in-place activations, pooling."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.norm(self.conv(x)), inplace=True), 2)
        x = x.mul_(2.0).add_(1.0)
        return functional.log_softmax(self.head(x.mean((2, 3))), -1).square().sum()


class Parts(nn.Module):
    """Writes into parts of a tensor that is made empty."""

    def forward(self, x):
        whole = x.new_empty(2 * x.shape[0], x.shape[1])
        whole[: x.shape[0]] = x.exp()
        whole[x.shape[0] :] = x.sin()
        return whole.sum(0) + whole[1]


CASES = {
    "tokens": (Tokens, lambda: (torch.randint(0, 11, (2, 6)),), "training"),
    "tokens forward": (Tokens, lambda: (torch.randint(0, 11, (2, 6)),), "inference"),
    "pictures": (Pictures, lambda: (torch.randn(2, 3, 8, 8),), "training"),
    "parts": (Parts, lambda: (torch.randn(4, 3),), "inference"),
}


class Memory:
    """Real bytes for every storage of a graph."""

    def __init__(self, graph):
        self.graph = graph
        self.blocks = [torch.zeros(max(s.nbytes, 1), dtype=torch.uint8) for s in graph.storages]

    def view(self, value_id):
        value = self.graph.values[value_id]
        spec, block = value.spec, self.blocks[value.storage]
        dtype = getattr(torch, spec.dtype)
        whole = block[: len(block) // dtype.itemsize * dtype.itemsize].view(dtype)
        return whole.as_strided(spec.shape, spec.strides, value.offset)

    def load(self, name, tensor):
        for storage in self.graph.storages:
            if storage.name == name and storage.role in ("parameter", "buffer"):
                self.blocks[storage.id].view(tensor.dtype).copy_(tensor.detach().flatten())


def run_all(files, memory):
    """Every launch of the index, each with views of the memory, its results copied to where they belong."""
    launched = json.loads(files["index.json"])["sets"][0]
    functions = []
    for kernel in launched["kernels"]:
        scope = {}
        exec(compile(files[kernel["file"]], kernel["file"], "exec"), scope)
        functions.append(scope["run"])
    for entry in launched["order"]:
        run = functions[entry["kernel"]]
        on_cpu = {"device": "cpu"} if "device" in inspect.signature(run).parameters else {}
        results = run(*(memory.view(i) for i in entry["inputs"]), **on_cpu)
        for value_id, result in zip(entry["outputs"], results, strict=True):
            target = memory.view(value_id)
            if target.data_ptr() != result.data_ptr() and 0 not in target.stride():
                target.copy_(result)


def written_out(profile, policy="memwall"):
    graph, costs = profile.graph, profile.costs[0]
    plan = plan_graph(policy, graph, costs, GPU)
    return plan, kernel_files(profile, [(plan, simulate(graph, plan, GPU))])


@pytest.mark.parametrize("name", CASES)
def test_the_kernels_compute_what_the_model_computes(name):
    """Loss, gradients and running statistics of a real eager step against the files, run in launch order."""
    build, make_inputs, mode = CASES[name]
    torch.manual_seed(0)
    module, inputs = build(), make_inputs()
    module.train(mode == "training")
    profile = memwall.profile(module, inputs, gpu=GPU, mode=mode, optimizer=None, attention="math")
    plan, files = written_out(profile)
    assert len(plan.groups) < len(profile.graph.ops)  # something was fused
    memory = Memory(profile.graph)
    for tensor_name, tensor in (*module.named_parameters(), *module.named_buffers()):
        memory.load(tensor_name, tensor)
    for value_id, tensor in zip(profile.graph.inputs, inputs, strict=True):
        memory.view(value_id).copy_(tensor)
    run_all(files, memory)

    with torch.set_grad_enabled(mode == "training"):
        expected = module(*inputs)
    torch.testing.assert_close(memory.view(profile.graph.outputs[0]), expected.detach(), rtol=1e-5, atol=1e-6)
    if mode == "training":
        expected.backward()
        gradients = {s.name: s.id for s in profile.graph.storages if s.role == "gradient"}
        assert set(gradients) == {n for n, _ in module.named_parameters()}
        for n, parameter in module.named_parameters():
            got = memory.blocks[gradients[n]].view(parameter.dtype)
            torch.testing.assert_close(got, parameter.grad.flatten(), rtol=1e-4, atol=1e-6)
        for n, tensor in module.named_buffers():
            place = next(s.id for s in profile.graph.storages if s.name == n)
            torch.testing.assert_close(memory.blocks[place].view(tensor.dtype), tensor.flatten())


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


# -- folders -----------------------------------------------------------------------------------------------------------

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
