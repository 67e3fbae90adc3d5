"""What fusion saves, by hand arithmetic on the made-up step: 1 TB/s, 1 us a launch, no queue, no L2."""

import pytest

from memwall.analysis.savings import group_name, group_savings, missed_fusions, module_savings, policy_sets, waterfall
from memwall.fusion import Group, Plan, Refusal, eager_plan
from tests.unit.fused_fixture import MIB, make_fused
from tests.unit.report_fixture import NEW, OLD, make_profile

US = 1e-6
#: GELU: 4 MiB at 1 TB/s and a launch; layer norm: 4 MiB and 2 MiB again and a launch; both in one: 4 MiB and a launch
GELU_S, NORM_S, FUSED_S = (4 * MIB * 1e-12 + US), (6 * MIB * 1e-12 + US), (4 * MIB * 1e-12 + US)


@pytest.fixture(scope="module")
def policies():
    (found,) = policy_sets(make_fused())
    return found


def test_a_policy_is_held_against_eager_and_ideal(policies):
    eager, fused, ideal = policies.rows()
    assert [row.policy for row in policies.rows()] == ["eager", "inductor", "ideal"]
    assert (eager.speedup, eager.saved_bytes, eager.byte_score, eager.time_score) == (1.0, 0, 0.0, 0.0)
    assert (ideal.byte_score, ideal.time_score) == (1.0, 1.0)
    saved_s = 2 * (GELU_S + NORM_S - FUSED_S)
    assert eager.time_s - fused.time_s == pytest.approx(saved_s, rel=1e-9)
    assert fused.speedup == pytest.approx(eager.time_s / (eager.time_s - saved_s))
    assert (eager.kernels - fused.kernels, fused.saved_bytes) == (2, 8 * MIB)  # of 8 MiB in each block 4 are left
    # ideal drops GELUs and norms (16 MiB), the mystery op (4), the op with the hostile name (2 x 8 B), the optimizer
    # (reads and writes a state of 4 x 2^20 floats and two weights of 2 MiB: 2 x (16 + 4) MiB)
    assert ideal.saved_bytes == (16 + 4 + 40) * MIB + 16
    assert fused.byte_score == pytest.approx(8 * MIB / (60 * MIB + 16))
    assert fused.time_score == pytest.approx(saved_s / (eager.time_s - ideal.time_s))


def test_what_is_not_in_the_profile_is_simulated(policies):
    (alone,) = policy_sets(make_fused(policies=("inductor",)))
    assert [s.policy for s in alone.schedules] == ["inductor"]
    assert alone.eager.totals == policies.eager.totals
    assert alone.ideal.policy == "ideal"


def test_gpus_stand_apart():
    sets = policy_sets(make_fused(gpus=(OLD, NEW)))
    assert [(s.gpu.name, len(s.schedules)) for s in sets] == [("old", 3), ("new", 3)]
    assert sets[1].eager.gpu.name == "new"


def test_a_group_saves_its_eager_kernels_less_itself(policies):
    (row,) = group_savings(policies, policies.schedules[1])
    assert (row.name, row.module, row.phase, row.count, row.ops) == (
        "gelu + native_layer_norm", "blocks.*", "forward", 2, 2,
    )  # fmt: skip
    assert (row.eager_kernels, row.kernels) == (4, 2)
    assert (row.eager_bytes, row.bytes, row.saved_bytes) == (16 * MIB, 8 * MIB, 8 * MIB)
    assert row.eager_s == pytest.approx(2 * (GELU_S + NORM_S))
    assert row.time_s == pytest.approx(2 * FUSED_S)


def test_eager_groups_save_nothing(policies):
    assert group_savings(policies, policies.eager) == ()
    assert {row.saved_bytes for row in module_savings(policies, policies.eager)} == {0}


