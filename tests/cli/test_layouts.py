"""``memwall search --mode training``: the optimum of all layouts, found without simulating all."""

import itertools
import json
import random
from dataclasses import replace

import pytest

import memwall
from memwall.core.errors import UsageError
from memwall.core.question import filled
from memwall.hardware.cluster import hardware_of, load_cluster
from memwall.report.pages.search import gathered
from memwall.simulate.memory import reserved_bytes
from memwall.simulate.pipeline import ORDERS, Stage, in_flight, least_ends_s, run_pipeline
from memwall.training import search as searching
from memwall.training.candidates import layouts
from memwall.training.question import LayoutSearch
from memwall.training.search import search_layouts
from memwall.training.step import least_step_s, step_memory, training_step

MODEL = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.n_heads, self.qkv, self.out = 8, nn.Linear(256, 768), nn.Linear(256, 256)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = (part.view(*part.shape[:2], self.n_heads, 32).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.out(mixed.reshape(*mixed.shape[:2], -1))

class Block(nn.Module):
    def __init__(self, width=1024):
        super().__init__()
        self.norm, self.attention, self.after = nn.LayerNorm(256), Attention(), nn.LayerNorm(256)
        self.mlp = nn.Sequential(nn.Linear(256, width), nn.GELU(), nn.Linear(width, 256))

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.after(x))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(1000, 256), nn.LayerNorm(256)
        self.layers, self.head = nn.ModuleList(Block() for _ in range(LAYERS)), nn.Linear(256, 1000, bias=False)

    def forward(self, ids):
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.flatten())

def model():
    return Model()

def inputs(batch=1, seq=512):
    return (torch.zeros(batch, seq, dtype=torch.long),)
