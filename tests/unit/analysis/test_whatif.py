"""What-ifs against hand arithmetic on the made-up GPU: 100 TFLOP/s, 1 TB/s, 1 us a launch, no L2."""

import pytest

from memwall.analysis.whatif import FuseChange, GpuChange, parse_change, what_if
from memwall.core.errors import UsageError
from memwall.core.graph import Graph
from memwall.frontend.facts import WorkloadInfo
from memwall.fusion import eager_plan, plan_graph
from memwall.fusion.hand_fused import fuse_modules, modules_of
from memwall.record.profile import Profile
from memwall.simulate.schedule import simulate
from tests.unit.report_fixture import TENSOR, VECTOR, Builder, make_gpu

GPU = make_gpu()
#: bytes of one 1000 x 1000 float16 tensor: 2 MB, 2 us at 1 TB/s
MB2 = 2_000_000
US = 1e-6


def profile_of(builder: Builder, outputs) -> Profile:
    graph = Graph(tuple(builder.values), tuple(builder.storages), tuple(builder.ops), (0,), (), tuple(outputs))
    workload = WorkloadInfo("made", "made.py", "training", "float16", (), 0)
    costs = tuple(builder.costs)
    plan = eager_plan(graph, costs)
    return Profile(workload, (graph,), (costs,), (simulate(graph, plan, GPU),))


def chain() -> Profile:
    """x -> gelu -> y -> gelu -> z, 2 MB each; no FLOPs to speak of."""
    b = Builder()
    x, y, z = b.value((1000, 1000), "input"), b.value((1000, 1000)), b.value((1000, 1000))
    b.op("aten.gelu", "elementwise", "forward", "layers.0.act", (x,), (y,), {VECTOR: 1000})
    b.op("aten.gelu", "elementwise", "forward", "layers.1.act", (y,), (z,), {VECTOR: 1000})
    return profile_of(b, (z,))


def mlp(layers: int = 1, backward: bool = False) -> Profile:
    """Per layer: mm (2 GFLOP, 6 MB), gelu (4 MB), mm (2 GFLOP, 6 MB), then an add (6 MB) outside the MLP."""
    b = Builder()
    x = b.value((1000, 1000), "input")
    product = {TENSOR: 2 * 1000**3}
    for i in range(layers):
        up, down = b.value((1000, 1000), "parameter"), b.value((1000, 1000), "parameter")
        h, g, y, out = (b.value((1000, 1000)) for _ in range(4))
        b.op("aten.mm", "contraction", "forward", f"layers.{i}.mlp.up", (x, up), (h,), product)
        b.op("aten.gelu", "elementwise", "forward", f"layers.{i}.mlp", (h,), (g,), {VECTOR: 1000})
        b.op("aten.mm", "contraction", "forward", f"layers.{i}.mlp.down", (g, down), (y,), product)
        b.op("aten.add.Tensor", "elementwise", "forward", f"layers.{i}", (x, y), (out,), {VECTOR: 1000})
        x = out
    if backward:
        grad = b.value((1000, 1000))
        b.op("aten.gelu_backward", "elementwise", "backward", "layers.0.mlp", (x, h), (grad,), {VECTOR: 1000})
        x = grad
    return profile_of(b, (x,))


def outcome(profile: Profile, *specs: str, policy: str = "eager"):
    (found,) = what_if(profile, [parse_change(s) for s in specs], [GPU], [policy])[-1:]
    return found


