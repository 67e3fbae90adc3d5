"""Known values: 300 random index programs on meta next to the same programs on the host."""

import mmap
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import memwall
from memwall.frontend.torch import TraceOptions
from memwall.frontend.torch.process.device import TracedDevice
from memwall.frontend.torch.run import trace
from memwall.frontend.torch.values import draws
from memwall.frontend.torch.values.assumptions import Assumptions, read_assumptions
from memwall.frontend.torch.values.carrying import Carrying
from memwall.frontend.torch.values.known import MOST_INTEGERS, KnownValues
from tests.unit.places import ROOT

sys.path.insert(0, str(ROOT / "lab" / "benchmarks"))
from known_values import described

#: a step of a program: integers of some shape, a source of choices → integers; each answers on any device
STEPS: tuple[Callable[[torch.Tensor, random.Random], torch.Tensor], ...] = (
    lambda x, r: x + r.randint(-3, 3),
    lambda x, r: x * r.randint(-2, 2) % 7,
    lambda x, r: x.flatten().cumsum(0),
    lambda x, r: torch.where(x > r.randint(0, 5), x, -x),
    lambda x, r: x[x > r.randint(-2, 4)],
    lambda x, r: (x % 3 == 0).nonzero(),
    lambda x, r: torch.unique(x),
    lambda x, r: x.flatten().sort(descending=r.random() < 0.5, stable=True)[1],
    lambda x, r: x.flatten().argsort(stable=True),
    lambda x, r: x.flatten()[:: r.randint(1, 3)],
    lambda x, r: x.flatten().repeat_interleave(x.flatten().abs() % 3),
    lambda x, r: torch.bincount(x.flatten().abs() % 11),
    lambda x, r: torch.nn.functional.one_hot(x.flatten().abs() % 5, -1 if x.numel() else 5),
    lambda x, r: x.flatten().gather(0, x.flatten().abs() % max(x.numel(), 1)) if x.numel() else x,
    lambda x, r: torch.zeros(9, dtype=torch.long, device=x.device).index_add_(0, x.flatten().abs() % 9, x.flatten()),
    lambda x, r: torch.arange(x.numel() % 50, device=x.device) + x.sum(),
    lambda x, r: x.masked_fill(x > r.randint(0, 4), r.randint(0, 9)),
    lambda x, r: torch.cat([x.flatten(), torch.full((r.randint(1, 4),), r.randint(0, 9), device=x.device)]),
    lambda x, r: torch.tensor([*x.flatten().tolist()[:20], 1], device=x.device),
    lambda x, r: x.flatten()[: int(x.flatten()[:5].abs().sum()) % 40 + 1],
    lambda x, r: x.masked_select(x.remainder(2) == 0) if (x > 0).any() else x,
    lambda x, r: x.flatten().unsqueeze(0).expand(3, -1).t(),
)  # fmt: skip


def _written(x: torch.Tensor, r: random.Random) -> torch.Tensor:
    """Writes into views of a copy, which its other views see."""
    copied = x.flatten().clone()
    view = copied[r.randint(0, 3) :: 2]
    view.add_(r.randint(1, 5))
    copied[copied % 2 == 0] = r.randint(0, 9)
    copied[:1].fill_(r.randint(0, 9))
    return view if r.random() < 0.5 else copied


def _program(device: str | torch.device, seed: int) -> list[torch.Tensor]:
    r = random.Random(seed)
    x = torch.arange(r.randint(1, 40), device=device).view(-1, 1) - r.randint(0, 20) + torch.arange(3, device=device)
    made = [x]
    for _ in range(r.randint(2, 9)):
        x = r.choice((*STEPS, _written))(x, r)
        x = x.flatten()[:200] if x.numel() > 200 else x
        made.append(x)
    return made