"""


@pytest.fixture
def model(tmp_path):
    """Writes the model with so many layers, every other one with an MLP of another width."""

    def write(layers, width=1024):
        path = tmp_path / f"gpt{layers}.py"
        text = MODEL.replace("Block() for _", f"Block({width} if i % 2 else 1024) for i").replace("LAYERS", str(layers))
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def exhaustive(target, cluster, gpus, global_batch, layers):
    """The step and the peak of every layout, each rank traced by :func:`memwall.parallel`."""
    ranks, found, gpu = {}, [], hardware_of(load_cluster(cluster))
    for each in layouts(gpus, global_batch, layers):
        key = each.layout.traced, each.batch
        if key not in ranks:
            ranks[key] = memwall.parallel(target, cluster=cluster, layout=each.layout, batch=each.batch).blocks
        step = training_step(ranks[key], each.layout, load_cluster(cluster), state="float32")
        peak = max(memory.total for memory in step.memory)
        found.append((step.time_s, str(each.layout), each.batch, peak + reserved_bytes(gpu, peak)))
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("layers", "width", "cluster", "gpus", "global_batch"), [
    (5, 256, "dgx-1-v100", 2, 2), (3, 4096, "l40s-8-pcie", 2, 6), (4, 1024, "dgx-h100", 4, 4),
])  # fmt: skip
def test_the_fastest_are_those_of_an_exhaustive_search(model, monkeypatch, layers, width, cluster, gpus, global_batch):
    """Models of equal and of unequal layers on three clusters, each with memory for all layouts, for three in ten, and
    for a share of them that dice choose."""
    target, gpu = model(layers, width), hardware_of(load_cluster(cluster))
    steps = exhaustive(target, cluster, gpus, global_batch, layers)
    ranks = searching._Ranks(target, load_cluster(cluster), filled(LayoutSearch, {}))
    monkeypatch.setattr(searching, "_Ranks", lambda *given: ranks)  # the three searches trace each rank once
    peaks, dice = sorted(peak for *_, peak in steps), random.Random(layers)
    for share in (1.0, 0.3, dice.uniform(0.02, 0.9)):
        small = replace(gpu, dram_bytes=peaks[max(int(share * len(peaks)), 1) - 1])
        monkeypatch.setattr(searching, "hardware_of", lambda cluster, host=None, small=small: small)
        found = search_layouts(target, cluster=cluster, gpus=gpus, global_batch=global_batch, top=5)
        fitting = [step for step in steps if step[-1] <= small.dram_bytes]
        assert [each.step.time_s for each in found.order] == sorted(time_s for time_s, *_ in fitting)[:5]
        assert {(e.step.time_s, str(e.layout), e.batch, e.peak_bytes) for e in found.order} <= set(fitting)
        assert found.count == len(steps) == found.simulated + sum(found.pruned.values())
        assert found.simulated < found.count / 4


def test_a_deep_model_is_traced_as_three_layers_with_the_same_steps(model, monkeypatch):
    monkeypatch.setattr(searching, "_FEW", 5)
    target, among = model(6), {"batch": ["2"], "schedule": ["1f1b"], "recompute": ["selective"]}
    ranks = searching._Ranks(target, load_cluster("dgx-h100"), filled(LayoutSearch, {}))
    assert ranks._short is not None and len(ranks.whole.layers) == 6
    monkeypatch.setattr(searching, "_Ranks", lambda *given: ranks)
    found = search_layouts(target, gpus=4, global_batch=8, among=among, top=3)
    for each in found.order:
        alone = memwall.parallel(target, layout=each.layout, batch=2).step
        assert each.step.time_s == pytest.approx(alone.time_s, rel=0.01)  # the host, between layers
        assert [memory.total for memory in each.step.memory] == [memory.total for memory in alone.memory]


def test_no_pipeline_beats_its_bound():
    dice = random.Random(7)
    for ranks, microbatches, schedule in itertools.product((1, 2, 3, 4, 8), (1, 2, 4, 8, 24), ORDERS):
        chunks = 3 if schedule == "interleaved" else 1
        if chunks > 1 and microbatches % ranks:
            continue
        stages = [Stage(*(dice.random() for _ in range(4))) for _ in range(ranks * chunks)]
        run = run_pipeline(stages, ranks, microbatches, schedule)
        ends = [max(end for task, end in run.ends.items() if task.stage % ranks == rank) for rank in range(ranks)]
        for end, least in zip(ends, least_ends_s(stages, ranks, microbatches, schedule), strict=True):
            assert least <= end * (1 + 1e-12)
        assert in_flight(ranks, chunks, microbatches, schedule) == run.in_flight


def test_equal_stages_reach_the_bound():
    """1F1B of equal stages takes m + p - 1 microbatches, gpipe as long."""
    for schedule in ("1f1b", "gpipe"):
        assert least_ends_s([Stage(1.0, 2.0)] * 4, 4, 8, schedule)[0] == pytest.approx(3.0 * (8 + 4 - 1))
        assert run_pipeline([Stage(1.0, 2.0)] * 4, 4, 8, schedule).time_s == pytest.approx(33.0)


def test_every_bound_of_a_layout_is_below_its_step(model):
    target, cluster = model(6), load_cluster("dgx-h100")
    ranks = searching._Ranks(target, cluster, filled(LayoutSearch, {}))
    search = searching._Search(ranks, cluster, {"state": None, "overlap": True})
    every = [each for each in layouts(8, 16, 6) if each.layout.tp <= 4]
    for each in random.Random(1).sample(every, 12):
        bounds = [bound(search, each) for _, bound in searching._BOUNDS]
        assert all(0 < bound <= bounds[-1] for bound in bounds), (each, bounds)
        blocks = ranks.of(each).blocks
        step = training_step(blocks, each.layout, cluster, state="float32")
        assert step_memory(blocks, each.layout, cluster, state="float32") == step.memory
        assert least_step_s(blocks, each.layout, cluster, state="float32") <= step.time_s * (1 + 1e-12)


def test_the_page_and_what_is_refused(run, model, tmp_path):
    words = ("search", model(2), "--mode", "training", "--gpus", "2", "--global-batch", "4")
    words += ("--among", "batch=1,2", "schedule=1f1b")
    result = run(*words, "-o", tmp_path / "found.json")
    assert result.code == 0 and "The fastest:" in result.out, result.err
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["schema"] == "memwall.layouts/1" and found["layouts"][0]["batch"] in (1, 2)
    times = [each["time_s"] for each in found["layouts"]]
    assert times == sorted(times) and len(times) == 10
    for more, said in [
        (("--among", "bacth=1"), "no key of a layout 'bacth'; did you mean batch?"),
        (("--among", "fsdp=ful"), "did you mean full?"),
        (("--among", "tp=x"), "tp of a layout is a whole number above 0, not 'x'"),
        (("--among", "schedule=1f1"), "did you mean 1f1b?"),
        (("--slo", "tpot<1s"), "--slo has no effect with --mode training"),
        (("--among", "tp=3"), "no layout of 2 GPUs divides a global batch of 4 among batch=1,2 schedule=1f1b tp=3"),
    ]:
        assert said in run(*words, *more).error
    assert "say how many samples a step has" in run(*words[:6]).error
    assert "--global-batch has no effect with --mode serving" in run("search", "m.py", "--global-batch", "4").error
    with pytest.raises(UsageError, match="GPUs"):
        search_layouts(model(2), gpus=2, global_batch=0)


@pytest.mark.defect("7")
def test_the_winner_is_what_its_profile_shows(run, model):
    """The winner of a search kept a share of the gradients and summed whole ones once a step, and its page said another
    peak than the search.

    Each of the two layers' gradients, and those around them, are summed in each of four microbatches."""
    words = (model(2), "--cluster", "dgx-h100")
    asked = ("--gpus", "4", "--global-batch", "32", "--among", "fsdp=grad", "microbatches=4", "pp=1", "tp=1", "batch=2")
    (won,) = json.loads(run("search", *words, "--mode", "training", *asked, "--top", "1", "--json").out)["layouts"]
    assert won["layout"].startswith("dp=4,fsdp=grad,microbatches=4")
    shown = json.loads(run("profile", *words, "-q", "--parallel", won["layout"], "--batch", "2", "--json").out)
    assert sum(row["count"] for row in shown["collectives"] if row["op"] == "reduce_scatter") == 3 * 4
    assert (shown["peak_bytes"], shown["time_s"]) == (won["peak_bytes"], won["time_s"])
    assert shown["fits"] and won["peak_bytes"] <= 85.1e9  # 79.2 GiB of an H100 of 80 GB


def test_splits_that_fail_for_one_reason_stand_together():
    """With or without a colon behind the split."""
    every = {"tp=4: no linear layer": 2, "tp=8: no linear layer": 1, "tp=3 does not divide 8": 5, "slower": 1}
    assert gathered(every) == [
        ("tp=3: does not divide 8", 5), ("tp=4; tp=8: no linear layer", 3), ("slower", 1)
    ]  # fmt: skip
