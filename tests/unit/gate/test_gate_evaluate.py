"""Limits held against profiles: verdicts, modules, GPUs and policies apart, what cannot be judged, what is noted."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import memwall
from memwall.analysis.limits import Limit, parse_limit
from memwall.analysis.quantities import LIMITS
from memwall.gate.config import GateConfig, GatedWorkload, LimitScope, parse_scope
from memwall.gate.evaluate import Subject, check_workload
from memwall.gate.run import run_gate
from memwall.gate.tracing import TraceJob, TraceOutcome, Tree, repeated
from memwall.hardware.host import load_host
from memwall.record.profile import Profile
from tests.unit.one_call import Call

ROWS, WIDTH = 64, 32
#: bytes of one f32[64, 32]
TENSOR = ROWS * WIDTH * 4


class Net(nn.Module):
    """A few functions after another, each in a module of its own."""

    def __init__(self, *functions):
        super().__init__()
        self.layers = nn.ModuleList(Call(function) for function in functions)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def profile(*functions, gpu="h100-sxm", policy="eager", rows=ROWS, **options) -> Profile:
    return memwall.profile(Net(*functions), (torch.randn(rows, WIDTH),), gpu=gpu, policy=policy, **options)


def limits(*texts: str, module: str = "") -> dict[tuple[str, str], tuple[Limit, ...]]:
    return {(name, module): rows for (name, _), rows in parse_scope(texts).limits.items()}


def check(head: Profile, *texts: str, base: Profile | None = None, module: str = "", **options):
    own = limits(*texts, module=module)
    every = {(s.gpu.name, s.policy): own for s in head.simulations}
    return check_workload(Subject("net", "net.py", head, base, base is not None, **options), every)


class Decoder(nn.Module):
    """Attention of 8 heads of 64 that share ``kv_heads`` keys and values of a cache."""

    def __init__(self, kv_heads):
        super().__init__()
        self.kv_heads = kv_heads
        self.qkv = nn.Linear(512, (8 + 2 * kv_heads) * 64)
        self.head = nn.Linear(512, 32_000)

    def forward(self, x, cache):
        q, k, v = self.qkv(x).unflatten(-1, (-1, 64)).transpose(1, 2).split((8, self.kv_heads, self.kv_heads), 1)
        cache = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        mixed = nn.functional.scaled_dot_product_attention(q, *cache, enable_gqa=True)
        return self.head(mixed.transpose(1, 2).flatten(2)), cache


def decoder(kv_heads: int) -> Profile:
    kept = tuple(torch.zeros(2, kv_heads, 100, 64) for _ in range(2))
    given = {"x": torch.zeros(2, 1, 512), "cache": kept}
    return memwall.profile(Decoder(kv_heads).half(), given, mode="decode", dtype="float16", policy="server")


def test_what_is_served_is_judged_on_both_sides():
    load = {"prompt": 64, "generate": 1024, "concurrency": 4, "price": {"h100": 3.6, "b200": 4}}
    texts = ("kv_bytes_per_token=+0%", "tpot_s=1 s", "cost_per_mtok=1 USD")
    found, problems = check(decoder(4), *texts, base=decoder(2), load=load)
    assert not problems and [c.verdict for c in found] == ["fail", "pass", "pass"]
    grown, tpot, cost = found
    # keys and values of 4 and of 2 heads of 64 in float16
    assert (grown.value, grown.baseline, grown.policy) == (2 * 4 * 64 * 2, 2 * 2 * 64 * 2, "")
    assert tpot.value is not None and 0 < tpot.value < 1e-3
    # 4 clients at one token each TPOT (a request waits 5 % of its time for the first), 3.6 USD an hour: a mill a second
    assert cost.value == pytest.approx(1e-3 / (4 / tpot.value) * 1e6, rel=0.3)
    same, _ = check(decoder(2), *texts, base=decoder(2), load=load)
    assert [c.verdict for c in same] == ["pass"] * 3 and all(c.value == c.baseline for c in same)


def test_what_is_not_served_has_no_server():
    (found,), _ = check(decoder(2), "tpot_s=1 s")
    assert found.verdict == "inconclusive" and 'it is not served; mode = "serve" says so' in found.message
    (found,), _ = check(decoder(2), "tpot_s=1 s", load={"tp": 3})
    assert found.verdict == "inconclusive" and "3 GPUs do not divide 8 heads; --tp 2 does" in found.message


@pytest.fixture(scope="module")
def two() -> Profile:
    return profile(torch.relu, torch.tanh)


@pytest.fixture(scope="module")
def three() -> Profile:
    return profile(torch.relu, torch.tanh, torch.sqrt)


def test_budgets_hold_up_to_their_very_amount(two):
    for texts, verdict in (
        (("kernels=2",), "pass"), (("kernels=1",), "fail"),
        ((f"dram_bytes={4 * TENSOR}",), "pass"), ((f"dram_bytes={4 * TENSOR - 1}",), "fail"),
        (("coverage=100 %",), "pass"), (("mfu=1 %",), "fail"),
    ):  # fmt: skip
        (found,), problems = check(two, *texts)
        assert (found.verdict, problems) == (verdict, [])
        assert found.value == (found.allowed if verdict == "pass" and found.quantity != "mfu" else found.value)
    (failed,), _ = check(two, "kernels=1")
    assert [(c.kind, c.kernels) for c in failed.causes] == [("largest", 1)] * 2


def test_relative_limits_need_a_baseline(two, three):
    (same,), _ = check(two, "kernels=+0", base=two)
    assert (same.verdict, same.baseline, same.causes) == ("pass", 2, ())
    (more,), _ = check(three, "kernels=+0", base=two)
    assert (more.verdict, more.value, more.baseline, more.allowed) == ("fail", 3, 2, 2)
    assert [(c.kind, c.op) for c in more.causes] == [("appeared", "sqrt")]
    (fewer,), _ = check(two, "kernels=+0", base=three)
    assert fewer.verdict == "pass"
    (none,), _ = check(two, "kernels=+0")
    assert (none.verdict, none.allowed) == ("inconclusive", None)
    assert "there is no baseline; give --baseline or --baseline-ref" in none.message


def test_several_limits_of_one_quantity_are_checks_of_their_own(three, two):
    found, _ = check(three, "kernels=+9", "kernels=2", base=two)
    assert [(c.limit, c.verdict) for c in found] == [("+9", "pass"), ("2", "fail")]


def test_a_module_is_summed_with_those_inside_of_it(three):
    (one,), problems = check(three, "dram_bytes=1 B", module="layers.1")
    assert (one.value, problems) == (2 * TENSOR, [])
    (every,), _ = check(three, "kernels=1", module="layers.*")
    assert every.value == 3
    (whole,), _ = check(three, "kernels=1", module="layers")
    assert whole.value == 3


def test_an_improvement_elsewhere_does_not_hide_a_module_that_grew():
    before, after = (
        profile(torch.tanh, lambda x: torch.sqrt(torch.relu(x))),
        profile(lambda x: torch.tanh(torch.neg(x)), torch.sqrt),
    )
    assert check(after, "kernels=+0", base=before)[0][0].verdict == "pass"  # the totals are equal
    (grown,), _ = check(after, "kernels=+0", base=before, module="layers.0")
    assert grown.verdict == "fail"
    assert [(c.kind, c.op) for c in grown.causes] == [("appeared", "neg")]


def test_a_pattern_without_kernels_is_a_problem(two):
    found, (problem,) = check(two, "kernels=1", "time_s=1 s", module="layer.*")
    assert found == []
    assert problem.verdict == "fail"
    assert "'layer.*'" in problem.message


def test_every_gpu_and_policy_is_checked(three):
    head = profile(torch.relu, torch.tanh, gpu=["h100-sxm", "a100-80gb-sxm"], policy=["eager", "memwall"])
    found, _ = check(head, "kernels=1", "coverage=100 %")
    assert [(c.gpu, c.policy) for c in found if c.quantity == "kernels"] == [
        (s.gpu.name, s.policy) for s in head.simulations
    ]
    assert [(c.gpu, c.policy) for c in found if c.quantity == "coverage"] == [("", "")]  # once
    assert {c.policy: c.verdict for c in found if c.quantity == "kernels"} == {"eager": "fail", "memwall": "pass"}


def test_limits_that_differ_by_policy_are_all_checked():
    head = profile(torch.relu, policy=["eager", "memwall"])
    own = {("h100-sxm", "eager"): limits("coverage=50 %"), ("h100-sxm", "memwall"): limits("coverage=100 %")}
    found, _ = check_workload(Subject("net", "net.py", head, None, False), own)
    assert [c.limit for c in found] == ["50 %", "100 %"]


def test_the_base_is_of_the_same_board(two):
    other = two.with_simulations(tuple(replace(s, gpu=replace(s.gpu, dram_bytes_per_s=1e12)) for s in two.simulations))
    for base in (other, profile(torch.relu, torch.tanh, gpu="a100")):
        (found,), _ = check(two, "kernels=+0", base=base)
        assert found.verdict == "inconclusive"
        assert "no eager on a h100-sxm of the same numbers; --update it" in found.message


def test_a_base_on_another_host_is_said(two):
    cloud = two.with_simulations(
        tuple(replace(s, gpu=replace(s.gpu, host=load_host("cloud-vm"))) for s in two.simulations)
    )
    (found,), _ = check(two, "time_s=+1 %", base=cloud)
    assert found.verdict == "inconclusive"
    assert "no eager on a h100-sxm on the host bare-metal, but on cloud-vm; --update it" in found.message


def test_a_policy_that_the_base_was_not_simulated_under_is_from_its_graph(two, three):
    base = profile(torch.relu, torch.tanh, policy="memwall")
    (found,), _ = check(two, "kernels=+0", base=base)
    assert (found.policy, found.verdict, found.baseline) == ("eager", "pass", 2)
    (found,), _ = check(three, "kernels=+0", base=base)
    assert (found.verdict, found.value, found.baseline) == ("fail", 3, 2)


def test_a_refused_base_is_never_used(two, three):
    found, _ = check(three, "kernels=+0", "kernels=9", base=two, refused="because of this")
    assert [(c.verdict, c.message, c.baseline) for c in found] == [
        ("inconclusive", "because of this", None), ("pass", "", None),
    ]  # fmt: skip


def test_a_new_workload_passes_what_is_relative_only(two):
    def judge(**options):
        return check_workload(
            Subject("net", "net.py", two, None, True, **options),
            {("h100-sxm", "eager"): limits("kernels=+0", "kernels=1")},
        )[0]

    assert [c.verdict for c in judge(missing="no such file: net.py")] == ["inconclusive", "fail"]
    assert "no such file: net.py" in judge(missing="no such file: net.py")[0].message
    assert [c.verdict for c in judge(new=True)] == ["pass", "fail"]


def test_an_op_without_a_formula_fails_and_is_named_whichever_gpu_runs_it(two):
    odd = profile(torch.relu, lambda x: torch.special.shifted_chebyshev_polynomial_t(x, x))
    (found,), _ = check(odd, "coverage=100 %")
    assert (found.verdict, found.value) == ("fail", 0.5)
    assert "special_shifted_chebyshev_polynomial_t" in found.message
    # of several graphs the worst counts
    both = replace(two, graphs=(*two.graphs, *odd.graphs), costs=(*two.costs, *odd.costs))
    (found,), _ = check(both, "coverage=100 %")
    assert (found.verdict, found.value) == ("fail", 0.5)
    assert "special_shifted_chebyshev_polynomial_t" in found.message


def test_where_the_memory_went_is_said(two):
    (found,), _ = check(profile(torch.relu, torch.tanh, rows=2 * ROWS), "peak_memory=+0", base=two)
    assert found.verdict == "fail"
    assert "activations +16.38 kB, inputs +8.19 kB" in found.message  # input and two results, f32[64, 32] each


def captured(head: Profile, breaks: int | None, failure: str | None = None) -> Profile:
    """A profile with so many graph breaks."""
    from memwall.record.capture import Break, Capture

    rows = tuple(
        Break(**{
            **dict.fromkeys(Break.__dataclass_fields__, ""), "reason": "Tensor.item()", "function": "forward",
            "file": "net.py", "line": 7 + i, "source_line": f"x{i}.item()", "count": 1, "after_op": 0, "cuts": (),
            "lost_from": None,
        }) for i in range(breaks or 0)
    )  # fmt: skip
    found = Capture(graphs=(), captures=0, breaks=rows, guard_kinds={}, guards=(), recompiles=(),
                    regions=(0,) * len(head.graph.ops), unmatched=0, data="meta", notes=(), behind=None,
                    failure=failure)  # fmt: skip
    return head.with_facts(dynamo=found)


def test_graph_breaks(two):
    (worse,), _ = check(captured(two, 2), "graph_breaks=+0", base=captured(two, 1))
    assert (worse.verdict, worse.value, worse.baseline) == ("fail", 2, 1)
    assert [(c.kind, c.op, c.source, c.module) for c in worse.causes] == [
        ("graph break", "Tensor.item()", "net.py:8", "layers.0")
    ]
    (none,), _ = check(captured(two, 0), "graph_breaks=+0", base=two)  # none is no more than any
    assert (none.verdict, none.baseline) == ("pass", None)
    (some,), _ = check(captured(two, 1), "graph_breaks=+0", base=two)
    assert some.verdict == "inconclusive"
    (none,), _ = check(captured(two, 0), "graph_breaks=+0")  # no base at all
    assert none.verdict == "inconclusive"
    (failed,), _ = check(captured(two, None, "it crashed"), "graph_breaks=+0", base=captured(two, 0))
    assert failed.verdict == "inconclusive"
    assert failed.message == "TorchDynamo captures nothing: it crashed"


@pytest.mark.parametrize("name", [n for n, row in LIMITS.items() if row.per not in ("machine", "server")])
def test_every_quantity_can_be_read_and_limited(name, two, tmp_path):
    head = captured(two, 0)
    worst = {"lower": "0", "higher": "100 %"}["lower" if LIMITS[name].lower else "higher"]
    (found,), _ = check(head, f"{name}={worst}")
    assert found.value is not None
    assert found.value >= 0
    assert parse_limit(name, worst).holds(found.value) == (found.verdict == "pass")
    # a saved record says the same
    head.save(tmp_path / "net.json")
    (again,), _ = check(Profile.load(tmp_path / "net.json"), f"{name}={worst}")
    assert again.value == found.value


def test_intermediates_are_what_kernels_write_and_others_read(two, three):
    (found,), _ = check(three, "materialized_bytes=0")
    assert found.value == 2 * TENSOR  # the last result is an output
    fused = profile(torch.relu, torch.tanh, torch.sqrt, policy="memwall")
    (found,), _ = check(fused, "materialized_bytes=0")
    assert (found.value, fused.simulations[0].totals.kernels) == (0, 1)


def gated(folder, head: Profile, base: Profile | None, scope: LimitScope):
    """The result of a gate of one saved profile."""
    head.save(folder / "net.json")
    if base is not None:
        base.save(folder / "base.json")
    workload = GatedWorkload("net", "net.json")
    config = GateConfig(folder, workloads=(workload,), scope=scope)
    return run_gate(config, [workload], folder / "base.json" if base is not None else None).result


def test_ten_gates_of_unchanged_code_are_one(tmp_path):
    made = profile(torch.relu, nn.Linear(WIDTH, WIDTH), policy=["eager", "memwall"], mode="training")
    found = [gated(tmp_path, made, made, LimitScope()) for _ in range(10)]
    assert {result.verdict for result in found} == {"pass"}
    assert len({result.to_json() for result in found}) == 1
    assert all(c.value == c.baseline for c in found[0].checks)
    assert {c.quantity for c in found[0].checks} == {
        "coverage", "kernels", "dram_bytes", "flops", "time_s", "peak_memory",
    }  # fmt: skip


def test_smaller_inputs_are_noted(tmp_path, two):
    smaller = profile(torch.relu, torch.tanh, rows=16)
    result = gated(tmp_path, smaller, two, LimitScope())
    assert result.verdict == "pass"
    assert "net: inputs float32[16, 32] where the base has float32[64, 32]" in result.baseline.notes
    linear = nn.Linear(WIDTH, WIDTH)
    notes = gated(tmp_path, profile(linear, mode="training"), profile(linear), LimitScope()).baseline.notes
    assert "net: mode training where the base has inference" in notes


def test_breaks_are_judged_by_default_where_either_side_knows_them(tmp_path, two):
    def breaks(head: Profile, base: Profile) -> list[str]:
        return [c.verdict for c in gated(tmp_path, head, base, LimitScope()).checks if c.quantity == "graph_breaks"]

    assert breaks(captured(two, 1), captured(two, 1)) == ["pass"]
    assert breaks(captured(two, 2), captured(two, 1)) == ["fail"]
    assert breaks(two, two) == []
    # a model that Dynamo never captured is no alert; one that it does no longer is
    assert breaks(captured(two, 0, "crash"), captured(two, 0, "crash")) == []
    assert breaks(captured(two, 1), two) == ["inconclusive"]


class SaidToRun:
    """Tracers that note the jobs and find what they are told."""

    def __init__(self, row: TraceOutcome) -> None:
        self.row, self.jobs = row, []

    def traced(self, jobs):
        self.jobs += [job for _, job in jobs]
        return [self.row for _ in jobs]


@pytest.mark.parametrize("real", [False, True])
def test_a_workload_is_repeated_on_the_tensors_that_it_had(real):
    """Strides of real tensors may differ from those without data, which is no difference between two traces."""
    row = TraceOutcome("net", profile(torch.relu), real=real)
    tracers = SaidToRun(row)
    (again,) = repeated([({"net": row}, Tree(Path()), TraceJob("net", "net.py", {}, (), ()))], tracers)
    assert again == row
    assert tracers.jobs
    assert {job.options.get("real", False) for job in tracers.jobs} == {real}


def test_why_bytes_in_nchw_grew():
    """A larger batch of what was NCHW before, and channels_last given up."""

    def image(batch, memory_format):
        net, data = nn.Conv2d(16, 16, 3), torch.randn(batch, 16, 8, 8)
        return memwall.profile(net, (data.to(memory_format=memory_format),))

    contiguous = image(2, torch.contiguous_format)
    for base, detail in (
        (contiguous, "more bytes in NCHW"),
        (image(2, torch.channels_last), "NCHW where channels_last was"),
    ):
        found, _ = check(image(4, torch.contiguous_format), "nchw_bytes=+0", base=base)
        assert [(row.verdict, [cause.detail for cause in row.causes]) for row in found] == [("fail", [detail])]