class _Programs(torch.nn.Module):
    """Runs the programs of some seeds where its input is."""

    def __init__(self, seeds: range) -> None:
        super().__init__()
        self.seeds = seeds

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [_program(x.device, seed)[-1] for seed in self.seeds]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("block", range(10))
def test_random_index_programs_run_the_same_ops_with_data(block):
    """A trace on ``meta`` records what one of real tensors does: the same ops, attributes, shapes, strides, dtypes."""
    programs = _Programs(range(30 * block, 30 * block + 30))
    on_meta, real = (
        trace(memwall.Workload(programs, (torch.zeros(3),)), TraceOptions(real=real)).graph for real in (False, True)
    )
    assert described(on_meta) == described(real)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("block", range(10))
def test_random_index_programs_equal_those_on_the_host(block):
    for seed in range(30 * block, 30 * block + 30):
        known = KnownValues()
        with Carrying(known), TracedDevice("meta", known=known):
            traced = _program("meta", seed)
        for step, (mine, real) in enumerate(zip(traced, _program("cpu", seed), strict=True)):
            value = known.of(mine)
            assert mine.is_meta and value is not None, (seed, step)
            assert torch.equal(value, real) and mine.shape == real.shape, (seed, step)


def test_numpy_and_a_comparison_see_known_values():
    class Asks(torch.nn.Module):
        def forward(self, x, mask):
            assert mask.cpu().numpy().sum() == 9 and torch.equal(mask, mask) and not torch.equal(mask, mask + 1)
            return x * 2

    mask = torch.ones(2, 16, dtype=torch.long).tril(3)  # rows of 4 and of 5 ones
    assert memwall.profile(Asks(), (torch.zeros(4), mask)).graph.ops


def test_what_an_unknown_tensor_writes_is_unknown():
    known = KnownValues()
    with Carrying(known):
        x, activation = torch.zeros(4, device="meta"), torch.empty(4, device="meta")
        view = x[1:]
        assert known.has(view)
        x.add_(activation)
    assert not known.has(view)


def test_large_masks_of_one_value_are_known():
    known = KnownValues()
    with Carrying(known):
        mask = torch.ones(64, MOST_INTEGERS, dtype=torch.long, device="meta")
        assert (mask == 1).all().item() and not (~(mask == 1)).any().item()
        mask[0, 0] = 0
    assert not known.has(mask)


def test_large_masks_that_were_expanded_are_known():
    """3 of 8 rows are true, each as wide as the limit."""
    known = KnownValues()
    with Carrying(known):
        rows = torch.tensor([0, 1, 1, 0, 0, 0, 1, 0], dtype=torch.bool, device="meta")
    known.give(rows, torch.tensor([0, 1, 1, 0, 0, 0, 1, 0], dtype=torch.bool))
    with Carrying(known):
        mask = rows[:, None].expand(8, MOST_INTEGERS)
        assert mask.any().item() and not mask.all().item()
        assert mask.nonzero().shape == (3 * MOST_INTEGERS, 2)
        assert torch.empty(8, MOST_INTEGERS, device="meta").masked_select(mask).numel() == 3 * MOST_INTEGERS
        assert not known.has(mask + 1)


def test_many_choices_are_counted_as_floating_numbers():
    # torchtitan counts the experts that 65,536 choices name by histc, which takes floating numbers alone
    known = KnownValues()
    with Carrying(known), torch.device("meta"):
        chosen = torch.arange(65_536).remainder(64)
        assert torch.histc(chosen.float(), bins=64, min=0, max=64).int().tolist() == [1024] * 64


def _additive_mask(device):
    """A mask that is added to the scores of attention, as LED makes it of one of ones; then with some hidden."""
    mask = torch.ones(1, 512, dtype=torch.long, device=device)
    inverted = 1.0 - mask[:, None, None, :].expand(1, 1, 512, 512).to(torch.float32)
    inverted = inverted.masked_fill(inverted.bool(), torch.finfo(torch.float32).min) * inverted
    row = inverted[:, 0, 0, :]
    row[mask == 2] = 3.0
    row[:, 5] = 1.0
    other = torch.where((mask > 0)[:, None] & (torch.arange(512, device=device) < 500), 0.0, -1.0).expand(1, 512, 512)
    return row, other[:, 0]


