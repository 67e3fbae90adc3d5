"""What the traced device makes of tensors that a model fills, and of the lists that it is indexed with."""

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn

import memwall
from memwall.frontend.torch.process.device import TracedDevice

X = torch.zeros(4, 8)
#: integers that the model found
SEEN: list[list[int]] = []


def _ops(model, inputs=(X,), **options):
    found = memwall.profile(model, inputs, gpu="a100", optimizer=None, **options)
    assert not found.notes
    return [op.name for op in found.graph.ops]


class Steps(nn.Module):
    """Runs its layer as often as its buffer says, and finds the integers of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64).fill_(3))

    def forward(self, x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        SEEN.append(numbers.tolist())
        for _ in range(int(self.steps)):
            x = self.layer(x)
        return x


FILLED: dict[str, Callable[[], torch.Tensor]] = {
    "fill_": lambda: torch.zeros(4, dtype=torch.int64).fill_(7),
    "fill_ of floats": lambda: torch.zeros(4).fill_(7).long(),
    "add_": lambda: torch.arange(4).add_(1),
    "mul_": lambda: torch.arange(4).mul_(3),
    "random_": lambda: torch.empty(4, dtype=torch.int64).random_(0, 10),
    "fill_ of booleans": lambda: torch.empty(64, dtype=torch.bool).fill_(True),
    "constant_": lambda: nn.init.constant_(torch.zeros(4), 2).long(),
}


@pytest.mark.parametrize("case", FILLED)
def test_what_fills_buffers_and_inputs_leaves_the_values_of_a_run_with_data(case):
    make = FILLED[case]
    assert _ops(Steps, lambda: (torch.randn(4, 8), make())) == ["aten.addmm"] * 3
    torch.manual_seed(0)
    torch.randn(4, 8)
    assert make().tolist() == SEEN[-1]


def test_weights_are_not_filled_and_their_old_values_are_forgotten():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.zeros(4))
            nn.init.constant_(self.scale, 2.0)
            self.count = int(self.scale.sum())  # 8, not 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, : self.count].sin()

    graph = memwall.profile(Scaled, (torch.zeros(4, 16),), gpu="a100").graph
    assert graph.values[graph.ops[-1].outputs[0]].spec.shape == (4, 8)


LISTS: dict[str, Callable[[torch.Tensor], None]] = {
    "a number": lambda mask: mask.__setitem__([0, 2], True),
    "a row": lambda mask: mask.__setitem__([0, 2], torch.ones(8, dtype=torch.bool, device=mask.device)),
    "columns": lambda mask: mask.__setitem__((slice(None), [0, 5]), True),
    "two lists": lambda mask: mask.__setitem__(([0, 1], [2, 3]), True),
    "booleans": lambda mask: mask.__setitem__([True, False, True, True], True),
}


@pytest.mark.parametrize("case", LISTS)
def test_what_is_set_at_a_list_of_places_is_known(case):
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.zeros(4, 8, dtype=torch.bool, device=x.device)
            LISTS[case](mask)
            return x[mask]

    graph = memwall.profile(Masked(), (X,), gpu="a100").graph
    assert graph.values[graph.ops[-1].outputs[0]].spec.shape == Masked()(X).shape


@functools.lru_cache
def table(count: int) -> torch.Tensor:
    return torch.arange(count, device="cuda").float().cos()


class Differentiated(nn.Module):
    """Takes a gradient in forward, which a trace finds in its first attempt."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x) * table(8)
        return torch.autograd.grad(y.sum(), self.layer.weight)[0]


def test_a_second_attempt_sees_the_first_call_of_functions_with_a_cache():
    assert _ops(Differentiated)[:5] == ["aten.addmm", "aten.arange", "aten._to_copy", "aten.cos", "aten.mul.Tensor"]


def test_initialisation_that_a_library_puts_in_the_place_of_torchs_fills_nothing(monkeypatch):
    """transformers replaces the functions of ``torch.nn.init`` while it builds a model: no number is drawn for weights,
    by theirs as little as by torch's."""
    own = torch.nn.init.normal_

    def normal_(tensor, mean=0.0, std=1.0, generator=None):
        return own(tensor, mean=mean, std=std, generator=generator)

    monkeypatch.setattr(torch.nn.init, "normal_", normal_)
    filled = []
    monkeypatch.setattr(torch.Tensor, "normal_", lambda tensor, *args, **options: filled.append(tensor))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(4, 4))
            torch.nn.init.normal_(self.weight)

    with TracedDevice("meta", building=True):
        Model()
    assert not filled


@pytest.mark.parametrize("move", [lambda y: y.cpu(), lambda y: y.to("cpu"), lambda y: y.to(device="cpu", copy=True)])
def test_an_output_that_goes_to_the_host_stays_a_trace(move):
    """A copy to the host is no kernel; what Python then reads of it is assumed."""
    layer = nn.Linear(8, 8)
    module = nn.Identity()
    module.forward = lambda x: move(layer(x))
    profile = memwall.profile(module, (X,), gpu="a100")
    assert [op.name for op in profile.graph.ops] == ["aten.addmm"]
    assert any("copy to the host takes no time" in note for note in profile.notes)
    module.forward = lambda x: x * float(move(layer(x)).numpy().max() + sum(move(layer(x)).tolist()[3]))
    profile = memwall.profile(module, (X,), gpu="a100", assume="number=0.5")
    assert [op.attributes.get("other") for op in profile.graph.ops][-1] == 0.5 + 8 * 0.5


def test_a_cast_on_the_way_to_the_host_is_a_kernel():
    module = nn.Identity()
    module.forward = lambda x: (x @ x.T).to("cpu", torch.float16)
    names = [op.name for op in memwall.profile(module, (X,), gpu="a100").graph.ops]
    assert names == ["aten.mm", "aten._to_copy"]


@pytest.mark.parametrize(
    ("pick", "row"), [(lambda x, at: nn.functional.embedding(at, x), 4), (lambda x, at: x.index_select(0, at), -1)]
)
def test_numbers_of_rows_that_a_table_lacks_are_said(pick, row):
    """Embedding and index_select of 4 rows, of which a GPU's kernel asserts that they are there."""
    module = nn.Identity()
    module.forward = lambda x, at: pick(x * 2, at)
    assert not memwall.profile(module, (X, torch.tensor([0, 3])), gpu="a100").notes
    profile = memwall.profile(module, (X, torch.tensor([0, row])), gpu="a100")
    assert list(profile.notes) == [f"index {row} is outside a table of 4 rows: the step fails on a GPU"]


@pytest.mark.parametrize("place", ["cuda:1", torch.device("cuda", 1), 1])
def test_a_second_gpu_is_said_to_be_taken_for_the_one_that_is_modeled(place, monkeypatch):
    """Layers on two GPUs, as in a pipeline by hand: two products, on one GPU. A rank of torchrun has that number."""
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    module.forward = lambda x: module[1](module[0](x).to("cuda:0").to(place))
    profile = memwall.profile(module, (X,), gpu="a100")
    said = "cuda:1 is taken for the one GPU that is modeled: what runs there counts, copies to it do not"
    assert list(profile.notes) == [said]
    assert [op.name for op in profile.graph.ops] == ["aten.addmm"] * 2
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert not memwall.profile(module, (X,), gpu="a100").notes