@pytest.mark.parametrize(("text", "expected"), [
    ("dram_bytes_per_s*=2", ("dram_bytes_per_s", "", "*=", 2.0)),
    ("l2_bytes=100MB", ("l2_bytes", "", "=", 100e6)),
    ("l2_bytes=50 MiB", ("l2_bytes", "", "=", 52_428_800.0)),
    ("dram_bytes_per_s = 3.35TB/s", ("dram_bytes_per_s", "", "=", 3.35e12)),
    ("peak_flop_per_s*=1.5", ("peak_flop_per_s", "", "*=", 1.5)),
    ("peak_flop_per_s.tensor.bfloat16=200TFLOP/s", ("peak_flop_per_s", "tensor.bfloat16", "=", 200e12)),
    ("launch_overhead_s=0", ("launch_overhead_s", "", "=", 0.0)),
    ("launch_overhead_s=3us", ("launch_overhead_s", "", "=", 3e-6)),
    ("dispatch_s/=2", ("dispatch_s", "", "/=", 2.0)),
    ("sm_count=144", ("sm_count", "", "=", 144.0)),
    ("achievable.dram=1", ("achievable", "dram", "=", 1.0)),
    ("boost_clock_hz=1.7GHz", ("boost_clock_hz", "", "=", 1.7e9)),
])  # fmt: skip
def test_changes_of_a_number(text, expected):
    change = parse_change(text)
    assert isinstance(change, GpuChange)
    assert (change.field, change.key, change.operator) == expected[:3]
    assert change.operand == pytest.approx(expected[3], rel=1e-12)


def test_a_pattern_of_modules():
    assert parse_change("fuse:layers.*.mlp") == FuseChange("fuse:layers.*.mlp", "layers.*.mlp")


@pytest.mark.parametrize(("text", "says"), [
    ("dram_byte_per_s*=2", "no number named 'dram_byte_per_s'; did you mean dram_bytes_per_s?"),
    ("peak_flop_per_s.tensor.bf16*=2", "did you mean peak_flop_per_s.tensor.bfloat16?"),
    ("colour=blue", "there is sm_count, boost_clock_hz"),
    ("name=3", "no number named 'name'"),
    ("faster", "want FIELD=VALUE, FIELD*=FACTOR or fuse:MODULES"),
    ("fuse:", "names no module"),
    ("l2_bytes=100MW", "'100MW' is not a number, or one in B such as 100MB"),
    ("dram_bytes_per_s*=2TB/s", "'2TB/s' is not a number"),
    ("dram_bytes_per_s=3TiB/s", "rates are decimal"),
    ("l2_bytes=", "'' is not a number"),
    ("l2_bytes=1e999", "is not a number that a GPU can have"),
])  # fmt: skip
def test_what_cannot_be_read_names_the_way_out(text, says):
    with pytest.raises(UsageError) as error:
        parse_change(text)
    assert says in str(error.value)


@pytest.mark.parametrize(("text", "says"), [
    ("sm_count=-3", "must be a positive whole number"),
    ("dram_bytes_per_s=0", "must be a positive number"),
    ("achievable.dram*=2", "at most 1"),
    ("peak_flop_per_s.tensor.fp8*=2", "old has no tensor.fp8; it has tensor.float16, vector.float32"),
    ("dram_bytes_per_s/=0", "divides by zero"),
    ("sm_count*=1e300", "must be a positive whole number"),
])  # fmt: skip
def test_impossible_numbers_are_refused(text, says):
    with pytest.raises(UsageError) as error:
        parse_change(text).on(GPU)
    assert says in str(error.value)


def test_only_the_number_named_changes():
    changed = parse_change("sm_count*=1.5").on(GPU)
    assert (changed.sm_count, changed.peak_flop_per_s) == (150, GPU.peak_flop_per_s)
    faster = parse_change("peak_flop_per_s*=2").on(GPU)
    assert faster.peak_flop_per_s == {TENSOR: 200e12, VECTOR: 20e12}
    one = parse_change("peak_flop_per_s.tensor.float16*=2").on(GPU)
    assert one.peak_flop_per_s == {TENSOR: 200e12, VECTOR: 10e12}
    new = parse_change("peak_flop_per_s.tensor.fp8=400TFLOP/s").on(GPU)
    assert {str(pipe): rate for pipe, rate in new.peak_flop_per_s.items()}["tensor.fp8"] == 400e12
    assert new.name == GPU.name


