"""The traced graph, replayed into an FX graph and run on real tensors, computes what the module computes."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memwall.core.graph import TensorSpec, contiguous
from memwall.frontend.targets import resolve
from memwall.frontend.targets.loading import load_file
from memwall.fusion.view_steps import ViewStep, row_major_order, view_steps
from tests.unit.places import ROOT
from tests.unit.replay_real import compare


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def applied(tensor: torch.Tensor, steps: list[ViewStep]) -> torch.Tensor:
    calls = {"view": torch.Tensor.view, "permute": torch.Tensor.permute, "select": torch.Tensor.select,
             "slice": lambda t, axis, start, stop: t.narrow(axis, start, stop - start),
             "unsqueeze": torch.Tensor.unsqueeze, "expand": torch.Tensor.expand,
             "as_strided": torch.as_strided}  # fmt: skip
    for step in steps:
        tensor = calls[step.name](tensor, *step.arguments)
    return tensor


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), tuple(tensor.stride()), "float32")


BASE = torch.arange(2 * 3 * 4 * 6.0).reshape(2, 3, 4, 6)

VIEWS = {
    "itself": lambda x: x,
    "transpose": lambda x: x.transpose(1, 3),
    "flatten": lambda x: x.flatten(1, 2),
    "unflatten and swap": lambda x: x.view(2, 3, 4, 2, 3).permute(3, 0, 2, 1, 4),
    "first half of the last axis": lambda x: x[..., :3],
    "second half of the last axis": lambda x: x[..., 3:],
    "one row": lambda x: x[:, 1],
    "one element": lambda x: x[1, 2, 3, 4],
    "inner rows": lambda x: x[:, 1:3, 1:, 2:5],
    "one of three, then transposed": lambda x: x.view(2, 3, 4, 3, 2)[:, :, :, 1].transpose(1, 2),
    "every second row": lambda x: x[:, :, ::2],
    "inserted axes": lambda x: x[:, None, :, :, None],
    "broadcast": lambda x: x[:, :1].expand(2, 5, 4, 6),
    "a column broadcast": lambda x: x[:, :, :, 2:3].expand(-1, -1, -1, 7),
    "last row of all": lambda x: x.view(6, 24)[-1],
    "all but the first": lambda x: x.flatten()[1:],
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)])
def test_a_view_is_reached_without_as_strided(name, order):
    base = BASE.permute(order).clone(memory_format=torch.contiguous_format).permute(
        [order.index(i) for i in range(4)]
    )  # fmt: skip
    try:
        wanted = VIEWS[name](base)
    except RuntimeError:
        pytest.skip("not a view of this layout")
    if wanted.untyped_storage().data_ptr() != base.untyped_storage().data_ptr():
        pytest.skip("a copy in this layout")
    steps = view_steps(spec_of(base), 0, spec_of(wanted), wanted.storage_offset())
    assert torch.equal(applied(base, steps), wanted)
    assert "as_strided" not in [step.name for step in steps]


@pytest.mark.parametrize("view", [lambda x: x.unfold(0, 3, 1), lambda x: x.view(12, 12).diagonal(), lambda x: x[::5]])
def test_what_no_view_operator_says_is_still_right(view):
    base = torch.arange(144.0)
    wanted = view(base)
    steps = view_steps(contiguous((144,), "float32"), 0, spec_of(wanted), wanted.storage_offset())
    assert torch.equal(applied(base, steps), wanted)


def test_order_of_axes():
    assert row_major_order(contiguous((2, 3, 4), "float32")) == (0, 1, 2)
    # channels last: [n, c, h, w] with c innermost
    assert row_major_order(TensorSpec((2, 3, 4, 5), (60, 1, 15, 3), "float32")) == (0, 2, 3, 1)
    assert row_major_order(TensorSpec((2, 3), (4, 1), "float32")) is None  # a gap behind each row


def llama(layers: int = 2):
    source = load_file(ROOT / "profiles/llama3_8b/model.py")
    config = source.Config(width=32, layers=layers, heads=4, kv_heads=2, ffn=48, vocab=50)
    return source.Llama(config), (torch.randint(50, (2, 16)),), source.loss


def bert_layer():
    source = load_file(ROOT / "profiles/bert_layer/model.py")
    layer = source.BertLayer()
    for part in layer.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return layer, (torch.randn(8, 2, source.WIDTH, requires_grad=True),), lambda y: y.pow(2).mean()


class Residual(nn.Module):
    """A ResNet-like block: in-place ReLU, running statistics, a strided shortcut."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm1, self.norm2, self.norm3 = (nn.BatchNorm2d(n) for n in (8, 16, 16))
        self.conv = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.shortcut = nn.Conv2d(8, 16, 1, stride=2, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = F.relu(self.norm1(self.stem(x)), inplace=True)
        x = F.relu(self.norm2(self.conv(x)) + self.norm3(self.shortcut(x)), inplace=True)
        return self.head(self.pool(x).mean((2, 3)))


class InPlace(nn.Module):
    """Writes into slices, into expanded views and through out-of-order aliases."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(4, 6))

    def forward(self, x):
        self.count.add_(1)
        self.seen[1:3] += 2.0
        y = self.linear(x)
        z = y * 2
        z[:, :3] += y[:, 3:]
        z.view(-1)[::2] *= 0.5
        filled = torch.empty(4, 6)
        filled[:2] = y[:2]
        filled[2:] = 1.0
        z[0].copy_(filled[3])
        masked = z.masked_fill(z > 1, float("-inf"))
        return torch.where(masked > 0, masked, filled) + self.count


class Types(nn.Module):
    """Casts, complex numbers and integer views."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 8))

    def forward(self, x):
        spin = torch.view_as_complex(x.view(4, 4, 2)) * torch.polar(torch.ones(4), torch.arange(4.0))
        y = torch.view_as_real(spin).flatten(1) * self.weight
        return y + y.double().cumsum(-1).float() + self.weight.detach().view(torch.int32).float() * 0


@pytest.mark.parametrize("make", [
    bert_layer,
    llama,
    lambda: (Residual(), (torch.randn(4, 3, 12, 12),), None),
    lambda: (InPlace(), (torch.randn(4, 6),), None),
    lambda: (Types(), (torch.randn(4, 8),), None),
], ids=["bert_layer", "llama", "residual", "in_place", "types"])  # fmt: skip
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_a_replay_computes_what_the_module_does(make, training):
    module, args, loss = make()
    compare(module, args, training=training, loss=loss if training else None)


#: models that need data to be traced, draw random numbers, or call what only a GPU has
_NOT_REPLAYED = {
    "boolean_mask": "needs data", "item_branch": "needs data", "complex_masking": "needs data",
    "runaway_loop": "stopped by the cap on ops", "lstm": "cuDNN's kernel", "gru": "cuDNN's kernel",
    "rnn": "cuDNN's kernel",
    "fft_complex": "a graph does not keep which views are conjugated",
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", sorted((ROOT / "tests/models").glob("*.py")), ids=lambda p: p.stem)
def test_models_replay_to_the_same_numbers(path):
    if path.stem in _NOT_REPLAYED:
        pytest.skip(_NOT_REPLAYED[path.stem])
    workload = resolve(str(path))
    module = workload.model()
    inputs = workload.inputs() if callable(workload.inputs) else workload.inputs
    for part in module.modules():
        if hasattr(part, "dropout") and isinstance(part.dropout, float):
            part.dropout = 0.0
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    training = any(p.requires_grad for p in module.parameters())
    # in double precision, so that no ReLU flips on a rounding error
    inputs = tuple(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs)
    compare(module.double(), inputs, training=training, loss=workload.loss, tolerance=1e-6)
