"""Replayed blocks against the full trace: equal op for op, value for value."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import memwall
from memwall.frontend.targets import Workload, resolve
from memwall.frontend.torch import TraceOptions, trace


def both(workload, mode="training", **options):
    """The full trace and the replayed one, and how many blocks were replayed."""
    full = trace(workload, TraceOptions(mode=mode, replay=False, **options))
    replayed = trace(workload, TraceOptions(mode=mode, replay=True, **options))
    return full.graph, replayed.graph, replayed.facts.replayed_blocks


class Block(nn.Module):
    """A small residual block."""

    def __init__(self, width=16):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, scale=None):
        y = self.down(F.gelu(self.up(self.norm(x))))
        return x + (y if scale is None else y * scale)


class Stack(nn.Module):
    """Blocks in a row behind an embedding; ``run`` says how they are called."""

    def __init__(self, run, blocks=4, make=Block):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.blocks = nn.ModuleList(make() for _ in range(blocks))
        self.run = run

    def forward(self, ids):
        return self.run(self.blocks, self.embed(ids))


def chain(blocks, x):
    for block in blocks:
        x = block(x)
    return x


def with_scale(blocks, x):
    scale = torch.ones(16, device=x.device).sigmoid()
    for block in blocks:
        x = block(x, scale=scale)
    return x


def with_skips(blocks, x):
    kept = []
    for block in blocks:
        x = block(x)
        kept.append(x)
    return x + sum(kept)  # every output is used again after the last block


def first_twice(blocks, x):
    for block in blocks:
        x = block(x)
    return blocks[1](x)


def without_gradient(blocks, x):
    with torch.no_grad():
        x = blocks[1](blocks[0](x))
    return blocks[3](blocks[2](x))


def on_views(blocks, x):
    halves = torch.cat([x, x], -1).chunk(2, -1)  # arguments that lie at offsets in one storage
    for block in blocks:
        halves = (halves[1], block(halves[0]))
    return halves[0] + halves[1]


class InPlace(Block):
    """Writes its argument."""

    def forward(self, x):
        return super().forward(x.mul_(2))


class Remembers(Block):
    """Keeps what it computed for the model to read."""

    def forward(self, x):
        self.last = super().forward(x)
        return self.last


def reads_memory(blocks, x):
    for block in blocks:
        x = block(x)
    return x + sum(block.last for block in blocks)


class TwoOutputs(Block):
    """Returns a tensor, its argument, and a number."""

    def forward(self, x):
        return super().forward(x), x, 3


def through_pairs(blocks, x):
    for block in blocks:
        y, same, number = block(x)
        x = y + same * number
    return x


CASES = {
    "chain": (chain, Block, 3), "shared argument": (with_scale, Block, 3),
    "outputs used later": (with_skips, Block, None), "called twice": (first_twice, Block, None),
    "no gradient for some": (without_gradient, Block, None), "views as arguments": (on_views, Block, None),
    "writes its argument": (chain, InPlace, 0), "remembers": (reads_memory, Remembers, 0),
    "several outputs": (through_pairs, TwoOutputs, None),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("case", CASES)
def test_replay_equals_the_full_trace(case, mode):
    run, make, count = CASES[case]
    workload = Workload(Stack(run, make=make), (torch.zeros(2, 8, dtype=torch.long),))
    full, replayed, blocks = both(workload, mode)
    assert full == replayed
    if count is not None:
        assert blocks == count


def test_batch_norm_buffers_are_written_in_place():
    def make():
        return nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))

    workload = Workload(nn.Sequential(*(make() for _ in range(4))), (torch.randn(2, 4, 8, 8),))
    full, replayed, blocks = both(workload)
    assert full == replayed
    # the first block's input needs no gradient, the second's does: two templates, two replays
    assert blocks == 2


def test_autocast_regions_are_replayed():
    workload = Workload(Stack(chain), (torch.zeros(2, 8, dtype=torch.long),))
    full, replayed, blocks = both(workload, autocast="bf16")
    assert full == replayed
    assert blocks == 3


class Numbered(Block):
    """Knows its number, in an attribute of the usual name or another, and reads it or not."""

    def __init__(self, name, number, reads):
        super().__init__()
        setattr(self, name, number)
        self.reads = reads
        self.name = name

    def forward(self, x):
        return x if self.reads and getattr(self, self.name) % 2 else super().forward(x)


@pytest.mark.parametrize(
    ("name", "reads", "count"), [("layer_idx", True, 0), ("layer_idx", False, 3), ("place", False, 0)]
)
def test_blocks_that_know_their_number(name, reads, count):
    blocks = [Numbered(name, i, reads) for i in range(4)]
    net = nn.Sequential(nn.Embedding(32, 16), *blocks)
    full, replayed, replays = both(Workload(net, (torch.zeros(2, 8, dtype=torch.long),)))
    assert full == replayed
    assert replays == count
    assert [getattr(block, name) for block in blocks] == [0, 1, 2, 3]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(
    "folder", ["resnet50", "bert_large", "gpt2_xl", "llama3_8b", "vit_l16", "mixtral_8x7b", "unet"]
)
def test_reference_workloads(folder, mode):
    full, replayed, _ = both(resolve(f"profiles/{folder}/model.py"), mode)
    assert full == replayed


def test_a_part_that_every_block_shares():
    shared = nn.Linear(16, 16)

    class Sharing(Block):
        def __init__(self):
            super().__init__()
            self.shared = shared

        def forward(self, x):
            return self.shared(super().forward(x))

    workload = Workload(Stack(chain, make=Sharing), (torch.zeros(2, 8, dtype=torch.long),))
    for autocast in (None, "bf16"):
        full, replayed, _ = both(workload, autocast=autocast)
        assert full == replayed


def test_weights_tied_in_some_blocks_only():
    class Square(nn.Module):
        def __init__(self, tied):
            super().__init__()
            self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
            if tied:
                self.b.weight = self.a.weight

        def forward(self, x):
            return x + self.b(self.a(x))

    ties = iter((False, True, False, True))
    workload = Workload(Stack(chain, make=lambda: Square(next(ties))), (torch.zeros(2, 8, dtype=torch.long),))
    for autocast in (None, "bf16"):
        full, replayed, _ = both(workload, autocast=autocast)
        assert full == replayed


class Projects(nn.Module):
    """Its output is a view: a linear layer of three axes."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x):
        return self.linear(self.norm(x))