@pytest.mark.parametrize(("spec", "after_us"), [
    ("dram_bytes_per_s*=2", 6.0),  # two kernels of 4 MB at 2 TB/s, 1 us of launch each
    ("launch_overhead_s=0", 8.0),
    ("launch_overhead_s=3us", 14.0),
    ("peak_flop_per_s*=2", 10.0),  # bandwidth-bound: nothing
    ("l2_bytes=100MB", 8.0 + 0.5 / 0.45),  # the second reads its 2 MB at 45 % of the L2's 4 TB/s
    ("dispatch_s=20us", 40.0),  # the CPU issues one every 20 us, one step after another
])  # fmt: skip
def test_a_chain_on_a_changed_gpu(spec, after_us):
    found = outcome(chain(), spec)
    assert found.before.time_s == pytest.approx(10 * US)  # two of 4 MB / 1 TB/s + 1 us
    assert found.after.time_s == pytest.approx(after_us * US)
    assert found.after.dram_bytes == found.before.dram_bytes == 4 * MB2
    assert found.speedup == pytest.approx(10 / after_us)


def test_our_planner_decides_anew():
    """Fused the chain reads and writes 2 MB each: 4 + 1 us, and 2 + 1 at twice the bandwidth."""
    found = outcome(chain(), "dram_bytes_per_s*=2", policy="memwall")
    assert (found.before.kernels, found.after.kernels) == (1, 1)
    assert found.before.time_s == pytest.approx(5 * US)
    assert found.after.time_s == pytest.approx(3 * US)


def test_several_come_alone_and_together():
    changes = [parse_change("dram_bytes_per_s*=2"), parse_change("launch_overhead_s=0")]
    found = what_if(chain(), changes, [GPU], ["eager", "ideal"])
    assert [(o.label, o.policy) for o in found] == [
        ("dram_bytes_per_s*=2", "eager"), ("dram_bytes_per_s*=2", "ideal"),
        ("launch_overhead_s=0", "eager"), ("launch_overhead_s=0", "ideal"),
        ("dram_bytes_per_s*=2 and launch_overhead_s=0", "eager"),
        ("dram_bytes_per_s*=2 and launch_overhead_s=0", "ideal"),
    ]  # fmt: skip
    assert found[4].after.time_s == pytest.approx(4 * US)  # two of 4 MB at 2 TB/s


def test_a_module_in_one_kernel():
    """x, two weights in, one tensor out: 8 MB; 4 GFLOP at 100 TFLOP/s is 40 us, plus one launch; the add stays."""
    found = outcome(mlp(), "fuse:layers.*.mlp")
    assert found.before.kernels == 4
    assert found.before.dram_bytes == 11 * MB2  # 3 + 2 + 3 + 3 tensors
    assert found.before.time_s == pytest.approx((21 + 5 + 21 + 7) * US)
    assert found.after.kernels == 2
    assert found.after.dram_bytes == 7 * MB2  # 4 + 3
    assert found.after.time_s == pytest.approx((40.0001 + 1 + 7) * US, rel=1e-5)
    assert found.notes == ()


@pytest.mark.parametrize("specs", [("fuse:layers.*", "fuse:*.mlp"), ("fuse:*.mlp", "fuse:layers.*")])
def test_of_nested_modules_the_outermost_is_one_kernel(specs):
    both, outer = outcome(mlp(2), *specs), outcome(mlp(2), "fuse:layers.*")
    assert (both.after.kernels, both.after.dram_bytes) == (outer.after.kernels, outer.after.dram_bytes)


def test_our_planner_plans_the_rest_around_it():
    """Two layers: two MLPs by hand, and each add alone, as what it would join is a product or by hand."""
    found = outcome(mlp(2), "fuse:*.mlp", policy="memwall")
    assert found.after.kernels == 4
    assert found.after.dram_bytes == 2 * 7 * MB2


def test_a_pattern_takes_the_outermost_module():
    graph = mlp(2).graph
    assert modules_of(graph, "layers.*") == {
        ("layers.0", "forward"): (0, 1, 2, 3), ("layers.1", "forward"): (4, 5, 6, 7),
    }  # fmt: skip
    assert modules_of(graph, "layers.1.mlp.*") == {
        ("layers.1.mlp.up", "forward"): (4,), ("layers.1.mlp.down", "forward"): (6,),
    }  # fmt: skip


def test_phases_are_kernels_of_their_own():
    graph = mlp(backward=True).graph
    assert modules_of(graph, "layers.0.mlp") == {
        ("layers.0.mlp", "forward"): (0, 1, 2), ("layers.0.mlp", "backward"): (4,),
    }  # fmt: skip


