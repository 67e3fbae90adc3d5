"""Traces with and without data, and one after another, record the same."""

import torch
from torch import nn

import memwall


def names(made: memwall.Profile) -> list[str]:
    return [op.name.removeprefix("aten.") for op in made.graph.ops]


def test_f51_a_number_written_at_indices_takes_no_kernel_of_its_own(folder):
    """On meta torch makes a tensor of a number that is assigned at indices, by a kernel that a GPU does not run."""

    class Cleared(nn.Module):
        def forward(self, x, places):
            x = x * 2
            x[places] = 0.0
            return x

    made = memwall.profile(Cleared(), (torch.zeros(64, 8), torch.arange(5)), gpu="h100")
    assert names(made) == ["mul.Tensor", "index_put_"]


def test_f51_a_mask_is_an_index_of_places_with_real_tensors_too(folder):
    """With real tensors a mask as index was recorded without the kernels of nonzero that a GPU runs first."""

    class Kept(nn.Module):
        def forward(self, x, mask):
            return x[mask] * 2

    given = (torch.randn(64, 8), torch.arange(64) % 2 == 0)
    on_meta, real = (memwall.profile(Kept(), given, gpu="h100", real=real) for real in (False, True))
    assert names(on_meta) == names(real) == ["nonzero", "index.Tensor", "mul.Tensor"]


def test_f51_attention_of_real_tensors_is_laid_out_as_a_gpu_does(folder):
    """The CPU's attention has another layout than a GPU's, and the copies that mend it were counted."""

    class Attention(nn.Module):
        def forward(self, x):
            q = x.unflatten(-1, (4, 64)).transpose(1, 2)
            return nn.functional.scaled_dot_product_attention(q, q, q, scale=1.0).transpose(1, 2).flatten(2)

    given = (torch.randn(1, 256, 256),)
    on_meta, real = (memwall.profile(Attention(), given, gpu="h100", real=real) for real in (False, True))
    assert names(on_meta) == names(real)
    assert on_meta.simulations[0].totals.dram_bytes == real.simulations[0].totals.dram_bytes


def test_f51_memory_that_is_written_in_parts_has_their_values(folder):
    """Values were lost where a model fills new memory part by part, as offsets of a batch: zero, then running sums."""

    class Batched(nn.Module):
        def forward(self, x, lengths):
            offsets = lengths.new_empty(len(lengths) + 1)
            offsets[:1] = 0
            torch.cumsum(lengths, 0, out=offsets[1:])
            return [x[start:end] * 2 for start, end in zip(offsets.tolist(), offsets.tolist()[1:], strict=False)]

    made = memwall.profile(Batched(), (torch.randn(10, 8), torch.tensor([3, 5, 2])), gpu="h100")
    written = [made.graph.specs(op.outputs)[0].shape for op in made.graph.ops if op.name == "aten.mul.Tensor"]
    assert written == [(3, 8), (5, 8), (2, 8)]


class Remembered(nn.Module):
    """As torch_geometric's TGNMemory: leaving training flushes what is stored, and train() returns nothing."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.register_buffer("last", torch.zeros(16, dtype=torch.long))

    def train(self, mode=True):
        if self.training and not mode:
            self.last += len([i for i in self.last.tolist() if i == 0])
        super().train(mode)

    def forward(self, x):
        assert not self.training
        return self.linear(x)


def test_f51_a_models_own_train_reads_values(folder):
    """eval() of a model whose own train() reads a buffer ended in torch's NotImplementedError, exit code 70."""
    made = memwall.profile(Remembered(), (torch.zeros(8, 64),), gpu="h100")
    assert names(made) == ["addmm"]


class Graph(nn.Module):
    """A layer of a graph network: features times weights, times the adjacency matrix."""

    def __init__(self, adjacency=None):
        super().__init__()
        self.linear = nn.Linear(16, 16, bias=False)
        self.register_buffer("adjacency", adjacency)

    def forward(self, x, adjacency=None):
        return (self.adjacency if adjacency is None else adjacency) @ self.linear(x)


def test_f52_sparse_matrices_may_be_given_or_held(folder):
    """A sparse adjacency matrix among the inputs or buffers was refused."""
    matrix = torch.eye(64).to_sparse().coalesce()  # 64 elements
    x = torch.zeros(64, 16)
    given = memwall.profile(Graph(), (x, matrix), gpu="h100")
    held = memwall.profile(Graph(matrix.to_sparse_csr()), (x,), gpu="h100")
    for made in (given, held):
        assert [name.rpartition(".")[2] for name in names(made)] == ["mm", "mm"]
        assert made.simulations[0].totals.flops == 2 * 64 * 16 * 16 + 2 * 64 * 16
    assert given.graph.role_bytes["input"] == 64 * 16 * 4 + 64 * (2 * 8 + 4)  # two indices and a value each
    assert held.graph.role_bytes["buffer"] == 65 * 8 + 64 * (8 + 4)  # row bounds, columns and values
    training = memwall.profile(Graph(), (x, matrix), gpu="h100", mode="training")
    assert [name for name in names(training) if "mm" in name] == ["mm", "sparse.mm", "sparse.mm", "mm"]


def test_f52_what_a_wrapper_does_and_a_trace_leaves_out_is_said(folder):
    """A model with torch.compile inside was refused; traced eagerly, it says so."""

    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.compile(nn.Linear(16, 16))

        def forward(self, x):
            return self.linear(x)

    made = memwall.profile(Inside(), (torch.zeros(4, 16),), gpu="h100")
    assert names(made) == ["addmm"]
    assert [note.partition(",")[0] for note in made.capture["notes"]] == ["torch.compile is left out"]