def test_masks_of_floating_numbers_are_known():
    known = KnownValues()
    with Carrying(known), TracedDevice("meta", known=known):
        traced = _additive_mask("meta")
    for mine, real in zip(traced, _additive_mask("cpu"), strict=True):
        assert torch.equal(known.of(mine), real)
    assert known.of(traced[0]).sum() == 1.0 and known.of(traced[1]).sum() == -12.0


def test_large_floating_numbers_are_not_computed():
    known = KnownValues()
    with Carrying(known), TracedDevice("meta", known=known):
        angles = torch.arange(512.0, device="meta")[:, None] * torch.arange(64.0, device="meta")
    assert not known.has(angles)


def test_a_number_of_the_host_meets_a_tensor_where_a_gpu_takes_it():
    known = KnownValues()
    with Carrying(known), TracedDevice("meta", known=known):
        x = torch.empty(3, 4, device="meta")
        rows = x[0].long()[:2]
        assert x.masked_fill(x > 0, torch.tensor(2.0)).shape == x.index_fill(0, rows, torch.tensor(1.0)).shape


def test_normal_numbers_are_unknown_but_not_zero():
    """Images of all zeros are padding, which a processor adds; drawn ones are none."""
    known = KnownValues()
    with Carrying(known), TracedDevice("meta", known=known):
        images = torch.randn(2, 3, 224, 224)
        real = (images.view(2, -1) == 0.0).sum(1) != 3 * 224 * 224
        assert images[real].shape[0] == 2 and not known.has(images)
        images.relu_()
        assert not known.has(images == 0.0)


def test_assumptions_of_modules_go_before_those_of_the_model():
    at = ["encoder.layers.0", "x.py:1"]
    rules = read_assumptions(["nonzero=0.2", "encoder.*:nonzero=0.1"])
    assumptions = Assumptions(rules, lambda: (at[0], at[1]))
    assert assumptions.value("nonzero") == 0.1
    at[0] = "decoder"
    assert assumptions.value("nonzero") == 0.2 and assumptions.value("condition") is True
    assert [line.partition(",")[0] for line in assumptions.lines()] == ["nonzero=0.1", "nonzero=0.2", "condition=true"]


def test_choices_are_balanced():
    found, assumed = Assumptions((), lambda: ("", "")).chosen(torch.Size((16, 8)), -1, 2)
    # 8 (1 - (6/8)^16) = 7.9 of 8 are expected to be chosen, and 2 at least
    assert assumed == ("experts=balanced", 2) and torch.bincount(found.flatten()).tolist() == [4] * 8
    assert all(len(set(row)) == 2 for row in found.tolist())


#: experts and how many a token chooses → different ones of 1, 8 and 64 tokens, N (1 - (1 - k/N)^tokens) by hand
MIXTURES = {
    (8, 2): (2, 7, 8),  # 7.20
    (16, 1): (1, 6, 16),  # 6.45, 15.7
    (32, 4): (4, 21, 32),  # 21.0
    (64, 6): (6, 35, 64),  # 34.9, 63.9
    (128, 8): (8, 52, 126),  # 51.6, 125.9
    (160, 6): (6, 42, 146),  # 42.2, 146.1
    (256, 8): (8, 57, 222),  # 57.4, 222.4
    (512, 10): (10, 75, 367),  # 74.7, 367.1
}


@pytest.mark.defect("19b")
@pytest.mark.parametrize("mixture", MIXTURES)
def test_choices_of_few_tokens_meet_as_by_chance(mixture):
    """Tokens were assumed to choose experts in turn, so that few of them chose more different ones than by chance."""
    experts, chosen = mixture
    for tokens, different in zip((1, 8, 64), MIXTURES[mixture], strict=True):
        found, _ = Assumptions((), lambda: ("", "")).chosen(torch.Size((tokens, experts)), -1, chosen)
        assert len(found.unique()) == different
        assert all(len(set(row)) == chosen for row in found.tolist())