def test_modules_add_up_to_the_totals(policies):
    for schedule in policies.schedules:
        rows = module_savings(policies, schedule)
        assert sum(row.eager_bytes for row in rows) == policies.eager.totals.dram_bytes
        assert sum(row.bytes for row in rows) == schedule.totals.dram_bytes
        assert sum(row.eager_kernels for row in rows) == policies.eager.totals.kernels
        assert sum(row.kernels for row in rows) == schedule.totals.kernels
        assert sum(row.saved_s for row in rows) == pytest.approx(policies.eager.totals.time_s - schedule.totals.time_s)


def test_modules_that_change_nothing_are_the_others(policies):
    rows = module_savings(policies, policies.schedules[1], top=4)
    assert [row.module for row in rows] == ["blocks.*", "(others)"]
    assert rows[0].saved_bytes == 8 * MIB
    assert rows[1].saved_bytes == 0


def test_a_waterfall_falls_from_eager_to_the_policy(policies):
    fall = waterfall(policies, policies.schedules[1])
    assert [step.name for step in fall.steps] == ["gelu + native_layer_norm"]
    assert fall.steps[0].saved_s == pytest.approx(2 * (GELU_S + NORM_S - FUSED_S))
    assert fall.eager_s - fall.steps[0].saved_s - fall.others_s == pytest.approx(fall.time_s)
    assert fall.others_s == pytest.approx(0.0, abs=1e-12)
    cut = waterfall(policies, policies.schedules[1], top=0)
    assert cut.steps == ()
    assert cut.others_s == pytest.approx(fall.steps[0].saved_s)
    assert fall.ideal_s == policies.ideal.totals.time_s


def refused(rule, producer, consumer, nbytes, count=1):
    return Refusal(rule, f"because of {producer}", producer, consumer, nbytes, nbytes * 1e-12, count)


def test_missed_fusions_are_summed_and_ordered():
    profile = make_profile()
    singles = list(eager_plan(profile.graph, profile.costs[0]).groups)
    groups = [group for group in singles if group.op_ids[0] not in (4, 5)] + [
        Group((4, 5), (), (), profile.costs[0][4])
    ]
    refusals = (
        refused("contraction", 0, 1, 10),  # mm -> GELU of block 0
        refused("contraction", 3, 4, 10),  # the same of block 1
        refused("other", 1, 2, 15, count=2),  # GELU -> norm of block 0, and a twin
        refused("other", 4, 5, 1000),  # came together in the end
        refused("slower when fused", 2, 3, 1000),  # modeled to lose
    )
    rows = missed_fusions(profile, profile.simulations[0], Plan("inductor", tuple(groups), refusals))
    assert [(r.producer, r.consumer, r.module, r.rule, r.count, r.saved_bytes) for r in rows] == [
        ("gelu", "native_layer_norm", "blocks.*", "other", 2, 30),
        ("mm", "gelu", "blocks.*", "contraction", 2, 20),
    ]
    assert rows[0].saved_s == pytest.approx(30e-12)
    assert rows[1].reason == "because of 0"
    assert len(missed_fusions(profile, profile.simulations[0], Plan("inductor", tuple(groups), refusals), top=1)) == 1


def test_what_is_computed_again_is_not_missed():
    profile = make_profile()
    groups = list(eager_plan(profile.graph, profile.costs[0]).groups)
    groups[2] = Group((2,), (), (), profile.costs[0][2], recomputes=(1,))
    plan = Plan("inductor", tuple(groups), (refused("other", 1, 2, 10),))
    assert missed_fusions(profile, profile.simulations[0], plan) == ()


def test_a_plan_that_is_not_at_hand_has_no_missed_fusions(policies):
    assert missed_fusions(policies.profile, policies.schedules[1]) == ()  # a compiler would have to run again
    assert missed_fusions(policies.profile, policies.eager) == ()  # eager refuses nothing


@pytest.mark.parametrize(("names", "text"), [
    (("aten.add.Tensor", "aten.mul.Tensor", "aten.add.Tensor"), "add x2 + mul"),
    (("aten.native_layer_norm",), "native_layer_norm"),
    (("mylib.scan",), "mylib.scan"),
])  # fmt: skip
def test_a_group_is_named_by_its_ops(names, text):
    assert group_name(names) == text
