"""Limits as people write them: every form, every unit, what each allows, and what is refused with the way out."""

import pytest

from memwall.analysis.limits import find_quantity, parse_limit
from memwall.analysis.quantities import ALIASES, LIMITS
from memwall.core.errors import UsageError, suggest

BUDGETS = [
    ("time_s", "3.2 ms", 3.2e-3), ("time_s", "3.2ms", 3.2e-3), ("time_s", "250 us", 250e-6),
    ("time_s", "250 µs", 250e-6), ("time_s", "40 ns", 40e-9), ("time_s", ".5 s", 0.5), ("time_s", 0.25, 0.25),
    ("time_s", "1e-3", 1e-3), ("peak_memory", "70 GB", 70e9), ("peak_memory", "70 GiB", 75_161_927_680),
    ("dram_bytes", "1_000", 1000), ("dram_bytes", 1_000_000, 1e6), ("dram_bytes", "3 B", 3),
    ("dram_bytes", "1.5 kB", 1500), ("flops", "1.2 TFLOP", 1.2e12), ("flops", "2 PFLOPs", 2e15), ("kernels", 120, 120),
    ("kernels", "1.2 k", 1200), ("graph_breaks", 0, 0), ("mfu", "45 %", 0.45), ("mfu", 0.45, 0.45),
    ("coverage", "100 %", 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "amount"), BUDGETS)
def test_a_budget_is_an_amount_in_base_units(name, text, amount):
    limit = parse_limit(name, text)
    assert not limit.relative
    assert limit.amount == pytest.approx(amount, rel=1e-12)
    assert limit.allowed(None) == limit.allowed(7) == limit.amount
    assert limit.text == str(text)


@pytest.mark.parametrize(("name", "text", "baseline", "allowed"), [
    ("dram_bytes", "+2%", 1000, 1020),
    ("dram_bytes", "+2 %", 1000, 1020),
    ("dram_bytes", "-2%", 1000, 980),
    ("dram_bytes", "+0.5%", 200_000, 201_000),
    ("dram_bytes", "+ 1 kB", 1000, 2000),
    ("kernels", "+0", 35, 35),
    ("kernels", "+3", 35, 38),
    ("kernels", "-1", 35, 34),
    ("time_s", "+1 ms", 2e-3, 3e-3),
    ("mfu", "-2%", 0.5, 0.49),  # of the baseline
    ("mfu", "-2 pp", 0.5, 0.48),  # percentage points
    ("mfu", "+0", 0.5, 0.5),
    ("overhead_share", "+5pp", 0.1, 0.15),
    ("kernels", "+2%", 0, 0),
])  # fmt: skip
def test_a_sign_makes_a_limit_relative(name, text, baseline, allowed):
    limit = parse_limit(name, text)
    assert limit.relative
    assert limit.allowed(baseline) == pytest.approx(allowed, rel=1e-12)
    with pytest.raises(ValueError, match="relative to a baseline"):
        limit.allowed(None)


@pytest.mark.parametrize(("name", "text", "message"), [
    ("time_s", "3 mz", "no unit 'mz' for modeled time; did you mean ms"),
    ("time_s", "3 MS", "did you mean ms"),
    ("dram_bytes", "70 gb", "did you mean GB"),
    ("dram_bytes", "2%", "has a sign, as in '\\+2%'"),
    ("dram_bytes", "1,000", "no unit ',000'"),
    ("dram_bytes", "+2 pp", "no unit 'pp'"),
    ("flops", "2 GB", "no unit 'GB' for FLOPs"),
    ("kernels", "3 GB", "no unit 'GB' for kernels launched"),
    ("kernels", "1 2", "no unit '2'"),
    ("kernels", "", "cannot read the limit ''"),
    ("kernels", "+", "cannot read"),
    ("kernels", "many", "cannot read the limit 'many'; want one such as 120"),
    ("kernels", "--1", "cannot read"),
    ("kernels", "0x10", "no unit 'x10'"),
    ("time_s", float("nan"), "cannot read the limit 'nan'"),
    ("time_s", float("inf"), "cannot read the limit 'inf'"),
    ("time_s", "1e999", "no finite number"),
    ("time_s", -1, "below zero; write a change of the baseline as text"),
    ("time_s", True, "not 'True'"),
    ("time_s", None, "not 'None'"),
    ("time_s", {}, "not '{}'"),
    ("time_s", "9" * 5000, "no finite number"),
    ("mfu", 45, "45 is above 100 %"),
    ("overhead_share", "20", "above 100 %"),  # would allow everything
    ("overhead_share", "120 %", "above 100 %"),
    ("kernles", "3", "no quantity 'kernles'; did you mean kernels"),
    ("Time_S", "3", "did you mean time_s"),
    ("", "3", "there is kernels, dram_bytes"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused_with_the_way_out(name, text, message):
    with pytest.raises(UsageError, match=message) as caught:
        parse_limit(name, text, "here")
    assert str(caught.value).startswith("here: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", [n for n, q in LIMITS.items() if q.unit in ("B", "FLOP", "count")])
@pytest.mark.parametrize("value", [0, 1, 35, 2**53 + 1, 3 * 10**18 + 1, 10**21 + 7])
@pytest.mark.parametrize("text", ["+0", "+0%"])
def test_an_equal_figure_keeps_a_limit_of_nothing_more_however_large(name, value, text):
    limit = parse_limit(name, text)
    kept = value if limit.quantity.lower else -value
    assert limit.holds(kept, kept)


def test_one_more_breaks_a_limit_of_nothing_more():
    for value in (0, 1, 35, 10**9, 10**14):
        assert not parse_limit("kernels", "+0").holds(value + 1, value)
        assert not parse_limit("dram_bytes", "+0%").holds(value + 1, value)
        assert parse_limit("dram_bytes", "+0").holds(value - 1, value)
    assert not parse_limit("dram_bytes", "1 GB").holds(10**9 + 1)
    assert parse_limit("dram_bytes", "1 GB").holds(10**9)


def test_time_has_the_slack_of_rounding_alone():
    limit = parse_limit("time_s", "+0%")
    assert limit.holds(1e-3 * (1 + 1e-12), 1e-3)
    assert not limit.holds(1e-3 * (1 + 1e-6), 1e-3)
    assert limit.holds(0.0, 0.0)


def test_more_is_better_for_some():
    assert {name for name, row in LIMITS.items() if not row.lower} == {
        "mfu", "hfu", "mbu", "compute_share", "coverage", "tokens_per_s", "tokens_per_s_per_user",
        "tokens_per_s_per_gpu", "requests_per_s", "goodput_share", "goodput_per_s", "goodput_tokens_per_s",
        "cached_share",
    }  # fmt: skip
    assert parse_limit("mfu", "45 %").holds(0.45)
    assert not parse_limit("mfu", "45 %").holds(0.44)
    assert not parse_limit("mfu", "-1%").holds(0.49, 0.5)
    assert parse_limit("mfu", "-2%").holds(0.49, 0.5)
    assert not parse_limit("coverage", "100 %").holds(0.9999)


def test_other_spellings_name_a_quantity():
    for other, name in ALIASES.items():
        assert find_quantity(other) is LIMITS[name]
        assert other not in LIMITS


def test_the_nearest_name_is_offered_or_all():
    assert suggest("dram_byte", LIMITS) == "did you mean dram_bytes?"
    assert suggest("Dram_Byte", LIMITS) == "did you mean dram_bytes?"
    assert suggest("zzz", ("one", "two")) == "there is one, two"
    assert suggest("zzz", ("one", "two"), listed=["1"]) == "there is 1"
    assert suggest("", ("one",)) == "there is one"