def test_an_unknown_module_names_those_near():
    with pytest.raises(UsageError, match=r"no module fits 'mlp'; did you mean layers.\*.mlp"):
        modules_of(mlp().graph, "mlp")


def test_ideal_is_left_as_it_is():
    found = outcome(mlp(), "fuse:layers.*", policy="ideal")
    assert found.after == found.before
    assert found.notes == ("ideal is a floor: replacing modules by one kernel does not change it",)


def test_a_circle_is_refused():
    """The MLP runs, then something outside, then the MLP again: no one kernel holds both."""
    b = Builder()
    x, y, z, w = b.value((1000, 1000), "input"), *(b.value((1000, 1000)) for _ in range(3))
    b.op("aten.gelu", "elementwise", "forward", "a", (x,), (y,))
    b.op("aten.gelu", "elementwise", "forward", "b", (y,), (z,))
    b.op("aten.gelu", "elementwise", "forward", "a", (z,), (w,))
    found = outcome(profile_of(b, (w,)), "fuse:a")
    assert found.after == found.before
    assert found.notes == ("a (forward): what leaves it comes back into it",)


def interleaved() -> Profile:
    """Modules a and b of two ops each, a0 -> b0 and b1 -> a1: each can be one kernel, not both."""
    b = Builder()
    x, u, v, p, q = (b.value((1000, 1000), "input" if i == 0 else "activation") for i in range(5))
    b.op("aten.gelu", "elementwise", "forward", "a", (x,), (u,))
    b.op("aten.gelu", "elementwise", "forward", "b", (x,), (v,))
    b.op("aten.gelu", "elementwise", "forward", "a", (v,), (p,))
    b.op("aten.gelu", "elementwise", "forward", "b", (u,), (q,))
    return profile_of(b, (p, q))


def test_of_two_modules_that_wait_for_each_other_one_is_fused():
    profile = interleaved()
    graph, costs = profile.graph, profile.costs[0]
    written = fuse_modules(graph, costs, GPU, eager_plan(graph, costs), ["a", "b"])
    assert written.fused == 1
    assert written.refused == ("b (forward): it and another module wait for each other",)
    assert [group.op_ids for group in written.plan.groups] == [(1,), (0, 2), (3,)]


def test_a_group_in_the_way_falls_apart():
    """Without regions our planner puts x's readers into one kernel, which a by hand would wait for and feed."""
    profile = interleaved()
    graph, costs = profile.graph, profile.costs[0]
    plan = plan_graph("memwall", graph, costs, GPU)
    written = fuse_modules(graph, costs, GPU, plan, ["a"])
    assert written.refused == ()
    assert (0, 2) in [group.op_ids for group in written.plan.groups]
    assert sorted(op for group in written.plan.groups for op in group.op_ids) == [0, 1, 2, 3]


def test_each_gpu_has_totals_of_its_own():
    gpus = [GPU, make_gpu("new", dram_bytes_per_s=2e12)]
    found = what_if(chain(), [parse_change("launch_overhead_s=0")], gpus, ["eager"])
    assert [(o.gpu, round(o.after.time_s / US, 6)) for o in found] == [("old", 8.0), ("new", 4.0)]


def test_a_profile_shares_its_plans_with_its_copies(monkeypatch):
    """The verdict on a fused step plans it for each number that the planner looks at, not for the GPU as it is."""
    import memwall.record.schedules as schedules
    from memwall.analysis.verdict import verdict

    planned = []
    original = schedules.plan_graph
    monkeypatch.setattr(schedules, "plan_graph", lambda *args: planned.append(args[:4:3]) or original(*args))
    made = chain()
    copy = made.with_simulations((made.schedule(GPU, "memwall"),))
    verdict(copy, copy.simulations[0])
    verdict(copy.with_simulations(copy.simulations), copy.simulations[0])
    fused = [gpu for policy, gpu in planned if policy == "memwall"]
    assert len(fused) == len({repr(gpu.to_dict()) for gpu in fused}) <= 4
