"""What a trace says where it cannot go on, and of what it assumed."""

import pytest
import torch
from torch import nn

import memwall
from memwall.core.errors import UsageError
from memwall.frontend.targets import Workload, resolve
from memwall.frontend.torch import TraceOptions, trace
from tests.unit.one_call import Call


def _unrelated(x):
    x[x[:, 0] > 0]
    raise ValueError("learning rate must be positive")


def _unknown_name(x):
    x[x[:, 0] > 0]
    return {}["weights"]


def _of_other_rows(x):
    return x[x[:, 0] > 0] + x


@pytest.mark.parametrize(("function", "follows"), [(_unrelated, False), (_unknown_name, False), (_of_other_rows, True)])
def test_only_errors_about_shapes_or_places_may_follow_from_what_was_assumed(function, follows):
    with pytest.raises(UsageError) as raised:
        trace(Workload(Call(function), (torch.randn(64, 8),)), TraceOptions())
    assert ("this may follow from what was assumed, nonzero=0.5" in str(raised.value)) == follows


def test_a_saved_profile_is_refused_by_what_reads_it(tmp_path):
    path = tmp_path / "saved.json"
    memwall.profile(nn.Linear(8, 8), (torch.randn(2, 8),), gpu="h100").save(path)
    with pytest.raises(UsageError, match=r"saved profile, traced already: read it with memwall\.Profile\.load"):
        memwall.profile(path, gpu="a100")
    with pytest.raises(UsageError, match=r"with memwall\.compare\(profile, gpu=\[\.\.\.\]\)"):
        memwall.profile(path, gpu="a100")
    assert len(memwall.compare(memwall.Profile.load(path), gpu=["a100", "t4"]).entries) == 2


def test_a_batch_norm_of_one_sample_says_that_inputs_of_two_are_needed():
    with pytest.raises(UsageError, match=r"needs two samples: make inputs of two \(--batch 2 where the target takes"):
        memwall.profile(nn.BatchNorm1d(8), (torch.randn(1, 8),), gpu="h100", mode="training")


class Counting(nn.Module):
    """How many of its activations are positive, next to their sums."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        y = self.layer(x)
        return y, (y[:, 0] > 0).sum()


class Blocks(nn.Module):
    """Equal blocks, of which the last count is read: that of a replayed block."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Counting() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x, count = block(x)
        return x[: int(count)]


def test_what_a_replayed_block_computes_of_assumed_values_is_said_to_be_assumed():
    """Half of 64 rows."""
    traced = trace(Workload(Blocks(), (torch.randn(64, 8),)), TraceOptions())
    assert traced.facts.replayed_blocks == 2
    assert traced.graph.values[traced.graph.outputs[0]].spec.shape == (32, 8)
    assert "nonzero=0.5" in str(traced.facts)


class LargeMask(nn.Module):
    """A mask of ones that is too large to be computed element by element."""

    def forward(self, x):
        return x * 2, torch.ones(1 << 14, 1 << 12, dtype=torch.bool, device=x.device)


class Masks(nn.Module):
    """Equal blocks, of which the last mask is read."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(LargeMask() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x, mask = block(x)
        return x + 1 if bool(mask.all()) else x


def test_a_large_mask_of_one_value_passes_through_a_replay_as_one_value():
    x = torch.randn(4, 4)
    ops = [op.name for op in trace(Workload(Masks(), (x,)), TraceOptions()).graph.ops]
    assert ops == [op.name for op in trace(Workload(Masks(), (x,)), TraceOptions(replay=False)).graph.ops]
    assert ops[-1] == "aten.add.Tensor"


@pytest.mark.parametrize(("seconds", "tokens"), [(0.05, 1), (0.5, 7), (0.56, 7)])
def test_voxtral_realtime_takes_a_token_for_each_80_ms(seconds, tokens, save):
    """Columns of 10 ms: 5 are padded to 8, 50 to 56."""
    target = save({"model_type": "voxtral_realtime"})
    inputs = resolve(target, seconds=seconds).inputs()
    assert inputs["input_ids"].shape == (1, tokens)
    assert inputs["input_features"].shape == (1, 128, 8 * tokens)
    with pytest.raises(UsageError, match=r"takes a token for each 0\.08 s of sound: give --seconds"):
        resolve(target, seq=77)


def test_levit_trains_on_two_samples(save):
    """Its head normalises one vector of each sample."""
    target = save({"model_type": "levit"})
    assert resolve(target, mode="training").inputs()["pixel_values"].shape[0] == 2
    assert any("two samples" in note for note in resolve(target, mode="training").notes if isinstance(note, str))
    assert resolve(target).inputs()["pixel_values"].shape[0] == 1
    assert resolve(target, mode="training", batch=4).inputs()["pixel_values"].shape[0] == 4


@pytest.mark.parametrize("options", [{"batch": 2}, {"seq": 8, "image": "64x64"}, {"input_specs": ("f32[2,4]",)}])
def test_sizes_belong_to_targets_that_make_their_inputs(options):
    x = torch.zeros(1, 4)
    for given in ((torch.nn.Linear(4, 4), (x,)), (memwall.Workload(torch.nn.Linear(4, 4), (x,)),)):
        with pytest.raises(UsageError, match=f"{', '.join(options)} belongs to a model file or to hf:"):
            memwall.profile(*given, **options)


def test_an_optimizer_that_is_made_already_is_refused_with_what_is_wanted():
    module = torch.nn.Linear(4, 4)
    made = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(UsageError, match=r"of class SGD; want a name or a function: lambda parameters: SGD\(\.\.\.\)"):
        memwall.profile(module, torch.zeros(2, 4), mode="training", optimizer=made)


@pytest.mark.parametrize("meet", [lambda x: x + torch.ones(8, device="cpu"), lambda x: torch.ones(8, device="cpu") + x])
def test_a_tensor_of_the_host_that_meets_one_of_the_gpu_is_told_three_ways_out(meet):
    """As in torchaudio's beam search, whose scores are on the host: in either order --real runs it."""
    with pytest.raises(UsageError, match=r"of the host .* meets the device's .*device=x\.device.*--real"):
        memwall.profile(Call(meet), (torch.randn(4, 8),), gpu="h100")
    assert memwall.profile(Call(meet), (torch.randn(4, 8),), gpu="h100", real=True).graph.ops
