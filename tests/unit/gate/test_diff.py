"""Causes: small modules changed in one way each, taken apart by hand; sums that must add up; graphs that are large."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import memwall
from memwall.analysis.matching import in_order, match_ops
from memwall.gate.diff import Cause, DiffSide, _difference, explain, largest, top
from memwall.hardware.host import Host
from memwall.record.profile import Profile
from tests.unit.one_call import Call

ROWS, WIDTH = 64, 32
#: bytes of one f32[64, 32]
TENSOR = ROWS * WIDTH * 4


class Chain(nn.Module):
    """Functions of one tensor, one after another; each name is a module of its own."""

    def __init__(self, **steps):
        super().__init__()
        for name, step in steps.items():
            self.add_module(name, Call(step))

    def forward(self, x):
        for step in self.children():
            x = step(x)
        return x


def double(x):
    return x * 2


#: with a host that takes as long for every op, whatever module calls it
H100 = replace(memwall.load_gpu("h100-sxm"), host=Host.uniform(5e-6))


def profile(model: nn.Module, rows: int = ROWS, policy="eager", **options) -> Profile:
    return memwall.profile(model, (torch.randn(rows, WIDTH),), gpu=H100, policy=policy, **options)


def side(made: Profile) -> DiffSide:
    return DiffSide(made, made.simulations[0])


def causes(before: Profile, after: Profile) -> list[Cause]:
    return [c for c in explain(side(before), side(after)) if c.kind != "elsewhere"]


def assert_adds_up(before: Profile, after: Profile) -> None:
    for one, other in zip(before.simulations, after.simulations, strict=True):
        found = explain(DiffSide(before, one), DiffSide(after, other))
        assert sum(c.kernels for c in found) == other.totals.kernels - one.totals.kernels
        assert sum(c.flops for c in found) == other.totals.flops - one.totals.flops
        assert sum(c.dram_bytes for c in found) == other.totals.dram_bytes - one.totals.dram_bytes
        moved_s = other.totals.time_s - one.totals.time_s
        slack_s = 1e-9 * max(one.totals.time_s, other.totals.time_s)
        assert sum(c.time_s for c in found) == pytest.approx(moved_s, abs=slack_s)


def test_an_op_that_appeared_is_named_with_all_that_it_costs():
    before, after = (profile(Chain(a=torch.relu, b=torch.tanh)), profile(Chain(a=torch.relu, n=double, b=torch.tanh)))
    (cause,) = causes(before, after)
    # mul reads one f32[64,32] and writes one; one FLOP an element
    assert (cause.kind, cause.op, cause.module, cause.phase, cause.count) == ("appeared", "mul", "n", "forward", 1)
    assert (cause.kernels, cause.flops, cause.dram_bytes) == (1, ROWS * WIDTH, 2 * TENSOR)
    assert cause.time_s > 0
    assert cause.detail == "f32[64,32] -> f32[64,32]"
    (gone,) = causes(after, before)
    assert (gone.kind, gone.op, gone.kernels, gone.dram_bytes) == ("vanished", "mul", -1, -2 * TENSOR)
    assert_adds_up(before, after)
    assert_adds_up(after, before)


def test_a_cast_costs_its_narrow_and_its_wide_side():
    before, after = profile(Chain(a=torch.relu)), profile(Chain(a=torch.relu, c=lambda x: x.half()))
    (cause,) = causes(before, after)
    assert (cause.kind, cause.op, cause.kernels, cause.dram_bytes) == ("appeared", "_to_copy", 1, TENSOR + TENSOR // 2)
    assert cause.detail == "f32[64,32] -> f16[64,32]"


def test_an_op_in_the_place_of_another():
    before, after = profile(Chain(a=torch.relu, b=torch.tanh)), profile(Chain(a=torch.relu, b=torch.sqrt))
    found = {c.kind: c for c in causes(before, after)}
    assert set(found) == {"appeared", "vanished"}
    assert (found["appeared"].op, found["vanished"].op) == ("sqrt", "tanh")
    assert found["appeared"].dram_bytes == -found["vanished"].dram_bytes == 2 * TENSOR
    assert_adds_up(before, after)


def test_one_product_for_another_is_the_same_op_that_changed():
    before, after = (profile(Chain(a=nn.Linear(WIDTH, WIDTH, bias=bias))) for bias in (False, True))
    (cause,) = causes(before, after)
    assert (cause.kind, cause.op, cause.kernels, cause.detail) == ("grew", "addmm", 0, "addmm where mm was")
    assert cause.dram_bytes == WIDTH * 4  # the bias
    assert_adds_up(before, after)


def test_a_larger_batch_lets_every_op_grow():
    before, after = (profile(Chain(a=torch.relu, b=torch.tanh)), profile(Chain(a=torch.relu, b=torch.tanh), rows=80))
    found = causes(before, after)
    assert {(c.kind, c.op, c.dram_bytes, c.kernels) for c in found} == {
        ("grew", "relu", 2 * 16 * WIDTH * 4, 0), ("grew", "tanh", 2 * 16 * WIDTH * 4, 0),
    }  # fmt: skip
    assert {c.detail for c in found} == {"f32[80,32] where f32[64,32] was"}
    assert {c.kind for c in causes(after, before)} == {"shrank"}
    assert_adds_up(before, after)


def test_equal_changes_of_repeated_blocks_are_one_cause():
    def blocks(extra: bool) -> nn.Module:
        step = (lambda x: double(torch.relu(x))) if extra else torch.relu
        return nn.Sequential(*[Chain(inner=step) for _ in range(5)])

    (cause,) = causes(profile(blocks(False)), profile(blocks(True)))
    assert (cause.kind, cause.op, cause.module, cause.count) == ("appeared", "mul", "*.inner", 5)
    assert (cause.kernels, cause.flops, cause.dram_bytes) == (5, 5 * ROWS * WIDTH, 5 * 2 * TENSOR)


def test_a_renamed_module_is_no_change():
    before = profile(Chain(old=lambda x: torch.tanh(torch.relu(x)), b=torch.neg))
    after = profile(Chain(new=lambda x: torch.tanh(torch.relu(x)), b=torch.neg))
    assert len(match_ops(before.graph, after.graph)) == 3
    assert explain(side(before), side(after)) == ()
    deeper = profile(nn.Sequential(Chain(new=lambda x: torch.tanh(torch.relu(x)), b=torch.neg)))
    assert explain(side(before), side(deeper)) == ()


def test_modules_in_another_order_are_no_change():
    before, after = profile(Chain(a=torch.relu, b=torch.tanh)), profile(Chain(b=torch.tanh, a=torch.relu))
    assert match_ops(before.graph, after.graph) == {0: 1, 1: 0}
    assert causes(before, after) == []
    assert_adds_up(before, after)


def test_equal_profiles_have_no_cause():
    made = profile(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()), policy=("eager", "memwall"), mode="training")
    for schedule in made.simulations:
        assert explain(DiffSide(made, schedule), DiffSide(made, schedule)) == ()


def lose(axis: int):
    """A product of a tensor with its own sum; the sum along the rows ends its kernel."""
    return Chain(a=lambda x: torch.sigmoid(x) * x, b=lambda x: x * x.sum(axis, keepdim=True), c=torch.relu)


def test_a_lost_fusion_is_named_by_the_two_ops_that_parted():
    before, after = (profile(lose(axis), rows=4096, policy="memwall") for axis in (-1, 0))
    assert before.simulations[0].totals.kernels < after.simulations[0].totals.kernels
    lost = [c for c in causes(before, after) if c.kind == "lost fusion"]
    assert len(lost) == 1
    assert lost[0].kernels > 0
    assert lost[0].dram_bytes > 0
    assert "sum" in lost[0].op
    assert ": " in lost[0].detail  # the planner's reason
    assert [c.kind for c in causes(after, before)] == ["fused"]
    assert_adds_up(before, after)


def test_a_base_from_a_file_has_the_causes_of_one_that_was_traced(tmp_path):
    before, after = (profile(lose(axis), rows=4096, policy=("memwall", "eager")) for axis in (-1, 0))
    before.save(tmp_path / "base.json")
    after.save(tmp_path / "head.json")
    read, head = (Profile.load(tmp_path / name) for name in ("base.json", "head.json"))
    assert read.simulations[0].plan is None
    for one, other, ours, theirs in zip(before.simulations, read.simulations, after.simulations, head.simulations,
                                        strict=True):  # fmt: skip
        traced = explain(DiffSide(before, one), DiffSide(after, ours))
        assert explain(DiffSide(read, other), DiffSide(after, ours)) == traced
        # of a head that was saved the planner's reasons are not known, and so not the pair of ops that it parted
        figures = [(c.kind, c.count, c.kernels, c.flops, c.dram_bytes, c.time_s) for c in traced]
        saved = explain(DiffSide(read, other), DiffSide(head, theirs))
        assert [(c.kind, c.count, c.kernels, c.flops, c.dram_bytes, c.time_s) for c in saved] == figures


@pytest.mark.parametrize("module", [nn.MaxPool2d(3, 2), nn.Softmax2d()])
def test_arguments_of_a_saved_profile_are_those_of_the_traced_one(module, tmp_path):
    traced = memwall.profile(module, (torch.zeros(2, 4, 64, 64),))
    traced.save(tmp_path / "was.json")
    was = Profile.load(tmp_path / "was.json").graph
    now = traced.graph
    assert [_difference(was, one, now, other) for one, other in zip(was.ops, now.ops, strict=True)] == [""]
    wide = memwall.profile(nn.MaxPool2d(3, 2, dilation=1, ceil_mode=False), (torch.zeros(2, 4, 64, 64),)).graph
    if isinstance(module, nn.MaxPool2d):
        changed = replace(wide.ops[0], attributes={**wide.ops[0].attributes, "kernel_size": (5, 5)})
        assert _difference(was, was.ops[0], wide, changed) == "kernel_size [5, 5] where [3, 3] was"


def common_length(first: list[int], second: list[int]) -> int:
    """Length of a longest common subsequence, by the table."""
    rows = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, one in enumerate(first):
        for j, other in enumerate(second):
            rows[i + 1][j + 1] = rows[i][j] + 1 if one == other else max(rows[i][j + 1], rows[i + 1][j])
    return rows[-1][-1]


FEW = st.lists(st.integers(0, 3), max_size=12)


@settings(max_examples=200, deadline=None)
@given(FEW, FEW)
def test_ops_of_one_place_are_matched_in_order_as_many_as_can_be(first, second):
    pairs = in_order(first, second)
    assert all(first[i] == second[j] for i, j in pairs)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(sorted(pairs)))
    assert len(pairs) == common_length(first, second)


STEPS = {
    "relu": torch.relu, "cast": lambda x: x.half().float(), "copy": lambda x: x.t().contiguous().t(),
    "norm": lambda x: nn.functional.layer_norm(x, (WIDTH,)), "sum": lambda x: x * x.sum(-1, keepdim=True),
    "rows": lambda x: x * x.sum(0, keepdim=True), "mm": lambda x: x @ x.t() @ x,
    "cat": lambda x: torch.cat([x, x])[: x.shape[0]],
}  # fmt: skip


@cache
def random_profile(names: tuple[str, ...], rows: int) -> Profile:
    return profile(Chain(**{f"{name}{i % 3}{i}": STEPS[name] for i, name in enumerate(names)}), rows=rows,
                   policy=("eager", "memwall", "ideal"))  # fmt: skip


#: few, so that pairs of them share traces
CHAINS = [tuple(Random(seed).choices(sorted(STEPS), k=1 + seed % 5)) for seed in range(8)]
PROFILES = st.builds(random_profile, st.sampled_from(CHAINS), st.sampled_from((ROWS, 4096)))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(PROFILES, PROFILES)
def test_the_causes_of_any_two_profiles_add_up(before, after):
    assert_adds_up(before, after)
    pairs = match_ops(before.graph, after.graph)
    assert len(set(pairs.values())) == len(pairs)
    assert all(0 <= h < len(after.graph.ops) and 0 <= b < len(before.graph.ops) for h, b in pairs.items())


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(PROFILES, PROFILES, st.sampled_from(("kernels", "flops", "dram_bytes", "time_s", "mfu")))
def test_the_top_causes_hold_all_that_got_worse(before, after, quantity):
    found = explain(side(before), side(after))
    measure = {"mfu": "time_s"}.get(quantity, quantity)
    for count in (1, 2, 8):
        kept = top(found, quantity, count=count)
        assert len(kept) <= count
        worse = sum(getattr(c, measure) for c in found if getattr(c, measure) > 0)
        assert sum(getattr(c, measure) for c in kept) == pytest.approx(worse, rel=1e-9)


def test_causes_come_in_one_order_whatever_the_hash():
    before, after = random_profile(("relu", "norm", "mm"), ROWS), random_profile(("norm", "cast", "mm"), ROWS)
    assert explain(side(before), side(after)) == explain(side(before), side(after))
    found = explain(side(before), side(after))
    assert [c.time_s for c in found] == sorted((c.time_s for c in found), reverse=True)


def test_without_a_baseline_the_largest_kernels_are_named():
    made = profile(nn.Sequential(*[Chain(a=torch.relu) for _ in range(3)], Call(lambda x: x @ x.t())))
    schedule = made.simulations[0]
    found = largest(side(made), "dram_bytes", schedule.kernels, 2)
    # the product reads 2 tensors and writes 64 x 64 floats; three relus move 6 tensors in all
    assert [(c.kind, c.op, c.module, c.count, c.dram_bytes) for c in found] == [
        ("largest", "relu", "*.a", 3, 6 * TENSOR), ("largest", "mm", "3", 1, found[1].dram_bytes),
    ]  # fmt: skip
    assert sum(c.time_s for c in largest(side(made), "time_s", schedule.kernels, 99)) == pytest.approx(
        schedule.totals.time_s
    )


def test_one_op_more_in_each_of_many_layers_is_one_cause():
    def deep(extra: bool) -> Profile:
        step = (lambda x: torch.neg(torch.tanh(torch.relu(x)))) if extra else (lambda x: torch.tanh(torch.relu(x)))
        layers = [Chain(a=step, b=torch.sigmoid, c=lambda x: x @ x.t() @ x) for _ in range(60)]
        return profile(nn.Sequential(*layers))

    before, after = deep(False), deep(True)
    assert len(before.graph.ops) == 5 * 60
    (cause,) = causes(before, after)
    assert (cause.op, cause.count) == ("neg", 60)


def test_ops_between_all_ops_of_a_loop_without_modules_are_one_cause():

    def flat(extra: bool) -> Profile:
        def loop(x):
            for _ in range(300):
                x = torch.relu(x)
                x = torch.neg(x) if extra else x
            return x

        return profile(Call(loop), replay=False)

    before, after = flat(False), flat(True)
    found = causes(before, after)
    assert [(c.kind, c.op, c.kernels) for c in found] == [("appeared", "neg", 300)]


def test_elsewhere_is_time_alone():
    before, after = profile(lose(-1)), profile(lose(0))
    for cause in explain(side(before), side(after)):
        if cause.kind == "elsewhere":
            assert (cause.kernels, cause.flops, cause.dram_bytes) == (0, 0, 0)
    slower = before.simulations[0]
    kernels = tuple(replace(k, overhead_s=k.overhead_s + 1e-6) for k in slower.kernels)
    shifted = before.with_simulations((replace(slower, kernels=kernels),))
    (cause,) = explain(side(before), side(shifted))
    assert (cause.kind, cause.count) == ("elsewhere", len(kernels))
    assert cause.time_s == pytest.approx(len(kernels) * 1e-6)
