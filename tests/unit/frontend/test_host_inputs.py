"""Inputs that a CUDA run leaves on the host, and the packed sequences that need them."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import memwall
from memwall.core.errors import UsageError
from memwall.frontend.targets.inputs import parse_input

FEATURES, HIDDEN = 32, 64


class Packed(nn.Module):
    def __init__(self, kind: str = "LSTM") -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(FEATURES, HIDDEN, batch_first=True)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.rnn(packed)[0].data


def profiled(kind: str, lengths: torch.Tensor, **options):
    x = torch.randn(3, 5, FEATURES)
    return memwall.profile(Packed(kind), (x, lengths), gpu="h100", **options)


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("real", [False, True])
def test_a_packed_sequence_is_one_call_over_its_rows(kind, gates, real):
    profile = profiled(kind, memwall.on_host(torch.tensor([5, 3, 2])), real=real)
    calls = [(op, cost) for op, cost in zip(profile.graph.ops, profile.costs[0], strict=True) if "rnn" in op.name]
    (op, cost), *others = calls
    assert not others and op.attributes["batch_sizes"] == (3, 3, 2, 1, 1)
    products = sum(count for pipe, count in cost.flops.items() if pipe.engine != "vector")
    assert products == 2 * (5 + 3 + 2) * gates * HIDDEN * (FEATURES + HIDDEN)


def test_an_input_on_the_host_takes_no_memory_of_the_gpu():
    profile = profiled("LSTM", memwall.on_host(torch.tensor([5, 3, 2])))
    inputs = [storage for storage in profile.graph.storages if storage.role == "input"]
    assert [storage.nbytes for storage in inputs] == [3 * 5 * FEATURES * 4]


def test_the_command_line_says_host(tmp_path):
    assert parse_input("lengths=i64[8]@host").host and not parse_input("i64[8]").host
    with pytest.raises(UsageError, match="@host"):
        parse_input("i64[8]@gpu")


def test_what_is_picked_on_the_host_is_no_kernel():
    """Both tensors are made without a device: on the host, where the rows to mask are chosen."""

    class Masking(torch.nn.Module):
        def forward(self, x):
            places = torch.tensor([5, 1, 4])
            x = x.clone()
            x[places[torch.randperm(3)[:2]]] = 0
            return x

    profile = memwall.profile(Masking(), (torch.zeros(8, 4),), gpu="h100")
    assert not profile.coverage.unmodeled
    assert all(op.outputs for op in profile.graph.ops)
    assert [op.name for op in profile.graph.ops if "index" in op.name] == ["aten.index_put_"]


def test_lengths_on_the_device_are_refused_with_the_way_out():
    with pytest.raises(UsageError, match=r"wants lengths on the host.*\(at .*forward.*memwall\.on_host\(lengths\)"):
        profiled("LSTM", torch.tensor([5, 3, 2]))
