"""Runs the emitted files of a small model one after another, in Triton's interpreter, against the eager model.

In a process of its own: the interpreter is chosen when Triton is imported.
"""

import inspect
import json
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import memwall
from memwall.codegen.emit import kernel_files
from memwall.core.sources import load_source
from memwall.fusion import plan_graph
from memwall.hardware.lookup import load_gpu
from memwall.simulate.schedule import simulate

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
    with tempfile.TemporaryDirectory() as folder:
        modules = [load_source(files[kernel["file"]], Path(folder)) for kernel in launched["kernels"]]
    functions = [module.run for module in modules]
    for module in modules:
        module.DEVICE = "cpu"
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


def check(name: str) -> None:
    """Loss, gradients and running statistics of a real eager step against the files, run in launch order."""
    build, make_inputs, mode = CASES[name]
    torch.manual_seed(0)
    module, inputs = build(), make_inputs()
    module.train(mode == "training")
    profile = memwall.profile(module, inputs, gpu=GPU, mode=mode, optimizer=None, attention="math")
    plan, files = written_out(profile)
    assert len(plan.groups) < len(profile.graph.ops)  # something was fused
    assert any("@triton.jit" in text for text in files.values())
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
            torch.testing.assert_close(got, parameter.grad.flatten(), rtol=1e-4, atol=1e-5)
        for n, tensor in module.named_buffers():
            place = next(s.id for s in profile.graph.storages if s.name == n)
            torch.testing.assert_close(memory.blocks[place].view(tensor.dtype), tensor.flatten())