@pytest.mark.parametrize("seed", [None, 7])
def test_random_numbers_of_inputs_are_those_of_the_host(seed):
    """Whatever was drawn for the model, and for larger inputs before."""
    drawn = []

    def inputs():
        torch.randn(300, 200)
        if seed is not None:
            torch.manual_seed(seed)
        images = torch.randn(4, 3, 64, 64)
        drawn.append(torch.randint(0, 100, (6,)))
        return images, drawn[-1], torch.randperm(9)

    class Chosen(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(5))

        def forward(self, images, ids, order):
            return images[:, :, : int(ids[0]) % 60 + 1, : int(order[0]) + 1] * self.weight[0]

    shapes = []
    for real in (False, True):
        graph = memwall.profile(memwall.Workload(Chosen, inputs), gpu="h100", real=real).graph
        shapes.append(graph.values[graph.outputs[0]].spec.shape)
    torch.manual_seed(0 if seed is None else seed)
    torch.randn(300, 200) if seed is None else None
    torch.randn(4, 3, 64, 64)
    ids, order = torch.randint(0, 100, (6,)), torch.randperm(9)
    assert shapes == [(4, 3, int(ids[0]) % 60 + 1, int(order[0]) + 1)] * 2


class _Durations(torch.nn.Module):
    """Repeats each token as often as is predicted, and keeps those that score."""

    def __init__(self):
        super().__init__()
        self.predict = torch.nn.Linear(8, 1)
        self.parts = torch.nn.ModuleDict({f"part_{i}": torch.nn.Linear(8, 8) for i in range(3)})

    def forward(self, x):
        durations = torch.clamp(torch.round(self.predict(x).squeeze(-1).exp()), min=0).long()
        longer = torch.zeros(int(durations.sum(1).max()), 8)
        longer[:] = torch.repeat_interleave(x[0], durations[0], dim=0)
        kept = longer[: (longer.mean(-1) > 0).sum()]
        return self.parts[f"part_{torch.arange(3)[2]}"](kept)