def writes_outputs(blocks, x):
    for block in blocks:
        x = block(x)
        x.mul_(2)
    return x


def uses_a_weight(blocks, x):
    for block in blocks:
        x = block(x)
    return x + blocks[2].linear.weight.sum()


def calls_a_part(blocks, x):
    for block in blocks:
        x = block(x)
    return blocks[3].linear(x)


@pytest.mark.parametrize("run", [writes_outputs, uses_a_weight, calls_a_part])
def test_blocks_that_the_model_reaches_into(run):
    workload = Workload(Stack(run, make=Projects), (torch.zeros(2, 8, dtype=torch.long),))
    full, replayed, _ = both(workload)
    assert full == replayed


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_taken_inside_the_model(create_graph):
    class Penalty(Stack):
        def forward(self, ids):
            x = self.embed(ids)
            y = chain(self.blocks, x)
            (slope,) = torch.autograd.grad(y.sum(), x, create_graph=create_graph, retain_graph=True)
            return y.sum() + (slope * slope).sum() if create_graph else y.sum() + slope.sum()

    full, replayed, _ = both(Workload(Penalty(None), (torch.zeros(2, 8, dtype=torch.long),)))
    assert full == replayed


def test_buffers_made_empty_and_filled_inside():
    class Fills(Block):
        def forward(self, x):
            room = torch.empty_like(x)
            room.copy_(x)
            return super().forward(room)

    full, replayed, blocks = both(Workload(Stack(chain, make=Fills), (torch.zeros(2, 8, dtype=torch.long),)))
    assert full == replayed
    assert blocks == 3


def test_an_ensemble_by_vmap_of_its_own_layers_is_traced():
    """Three nets of 16 to 32 to 4 over 4 rows, as torch.func's tutorial stacks them: 3 * 2 * 4 * (16 * 32 + 32 * 4)."""
    nets = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)) for _ in range(3))

    def forward(x):
        state = torch.func.stack_module_state(list(nets))
        call = lambda parameters, buffers: torch.func.functional_call(nets[0], (parameters, buffers), (x,))  # noqa: E731
        return torch.func.vmap(call)(*state)

    nets.forward = forward
    profile = memwall.profile(nets, (torch.zeros(4, 16),), gpu="a100")
    products = [cost for op, cost in zip(profile.graph.ops, profile.costs[0], strict=True) if "mm" in op.name]
    assert sum(cost.total_flops for cost in products) == 15_360