@pytest.mark.parametrize(("assumed", "rows"), [([], 20 * 4 // 2), (["rounded=3", "nonzero=0.25"], 20 * 3 // 4)])
def test_what_is_rounded_or_counted_is_assumed(assumed, rows):
    target = memwall.Workload(_Durations, lambda: (torch.randn(1, 20, 8),))
    profile = memwall.profile(target, gpu="h100", assume=assumed)
    assert profile.graph.values[profile.graph.outputs[0]].spec.shape == (rows, 8)
    stated = " ".join(profile.notes)
    for text in assumed or ["rounded=4", "nonzero=0.5"]:
        assert text in stated


def test_python_types_as_dtypes_while_building():
    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)
            mask = torch.tril(torch.ones(128, 128, dtype=bool))
            self.rows = int(mask.sum())

        def forward(self, x):
            return self.linear(x)[: self.rows]

    profile = memwall.profile(memwall.Workload(Masked, lambda: (torch.randn(9000, 8),)), gpu="h100")
    assert profile.graph.values[profile.graph.outputs[0]].spec.shape == (128 * 129 // 2, 8)


class _Heads(torch.nn.Module):
    """The part of torchvision's RoIHeads that finds boxes."""

    def postprocess_detections(self, logits, regression, proposals, image_shapes):
        keep = logits > 0.5
        return [regression[keep]], [logits[keep]], [keep.nonzero()]

    def forward(self, logits, regression):
        (boxes,), _, _ = self.postprocess_detections(logits, regression, None, [(480, 640)])
        return [logits.new_zeros(int(box[3] - box[1]), int(box[2] - box[0])) + 1 for box in boxes]


@pytest.mark.parametrize(("assume", "size"), [((), (240, 320)), (("boxes=0.25",), (120, 160))])
def test_detected_boxes_span_a_part_of_their_image(assume, size, monkeypatch):
    home = ModuleType("torchvision.models.detection.roi_heads")
    home.RoIHeads = _Heads
    monkeypatch.setitem(sys.modules, home.__name__, home)
    given = (torch.randn(6), torch.randn(6, 4))
    profile = memwall.profile(_Heads(), given, gpu="h100", assume=assume)
    pasted = [op for op in profile.graph.ops if op.name == "aten.add.Tensor"]
    assert [profile.graph.specs(op.outputs)[0].shape for op in pasted] == [size] * 3
    said = [note for note in profile.capture["notes"] if "boxes" in note]
    assert len(said) == 1 and said[0].startswith(f"assumed: {(*assume, 'boxes=0.5')[0]}, how much of its image's")


@pytest.mark.parametrize(("assume", "rows"), [((), 20), (("nonzero=0.1",), 4)])
def test_the_count_of_an_unknown_mask_is_its_part(assume, rows):
    class Counted(torch.nn.Module):
        def forward(self, x):
            return x[: int((x > 0).sum())] * 2

    profile = memwall.profile(Counted(), (torch.randn(40),), gpu="h100", assume=assume)
    assert profile.graph.values[profile.graph.outputs[0]].spec.shape == (rows,)
    assert profile.capture["notes"][0].startswith(f"assumed: {(*assume, 'nonzero=0.5')[0]}, how much of a mask")


def test_bytes_of_one_value_are_unknown_as_another_dtype():
    """The bytes of 1.0 are 0, 0, 128, 63: a view of the same size sees one number, others do not."""
    known = KnownValues()
    with Carrying(known):
        ones = torch.ones(1 << 15, device="meta")
        assert known.of(ones.view(torch.int32))[0] == torch.ones(1).view(torch.int32)[0]
        parts, pairs = ones.view(torch.uint8), torch.view_as_complex(ones.view(-1, 2))
        assert not any(known.has(t) for t in (parts, ones.view(torch.int64), pairs, (parts == 0).all()))
        with pytest.raises(RuntimeError, match="meta"):
            (parts == 0).all().item()


def _scattered(x):
    chosen = x.topk(2, 1)[1]
    counts = torch.zeros(8, dtype=torch.int64).scatter_add_(0, chosen.flatten(), torch.ones_like(chosen).flatten())
    return torch.cat([x, x]).split(counts.tolist())


def _added(x):
    count = torch.zeros((), dtype=torch.int64)
    count += x[0, 0].round().long()
    return x[: int(count)] * 2


def _copied(x):
    counts = torch.empty(64, dtype=torch.int64)
    counts[:8].copy_(x[:8, 0].round().long())
    return x[: counts[3].item()] * 2


def _both(x):
    count = x.topk(2, 1)[1].sum() * 0 + x[0, 0].round().long()
    return x[: int(count)] * 2


@pytest.mark.parametrize(
    ("forward", "kinds"),
    [(_scattered, ["experts"]), (_added, ["rounded"]), (_copied, ["rounded"]), (_both, ["experts", "rounded"])],
)
def test_what_is_written_or_computed_of_assumed_values_is_said_to_be_assumed(forward, kinds):
    module = torch.nn.Identity()
    module.forward = forward
    profile = memwall.profile(module, (torch.randn(64, 8),), gpu="h100")
    said = [note for note in profile.capture["notes"] if note.startswith("assumed: ")]
    assert [note.removeprefix("assumed: ").partition("=")[0] for note in said] == kinds


def _split(x):
    """Rows that score, apart by batch: eager torch needs counts that sum to the rows."""
    mask = x[..., 0] > 0
    return x[mask].split(mask.sum(1).tolist())


def _filled(x):
    mask = x[:, :, 0].flatten() > 0
    return torch.zeros(int(mask.sum()), x.shape[-1]).copy_(x.flatten(0, 1)[mask])


@pytest.mark.parametrize("forward", [_split, _filled])
@pytest.mark.parametrize("shape", [(3, 5, 8), (1, 1, 8), (4, 1, 8), (7, 3, 2)])
@pytest.mark.parametrize("assume", [(), ("nonzero=0.1",), ("nonzero=0",), ("nonzero=1",)])
def test_counts_of_a_mask_sum_to_what_it_selects(forward, shape, assume):
    x = torch.randn(shape)
    forward(x)
    module = torch.nn.Identity()
    module.forward = forward
    memwall.profile(module, (x,), gpu="h100", assume=assume)


def test_sums_of_large_expanded_masks_are_those_of_one_row():
    """Of 2^36 elements, those of a causal mask repeated: 1 + 2 + ... + 2048 in each of 2^14 copies."""
    known = KnownValues()
    with Carrying(known), TracedDevice("meta", known=known):
        rows = torch.arange(2048, device="meta")
        mask = (rows[:, None] >= rows).expand(1 << 14, 2048, 2048)
        assert mask.sum().item() == mask.count_nonzero().item() == (1 << 14) * (2048 * 2049 // 2)
        assert known.of(mask[:1024].sum(-1))[5].tolist() == list(range(1, 2049))
        assert mask.sum((0, 2), keepdim=True).flatten()[2047].item() == 2048 << 14
        assert mask[:, 0].sum(1).sum().item() == 1 << 14
        assert not known.has(mask.to(torch.int32).prod(0))
        assert not known.has(rows.expand(1 << 20, -1).argmax())


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's count of a process's memory")
def test_zeros_that_are_copied_to_the_host_take_memory_once_they_are_written():
    known, before = KnownValues(), _resident_bytes()
    with Carrying(known), TracedDevice("meta", known=known):
        zeros = torch.zeros(1 << 14, 1 << 14, device="meta")
        copied = zeros.cpu()
        assert _resident_bytes() - before < 1 << 28 < copied.nbytes
        assert copied.device.type == "cpu" and not copied[5].any()
        copied[3, 1] = 1
        assert copied[3].sum() == 1 and zeros.to("cpu", torch.bfloat16).dtype is torch.bfloat16


def _resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("count", [5, 2 * draws._PART, 2 * draws._PART + 7, 3 * draws._PART - 1])
@pytest.mark.parametrize(
    ("name", "args"), [("randn", ()), ("rand", ()), ("randint", (10,)), ("randint", (-(1 << 40), 1 << 40))]
)
def test_numbers_drawn_in_parts_leave_the_generator_where_one_call_does(name, args, count):
    make, shape = getattr(torch.ops.aten, name), (count,)
    torch.manual_seed(3)
    make(*args, shape)
    expected = torch.get_rng_state()
    torch.manual_seed(3)
    draws.draw_in_parts(make, (*args, shape), {})
    assert torch.equal(torch.get_rng_state(), expected)


@pytest.mark.parametrize(("assume", "voxels"), [((), 2048), (("nonzero=0.25",), 1024)])
def test_rounded_places_are_not_one(assume, voxels):
    """Points that are gathered in voxels: more than the one that equal places would make."""

    class Voxels(torch.nn.Module):
        def forward(self, x):
            places = (x / 0.1).floor().long()
            _, inverse, counts = torch.unique(places, dim=0, return_inverse=True, return_counts=True)
            sums = torch.zeros(int(inverse.max()) + 1, 3).index_add_(0, inverse, x)
            return sums / torch.cat([torch.full((n,), n) for n in counts.tolist()])[: len(sums), None]

    x = torch.randn(4096, 3)
    assert len(Voxels()(x)) > 1000
    profile = memwall.profile(Voxels(), (x,), gpu="h100", assume=assume)
    assert profile.graph.values[profile.graph.outputs[0]].spec.shape == (voxels, 3)


@pytest.mark.parametrize(("ranks", "count"), [(1, 5), (4, None)])
def test_what_other_ranks_send_is_unknown(ranks, count):
    """Four ranks' sum of this rank's 5 is not 5; of one rank it is."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        known = KnownValues()
        with Carrying(known):
            mine, received = torch.full((1,), 5, device="meta"), torch.zeros(ranks, dtype=torch.long, device="meta")
            lists = [torch.zeros(1, dtype=torch.long, device="meta") for _ in range(ranks)]
            summed = mine.clone()
            dist.all_reduce(summed)
            dist.all_gather_into_tensor(received, mine)
            dist.all_gather(lists, mine)
            functional = torch.ops._c10d_functional.all_reduce(mine, "sum", dist.group.WORLD.group_name)
        for tensor in (summed, received, lists[0], functional):
            assert known.has(tensor) == (count is not None)
        assert known.of(mine).item() == 5 and (count is None or known.of(summed).item() == count)
    finally:
        dist.destroy_process_group()


#: what the last forward of a ``_Drawing`` found
DRAWN: list[float] = []


class _Drawing(torch.nn.Module):
    """Draws whole numbers on the device, and one number on the host, after other draws."""

    def __init__(self, before: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.before = before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.before(x)
        numbers = torch.randint(0, 50, (64,), device=x.device)
        DRAWN[:] = [int((numbers > 24).sum()), float(torch.rand([]))]
        return x.sum()


def _drawn(before: Callable[[torch.Tensor], object], real: bool) -> tuple[list[float], str]:
    options = TraceOptions("forward", real=real)
    facts = trace(memwall.Workload(_Drawing(before), (torch.zeros(8, 8),)), options).facts
    return list(DRAWN), " ".join(facts.notes)


@pytest.mark.parametrize("before", [
    lambda x: None,
    lambda x: torch.empty(40, device=x.device).normal_(),
    lambda x: torch.empty(40_000, device=x.device).normal_(),
    lambda x: torch.empty(40_000, device=x.device).uniform_(),
    lambda x: torch.randn(40_000, device=x.device),
    lambda x: torch.randperm(40, device=x.device),
    lambda x: torch.rand_like(x),
    lambda x: torch.nn.functional.gumbel_softmax(x),
    lambda x: torch.rand([]),
])  # fmt: skip
def test_draws_are_those_of_a_run_with_data(before):
    on_meta, real = _drawn(before, False), _drawn(before, True)
    assert on_meta == real
    assert "random=" not in on_meta[1]


@pytest.mark.parametrize("before", [
    lambda x: torch.nn.functional.dropout(x, 0.5, training=True),
    lambda x: torch.bernoulli(torch.sigmoid(x)),
    lambda x: torch.nn.functional.rrelu(x, training=True),
])  # fmt: skip
def test_draws_after_those_of_activations_are_assumed(before):
    """A GPU draws them apart from the host, whose numbers drop layers: those stay as they are."""
    on_meta, real = _drawn(before, False), _drawn(before, True)
    assert "assumed: random=seed 0" in on_meta[1] and "random=" not in real[1]
    assert on_meta[0][1] == real[0][1] == _drawn(lambda x: None, False)[0][1]


def test_what_building_draws_leaves_the_draws_of_a_step_as_they_are():
    """Layers to drop are chosen by the same numbers, whatever a model's buffers were filled with."""

    class Filled(_Drawing):
        def __init__(self) -> None:
            super().__init__(lambda x: None)
            self.register_buffer("drawn", torch.rand(7))

    trace(memwall.Workload(Filled, (torch.zeros(8, 8),)), TraceOptions("forward"))
    filled = list(DRAWN)
    assert filled == _drawn(lambda x: None, False)[0]


class _Masks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.inner(x)
        return y[y > 0]


@pytest.mark.parametrize(("assume", "real", "unused"), [
    (["iner:nonzero=0.1"], False, ["iner:nonzero=0.1"]),  # a module that there is not
    (["nonzero=0.1", "nonzero=0.9"], False, ["nonzero=0.1"]),  # a later one holds
    (["condition=false", "nonzero=0.1"], False, ["condition=false"]),
    (["nonzero=0.1"], True, ["nonzero=0.1"]),
    (["nonzero=0.1"], False, []),
])  # fmt: skip
def test_an_assumption_that_nothing_asks_for_is_said(assume, real, unused):
    made = memwall.profile(_Masks(), torch.randn(4, 8), assume=assume, real=real)
    said = [note for note in made.notes if "changes nothing" in note]
    assert said == [f"--assume {text} changes nothing: no call that is traced asks for it" for text in unused]


def test_one_assumption_may_stand_alone():
    made = memwall.profile(_Masks(), torch.randn(4, 8), assume="nonzero=0.25")
    assert made.graph.specs(made.graph.outputs)[0].shape == (8,)
